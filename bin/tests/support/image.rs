//! A file system in a file, and what a kernel crash would have left of it.
//!
//! The store is on ext4 on a loop device. What reached the device is in the backing file; what only the kernel of the "crashed" machine
//! had (dirty pages, an uncommitted ext4 journal) is not. So a copy of the backing file, taken while the broker stands still, is the disk
//! after a crash of the kernel at that moment.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted ext4 on a loop device; unmounted and detached when dropped.
pub struct LoopFs {
    image: PathBuf,
    device: String,
    pub mount: PathBuf,
}

impl LoopFs {
    /// Makes and mounts an empty one of `bytes` (sparse) in `dir`. An error says what this machine does not permit.
    pub fn create(dir: &Path, name: &str, bytes: u64) -> Result<LoopFs, String> {
        let image = dir.join(format!("{name}.img"));
        mkfs(&image, bytes, &[])?;
        LoopFs::attach(dir, name, image)
    }

    /// Mounts an image.
    pub fn attach(dir: &Path, name: &str, image: PathBuf) -> Result<LoopFs, String> {
        let mount = dir.join(format!("{name}.mnt"));
        std::fs::create_dir_all(&mount).map_err(|e| e.to_string())?;
        let device =
            run(Command::new("losetup").args(["-f", "--show"]).arg(&image))?.trim().to_owned();
        let fs = LoopFs { image, device, mount };
        run(Command::new("mount").args(["-t", "ext4", &fs.device]).arg(&fs.mount))?;
        Ok(fs)
    }

    /// The block device, as `/dev/loop7`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Makes the file system go read-only, as one does with `errors=remount-ro` when it finds itself damaged.
    pub fn go_read_only(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(&self.mount))?;
        let name = self.device.trim_start_matches("/dev/");
        std::fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "1")
            .map_err(|e| format!("trigger_fs_error of {name}: {e}"))
    }

    /// What an operator does then: unmounts it, checks it, mounts it again.
    pub fn repair(&self) -> Result<(), String> {
        repair(&self.device, &self.mount)
    }

    /// Copies the backing file, sparsely, to `to`. The copy counts only if nothing was written meanwhile, else it is made again: a copy
    /// of a file that changes is the disk of no moment.
    pub fn copy_at_rest(&self, to: &Path) -> Result<(), String> {
        for _ in 0..20 {
            let before = self.written();
            run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(to))?;
            if self.written() == before {
                return Ok(());
            }
        }
        Err("the device is written to all the time".to_owned())
    }

    /// What changes with every write to the device.
    fn written(&self) -> (i64, i64, String) {
        let times =
            std::fs::metadata(&self.image).map(|m| (m.mtime(), m.mtime_nsec())).unwrap_or_default();
        let name = self.device.trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.split_whitespace().collect();
        // Writes completed, sectors written, requests in flight.
        let writes = format!("{:?} {:?} {:?}", fields.get(4), fields.get(6), fields.get(8));
        (times.0, times.1, writes)
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(&self.mount))
            .or_else(|_| run(Command::new("umount").arg("-l").arg(&self.mount)));
        let _ = run(Command::new("losetup").args(["-d", &self.device]));
    }
}

/// Makes a sparse file of `bytes` with an empty ext4 in it, with `more` options of mkfs. Everything is initialised at once: no writes of
/// the kernel's own later on.
pub fn mkfs(image: &Path, bytes: u64, more: &[&str]) -> Result<(), String> {
    let file = std::fs::File::create(image).map_err(|e| e.to_string())?;
    file.set_len(bytes).map_err(|e| e.to_string())?;
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-i", "262144"])
        .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .args(more)
        .arg(image))?;
    Ok(())
}

/// Runs a command to its end; its output, or what it said was wrong.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let text = [output.stdout, output.stderr].concat();
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&text).trim()))
    }
}

/// See [`LoopFs::repair`].
pub fn repair(device: &str, mount: &Path) -> Result<(), String> {
    run(Command::new("umount").arg(mount))?;
    // The status 1 says that something was found and mended.
    let mended = |why: String| {
        if why.contains("FILE SYSTEM WAS MODIFIED") { Ok(why) } else { Err(why) }
    };
    run(Command::new("fsck.ext4").args(["-f", "-y", device])).or_else(mended)?;
    run(Command::new("mount").args(["-t", "ext4", device]).arg(mount)).map(drop)
}
