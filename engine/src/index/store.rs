//! The index of a shard: puts, batches, rolls, queries.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::IndexError;
use super::core::{CurrentFile, Put};
use super::header::{Header, Shape};
use super::load::{FullFile, IndexFileMark, LoadedIndex};
use super::name::next_name;
use super::query::{FileQuery, IndexQuery, Wanted, query_files};
use super::writer::{HeaderSave, Job};
use crate::store::{StoreLayout, Ticket, Worker, WorkerGone};

/// After a failed job the next try comes this much later.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Sizes and limits of the index of one shard.
#[derive(Debug, Clone)]
pub struct IndexConfig {
    /// `index` of the store.
    pub dir: PathBuf,
    /// Where files are made before they are renamed in; on the same file system.
    pub prepare: PathBuf,
    /// Hash slots of a file (stock's `maxHashSlotNum`). Four bytes of memory each, as they get used.
    pub slots: u32,
    /// A file takes one entry less than this (stock's `maxIndexNum`).
    pub entries: u32,
    /// Entries go to the worker when this many bytes have gathered...
    pub batch_bytes_min: usize,
    /// ...or this long after the last time.
    pub batch_interval: Duration,
}

impl IndexConfig {
    /// Stock's table sizes and our defaults.
    pub fn new(layout: &StoreLayout) -> Self {
        Self {
            dir: layout.index(),
            prepare: layout.prepare_derived(),
            slots: 5_000_000,
            entries: 20_000_000,
            batch_bytes_min: 1024 * 1024,
            batch_interval: Duration::from_secs(1),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape { slots: self.slots.max(1), entries: self.entries.max(2) }
    }
}

/// Counters of an [`Index`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Files, the newest included.
    pub files: usize,
    /// Entries in the newest file.
    pub entries: u32,
    /// Bytes of entries that are not in a file yet.
    pub unwritten_bytes: usize,
    /// Jobs that failed, and were or will be tried again.
    pub failed_jobs: u64,
}

/// The key index of one shard. Lives on its reactor; cheap to clone.
#[derive(Clone)]
pub struct Index {
    inner: Rc<Inner>,
}

struct Inner {
    config: IndexConfig,
    shape: Shape,
    worker: Rc<Worker>,
    full: RefCell<Vec<FullFile>>,
    current: RefCell<Option<Current>>,
    /// Files that were filled and not yet handed to the worker.
    filled: RefCell<VecDeque<Current>>,
    jobs: RefCell<VecDeque<PendingJob>>,
    next_job: Cell<u64>,
    spare: RefCell<Vec<u8>>,
    last_batch: Cell<Option<Instant>>,
    rolled_timestamp: Cell<i64>,
    failure: RefCell<Option<IndexError>>,
    failed_jobs: Cell<u64>,
}

struct Current {
    /// Named when its first entries are handed over.
    path: Option<PathBuf>,
    /// The header it began with: what is written when the file is made.
    initial: Header,
    file: CurrentFile,
}

struct PendingJob {
    id: u64,
    bytes: usize,
    /// End time of a file that this job completes.
    completes: Option<i64>,
    state: JobState,
}

enum JobState {
    Running(Ticket<(Job, Result<(), IndexError>)>),
    Failed(Job, Instant),
    Done,
}

impl Index {
    /// An index over what [`super::load_index`] found.
    pub fn new(config: IndexConfig, worker: Rc<Worker>, loaded: LoadedIndex) -> Self {
        let rolled = loaded.full.last().map_or(0, |file| file.header.end_timestamp);
        let current = loaded.current.map(|(path, file)| Current {
            path: Some(path),
            initial: file.header,
            file,
        });
        let inner = Inner {
            shape: config.shape(),
            config,
            worker,
            full: RefCell::new(loaded.full),
            current: RefCell::new(current),
            filled: RefCell::default(),
            jobs: RefCell::default(),
            next_job: Cell::new(0),
            spare: RefCell::default(),
            last_batch: Cell::new(None),
            rolled_timestamp: Cell::new(rolled),
            failure: RefCell::new(None),
            failed_jobs: Cell::new(0),
        };
        Self { inner: Rc::new(inner) }
    }

