//! Switches that break the core on purpose, so that the simulator can show that it would notice. Production code has
//! no way to set one: the setters exist only in tests.

/// What to leave out. Everything is in place by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Switches {
    /// Call written bytes durable without a flush.
    pub skip_flush: bool,
    /// Write beyond the zeroed frontier.
    pub skip_frontier: bool,
    /// Call what went beyond the frontier written before a flush covers it.
    pub skip_loose: bool,
    /// Leave the bytes behind the cut as they are.
    pub skip_zero_after_cut: bool,
    /// Show records that aren't written yet.
    pub skip_visibility_wait: bool,
    /// Write beyond the saved write bound.
    pub skip_write_bound: bool,
    /// Serve after recovery without flushing what was found.
    pub skip_recovery_flush: bool,
}
