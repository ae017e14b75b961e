//! Counting how long things take: a few fixed classes on plain cells, cheap enough for every write.

use std::cell::Cell;

/// Upper bounds of the classes, in microseconds, each inclusive; one more class holds what is longer.
pub const TIME_BOUNDS_US: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

const CLASSES: usize = TIME_BOUNDS_US.len() + 1;

/// Times of one kind since the start. Owned by one reactor; counting needs only `&self`.
#[derive(Debug, Default)]
pub struct Times {
    counts: [Cell<u64>; CLASSES],
    sum_us: Cell<u64>,
}

/// A copy of [`Times`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimesSnapshot {
    /// How many fell into each class, not cumulated; the last is what exceeds every bound.
    pub counts: [u64; CLASSES],
    /// All of them together, in microseconds.
    pub sum_us: u64,
}

impl Times {
    /// Counts one of `us` microseconds.
    #[inline]
    pub fn add(&self, us: u64) {
        self.add_many(us, 1);
    }

    /// Counts `n` that took `us` microseconds each.
    #[inline]
    pub fn add_many(&self, us: u64, n: u64) {
        let class = &self.counts[TIME_BOUNDS_US.partition_point(|bound| *bound < us)];
        class.set(class.get() + n);
        self.sum_us.set(self.sum_us.get().saturating_add(us.saturating_mul(n)));
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> TimesSnapshot {
        let mut snapshot = TimesSnapshot { sum_us: self.sum_us.get(), ..Default::default() };
        for (to, from) in snapshot.counts.iter_mut().zip(&self.counts) {
            *to = from.get();
        }
        snapshot
    }
}

impl TimesSnapshot {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_class_and_nothing_is_lost_above_the_last() {
        let times = Times::default();
        for bound in TIME_BOUNDS_US {
            times.add(bound);
        }
        times.add_many(u64::MAX, 3);
        let snapshot = times.snapshot();
        assert_eq!(snapshot.counts[..CLASSES - 1], [1; CLASSES - 1]);
        assert_eq!(snapshot.counts[CLASSES - 1], 3);
        assert_eq!(snapshot.count(), TIME_BOUNDS_US.len() as u64 + 3);
        assert_eq!(snapshot.sum_us, u64::MAX, "it stays at its end");
    }
}