    /// Puts a key of a record, in log order: `key_hash` as `ringmq_net::record::index_hash` makes it, the record's physical offset
    /// and store timestamp. A record before the last indexed one is skipped. No I/O; amortised no allocation but for a new file's
    /// slot table.
    pub fn put(&self, key_hash: i32, physical_offset: i64, store_timestamp: i64) {
        let inner = &*self.inner;
        let mut current = inner.current.borrow_mut();
        let file = current.get_or_insert_with(|| self.following(None));
        if file.file.put(key_hash, physical_offset, store_timestamp) != Put::Full {
            return;
        }
        let next = self.following(Some(file.file.header));
        let filled = std::mem::replace(file, next);
        file.file.put(key_hash, physical_offset, store_timestamp);
        inner.filled.borrow_mut().push_back(filled);
    }

    fn following(&self, last: Option<Header>) -> Current {
        let last = last.or_else(|| self.inner.full.borrow().last().map(|file| file.header));
        let file = CurrentFile::following(self.inner.shape, last.as_ref());
        Current { path: None, initial: file.header, file }
    }

    /// Moves entries along: call it from a timer, every 100 ms or so. Never blocks.
    pub fn poll(&self) {
        self.finish_jobs();
        let inner = &*self.inner;
        let pending = inner.current.borrow().as_ref().map_or(0, |file| file.file.pending.len());
        let waited =
            inner.last_batch.get().is_none_or(|last| last.elapsed() >= inner.config.batch_interval);
        let due = pending >= inner.config.batch_bytes_min || (pending > 0 && waited);
        if due || !inner.filled.borrow().is_empty() {
            self.start_jobs();
        }
    }

    /// Writes every entry that was put before the call. They are in the file then, not durable. Returns the header that may be
    /// written once they are; `None` if there is no entry.
    ///
    /// # Errors
    /// The first failed job's. The entries stay in memory and are tried again later.
    pub async fn flush(&self) -> Result<Option<HeaderSave>, IndexError> {
        Ok(self.flush_for_mark().await?.0)
    }

    /// [`Index::flush`], with what a mark may say of the files once they are durable.
    ///
    /// # Errors
    /// See [`Index::flush`].
    pub async fn flush_for_mark(
        &self,
    ) -> Result<(Option<HeaderSave>, Vec<IndexFileMark>), IndexError> {
        let (header, last) = self.begin_flush();
        let files = self.file_marks();
        self.jobs_done(last).await?;
        Ok((header, files))
    }

    /// Waits for the jobs numbered below `last`.
    async fn jobs_done(&self, last: u64) -> Result<(), IndexError> {
        let mut pause_us = 100;
        while self.pushes(last)? {
            glommio::timer::sleep(Duration::from_micros(pause_us)).await;
            pause_us = (pause_us * 2).min(2_000);
        }
        Ok(())
    }

    /// The files that have a name and an entry, as they are now, oldest first.
    fn file_marks(&self) -> Vec<IndexFileMark> {
        let inner = &*self.inner;
        let mut marks: Vec<IndexFileMark> =
            inner.full.borrow().iter().map(FullFile::mark).collect();
        if let Some(current) = &*inner.current.borrow()
            && let Some(path) = &current.path
            && current.file.header.next_entry > 1
        {
            marks.push(FullFile { path: path.clone(), header: current.file.header }.mark());
        }
        marks
    }

    /// [`Index::flush`] for a thread that may block.
    ///
    /// # Errors
    /// See [`Index::flush`].
    pub fn flush_blocking(&self) -> Result<Option<HeaderSave>, IndexError> {
        let (header, last) = self.begin_flush();
        while self.pushes(last)? {
            // An empty job behind ours: when it is done, ours are.
            self.inner.worker.submit(|| ()).wait_blocking()?;
        }
        Ok(header)
    }

    fn begin_flush(&self) -> (Option<HeaderSave>, u64) {
        let inner = &*self.inner;
        *inner.failure.borrow_mut() = None;
        self.finish_jobs();
        self.retry_failed(true);
        self.start_jobs();
        let current = inner.current.borrow();
        let header = current.as_ref().and_then(|current| {
            let path = current.path.clone()?;
            Some(HeaderSave { path, header: current.file.header })
        });
        (header, inner.next_job.get())
    }

    /// Whether a job numbered below `last` is not done.
    fn pushes(&self, last: u64) -> Result<bool, IndexError> {
        self.finish_jobs();
        let inner = &*self.inner;
        if !inner.jobs.borrow().iter().any(|job| job.id < last) {
            return Ok(false);
        }
        match &*inner.failure.borrow() {
            Some(failure) => Err(failure.clone()),
            None => Ok(true),
        }
    }

