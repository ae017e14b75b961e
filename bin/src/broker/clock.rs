//! The two clocks of a broker: the one on the wall for what is stored and told, and one that never steps for waiting.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. One per shard.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Clock { started: Instant::now() }
    }

    /// Milliseconds since 1970, by the machine's clock: it can be set back and forth.
    pub(super) fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since this clock was made; never goes back. For deadlines.
    pub(super) fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// The hour of the day, 0 to 23, in the machine's time zone.
pub(super) fn local_hour(now_ms: i64) -> u8 {
    let seconds: libc::time_t = now_ms.div_euclid(1000);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call; the parts are read only if it says that it filled them in.
    let hour = unsafe {
        let filled = libc::localtime_r(&raw const seconds, parts.as_mut_ptr());
        if filled.is_null() { 0 } else { parts.assume_init().tm_hour }
    };
    u8::try_from(hour).unwrap_or(0)
}
