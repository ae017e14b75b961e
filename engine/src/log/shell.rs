//! The log of one shard: the core's decisions carried out on real files.
//!
//! ```text
//!   append -> core.append (memory)              kick/events -> core.poll_action
//!                                                 Write  -> writer task  -> device -> core.write_done  --+
//!                                                 Flush  -> flusher task -> device -> core.flush_done  --+-> on_progress
//!                                                 Zero, Prepare, Save -> housekeeping thread -> report --+
//! ```
//!
//! This file is what callers see; `driver.rs` is how it turns.

use super::{
    AppendError, Failure, FlushAction, FollowError, LogCore, Offsets, WriteAction,
    block::Slice,
    cache::{BlockCache, CacheStats},
    calls::Calls,
    device::Device,
    error::LogError,
    files::DiskSpace,
    housekeeper::{Job, Outcome},
    open::{LogConfig, spawn},
    pool::PooledBuf,
    segments::{Layout, SegmentInfo},
    sidecar::Folder,
    signal::{Changed, Slot},
    state::LogState,
    table::Table,
    trace::{LogTimes, Stages, Trace},
};
use glommio::task::JoinHandle;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// How far the log is, as told to [`Log::on_progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Appended, written, durable, visible.
    pub offsets: Offsets,
    /// The log stopped taking writes: see [`Log::failed`].
    pub failed: bool,
}

/// Counters since the log was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Device writes.
    pub writes: u64,
    /// Bytes of them, padding included.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// The cache of cold reads.
    pub cache: CacheStats,
    /// Memory held by recent blocks.
    pub hot_bytes: u64,
}

/// One shard's commit log. Lives on the reactor that opened it; cheap to clone.
///
/// Dropping it without [`Log::close`] is what a crash looks like: the next open recovers.
#[derive(Clone)]
pub struct Log(pub(crate) Rc<Shell>);

type OnProgress = Rc<dyn Fn(Progress)>;
type OnVisible = Rc<dyn Fn()>;

pub(crate) struct Parts {
    pub(crate) config: LogConfig,
    pub(crate) layout: Layout,
    pub(crate) calls: Rc<Calls>,
    pub(crate) device: Device,
    pub(crate) table: Table,
    pub(crate) core: LogCore<PooledBuf>,
    pub(crate) saved: LogState,
}

