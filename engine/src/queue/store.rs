//! All queues of a shard: the map, the batches to the worker, the memory budget.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringmq_net::map::SeededMap;

use super::core::{Appended, Queue, QueueDigest, QueueRef};
use super::load::{KeptUnits, LoadedQueues, cut_files};
use super::read::Readers;
use super::unit::{UNIT_BYTES, Unit};
use super::writer::{Batch, BatchPart, QueueWriter, queue_dir};
use super::{QueueError, TrimReport};
use crate::store::{StoreLayout, Ticket, Worker, WorkerGone};

/// After a failed batch the next one is tried this much later.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A queue gives back half of its written units at a time, or all when it has no more than this.
const EVICT_WHOLE_UNITS: usize = 64;

/// Sizes and limits of the consume queues of one shard.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// `consumequeue` of the store.
    pub dir: PathBuf,
    /// Where files are made before they are renamed in; on the same file system.
    pub prepare: PathBuf,
    /// Bytes of a file, rounded up to whole units (stock's `mappedFileSizeConsumeQueue`).
    pub file_bytes: u64,
    /// Units kept in memory after they were written, in bytes, over all queues. Unwritten ones come on top.
    pub memory_bytes_max: usize,
    /// A batch goes out when this much is unwritten...
    pub batch_bytes_min: usize,
    /// ...or this long after the last one.
    pub batch_interval: Duration,
    /// Most bytes of one batch.
    pub batch_bytes_max: usize,
    /// Most queues of one batch.
    pub batch_queues_max: usize,
    /// Descriptors for writing, and as many again for reading.
    pub descriptors_max: usize,
}

impl QueueConfig {
    /// Stock's file size and our defaults.
    pub fn new(layout: &StoreLayout) -> Self {
        Self {
            dir: layout.consume_queues(),
            prepare: layout.prepare_derived(),
            file_bytes: 6_000_000,
            memory_bytes_max: 16 * 1024 * 1024,
            batch_bytes_min: 1024 * 1024,
            batch_interval: Duration::from_secs(1),
            batch_bytes_max: 4 * 1024 * 1024,
            batch_queues_max: 4096,
            descriptors_max: 128,
        }
    }

    /// Bytes of a file in whole units.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes.max(1).next_multiple_of(UNIT_BYTES as u64)
    }

    pub(super) fn file_units(&self) -> i64 {
        (self.file_bytes() / UNIT_BYTES as u64) as i64
    }
}

/// Counters of a [`QueueStore`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Queues known.
    pub queues: usize,
    /// Bytes of units in memory.
    pub memory_bytes: usize,
    /// Of these, bytes that are not in a file yet.
    pub unwritten_bytes: usize,
    /// Units taken at a lower offset than their record says: see [`Appended::Drifted`].
    pub drifted_units: u64,
    /// Batches written.
    pub batches: u64,
    /// Batches that failed, and were or will be tried again.
    pub failed_batches: u64,
}

/// All consume queues of one shard. Lives on its reactor; cheap to clone.
#[derive(Clone)]
pub struct QueueStore {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) config: QueueConfig,
    pub(super) file_units: i64,
    topics: RefCell<SeededMap<Arc<str>, Vec<QueueRef>>>,
    next_uid: Cell<u32>,
    dirty: RefCell<VecDeque<QueueRef>>,
    evictable: RefCell<VecDeque<QueueRef>>,
    digest: Cell<QueueDigest>,
    memory_bytes: Cell<usize>,
    unwritten_bytes: Cell<usize>,
    drifted_units: Cell<u64>,
    in_flight: RefCell<Option<InFlight>>,
    spare: RefCell<Batch>,
    last_batch: Cell<Option<Instant>>,
    failure: RefCell<Option<QueueError>>,
    batches: Cell<u64>,
    failed_batches: Cell<u64>,
    sync_failed: Cell<bool>,
    pub(super) worker: Rc<Worker>,
    pub(super) writer: Arc<Mutex<QueueWriter>>,
    pub(super) readers: Readers,
}

