//! What can go wrong with consume queues.

use std::io;
use std::path::{Path, PathBuf};

use crate::store::WorkerGone;

/// Why a consume queue operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueueError {
    /// A file operation failed.
    #[error("cannot {what} consume queue file {}: {message}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        message: String,
    },
    /// The files have another length than the configured one.
    #[error(
        "consume queue files of this store have {found} bytes but {configured} are configured: set the consume queue file size back"
    )]
    FileSize {
        /// Length of the files found.
        found: u64,
        /// Length by configuration.
        configured: u64,
    },
    /// The worker thread ended.
    #[error(transparent)]
    Worker(#[from] WorkerGone),
}

impl QueueError {
    pub(super) fn io(what: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io { what, path: path.to_path_buf(), message: error.to_string() }
    }
}
