//! A running shard allocates next to nothing per message: counted in this process, on the reactor's thread, under load.

#[path = "support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use ringmq::broker::run_shard;
use ringmq::cli::{Cli, Command};
use ringmq::config::{Machine, Settings};
use ringmq::metrics::Probe;
use ringmq::reactor::{Reactor, ReactorOptions, Seat, Stop, spawn_reactors};

/// Allocations of threads that have marked themselves.
static COUNTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    if COUNTS.try_with(Cell::get).unwrap_or(false) {
        COUNTED.fetch_add(1, Ordering::Relaxed);
    }
}

const CONNECTIONS: usize = 16;
const WINDOW: usize = 64;
const WINDOWS_AHEAD: usize = 2;
const WARM_ROUNDS: usize = 40;
const ROUNDS: usize = 40;
/// Stated bound for windows of 64.
const PER_MESSAGE_MAX: f64 = 0.05;

#[test]
fn a_running_shard_allocates_less_than_once_in_twenty_messages() {
    let dir = support::tempdir("allocations");
    let port = support::ports::broker_block(1);
    let listen = format!("127.0.0.1:{port}");
    let cli = Cli::parse_from([
        "ringmq",
        "broker",
        "--shards",
        "1",
        "--name",
        "counted",
        "--listen",
        &listen,
        "--advertise",
        "127.0.0.1",
        "--data-dir",
        &dir.path().display().to_string(),
    ]);
    let Command::Broker(args) = cli.command else { panic!("a broker was asked for") };
    let settings = Arc::new(Settings::broker(&args, Machine::detect()).expect("settings"));
    let options =
        ReactorOptions { cpus: settings.machine.cpus.clone(), stall: Duration::from_secs(5) };
    let stop = Stop::new();
    let seats = vec![Seat { name: "counted".to_owned(), load: Arc::clone(&settings) }];
    let reactors = spawn_reactors(
        seats,
        &options,
        &stop,
        async |reactor: Reactor, settings: Arc<Settings>| {
            COUNTS.set(true);
            let plan = settings.shards[0].clone();
            let probe = Arc::new(Probe::unwatched(0, "counted"));
            run_shard(&reactor, &settings, &plan, 1000, &probe).await
        },
    )
    .expect("reactors");

    let mut peers: Vec<Peer> = (0..CONNECTIONS).map(|index| Peer::connect(port, index)).collect();
    // Always two windows ahead of the answers, so that the shard never runs dry: what is counted then is the cost of messages and
    // not that of going to sleep and waking up.
    for _ in 0..WINDOWS_AHEAD {
        peers.iter_mut().for_each(Peer::send);
    }
    for _ in 0..WARM_ROUNDS {
        round(&mut peers);
    }
    let before = COUNTED.load(Ordering::Relaxed);
    for _ in 0..ROUNDS {
        round(&mut peers);
    }
    let allocations = COUNTED.load(Ordering::Relaxed) - before;
    for _ in 0..WINDOWS_AHEAD {
        peers.iter_mut().for_each(Peer::read_answers);
    }
    stop.request();
    drop(peers);
    reactors.join().expect("a clean stop");

    let messages = (ROUNDS * CONNECTIONS * WINDOW) as f64;
    let per_message = allocations as f64 / messages;
    println!("{per_message:.4} allocations per message ({allocations} for {messages} messages)");
    assert!(per_message < PER_MESSAGE_MAX, "{per_message:.4} allocations per message");
}

/// Connects as soon as the broker listens.
fn connect(port: u16) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > deadline => {
                panic!("the broker does not listen: {error}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// On every connection the next window goes out, then the answers to the one before are read.
fn round(peers: &mut [Peer]) {
    for peer in peers {
        peer.send();
        peer.read_answers();
    }
}

struct Peer {
    stream: TcpStream,
    burst: Vec<u8>,
    received: Vec<u8>,
    have: usize,
}

impl Peer {
    fn connect(port: u16, index: usize) -> Peer {
        let mut burst = Vec::new();
        for opaque in 0..WINDOW {
            let queue = ((index + opaque) % 4).to_string();
            let properties = format!(
                "UNIQ_KEY\u{1}7F0000010A2B1F89A4F2{index:04X}{opaque:08X}\u{2}TAGS\u{1}TagA\u{2}"
            );
            let ext = support::wire::send_ext("PG", "Counted", &queue, &properties, false);
            let code = support::wire::code::SEND_MESSAGE_V2;
            burst.extend(support::wire::frame(code, opaque as i32, &ext, &[b'x'; 1024]));
        }
        let stream = connect(port);
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        Peer { stream, burst, received: vec![0; 256 * 1024], have: 0 }
    }

    fn send(&mut self) {
        self.stream.write_all(&self.burst).expect("send");
    }

    /// Exactly one window of answers; the beginning of the next may be left in the buffer.
    fn read_answers(&mut self) {
        let (mut have, mut answers) = (self.have, 0);
        loop {
            let mut at = 0;
            while answers < WINDOW
                && let Some(head) = self.received[at..have].first_chunk::<4>()
            {
                let len = 4 + u32::from_be_bytes(*head) as usize;
                if have - at < len {
                    break;
                }
                let frame = &self.received[at..at + len];
                assert!(frame[8..].starts_with(b"{\"code\":0,"), "a send was refused");
                answers += 1;
                at += len;
            }
            self.received.copy_within(at..have, 0);
            have -= at;
            if answers == WINDOW {
                self.have = have;
                return;
            }
            let count = self.stream.read(&mut self.received[have..]).expect("answers");
            assert!(count > 0, "the broker closed the connection");
            have += count;
        }
    }
}
