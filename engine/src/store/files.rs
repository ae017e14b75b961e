//! Small helpers around files and directories. All of them block.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::StoreError;
use crate::log::{FileOp, guard, guarded_sync};

/// Digits of a file that is named by an offset.
const NAME_DIGITS: usize = 20;

/// A directory entry of a folder whose files are named by their start offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedFile {
    /// The name.
    pub name: OsString,
    /// The offset in the name; `None` if the name is not 20 digits.
    pub start: Option<u64>,
    /// Bytes of the file.
    pub len: u64,
    /// Not a regular file.
    pub is_dir: bool,
}

/// The name of a file that starts at `offset`: 20 decimal digits.
pub fn numbered_name(offset: u64) -> String {
    format!("{offset:020}")
}

/// The offset of a name, if it is 20 decimal digits.
pub fn parse_numbered_name(name: &str) -> Option<u64> {
    let digits = name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    if digits { name.parse().ok() } else { None }
}

/// All entries of `dir`, numbered ones in ascending order, the others first. A missing directory is empty.
///
/// # Errors
/// Any other I/O error.
pub fn list_numbered(dir: &Path) -> io::Result<Vec<NumberedFile>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let meta = entry.metadata()?;
        let name = entry.file_name();
        let start = name.to_str().and_then(parse_numbered_name);
        files.push(NumberedFile { start, len: meta.len(), is_dir: !meta.is_file(), name });
    }
    files.sort_by_key(|file| file.start);
    Ok(files)
}

/// Makes the entries of a directory durable.
///
/// # Errors
/// The I/O error of open or fsync.
pub fn sync_directory(dir: &Path) -> io::Result<()> {
    guard(FileOp::SyncDir, dir, || File::open(dir)?.sync_all())
}

/// Makes `dir` and its missing parents, each durable in its parent.
///
/// # Errors
/// The I/O error.
pub fn create_dir_durable(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        if !parent.as_os_str().is_empty() {
            create_dir_durable(parent)?;
        }
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !parent.as_os_str().is_empty() {
            sync_directory(parent)?;
        }
    }
    Ok(())
}

/// Makes everything that was written to the file system of `dir` durable (`syncfs`). It does not tell of writes that had failed
/// before: see [`FileSystem`].
///
/// # Errors
/// The I/O error. After one, what was written before can no longer be assumed to become durable.
pub fn sync_file_system(dir: &Path) -> io::Result<()> {
    FileSystem::of(dir)?.sync()
}

/// A file system, held open to be synced. The kernel writes pages back at times of its own and tells of a failure once to each
/// descriptor that was open then: only one that is older than the writes hears of all of theirs, whoever else syncs in between.
#[derive(Debug)]
pub struct FileSystem {
    dir: PathBuf,
    open: File,
}

impl FileSystem {
    /// The file system of `dir`. What is written from now on is what [`FileSystem::sync`] vouches for.
    ///
    /// # Errors
    /// The I/O error.
    pub fn of(dir: &Path) -> io::Result<Self> {
        Ok(Self { dir: dir.to_path_buf(), open: File::open(dir)? })
    }

    /// Makes everything durable that was written to it since it was opened (`syncfs`). Blocks.
    ///
    /// # Errors
    /// The I/O error, of this sync or of any write since the last one. After it, what was written before can no longer be assumed
    /// to become durable.
    pub fn sync(&self) -> io::Result<()> {
        guard(FileOp::Sync, &self.dir, || {
            // SAFETY: syncfs takes a descriptor, which `open` keeps open over the call, and no memory.
            match unsafe { libc::syncfs(self.open.as_raw_fd()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }
}

/// Replaces the file `path` by `content`: after a crash either the old or the new content is there, durable once this returns.
///
/// # Errors
/// [`StoreError::Io`] naming the step.
pub fn write_replacing(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let temporary = path.with_extension("tmp");
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        guard(FileOp::Write, &temporary, || file.write_all(content))?;
        guarded_sync(&file, &temporary)
    };
    write().map_err(|error| StoreError::io("write", &temporary, error))?;
    fs::rename(&temporary, path)
        .map_err(|error| StoreError::io("rename into place", path, error))?;
    if let Some(dir) = path.parent() {
        sync_directory(dir).map_err(|error| StoreError::io("fsync", dir, error))?;
    }
    Ok(())
}
