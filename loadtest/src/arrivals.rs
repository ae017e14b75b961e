//! End to end: how much each group has received, and when to stop waiting for the rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shared by the consumers of an end-to-end run and the thread that watches it.
#[derive(Debug)]
pub struct Arrivals {
    /// Messages of this run by group.
    received: Vec<AtomicU64>,
    /// What each group should have received; `u64::MAX` while it is not known, or if it cannot be.
    expected: AtomicU64,
    /// When the last message was sent; `u64::MAX` while messages are sent.
    sent_at: AtomicU64,
    /// When the last message arrived.
    last: AtomicU64,
    /// How long the next message is waited for, nanoseconds.
    grace_ns: u64,
}

impl Arrivals {
    /// Nothing has arrived at `groups` groups.
    #[must_use]
    pub fn new(groups: usize, grace_ns: u64) -> Self {
        Arrivals {
            received: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            expected: AtomicU64::new(u64::MAX),
            sent_at: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            grace_ns,
        }
    }

    /// Counts messages of a group that arrived now.
    pub fn add(&self, group: usize, messages: u64, now: u64) {
        if let Some(received) = self.received.get(group) {
            received.fetch_add(messages, Relaxed);
        }
        if messages > 0 {
            self.last.fetch_max(now, Relaxed);
        }
    }

    /// All has been sent. Each group is waited for until it has `messages` (if that is known) or nothing arrives any more.
    pub fn expect(&self, messages: Option<u64>, now: u64) {
        self.expected.store(messages.unwrap_or(u64::MAX), Relaxed);
        self.sent_at.store(now, Relaxed);
    }

    /// Whether all has been sent.
    #[must_use]
    pub fn all_sent(&self) -> bool {
        self.sent_at.load(Relaxed) != u64::MAX
    }

    /// Whether nothing is waited for any more.
    #[must_use]
    pub fn done(&self, now: u64) -> bool {
        let expected = self.expected.load(Relaxed);
        let complete = self.received.iter().all(|received| received.load(Relaxed) >= expected);
        let last = self.sent_at.load(Relaxed).max(self.last.load(Relaxed));
        complete || now >= last.saturating_add(self.grace_ns)
    }

    /// What each group received.
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        self.received.iter().map(|received| received.load(Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_waited_for_as_long_as_something_comes() {
        let arrivals = Arrivals::new(2, 100);
        arrivals.add(0, 5, 10);
        assert!(!arrivals.done(1_000_000) && !arrivals.all_sent(), "while messages are sent");
        arrivals.expect(Some(6), 1_000);
        assert!(arrivals.all_sent() && !arrivals.done(1_099));
        arrivals.add(1, 6, 1_090);
        assert!(!arrivals.done(1_189) && arrivals.done(1_190));
        arrivals.add(0, 1, 1_189);
        assert!(arrivals.done(1_189), "all is there");
        arrivals.expect(None, 1_000);
        assert!(!arrivals.done(1_200) && arrivals.done(1_289), "nobody knows how many there are");
    }
}
