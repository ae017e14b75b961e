//! What the log keeps about itself across a restart, beside the records.

/// The log's part of `<store>/ringmq/state`. All offsets are physical. A state is a lower bound: the log may be further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogState {
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Where recovery starts to check records: a boundary between records, at or before `durable`, from which good
    /// records lead exactly to `durable`.
    pub scan_from: u64,
    /// Everything before it was flushed. A bad record before it is damage, never a torn tail.
    pub durable: u64,
    /// No log write ever touched a byte at or behind it. (Zeroing may have.)
    pub write_bound: u64,
    /// `[zeroed_from, zeroed_to)` was zeroed durably, or written since: writes into it need no allocation.
    pub zeroed_from: u64,
    /// See `zeroed_from`.
    pub zeroed_to: u64,
    /// The log was closed with everything flushed: it ends at `durable` and nothing lies behind.
    pub clean: bool,
}
