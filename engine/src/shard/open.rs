//! Opening a shard's store: lock, log, queues, index, redo, and only then `abort`.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use super::Shard;
use super::dispatch::Dispatch;
use super::queue::QueueTable;
use crate::index::{Index, IndexConfig, IndexError, IndexRecovery, IndexReport, load_index};
use crate::log::{LockStamps, Log, LogConfig, LogError, Opened};
use crate::queue::{LoadReport, QueueConfig, QueueError, QueueRecovery, QueueStore, load_queues};
use crate::state::delay::DelayLevels;
use crate::store::{
    AbortMarker, CutDone, CutOrder, DerivedMark, FileSystem, LockStamp, StoreError, StoreLayout,
    StoreLock, Worker, WorkerGone, create_dir_durable,
};

/// The usual [`ShardConfig::derived_unwritten_bytes_max`]: some 1.5 million messages.
pub const DERIVED_UNWRITTEN_BYTES_MAX: usize = 64 << 20;
/// What stock allows a record above its body limit (4.9.8).
const RECORD_EXTRA_BYTES: usize = 65_536;

/// What a shard needs to be opened.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// The store directory.
    pub store: PathBuf,
    /// Shards of the broker, for the store's record of it.
    pub shards: u32,
    /// Log settings; its store directory is replaced by `store`.
    pub log: LogConfig,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a consume queue file.
    pub queue_file_bytes: u64,
    /// Keep an index by key.
    pub index: bool,
    /// Slots and entries of an index file.
    pub index_slots: u32,
    /// See `index_slots`.
    pub index_entries: u32,
    /// Most bytes of a message body.
    pub message_bytes_max: usize,
    /// Bytes of consume queue units and index entries that may wait in memory for their files; a put is refused beyond it.
    pub derived_unwritten_bytes_max: usize,
    /// The delay levels, for deliver times of records that are redone.
    pub delay_levels: DelayLevels,
}

impl ShardConfig {
    /// Most bytes of a whole record.
    pub fn record_bytes_max(&self) -> usize {
        self.message_bytes_max.saturating_add(RECORD_EXTRA_BYTES)
    }
}

/// Why a shard cannot be opened, kept or closed.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store's own files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Consume queues.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The worker thread.
    #[error(transparent)]
    Worker(#[from] WorkerGone),
    /// The worker thread did not start.
    #[error("the store's worker thread did not start: {0}: check the limit on threads")]
    WorkerStart(std::io::Error),
    /// A record that recovery had accepted cannot be read when derived data is redone.
    #[error(
        "the commit log is damaged at physical offset {offset}, below its durable end: {why}; run `ringmq log verify` on the store, restore it from a slave or a backup"
    )]
    Redo {
        /// Where.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// A message, or the unit that leads to it, is not what was stored. Never served, never passed by in silence.
    #[error(
        "message {queue_offset} of {topic}/{queue_id} cannot be read: {why}; run `ringmq log verify` on the store and follow it, or pass the message by: set the group's offset to {next}"
    )]
    DamagedMessage {
        /// Of which topic.
        topic: String,
        /// Of which queue.
        queue_id: i32,
        /// Its offset there.
        queue_offset: i64,
        /// The offset behind it.
        next: i64,
        /// What is wrong.
        why: String,
    },
}

/// What opening found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// The log.
    pub log: Opened,
    /// The consume queues.
    pub queues: LoadReport,
    /// The index.
    pub index: IndexReport,
    /// Where the redo of derived data began.
    pub redo_from: u64,
    /// Records redone.
    pub redone_records: u64,
    /// The log was cut on an order that waited.
    pub cut: Option<CutDone>,
}

