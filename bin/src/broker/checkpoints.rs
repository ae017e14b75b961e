//! When derived data is made durable: what came since the last time bounds what a start after a crash redoes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use glommio::timer::Timer;
use ringmq_engine::shard::Progress;

use super::Broker;

/// How often it is looked whether a checkpoint is due.
const LOOK: Duration = Duration::from_millis(100);
/// A checkpoint is due when something was dispatched and the last one is this long ago.
const AGE_MAX: Duration = Duration::from_secs(20);
/// It is due sooner when this many records were dispatched: a start redoes about 400,000 a second ...
const RECORDS_MAX: u64 = 100_000;
/// ... or this many bytes of log, which a start has to read.
const BYTES_MAX: u64 = 256 << 20;
/// At most one part in so many of the time is spent in checkpoints that come before their age: each touches the file of every queue
/// that grew, so that with tens of thousands of queues they are not cheap.
const PARTS: u32 = 5;

/// What the last checkpoint covered, and what it cost.
struct Last {
    covered: Progress,
    ended: Instant,
    took: Duration,
}

impl Last {
    /// Whether it is time for the next one.
    fn is_due(&self, dispatched: Progress, age: Duration) -> bool {
        let bytes = dispatched.end.saturating_sub(self.covered.end);
        let records = dispatched.records.saturating_sub(self.covered.records);
        let much = bytes >= BYTES_MAX || records >= RECORDS_MAX;
        // Unlike and not more: a log that follows another one can be cut.
        dispatched.end != self.covered.end && (age >= AGE_MAX || (much && age >= self.took * PARTS))
    }
}

impl Broker {
    /// Makes derived data durable now and again, until the broker stops.
    pub(super) async fn checkpoint_again_and_again(self: Rc<Self>) {
        let covered = self.shard.progress();
        let mut last = Last { covered, ended: Instant::now(), took: Duration::ZERO };
        while !self.stopped() {
            Timer::new(LOOK).await;
            let covered = self.shard.progress();
            if !last.is_due(covered, last.ended.elapsed()) {
                continue;
            }
            let began = Instant::now();
            let outcome = self.shard.checkpoint().await;
            (last.ended, last.took) = (Instant::now(), began.elapsed());
            match outcome {
                Ok(()) => last.covered = covered,
                Err(error) => {
                    self.rare_log.error("checkpoint", &error);
                    // A disk that refuses is not asked again at once.
                    last.took = AGE_MAX;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COVERED: Progress = Progress { end: 1 << 40, records: 7_000_000 };

    fn last(took: Duration) -> Last {
        Last { covered: COVERED, ended: Instant::now(), took }
    }

    #[test]
    fn nothing_new_needs_no_checkpoint() {
        assert!(!last(Duration::ZERO).is_due(COVERED, AGE_MAX * 10));
    }

    #[test]
    fn little_waits_for_its_age_and_much_does_not() {
        let last = last(Duration::ZERO);
        let few = Progress { end: COVERED.end + 100, records: COVERED.records + 1 };
        assert!(!last.is_due(few, AGE_MAX / 2));
        assert!(last.is_due(few, AGE_MAX));
        let many = Progress { records: COVERED.records + RECORDS_MAX, ..few };
        let large = Progress { end: COVERED.end + BYTES_MAX, ..few };
        assert!(last.is_due(many, LOOK) && last.is_due(large, LOOK));
    }

    #[test]
    fn checkpoints_that_take_long_come_rarely() {
        let took = Duration::from_secs(2);
        let many = Progress { end: COVERED.end + 100, records: COVERED.records + RECORDS_MAX };
        assert!(!last(took).is_due(many, took * (PARTS - 1)));
        assert!(last(took).is_due(many, took * PARTS));
        let cut = Progress { end: COVERED.end - 4096, ..COVERED };
        assert!(last(took).is_due(cut, AGE_MAX), "what was cut off is no longer claimed");
        assert!(last(AGE_MAX).is_due(many, AGE_MAX), "but at their age in any case");
    }
}
