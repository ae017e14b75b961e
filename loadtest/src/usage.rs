//! What processes and threads use: CPU time and memory, as Linux tells.

use std::fs;
use std::io;

use crate::error::LoadError;

/// CPU time of a process so far and its memory now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUsage {
    /// User and system time of all its threads, seconds.
    pub cpu_seconds: f64,
    /// Resident bytes, mapped files included.
    pub rss_bytes: u64,
    /// The most it ever had resident.
    pub rss_bytes_max: u64,
    /// Resident bytes that are no file's: what the kernel cannot take back as it likes.
    pub own_bytes: u64,
}

/// CPU time and memory of a process.
///
/// # Errors
/// There is no such process.
pub fn process(pid: i32) -> Result<ProcessUsage, LoadError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|_| LoadError::Pid(pid))?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` outlives the call.
    if unsafe { libc::clock_getcpuclockid(pid, &mut clock) } != 0 {
        return Err(LoadError::Pid(pid));
    }
    let cpu_seconds = clock_seconds(clock).map_err(|_| LoadError::Pid(pid))?;
    let rss_bytes = status_bytes(&status, "VmRSS:");
    let rss_bytes_max = status_bytes(&status, "VmHWM:");
    let own_bytes = status_bytes(&status, "RssAnon:") + status_bytes(&status, "RssShmem:");
    Ok(ProcessUsage { cpu_seconds, rss_bytes, rss_bytes_max, own_bytes })
}

/// What several processes use together; `None` of none. The most that each ever had resident is added up too.
///
/// # Errors
/// One of them is not there.
pub fn processes(pids: &[i32]) -> Result<Option<ProcessUsage>, LoadError> {
    let mut sum = None;
    for pid in pids {
        let own = process(*pid)?;
        sum = Some(sum.map_or(own, |sum: ProcessUsage| ProcessUsage {
            cpu_seconds: sum.cpu_seconds + own.cpu_seconds,
            rss_bytes: sum.rss_bytes + own.rss_bytes,
            rss_bytes_max: sum.rss_bytes_max + own.rss_bytes_max,
            own_bytes: sum.own_bytes + own.own_bytes,
        }));
    }
    Ok(sum)
}

fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU seconds of this process so far.
#[must_use]
pub fn own_cpu_seconds() -> f64 {
    clock_seconds(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0.0)
}

/// What the calling thread used, and how long it was ready to run without getting a processor, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadUsage {
    /// User and system time.
    pub cpu_seconds: f64,
    /// Time on the run queue. 0 where the kernel doesn't tell.
    pub waited_seconds: f64,
}

/// Of the calling thread.
#[must_use]
pub fn thread() -> ThreadUsage {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited_ns = stat.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    ThreadUsage {
        cpu_seconds: clock_seconds(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0.0),
        waited_seconds: waited_ns.unwrap_or(0) as f64 / 1e9,
    }
}

fn clock_seconds(clock: libc::clockid_t) -> io::Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_stretch_shows_in_thread_and_process() {
        let pid = std::process::id() as i32;
        let (thread_before, process_before) = (thread(), process(pid).unwrap());
        let spin = std::time::Instant::now();
        let mut sum = 0u64;
        while thread().cpu_seconds - thread_before.cpu_seconds < 0.05 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
            assert!(spin.elapsed().as_secs() < 60, "50 ms of CPU time did not come in a minute");
        }
        let after = process(pid).unwrap();
        assert!(after.cpu_seconds - process_before.cpu_seconds >= 0.05);
        assert!(after.rss_bytes > 0 && after.rss_bytes_max >= after.rss_bytes);
        let twice = processes(&[pid, pid]).unwrap().unwrap();
        assert!(twice.cpu_seconds >= 2.0 * after.cpu_seconds && processes(&[]).unwrap().is_none());
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        assert!(matches!(process(i32::MAX), Err(LoadError::Pid(i32::MAX))));
        let own = std::process::id() as i32;
        assert!(matches!(processes(&[own, i32::MAX]), Err(LoadError::Pid(i32::MAX))));
    }
}