struct InFlight {
    queues: Vec<(QueueRef, i64)>,
    ticket: Ticket<(Batch, Result<(), QueueError>)>,
}

impl QueueStore {
    /// A store over what [`super::load_queues`] found.
    pub fn new(config: QueueConfig, worker: Rc<Worker>, loaded: LoadedQueues) -> Self {
        let writer = QueueWriter::new(
            config.dir.clone(),
            config.prepare.clone(),
            config.file_bytes(),
            config.descriptors_max,
        );
        let inner = Inner {
            file_units: config.file_units(),
            topics: RefCell::default(),
            next_uid: Cell::new(0),
            dirty: RefCell::default(),
            evictable: RefCell::default(),
            digest: Cell::default(),
            memory_bytes: Cell::new(0),
            unwritten_bytes: Cell::new(0),
            drifted_units: Cell::new(0),
            in_flight: RefCell::new(None),
            spare: RefCell::default(),
            last_batch: Cell::new(None),
            failure: RefCell::new(None),
            batches: Cell::new(0),
            failed_batches: Cell::new(0),
            sync_failed: Cell::new(false),
            readers: Readers::new(config.descriptors_max),
            worker,
            writer: Arc::new(Mutex::new(writer)),
            config,
        };
        let store = Self { inner: Rc::new(inner) };
        for queue in loaded.queues {
            let made = store.insert(&queue.topic, queue.queue_id, |uid, topic| {
                Queue::new(
                    uid,
                    topic,
                    queue.queue_id,
                    queue.min_offset,
                    queue.max_offset,
                    queue.end_physical,
                )
            });
            made.min_physical.set(queue.min_physical);
            store.change_digest(|digest| digest.add(made.digest()));
        }
        store
    }

    /// The queue, made in memory if it is not there: no file or directory appears before its first unit is written.
    pub fn open(&self, topic: &str, queue_id: i32) -> QueueRef {
        if let Some(queue) = self.find(topic, queue_id) {
            return queue;
        }
        self.insert(topic, queue_id, |uid, topic| Queue::new(uid, topic, queue_id, 0, 0, 0))
    }

    fn insert(
        &self,
        topic: &str,
        queue_id: i32,
        make: impl FnOnce(u32, Arc<str>) -> Queue,
    ) -> QueueRef {
        let uid = self.inner.next_uid.get();
        self.inner.next_uid.set(uid.wrapping_add(1));
        let mut topics = self.inner.topics.borrow_mut();
        let name = topics.get_key_value(topic).map(|(name, _)| Arc::clone(name));
        let name = name.unwrap_or_else(|| Arc::from(topic));
        let queue = Rc::new(make(uid, Arc::clone(&name)));
        let queues = topics.entry(name).or_default();
        let at = queues.partition_point(|known| known.queue_id() < queue_id);
        queues.insert(at, Rc::clone(&queue));
        queue
    }

    /// The queue if it is known.
    pub fn find(&self, topic: &str, queue_id: i32) -> Option<QueueRef> {
        let topics = self.inner.topics.borrow();
        let queues = topics.get(topic)?;
        let at = queues.binary_search_by_key(&queue_id, |queue| queue.queue_id()).ok()?;
        queues.get(at).cloned()
    }

    /// All known queues of a topic, by id.
    pub fn queues_of(&self, topic: &str) -> Vec<QueueRef> {
        self.inner.topics.borrow().get(topic).cloned().unwrap_or_default()
    }

    /// All known queues, in no order.
    pub fn all(&self) -> Vec<QueueRef> {
        self.inner.topics.borrow().values().flatten().cloned().collect()
    }

    /// Names of all topics that have a queue here, in no order.
    pub fn topics(&self) -> Vec<Arc<str>> {
        self.inner.topics.borrow().keys().cloned().collect()
    }

