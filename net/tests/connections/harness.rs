//! A server on a reactor of its own thread, and blocking peers to talk to it.

use std::cell::RefCell;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_lite::AsyncReadExt;
use glommio::{LocalExecutorBuilder, Placement};
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::header::HeaderView;
use ringmq_net::reply::{ReplyHead, encode_reply};
use ringmq_net::server::{Conn, Gathering, Server, ServerConfig, Service};

/// Tests that measure the whole process take this for writing, all others for reading.
pub(crate) static PROCESS: RwLock<()> = RwLock::new(());

/// What the test service does with a request, by its code.
pub(crate) mod code {
    /// Answer with the request's body, within the turn.
    pub(crate) const ECHO: i32 = 1;
    /// Keep the request until [`super::release`].
    pub(crate) const LATER: i32 = 2;
    /// Answer with as many bytes of shared memory as ext `n` says.
    pub(crate) const SHARED: i32 = 3;
    /// Answer, then close.
    pub(crate) const CLOSE: i32 = 4;
    /// Only count.
    pub(crate) const COUNT: i32 = 5;
    /// Answer with the kind of port as a remark.
    pub(crate) const PORT: i32 = 6;
    /// Answer, and gather requests from now on, or do not.
    pub(crate) const GATHER: i32 = 7;
    pub(crate) const DO_NOT_GATHER: i32 = 8;
    /// Answer with how many looks have begun as a remark, if this request is gathered.
    pub(crate) const LOOKS: i32 = 9;
}

/// Byte `i` of the shared memory that [`code::SHARED`] answers from.
pub(crate) fn shared_byte(i: usize) -> u8 {
    (i % 251) as u8
}

pub(crate) struct TestService {
    later: RefCell<Vec<(Rc<Conn>, i32)>>,
    block: Rc<dyn AsRef<[u8]>>,
    server: RefCell<Weak<Server>>,
    pub(crate) seen: Arc<Seen>,
}

/// Counts that the peers' thread may read at any time.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) frames: AtomicUsize,
    pub(crate) turns: AtomicUsize,
    pub(crate) looks: AtomicUsize,
    pub(crate) opened: AtomicUsize,
    pub(crate) closed: AtomicUsize,
}

impl TestService {
    /// Answers all kept requests, last first. Whether they are flushed is up to the caller.
    pub(crate) fn release(&self) -> usize {
        let mut later = self.later.take();
        later.reverse();
        for (conn, opaque) in &later {
            conn.push(|out| {
                let head = ReplyHead {
                    serialize: ringmq_net::frame::SerializeType::Json,
                    opaque: *opaque,
                    code: 0,
                    remark: None,
                    ext: None,
                };
                encode_reply(out, &head, 0);
            });
        }
        later.len()
    }
}

impl Service for TestService {
    fn on_frame(&self, conn: &Rc<Conn>, header: &HeaderView<'_>, body: &[u8]) {
        self.seen.frames.fetch_add(1, Ordering::SeqCst);
        let ok = ReplyHead::to(header, 0);
        match header.code() {
            code::ECHO | code::CLOSE => {
                conn.push(|out| {
                    encode_reply(out, &ok, body.len());
                    out.extend_from_slice(body);
                });
                if header.code() == code::CLOSE {
                    conn.close("the test asked for it");
                }
            }
            code::LATER => self.later.borrow_mut().push((conn.clone(), header.opaque())),
            code::SHARED => {
                let n = header.ext("n").and_then(|n| n.parse().ok()).unwrap_or(0);
                conn.push(|out| encode_reply(out, &ok, n));
                conn.push_shared(self.block.clone(), 0..n);
            }
            code::PORT => {
                let port = format!("{:?} {}", conn.port(), conn.peer());
                conn.push(|out| encode_reply(out, &ok.remark(&port), 0));
            }
            code::GATHER | code::DO_NOT_GATHER => {
                let gathering = if header.code() == code::GATHER {
                    Gathering::Always(Duration::from_millis(1))
                } else {
                    Gathering::Never
                };
                self.server.borrow().upgrade().unwrap().set_gathering(gathering);
                conn.push(|out| encode_reply(out, &ok, 0));
            }
            code::LOOKS => {
                let looks = self.seen.looks.load(Ordering::SeqCst).to_string();
                let ok = if conn.is_gathered() { ok.remark(&looks) } else { ok };
                conn.push(|out| encode_reply(out, &ok, 0));
            }
            _ => {}
        }
    }

    fn on_turn_end(&self) {
        self.seen.turns.fetch_add(1, Ordering::SeqCst);
    }

    fn on_look(&self) {
        self.seen.looks.fetch_add(1, Ordering::SeqCst);
    }

