//! The log's errors. Each is one line that says what happened, to what, and what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why an operation of the log failed. Cloneable, because one device read may serve several readers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The operating system refused or failed a file operation.
    #[error("{op} {path} at byte {offset} failed: {source}", path = .path.display())]
    Io {
        /// What was tried, as a verb ("read", "sync directory").
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Byte offset inside the file; 0 where that has no meaning.
        offset: u64,
        /// The operating system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// A file ended before the bytes that must be there.
    #[error(
        "{path} ends at byte {end} but {len} bytes from {offset} were expected: the file was cut from outside; restore it",
        path = .path.display()
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Byte offset inside the file where the read began.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Where the file ended.
        end: u64,
    },
    /// The range isn't in the log: it was deleted by retention, or isn't visible yet.
    #[error("bytes {offset}+{len} are outside the log, which holds {min} to {max}")]
    OutOfRange {
        /// First byte asked for (physical offset).
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// First byte of the log.
        min: u64,
        /// End of what may be read.
        max: u64,
    },
    /// The store's file system has no direct I/O, so no durability level could be kept.
    #[error(
        "{path} is on a file system without direct I/O (tmpfs or alike): put the store on a disk",
        path = .path.display()
    )]
    NotDirect {
        /// The store directory.
        path: PathBuf,
    },
    /// A segment's length differs from the configured one.
    #[error(
        "{path} is {found} bytes long but segments have {expected}: set the segment size to what the store was made with",
        path = .path.display()
    )]
    SegmentLength {
        /// The segment.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The configured length.
        expected: u64,
    },
    /// Something that isn't a segment lies in the commit log directory.
    #[error(
        "{path} is not a commit log segment: move it out of that directory (a stock broker would not start either)",
        path = .path.display()
    )]
    StrayEntry {
        /// The file or directory.
        path: PathBuf,
    },
    /// A segment is missing between two others.
    #[error("the segment at {missing} is missing in {path}: restore it", path = .path.display())]
    Gap {
        /// The commit log directory.
        path: PathBuf,
        /// Start offset of the first missing segment.
        missing: u64,
    },
    /// The state file was written by a newer program.
    #[error(
        "{path} has version {found}, this program knows up to {known}: run the newer program, or remove the file to recover as after a stock broker",
        path = .path.display()
    )]
    StateVersion {
        /// The state file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The newest version this program reads.
        known: &'static str,
    },
    /// The state file is damaged.
    #[error(
        "{path} is damaged ({what}): remove it to recover as after a stock broker",
        path = .path.display()
    )]
    StateCorrupt {
        /// The state file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The store was made with other fixed values than the configuration has.
    #[error("{path} says {key} = {found}, the configuration {configured}: it can't change once the store exists", path = .path.display())]
    StateMismatch {
        /// The state file.
        path: PathBuf,
        /// Which value.
        key: &'static str,
        /// As stored.
        found: u64,
        /// As configured.
        configured: u64,
    },
    /// The log failed earlier and takes no writes until the process is restarted.
    #[error("the log stopped taking writes: {0}")]
    Failed(String),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
    /// The housekeeping thread has more work than it may queue.
    #[error("the housekeeping thread of {path} is busy: try again", path = .path.display())]
    Busy {
        /// The store directory.
        path: PathBuf,
    },
    /// The only segment, or the one being written, can't be deleted.
    #[error("the log has no segment that may be deleted")]
    NothingToDelete,
    /// Recovery refuses the store.
    #[error(transparent)]
    Recovery(#[from] super::RecoveryError),
    /// A size of the configuration can't be used.
    #[error(transparent)]
    Config(#[from] super::CoreConfigError),
}

impl LogError {
    /// An I/O error with its operation, file and place.
    pub(crate) fn io(op: &'static str, path: &Path, offset: u64, source: io::Error) -> Self {
        LogError::Io { op, path: path.to_path_buf(), offset, source: Arc::new(source) }
    }

    /// Whether the disk (or a quota on it) is full.
    pub fn is_no_space(&self) -> bool {
        match self {
            LogError::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}
