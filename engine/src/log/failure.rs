//! Why an append was refused, and what made a log stop.

use std::io;

/// Why bytes weren't taken into the log. Nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Appends outrun the device: answer busy, the sender tries again.
    #[error(
        "{unwritten} bytes wait for the device and at most {max} may: it is too slow for the load, try again"
    )]
    Busy {
        /// Bytes appended and not yet written; at level `sync`, not yet flushed.
        unwritten: u64,
        /// The budget.
        max: u64,
    },
    /// The next segment is being made: answer busy, it takes milliseconds.
    #[error("the segment at {start} is still being made: try again")]
    NotReady {
        /// Start of the segment.
        start: u64,
    },
    /// The next segment can't be made, most likely for want of space. Clears itself when it can.
    #[error("the segment at {start} can't be made: free disk space")]
    NoSpace {
        /// Start of the segment.
        start: u64,
    },
    /// It would not fit into an empty segment.
    #[error("a record of {len} bytes does not fit: a segment takes {max}")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Most that a segment takes.
        max: u64,
    },
    /// Nothing to append.
    #[error("a record has at least one byte")]
    Empty,
    /// A write or flush failed: the log takes no more until the process starts again.
    #[error("the log stopped taking writes: {0}")]
    Failed(Failure),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedOperation {
    /// Writing a block.
    Write,
    /// Flushing segments.
    Flush,
    /// Zeroing ahead of the tail.
    Zero,
}

impl FailedOperation {
    /// The operation as a verb.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Zero => "zero",
        }
    }
}

/// The failure that stopped a log. It stays: a retry that succeeds does not prove that earlier bytes are durable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} of the segment at {segment_start} up to {upto} failed ({reason}): check the disk, then start the broker again",
    .operation.as_str()
)]
pub struct Failure {
    /// What failed.
    pub operation: FailedOperation,
    /// The segment (the first one, if a flush touched several).
    pub segment_start: u64,
    /// Physical offset behind the last byte it would have covered.
    pub upto: u64,
    /// The operating system's reason.
    pub reason: String,
    /// Its kind.
    pub kind: io::ErrorKind,
}