    fn on_open(&self, _conn: &Rc<Conn>) {
        self.seen.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn on_close(&self, conn: &Rc<Conn>) {
        assert!(conn.is_closed());
        self.seen.closed.fetch_add(1, Ordering::SeqCst);
    }
}

type Job = Box<dyn FnOnce(&Rc<Server>, &Rc<TestService>) + Send>;

/// A running server. Dropping it closes the server and checks that every connection was told to the service
/// exactly once.
pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    jobs: Sender<Job>,
    bell: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(config: ServerConfig) -> Running {
        let (jobs, queue) = channel::<Job>();
        let (bell, ring) = UnixStream::pair().unwrap();
        let (tell, told) = channel();
        let seen = Arc::new(Seen::default());
        let service_seen = seen.clone();
        let thread = reactor(move || async move {
            let service = Rc::new(TestService {
                later: RefCell::default(),
                server: RefCell::default(),
                block: Rc::new((0..4 << 20).map(shared_byte).collect::<Vec<u8>>()),
                seen: service_seen,
            });
            let server = Server::bind(config, service.clone()).unwrap();
            service.server.replace(Rc::downgrade(&server));
            tell.send(server.local_addr(ringmq_net::server::PortKind::Main).unwrap()).unwrap();
            // SAFETY: ownership of the open descriptor passes to the glommio stream.
            let mut ring = unsafe { glommio::net::UnixStream::from_raw_fd(ring.into_raw_fd()) };
            let mut byte = [0];
            while ring.read(&mut byte).await.unwrap() == 1 {
                let job = queue.recv().unwrap();
                job(&server, &service);
            }
            server.close();
            server.ended().await;
        });
        let addr = told.recv().unwrap();
        Running { addr, seen, jobs, bell: Some(bell), thread: Some(thread) }
    }

    /// Runs `job` on the reactor.
    pub(crate) fn on_reactor<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Server>, &Rc<TestService>) -> R + Send + 'static,
    ) -> R {
        let (tell, told) = channel();
        let job: Job = Box::new(move |server, service| {
            tell.send(job(server, service)).unwrap();
        });
        self.jobs.send(job).unwrap();
        self.bell.as_ref().unwrap().write_all(&[1]).unwrap();
        told.recv().unwrap()
    }

    /// Waits for a condition that another thread brings about.
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&Running) -> bool) {
        wait(what, || condition(self));
    }
}

/// Waits up to 20 s for a condition that another thread brings about.
pub(crate) fn wait(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("waited in vain for: {what}");
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.bell.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
                let opened = self.seen.opened.load(Ordering::SeqCst);
                assert_eq!(opened, self.seen.closed.load(Ordering::SeqCst));
            }
        }
    }
}

/// Runs a future on a reactor in a thread of its own, with a metronome beside it: glommio 0.9 can park for ever
/// with runnable tasks, and a signal wakes it.
pub(crate) fn reactor<F: Future<Output = ()> + 'static>(
    make: impl FnOnce() -> F + Send + 'static,
) -> JoinHandle<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    std::thread::spawn(move || {
        // SAFETY: the handler does nothing, which is safe at any point; no SA_RESTART, so that a sleeping
        // reactor returns from the kernel.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
        // SAFETY: asks for the calling thread's own id.
        let target = unsafe { libc::pthread_self() } as usize;
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let metronome = std::thread::spawn(move || {
            while !until.load(Ordering::SeqCst) {
                // SAFETY: the thread joins this one before it ends, so its id is valid.
                unsafe { libc::pthread_kill(target as libc::pthread_t, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let executor =
            LocalExecutorBuilder::new(Placement::Unbound).io_memory(256 << 10).make().unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            executor.run(async move { make().await });
        }));
        done.store(true, Ordering::SeqCst);
        metronome.join().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    })
}

/// A server that handles each request when it comes, and one that gathers.
pub(crate) fn both_ways() -> [ServerConfig; 2] {
    let gathers = Gathering::Always(Duration::from_millis(1));
    [local_config(), ServerConfig { gather: gathers, ..local_config() }]
}

pub(crate) fn local_config() -> ServerConfig {
    ServerConfig::new("127.0.0.1:0".parse().unwrap())
}

/// A request frame.
pub(crate) fn frame(code: i32, opaque: i32, body: &[u8]) -> Vec<u8> {
    encode(Command::request(code).with_body(Bytes::copy_from_slice(body)), opaque)
}

pub(crate) fn encode(command: Command, opaque: i32) -> Vec<u8> {
    let mut out = BytesMut::new();
    Command { opaque, ..command }.encode(&mut out);
    out.to_vec()
}

/// A blocking peer.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    kept: Vec<u8>,
}

impl Peer {
    pub(crate) fn connect(addr: SocketAddr) -> Peer {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Peer { stream, kept: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next whole reply; `None` when the server closed.
    pub(crate) fn reply(&mut self) -> Option<Command> {
        loop {
            if let Peek::Frame(frame) = peek(&self.kept, FRAME_BYTES_MAX).unwrap() {
                let len = frame.len;
                let command = Command::decode(&frame).unwrap();
                self.kept.drain(..len);
                return Some(command);
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.kept.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("no reply: {e}"),
            }
        }
    }

    /// Sends one echo and checks its reply.
    pub(crate) fn ping(&mut self, opaque: i32) {
        let body = opaque.to_be_bytes();
        self.send(&frame(code::ECHO, opaque, &body));
        let reply = self.reply().expect("the server closed instead of answering");
        assert_eq!((reply.opaque, &reply.body[..]), (opaque, &body[..]));
    }
}
