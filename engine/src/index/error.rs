//! What can go wrong with the index.

use std::io;
use std::path::{Path, PathBuf};

use crate::store::WorkerGone;

/// Why an index operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IndexError {
    /// A file operation failed.
    #[error("cannot {what} index file {}: {message}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        message: String,
    },
    /// The files were made for other table sizes.
    #[error(
        "index files of this store have {found} bytes but the configured slots and entries need {configured}: set them back, or, if the files were cut, remove the index directory: it is made again from the log"
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

impl IndexError {
    pub(super) fn io(what: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io { what, path: path.to_path_buf(), message: error.to_string() }
    }
}
