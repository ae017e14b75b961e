//! What the broker counts for its metrics alone. Plain cells: they are read by a task of the same reactor, when somebody scrapes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ringmq_engine::times::Times;
use rustc_hash::FxHashMap;

/// Request codes from here on are counted together.
const CODES: usize = 512;

/// Why something was refused for the broker's own sake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// `limits.unwritten_bytes` are appended and not written.
    UnwrittenFull,
    /// Consume queues or index cannot be written, and too much of them waits.
    DerivedBehind,
    /// The next segment is being made.
    SegmentNotReady,
    /// No space for the next segment.
    NoSpace,
    /// The disk is fuller than `retention.disk_full_percent`.
    DiskFull,
    /// A write or flush failed: the log takes nothing more.
    LogFailed,
    /// The broker is a slave.
    Slave,
    /// The broker is on its way out.
    Stopping,
    /// A message or record over its limit.
    TooLarge,
    /// Too many requests wait for the device or a tool.
    SlowTasksFull,
    /// `limits.waiting_pulls` wait.
    WaitingPullsFull,
}

impl Reason {
    /// All of them, in their order.
    pub(super) const ALL: [Reason; 11] = [
        Reason::UnwrittenFull,
        Reason::DerivedBehind,
        Reason::SegmentNotReady,
        Reason::NoSpace,
        Reason::DiskFull,
        Reason::LogFailed,
        Reason::Slave,
        Reason::Stopping,
        Reason::TooLarge,
        Reason::SlowTasksFull,
        Reason::WaitingPullsFull,
    ];

    /// The label's value.
    pub(super) fn name(self) -> &'static str {
        match self {
            Reason::UnwrittenFull => "unwritten_full",
            Reason::DerivedBehind => "derived_behind",
            Reason::SegmentNotReady => "segment_not_ready",
            Reason::NoSpace => "no_space",
            Reason::DiskFull => "disk_full",
            Reason::LogFailed => "log_failed",
            Reason::Slave => "slave",
            Reason::Stopping => "stopping",
            Reason::TooLarge => "too_large",
            Reason::SlowTasksFull => "slow_tasks_full",
            Reason::WaitingPullsFull => "waiting_pulls_full",
        }
    }
}

/// Messages of one topic, or of all that have no meter of their own.
#[derive(Debug, Default)]
pub(super) struct TopicMeter {
    pub(super) messages_in: Cell<u64>,
    pub(super) bytes_in: Cell<u64>,
    pub(super) messages_out: Cell<u64>,
    pub(super) bytes_out: Cell<u64>,
}

impl TopicMeter {
    pub(super) fn put(&self, messages: u64, bytes: u64) {
        self.messages_in.set(self.messages_in.get() + messages);
        self.bytes_in.set(self.bytes_in.get() + bytes);
    }

    pub(super) fn got(&self, messages: u64, bytes: u64) {
        self.messages_out.set(self.messages_out.get() + messages);
        self.bytes_out.set(self.bytes_out.get() + bytes);
    }
}

/// The meters of one shard.
pub(super) struct Meters {
    /// The first `topics_max` topics that had traffic; a topic never changes its meter, so that every counter only grows.
    topics: RefCell<FxHashMap<Box<str>, Rc<TopicMeter>>>,
    other_topics: Rc<TopicMeter>,
    topics_max: usize,
    requests: Box<[Cell<u64>]>,
    other_requests: Cell<u64>,
    refusals: RefCell<FxHashMap<i32, u64>>,
    refused: [Cell<u64>; Reason::ALL.len()],
    /// From the receive that brought a send to its answer.
    pub(super) send_times: Times,
    /// Reads of pulls that were not served from memory.
    pub(super) cold_pull_times: Times,
}

impl Meters {
    pub(super) fn new(topics_max: usize) -> Self {
        Meters {
            topics: RefCell::default(),
            other_topics: Rc::default(),
            topics_max,
            requests: vec![Cell::new(0); CODES].into_boxed_slice(),
            other_requests: Cell::new(0),
            refusals: RefCell::default(),
            refused: Default::default(),
            send_times: Times::default(),
            cold_pull_times: Times::default(),
        }
    }