    /// Appends the unit of a record, in log order, by the record's own fields. No I/O; amortised no allocation.
    pub fn append(
        &self,
        queue: &QueueRef,
        queue_offset: i64,
        physical_offset: i64,
        size: i32,
        tags_code: i64,
    ) -> Appended {
        let inner = &*self.inner;
        let unit = Unit { physical_offset, size, tags_code };
        let mut digest = inner.digest.get();
        let appended = queue.take(queue_offset, unit, inner.file_units, &mut digest);
        match appended {
            Appended::Skipped => return appended,
            Appended::Stored(_) => {}
            Appended::Drifted(at) => {
                inner.drifted_units.set(inner.drifted_units.get() + 1);
                tracing::warn!(
                    topic = &**queue.topic(),
                    queue_id = queue.queue_id(),
                    queue_offset,
                    at,
                    physical_offset,
                    "consume queue has lost units before this record: stored at the queue's end"
                );
            }
        }
        inner.digest.set(digest);
        inner.memory_bytes.set(inner.memory_bytes.get() + UNIT_BYTES);
        inner.unwritten_bytes.set(inner.unwritten_bytes.get() + UNIT_BYTES);
        if !queue.dirty.replace(true) {
            inner.dirty.borrow_mut().push_back(Rc::clone(queue));
        }
        appended
    }

    /// Of all units appended so far: goes into a checkpoint, see [`crate::store::CheckpointInput`].
    pub fn digest(&self) -> QueueDigest {
        self.inner.digest.get()
    }

    /// Of a queue that had the digest `before`.
    pub(super) fn digest_changed(&self, queue: &QueueRef, before: QueueDigest) {
        self.change_digest(|digest| {
            digest.subtract(before);
            digest.add(queue.digest());
        });
    }

    fn change_digest(&self, change: impl FnOnce(&mut QueueDigest)) {
        let mut digest = self.inner.digest.get();
        change(&mut digest);
        self.inner.digest.set(digest);
    }

    /// Calls `visit` with the units from queue offset `from` on, at most `limit`, until it returns false. Returns false without
    /// a call when the unit at `from` is no longer in memory: then use [`QueueStore::read`]. `visit` must not append.
    pub fn recent(
        &self,
        queue: &QueueRef,
        from: i64,
        limit: usize,
        visit: impl FnMut(Unit) -> bool,
    ) -> bool {
        queue.visit(from, limit, visit)
    }

    /// Moves batches along: call it from a timer, every 100 ms or so, and whenever convenient. Never blocks.
    pub fn poll(&self) {
        self.finish_batch();
        self.evict();
        if self.inner.in_flight.borrow().is_some() {
            return;
        }
        let since = self.inner.last_batch.get().map(|last| last.elapsed());
        let due = if self.inner.failure.borrow().is_some() {
            since.is_none_or(|since| since >= RETRY_AFTER)
        } else {
            self.inner.unwritten_bytes.get() >= self.inner.config.batch_bytes_min
                || since.is_none_or(|since| since >= self.inner.config.batch_interval)
        };
        if due {
            self.start_batch();
        }
    }

    /// Writes every unit that was appended before the call. It is in the files then, not durable: see
    /// [`crate::store::write_checkpoint`].
    ///
    /// # Errors
    /// The first failed batch's. The units stay in memory and are tried again later.
    pub async fn flush(&self) -> Result<(), QueueError> {
        let mut waiting = self.unwritten();
        self.clear_failure();
        let mut pause_us = 100;
        while self.push_on(&mut waiting)? {
            glommio::timer::sleep(Duration::from_micros(pause_us)).await;
            pause_us = (pause_us * 2).min(2_000);
        }
        Ok(())
    }

    /// [`QueueStore::flush`] for a thread that may block.
    ///
    /// # Errors
    /// See [`QueueStore::flush`].
    pub fn flush_blocking(&self) -> Result<(), QueueError> {
        let mut waiting = self.unwritten();
        self.clear_failure();
        while self.push_on(&mut waiting)? {
            // An empty job after the batch: when it is done, the batch is.
            self.inner.worker.submit(|| ()).wait_blocking()?;
        }
        Ok(())
    }

