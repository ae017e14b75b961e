//! The open loop's schedule: when each request is meant to be sent.
//!
//! The schedule knows nothing of answers. A request that is sent late, because the harness or the broker is behind,
//! is still timed from the moment it was meant for: a stall then shows in every request that it delayed, as it would to
//! as many independent producers (the correction for coordinated omission).

use std::sync::Arc;

use crate::clock::SECOND_NS;
use crate::trace::{Event, Trace};

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

/// A request whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When it was meant to be sent.
    pub intended: u64,
    /// What it is, if that is not for the sender to draw.
    pub event: Option<Event>,
}

/// When requests are due.
#[derive(Clone, Debug)]
pub enum Agenda {
    /// Evenly.
    Even(Schedule),
    /// As they once came.
    Trace(Replay),
}

impl Agenda {
    /// When the next request is due; `u64::MAX` if there is none.
    #[must_use]
    pub fn next(&self) -> u64 {
        match self {
            Agenda::Even(schedule) => schedule.next(),
            Agenda::Trace(replay) => replay.next(),
        }
    }

    /// Takes the next request if its time has come.
    pub fn take(&mut self, now: u64) -> Option<Due> {
        match self {
            Agenda::Even(schedule) => {
                schedule.take(now).map(|intended| Due { intended, event: None })
            }
            Agenda::Trace(replay) => replay.take(now),
        }
    }

    /// How many requests were due before `end` and not taken.
    #[must_use]
    pub fn overdue(&self, end: u64) -> u64 {
        match self {
            Agenda::Even(schedule) => schedule.overdue(end),
            Agenda::Trace(replay) => replay.overdue(end),
        }
    }
}

/// A recorded trace on a run's clock: the events that one worker replays.
#[derive(Clone, Debug)]
pub struct Replay {
    trace: Arc<Trace>,
    start: u64,
    speed: f64,
    next: usize,
    step: usize,
}

impl Replay {
    /// Replays from `start` on, `speed` times as fast as it was recorded. Of `of` workers, this is number `part`.
    #[must_use]
    pub fn new(trace: Arc<Trace>, start: u64, speed: f64, part: usize, of: usize) -> Self {
        Replay { trace, start, speed, next: part, step: of.max(1) }
    }

    fn time(&self, event: &Event) -> u64 {
        self.start + (event.at_us as f64 * 1e3 / self.speed) as u64
    }

    fn next(&self) -> u64 {
        self.trace.events.get(self.next).map_or(u64::MAX, |event| self.time(event))
    }

    fn take(&mut self, now: u64) -> Option<Due> {
        let event = *self.trace.events.get(self.next)?;
        let intended = self.time(&event);
        (intended <= now).then(|| {
            self.next += self.step;
            Due { intended, event: Some(event) }
        })
    }

    fn overdue(&self, end: u64) -> u64 {
        let left = self.trace.events.iter().skip(self.next).step_by(self.step);
        left.take_while(|event| self.time(event) < end).count() as u64
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

    #[test]
    fn a_trace_is_replayed_whole_at_any_speed_by_any_number_of_workers() {
        let event = |at_us| Event { at_us, kind: 0, size: 10 };
        let events: Vec<_> = [0, 10, 10, 500, 2_000].map(event).into();
        let trace = Arc::new(Trace { kinds: Vec::new(), events });
        for (speed, last) in
            [(1.0, 1_000 + 2_000_000), (0.5, 1_000 + 4_000_000), (4.0, 1_000 + 500_000)]
        {
            let part = |part| Agenda::Trace(Replay::new(Arc::clone(&trace), 1_000, speed, part, 2));
            let mut parts = [part(0), part(1)];
            assert_eq!(parts.iter().map(|part| part.overdue(last)).sum::<u64>(), 4);
            let mut due = Vec::new();
            for part in &mut parts {
                assert_eq!(part.take(999), None);
                while let Some(at) = part.take(u64::MAX - 1) {
                    due.push(at.intended);
                }
                assert_eq!((part.next(), part.overdue(u64::MAX)), (u64::MAX, 0));
            }
            due.sort_unstable();
            assert_eq!((due.len(), due[0], due[4]), (5, 1_000, last));
        }
    }
}
