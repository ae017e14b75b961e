//! A disk that the tests own: ext4 on a loop device on a file that a thread of the test serves by FUSE.
//!
//! ```text
//!   broker ──► ext4 ──► loop device (direct I/O) ──► file `disk` in a FUSE mount ──► server thread ──► image file, record
//!              bios, flushes as FSYNC                                                 ▲
//!                                                      faults of the test ────────────┘
//! ```
//!
//! Two things can be had from it:
//!
//! - A disk that misbehaves, for a real program: [`RecordedDisk::faults`]. Reads, writes and flushes, in a range of bytes or everywhere,
//!   fail, are late, hang until released, or are throttled: see [`faults::Faults`], [`faults::Requests`] and [`faults::Effect`].
//!
//!   ```ignore
//!   let disk = RecordedDisk::create(dir.path(), "disk", 512 << 20, Keep::Nothing)?;
//!   let broker = Broker::standalone(target, &disk.mount.join("broker"), options);
//!   let slow = disk.faults().everywhere(Requests::FLUSHES, Effect::Hang);
//!   assert!(disk.faults().await_hits(slow, 1, Duration::from_secs(10)));
//!   disk.faults().remove(slow);
//!   let [blocks] = &disk.ranges_of(&segment)?[..] else { panic!() };
//!   disk.faults().add(Requests::WRITES, blocks.clone(), Effect::Fail(libc::EIO));
//!   ```
//! - A record of all that was written and when it was flushed, from which a disk can be made again as a power cut could have left it:
//!   [`RecordedDisk::record`], [`cut`].
//!
//! The loop device carries out one flush at a time and nothing beside it: while a flush waits, so do the reads and writes that come after
//! it. Reads and writes go on beside each other.
//!
//! The disk must outlive what uses it: declare it before the broker.

pub mod cut;
pub mod faults;
pub mod record;
mod server;
mod wire;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::image::{mkfs, run};
pub use cut::{Cut, Replay};
pub use faults::{Effect, Faults, Requests};
pub use record::{Record, Step};
use server::Server;

/// What a disk remembers beyond its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    /// Each write and flush, from the moment that the file system is mounted.
    Record,
}

/// A mounted ext4 on such a disk. When dropped, faults are lifted, all is unmounted and detached.
pub struct RecordedDisk {
    /// Where the file system is.
    pub mount: PathBuf,
    faults: Arc<Faults>,
    record: Option<Arc<Record>>,
    base: PathBuf,
    device: String,
    _server: Server,
}

impl RecordedDisk {
    /// Makes and mounts an empty one of `bytes` (sparse) in `dir`. An error says what this machine does not permit.
    pub fn create(dir: &Path, name: &str, bytes: u64, keep: Keep) -> Result<RecordedDisk, String> {
        let image = dir.join(format!("{name}.img"));
        // With checksums ext4 refuses a superblock of 1024 bytes that was torn between its two sectors: a fault of its own.
        mkfs(&image, bytes, &["-O", "^metadata_csum"])?;
        RecordedDisk::attach(dir, name, &image, keep)
    }

    /// Mounts an image.
    pub fn attach(
        dir: &Path,
        name: &str,
        image: &Path,
        keep: Keep,
    ) -> Result<RecordedDisk, String> {
        let (mount, files) = (dir.join(format!("{name}.mnt")), dir.join(format!("{name}.fuse")));
        for dir in [&mount, &files] {
            std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        }
        let base = dir.join(format!("{name}.base"));
        let record = match keep {
            Keep::Nothing => None,
            Keep::Record => {
                run(Command::new("cp").arg("--sparse=always").arg(image).arg(&base))?;
                let path = dir.join(format!("{name}.record"));
                Some(Arc::new(Record::create(&path).map_err(|e| e.to_string())?))
            }
        };
        let faults = Arc::new(Faults::default());
        let server = Server::start(&files, image, record.clone(), faults.clone())
            .map_err(|e| format!("mounting a FUSE file system: {e}"))?;
        let mut losetup = Command::new("losetup");
        losetup.args(["-f", "--show", "--direct-io=on"]).arg(files.join("disk"));
        let device = run(&mut losetup)?.trim().to_owned();
        let disk = RecordedDisk { mount, faults, record, base, device, _server: server };
        run(Command::new("mount").args(["-t", "ext4", &disk.device]).arg(&disk.mount))?;
        Ok(disk)
    }

    /// Makes the disk misbehave.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What was written and flushed; [`Keep::Record`] only.
    pub fn record(&self) -> Arc<Record> {
        self.record.clone().expect("a disk that keeps a record")
    }

    /// The image as it was when the record began, for a [`Replay`].
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The loop device, such as `/dev/loop3`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Which bytes of the disk a file's data is in, in the file's order. Its blocks must have been allocated and synced.
    pub fn ranges_of(&self, file: &Path) -> Result<Vec<Range<u64>>, String> {
        let text = run(Command::new("filefrag").arg("-e").arg(file))?;
        let block = 4096;
        let mut ranges = Vec::new();
        for line in text.lines() {
            // "   0:        0..    1023:      34816..     35839:   1024:             last,eof"
            let mut columns = line.split(':');
            if columns.next().is_none_or(|n| n.trim().parse::<u32>().is_err()) {
                continue;
            }
            let Some((first, last)) = columns.nth(1).and_then(|c| c.split_once("..")) else {
                continue;
            };
            if let (Ok(first), Ok(last)) = (first.trim().parse::<u64>(), last.trim().parse::<u64>())
            {
                ranges.push(first * block..(last + 1) * block);
            }
        }
        Ok(ranges)
    }
}

impl Drop for RecordedDisk {
    fn drop(&mut self) {
        self.faults.clear();
        let _ = run(Command::new("umount").arg(&self.mount))
            .or_else(|_| run(Command::new("umount").arg("-l").arg(&self.mount)));
        let _ = run(Command::new("losetup").args(["-d", &self.device]));
    }
}