    /// The meter of a topic: its own while there is room.
    pub(super) fn topic(&self, name: &str) -> Rc<TopicMeter> {
        let mut topics = self.topics.borrow_mut();
        if let Some(meter) = topics.get(name) {
            return Rc::clone(meter);
        }
        if topics.len() >= self.topics_max {
            return Rc::clone(&self.other_topics);
        }
        let meter = Rc::<TopicMeter>::default();
        topics.insert(name.into(), Rc::clone(&meter));
        meter
    }

    /// A topic is gone, and its series with it.
    pub(super) fn remove_topic(&self, name: &str) {
        self.topics.borrow_mut().remove(name);
    }

    /// Calls `each` with every topic's meter and `None` for the one of all others.
    pub(super) fn each_topic(&self, mut each: impl FnMut(Option<&str>, &TopicMeter)) {
        for (name, meter) in &*self.topics.borrow() {
            each(Some(name), meter);
        }
        each(None, &self.other_topics);
    }

    /// Counts a request that was looked at; `served` is false for a code that nobody serves.
    #[inline]
    pub(super) fn request(&self, code: i32, served: bool) {
        let slot = usize::try_from(code).ok().and_then(|code| self.requests.get(code));
        let slot = slot.filter(|_| served).unwrap_or(&self.other_requests);
        slot.set(slot.get() + 1);
    }

    /// Requests by code, those that came, and how many had none that is served.
    pub(super) fn requests(&self) -> (Vec<(i32, u64)>, u64) {
        let counted = self.requests.iter().enumerate().filter(|(_, count)| count.get() > 0);
        (
            counted.map(|(code, count)| (code as i32, count.get())).collect(),
            self.other_requests.get(),
        )
    }

    /// Counts an answer that is not a success.
    pub(super) fn refusal(&self, code: i32) {
        *self.refusals.borrow_mut().entry(code).or_default() += 1;
    }

    /// Those answers by response code, ascending.
    pub(super) fn refusals(&self) -> Vec<(i32, u64)> {
        let mut refusals: Vec<_> = self.refusals.borrow().iter().map(|(c, n)| (*c, *n)).collect();
        refusals.sort_unstable();
        refusals
    }

    /// Counts something that was refused for the broker's own sake.
    pub(super) fn refused(&self, reason: Reason) {
        let count = &self.refused[reason as usize];
        count.set(count.get() + 1);
    }

    /// How often that was, by reason.
    pub(super) fn refused_by_reason(&self) -> Vec<(&'static str, u64)> {
        Reason::ALL.iter().map(|r| (r.name(), self.refused[*r as usize].get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_beyond_the_cap_share_one_meter_and_never_change_it() {
        let meters = Meters::new(2);
        for name in ["a", "b", "c", "d"] {
            meters.topic(name).put(1, 10);
        }
        meters.remove_topic("a");
        meters.topic("e").put(5, 50);
        meters.topic("c").got(7, 70);
        let mut seen = Vec::new();
        meters.each_topic(|name, meter| {
            seen.push((name.map(str::to_owned), meter.messages_in.get(), meter.messages_out.get()));
        });
        seen.sort();
        let own = |name: &str, put| (Some(name.to_owned()), put, 0);
        assert_eq!(seen, [(None, 2, 7), own("b", 1), own("e", 5)]);
    }

    #[test]
    fn wild_request_codes_cost_no_memory() {
        let meters = Meters::new(0);
        for code in [i32::MIN, -1, 10, 10, 511, 512, i32::MAX] {
            meters.request(code, true);
        }
        meters.request(11, false);
        assert_eq!(meters.requests(), (vec![(10, 2), (511, 1)], 5));
    }

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let meters = Meters::new(0);
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            meters.refused(reason);
        }
        let mut names: Vec<_> = meters.refused_by_reason().iter().map(|(name, _)| *name).collect();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(meters.refused_by_reason().iter().all(|(_, count)| *count == 1));
    }
}