impl Shard {
    /// Opens, recovering whatever the last run left.
    ///
    /// The order matters: the lock before anything is looked at; the log before what is derived from it; queues and index cut
    /// where the redo begins, so that no unit is trusted that may be torn; `abort` durable before the caller serves.
    ///
    /// # Errors
    /// [`ShardError`]: nothing is served then. Nothing below the log's durable end is ever changed.
    pub async fn open(config: ShardConfig) -> Result<(Rc<Shard>, OpenReport), ShardError> {
        let layout = StoreLayout::new(&config.store);
        create_dir_durable(layout.root())
            .map_err(|error| StoreError::io("create the directory", layout.root(), error))?;
        // Before the first write to it, so that it tells of every one that fails.
        let file_system = FileSystem::of(layout.root())
            .map_err(|error| StoreError::io("open", layout.root(), error))?;
        let stamp = LockStamp::read(&layout)?;
        let abort = AbortMarker::new(&layout);
        let ended = !abort.is_set();
        let lock = StoreLock::acquire(&layout)?;
        let mark = DerivedMark::load(&layout.derived_mark(), stamp)?;
        let worker = Rc::new(Worker::start("store").map_err(ShardError::WorkerStart)?);
        let cut = Self::carry_out_cut(&config, &layout, &worker).await?;

        let mut log_config = config.log.clone();
        log_config.store = config.store.clone();
        log_config.shards = config.shards;
        log_config.core.segment_size = config.segment_bytes;
        log_config.lock = Some(LockStamps { before: stamp, now: lock.stamp() });
        log_config.dispatched = mark.as_ref().map(|mark| mark.dispatched);
        let (log, opened) = Log::open(log_config).await?;
        let end = opened.recovered.end;
        let queue_config = Self::queue_config(&config, &layout);
        let log_min = log.min_offset();
        let had_mark = mark.is_some();
        // A stop closes the log first: queues and index may lack what was to follow.
        let clean = opened.recovered.clean && ended;
        let (mark, digest) = match mark {
            Some(mark) if mark.dispatched <= end => {
                let digest = mark.queues;
                (Some(mark), Some(digest))
            }
            // What was durable beyond the cut was so below it: nothing has to be redone.
            Some(mark)
                if cut.is_some()
                    && Self::queues_are_whole(&queue_config, &worker, &mark, log_min).await? =>
            {
                (Some(DerivedMark { dispatched: end, ..mark }), None)
            }
            _ => (None, None),
        };
        let known = match (&mark, opened.recovered.redo_from) {
            (Some(mark), _) => Some(mark.dispatched),
            // It tells of a log that went on, and nothing of the one that is there.
            (None, _) if had_mark => Some(log_min),
            // We never serve without a mark: it was lost, and with it how far queues and index are whole.
            (None, None) if opened.own_state => Some(log_min),
            (None, redo_from) => redo_from,
        };

        let recovery = QueueRecovery {
            log_min,
            // Without a mark no unit is known to be durable: those that are redone anyway are dropped first, so that a torn
            // one cannot survive.
            cut_at: known.map_or(end, |from| from.min(end)),
            digest,
            same_beginning: mark.as_ref().is_some_and(|mark| mark.log_min == log_min),
            log_end: end,
            trusted: mark.is_some(),
            clean,
        };
        let mut loaded = {
            let queue_config = queue_config.clone();
            worker.run(move || load_queues(&queue_config, &recovery)).await??
        };
        let mut queues_report = loaded.report.clone();
        let kept = std::mem::take(&mut loaded.kept);
        // After a clean stop of a stock broker its own rule holds: the largest end over all queues.
        let base =
            known.unwrap_or(u64::try_from(queues_report.max_end_physical).unwrap_or_default());
        let queues = QueueStore::new(queue_config, Rc::clone(&worker), loaded);
        let recovery =
            IndexRecovery { log_min, log_end: end, clean, files: mark.map(|mark| mark.index) };
        let (index, index_report) = Self::open_index(&config, &layout, &worker, recovery).await?;
        let wanted = [queues_report.redo_from, index_report.redo_from];
        let redo_from = wanted.into_iter().flatten().fold(base, u64::min);
        let redo_from = redo_from.clamp(log_min, end);

        let shard = Shard {
            abort,
            table: QueueTable::default(),
            dispatch: RefCell::new(Dispatch::default()),
            dispatched: Cell::new(end),
            dispatched_timestamp: Cell::new(0),
            dispatched_records: Cell::new(0),
            last_store_timestamp: Cell::new(0),
            checkpointing: Cell::new(false),
            listener: RefCell::new(None),
            disk_used_percent: Cell::new(0),
            disk_full: Cell::new(false),
            derived_behind: Cell::new(None),
            config,
            layout,
            log,
            queues,
            index,
            worker,
            file_system: Arc::new(file_system),
            stamp: lock.stamp(),
            lock: RefCell::new(Some(lock)),
        };
        let redone = shard.redo(redo_from, end).await?;
        queues_report.cut_queues = shard.queues.cut_kept(kept).await?;
        shard.note_last_store_time(redone.last_timestamp).await;
        shard.checkpoint().await?;
        let abort = shard.abort.clone();
        shard.worker.run(move || abort.set()).await??;
        let shard = Rc::new(shard);
        shard.follow_log();
        let report = OpenReport {
            log: opened,
            queues: queues_report,
            index: index_report,
            redo_from,
            redone_records: redone.records,
            cut,
        };
        Ok((shard, report))
    }

