//! Delivery of delayed messages: from the queues of SCHEDULE_TOPIC_XXXX to where they belong, when their time comes.
//!
//! One task for all levels. It sleeps until the earliest deliver time among the levels' heads, or until new
//! messages become visible: no polling, so a message is delivered within milliseconds of its time. Each level's
//! progress is the next queue offset to look at; it is saved every ten seconds, so delivery is at least once.

use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::shard::{NewMessage, NewRun, ShardError, UnitCode};
use ringmq_engine::state::delay::{Due, due, level_to_queue};
use ringmq_net::record::{Properties, decode, tags_code};

use super::Broker;

/// The wait after a delivery that the store refused (stock 4.9.8).
const RETRY: Duration = Duration::from_millis(100);
/// Longest sleep, so that a clock that was set forward is noticed; and the wait after a read that the disk failed.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Messages delivered of one level before the others get their turn.
const BATCH: usize = 256;

/// What became of the head of a level.
enum Head {
    Delivered,
    /// Not due for this many milliseconds.
    DueIn(i64),
    /// Nothing there.
    Empty,
    /// The store did not take it.
    Refused,
    /// The disk did not give it.
    Unreadable,
}

impl Broker {
    /// Delivers until the broker stops.
    pub(super) async fn deliver_delayed(self: Rc<Self>) {
        while !self.stopped() {
            let mut sleep = SLEEP_MAX;
            for level in 1..=self.delay_levels.level_max() {
                match self.deliver_level(level).await {
                    Head::Delivered => sleep = Duration::ZERO,
                    Head::DueIn(ms) => sleep = sleep.min(Duration::from_millis(ms.max(1) as u64)),
                    Head::Empty | Head::Unreadable => {}
                    Head::Refused => sleep = sleep.min(RETRY),
                }
            }
            if sleep.is_zero() {
                glommio::executor().yield_task_queue_now().await;
            } else {
                self.delay_arrived.wait_at_most(sleep).await;
            }
        }
    }

    /// Delivers what is due of one level, at most a batch.
    async fn deliver_level(&self, level: i32) -> Head {
        let mut last = Head::Empty;
        for _ in 0..BATCH {
            last = self.deliver_head(level).await;
            if !matches!(last, Head::Delivered) {
                break;
            }
        }
        self.shard.kick();
        last
    }

    async fn deliver_head(&self, level: i32) -> Head {
        let Ok(queue) = self.delay_queue(level_to_queue(level)) else { return Head::Empty };
        let offset = self.delay_offsets.borrow().get(level).max(queue.min_offset());
        if offset >= queue.max_offset() {
            return Head::Empty;
        }
        let unit = match self.shard.unit(&queue, offset).await {
            Ok(Some(unit)) => unit,
            Ok(None) => return Head::Empty,
            Err(error) => return self.undeliverable(level, offset, &error),
        };
        let delay_ms = self.delay_levels.delay_ms(level).unwrap_or(0);
        match due(unit.tags_code, delay_ms, self.clock.store_ms()) {
            Due::Now => {}
            Due::In(ms) => return Head::DueIn(ms),
        }
        let delivered = match self.read_record(unit.physical_offset).await {
            Ok(Some(record)) => self.deliver_record(record.bytes()),
            // Stock skips what is no record; so do we, but not in silence.
            Ok(None) => {
                tracing::error!(
                    level,
                    offset,
                    physical_offset = unit.physical_offset,
                    "there is no delayed message where its queue says: skipped"
                );
                true
            }
            Err(error) => return self.undeliverable(level, offset, &error),
        };
        if !delivered {
            return Head::Refused;
        }
        self.delay_offsets.borrow_mut().set(level, offset + 1);
        Head::Delivered
    }

    /// A message that the disk does not give now may be given later: it is never skipped for that.
    fn undeliverable(&self, level: i32, offset: i64, error: &ShardError) -> Head {
        let why = format!(
            "delay level {level} waits at offset {offset} until it can be read: {error}: check the disk (to give the message up, stop the broker and raise the level's offset in delayOffset.json)"
        );
        self.rare_log.error("delivery of delayed messages", &why);
        Head::Unreadable
    }

    /// Stores the message anew where it belongs. The properties text stays as it is: DELAY, REAL_TOPIC and REAL_QID
    /// remain in the delivered record, as in stock.
    fn deliver_record(&self, bytes: &[u8]) -> bool {
        let Ok(view) = decode(bytes) else { return true };
        let text = std::str::from_utf8(view.properties()).unwrap_or_default();
        let known = Properties::new(text).known();
        let Some(topic) = known.real_topic else { return true };
        let id = known.real_queue_id.and_then(|id| id.parse().ok()).unwrap_or(0);
        let Ok(queue) = self.any_queue(topic, id) else { return true };
        let run = NewRun {
            queue: &queue,
            sys_flag: view.sys_flag(),
            born_timestamp: view.born_timestamp(),
            born_host: view.born_host(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times(),
            prepared_transaction_offset: 0,
        };
        let message = NewMessage {
            flag: view.flag(),
            body: view.body(),
            properties: view.properties(),
            known: &known,
            code: UnitCode::Tags(tags_code(known.tags)),
        };
        match self.shard.put(self.clock.store_ms(), &run, std::iter::once(message), |_| {}) {
            Ok(stored) => {
                self.stats_put(&queue, 1, stored.end - stored.physical_offset);
                true
            }
            Err(error) => {
                self.rare_log.warn("delivery of delayed messages", &error);
                false
            }
        }
    }
}
