//! What recovery is told, and why it may refuse.

use super::state::LogState;

/// A segment as found in the commit log directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFile {
    /// Physical offset at which it starts (its name).
    pub start: u64,
    /// Bytes of the file.
    pub len: u64,
}

/// The `checkpoint` file (stock 4.9), in milliseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckpointTimes {
    /// `physicMsgTimestamp`: records stored up to then are flushed.
    pub physic: i64,
    /// `logicsMsgTimestamp`: their consume queue units are.
    pub logics: i64,
    /// `indexMsgTimestamp`: full index files are.
    pub index: i64,
}

impl CheckpointTimes {
    /// Stock's margin, in milliseconds.
    const MARGIN_MS: i64 = 3000;

    /// Records stored before this time are flushed and have their derived data.
    pub fn min_ms(&self) -> i64 {
        (self.physic.min(self.logics) - Self::MARGIN_MS).max(0)
    }
}

/// What recovery starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryInput {
    /// Bytes of a segment by configuration.
    pub segment_size: u64,
    /// Segments, in ascending order of `start`.
    pub segments: Vec<SegmentFile>,
    /// Our own state. `None` if there is none or a stock broker was here since: then stock's rules find the end.
    pub state: Option<LogState>,
    /// The `abort` file is there: the last stop was not clean.
    pub abort: bool,
    /// The checkpoint; zeros if there is none.
    pub checkpoint: CheckpointTimes,
    /// Derived data is durable up to this physical offset, a boundary between records. `None` if unknown.
    pub dispatched: Option<u64>,
    /// How far ahead of the end the write bound is saved ([`super::CoreConfig::write_bound_step`]).
    pub write_bound_step: u64,
    /// Bytes of one read, a multiple of the unit; a record may need more.
    pub read_bytes: usize,
}

/// Why recovery stops. Nothing was changed that a second attempt would need.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The configured segment size can't be used.
    #[error("segment size {0} is not usable: it must be a multiple of 4096 and at least 8192")]
    SegmentSize(u64),
    /// The store was made with another one.
    #[error(
        "the store was made with segments of {store} bytes but {configured} are configured: set the segment size back"
    )]
    SegmentSizeChanged {
        /// In the store.
        store: u64,
        /// Configured.
        configured: u64,
    },
    /// A file's length or name doesn't fit.
    #[error(
        "segment {start:020} is {len} bytes long and starts at {start}, but segments have {segment_size} bytes: set the segment size to what the store was made with, or restore the file"
    )]
    SegmentShape {
        /// Its start.
        start: u64,
        /// Its length.
        len: u64,
        /// What segments have.
        segment_size: u64,
    },
    /// A segment between others is missing.
    #[error("segment {missing:020} is missing between others: restore it")]
    Gap {
        /// Start of the missing one.
        missing: u64,
    },
    /// Segments that held flushed records are missing.
    #[error(
        "the log was durable up to {durable} but the segments there are cover {first} to {end}: restore the missing segments"
    )]
    Missing {
        /// Flushed up to here.
        durable: u64,
        /// Start of the first segment there is.
        first: u64,
        /// End of the last.
        end: u64,
    },
    /// A record that was flushed is damaged. The log is never cut there.
    #[error(
        "segment {segment:020} is damaged at byte {position} (physical offset {offset}), below {durable} up to which the log was durable: {why}; restore the segment or take it from a slave"
    )]
    Damaged {
        /// Start of the segment.
        segment: u64,
        /// Byte in the segment.
        position: u64,
        /// Physical offset.
        offset: u64,
        /// Flushed up to here.
        durable: u64,
        /// What is wrong.
        why: String,
    },
    /// No state of ours, a clean stop, and the checkpoint tells of records behind the last whole one.
    #[error(
        "segment {segment:020} has no whole record at byte {position} (physical offset {offset}): {why}; but the store was closed clean with records stored up to {flushed_ms}, the last one before this place was stored at {stored_ms} (ms since 1970): restore the segment, or remove the store's checkpoint file to cut the log here"
    )]
    Lost {
        /// Start of the segment.
        segment: u64,
        /// Byte in the segment.
        position: u64,
        /// Physical offset.
        offset: u64,
        /// Store time of the last whole record before.
        stored_ms: i64,
        /// Store time up to which the checkpoint says records were flushed.
        flushed_ms: i64,
        /// What is wrong.
        why: String,
    },
    /// The same, and there is no segment at all.
    #[error(
        "the commit log has no segment, but the store was closed clean with records stored up to {flushed_ms} (ms since 1970): restore the segments, or remove the store's checkpoint file to begin an empty log"
    )]
    NoSegments {
        /// Store time up to which the checkpoint says records were flushed.
        flushed_ms: i64,
    },
    /// A read brought less than asked for.
    #[error(
        "segment {segment:020} gave {got} of {want} bytes at {position}: the file is shorter than its length says"
    )]
    ShortRead {
        /// Start of the segment.
        segment: u64,
        /// Byte in the segment.
        position: u64,
        /// Bytes asked for.
        want: usize,
        /// Bytes read.
        got: usize,
    },
}
