//! The housekeeping thread: one plain thread per store that does whatever may block for long, so that the reactor
//! never does: making segments, zeroing ahead, fsync, rename, unlink, saving the state, writing block CRCs.
//!
//! ```text
//!   reactor                                     housekeeping thread
//!     | Job  --- bounded channel --------------->  | urgent jobs first, then one step of zeroing, of removing,
//!     |                                            | of rebuilding CRCs; sleeps in between as pacing demands
//!     | <--- mailbox (mutex) + eventfd --- Report  |
//! ```
//!
//! The channel can't overflow in practice: the core has at most one job of each kind out, deletions and CRC batches are
//! limited by the shell. A full channel is an error to the caller, never a wait on the reactor.

use super::{
    error::LogError,
    files::{DiskSpace, Files},
    segments::{Found, Layout},
    sidecar::CrcBatch,
    worker::{Worker, leave_the_reactors_core},
};
use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

/// Jobs that may wait in the channel: enough for the core's (one of each kind), calls and CRC batches at their limits.
const JOBS_MAX: usize = 256;
/// Batches of block CRCs that may wait; more are dropped and rebuilt later.
const CRC_JOBS_MAX: usize = 64;
/// Work for the thread. `id` comes back in the report.
pub(crate) enum Job {
    /// Make directories and probe, read what is there.
    SetUp { id: u64 },
    /// Make the segment that starts here and rename it in.
    Prepare { start: u64 },
    /// Zero a range of a segment ahead of the tail, then flush it. After each step it rests `rest` times as long as the step
    /// took, unless log writes need it.
    Zero { id: u64, start: u64, from: u64, to: u64, rest: u32 },
    /// Write `head` and then zeros over a range now: what recovery found behind a cut. Not flushed.
    ZeroNow { id: u64, start: u64, from: u64, to: u64, head: Vec<u8> },
    /// Replace the state file, for the core.
    Save { id: u64, bytes: Vec<u8> },
    /// Replace the state file, for somebody who awaits it.
    SaveNow { id: u64, bytes: Vec<u8> },
    /// Note that a stock broker was here, durably.
    NoteVisit { id: u64 },
    /// Remove that note, durably.
    SettleVisit { id: u64 },
    /// Flush whole segments and the commit log directory.
    SyncSegments { id: u64, starts: Vec<u64> },
    /// Take a segment out of the log and remove it.
    Delete { id: u64, start: u64 },
    /// Write block CRCs. No report.
    Crc(CrcBatch),
    /// Drop block CRCs that may describe bytes at or behind this physical offset, durably.
    CutCrc { id: u64, from: u64 },
    /// Fill the CRCs that are absent in finished segments, unhurried. No report.
    RebuildCrcs { starts: Vec<u64> },
    /// How full the disk is.
    Space { id: u64 },
    /// Report [`Report::Retry`] after a while.
    RetryLater,
    /// A write began to wait for zeros: look at the urgency again.
    Nudge,
    /// Finish what is queued and end.
    Stop,
}

/// What came of a job.
pub(crate) enum Report {
    Prepared {
        start: u64,
        result: Result<u64, LogError>,
    },
    Zeroed {
        id: u64,
        result: Result<(), LogError>,
    },
    Saved {
        id: u64,
        result: Result<(), LogError>,
    },
    Done {
        id: u64,
        result: Result<Outcome, LogError>,
    },
    /// Something failed a while ago that may work now.
    Retry,
}

/// The value of a job that somebody awaits.
pub(crate) enum Outcome {
    Nothing,
    Found(Box<Found>),
    Space(DiskSpace),
}

/// The way back to the reactor: reports, and an eventfd that a task of the reactor reads.
pub(crate) struct Mailbox {
    reports: Mutex<VecDeque<Report>>,
    event: OwnedFd,
}

