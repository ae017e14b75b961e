//! How far each consumer group is behind, in messages and in seconds, for metrics.
//!
//! A survey walks the committed offsets in a task of its own when somebody asks, at most once a second: so many pairs of a group and a
//! topic, with yields, and so many reads of the device, because the store time of the next message to consume is in its
//! record. What the reads of one survey did not reach keeps what is known of it, and comes first in the next.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringmq_engine::shard::Queue;
use rustc_hash::FxHashMap;

use super::Broker;
use super::signal::Signal;
use crate::metrics::Lag;

/// How long a scrape waits for a survey before it tells the one before.
pub(super) const SURVEY_WAIT: Duration = Duration::from_millis(250);
/// A survey younger than this is told again.
const SURVEY_AGE_MAX: Duration = Duration::from_secs(1);
/// Store times that one survey may read from the device.
const READS_MAX: usize = 64;
/// Queues looked at between two yields.
const QUEUES_A_TURN: usize = 256;

/// The last survey. Lives on the shard's reactor.
#[derive(Default)]
pub(super) struct Lags {
    told: RefCell<Vec<Lag>>,
    left_out: Cell<u64>,
    surveyed_at: Cell<Option<Instant>>,
    asked: Signal,
    done: Signal,
    /// Store times by pair and queue, for the offset at which they hold.
    known: RefCell<FxHashMap<QueueOfPair, Known>>,
    /// Where the next survey begins among the pairs: where the last one had no reads left.
    first: Cell<usize>,
}

/// A queue as a group sees it: group, topic, queue id.
type QueueOfPair = (Box<str>, Box<str>, i32);

/// The store time of the message at a queue offset.
#[derive(Debug, Clone, Copy)]
struct Known {
    offset: i64,
    store_ms: i64,
    /// Of which survey.
    round: u64,
}

/// One survey under way.
struct Survey {
    round: u64,
    reads_left: usize,
    queues: usize,
}

impl Lags {
    /// Has a survey made unless the last is young enough, and waits for it within bounds.
    pub(super) async fn freshen(&self, wait: Duration) {
        if self.surveyed_at.get().is_some_and(|at| at.elapsed() < SURVEY_AGE_MAX) {
            return;
        }
        let (before, began) = (self.surveyed_at.get(), Instant::now());
        self.asked.raise();
        // Whoever gave up on an earlier survey left the signal of its end behind.
        while self.surveyed_at.get() == before
            && let Some(left) = wait.checked_sub(began.elapsed())
        {
            self.done.wait_at_most(left).await;
        }
    }

    /// What the last survey found.
    pub(super) fn told(&self) -> Vec<Lag> {
        self.told.borrow().clone()
    }

    /// Pairs that it did not look at.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.get()
    }
}

impl Broker {
    /// Makes a survey whenever one is asked for, until the broker stops.
    pub(super) async fn survey_lags(self: Rc<Self>) {
        let mut round = 0;
        while !self.stopped() {
            self.lags.asked.wait().await;
            round += 1;
            self.survey(round).await;
            self.lags.surveyed_at.set(Some(Instant::now()));
            self.lags.done.raise();
        }
    }

    async fn survey(&self, round: u64) {
        let (mut pairs, left_out) = self.pairs();
        let mut survey = Survey { round, reads_left: READS_MAX, queues: 0 };
        let mut told = Vec::with_capacity(pairs.len());
        let first = self.lags.first.get() % pairs.len().max(1);
        self.lags.first.set(0);
        pairs.rotate_left(first);
        for (at, (group, topic)) in pairs.iter().enumerate() {
            if let Some(lag) = self.lag_of(group, topic, &mut survey).await {
                told.push(lag);
            }
            if survey.reads_left == 0 && self.lags.first.get() == 0 {
                self.lags.first.set(first + at);
            }
        }
        self.lags.known.borrow_mut().retain(|_, known| known.round == round);
        self.lags.left_out.set(left_out);
        self.lags.told.replace(told);
    }

    /// The pairs that have offsets, as far as the bound goes, and how many more there are.
    fn pairs(&self) -> (Vec<(String, String)>, u64) {
        let max = self.config.metered_groups_max;
        let offsets = self.offsets.borrow();
        let mut pairs = Vec::new();
        let mut left_out = 0;
        for (group, topic, _) in offsets.iter() {
            if pairs.len() < max {
                pairs.push((group.to_owned(), topic.to_owned()));
            } else {
                left_out += 1;
            }
        }
        (pairs, left_out)
    }

    /// The lag of one pair; `None` if its topic or its offsets are gone.
    async fn lag_of(&self, group: &str, topic: &str, survey: &mut Survey) -> Option<Lag> {
        let read_queues = self.topics.borrow().get(topic)?.settings().read_queues;
        let committed: Vec<(i32, i64)> =
            self.offsets.borrow().queues(group, topic)?.iter().collect();
        let mut lag = Lag { group: group.to_owned(), topic: topic.to_owned(), ..Lag::default() };
        let mut complete = true;
        for (id, committed) in committed {
            survey.queues += 1;
            if survey.queues.is_multiple_of(QUEUES_A_TURN) {
                glommio::executor().yield_if_needed().await;
            }
            let queue = if id < read_queues { self.shard.existing_queue(topic, id) } else { None };
            let Some(queue) = queue else { continue };
            let next = committed.max(queue.min_offset());
            let behind = queue.max_offset() - next;
            if behind <= 0 {
                continue;
            }
            lag.messages += behind as u64;
            let key = (group.into(), topic.into(), id);
            let known = self.lags.known.borrow().get(&key).copied();
            let known = match known {
                Some(known) if known.offset == next => Some(known),
                before => {
                    let found = self.next_store_ms(&queue, next, survey).await;
                    let found = found.map(|store_ms| Known { offset: next, store_ms, round: 0 });
                    // Not reached this time: what was known is a little too old, and better than nothing.
                    found.or(before)
                }
            };
            match known {
                Some(known) => {
                    let known = Known { round: survey.round, ..known };
                    self.lags.known.borrow_mut().insert(key, known);
                    let oldest =
                        lag.oldest_ms.map_or(known.store_ms, |old| old.min(known.store_ms));
                    lag.oldest_ms = Some(oldest);
                }
                None => complete = false,
            }
        }
        // The oldest of some queues would be too young.
        lag.oldest_ms = lag.oldest_ms.filter(|_| complete);
        Some(lag)
    }

    /// When the message at `offset` was stored: from memory, or from the device while this survey may read.
    async fn next_store_ms(&self, queue: &Queue, offset: i64, survey: &mut Survey) -> Option<i64> {
        if let Some(found) = self.shard.store_time_in_memory(queue, offset) {
            return Some(found);
        }
        survey.reads_left = survey.reads_left.checked_sub(1)?;
        self.shard.store_time(queue, offset).await
    }
}
