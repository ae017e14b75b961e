//! How a slave begins with a stock master, which tells no terms: it is asked, by RocketMQ's ordinary requests, whether its log is the one
//! that is here.

use ringmq_engine::log::{AppendError, FollowError};

use super::{End, Slave, Start, Upstream};
use crate::pair::{Speech, Trouble};

impl Slave {
    /// How to begin with a stock master, which is asked when the connection is there: who answers is who is connected to. `answers` if it
    /// did just now.
    pub(super) async fn stock_speech(
        &self,
        answers: bool,
        upstream: &impl Upstream,
    ) -> Result<Speech, End> {
        let log = self.shard.log();
        let end = log.appended();
        if end == log.min_offset() {
            return Ok(Speech::Stock { first: self.beginning(upstream).await?, compared: false });
        }
        let compared = self.compare_with_stock(end, answers, upstream).await?;
        Ok(Speech::Stock { first: end, compared })
    }

    /// A stock master tells no terms and no checksums, but how far its log goes and what message is where. Whether it could be asked.
    async fn compare_with_stock(
        &self,
        end: u64,
        answers: bool,
        upstream: &impl Upstream,
    ) -> Result<bool, End> {
        let (min, max) = match upstream.log_range().await {
            Ok(Some(range)) => range,
            Ok(None) => return Ok(false),
            // Nothing but the HA port may be open to this slave.
            Err(_) if !answers => return Ok(false),
            Err(why) => return Err(End::Range(why)),
        };
        if end > max {
            return Err(Trouble::Shorter { own: end, min, max }.into());
        }
        if end < min {
            return Err(Trouble::Behind { own: end, min, max }.into());
        }
        let Some((at, record)) = self.shard.last_record().await? else { return Ok(true) };
        if at >= min {
            let theirs = upstream.record(at).await.map_err(End::Range)?;
            if theirs.as_deref() != Some(record.bytes()) {
                return Err(Trouble::OtherMessage(at).into());
            }
        }
        Ok(true)
    }

    /// Where an empty slave asks a stock master to begin.
    async fn beginning(&self, upstream: &impl Upstream) -> Result<u64, End> {
        let log = self.shard.log();
        if self.config.start == Start::Newest {
            return Ok(log.appended());
        }
        let asked = upstream.log_range().await.map_err(End::Range)?;
        let unknown = || End::Range("where it can be asked is not known".to_owned());
        let (min, max) = asked.ok_or_else(unknown)?;
        if min > 0 || max == 0 {
            return Ok(min);
        }
        // 0 would be answered with the last segment. The first byte of a log is the high byte of a size, and always 0: with it here,
        // the master is asked for what follows.
        loop {
            let changed = log.changed();
            let taken = log.follow(0, 1, |place| {
                place.fill(0);
                Ok(place.len())
            });
            match taken {
                Ok(_) => break,
                Err(FollowError::Append(AppendError::NotReady { .. })) => changed.await,
                Err(error) => return Err(error.into()),
            }
        }
        log.kick();
        Ok(1)
    }
}
