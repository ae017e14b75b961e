//! Slow sends: a log line that says where the time went. At most one a second; all are counted.
//!
//! ```text
//!   received ──queued──► write begun ──write──► written ──flush──► flushed ──held──► released ──reply──► handed to the socket
//! ```
//!
//! A send is appended in the turn that received it, so all of its waiting for a write in flight, for zeros or for the disk is
//! `queued`. `flush` is there at level `sync` only, `held` where a topic that the send created had to be saved first. What
//! a send waited in the client or in the kernel's receive buffer cannot be seen from here.

use std::rc::Rc;
use std::time::Instant;

use ringmq_net::record::{MESSAGE_ID_CHARS_MAX, OffsetMessageId, Properties, decode};
use ringmq_net::server::Conn;

use super::Broker;
use super::ack::{Level, Sent};

/// What the lines are rated as.
const WHAT: &str = "slow send";

/// A send that was answered late.
pub(super) struct SlowSend {
    pub(super) sent: Sent,
    /// Physical offset behind its last record.
    pub(super) end: u64,
    pub(super) conn: Rc<Conn>,
    /// When it was received, microseconds of the reactor's clock.
    pub(super) received_us: i64,
    /// When it was answered.
    pub(super) released_us: i64,
    /// With which code and level.
    pub(super) code: i32,
    pub(super) level: Level,
}

/// Milliseconds of each stage; `None` for one that was not reached, or is not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct StageTimes {
    queued_ms: Option<f64>,
    write_ms: Option<f64>,
    flush_ms: Option<f64>,
    held_ms: Option<f64>,
}

/// Splits the time from `received` to `released`. All in microseconds of one clock.
fn split(
    received: i64,
    begun: Option<i64>,
    written: Option<i64>,
    flushed: Option<i64>,
    released: i64,
) -> StageTimes {
    let ms = |from: Option<i64>, to: Option<i64>| Some((to? - from?).max(0) as f64 / 1_000.0);
    let last = flushed.or(written);
    StageTimes {
        queued_ms: ms(Some(received), begun.or(Some(released))),
        write_ms: ms(begun, written.or(Some(released))),
        flush_ms: ms(flushed.and(written), flushed),
        held_ms: ms(last, Some(released)),
    }
}

impl Broker {
    /// Tells of the slowest of the sends that were just answered, after their replies were offered to the sockets.
    pub(super) fn report_slow_send(&self) {
        let Some(slow) = self.acks.take_slow() else { return };
        let Some(more) = self.rare_log.admit(WHAT) else { return };
        let replied_us = self.clock.monotonic_us();
        let sent = &slow.sent;
        let stages = self.shard.log().stages(slow.end);
        let us = |at: Option<Instant>| at.map(|at| self.clock.monotonic_us_of(at));
        // At the lower levels a flush that came meanwhile is no part of what the client waited for.
        let flushed = stages.flushed.filter(|_| self.config.level == Level::Sync);
        let (begun, written) = (us(stages.write_began), us(stages.written));
        let times = split(slow.received_us, begun, written, us(flushed), slow.released_us);
        let host = self.config.store_host;
        let id = OffsetMessageId { store_host: host, physical_offset: sent.physical_offset };
        let unique = self.unique_key(&slow);
        tracing::warn!(
            topic = &**sent.queue.topic(),
            queue = sent.queue_id,
            offset = sent.queue_offset,
            client = %slow.conn.peer(),
            id = id.write(&mut [0; MESSAGE_ID_CHARS_MAX]),
            unique_key = unique.as_deref(),
            code = slow.code,
            level = slow.level.name(),
            total_ms = (replied_us - slow.received_us) as f64 / 1_000.0,
            queued_ms = times.queued_ms,
            write_ms = times.write_ms,
            flush_ms = times.flush_ms,
            held_ms = times.held_ms,
            reply_ms = (replied_us - slow.released_us) as f64 / 1_000.0,
            unsent_bytes = slow.conn.out_bytes(),
            more,
            "{WHAT}"
        );
    }

    /// The id that the client gave its message, if the record is written and still in memory.
    fn unique_key(&self, slow: &SlowSend) -> Option<String> {
        let len = usize::try_from(slow.end.checked_sub(slow.sent.physical_offset)?).ok()?;
        let record = self.shard.log().hot(slow.sent.physical_offset, len)?;
        let view = decode(record.bytes()).ok()?;
        let properties = std::str::from_utf8(view.properties()).ok()?;
        Properties::new(properties).known().uniq_key.map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_add_up_to_the_whole() {
        let times = split(1_000, Some(3_000), Some(8_000), Some(20_000), 20_500);
        let expected = StageTimes {
            queued_ms: Some(2.0),
            write_ms: Some(5.0),
            flush_ms: Some(12.0),
            held_ms: Some(0.5),
        };
        assert_eq!(times, expected);
    }

    #[test]
    fn a_send_that_was_given_up_spent_the_rest_in_its_last_stage() {
        let waiting = split(0, None, None, None, 2_500_000);
        assert_eq!(waiting, StageTimes { queued_ms: Some(2_500.0), ..StageTimes::default() });
        let writing = split(0, Some(500_000), None, None, 2_500_000);
        assert_eq!((writing.queued_ms, writing.write_ms), (Some(500.0), Some(2_000.0)));
        assert_eq!((writing.flush_ms, writing.held_ms), (None, None));
    }
}