    /// Hands filled files and the newest file's entries to the worker.
    fn start_jobs(&self) {
        let inner = &*self.inner;
        loop {
            let Some(filled) = inner.filled.borrow_mut().pop_front() else { break };
            self.submit(self.finishing_job(filled));
        }
        let mut current = inner.current.borrow_mut();
        let Some(current) = current.as_mut().filter(|current| !current.file.pending.is_empty())
        else {
            return;
        };
        let path = self.path_of(current);
        let (first, entries) = current.file.take_pending(inner.spare.take());
        self.submit(Job {
            path,
            prepare: inner.config.prepare.clone(),
            initial: current.initial,
            shape: inner.shape,
            first,
            entries,
            finish: None,
        });
        inner.last_batch.set(Some(Instant::now()));
    }

    /// Writes what a file that takes no more entries still lacks, its slots and its header.
    fn finishing_job(&self, mut last: Current) -> Job {
        let inner = &*self.inner;
        let path = self.path_of(&mut last);
        let header = last.file.header;
        let (first, entries) = last.file.take_pending(Vec::new());
        inner.full.borrow_mut().push(FullFile { path: path.clone(), header });
        Job {
            path,
            prepare: inner.config.prepare.clone(),
            initial: last.initial,
            shape: inner.shape,
            first,
            entries,
            finish: Some((header, last.file.slots)),
        }
    }