    /// An order to cut comes before anything reads the log.
    async fn carry_out_cut(
        config: &ShardConfig,
        layout: &StoreLayout,
        worker: &Rc<Worker>,
    ) -> Result<Option<CutDone>, ShardError> {
        let Some(order) = CutOrder::load(layout)? else { return Ok(None) };
        let (layout, segment_bytes) = (layout.clone(), config.segment_bytes);
        let done = worker.run(move || order.carry_out(&layout, segment_bytes)).await??;
        Ok(Some(done))
    }

    /// Whether the queues of a log that was cut are what they were when it went on to where `mark` was made. If not, nothing in them is
    /// believed.
    async fn queues_are_whole(
        config: &QueueConfig,
        worker: &Rc<Worker>,
        mark: &DerivedMark,
        log_min: u64,
    ) -> Result<bool, ShardError> {
        let recovery = QueueRecovery {
            log_min,
            cut_at: mark.dispatched,
            trusted: true,
            clean: false,
            log_end: mark.dispatched,
            digest: Some(mark.queues),
            same_beginning: mark.log_min == log_min,
        };
        let config = config.clone();
        let loaded = worker.run(move || load_queues(&config, &recovery)).await??;
        Ok(loaded.report.repaired == 0)
    }

    fn queue_config(config: &ShardConfig, layout: &StoreLayout) -> QueueConfig {
        let mut queues = QueueConfig::new(layout);
        queues.file_bytes = config.queue_file_bytes;
        queues
    }

    /// The index and where the redo must begin for its sake, if it keeps one.
    async fn open_index(
        config: &ShardConfig,
        layout: &StoreLayout,
        worker: &Rc<Worker>,
        recovery: IndexRecovery,
    ) -> Result<(Option<Index>, IndexReport), ShardError> {
        if !config.index {
            return Ok((None, IndexReport::default()));
        }
        let mut index = IndexConfig::new(layout);
        index.slots = config.index_slots;
        index.entries = config.index_entries;
        let for_worker = index.clone();
        let loaded = worker.run(move || load_index(&for_worker, &recovery)).await??;
        let report = loaded.report.clone();
        Ok((Some(Index::new(index, Rc::clone(worker), loaded)), report))
    }

    /// Store times never go backwards, across restarts too: the last record's is where they go on.
    async fn note_last_store_time(&self, redone: i64) {
        let mut last = redone;
        if last == 0 {
            // Reading the last unit of each queue would take seconds where there are many.
            let end = i64::try_from(self.log.appended()).unwrap_or(i64::MAX);
            let queues = self.queues.all();
            if let Some(queue) = queues.iter().find(|queue| queue.end_physical() == end)
                && let Ok(units) = self.queues.read(queue, queue.max_offset() - 1, 1).await
                && let Some(unit) = units.first()
            {
                last = self.store_time_at(unit.physical_offset).await.unwrap_or(0);
            }
        }
        self.last_store_timestamp.set(last);
        self.dispatched_timestamp.set(last);
    }

    /// From now on what becomes visible is dispatched.
    fn follow_log(self: &Rc<Self>) {
        let shard = Rc::downgrade(self);
        self.log.on_progress(Box::new(move |progress| {
            let Some(shard) = shard.upgrade() else { return };
            shard.dispatch_visible(progress.offsets.visible);
            let listener = shard.listener.borrow().clone();
            if let Some(listener) = listener {
                listener.progressed();
            }
        }));
    }
}
