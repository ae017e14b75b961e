//! What the process uses, as the kernel counts it, under the names that Prometheus's own clients have for it.

use std::fs;

/// Read anew for each scrape.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    /// Resident memory, bytes.
    pub(super) resident_bytes: u64,
    /// User and system time of all threads, seconds.
    pub(super) cpu_seconds: f64,
    /// Open descriptors.
    pub(super) open_fds: u64,
    /// Most of them that the limit allows.
    pub(super) max_fds: u64,
    /// Threads.
    pub(super) threads: u64,
}

impl Usage {
    /// Of this process now; 0 for what cannot be read.
    pub(super) fn read() -> Usage {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Usage {
            resident_bytes: field("VmRSS:").unwrap_or(0) * 1024,
            cpu_seconds: cpu_seconds(),
            // The directory is itself open while it is read.
            open_fds: fs::read_dir("/proc/self/fd")
                .map_or(0, |d| d.count() as u64)
                .saturating_sub(1),
            max_fds: max_fds(),
            threads: field("Threads:").unwrap_or(0),
        }
    }
}

fn cpu_seconds() -> f64 {
    // SAFETY: rusage is plain numbers, for which all-zero bytes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place for what the call stores.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return 0.0;
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn max_fds() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for what the call stores.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if read == 0 { limit.rlim_cur } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn a_process_uses_something_of_everything() {
        let usage = Usage::read();
        assert!(usage.resident_bytes > 1 << 20 && usage.resident_bytes < 1 << 40, "{usage:?}");
        assert!(usage.cpu_seconds >= 0.0 && usage.threads >= 1, "{usage:?}");
        assert!((3..usage.max_fds).contains(&usage.open_fds), "{usage:?}");
    }
}
