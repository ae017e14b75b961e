//! One shard: a commit log with its consume queues and its index, tied together on one reactor.
//!
//! ```text
//!   put ──► log.append ──► pending ──(written / durable)──► consume queue unit ──► index entry ──► listener.arrived
//!   get ──► recent units ──► hot blocks ──► slices
//!              └──────────► files  ──► block cache / device
//! ```
//!
//! A record is *visible* once its level is reached: only then does it enter its queue, the index, and pulls. What was
//! appended and not yet visible waits in `dispatch`; after a crash it is simply not there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::index::Index;
use crate::log::{Log, LogError, ReadHint, Slice};
use crate::queue::{QueueStore, Unit};
use crate::state::waiters::WaitQueue;
use crate::store::{
    AbortMarker, FileSystem, LockStamp, StoreLayout, StoreLock, Worker, WorkerGone,
};

mod dispatch;
mod follow;
mod get;
mod keep;
mod open;
mod put;
mod queue;
mod redo;
mod search;

pub use get::{GetLimits, GetResult, GetStatus};
pub use open::{DERIVED_UNWRITTEN_BYTES_MAX, OpenReport, ShardConfig, ShardError};
pub use put::{NewMessage, NewRun, PutError, Stored, UnitCode};
pub use queue::{QUEUE_ID_MAX, Queue};
pub use search::IndexFound;

use dispatch::Dispatch;
use queue::QueueTable;

/// What a shard tells its broker, on the reactor, between tasks.
pub trait ShardListener {
    /// A message is visible in a queue that pulls have waited on: `max_offset` is the queue's new end.
    fn arrived(&self, list: WaitQueue, max_offset: i64, tags_code: i64);
    /// A write or flush has completed or failed, and what it made visible has been dispatched.
    fn progressed(&self);
}

/// A shard's store. Lives on one reactor; see the module.
pub struct Shard {
    config: ShardConfig,
    layout: StoreLayout,
    log: Log,
    queues: QueueStore,
    index: Option<Index>,
    worker: Rc<Worker>,
    file_system: Arc<FileSystem>,
    abort: AbortMarker,
    /// Released when the shard is closed.
    lock: RefCell<Option<StoreLock>>,
    stamp: LockStamp,
    table: QueueTable,
    dispatch: RefCell<Dispatch>,
    /// End of the last dispatched record, and its store time.
    dispatched: Cell<u64>,
    dispatched_timestamp: Cell<i64>,
    /// Records dispatched since it was opened.
    dispatched_records: Cell<u64>,
    last_store_timestamp: Cell<i64>,
    checkpointing: Cell<bool>,
    listener: RefCell<Option<Rc<dyn ShardListener>>>,
    disk_used_percent: Cell<u8>,
    disk_full: Cell<bool>,
    /// Bytes of derived data in memory that are not in their files, when that is too many.
    derived_behind: Cell<Option<usize>>,
}

/// How far a shard has dispatched its log to its queues and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Physical offset behind the last record.
    pub end: u64,
    /// Records since the store was opened.
    pub records: u64,
}

impl Shard {
    /// The last store time that was given to a message, milliseconds since 1970; 0 if none is known. None before it is given any more.
    pub fn last_store_timestamp(&self) -> i64 {
        self.last_store_timestamp.get()
    }

    /// Whom to tell. One at a time.
    pub fn set_listener(&self, listener: Rc<dyn ShardListener>) {
        *self.listener.borrow_mut() = Some(listener);
    }

    /// The commit log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Where the store is.
    pub fn layout(&self) -> &StoreLayout {
        &self.layout
    }

    /// Starts writing what was appended, if no write is in flight. Cheap.
    pub fn kick(&self) {
        self.log.kick();
    }

    /// The queue `id` of `topic`, made in memory if it is not there; `None` for an id out of bounds.
    pub fn queue(&self, topic: &str, id: i32) -> Option<Rc<Queue>> {
        self.table.get(&self.queues, topic, id)
    }

    /// The queue if it has a message or a handle to it was given out; never made by asking.
    pub fn existing_queue(&self, topic: &str, id: i32) -> Option<Rc<Queue>> {
        if let Some(queue) = self.table.find(topic, id) {
            return Some(queue);
        }
        self.queues.find(topic, id)?;
        self.queue(topic, id)
    }

    /// End of what was dispatched: everything before it is in the queues and the index.
    pub fn dispatched(&self) -> u64 {
        self.dispatched.get()
    }

    /// How far dispatching has come.
    pub fn progress(&self) -> Progress {
        Progress { end: self.dispatched.get(), records: self.dispatched_records.get() }
    }

    /// Use of the disk in percent, as last told.
    pub fn disk_used_percent(&self) -> u8 {
        self.disk_used_percent.get()
    }

    /// Whether new messages are to be refused for want of space.
    pub fn disk_full(&self) -> bool {
        self.disk_full.get() || self.log.is_disk_full()
    }

    /// Tells how full the disk is; returns whether it was too full before.
    pub fn set_disk_used(&self, percent: u8, full: bool) -> bool {
        self.disk_used_percent.set(percent);
        self.disk_full.replace(full)
    }

    /// Runs blocking work on this store's own files on its worker thread, after what it was given before.
    ///
    /// # Errors
    /// [`WorkerGone`] if the thread has ended.
    pub async fn off_reactor<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.worker.run(work).await
    }

    /// The unit of a queue offset; `None` if there is none.
    ///
    /// # Errors
    /// [`ShardError`] when it cannot be read.
    pub async fn unit(&self, queue: &Queue, offset: i64) -> Result<Option<Unit>, ShardError> {
        if offset < queue.min_offset() || offset >= queue.max_offset() {
            return Ok(None);
        }
        let mut found = None;
        self.queues.recent(queue.units(), offset, 1, |unit| {
            found = Some(unit);
            false
        });
        if found.is_none() {
            found = self.queues.read(queue.units(), offset, 1).await?.first().copied();
        }
        Ok(found)
    }

    /// Where the last message lies that is in a queue, and its record as it is stored; `None` if the log has none any more.
    ///
    /// # Errors
    /// [`ShardError`] when it cannot be read.
    pub async fn last_record(&self) -> Result<Option<(u64, Slice)>, ShardError> {
        let queues = self.queues.all();
        let Some(queue) = queues.iter().max_by_key(|queue| queue.end_physical()) else {
            return Ok(None);
        };
        let last = queue.max_offset() - 1;
        let mut unit = None;
        self.queues.recent(queue, last, 1, |found| {
            unit = Some(found);
            false
        });
        if unit.is_none() && last >= queue.min_offset() {
            unit = self.queues.read(queue, last, 1).await?.first().copied();
        }
        let Some(unit) = unit else { return Ok(None) };
        let (at, len) = (unit.physical_offset as u64, unit.size as usize);
        if at < self.log.min_offset() {
            return Ok(None);
        }
        Ok(Some((at, self.bytes_at(at, len, ReadHint::EXACT).await?)))
    }

    /// Bytes of the log, from memory if they are there.
    pub(crate) async fn bytes_at(
        &self,
        offset: u64,
        len: usize,
        hint: ReadHint,
    ) -> Result<Slice, LogError> {
        match self.log.hot(offset, len) {
            Some(slice) => Ok(slice),
            None => self.log.read(offset, len, hint).await,
        }
    }
}
