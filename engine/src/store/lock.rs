//! Who may use a store: the `lock` file and the `abort` marker.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::{StoreError, StoreLayout, sync_directory};
use crate::log::guarded_sync;

/// Stores locked by this process, by device and inode: a POSIX lock does not keep a process from itself.
static HELD: LazyLock<Mutex<HashSet<(u64, u64)>>> = LazyLock::new(Mutex::default);

/// What the lock file holds.
const TEXT: &[u8; 4] = b"lock";

/// The exclusive right to a store. A stock broker takes the same lock: a POSIX write lock (`fcntl`, not `flock`) on
/// byte 0 of the file `lock`, then writes the text `lock` into it (since 4.2.0).
///
/// The lock lives as long as this value. As POSIX locks go, *any* descriptor of the file that this process closes
/// releases it: nothing else here ever opens the file for longer than before the lock is taken.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
    key: (u64, u64),
    stamp: LockStamp,
}

/// Inode and modification time of the lock file. A stock broker that starts on the store writes into it, ours only where the text is
/// missing; so if it is not what we left, somebody else was here (or the store was copied).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockStamp {
    /// The inode.
    pub inode: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl LockStamp {
    /// As it is now; `None` if there is no lock file. To be read before the lock is taken.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn read(layout: &StoreLayout) -> Result<Option<Self>, StoreError> {
        let path = layout.lock();
        match fs::metadata(&path) {
            Ok(meta) => Ok(Some(Self::of(&meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("look at", &path, error)),
        }
    }

    fn of(meta: &fs::Metadata) -> Self {
        let modified_ns =
            meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Self { inode: meta.ino(), modified_ns }
    }
}

impl StoreLock {
    /// Takes the lock without waiting. The root directory must exist.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::LockedHere`], or [`StoreError::Io`].
    pub fn acquire(layout: &StoreLayout) -> Result<Self, StoreError> {
        let path = layout.lock();
        let failed = |what| {
            let path = path.clone();
            move |error| StoreError::io(what, &path, error)
        };
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the file is opened: closing a second descriptor would release the lock that this process holds.
        if let Ok(meta) = fs::metadata(&path)
            && held.contains(&(meta.dev(), meta.ino()))
        {
            return Err(StoreError::LockedHere { path });
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open"))?;
        lock_first_byte(&file).map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EAGAIN) => StoreError::Locked { path: path.clone() },
            _ => StoreError::io("lock", &path, error),
        })?;
        // A stock broker writes it at each start, and so shows that it was here. We write it once: what our last run left says how
        // the file is, and must still be believed if this start is cut off before it could say so anew.
        let mut text = [0; TEXT.len()];
        if file.read_exact_at(&mut text, 0).is_err() || text != *TEXT {
            file.write_all_at(TEXT, 0).map_err(failed("write"))?;
        }
        guarded_sync(&file, &path).map_err(failed("fsync"))?;
        sync_directory(layout.root()).map_err(failed("fsync the directory of"))?;
        let meta = file.metadata().map_err(failed("look at"))?;
        let key = (meta.dev(), meta.ino());
        held.insert(key);
        Ok(Self { _file: file, key, stamp: LockStamp::of(&meta) })
    }

    /// What we leave in the file: keep it, and compare it with [`LockStamp::read`] at the next start.
    pub fn stamp(&self) -> LockStamp {
        self.stamp
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

fn lock_first_byte(file: &File) -> io::Result<()> {
    // SAFETY: an all-zero `flock` is a valid value of this plain C structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = 0;
    lock.l_len = 1;
    // SAFETY: the descriptor is open over the call and `lock` outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The empty file `abort`: present while a broker runs, so present at a start after an unclean stop.
#[derive(Debug, Clone)]
pub struct AbortMarker {
    path: PathBuf,
    root: PathBuf,
}

impl AbortMarker {
    /// The marker of a store; touches nothing.
    pub fn new(layout: &StoreLayout) -> Self {
        Self { path: layout.abort(), root: layout.root().to_path_buf() }
    }

    /// Whether the last stop was unclean.
    pub fn is_set(&self) -> bool {
        self.path.exists()
    }

    /// Makes the marker, durably: call when recovery is done and before anything is served.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn set(&self) -> Result<(), StoreError> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        file.and_then(|file| guarded_sync(&file, &self.path))
            .map_err(|error| StoreError::io("create", &self.path, error))?;
        self.sync()
    }

    /// Removes the marker, durably: the very last step of a clean stop, when everything is written and dispatched.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn clear(&self) -> Result<(), StoreError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", &self.path, error));
            }
            _ => {}
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), StoreError> {
        let root: &Path = &self.root;
        sync_directory(root).map_err(|error| StoreError::io("fsync", root, error))
    }
}
