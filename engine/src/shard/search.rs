//! Finding records otherwise than by queue offset: by physical offset, by time, by key.

use ringmq_net::record::{CheckResult, CheckRule, RECORD_FIXED_BYTES, check, decode};

use super::{Queue, Shard, ShardError};
use crate::log::{LogError, ReadHint, Slice};

/// Bytes of a record that hold its length, flags and store time, whatever its hosts. No record is shorter.
const HEAD_BYTES: usize = 80;
/// Where the store timestamp is, after an IPv4 or an IPv6 born host.
const STORE_TIME_AT: [usize; 2] = [56, 68];
/// Where `sysFlag` is, and its bit for an IPv6 born host.
const SYS_FLAG_AT: usize = 36;
const BORN_HOST_V6: i32 = 0x10;

/// What a look-up by key found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexFound {
    /// Physical offsets, ascending. Keys are compared by hash alone: the asker checks the messages.
    pub physical_offsets: Vec<i64>,
    /// Store time of the newest indexed message, milliseconds since 1970.
    pub last_update_timestamp: i64,
    /// Physical offset of the newest indexed message.
    pub last_update_physical_offset: i64,
}

impl Shard {
    /// The record at a physical offset that somebody named; `None` if no whole visible record begins there.
    ///
    /// # Errors
    /// [`LogError`] when the device fails.
    pub async fn record_at(&self, offset: u64) -> Result<Option<Slice>, LogError> {
        let max = self.log.visible();
        let room = usize::try_from(max.saturating_sub(offset)).unwrap_or(usize::MAX);
        if offset < self.log.min_offset() || room < RECORD_FIXED_BYTES {
            return Ok(None);
        }
        let head = self.bytes_at(offset, HEAD_BYTES, ReadHint::EXACT).await?;
        let Some(len) = i32_at(head.bytes(), 0).and_then(|len| usize::try_from(len).ok()) else {
            return Ok(None);
        };
        if len < RECORD_FIXED_BYTES || len > self.config.record_bytes_max() || len > room {
            return Ok(None);
        }
        let record = self.bytes_at(offset, len, ReadHint::EXACT).await?;
        let good = matches!(check(record.bytes(), offset, CheckRule::Stock), CheckResult::Good(_));
        Ok((good && decode(record.bytes()).is_ok()).then_some(record))
    }

    /// Store time of the message at a queue offset, milliseconds since 1970; `None` if there is none or it cannot be read.
    pub async fn store_time(&self, queue: &Queue, offset: i64) -> Option<i64> {
        let unit = self.unit(queue, offset).await.ok()??;
        self.store_time_at(unit.physical_offset).await
    }

    /// [`Shard::store_time`] as far as memory knows it: never reads from the device.
    pub fn store_time_in_memory(&self, queue: &Queue, offset: i64) -> Option<i64> {
        let mut found = None;
        self.queues.recent(queue.units(), offset, 1, |unit| {
            found = Some(unit);
            false
        });
        let offset = u64::try_from(found?.physical_offset).ok()?;
        store_time_of(self.log.hot(offset, HEAD_BYTES)?.bytes())
    }

    pub(super) async fn store_time_at(&self, physical_offset: i64) -> Option<i64> {
        let offset = u64::try_from(physical_offset).ok()?;
        if offset < self.log.min_offset() {
            return None;
        }
        let head = self.bytes_at(offset, HEAD_BYTES, ReadHint::EXACT).await.ok()?;
        store_time_of(head.bytes())
    }

    /// The queue offset of the message stored nearest to `timestamp`, by stock's rules (the earlier on a tie; the first or
    /// last when all are on one side; 0 for an empty queue).
    ///
    /// # Errors
    /// [`ShardError`] when units cannot be read.
    pub async fn offset_by_time(&self, queue: &Queue, timestamp: i64) -> Result<i64, ShardError> {
        let log_min = self.log.min_offset();
        let found = self
            .queues
            .offset_by_time(queue.units(), timestamp, log_min, async |physical, _| {
                self.store_time_at(physical).await
            })
            .await?;
        Ok(found)
    }
}

impl Shard {
    /// Records under a key's hash, stored between two times (milliseconds since 1970), at most `max` of the newest.
    ///
    /// # Errors
    /// [`ShardError`] when the index cannot be read. Without an index nothing is found.
    pub async fn query_index(
        &self,
        key_hash: i32,
        max: usize,
        begin: i64,
        end: i64,
    ) -> Result<IndexFound, ShardError> {
        let Some(index) = &self.index else { return Ok(IndexFound::default()) };
        let found = index.query(key_hash, max, begin, end).await?;
        let mut physical_offsets = found.offsets;
        physical_offsets.sort_unstable();
        physical_offsets.dedup();
        Ok(IndexFound {
            physical_offsets,
            last_update_timestamp: found.last_timestamp,
            last_update_physical_offset: found.last_physical,
        })
    }

    /// Store time of the log's first message; `None` if there is none or it cannot be read.
    pub async fn earliest_store_time(&self) -> Option<i64> {
        let first = self.log.min_offset();
        if first + RECORD_FIXED_BYTES as u64 > self.log.visible() {
            return None;
        }
        self.store_time_at(i64::try_from(first).ok()?).await
    }
}

/// The store time in a record's first [`HEAD_BYTES`].
fn store_time_of(head: &[u8]) -> Option<i64> {
    let flags = i32_at(head, SYS_FLAG_AT)?;
    let at = STORE_TIME_AT[usize::from(flags & BORN_HOST_V6 != 0)];
    Some(i64::from_be_bytes(head.get(at..at + 8)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
