//! What the housekeeping thread does: jobs as they come, and between them one step of whatever is due.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use crc32c::crc32c;

use super::{
    error::LogError,
    faults::FileOp,
    files::{UNIT_BYTES, ZERO_STEP_MAX, Zeros},
    housekeeper::{Job, Mailbox, Outcome, Report, Settings, Shared},
    segments::{parse_segment_name, segment_name, set_up},
    sidecar::{self, CrcBatch},
};

/// For whoever looks into the directory.
const VISIT_NOTE: &[u8] = b"A stock broker was on this store: what it made worthless is being forgotten. Don't remove this file.\n";
/// How long after a failure the reactor is told to try again.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes by which a file to be removed is shortened at a time: a large unlink blocks the file system's journal.
const REMOVE_STEP_BYTES: u64 = 64 << 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);
/// Bytes kept free beside a segment to be made, for consume queues, index and configuration.
const SPACE_RESERVE_BYTES: u64 = 16 << 20;
/// Up to this rest, zeroing follows a log that is fast.
const ZERO_REST_FAST: u32 = 1;
/// Longest pause between two steps of unhurried zeroing.
const ZERO_PAUSE_MAX: Duration = Duration::from_millis(50);

/// A thread started by a pinned reactor inherits its one core; the housekeeper must not compete for it.
pub(crate) fn leave_the_reactors_core() {
    // SAFETY: both calls only read or write the set; an all-zero set is a valid value.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        // The main thread's cores are what the process was given.
        if libc::sched_getaffinity(libc::getpid(), size, &mut set) == 0 {
            libc::sched_setaffinity(0, size, &set);
        }
    }
}

struct ZeroWork {
    id: u64,
    path: PathBuf,
    file: File,
    at: u64,
    to: u64,
    rest: u32,
    due: Instant,
}

struct Trash {
    path: PathBuf,
    file: File,
    left: u64,
}

pub(crate) struct Worker {
    settings: Settings,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    inbox: Receiver<Job>,
    zeros: Zeros,
    zero: Option<ZeroWork>,
    trash: VecDeque<Trash>,
    trash_due: Instant,
    rebuilds: VecDeque<Rebuild>,
    retry_due: Option<Instant>,
    /// The device may be able to zero by itself; off after the first refusal.
    device_zeroes: bool,
}

struct Rebuild {
    start: u64,
    at: u64,
    due: Instant,
}

impl Worker {
    pub(crate) fn new(
        settings: Settings,
        mailbox: Arc<Mailbox>,
        shared: Arc<Shared>,
        inbox: Receiver<Job>,
    ) -> Self {
        Worker {
            mailbox,
            shared,
            inbox,
            zeros: Zeros::new(),
            zero: None,
            trash: VecDeque::new(),
            trash_due: Instant::now(),
            rebuilds: VecDeque::new(),
            retry_due: None,
            device_zeroes: settings.zero_ahead,
            settings,
        }
    }

