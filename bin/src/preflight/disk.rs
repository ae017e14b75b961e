//! The data directory: writable, unlocked, with direct I/O and with space.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Finding;
use crate::config::{Durability, Settings, ShardPlan};

/// Alignment of direct I/O, whatever the device says of itself.
const UNIT: usize = 4096;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const NFS_MAGIC: u64 = 0x6969;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut devices = Vec::new();
    for shard in &settings.shards {
        findings.extend(check_lock(shard));
        let dir = existing_ancestor(&shard.store_dir);
        // Shards may be mounted apart; each device is tried once.
        let device = fs::metadata(&dir).map(|meta| meta.dev()).ok();
        if !devices.contains(&device) {
            devices.push(device);
            findings.push(check_direct(&dir, settings.config.durability.level));
            findings.push(check_space(&dir, settings));
        }
    }
    findings
}

/// The directory itself, or the nearest one above it that exists.
pub fn existing_ancestor(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Whether another process holds the store's lock, the one that a stock broker takes too: the first byte of `<store>/lock`.
fn check_lock(shard: &ShardPlan) -> Option<Finding> {
    let path = shard.store_dir.join("lock");
    let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
    // SAFETY: flock is a plain structure for which all-zero bytes are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 1;
    // SAFETY: the descriptor is open and `lock` is a valid place for the answer. F_GETLK takes no lock.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) };
    if outcome != 0 || lock.l_type == libc::F_UNLCK as libc::c_short {
        return None;
    }
    let holder = lock.l_pid;
    let text = format!(
        "process {holder} serves this store: stop it, or give another directory with --data-dir"
    );
    Some(Finding::failure(format!("lock {}", path.display()), text))
}

/// Writes and reads one block with direct I/O, in a file that has no name.
fn check_direct(dir: &Path, level: Durability) -> Finding {
    let subject = format!("direct I/O in {}", dir.display());
    let kind = file_system(dir);
    if matches!(kind, Some(TMPFS_MAGIC | RAMFS_MAGIC)) {
        let text = "the file system is in memory and keeps nothing across a crash";
        return match level {
            Durability::Memory => Finding::warning(
                subject,
                format!("{text}: acknowledgements promise the process's life at most"),
            ),
            Durability::Write | Durability::Sync => Finding::failure(
                subject,
                format!(
                    "{text}: choose a directory on a disk, or set durability.level = \"memory\""
                ),
            ),
        };
    }
    match write_and_read(dir) {
        Ok(()) if kind == Some(NFS_MAGIC) => Finding::warning(
            subject,
            "a network file system decides itself when data is kept: choose a directory on a local disk",
        ),
        Ok(()) => Finding::good(subject, "works"),
        Err(error) => Finding::failure(subject, direct_remedy(&error)),
    }
}

fn direct_remedy(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => {
            "the file system has none: choose a directory on ext4 or XFS".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "not permitted: let the broker's user own the directory, or change --data-dir"
                .to_owned()
        }
        Some(libc::EROFS) => {
            "the file system is mounted read-only: remount it, or change --data-dir".to_owned()
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "no space is left: free some, or change --data-dir".to_owned()
        }
        _ => format!("{error}: check the kernel's log, or change --data-dir"),
    }
}

fn write_and_read(dir: &Path) -> io::Result<()> {
    let file = open_unnamed(dir)?;
    let mut block = AlignedBuffer::new(UNIT);
    block.bytes_mut().fill(0x5a);
    file.write_all_at(block.bytes(), 0)?;
    file.sync_all()?;
    block.bytes_mut().fill(0);
    file.read_exact_at(block.bytes_mut(), 0)?;
    match block.bytes().iter().all(|byte| *byte == 0x5a) {
        true => Ok(()),
        false => Err(io::Error::other("a block read back differs from what was written")),
    }
}