    fn path_of(&self, current: &mut Current) -> PathBuf {
        let inner = &*self.inner;
        let path = current.path.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let full = inner.full.borrow();
            let last = full.last().and_then(|file| file.path.file_name()?.to_str());
            inner.config.dir.join(next_name(now.as_millis() as i64, last))
        });
        path.clone()
    }

    fn submit(&self, job: Job) {
        let inner = &*self.inner;
        let id = inner.next_job.get();
        inner.next_job.set(id + 1);
        let pending = PendingJob {
            id,
            bytes: job.entries.len(),
            completes: job.finish.as_ref().map(|(header, _)| header.end_timestamp),
            state: self.running(job),
        };
        inner.jobs.borrow_mut().push_back(pending);
    }

    fn running(&self, job: Job) -> JobState {
        JobState::Running(self.inner.worker.submit(move || {
            let result = job.run();
            (job, result)
        }))
    }

    fn finish_jobs(&self) {
        self.retry_failed(false);
        let inner = &*self.inner;
        let mut jobs = inner.jobs.borrow_mut();
        for job in &mut *jobs {
            let JobState::Running(ticket) = &job.state else { continue };
            match ticket.poll() {
                None => break,
                Some(Ok((done, Ok(())))) => {
                    job.bytes = 0;
                    if let Some(end) = job.completes {
                        inner.rolled_timestamp.set(inner.rolled_timestamp.get().max(end));
                    }
                    *inner.spare.borrow_mut() = done.entries;
                    job.state = JobState::Done;
                    *inner.failure.borrow_mut() = None;
                }
                Some(Ok((failed, Err(error)))) => {
                    tracing::error!(%error, "index entries are kept in memory and written again in 1 s");
                    inner.failed_jobs.set(inner.failed_jobs.get() + 1);
                    *inner.failure.borrow_mut() = Some(error);
                    job.state = JobState::Failed(failed, Instant::now());
                }
                Some(Err(WorkerGone)) => {
                    *inner.failure.borrow_mut() = Some(WorkerGone.into());
                    break;
                }
            }
        }
        jobs.retain(|job| !matches!(job.state, JobState::Done));
    }

    fn retry_failed(&self, now: bool) {
        for job in &mut *self.inner.jobs.borrow_mut() {
            let due =
                matches!(&job.state, JobState::Failed(_, at) if now || at.elapsed() >= RETRY_AFTER);
            if !due {
                continue;
            }
            if let JobState::Failed(failed, _) = std::mem::replace(&mut job.state, JobState::Done) {
                job.state = self.running(failed);
            }
        }
    }

    /// Candidates for a key between two store timestamps, at most `max` of them: newest file first, within a file newest entry
    /// first, by stock's rules (4.9.8): an entry's time is known to the second, rounded down. All that was put before the call is
    /// found, whatever is put while it runs.
    ///
    /// # Errors
    /// [`IndexError`] if a file cannot be read, or entries put before cannot be written.
    pub async fn query(
        &self,
        key_hash: i32,
        max: usize,
        begin: i64,
        end: i64,
    ) -> Result<IndexQuery, IndexError> {
        let inner = &*self.inner;
        let (_, last) = self.begin_flush();
        // Before anything else is put: a chain that begins with an entry that no job has yet looks in the file as if it ended there.
        let files = self.file_queries(key_hash);
        self.jobs_done(last).await?;
        let newest = files.first().map(|file| file.header);
        let shape = inner.shape;
        let wanted = Wanted { hash: key_hash, max, begin, end };
        let offsets = inner.worker.run(move || query_files(&files, shape, wanted)).await??;
        Ok(IndexQuery {
            offsets,
            last_timestamp: newest.map_or(0, |header| header.end_timestamp),
            last_physical: newest.map_or(0, |header| header.end_physical),
        })
    }

    /// All files with what a query must know of them, newest first: as they are once the jobs of a flush that begins at this moment
    /// are done.
    pub(super) fn file_queries(&self, key_hash: i32) -> Vec<FileQuery> {
        let inner = &*self.inner;
        let mut files = Vec::new();
        if let Some(current) = &*inner.current.borrow()
            && let Some(path) = &current.path
        {
            files.push(FileQuery {
                path: path.clone(),
                header: current.file.header,
                head: Some(current.file.head(key_hash)),
            });
        }
        for file in inner.full.borrow().iter().rev() {
            files.push(FileQuery { path: file.path.clone(), header: file.header, head: None });
        }
        files
    }

    /// Deletes files, never the newest, whose records are all gone from the log, which begins at `log_min`. Returns how many.
    ///
    /// # Errors
    /// [`IndexError`]; the file is tried again next time.
    pub async fn trim(&self, log_min: u64) -> Result<usize, IndexError> {
        let inner = &*self.inner;
        let log_min = i64::try_from(log_min).unwrap_or(i64::MAX);
        let mut trimmed = 0;
        loop {
            let path = {
                let full = inner.full.borrow();
                let keep = usize::from(inner.current.borrow().is_none());
                match full.first() {
                    Some(file) if full.len() > keep && file.header.end_physical < log_min => {
                        file.path.clone()
                    }
                    _ => return Ok(trimmed),
                }
            };
            let removing = path.clone();
            let removed = inner.worker.run(move || std::fs::remove_file(removing)).await?;
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(IndexError::io("remove", &path, &error));
                }
                _ => {}
            }
            inner.full.borrow_mut().retain(|file| file.path != path);
            trimmed += 1;
        }
    }

    /// The clean end: writes and syncs entries, slots and header of the newest file. The index takes no further key of
    /// this store: put after it begins a new file.
    ///
    /// # Errors
    /// [`IndexError`]; the file is then rebuilt at the next start.
    pub async fn close(&self) -> Result<(), IndexError> {
        self.flush().await?;
        match self.closing_job() {
            Some(job) => self.inner.worker.run(move || job.run()).await?,
            None => Ok(()),
        }
    }

    /// [`Index::close`] for a thread that may block.
    ///
    /// # Errors
    /// See [`Index::close`].
    pub fn close_blocking(&self) -> Result<(), IndexError> {
        self.flush_blocking()?;
        match self.closing_job() {
            Some(job) => self.inner.worker.submit(move || job.run()).wait_blocking()?,
            None => Ok(()),
        }
    }

    fn closing_job(&self) -> Option<Job> {
        let current = self.inner.current.borrow_mut().take()?;
        if current.path.is_none() && current.file.header.next_entry <= 1 {
            return None;
        }
        Some(self.finishing_job(current))
    }

    /// End time of the newest file that is full and durable: the checkpoint's index timestamp.
    pub fn rolled_timestamp(&self) -> i64 {
        self.inner.rolled_timestamp.get()
    }

    /// Why the last job failed, while it does.
    pub fn failure(&self) -> Option<IndexError> {
        self.inner.failure.borrow().clone()
    }

    /// Counters.
    pub fn stats(&self) -> IndexStats {
        let inner = &*self.inner;
        let current = inner.current.borrow();
        let filled = inner.filled.borrow();
        let pending: usize = filled.iter().map(|file| file.file.pending.len()).sum::<usize>()
            + current.as_ref().map_or(0, |file| file.file.pending.len());
        let handed: usize = inner.jobs.borrow().iter().map(|job| job.bytes).sum();
        IndexStats {
            files: inner.full.borrow().len() + filled.len() + usize::from(current.is_some()),
            entries: current.as_ref().map_or(0, |file| file.file.header.next_entry - 1),
            unwritten_bytes: pending + handed,
            failed_jobs: inner.failed_jobs.get(),
        }
    }
}
