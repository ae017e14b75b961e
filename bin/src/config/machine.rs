//! What this process may use of the machine: processors by affinity and cgroup quota, memory by cgroup limit.
//!
//! A container's limits are the machine as far as the broker is concerned: a default taken from the host's 64 cores in a container
//! of two would be wrong by a factor that hurts.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that a shard needs at least, for the default of the shard count.
pub const SHARD_MEMORY_BYTES_MIN: u64 = 512 << 20;

/// Processors and memory within reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Numbers of the processors that this process may run on, in ascending order; never empty.
    pub cpus: Vec<usize>,
    /// Processors' worth of time that the cgroup grants, rounded up; `None` without a quota.
    pub cpu_quota: Option<usize>,
    /// Physical memory or the cgroup's limit, whichever is less.
    pub memory_bytes: u64,
}

impl Machine {
    /// Asks the kernel.
    pub fn detect() -> Machine {
        let limits = CgroupLimits::read(Path::new("/"));
        let physical = meminfo_total(Path::new("/proc/meminfo")).unwrap_or(SHARD_MEMORY_BYTES_MIN);
        Machine {
            cpus: allowed_cpus(),
            cpu_quota: limits.cpu_quota,
            memory_bytes: limits.memory_bytes.map_or(physical, |limit| limit.min(physical)),
        }
    }

    /// Shards of a new store that names no count: one per usable processor, each with [`SHARD_MEMORY_BYTES_MIN`], at least one.
    pub fn default_shards(&self) -> u32 {
        let cores = self.cpu_quota.unwrap_or(usize::MAX).min(self.cpus.len());
        let by_memory = self.memory_bytes / SHARD_MEMORY_BYTES_MIN;
        (cores as u64).min(by_memory).clamp(1, 256) as u32
    }
}

/// The processors in this process's affinity mask.
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: cpu_set_t is a plain bit array for which all-zero bytes are a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer and the size describe `set`, which outlives the call.
    let outcome = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    let mut cpus = Vec::new();
    if outcome == 0 {
        for cpu in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: `cpu` is below CPU_SETSIZE, the number of bits in the set.
            if unsafe { libc::CPU_ISSET(cpu, &set) } {
                cpus.push(cpu);
            }
        }
    }
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

fn meminfo_total(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits that cgroups put on this process, version 1, version 2 or both mounted together.
#[derive(Debug, Default, PartialEq, Eq)]
struct CgroupLimits {
    cpu_quota: Option<usize>,
    memory_bytes: Option<u64>,
}

impl CgroupLimits {
    /// Reads `<root>/proc/self/cgroup` and what it leads to below `<root>/sys/fs/cgroup`. Missing files mean no limit.
    fn read(root: &Path) -> CgroupLimits {
        let mounts = root.join("sys/fs/cgroup");
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut limits = CgroupLimits::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(group)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                for mount in [mounts.clone(), mounts.join("unified")] {
                    limits.take_v2(&mount, group);
                }
            } else {
                limits.take_v1(&mounts, controllers, group);
            }
        }
        limits
    }

    fn take_v2(&mut self, mount: &Path, group: &str) {
        for dir in ancestors(mount, group) {
            self.take_memory(read_trimmed(&dir.join("memory.max")));
            if let Some(text) = read_trimmed(&dir.join("cpu.max")) {
                let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
                if let (Some(Ok(quota)), Some(Ok(period))) = (words.next(), words.next()) {
                    self.take_cpu(quota, period);
                }
            }
        }
    }

    fn take_v1(&mut self, mounts: &Path, controllers: &str, group: &str) {
        for controller in controllers.split(',') {
            // A mount is named by its controller or by the whole list, and systems differ.
            for mount in [mounts.join(controller), mounts.join(controllers)] {
                for dir in ancestors(&mount, group) {
                    match controller {
                        "memory" => {
                            self.take_memory(read_trimmed(&dir.join("memory.limit_in_bytes")))
                        }
                        "cpu" => {
                            let quota = read_trimmed(&dir.join("cpu.cfs_quota_us"))
                                .and_then(|text| text.parse().ok());
                            let period = read_trimmed(&dir.join("cpu.cfs_period_us"))
                                .and_then(|text| text.parse().ok());
                            if let (Some(quota), Some(period)) = (quota, period) {
                                self.take_cpu(quota, period);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// "max" (version 2) does not parse; "no limit" of version 1 is a number near 2^63. Both mean none.
    fn take_memory(&mut self, text: Option<String>) {
        if let Some(bytes) =
            text.and_then(|text| text.parse::<u64>().ok()).filter(|bytes| *bytes < 1 << 62)
        {
            self.memory_bytes = Some(self.memory_bytes.map_or(bytes, |known| known.min(bytes)));
        }
    }

    fn take_cpu(&mut self, quota: u64, period: u64) {
        if quota > 0 && period > 0 {
            let cpus = (quota.div_ceil(period)).max(1) as usize;
            self.cpu_quota = Some(self.cpu_quota.map_or(cpus, |known| known.min(cpus)));
        }
    }
}

/// The group's directory and all above it up to the mount: the least limit on the way holds. In a container the group's path is
/// often the host's and absent below the mount, whose root then is the group itself.
fn ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.to_path_buf()];
    let mut dir = mount.to_path_buf();
    for part in group.split('/').filter(|part| !part.is_empty() && *part != "..") {
        dir.push(part);
        dirs.push(dir.clone());
    }
    dirs
}

fn read_trimmed(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("create directory");
            fs::write(path, text).expect("write fixture");
        }
        root
    }

    #[test]
    fn version_2_takes_the_least_limit_on_the_way_up() {
        let root = fixture(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(
            CgroupLimits::read(root.path()),
            CgroupLimits { cpu_quota: Some(2), memory_bytes: Some(1 << 30) }
        );
    }

    #[test]
    fn version_1_reads_both_mount_namings() {
        let root = fixture(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ]);
        assert_eq!(
            CgroupLimits::read(root.path()),
            CgroupLimits { cpu_quota: Some(3), memory_bytes: Some(512 << 20) }
        );
    }

    #[test]
    fn no_limit_in_either_version_is_none() {
        let root = fixture(&[
            ("proc/self/cgroup", "4:memory:/\n3:cpu:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/unified/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(CgroupLimits::read(root.path()), CgroupLimits::default());
        let empty = fixture(&[]);
        assert_eq!(CgroupLimits::read(empty.path()), CgroupLimits::default());
    }

    #[test]
    fn default_shards_respect_cores_quota_and_memory() {
        let machine = Machine { cpus: (0..8).collect(), cpu_quota: None, memory_bytes: 64 << 30 };
        assert_eq!(machine.default_shards(), 8);
        assert_eq!(Machine { cpu_quota: Some(3), ..machine.clone() }.default_shards(), 3);
        assert_eq!(Machine { memory_bytes: 1 << 30, ..machine.clone() }.default_shards(), 2);
        assert_eq!(Machine { memory_bytes: 100 << 20, ..machine }.default_shards(), 1);
    }

    #[test]
    fn detection_finds_this_machine() {
        let machine = Machine::detect();
        assert!(!machine.cpus.is_empty() && machine.memory_bytes > 0, "{machine:?}");
    }
}
