//! Thousands of connections on one thread: sockets that do not block, and one epoll for all of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Connections from one source address: well below the ports that the kernel gives out.
const FROM_ONE_ADDRESS: usize = 20_000;

/// What a frame from the broker says, as far as these tests look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) code: i32,
    pub(crate) opaque: i32,
    pub(crate) is_reply: bool,
    pub(crate) body_len: usize,
}

struct Member {
    stream: TcpStream,
    received: Vec<u8>,
    open: bool,
}

/// Many connections to one address, by their numbers from 0.
pub(crate) struct Crowd {
    members: Vec<Member>,
    epoll: OwnedFd,
}

impl Crowd {
    /// Opens `count` connections, from as many loopback addresses as that takes.
    pub(crate) fn open(to: SocketAddr, count: usize) -> Crowd {
        // SAFETY: epoll_create1 takes a number; the descriptor is checked and owned by nobody else.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(fd >= 0, "epoll: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let mut crowd = Crowd { members: Vec::with_capacity(count), epoll };
        for n in 0..count {
            let from = Ipv4Addr::new(127, 0, 1, 1 + (n / FROM_ONE_ADDRESS) as u8);
            let stream = connect(to, from).unwrap_or_else(|e| panic!("connection {n}: {e}"));
            crowd.watch(&stream, n);
            crowd.members.push(Member { stream, received: Vec::new(), open: true });
        }
        crowd
    }

    fn watch(&self, stream: &TcpStream, n: usize) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: n as u64 };
        // SAFETY: both descriptors are open and the event outlives the call.
        let done = unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                stream.as_raw_fd(),
                &raw mut event,
            )
        };
        assert_eq!(done, 0, "epoll_ctl: {}", std::io::Error::last_os_error());
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Connections that the broker has not closed, as far as [`Crowd::receive`] has seen.
    pub(crate) fn open_count(&self) -> usize {
        self.members.iter().filter(|m| m.open).count()
    }

    /// Sends a small frame: what is sent here fits into the kernel's buffer.
    pub(crate) fn send(&mut self, n: usize, bytes: &[u8]) {
        let member = &mut self.members[n];
        let sent = member.stream.write(bytes).unwrap_or(0);
        assert!(sent == bytes.len() || !member.open, "connection {n} took {sent} bytes");
    }

    /// Waits up to `limit` for anything to come, and gives all frames that are whole to `take`, with the connection's number. False if
    /// nothing came.
    pub(crate) fn receive(&mut self, limit: Duration, mut take: impl FnMut(usize, Frame)) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        // SAFETY: the array outlives the call and its length is told.
        let ready = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                limit.as_millis() as i32,
            )
        };
        for event in events.iter().take(ready.max(0) as usize) {
            let n = event.u64 as usize;
            self.members[n].read(|frame| take(n, frame));
        }
        ready > 0
    }

    /// [`Crowd::receive`] until `done` says so; panics after `limit`.
    pub(crate) fn receive_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut take: impl FnMut(usize, Frame),
        mut done: impl FnMut() -> bool,
    ) {
        let end = Instant::now() + limit;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {limit:?}");
            self.receive(Duration::from_millis(200), &mut take);
        }
    }
}

impl Member {
    fn read(&mut self, mut take: impl FnMut(Frame)) {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.end();
                    break;
                }
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.end();
                    break;
                }
            }
        }
        let mut at = 0;
        while let Some((frame, len)) = frame_at(&self.received[at..]) {
            at += len;
            take(frame);
        }
        self.received.drain(..at);
        if self.received.is_empty() {
            self.received = Vec::new();
        }
    }

    fn end(&mut self) {
        self.open = false;
        // The socket itself must go, or epoll tells of it for ever.
        let nothing = std::fs::File::open("/dev/null").expect("/dev/null");
        self.stream = TcpStream::from(OwnedFd::from(nothing));
    }
}

fn frame_at(bytes: &[u8]) -> Option<(Frame, usize)> {
    let word = |at: usize| {
        bytes.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    let (total, header) = (word(0)?, word(4)? & 0xFF_FFFF);
    let json = bytes.get(8..8 + header)?;
    bytes.get(..4 + total)?;
    let json: serde_json::Value = serde_json::from_slice(json).expect("a header in JSON");
    let number = |name: &str| json[name].as_i64().unwrap_or(0) as i32;
    let frame = Frame {
        code: number("code"),
        opaque: number("opaque"),
        is_reply: number("flag") & 1 == 1,
        body_len: total - 4 - header,
    };
    Some((frame, 4 + total))
}

fn connect(to: SocketAddr, from: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(30))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Raises the limit on open files of this process, and of what it starts, to `files`, or as far as it goes.
pub(crate) fn allow_files(files: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if limit.rlim_cur >= files {
        return;
    }
    // Above the hard limit only with a capability that even root may lack.
    for (soft, hard) in [(files, limit.rlim_max.max(files)), (limit.rlim_max, limit.rlim_max)] {
        let wanted = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
            assert!(soft >= files, "{files} open files are needed, the limit is {soft}: ulimit -n");
            return;
        }
    }
    panic!("the limit on open files: {}", std::io::Error::last_os_error());
}
