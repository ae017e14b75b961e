//! Makes derived data durable and says so: the one order of steps that is safe.

use std::rc::Rc;
use std::sync::Arc;

use super::{Checkpoint, DerivedMark, FileSystem, LockStamp, StoreError, StoreLayout, Worker};
use crate::index::Index;
use crate::queue::{QueueDigest, QueueStore};

/// What a checkpoint claims. Read all of it at one moment, before [`write_checkpoint`] is called and without an await between.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointInput {
    /// All records below were dispatched to queues and index (units appended, keys put).
    pub dispatched: u64,
    /// [`QueueStore::digest`] at the same moment.
    pub queues: QueueDigest,
    /// Where the log begins.
    pub log_min: u64,
    /// Store timestamp of the last record that is durable in the log; for a stock broker that takes over.
    pub physic_timestamp: i64,
    /// Store timestamp of the last dispatched record; for a stock broker that takes over.
    pub logics_timestamp: i64,
    /// Our stamp of the lock file.
    pub lock: LockStamp,
}

/// Writes all derived data of records below `dispatched`, syncs the file system, and only then claims it: index header,
/// `checkpoint`, mark. A crash between any two steps leaves the older claim, which is still true. `file_system` is the store's,
/// opened before anything was written to it.
///
/// At most one at a time. Does not block the reactor.
///
/// # Errors
/// [`StoreError`]; nothing was claimed then. After a failed sync every further call fails.
pub async fn write_checkpoint(
    layout: &StoreLayout,
    worker: &Rc<Worker>,
    file_system: &Arc<FileSystem>,
    queues: &QueueStore,
    index: Option<&Index>,
    input: CheckpointInput,
) -> Result<(), StoreError> {
    if queues.sync_failed() {
        return Err(StoreError::SyncFailed);
    }
    queues.flush().await?;
    let (header, index_files) = match index {
        Some(index) => index.flush_for_mark().await?,
        None => (None, Vec::new()),
    };
    let file_system = Arc::clone(file_system);
    let synced = worker.run(move || file_system.sync()).await?;
    if let Err(error) = synced {
        queues.set_sync_failed();
        return Err(StoreError::io("sync the file system of", layout.root(), error));
    }
    let index_timestamp = index.map_or(0, Index::rolled_timestamp);
    let (checkpoint_path, mark_path) = (layout.checkpoint(), layout.derived_mark());
    let mark = DerivedMark {
        dispatched: input.dispatched,
        queues: input.queues,
        log_min: input.log_min,
        lock: input.lock,
        index: index_files,
    };
    let checkpoint = Checkpoint {
        physic: input.physic_timestamp,
        logics: input.logics_timestamp,
        index: index_timestamp,
    };
    let claim = move || -> Result<(), StoreError> {
        if let Some(header) = header {
            header.save()?;
        }
        checkpoint.save(&checkpoint_path)?;
        mark.save(&mark_path)
    };
    worker.run(claim).await?
}
