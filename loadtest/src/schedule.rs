//! The open loop's schedule: when each request is meant to be sent.
//!
//! The schedule knows nothing of answers. A request that is sent late, because the harness or the broker is behind,
//! is still timed from the moment it was meant for: a stall then shows in every request that it delayed, as it would to
//! as many independent producers (the correction for coordinated omission).

use crate::clock::SECOND_NS;

/// Evenly spaced intended times.
#[derive(Clone, Debug)]
pub struct Schedule {
    first: u64,
    interval_ns: f64,
    taken: u64,
}

impl Schedule {
    /// `per_second` requests a second (above zero) from `start` on. Of `of` schedules that share a rate, `part` is the number
    /// of this one: they interleave evenly when each gets `per_second / of`.
    #[must_use]
    pub fn new(start: u64, per_second: f64, part: usize, of: usize) -> Self {
        let interval_ns = SECOND_NS as f64 / per_second;
        let shift = interval_ns * part as f64 / of.max(1) as f64;
        Schedule { first: start + shift as u64, interval_ns, taken: 0 }
    }

    /// When the next request is meant to be sent.
    #[must_use]
    pub fn next(&self) -> u64 {
        // Multiplied, not summed up: rounding must not become drift.
        self.first + (self.taken as f64 * self.interval_ns) as u64
    }

    /// Takes the next request if its time has come, and returns that time.
    pub fn take(&mut self, now: u64) -> Option<u64> {
        let intended = self.next();
        (intended <= now).then(|| {
            self.taken += 1;
            intended
        })
    }

    /// How many requests were due before `end` and not taken.
    #[must_use]
    pub fn overdue(&self, end: u64) -> u64 {
        let behind = end.saturating_sub(self.next()) as f64 / self.interval_ns;
        behind.ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_interleave_to_the_whole_rate_without_drift() {
        let start = 5 * SECOND_NS;
        let mut parts: Vec<_> =
            (0..3).map(|part| Schedule::new(start, 10_000.0, part, 3)).collect();
        let end = start + 20 * SECOND_NS;
        let mut times = Vec::new();
        for part in &mut parts {
            while let Some(at) = part.take(end - 1) {
                times.push(at);
            }
            assert_eq!(part.overdue(end), 0);
        }
        times.sort_unstable();
        assert_eq!(times.len(), 30_000 * 20);
        let worst = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(worst.is_some_and(|gap| gap <= 33_350), "gap {worst:?}");
    }

    #[test]
    fn nothing_is_taken_before_its_time_and_what_is_late_keeps_its_time() {
        let mut schedule = Schedule::new(1_000, 1e6, 0, 1);
        assert_eq!(schedule.take(999), None);
        assert_eq!(schedule.take(1_000), Some(1_000));
        assert_eq!(schedule.take(1_999), None);
        // The sender was away for 5 us.
        let late: Vec<_> = std::iter::from_fn(|| schedule.take(7_000)).collect();
        assert_eq!(late, [2_000, 3_000, 4_000, 5_000, 6_000, 7_000]);
        assert_eq!(schedule.overdue(10_000), 2);
    }
}
