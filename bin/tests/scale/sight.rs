//! What is to be seen of a broker from outside: memory, descriptors, what a directory takes on disk, the stalls it recorded.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::image::LoopFs;
use crate::support::wire::{Conn, code, eventually};
use crate::support::{Broker, TempDir};

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc/PID/fd").count()
}

/// What a directory tree has on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OnDisk {
    pub(crate) files: u64,
    /// By their lengths.
    pub(crate) bytes: u64,
    /// Really taken, directories included.
    pub(crate) taken: u64,
}

/// Adds up a directory tree.
pub(crate) fn on_disk(dir: &Path) -> OnDisk {
    let mut sum = OnDisk::default();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            sum.taken += meta.blocks() * 512;
            if meta.is_dir() {
                left.push(entry.path());
            } else {
                sum.files += 1;
                sum.bytes += meta.len();
            }
        }
    }
    sum
}

/// The stalls that a broker recorded, by what they were due to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stalls {
    /// How many were due to the reactor's work, to a system call or a device.
    pub(crate) own: usize,
    /// The longest of these, without the time that it had no processor.
    pub(crate) own_max: Duration,
    /// How many were due to others having the processors.
    pub(crate) starved: usize,
    /// The longest of all, as it was.
    pub(crate) longest: Duration,
}

impl Stalls {
    /// None of its own longer than 100 ms, or five times that in a build without optimization.
    #[track_caller]
    pub(crate) fn assert_short(self) {
        let max = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 100 });
        assert!(self.own_max <= max, "a reactor's own doing took more than {max:?}: {self:?}");
    }
}

/// The stalls of a broker's log that are over.
pub(crate) fn stalls(log: &str) -> Stalls {
    let mut sum = Stalls::default();
    for line in log.lines().filter(|line| line.contains("reactor turns again")) {
        let ms = |name: &str| {
            let (_, rest) = line.split_once(name).expect("a field of the stall recorder");
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            Duration::from_millis(digits.parse().expect("milliseconds"))
        };
        let (lasted, waited) = (ms(" lasted_ms="), ms(" waited_ms="));
        sum.longest = sum.longest.max(lasted);
        if line.contains("cause=\"no processor\"") {
            sum.starved += 1;
        } else {
            sum.own += 1;
            sum.own_max = sum.own_max.max(lasted.saturating_sub(waited));
        }
    }
    sum
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A number of the environment, else `usual`.
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .map_or(usual, |n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// A directory for a store of very many files: on a file system of its own where that can be mounted, so that it goes away with one unlink.
pub(crate) fn ground(dir: &TempDir) -> (PathBuf, Option<LoopFs>) {
    // Sparse; its size gives the number of its inodes: one for 256 KiB.
    match LoopFs::create(dir.path(), "ground", 64 << 30) {
        Ok(fs) => (fs.mount.clone(), Some(fs)),
        Err(why) => {
            println!("no file system of its own: {why}");
            (dir.sub("ground"), None)
        }
    }
}

/// Starts a broker; how long it took until it answered a request. A port alone tells nothing: that of a process just killed may still
/// take connections for a while.
pub(crate) fn ready_after(broker: &mut Broker) -> Duration {
    let began = Instant::now();
    broker.spawn();
    let ready = eventually(Duration::from_secs(120), || {
        assert!(broker.is_running(), "the broker ended while it started");
        let mut conn = Conn::open(broker.address(0)).ok()?;
        let queue = [("topic", "SELF_TEST_TOPIC"), ("queueId", "0")];
        (conn.call(code::GET_MAX_OFFSET, &queue, &[]).ok()?.code == 0).then(|| began.elapsed())
    });
    ready.expect("an answer within two minutes")
}
