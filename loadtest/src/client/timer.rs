//! Waking at a time to some microseconds; tokio's own timers are of milliseconds, which would show in every latency of an open loop.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// A timer of the kernel's. Lives on its runtime's thread.
#[derive(Debug)]
pub(super) struct Timer {
    fd: AsyncFd<OwnedFd>,
}

impl Timer {
    /// A timer; only inside of a runtime.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: it takes no memory of ours.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is open as long as the registration, which owns it, and nobody changes what it refers to.
        let fd = unsafe { AsyncFd::register(fd)? };
        Ok(Timer { fd })
    }

    /// Waits so many nanoseconds.
    pub(super) async fn wait(&self, ns: u64) -> io::Result<()> {
        if ns == 0 {
            return Ok(());
        }
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        };
        let when = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: `when` outlives the call, and the old value is not asked for.
        let set =
            unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &when, std::ptr::null_mut()) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            let mut ready = self.fd.readable().await?;
            let mut expired = [0u8; 8];
            // SAFETY: the buffer has the 8 bytes that a timer gives.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), expired.as_mut_ptr().cast(), 8) };
            if read == 8 {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Timer;

    #[test]
    fn it_wakes_not_before_its_time_and_again_and_again() {
        let runtime = crate::client::runtime().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            for ns in [0, 1, 50_000, 3_000_000] {
                let began = Instant::now();
                timer.wait(ns).await.unwrap();
                assert!(began.elapsed() >= Duration::from_nanos(ns));
            }
        });
    }
}
