//! The run's clock: nanoseconds since the run began, and the stretch of it that is measured.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A second, in the clock's unit.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds since the run began. Copies agree with one another.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
    epoch_ms: u64,
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { epoch: Instant::now(), epoch_ms: since_1970.as_millis() as u64 }
    }

    /// Nanoseconds since the clock began; monotonic.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// The wall clock at `now`, in milliseconds since 1970: what a message says when it was born.
    #[must_use]
    pub fn unix_ms(&self, now: u64) -> u64 {
        self.epoch_ms + now / 1_000_000
    }

    /// How long it is from `now` until `then`.
    #[must_use]
    pub fn until(&self, then: u64) -> Duration {
        Duration::from_nanos(then.saturating_sub(self.now()))
    }
}

/// The times of one run, on its [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first request.
    pub start: u64,
    /// From here on it is measured.
    pub warm: u64,
    /// Nothing is begun or measured from here on; `u64::MAX` when a count ends the run.
    pub end: u64,
}

impl Span {
    /// Whether something that happened at `at` belongs to the measurement.
    #[must_use]
    pub fn measures(&self, at: u64) -> bool {
        self.warm <= at && at < self.end
    }
}