    /// Until told to stop, or until the log is gone.
    pub(crate) fn run(&mut self) {
        loop {
            let job = match self.next_due() {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => self.inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match job {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(job) => self.job(job),
                Err(RecvTimeoutError::Timeout) => self.step(),
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let zero = self.zero.as_ref().map(|z| {
            if self.shared.zero_urgent.load(Ordering::Relaxed) { Instant::now() } else { z.due }
        });
        let trash = (!self.trash.is_empty()).then_some(self.trash_due);
        let rebuild = self.rebuilds.front().map(|r| r.due);
        [zero, trash, rebuild, self.retry_due].into_iter().flatten().min()
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::SetUp { id } => {
                let s = &self.settings;
                let result = set_up(&s.files, &s.layout, s.segment_bytes, s.allow_buffered);
                if let Ok(found) = &result {
                    for path in &found.trash {
                        // What can't be opened now is tried again at the next start.
                        let _ = self.discard(path.clone());
                    }
                }
                self.done(id, result.map(|found| Outcome::Found(Box::new(found))));
            }
            Job::Prepare { start } => {
                let result = self.prepare(start);
                self.retry_after(result.is_err());
                self.mailbox.put(Report::Prepared { start, result });
            }
            Job::Zero { id, start, from, to, rest } => self.begin_zero(id, start, from, to, rest),
            Job::ZeroNow { id, start, from, to, head } => {
                let result = self.zero_now(start, from, to, &head);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::Save { id, bytes } => {
                let s = &self.settings;
                let result = s.files.replace(&s.layout.state, &bytes);
                self.retry_after(result.is_err());
                self.mailbox.put(Report::Saved { id, result });
            }
            Job::SaveNow { id, bytes } => {
                let s = &self.settings;
                let result = s.files.replace(&s.layout.state, &bytes);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::NoteVisit { id } => {
                let s = &self.settings;
                let result = s.files.replace(&s.layout.visited, VISIT_NOTE);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::SettleVisit { id } => {
                let s = &self.settings;
                let gone = match s.files.unlink(&s.layout.visited) {
                    Err(LogError::Io { source, .. })
                        if source.kind() == io::ErrorKind::NotFound =>
                    {
                        Ok(())
                    }
                    other => other,
                };
                let result = gone.and_then(|()| s.files.sync_dir(&s.layout.ringmq));
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::SyncSegments { id, starts } => {
                let result = self.sync_segments(&starts);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::Delete { id, start } => {
                let result = self.delete(start);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::Crc(batch) => {
                // A failure leaves the entries absent: they are rebuilt.
                let _ = self.write_crcs(&batch);
                self.shared.crc_jobs.fetch_sub(1, Ordering::Relaxed);
            }
            Job::CutCrc { id, from } => {
                let result = self.cut_crcs(from);
                self.done(id, result.map(|()| Outcome::Nothing));
            }
            Job::RebuildCrcs { starts } => {
                self.rebuilds.extend(starts.into_iter().map(|start| Rebuild {
                    start,
                    at: 0,
                    due: Instant::now(),
                }));
            }
            Job::Space { id } => {
                let s = &self.settings;
                let result = s.files.space(&s.layout.commitlog);
                self.done(id, result.map(Outcome::Space));
            }
            Job::RetryLater => self.retry_after(true),
            Job::Nudge => self.shared.nudged.store(false, Ordering::Relaxed),
            Job::Stop => {}
        }
    }

    /// One step of whatever is due.
    fn step(&mut self) {
        let now = Instant::now();
        if self.retry_due.is_some_and(|due| due <= now) {
            self.retry_due = None;
            self.mailbox.put(Report::Retry);
        }
        let urgent = self.shared.zero_urgent.load(Ordering::Relaxed);
        if self.zero.as_ref().is_some_and(|z| urgent || z.due <= now) {
            self.zero_step(urgent);
        } else if !self.trash.is_empty() && self.trash_due <= now {
            self.trash_step();
        } else if self.rebuilds.front().is_some_and(|r| r.due <= now) {
            self.rebuild_step();
        }
    }

    fn done(&self, id: u64, result: Result<Outcome, LogError>) {
        self.mailbox.put(Report::Done { id, result });
    }

    fn retry_after(&mut self, failed: bool) {
        if failed {
            self.retry_due.get_or_insert(Instant::now() + RETRY);
        }
    }

    // ---- segments ----

    /// Makes a segment of full length with its first block written, durable under its name. Returns how many of its
    /// first bytes are durable zeros that need no allocation any more.
    fn prepare(&mut self, start: u64) -> Result<u64, LogError> {
        let s = &self.settings;
        let bytes = s.segment_bytes;
        // Checked first, so that a full disk isn't filled to the last byte and emptied again at each try.
        if s.files.space(&s.layout.commitlog)?.available < bytes + SPACE_RESERVE_BYTES {
            return Err(LogError::io(
                FileOp::Allocate.verb(),
                &s.layout.segment(start),
                0,
                io::Error::from_raw_os_error(libc::ENOSPC),
            ));
        }
        let tmp = s.layout.prepare.join(segment_name(start));
        let made = self.fill_segment(&tmp);
        let s = &self.settings;
        let zeroed = match made {
            Ok(zeroed) => zeroed,
            Err(e) => {
                // Give back the blocks; the next try starts afresh.
                let _ = s.files.unlink(&tmp);
                return Err(e);
            }
        };
        s.files.rename(&tmp, &s.layout.segment(start))?;
        s.files.sync_dir(&s.layout.commitlog)?;
        s.files.sync_dir(&s.layout.prepare)?;
        Ok(zeroed)
    }

    fn fill_segment(&mut self, tmp: &Path) -> Result<u64, LogError> {
        let bytes = self.settings.segment_bytes;
        let files = self.settings.files.clone();
        drop(files.create(tmp)?);
        let file = files.open_direct_or_plain(tmp)?;
        files.allocate(&file, tmp, bytes)?;
        let mut zeroed = UNIT_BYTES;
        if self.device_zeroes {
            self.device_zeroes = files.device_zero(&file, tmp, 0, bytes)?;
            if self.device_zeroes {
                zeroed = bytes;
            }
        }
        files.write_zeros(&file, tmp, 0, UNIT_BYTES, &self.zeros)?;
        files.sync_all(&file, tmp)?;
        Ok(zeroed)
    }

    fn sync_segments(&self, starts: &[u64]) -> Result<(), LogError> {
        let s = &self.settings;
        for &start in starts {
            let path = s.layout.segment(start);
            let file = s.files.open_direct_or_plain(&path)?;
            s.files.sync_all(&file, &path)?;
        }
        s.files.sync_dir(&s.layout.commitlog)
    }

    /// Moves a segment out of the log at once; its blocks are freed step by step. Once it is moved it is gone, whatever fails
    /// then: a crash may bring it back, and the next start finds what is left in `prepare/`.
    fn delete(&mut self, start: u64) -> Result<(), LogError> {
        let s = &self.settings;
        let path = s.layout.segment(start);
        let trash = s.layout.prepare.join(format!("{}.deleted", segment_name(start)));
        s.files.rename(&path, &trash)?;
        let synced = s.files.sync_dir(&s.layout.commitlog);
        let _ = s.files.unlink(&sidecar::sidecar_path(&s.layout.crc, start));
        if let Err(error) = synced.and_then(|()| self.discard(trash)) {
            tracing::warn!(
                "segment {start:020} is deleted, its space freed at the next start: {error}"
            );
        }
        Ok(())
    }

    fn discard(&mut self, path: PathBuf) -> Result<(), LogError> {
        let s = &self.settings;
        let file = s
            .files
            .seam
            .run(FileOp::Open, &path, 0, 0, || OpenOptions::new().write(true).open(&path))?;
        let left = file.metadata().map(|m| m.len()).unwrap_or(0);
        self.trash.push_back(Trash { path, file, left });
        Ok(())
    }

    fn trash_step(&mut self) {
        self.trash_due = Instant::now() + REMOVE_PAUSE;
        let Some(trash) = self.trash.front_mut() else {
            return;
        };
        let files = &self.settings.files;
        trash.left = trash.left.saturating_sub(REMOVE_STEP_BYTES);
        let shortened = files.truncate(&trash.file, &trash.path, trash.left);
        if trash.left == 0 || shortened.is_err() {
            // A failure leaves the file for the next start.
            let _ = files.unlink(&trash.path);
            self.trash.pop_front();
        }
    }

    // ---- zeroing ----

    fn begin_zero(&mut self, id: u64, start: u64, from: u64, to: u64, rest: u32) {
        let path = self.settings.layout.segment(start);
        match self.settings.files.open_direct_or_plain(&path) {
            Ok(file) => {
                self.zero =
                    Some(ZeroWork { id, path, file, at: from, to, rest, due: Instant::now() });
            }
            Err(e) => self.end_zero(id, Err(e)),
        }
    }

    fn end_zero(&mut self, id: u64, result: Result<(), LogError>) {
        self.zero = None;
        self.retry_after(result.is_err());
        self.mailbox.put(Report::Zeroed { id, result });
    }

    fn zero_step(&mut self, urgent: bool) {
        let Some(mut work) = self.zero.take() else {
            return;
        };
        let files = &self.settings.files;
        let began = Instant::now();
        let rest = if urgent { 0 } else { work.rest };
        let step = zero_step_bytes(rest).min(work.to - work.at);
        let mut result = Ok(());
        let mut by_device = false;
        if self.device_zeroes {
            match files.device_zero(&work.file, &work.path, work.at, work.to - work.at) {
                Ok(done) => by_device = done,
                Err(e) => result = Err(e),
            }
            self.device_zeroes = by_device;
        }
        if by_device {
            work.at = work.to;
        } else if result.is_ok() {
            result = files.write_zeros(&work.file, &work.path, work.at, step, &self.zeros);
            work.at += step;
        }
        if result.is_ok() && work.at >= work.to {
            result = files.sync_data(&work.file, &work.path);
        }
        if result.is_err() || work.at >= work.to {
            self.end_zero(work.id, result);
            return;
        }
        let pause = (began.elapsed() * rest).min(ZERO_PAUSE_MAX);
        work.due = Instant::now() + pause;
        self.zero = Some(work);
    }

    fn zero_now(&self, start: u64, from: u64, to: u64, head: &[u8]) -> Result<(), LogError> {
        let path = self.settings.layout.segment(start);
        let files = &self.settings.files;
        let file = files.open_direct_or_plain(&path)?;
        if head.is_empty() {
            return files.write_zeros(&file, &path, from, to - from, &self.zeros);
        }
        files.write_head(&file, &path, from, head)?;
        files.write_zeros(&file, &path, from + UNIT_BYTES, to - from - UNIT_BYTES, &self.zeros)
    }

    // ---- block CRCs: failures are ignored, an absent entry is rebuilt ----

    fn write_crcs(&self, batch: &CrcBatch) -> Result<(), LogError> {
        let s = &self.settings;
        let path = sidecar::sidecar_path(&s.layout.crc, batch.base);
        let mut entries = Vec::with_capacity(batch.crcs.len() * sidecar::ENTRY_BYTES);
        for (block, crc) in (batch.first_block..).zip(&batch.crcs) {
            entries.extend_from_slice(&sidecar::encode_entry(*crc, block));
        }
        let at = sidecar::HEADER_BYTES as u64 + batch.first_block * sidecar::ENTRY_BYTES as u64;
        s.files.seam.run(FileOp::Write, &path, at, entries.len() as u64, || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
            file.write_all_at(&sidecar::header(batch.base), 0)?;
            file.write_all_at(&entries, at)
        })
    }

    fn cut_crcs(&self, from: u64) -> Result<(), LogError> {
        let s = &self.settings;
        let paths = s.files.seam.run(FileOp::Read, &s.layout.crc, 0, 0, || {
            std::fs::read_dir(&s.layout.crc)?
                .map(|entry| Ok(entry?.path()))
                .collect::<io::Result<Vec<_>>>()
        })?;
        for path in paths {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            let start = parse_segment_name(name);
            match start {
                Some(start) if start + s.segment_bytes <= from => {}
                Some(start) if start < from => self.shorten_crcs(&path, from - start)?,
                _ => s.files.unlink(&path)?,
            }
        }
        s.files.sync_dir(&s.layout.crc)
    }

    fn shorten_crcs(&self, path: &Path, keep: u64) -> Result<(), LogError> {
        let files = &self.settings.files;
        let len = sidecar::bytes_kept_below(keep);
        let file = files
            .seam
            .run(FileOp::Open, path, 0, 0, || OpenOptions::new().write(true).open(path))?;
        if file.metadata().is_ok_and(|m| m.len() > len) {
            files.truncate(&file, path, len)?;
            files.sync_all(&file, path)?;
        }
        Ok(())
    }

    fn rebuild_step(&mut self) {
        let Some(mut work) = self.rebuilds.pop_front() else {
            return;
        };
        if let Ok(true) = self.try_rebuild_step(&mut work) {
            work.due = Instant::now() + Duration::from_millis(20);
            self.rebuilds.push_front(work);
        }
    }

    /// Reads 1 MiB of the segment and writes the CRCs that are absent there. `Ok(false)`: finished.
    fn try_rebuild_step(&self, work: &mut Rebuild) -> Result<bool, LogError> {
        let s = &self.settings;
        let log_path = s.layout.segment(work.start);
        let crc_path = sidecar::sidecar_path(&s.layout.crc, work.start);
        let known = s
            .files
            .read_small(&crc_path, 1 << 30)?
            .map(|bytes| sidecar::Sidecar::decode(&bytes, work.start))
            .unwrap_or_default();
        let block_bytes = sidecar::CRC_BLOCK_BYTES;
        let blocks = s.segment_bytes.div_ceil(block_bytes);
        let mut block = work.at;
        while block < blocks && known.get(block).is_some() {
            block += 1;
        }
        let first = block;
        let mut crcs = Vec::new();
        let mut buf = vec![0; block_bytes as usize];
        let file = s.files.seam.run(FileOp::Open, &log_path, 0, 0, || File::open(&log_path))?;
        while block < blocks && crcs.len() < 16 && known.get(block).is_none() {
            let at = block * block_bytes;
            let len = (s.segment_bytes - at).min(block_bytes) as usize;
            s.files.seam.run(FileOp::Read, &log_path, at, len as u64, || {
                file.read_exact_at(&mut buf[..len], at)
            })?;
            crcs.push(crc32c(&buf[..len]));
            block += 1;
        }
        // The pages were read for this alone.
        // SAFETY: a plain system call on an open descriptor.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if !crcs.is_empty() {
            self.write_crcs(&CrcBatch { base: work.start, first_block: first, crcs })?;
        }
        work.at = block;
        Ok(block < blocks)
    }
}

/// Bytes of one write of zeros: small ones let log writes pass in between, and a log that is fast pays for each of them.
fn zero_step_bytes(rest: u32) -> u64 {
    if rest <= ZERO_REST_FAST { ZERO_STEP_MAX as u64 } else { ZERO_STEP_MAX as u64 / 8 }
}
