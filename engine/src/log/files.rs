//! Blocking file operations of the log, each through the fault seam. Only the housekeeping thread calls them.

use super::{
    error::LogError,
    faults::{FaultSeam, FileOp},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// Bytes of the unit of direct I/O, whatever the device says of itself.
pub(crate) const UNIT_BYTES: u64 = 4096;
/// The largest single write of zeros.
pub(crate) const ZERO_STEP_MAX: usize = 2 << 20;
/// `FALLOC_FL_WRITE_ZEROES` (Linux 6.17): the device zeroes and the extents count as written.
const FALLOC_FL_WRITE_ZEROES: i32 = 0x80;

/// Free and total bytes of the file system that holds a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes of the file system, less what is reserved for root.
    pub total: u64,
    /// Bytes that may still be allocated.
    pub available: u64,
}

impl DiskSpace {
    /// Whole percent in use, rounded up as stock 4.9.8 does: `used / (used + usable)`.
    pub fn used_percent(&self) -> u8 {
        let used = self.total.saturating_sub(self.available);
        let total = self.total.max(1);
        u8::try_from((used as u128 * 100).div_ceil(total as u128)).unwrap_or(100)
    }
}

/// Zeros, aligned for direct I/O.
pub(crate) struct Zeros {
    block: Box<HugePage>,
}

/// One page of the large kind: as one piece of memory, a write of it is one request to the device, not one for each 254 small pages.
#[repr(C, align(0x20_0000))]
struct HugePage([u8; 2 << 20]);

const _: () = assert!(ZERO_STEP_MAX <= size_of::<HugePage>());

impl Zeros {
    pub(crate) fn new() -> Self {
        let mut block = Box::<HugePage>::new_uninit();
        let at = block.as_mut_ptr();
        // Advice, given before the memory is touched: where it is not followed, small pages serve as well.
        // SAFETY: the range is exactly the box's own memory.
        unsafe { libc::madvise(at.cast(), size_of::<HugePage>(), libc::MADV_HUGEPAGE) };
        // SAFETY: as above; all its bytes are zero afterwards, which is a valid value.
        let block = unsafe {
            at.write_bytes(0, 1);
            block.assume_init()
        };
        Zeros { block }
    }

    fn get(&self, len: usize) -> &[u8] {
        &self.block.0[..len.min(ZERO_STEP_MAX)]
    }
}

#[repr(align(4096))]
#[derive(Clone, Copy)]
struct AlignedUnit([u8; UNIT_BYTES as usize]);

/// File operations with a seam.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) seam: FaultSeam,
}

impl Files {
    pub(crate) fn create_dir_all(&self, dir: &Path) -> Result<(), LogError> {
        self.seam.run(FileOp::Create, dir, 0, 0, || std::fs::create_dir_all(dir))
    }

    pub(crate) fn sync_dir(&self, dir: &Path) -> Result<(), LogError> {
        self.seam.run_or(FileOp::SyncDir, dir, (0, 0), (), || File::open(dir)?.sync_all())
    }

    pub(crate) fn sync_data(&self, file: &File, path: &Path) -> Result<(), LogError> {
        self.seam.run_or(FileOp::Sync, path, (0, 0), (), || file.sync_data())
    }

    pub(crate) fn sync_all(&self, file: &File, path: &Path) -> Result<(), LogError> {
        self.seam.run_or(FileOp::Sync, path, (0, 0), (), || file.sync_all())
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), LogError> {
        self.seam.run(FileOp::Rename, from, 0, 0, || std::fs::rename(from, to))
    }

    pub(crate) fn unlink(&self, path: &Path) -> Result<(), LogError> {
        self.seam.run(FileOp::Unlink, path, 0, 0, || std::fs::remove_file(path))
    }

    pub(crate) fn truncate(&self, file: &File, path: &Path, len: u64) -> Result<(), LogError> {
        self.seam.run(FileOp::Truncate, path, len, 0, || file.set_len(len))
    }

    /// Opens an existing file for direct writes.
    pub(crate) fn open_direct(&self, path: &Path) -> Result<File, LogError> {
        self.seam.run(FileOp::Open, path, 0, 0, || {
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
        })
    }

    /// Opens an existing file for direct writes, or for plain ones where the file system knows no direct I/O.
    pub(crate) fn open_direct_or_plain(&self, path: &Path) -> Result<File, LogError> {
        match self.open_direct(path) {
            Err(LogError::Io { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                self.seam.run(FileOp::Open, path, 0, 0, || {
                    OpenOptions::new().read(true).write(true).open(path)
                })
            }
            other => other,
        }
    }

    /// Makes (or empties) a file.
    pub(crate) fn create(&self, path: &Path) -> Result<File, LogError> {
        self.seam.run(FileOp::Create, path, 0, 0, || {
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
        })
    }

    /// Reserves `len` bytes of blocks: afterwards no write into the file can meet a full disk.
    pub(crate) fn allocate(&self, file: &File, path: &Path, len: u64) -> Result<(), LogError> {
        self.seam.run(FileOp::Allocate, path, 0, len, || {
            // SAFETY: a plain system call on an open descriptor.
            let rc = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
            if rc == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                // Some network file systems can't reserve: the zeroing that follows allocates.
                return file.set_len(len);
            }
            Err(error)
        })
    }

