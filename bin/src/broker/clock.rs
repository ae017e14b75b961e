//! The two clocks of a broker: the one on the wall for what is stored and told, and one that never steps for waiting.

use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. One per shard.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    /// Both clocks at the first send of the turn that runs.
    turn: Cell<Option<TurnTime>>,
}

/// Both clocks, for what happens once per message: read once for all the frames that one receive brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnTime {
    /// As [`Clock::now_ms`].
    pub(super) now_ms: i64,
    /// As [`Clock::monotonic_us`].
    pub(super) monotonic_us: i64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Clock { started: Instant::now(), turn: Cell::new(None) }
    }

    /// The time of the turn that runs. Only for handlers that run inside one and do not wait: [`Clock::end_turn`] has to follow before
    /// anything else runs.
    pub(super) fn turn(&self) -> TurnTime {
        self.turn.get().unwrap_or_else(|| {
            let time = TurnTime { now_ms: self.now_ms(), monotonic_us: self.monotonic_us() };
            self.turn.set(Some(time));
            time
        })
    }

    /// The turn is over: its time is forgotten.
    pub(super) fn end_turn(&self) {
        self.turn.set(None);
    }

    /// Milliseconds since 1970, by the machine's clock: it can be set back and forth.
    pub(super) fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Microseconds since this clock was made; never goes back. For measuring.
    pub(super) fn monotonic_us(&self) -> i64 {
        self.monotonic_us_of(Instant::now())
    }

    /// A moment as [`Clock::monotonic_us`] tells it.
    pub(super) fn monotonic_us_of(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.started);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since this clock was made; never goes back. For deadlines.
    pub(super) fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// Milliseconds since the machine was started, its sleep included; never set.
pub(super) fn boot_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for the call; should it fail, 0 is as good a time as any.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000)
}

/// The hour of the day, 0 to 23, in the machine's time zone.
pub(super) fn local_hour(now_ms: i64) -> u8 {
    local(now_ms).and_then(|parts| u8::try_from(parts.tm_hour).ok()).unwrap_or(0)
}

/// A number that changes at midnight in the machine's time zone.
pub(super) fn local_day(now_ms: i64) -> i32 {
    local(now_ms).map_or(0, |parts| parts.tm_year * 366 + parts.tm_yday)
}

fn local(now_ms: i64) -> Option<libc::tm> {
    let seconds: libc::time_t = now_ms.div_euclid(1000);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call; the parts are read only if it says that it filled them in.
    unsafe {
        let filled = libc::localtime_r(&raw const seconds, parts.as_mut_ptr());
        (!filled.is_null()).then(|| parts.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, local_day, local_hour};

    #[test]
    fn time_stands_still_within_a_turn_only() {
        let clock = Clock::new();
        let first = clock.turn();
        while clock.monotonic_us() < first.monotonic_us + 2 {
            std::thread::yield_now();
        }
        assert_eq!(clock.turn().monotonic_us, first.monotonic_us);
        clock.end_turn();
        assert!(clock.turn().monotonic_us >= first.monotonic_us + 2);
    }

    #[test]
    fn the_day_changes_when_the_hour_falls_and_at_no_other_time() {
        // A year and a bit in steps of a quarter of an hour, in whatever zone this machine is.
        const QUARTER_MS: i64 = 900_000;
        let mut before = 1_766_000_000_000;
        for _ in 0..36_000 {
            let now = before + QUARTER_MS;
            // Clocks that are set back at night fall by one or two hours, midnight by more.
            let midnight = i16::from(local_hour(before)) - i16::from(local_hour(now)) > 2;
            assert_eq!(local_day(before) != local_day(now), midnight, "at {now}");
            before = now;
        }
    }
}