impl Mailbox {
    fn new() -> io::Result<Self> {
        // Blocking on purpose: io_uring then waits for it by polling. A non-blocking one would fail with EAGAIN.
        // SAFETY: a plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is open and owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Mailbox { reports: Mutex::default(), event })
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(crate) fn put(&self, report: Report) {
        self.lock().push_back(report);
        self.ring();
    }

    /// Wakes the reading task.
    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // A failed write would mean a counter near 2^64; the reader is awake then anyway.
        // SAFETY: the descriptor is open and the buffer has 8 bytes.
        let _ = unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the oldest report.
    pub(crate) fn take(&self) -> Option<Report> {
        self.lock().pop_front()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Report>> {
        // A panicking thread aborts the process; a poisoned queue of reports is still whole.
        self.reports.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What the reactor holds of the thread. Dropped, the thread ends by itself after its queue.
pub(crate) struct Housekeeper {
    jobs: SyncSender<Job>,
    pub(crate) mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    thread: Cell<Option<JoinHandle<()>>>,
    store: PathBuf,
}

/// What both sides look at without a job.
#[derive(Default)]
pub(crate) struct Shared {
    /// Log writes wait for zeros.
    pub(crate) zero_urgent: AtomicBool,
    /// A nudge is on its way.
    pub(crate) nudged: AtomicBool,
    pub(crate) crc_jobs: AtomicUsize,
}

/// What the thread needs to know.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) layout: Layout,
    pub(crate) files: Files,
    pub(crate) segment_bytes: u64,
    pub(crate) allow_buffered: bool,
    /// Zeroing ahead is on: a new segment may be zeroed by the device at once.
    pub(crate) zero_ahead: bool,
}

impl Housekeeper {
    /// Starts the thread.
    pub(crate) fn start(settings: Settings) -> Result<Self, LogError> {
        let store = settings.layout.store.clone();
        let error = |e| LogError::io("start of the housekeeping thread of", &store, 0, e);
        let mailbox = Arc::new(Mailbox::new().map_err(error)?);
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = sync_channel(JOBS_MAX);
        let mut worker = Worker::new(settings, mailbox.clone(), shared.clone(), inbox);
        let thread = std::thread::Builder::new()
            .name("ringmq-house".to_owned())
            .spawn(move || {
                leave_the_reactors_core();
                worker.run();
            })
            .map_err(|e| LogError::io("start of the housekeeping thread of", &store, 0, e))?;
        Ok(Housekeeper { jobs, mailbox, shared, thread: Cell::new(Some(thread)), store })
    }

    /// Hands over a job; never waits.
    pub(crate) fn send(&self, job: Job) -> Result<(), LogError> {
        self.jobs.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => self.busy(),
            TrySendError::Disconnected(_) => LogError::Closed,
        })
    }

    /// The error of a caller that has to wait.
    pub(crate) fn busy(&self) -> LogError {
        LogError::Busy { path: self.store.clone() }
    }

    /// Whether log writes wait for zeros; wakes the thread when they begin to.
    pub(crate) fn set_zero_urgent(&self, urgent: bool) {
        let was = self.shared.zero_urgent.swap(urgent, Ordering::Relaxed);
        if urgent && !was && !self.shared.nudged.swap(true, Ordering::Relaxed) {
            // If the channel is full the thread is awake already.
            let _ = self.jobs.try_send(Job::Nudge);
        }
    }

    /// Asks to be told to try again in a while.
    pub(crate) fn retry_later(&self) {
        let _ = self.jobs.try_send(Job::RetryLater);
    }

    /// Hands over block CRCs, or drops them if the thread is behind: absent ones are rebuilt.
    pub(crate) fn send_crcs(&self, batch: CrcBatch) {
        if self.shared.crc_jobs.load(Ordering::Relaxed) >= CRC_JOBS_MAX {
            return;
        }
        self.shared.crc_jobs.fetch_add(1, Ordering::Relaxed);
        if self.jobs.try_send(Job::Crc(batch)).is_err() {
            self.shared.crc_jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the thread after what is queued. Waits for it: call it when its last jobs were answered.
    pub(crate) fn stop(&self) {
        let _ = self.jobs.try_send(Job::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