    /// Returns once no direct write of an earlier process is in flight on a file: the kernel may still be carrying one out when
    /// its process is dead and its lock free. Reserving a block that is there already changes nothing, and waits for them
    /// (ext4, XFS); where that is not supported there is nothing to wait with.
    pub(crate) fn outlast_writes(&self, path: &Path) -> Result<(), LogError> {
        self.seam.run(FileOp::Allocate, path, 0, 0, || {
            let file = OpenOptions::new().write(true).open(path)?;
            let block = super::block::UNIT as libc::off_t;
            // SAFETY: a plain system call on an open descriptor.
            let rc =
                unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, block) };
            let error = io::Error::last_os_error();
            match rc {
                0 => Ok(()),
                _ if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                _ => Err(error),
            }
        })
    }

    /// Lets the device zero a range without the data crossing the bus. `Ok(false)`: it can't here.
    pub(crate) fn device_zero(
        &self,
        file: &File,
        path: &Path,
        from: u64,
        len: u64,
    ) -> Result<bool, LogError> {
        self.seam.run_or(FileOp::Zero, path, (from, len), true, || {
            // SAFETY: a plain system call on an open descriptor.
            let rc = unsafe {
                libc::fallocate(
                    file.as_raw_fd(),
                    FALLOC_FL_WRITE_ZEROES,
                    from as libc::off_t,
                    len as libc::off_t,
                )
            };
            if rc == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => Ok(false),
                _ => Err(error),
            }
        })
    }

    /// Writes zeros over `[from, from + len)`, at most [`ZERO_STEP_MAX`] at once; `len` a multiple of the unit.
    pub(crate) fn write_zeros(
        &self,
        file: &File,
        path: &Path,
        from: u64,
        len: u64,
        zeros: &Zeros,
    ) -> Result<(), LogError> {
        self.seam.run_or(FileOp::Zero, path, (from, len), (), || {
            let mut at = from;
            while at < from + len {
                let step = ((from + len - at) as usize).min(ZERO_STEP_MAX);
                file.write_all_at(zeros.get(step), at)?;
                at += step as u64;
            }
            Ok(())
        })
    }

    /// Writes one unit: `head`, then zeros.
    pub(crate) fn write_head(
        &self,
        file: &File,
        path: &Path,
        at: u64,
        head: &[u8],
    ) -> Result<(), LogError> {
        let mut unit = Box::new(AlignedUnit([0; UNIT_BYTES as usize]));
        for (to, from) in unit.0.iter_mut().zip(head) {
            *to = *from;
        }
        self.seam.run(FileOp::Zero, path, at, UNIT_BYTES, || file.write_all_at(&unit.0, at))
    }

    /// Replaces `path` by `bytes` so that a crash leaves either the old or the new content.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), LogError> {
        let tmp = tmp_path(path);
        let file = self.create(&tmp)?;
        self.seam.run(FileOp::Write, &tmp, 0, bytes.len() as u64, || (&file).write_all(bytes))?;
        self.sync_all(&file, &tmp)?;
        self.rename(&tmp, path)?;
        match path.parent() {
            Some(dir) => self.sync_dir(dir),
            None => Ok(()),
        }
    }

    /// Reads a small file whole; `None` if there is none.
    pub(crate) fn read_small(
        &self,
        path: &Path,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>, LogError> {
        self.seam.run(FileOp::Read, path, 0, 0, || {
            let file = match File::open(path) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e),
            };
            let mut bytes = Vec::new();
            file.take(bytes_max).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        })
    }

    pub(crate) fn space(&self, dir: &Path) -> Result<DiskSpace, LogError> {
        self.seam.run(FileOp::Space, dir, 0, 0, || {
            let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())
                .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            // SAFETY: statvfs only fills the structure; all-zero is a valid value of it.
            let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are valid for the call.
            if unsafe { libc::statvfs(path.as_ptr(), &mut st) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let used = st.f_blocks.saturating_sub(st.f_bfree) * st.f_frsize;
            let available = st.f_bavail * st.f_frsize;
            Ok(DiskSpace { total: used + available, available })
        })
    }

    /// Whether `dir` is on a file system that lives in memory.
    pub(crate) fn is_in_memory(&self, dir: &Path) -> Result<bool, LogError> {
        self.seam.run(FileOp::Space, dir, 0, 0, || {
            let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())
                .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            // SAFETY: statfs only fills the structure; all-zero is a valid value of it.
            let mut st: libc::statfs = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are valid for the call.
            if unsafe { libc::statfs(path.as_ptr(), &mut st) } != 0 {
                return Err(io::Error::last_os_error());
            }
            const RAMFS_MAGIC: i64 = 0x8584_58f6;
            let kind = st.f_type as i64;
            Ok(kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
        })
    }
}

fn tmp_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    path.with_file_name(name)
}