    fn unwritten(&self) -> Vec<(QueueRef, i64)> {
        let mut waiting: Vec<(QueueRef, i64)> = Vec::new();
        if let Some(in_flight) = &*self.inner.in_flight.borrow() {
            waiting.extend(in_flight.queues.iter().map(|(queue, end)| (Rc::clone(queue), *end)));
        }
        let dirty = self.inner.dirty.borrow();
        waiting.extend(dirty.iter().map(|queue| (Rc::clone(queue), queue.max_offset())));
        waiting
    }

    fn clear_failure(&self) {
        *self.inner.failure.borrow_mut() = None;
    }

    /// One step of a flush. True while something of `waiting` is not written.
    fn push_on(&self, waiting: &mut Vec<(QueueRef, i64)>) -> Result<bool, QueueError> {
        self.finish_batch();
        waiting.retain(|(queue, end)| !queue.removed.get() && queue.memory.borrow().written < *end);
        if waiting.is_empty() {
            return Ok(false);
        }
        if let Some(failure) = &*self.inner.failure.borrow() {
            return Err(failure.clone());
        }
        if self.inner.in_flight.borrow().is_none() {
            self.start_batch();
        }
        Ok(true)
    }

    fn start_batch(&self) {
        let inner = &*self.inner;
        let mut dirty = inner.dirty.borrow_mut();
        if dirty.is_empty() {
            return;
        }
        let mut batch = inner.spare.take();
        batch.parts.clear();
        batch.bytes.clear();
        let mut queues = Vec::new();
        while queues.len() < inner.config.batch_queues_max
            && batch.bytes.len() < inner.config.batch_bytes_max
        {
            let Some(queue) = dirty.pop_front() else { break };
            queue.dirty.set(false);
            if queue.removed.get() {
                continue;
            }
            let room = (inner.config.batch_bytes_max - batch.bytes.len()) / UNIT_BYTES + 1;
            let memory = queue.memory.borrow();
            let skip = memory.written_len();
            let count = (memory.units.len() - skip).min(room);
            for raw in memory.units.range(skip..skip + count) {
                batch.bytes.extend_from_slice(raw);
            }
            let first = memory.written;
            batch.parts.push(BatchPart {
                uid: queue.uid,
                topic: Arc::clone(queue.topic()),
                queue_id: queue.queue_id(),
                first,
                blank_from: queue.blank_from.get(),
                count,
            });
            drop(memory);
            queues.push((queue, first + count as i64));
        }
        drop(dirty);
        let writer = Arc::clone(&inner.writer);
        let ticket = inner.worker.submit(move || {
            let result = lock_writer(&writer).write(&batch);
            (batch, result)
        });
        inner.last_batch.set(Some(Instant::now()));
        *inner.in_flight.borrow_mut() = Some(InFlight { queues, ticket });
    }

    fn finish_batch(&self) {
        let inner = &*self.inner;
        let done = inner.in_flight.borrow().as_ref().and_then(|batch| batch.ticket.poll());
        let Some(done) = done else { return };
        let Some(in_flight) = inner.in_flight.borrow_mut().take() else { return };
        let result = match done {
            Ok((batch, result)) => {
                *inner.spare.borrow_mut() = batch;
                result
            }
            Err(WorkerGone) => Err(QueueError::Worker(WorkerGone)),
        };
        match &result {
            Ok(()) => {
                inner.batches.set(inner.batches.get() + 1);
                self.clear_failure();
            }
            Err(error) => {
                inner.failed_batches.set(inner.failed_batches.get() + 1);
                tracing::error!(%error, "consume queue units are kept in memory and written again in 1 s");
                *inner.failure.borrow_mut() = Some(error.clone());
            }
        }
        for (queue, end) in in_flight.queues {
            if queue.removed.get() {
                continue;
            }
            if result.is_ok() {
                self.written(&queue, end);
            }
            if queue.max_offset() > queue.memory.borrow().written && !queue.dirty.replace(true) {
                inner.dirty.borrow_mut().push_back(queue);
            }
        }
    }

