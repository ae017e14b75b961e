//! Ends of time limits.

use std::time::Duration;

use tokio::time::Instant;

/// Longer limits mean this one: a clock cannot count to the end of time.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The end of a limit that begins now.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

/// What is left until then.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
