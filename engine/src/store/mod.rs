//! The directory of one store: where things are, who may use it, how far it is known to be durable.
//!
//! Everything here is either a pure format or blocking file work. Blocking work never runs on a reactor: it goes to the
//! store's [`Worker`], one plain thread per shard, which does its jobs strictly in the order they were given.

mod checkpoint;
mod checkpointer;
mod cut;
mod files;
mod layout;
mod lock;
mod mark;
mod worker;

pub use checkpoint::{CHECKPOINT_BYTES, Checkpoint};
pub use checkpointer::{CheckpointInput, write_checkpoint};
pub use cut::{CutDone, CutOrder};
pub use files::{
    FileSystem, NumberedFile, create_dir_durable, list_numbered, numbered_name,
    parse_numbered_name, sync_directory, sync_file_system, write_replacing,
};
pub use layout::StoreLayout;
pub use lock::{AbortMarker, LockStamp, StoreLock};
pub use mark::DerivedMark;
pub use worker::{Ticket, Worker, WorkerGone};

use std::io;
use std::path::{Path, PathBuf};

/// Why something about the store's own files failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on a file or directory failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process holds the store.
    #[error(
        "store {} is in use by another process: stop it, or choose another data directory", path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// This process holds the store already.
    #[error("store {} is already open in this process: give each shard its own directory", path.display())]
    LockedHere {
        /// The lock file.
        path: PathBuf,
    },
    /// An earlier sync failed: nothing after it can be called durable.
    #[error(
        "an earlier sync of the store failed, so derived data is no longer made durable: restart the broker"
    )]
    SyncFailed,
    /// The worker thread ended.
    #[error(transparent)]
    Worker(#[from] WorkerGone),
    /// Consume queues could not be written.
    #[error(transparent)]
    Queue(#[from] crate::queue::QueueError),
    /// The index could not be written.
    #[error(transparent)]
    Index(#[from] crate::index::IndexError),
}

impl StoreError {
    /// An I/O error with what was tried, on what.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_path_buf(), source }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod vectors;