/// A file for direct I/O that leaves its directory at once.
pub(crate) fn open_unnamed(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!(".ringmq-preflight-{}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    // A file system without direct I/O may create the file and then refuse to open it.
    let _ = fs::remove_file(&path);
    file
}

fn file_system(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: statfs is a plain structure for which all-zero bytes are a valid value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and `answer` is a valid place for the answer.
    match unsafe { libc::statfs(path.as_ptr(), &mut answer) } {
        0 => Some(answer.f_type as u64 & 0xffff_ffff),
        _ => None,
    }
}

/// Bytes free for this user, and in all.
fn space(dir: &Path) -> io::Result<(u64, u64)> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: statvfs is a plain structure for which all-zero bytes are a valid value.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and `answer` is a valid place for the answer.
    match unsafe { libc::statvfs(path.as_ptr(), &mut answer) } {
        0 => Ok((answer.f_bavail * answer.f_frsize, answer.f_blocks * answer.f_frsize)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A new shard needs its first segment and the one that is prepared behind it. An existing store may be nearly full: it then
/// refuses sends and still serves reads, so that is a warning.
fn check_space(dir: &Path, settings: &Settings) -> Finding {
    let subject = format!("space in {}", dir.display());
    let (free, total) = match space(dir) {
        Ok(found) => found,
        Err(error) => return Finding::failure(subject, format!("cannot be asked for: {error}")),
    };
    let full = settings.config.retention.disk_full_percent;
    let used_percent = 100 - free.saturating_mul(100) / total.max(1);
    let new =
        settings.shards.iter().filter(|shard| !shard.store_dir.join("commitlog").is_dir()).count()
            as u64;
    let need = new.saturating_mul(settings.config.store.segment_bytes).saturating_mul(2);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    if free < need {
        let text = format!(
            "{} free and {new} new shards need {}: free some, or lower store.segment_bytes",
            mib(free),
            mib(need)
        );
        return Finding::failure(subject, text);
    }
    if used_percent > full {
        let text = format!(
            "{used_percent} % used, and above {full} % (retention.disk_full_percent) sends are refused: free some"
        );
        return Finding::warning(subject, text);
    }
    Finding::good(subject, format!("{} free, {used_percent} % used", mib(free)))
}

/// Heap memory at an address that direct I/O accepts.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let memory = vec![0; len + UNIT];
        let start = memory.as_ptr().align_offset(UNIT).min(UNIT);
        AlignedBuffer { memory, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::Outcome;

    #[test]
    fn a_directory_that_does_not_exist_is_checked_where_it_would_be() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(existing_ancestor(&dir.path().join("a/b/c")), dir.path());
        assert_eq!(
            existing_ancestor(Path::new("surely-absent")),
            std::env::current_dir().expect("current directory")
        );
    }

    #[test]
    fn a_store_in_memory_is_refused_unless_the_level_is_memory() {
        let shm = Path::new("/dev/shm");
        if file_system(shm) != Some(TMPFS_MAGIC) {
            eprintln!("skipped: /dev/shm is no tmpfs here");
            return;
        }
        for level in [Durability::Write, Durability::Sync] {
            let finding = check_direct(shm, level);
            assert!(
                matches!(&finding.outcome, Outcome::Failure(text) if text.contains("durability.level")),
                "{finding}"
            );
        }
        assert!(matches!(check_direct(shm, Durability::Memory).outcome, Outcome::Warning(_)));
    }

    #[test]
    fn direct_io_leaves_no_file_behind() {
        let dir = tempfile::tempdir_in(".").expect("temporary directory");
        write_and_read(dir.path()).expect("direct I/O in the source directory");
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn refusals_have_remedies() {
        for (errno, part) in [
            (libc::EINVAL, "ext4"),
            (libc::EACCES, "own the directory"),
            (libc::EROFS, "remount"),
            (libc::ENOSPC, "free"),
        ] {
            let text = direct_remedy(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(part), "{errno}: {text}");
        }
    }
}
