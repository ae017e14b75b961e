//! The clocks of a broker: the one on the wall for what is told, one that never steps for waiting, and between them the one by which
//! messages are stored and delays run.
//!
//! Store times never go back: stock's recovery and the search by time rely on it. So when the wall clock is set back, the store clock
//! goes on from where it was, ahead of it, at the same pace: were it to stand still instead, a delay counted from it would end at once
//! or an hour late. It joins the wall clock again when that is set forward.

use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. One per shard.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    /// Both clocks at the first send of the turn that runs.
    turn: Cell<Option<TurnTime>>,
    store: StoreClock,
}

/// How far the store clock is ahead of the wall clock.
#[derive(Debug)]
struct StoreClock {
    /// The wall clock and the one that never steps, at the last look, in milliseconds.
    last: Cell<(i64, i64)>,
    ahead_ms: Cell<i64>,
}

/// Two readings that lie further apart than their clocks allow are a step. Less is the time between the readings.
const STEP_MS_MIN: i64 = 10;
/// A step from which on it is worth a line in the log.
const STEP_MS_TOLD: i64 = 5_000;

impl StoreClock {
    fn new(wall_ms: i64, steady_ms: i64) -> StoreClock {
        StoreClock { last: Cell::new((wall_ms, steady_ms)), ahead_ms: Cell::new(0) }
    }

    /// The store time at these readings.
    fn at(&self, wall_ms: i64, steady_ms: i64) -> i64 {
        let (wall_before, steady_before) = self.last.replace((wall_ms, steady_ms));
        let step = (wall_ms - wall_before) - (steady_ms - steady_before);
        if step.abs() >= STEP_MS_MIN {
            let ahead_ms = (self.ahead_ms.get() - step).max(0);
            self.ahead_ms.set(ahead_ms);
            if step <= -STEP_MS_TOLD {
                tracing::warn!(
                    back_ms = -step,
                    ahead_ms,
                    "the clock was set back: messages are stored and delayed by the time that has passed, ahead of it"
                );
            }
        }
        wall_ms.saturating_add(self.ahead_ms.get())
    }

    /// It goes on from a store time that was given before.
    fn go_on_from(&self, store_ms: i64) {
        let (wall_ms, _) = self.last.get();
        self.ahead_ms.set(store_ms.saturating_sub(wall_ms).max(0));
    }
}

/// Both clocks, for what happens once per message: read once for all the frames that one receive brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnTime {
    /// As [`Clock::store_ms`].
    pub(super) store_ms: i64,
    /// As [`Clock::monotonic_us`].
    pub(super) monotonic_us: i64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let store = StoreClock::new(wall_ms(), 0);
        Clock { started: Instant::now(), turn: Cell::new(None), store }
    }

    /// The time of the turn that runs. Only for handlers that run inside one and do not wait: [`Clock::end_turn`] has to follow before
    /// anything else runs.
    pub(super) fn turn(&self) -> TurnTime {
        self.turn.get().unwrap_or_else(|| {
            let time = TurnTime { store_ms: self.store_ms(), monotonic_us: self.monotonic_us() };
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
        wall_ms()
    }

    /// Milliseconds since 1970, for store times and what is counted from them: it goes forward with the machine's clock, and never back.
    pub(super) fn store_ms(&self) -> i64 {
        self.store.at(wall_ms(), self.monotonic_ms())
    }

    /// What is stored already was stored up to this time.
    pub(super) fn go_on_from(&self, store_ms: i64) {
        self.store_ms();
        self.store.go_on_from(store_ms);
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

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
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
    use super::{Clock, StoreClock, local_day, local_hour};

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
    fn store_time_follows_the_wall_forward_and_never_back() {
        const HOUR: i64 = 3_600_000;
        let clock = StoreClock::new(100 * HOUR, 0);
        assert_eq!(clock.at(100 * HOUR + 7, 7), 100 * HOUR + 7);
        assert_eq!(clock.at(101 * HOUR + 8, 8), 101 * HOUR + 8, "set forward");
        assert_eq!(clock.at(100 * HOUR + 9, 9), 101 * HOUR + 9, "set back");
        assert_eq!(clock.at(100 * HOUR + 1_009, 1_009), 101 * HOUR + 1_009, "it goes on");
        assert_eq!(clock.at(99 * HOUR + 1_010, 1_010), 101 * HOUR + 1_010, "and back again");
        assert_eq!(clock.at(100 * HOUR + 1_011, 1_011), 101 * HOUR + 1_011, "half of it forward");
        assert_eq!(clock.at(103 * HOUR + 1_012, 1_012), 103 * HOUR + 1_012, "past where it was");
        clock.go_on_from(104 * HOUR);
        assert_eq!(clock.at(103 * HOUR + 1_013, 1_013), 104 * HOUR + 1, "a store from ahead");
        clock.go_on_from(90 * HOUR);
        assert_eq!(clock.at(103 * HOUR + 1_014, 1_014), 103 * HOUR + 1_014, "one from before");
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
