//! The one place through which every file operation of the log goes, so that tests can make a disk fail. The syncs and writes of what is
//! derived from it and of the configuration files go through here as well ([`guard`]).

use super::error::LogError;
use std::{fs::File, io, path::Path, sync::Arc, time::Duration};

/// The kinds of file operations the log does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileOp {
    /// A direct write of log blocks (reactor).
    LogWrite,
    /// A flush of the device's cache for the log (reactor).
    LogFlush,
    /// A direct read of the log (reactor).
    LogRead,
    /// Opening a file.
    Open,
    /// Creating a file.
    Create,
    /// Reserving a file's blocks.
    Allocate,
    /// Writing zeros ahead of the tail or over a cut.
    Zero,
    /// Making a file durable (housekeeper).
    Sync,
    /// Making a directory's entries durable.
    SyncDir,
    /// Renaming a file.
    Rename,
    /// Shortening a file.
    Truncate,
    /// Removing a file.
    Unlink,
    /// Writing a small file (state, checksums, probe).
    Write,
    /// Reading a small file.
    Read,
    /// Asking a file system for its free space.
    Space,
}

impl FileOp {
    /// The verb used in error messages.
    pub fn verb(self) -> &'static str {
        match self {
            FileOp::LogWrite => "write of",
            FileOp::LogFlush => "flush of",
            FileOp::LogRead => "read of",
            FileOp::Open => "open of",
            FileOp::Create => "creation of",
            FileOp::Allocate => "allocation of",
            FileOp::Zero => "zeroing of",
            FileOp::Sync => "sync of",
            FileOp::SyncDir => "sync of directory",
            FileOp::Rename => "rename of",
            FileOp::Truncate => "truncation of",
            FileOp::Unlink => "removal of",
            FileOp::Write => "write of",
            FileOp::Read => "read of",
            FileOp::Space => "space check of",
        }
    }
}

/// What a test wants to happen to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fail with this errno without doing it.
    Errno(i32),
    /// Do it after this long.
    Delay(Duration),
    /// A read gets at most this many bytes.
    Short(usize),
    /// Report success without doing it. Only a write, a zeroing, a flush or a sync can be left out; anything else fails.
    Skip,
}

/// Decides, per operation, whether it fails. Called on the reactor and on the housekeeping thread.
pub trait DiskFaults: Send + Sync {
    /// `offset` and `len` are bytes inside `path` where that has a meaning, else 0.
    fn check(&self, op: FileOp, path: &Path, offset: u64, len: u64) -> Option<Fault>;
}

/// The seam itself: nothing in production. By default nothing fails; with the feature `test-faults`, what
/// `RINGMQ_TEST_FAULTS` says does.
#[derive(Clone)]
pub struct FaultSeam(Option<Arc<dyn DiskFaults>>);

impl Default for FaultSeam {
    #[cfg(not(feature = "test-faults"))]
    #[inline]
    fn default() -> Self {
        FaultSeam(None)
    }

    #[cfg(feature = "test-faults")]
    fn default() -> Self {
        FaultSeam(super::env_faults::of_this_process())
    }
}

impl std::fmt::Debug for FaultSeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "FaultSeam(on)" } else { "FaultSeam(off)" })
    }
}

impl FaultSeam {
    /// A seam that asks `faults` before every operation.
    pub fn new(faults: Arc<dyn DiskFaults>) -> Self {
        FaultSeam(Some(faults))
    }

    #[inline]
    fn ask(&self, op: FileOp, path: &Path, offset: u64, len: u64) -> Option<Fault> {
        self.0.as_ref().and_then(|f| f.check(op, path, offset, len))
    }

    /// Blocking form, for the housekeeping thread: runs `f` unless a fault says otherwise.
    pub(crate) fn run<T>(
        &self,
        op: FileOp,
        path: &Path,
        offset: u64,
        len: u64,
        f: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, LogError> {
        let unskippable = || Err(io::ErrorKind::Unsupported.into());
        self.pass(op, path, offset, len, unskippable, f)
            .map_err(|e| LogError::io(op.verb(), path, offset, e))
    }

    /// As [`FaultSeam::run`], for an operation that can be left out: then its result is `skipped`.
    pub(crate) fn run_or<T>(
        &self,
        op: FileOp,
        path: &Path,
        (offset, len): (u64, u64),
        skipped: T,
        f: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, LogError> {
        self.pass(op, path, offset, len, || Ok(skipped), f)
            .map_err(|e| LogError::io(op.verb(), path, offset, e))
    }

    fn pass<T>(
        &self,
        op: FileOp,
        path: &Path,
        offset: u64,
        len: u64,
        skipped: impl FnOnce() -> io::Result<T>,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self.ask(op, path, offset, len) {
            Some(Fault::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Delay(d)) => {
                std::thread::sleep(d);
                f()
            }
            Some(Fault::Skip) => skipped(),
            Some(Fault::Short(_)) | None => f(),
        }
    }

    /// Reactor form: `Err` if the operation is to fail, `None` if it is to be left out, else the most bytes it may transfer.
    pub(crate) async fn before(
        &self,
        op: FileOp,
        path: &Path,
        offset: u64,
        len: usize,
    ) -> Result<Option<usize>, LogError> {
        match self.ask(op, path, offset, len as u64) {
            None => Ok(Some(len)),
            Some(Fault::Errno(errno)) => {
                Err(LogError::io(op.verb(), path, offset, io::Error::from_raw_os_error(errno)))
            }
            Some(Fault::Delay(d)) => {
                glommio::timer::sleep(d).await;
                Ok(Some(len))
            }
            Some(Fault::Short(n)) => Ok(Some(n.min(len))),
            Some(Fault::Skip) => Ok(None),
        }
    }
}

/// A blocking operation on a file that is not the log's (queues, index, checkpoint, configuration files): runs `f` unless this process was
/// told to fail there.
#[inline]
pub(crate) fn guard(op: FileOp, path: &Path, f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    FaultSeam::default().pass(op, path, 0, 0, || Ok(()), f)
}

/// `fsync` of such a file.
#[inline]
pub(crate) fn guarded_sync(file: &File, path: &Path) -> io::Result<()> {
    guard(FileOp::Sync, path, || file.sync_all())
}