    fn written(&self, queue: &QueueRef, end: i64) {
        let inner = &*self.inner;
        let mut memory = queue.memory.borrow_mut();
        let bytes = usize::try_from(end - memory.written).unwrap_or(0) * UNIT_BYTES;
        memory.written = end;
        queue.blank_from.set(-1);
        inner.unwritten_bytes.set(inner.unwritten_bytes.get().saturating_sub(bytes));
        if !queue.evictable.replace(true) {
            inner.evictable.borrow_mut().push_back(Rc::clone(queue));
        }
    }

    /// Gives back written units until the budget holds, from the queues that have waited longest for their turn.
    fn evict(&self) {
        let inner = &*self.inner;
        let mut evictable = inner.evictable.borrow_mut();
        let budget = inner.config.memory_bytes_max;
        while inner.memory_bytes.get() - inner.unwritten_bytes.get() > budget {
            let Some(queue) = evictable.pop_front() else { break };
            let mut memory = queue.memory.borrow_mut();
            let written = memory.written_len();
            let count = if written > EVICT_WHOLE_UNITS { written / 2 } else { written };
            let bytes = memory.forget(count);
            inner.memory_bytes.set(inner.memory_bytes.get().saturating_sub(bytes));
            let more = memory.written_len() > 0;
            drop(memory);
            queue.evictable.set(more);
            if more {
                evictable.push_back(queue);
            }
        }
    }

    /// Forgets a topic's queues and removes their directory. Handles to them take nothing from now on; the topic starts over
    /// at queue offset 0 when it is opened again. Write a checkpoint soon after: a start from one before this call misses the
    /// topic's units and redoes the whole log.
    ///
    /// # Errors
    /// [`QueueError`] if the directory cannot be removed; the queues are forgotten all the same.
    pub async fn remove_topic(&self, topic: &str) -> Result<(), QueueError> {
        let inner = &*self.inner;
        let Some((topic, queues)) = inner.topics.borrow_mut().remove_entry(topic) else {
            return Ok(());
        };
        let uids: Vec<u32> = queues.iter().map(|queue| queue.uid).collect();
        queues.iter().for_each(|queue| self.forget(queue));
        let writer = Arc::clone(&inner.writer);
        inner.worker.run(move || lock_writer(&writer).remove_topic(&topic, &uids)).await?
    }

    /// Forgets one queue and removes its files: it begins anew at whatever queue offset comes next.
    ///
    /// # Errors
    /// [`QueueError`] if files cannot be removed.
    pub async fn remove_queue(&self, topic: &str, queue_id: i32) -> Result<(), QueueError> {
        let inner = &*self.inner;
        let Some(queue) = self.find(topic, queue_id) else { return Ok(()) };
        if let Some(queues) = inner.topics.borrow_mut().get_mut(topic) {
            queues.retain(|known| known.uid != queue.uid);
        }
        self.forget(&queue);
        let writer = Arc::clone(&inner.writer);
        let (topic, uid) = (Arc::clone(queue.topic()), queue.uid);
        inner.worker.run(move || lock_writer(&writer).remove_queue(&topic, queue_id, uid)).await?
    }

    fn forget(&self, queue: &QueueRef) {
        let inner = &*self.inner;
        self.change_digest(|digest| digest.subtract(queue.digest()));
        let (bytes, unwritten) = queue.remove();
        inner.memory_bytes.set(inner.memory_bytes.get().saturating_sub(bytes));
        inner.unwritten_bytes.set(inner.unwritten_bytes.get().saturating_sub(unwritten));
        inner.readers.forget(queue.uid, None);
    }

