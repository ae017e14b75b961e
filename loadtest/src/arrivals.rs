//! End to end: how much each group has received, and when to stop waiting for the rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shared by the consumers of an end-to-end run and the thread that watches it.
#[derive(Debug)]
pub struct Arrivals {
    /// Messages of this run by group.
    received: Vec<AtomicU64>,
    /// What each group should have received; `u64::MAX` while it is not known.
    expected: AtomicU64,
    /// When to stop waiting, on the run's clock.
    give_up_at: AtomicU64,
}

impl Arrivals {
    /// Nothing has arrived at `groups` groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        Arrivals {
            received: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            expected: AtomicU64::new(u64::MAX),
            give_up_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Counts messages of a group.
    pub fn add(&self, group: usize, messages: u64) {
        if let Some(received) = self.received.get(group) {
            received.fetch_add(messages, Relaxed);
        }
    }

    /// All that was sent is known: each group is waited for until it has `messages`, or until `give_up_at`.
    pub fn expect(&self, messages: u64, give_up_at: u64) {
        self.expected.store(messages, Relaxed);
        self.give_up_at.store(give_up_at, Relaxed);
    }

    /// Whether nothing is waited for any more.
    #[must_use]
    pub fn done(&self, now: u64) -> bool {
        let expected = self.expected.load(Relaxed);
        let complete = self.received.iter().all(|received| received.load(Relaxed) >= expected);
        complete || now >= self.give_up_at.load(Relaxed)
    }

    /// What each group received.
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        self.received.iter().map(|received| received.load(Relaxed)).collect()
    }
}
