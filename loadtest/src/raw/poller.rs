//! Readiness of many sockets on one thread: epoll, with timeouts finer than a millisecond.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most events taken at a time.
const EVENTS_MAX: usize = 256;

/// What a socket is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number the socket was added with.
    pub token: usize,
    /// A read will not block (it may tell of an error or of the end).
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
}

/// An epoll instance, level triggered. A socket leaves by being closed.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// The kernel has no `epoll_pwait2` (it came with 5.11).
    coarse: bool,
}

impl Poller {
    /// An instance without sockets.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed; a descriptor that is returned belongs to nobody else.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let none = libc::epoll_event { events: 0, u64: 0 };
        Ok(Poller { epoll, events: vec![none; EVENTS_MAX], coarse: false })
    }

    /// Watches a socket for reading, and for writing if `write`.
    ///
    /// # Errors
    /// Out of memory or of watches.
    pub fn add(&self, socket: BorrowedFd<'_>, token: usize, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, write)
    }

    /// Changes whether a socket is watched for writing.
    ///
    /// # Errors
    /// The socket was not added.
    pub fn modify(&self, socket: BorrowedFd<'_>, token: usize, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, write)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: BorrowedFd<'_>,
        token: usize,
        write: bool,
    ) -> io::Result<()> {
        let events = libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: token as u64 };
        // SAFETY: both descriptors are open for the length of the call and `event` outlives it.
        let done = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket.as_raw_fd(), &mut event)
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits at most `timeout_ns` for events. An interruption by a signal is an empty answer.
    ///
    /// # Errors
    /// None that is foreseen.
    pub fn wait(&mut self, timeout_ns: u64) -> io::Result<impl Iterator<Item = Event> + use<>> {
        let count = match self.wait_raw(timeout_ns) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        // Copied, so that the caller may add sockets meanwhile; a few hundred bytes at most times.
        let ready: Vec<_> = self.events.iter().take(count).copied().map(read_event).collect();
        Ok(ready.into_iter())
    }

    fn wait_raw(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let capacity = self.events.len() as libc::c_int;
        if !self.coarse {
            let timeout = libc::timespec {
                tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
            };
            // SAFETY: `events` has room for `capacity` events, `timeout` outlives the call, and a null signal
            // mask is allowed.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.epoll.as_raw_fd(),
                    self.events.as_mut_ptr(),
                    capacity,
                    &timeout,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            };
            if count >= 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                return Err(error);
            }
            self.coarse = true;
        }
        // Rounded down: better to spin for less than a millisecond than to send late.
        let timeout_ms = (timeout_ns / 1_000_000).min(i32::MAX as u64) as libc::c_int;
        // SAFETY: `events` has room for `capacity` events.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), capacity, timeout_ms)
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }
}

fn read_event(event: libc::epoll_event) -> Event {
    let events = event.events as libc::c_int;
    let broken = events & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
    Event {
        token: event.u64 as usize,
        readable: broken || events & libc::EPOLLIN != 0,
        writable: broken || events & libc::EPOLLOUT != 0,
    }
}

/// Lets this thread's timeouts fire within microseconds instead of the usual 50.
pub fn set_fine_timers() {
    // SAFETY: changes a number of the calling thread. A refusal leaves it as it was, which is only less exact.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
    }
}