    /// After the redo: zeroes or removes what of `kept` it did not write again, since such units lead nowhere. Returns the number of
    /// queues that had some.
    ///
    /// # Errors
    /// [`QueueError`]; no checkpoint may be written then.
    pub async fn cut_kept(&self, kept: Vec<KeptUnits>) -> Result<usize, QueueError> {
        let left: Vec<(KeptUnits, i64)> = kept
            .into_iter()
            .map(|kept| {
                let end =
                    self.find(&kept.topic, kept.queue_id).map_or(0, |queue| queue.max_offset());
                (kept, end)
            })
            .filter(|(kept, end)| *end < kept.end)
            .collect();
        if left.is_empty() {
            return Ok(0);
        }
        // What is still to be written must not meet a file that is being cut.
        self.flush().await?;
        let (count, config) = (left.len(), self.inner.config.clone());
        let writer = Arc::clone(&self.inner.writer);
        let job = move || -> Result<(), QueueError> {
            lock_writer(&writer).forget_all();
            for (kept, end) in left {
                cut_files(&config, &kept, end).map_err(|error| {
                    QueueError::io(
                        "cut",
                        &queue_dir(&config.dir, &kept.topic, kept.queue_id),
                        &error,
                    )
                })?;
            }
            Ok(())
        };
        self.inner.worker.run(job).await??;
        Ok(count)
    }

    /// Deletes files whose records are all gone from the log and raises the queues' first offsets to records that are not.
    /// Call after the log's beginning has moved to `log_min`.
    ///
    /// # Errors
    /// The first [`QueueError`]; the queues before it are done.
    pub async fn trim(&self, log_min: u64) -> Result<TrimReport, QueueError> {
        super::trim::trim(self, i64::try_from(log_min).unwrap_or(i64::MAX)).await
    }

    /// The queue offset of the message stored nearest to `timestamp` (milliseconds since 1970): the earlier one on a tie, the
    /// first or last one when all are on one side. `store_time(physical_offset, size)` reads a record's store timestamp.
    ///
    /// # Errors
    /// [`QueueError`] if units cannot be read.
    pub async fn offset_by_time(
        &self,
        queue: &QueueRef,
        timestamp: i64,
        log_min: u64,
        store_time: impl AsyncFn(i64, i32) -> Option<i64>,
    ) -> Result<i64, QueueError> {
        let log_min = i64::try_from(log_min).unwrap_or(i64::MAX);
        super::time::offset_by_time(self, queue, timestamp, log_min, store_time).await
    }

    /// Units from queue offset `from` on, at most `limit`, from memory or file. Fewer than asked at the end of a file
    /// or where memory begins; none below the queue's first or at its last offset, or if its file is gone.
    ///
    /// # Errors
    /// [`QueueError`] if the file cannot be read.
    pub async fn read(
        &self,
        queue: &QueueRef,
        from: i64,
        limit: usize,
    ) -> Result<Vec<Unit>, QueueError> {
        super::read::read(self, queue, from, limit).await
    }

    /// Largest end of a record over all queues: where a stock broker starts to dispatch after a clean stop; 0 if all are empty.
    pub fn max_end_physical(&self) -> i64 {
        let topics = self.inner.topics.borrow();
        topics.values().flatten().map(|queue| queue.end_physical()).max().unwrap_or(0)
    }

    /// Bytes of units that are not in a file yet. Grows without bound if the disk fails: refuse writes above a limit.
    pub fn unwritten_bytes(&self) -> usize {
        self.inner.unwritten_bytes.get()
    }

    /// Why the last batch failed, while it does.
    pub fn failure(&self) -> Option<QueueError> {
        self.inner.failure.borrow().clone()
    }

    /// Whether a sync failed: no later checkpoint may claim anything.
    pub fn sync_failed(&self) -> bool {
        self.inner.sync_failed.get()
    }

    /// Remembers for good that a sync failed.
    pub fn set_sync_failed(&self) {
        self.inner.sync_failed.set(true);
    }

    /// Counters.
    pub fn stats(&self) -> QueueStats {
        let inner = &*self.inner;
        QueueStats {
            queues: inner.topics.borrow().values().map(Vec::len).sum(),
            memory_bytes: inner.memory_bytes.get(),
            unwritten_bytes: inner.unwritten_bytes.get(),
            drifted_units: inner.drifted_units.get(),
            batches: inner.batches.get(),
            failed_batches: inner.failed_batches.get(),
        }
    }
}

pub(super) fn lock_writer(writer: &Mutex<QueueWriter>) -> MutexGuard<'_, QueueWriter> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}