pub(crate) struct Shell {
    pub(crate) config: LogConfig,
    pub(crate) layout: Layout,
    pub(crate) calls: Rc<Calls>,
    pub(crate) device: Device,
    pub(crate) table: Table,
    pub(crate) cache: BlockCache,
    pub(crate) core: RefCell<LogCore<PooledBuf>>,
    /// The state that is durable on disk.
    pub(crate) saved: Cell<LogState>,
    pub(crate) saving: Cell<Option<LogState>>,
    /// Why the last save failed, if it did.
    pub(crate) save_error: RefCell<Option<LogError>>,
    pub(crate) writes: Slot<WriteAction<PooledBuf>>,
    pub(crate) flushes: Slot<FlushAction>,
    /// Something happened: an event of any kind.
    pub(crate) changed: Changed,
    pub(crate) on_visible: RefCell<Option<OnVisible>>,
    pub(crate) on_progress: RefCell<Option<OnProgress>>,
    pub(crate) folder: RefCell<Folder>,
    pub(crate) zeroing: Cell<bool>,
    /// Why a segment could not be made the last time.
    pub(crate) not_made: RefCell<Option<LogError>>,
    pub(crate) stats: Cell<LogStats>,
    pub(crate) trace: Trace,
    pub(crate) tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Log {
    pub(crate) fn new(parts: Parts) -> Log {
        let end = parts.core.offsets().written;
        let folder = Folder::new(parts.config.core.segment_size, end);
        Log(Rc::new(Shell {
            cache: BlockCache::new(parts.config.cache_bytes),
            folder: RefCell::new(folder),
            config: parts.config,
            layout: parts.layout,
            calls: parts.calls,
            device: parts.device,
            table: parts.table,
            core: RefCell::new(parts.core),
            saved: Cell::new(parts.saved),
            saving: Cell::new(None),
            save_error: RefCell::default(),
            writes: Slot::new(),
            flushes: Slot::new(),
            changed: Changed::default(),
            on_visible: RefCell::default(),
            on_progress: RefCell::default(),
            zeroing: Cell::new(false),
            not_made: RefCell::default(),
            stats: Cell::default(),
            trace: Trace::default(),
            tasks: RefCell::default(),
        }))
    }

    /// Starts the tasks and waits until appends are taken, or until only space is missing.
    pub(crate) async fn start(&self) -> Result<(), LogError> {
        let shell = &self.0;
        let end = self.appended();
        // What is written next is opened here, and stays open until it is flushed: the writer never waits for an open.
        shell.table.flushed_to(self.durable());
        for segment in shell.table.infos() {
            if segment.start + segment.bytes > end {
                shell.table.open(segment.start, &shell.device).await?;
            }
        }
        let sink = Rc::downgrade(shell);
        shell.calls.set_sink(Rc::new(move |report| {
            if let Some(shell) = sink.upgrade() {
                Shell::reported(&shell, report);
            }
        }));
        let queue = shell.config.task_queue;
        let tasks =
            [spawn(queue, shell.clone().write_task()), spawn(queue, shell.clone().flush_task())];
        shell.tasks.borrow_mut().extend(tasks);
        shell.rebuild_crcs(end);
        shell.pump();
        loop {
            let ready = {
                let core = shell.core.borrow();
                let zeroed = !shell.config.core.zero_ahead || core.zeroed_to() > end;
                core.failure().is_some()
                    || shell.not_made.borrow().is_some()
                    || core.ready_end() > end && zeroed
            };
            if ready {
                return Ok(());
            }
            shell.changed.wait().await;
        }
    }

    /// Keeps a task to be awaited by [`Log::close`].
    pub(crate) fn adopt(&self, task: JoinHandle<()>) {
        self.0.tasks.borrow_mut().push(task);
    }

    // ---- appending ----

    /// Reserves `len` bytes (one record, or a batch's records back to back) in one segment and contiguous memory, and lets
    /// `fill` encode them in place; it gets the physical offset and must write every byte, and must not call the log.
    /// Returns the physical offset. Nothing goes to the device before [`Log::kick`].
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was reserved then and `fill` wasn't called.
    pub fn append(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8], u64),
    ) -> Result<u64, AppendError> {
        let shell = &self.0;
        let mut core = shell.core.borrow_mut();
        if !shell.config.block_crcs {
            return core.append(len, fill);
        }
        let mut folder = shell.folder.borrow_mut();
        core.append(len, |bytes, start| {
            fill(bytes, start);
            folder.appended(start, bytes);
        })
    }

    /// Whether [`Log::append`] would take `len` bytes now.
    pub fn admits(&self, len: usize) -> Result<(), AppendError> {
        self.0.core.borrow().admits(len)
    }

    /// Takes bytes of another log that this one follows; see [`LogCore::follow`]. `fill` must not call the log. Nothing goes to the
    /// device before [`Log::kick`].
    ///
    /// # Errors
    /// [`FollowError`]; nothing was taken then.
    pub fn follow(
        &self,
        from: u64,
        len_max: usize,
        fill: impl FnOnce(&mut [u8]) -> std::io::Result<usize>,
    ) -> Result<usize, FollowError> {
        self.0.core.borrow_mut().follow(from, len_max, fill)
    }

    /// All that a stock broker's visit made worthless is durably so: the next opening tells no more of it.
    ///
    /// # Errors
    /// I/O errors; it is told again then.
    pub async fn settle_visit(&self) -> Result<(), LogError> {
        self.0.calls.call(|id| Job::SettleVisit { id }).await.map(|_| ())
    }

    /// Has an empty log begin at another segment's start, as that of a slave that joins late does. Returns when bytes are taken there.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`] if the log isn't empty or `start` is no segment's start; I/O errors.
    pub async fn begin_at(&self, start: u64) -> Result<(), LogError> {
        let shell = &self.0;
        let (min, max) = (self.min_offset(), self.appended());
        if min != max || !start.is_multiple_of(shell.config.core.segment_size) {
            return Err(LogError::OutOfRange { offset: start, len: 0, min, max });
        }
        shell.core.borrow_mut().pause(true);
        while !shell.core.borrow().is_idle() {
            shell.changed.wait().await;
        }
        // From the last one down. A crash in between leaves an empty log, wherever it begins.
        let mut result = Ok(());
        for segment in self.segments().into_iter().rev() {
            shell.table.pop_last(segment.start);
            let start = segment.start;
            result = shell.calls.call(|id| Job::Delete { id, start }).await.map(|_| ());
            if result.is_err() {
                break;
            }
        }
        {
            let mut core = shell.core.borrow_mut();
            if result.is_ok() {
                core.begin_at(start);
                *shell.folder.borrow_mut() = Folder::new(shell.config.core.segment_size, start);
            }
            core.pause(false);
        }
        shell.pump();
        while result.is_ok() {
            let (ready, failure) = {
                let core = shell.core.borrow();
                (core.ready_end() > start, core.failure().map(ToString::to_string))
            };
            match (failure, self.segment_error()) {
                (Some(why), _) => result = Err(LogError::Failed(why)),
                (None, Some(error)) => result = Err(error),
                (None, None) if ready => break,
                (None, None) => shell.changed.wait().await,
            }
        }
        result
    }

    /// Ends when something has happened to the log: a write, a flush, a new segment. For those who wait for bytes or for room.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let shell = Rc::clone(&self.0);
        let round = shell.changed.round();
        std::future::poll_fn(move |cx| shell.changed.poll_since(round, cx))
    }

    /// Starts a write if there is something to write and none in flight. Cheap: call it once per turn.
    pub fn kick(&self) {
        self.0.pump();
    }

    /// Whether much comes at once and nobody waits for each part of it: then no zeros go ahead of it, so that each byte is written once
    /// instead of twice, and what is written counts as written when a flush has covered it.
    pub fn set_bulk(&self, bulk: bool) {
        self.0.core.borrow_mut().set_bulk(bulk);
        self.0.pump();
    }

    /// Asks for a flush of what is written by then; [`Log::on_progress`] tells. At level `sync` flushes come by themselves.
    pub fn request_flush(&self) {
        self.0.core.borrow_mut().request_flush();
        self.0.pump();
    }

    /// Waits until everything below `offset` is durable.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log stopped before it was.
    pub async fn flushed(&self, offset: u64) -> Result<(), LogError> {
        loop {
            if self.durable() >= offset {
                return Ok(());
            }
            if let Some(failure) = self.failed() {
                return Err(LogError::Failed(failure.to_string()));
            }
            if self.0.core.borrow().is_closed() {
                return Err(LogError::Closed);
            }
            let changed = self.0.changed.wait();
            self.request_flush();
            changed.await;
        }
    }

    /// Sets who is told, on this reactor, after each completed write or flush and at a failure. Replaces the former one.
    /// It may append, kick and request flushes.
    pub fn on_progress(&self, f: Box<dyn Fn(Progress)>) {
        *self.0.on_progress.borrow_mut() = Some(Rc::from(f));
    }

    /// Sets who is told, on this reactor, after each completed write or flush and before [`Log::on_progress`] is: somebody far away for
    /// whom bytes are to leave first. Replaces the former one.
    pub fn on_visible(&self, f: impl Fn() + 'static) {
        *self.0.on_visible.borrow_mut() = Some(Rc::new(f));
    }

    // ---- looking ----

    /// End of what was appended.
    pub fn appended(&self) -> u64 {
        self.offsets().appended
    }

    /// End of the last record that lies wholly inside completed writes.
    pub fn written(&self) -> u64 {
        self.offsets().written
    }

    /// End of what a flush covered.
    pub fn durable(&self) -> u64 {
        self.offsets().durable
    }

    /// End of what readers may see: written, or durable at level `sync`.
    pub fn visible(&self) -> u64 {
        self.offsets().visible
    }

    /// End of the last record that readers may see whole: [`Log::visible`], except while another log is followed.
    pub fn visible_whole(&self) -> u64 {
        self.0.core.borrow().visible_whole()
    }

    /// All of them.
    pub fn offsets(&self) -> Offsets {
        self.0.core.borrow().offsets()
    }

    /// Start of the first segment; the end of the log if there is none.
    pub fn min_offset(&self) -> u64 {
        self.0.table.first_start().unwrap_or_else(|| self.appended())
    }

    /// Bytes appended and not yet written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.0.core.borrow().unwritten_bytes()
    }

    /// What made the log stop taking writes, if anything did.
    pub fn failed(&self) -> Option<Failure> {
        self.0.core.borrow().failure().cloned()
    }

    /// The next segment can't be made, most likely for want of space; clears itself.
    pub fn is_disk_full(&self) -> bool {
        self.0.not_made.borrow().is_some()
    }

    /// Why the next segment can't be made, while it can't.
    pub fn segment_error(&self) -> Option<LogError> {
        self.0.not_made.borrow().clone()
    }

    /// Bytes `[offset, offset + len)` if they are written and in memory, as one or more whole records; no copy.
    pub fn hot(&self, offset: u64, len: usize) -> Option<Slice> {
        self.0.core.borrow().hot(offset, len)
    }

    /// Visible bytes from `offset` on, at most `len_max`, as far as one block in memory goes; never empty. For streams.
    pub fn hot_from(&self, offset: u64, len_max: usize) -> Option<Slice> {
        let core = self.0.core.borrow();
        let most = usize::try_from(core.visible().checked_sub(offset)?).unwrap_or(usize::MAX);
        core.hot_from_offset(offset, len_max.min(most))
    }

    /// The segments, oldest first. The last ones may hold no records yet.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.0.table.infos()
    }

    /// Counters.
    pub fn stats(&self) -> LogStats {
        LogStats {
            cache: self.0.cache.stats(),
            hot_bytes: self.0.core.borrow().hot_bytes() as u64,
            ..self.0.stats.get()
        }
    }

    /// How long writes and flushes took.
    pub fn times(&self) -> LogTimes {
        self.0.trace.times()
    }

    /// When what lies below `offset` was written and flushed. For sends that took long: a few comparisons per call.
    pub fn stages(&self, offset: u64) -> Stages {
        self.0.trace.stages(offset)
    }

    /// How many bytes of zeros lie ready ahead of the end, for the writes to come; `None` if zeroing ahead is off.
    pub fn zeroed_ahead_bytes(&self) -> Option<u64> {
        let core = self.0.core.borrow();
        let ahead = core.zeroed_to().saturating_sub(core.offsets().appended);
        self.0.config.core.zero_ahead.then_some(ahead)
    }

    // ---- upkeep ----

    /// Free and total space of the disk, asked off the reactor.
    pub async fn disk_space(&self) -> Result<DiskSpace, LogError> {
        match self.0.calls.call(|id| Job::Space { id }).await? {
            Outcome::Space(space) => Ok(space),
            _ => Err(LogError::Closed),
        }
    }

    /// Removes the oldest segment, never one that is being written. Its bytes can't be read any more when this is first
    /// polled; its space is freed in steps, off the reactor.
    ///
    /// # Errors
    /// [`LogError::NothingToDelete`] if only the segment being written is left; I/O errors, after which it is still there.
    pub async fn delete_oldest(&self) -> Result<SegmentInfo, LogError> {
        let shell = &self.0;
        let oldest = *self.segments().first().ok_or(LogError::NothingToDelete)?;
        let end = oldest.start + oldest.bytes;
        if end > self.written() {
            return Err(LogError::NothingToDelete);
        }
        // A recovery would miss a segment that the saved state says is durable only in part.
        self.saved_beyond(end).await?;
        // Somebody else deleted it meanwhile, or a zeroing in flight still touches it: the next round finds out.
        if self.min_offset() != oldest.start || end > shell.core.borrow().deletable_to() {
            return Err(LogError::NothingToDelete);
        }
        shell.table.pop_first();
        shell.cache.keep_only(end, u64::MAX);
        let start = oldest.start;
        match shell.calls.call(|id| Job::Delete { id, start }).await {
            Ok(_) => Ok(oldest),
            Err(e) => {
                shell.table.push_first(oldest);
                Err(e)
            }
        }
    }

    /// Makes sure that the state on disk says durable up to `offset` at least.
    async fn saved_beyond(&self, offset: u64) -> Result<(), LogError> {
        self.flushed(offset).await?;
        // Nearly always so already: states are saved every few tens of megabytes.
        *self.0.save_error.borrow_mut() = None;
        while self.0.saved.get().durable < offset {
            if let Some(failure) = self.failed() {
                return Err(LogError::Failed(failure.to_string()));
            }
            if let Some(error) = self.0.save_error.borrow().clone() {
                return Err(error);
            }
            let changed = self.0.changed.wait();
            self.0.core.borrow_mut().request_save();
            self.0.pump();
            changed.await;
        }
        Ok(())
    }

    /// Saves the state soon, so that a recovery scans less: worth a call now and then after a flush (a checkpoint's turn).
    pub fn request_save(&self) {
        self.0.core.borrow_mut().request_save();
        self.0.pump();
    }

    /// Stops taking appends, writes and flushes everything, saves the state as clean, and ends tasks and thread.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log had stopped before: what is on disk is recovered at the next open.
    pub async fn close(self) -> Result<(), LogError> {
        let shell = &self.0;
        {
            let mut core = shell.core.borrow_mut();
            core.close();
            core.retry();
        }
        *shell.save_error.borrow_mut() = None;
        let result = loop {
            shell.pump();
            {
                let core = shell.core.borrow();
                if let Some(failure) = core.failure() {
                    break Err(LogError::Failed(failure.to_string()));
                }
                if core.is_closed() && core.is_idle() {
                    break Ok(());
                }
            }
            // A full disk must not keep a broker from stopping: everything is written, only not known to be clean.
            if let Some(error) = shell.save_error.borrow().clone() {
                break Err(error);
            }
            shell.changed.wait().await;
        };
        shell.give_crcs(true);
        shell.writes.close();
        shell.flushes.close();
        shell.calls.stop();
        let tasks = shell.tasks.take();
        for task in tasks {
            task.await;
        }
        shell.calls.house.stop();
        *shell.on_visible.borrow_mut() = None;
        *shell.on_progress.borrow_mut() = None;
        result
    }
}
