//! Ten times what the broker can do: connections that push without waiting for answers, consumers that read slowly, and both kinds that
//! never read at all.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::judge::{self, Budgets};
use crate::pair::{self, Pair};
use crate::support::checker::pull_fields;
use crate::support::wire::{Conn, code, put_frame, send_ext};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPIC: &str = "Flood";
const QUEUES: u32 = 8;
const SMALL_BYTES: usize = 200;
const LARGE_BYTES: usize = 64 << 10;
/// What the flood may leave on the disk with large messages.
const LARGE_TOTAL_MAX: u64 = 1 << 30;
/// Stock's answer to a send that finds no room; a stock producer takes another broker then.
const BUSY: &str = "[PC_SYNCHRONIZED]broker busy, start flow control for a while";

/// `RINGMQ_FLOOD_SECONDS`, else a few.
fn seconds() -> u64 {
    let seconds = std::env::var("RINGMQ_FLOOD_SECONDS").ok();
    seconds.map_or(8, |s| s.parse().expect("RINGMQ_FLOOD_SECONDS is a number"))
}

/// How a flooding connection treats its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    All,
    /// Half a kilobyte at a time, twenty times a second.
    Slowly,
    Never,
}

/// A connection that pushes the same requests again and again, as fast as the socket takes them.
struct Pusher {
    stream: TcpStream,
    requests: Vec<u8>,
    at: usize,
    reads: Reads,
    next_read: Instant,
    received: Vec<u8>,
    /// Answers by code and remark.
    answers: BTreeMap<(i32, String), u64>,
    pushed: u64,
    closed: bool,
}

impl Pusher {
    fn new(to: SocketAddr, requests: Vec<u8>, reads: Reads) -> Pusher {
        let stream = TcpStream::connect(to).expect("a connection");
        stream.set_nonblocking(true).expect("a socket that does not block");
        Pusher {
            stream,
            requests,
            at: 0,
            reads,
            next_read: Instant::now(),
            received: Vec::new(),
            answers: BTreeMap::new(),
            pushed: 0,
            closed: false,
        }
    }

    /// One round of both directions; whether anything moved.
    fn turn(&mut self, push: bool) -> bool {
        if self.closed {
            return false;
        }
        let mut moved = false;
        if push || self.at > 0 {
            match self.stream.write(&self.requests[self.at..]) {
                Ok(n) => {
                    self.at = (self.at + n) % self.requests.len();
                    self.pushed += n as u64;
                    moved = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
        }
        let chunk_max = match self.reads {
            Reads::Never => return moved,
            Reads::All => 256 << 10,
            Reads::Slowly if Instant::now() < self.next_read => return moved,
            Reads::Slowly => 512,
        };
        self.next_read = Instant::now() + Duration::from_millis(50);
        let mut chunk = vec![0; chunk_max];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.closed = true,
            Ok(n) => {
                moved = true;
                if self.reads == Reads::All {
                    self.received.extend_from_slice(&chunk[..n]);
                    self.take_answers();
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.closed = true,
        }
        moved
    }

    fn take_answers(&mut self) {
        let mut at = 0;
        loop {
            let have = &self.received[at..];
            if have.len() < 8 {
                break;
            }
            let total = u32::from_be_bytes([have[0], have[1], have[2], have[3]]) as usize;
            let header = u32::from_be_bytes([0, have[5], have[6], have[7]]) as usize;
            if have.len() < 4 + total {
                break;
            }
            let text = std::str::from_utf8(&have[8..8 + header]).expect("a header in UTF-8");
            *self.answers.entry(answer_of(text)).or_default() += 1;
            at += 4 + total;
        }
        self.received.drain(..at);
    }
}

/// Code and remark out of a header, without the cost of a whole parse.
fn answer_of(header: &str) -> (i32, String) {
    let code = header.split_once("\"code\":").map_or("", |(_, rest)| rest);
    let end = code.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(0);
    let code: i32 = code[..end].parse().expect("a code");
    if code == 0 {
        return (0, String::new());
    }
    let remark = header.split_once("\"remark\":\"").map_or("", |(_, rest)| rest);
    (code, remark.split('"').next().unwrap_or_default().to_owned())
}

fn sends(queue: u32, body_len: usize, count: i32) -> Vec<u8> {
    let (queue, body) = (queue.to_string(), vec![b'x'; body_len]);
    let ext = send_ext("flood", TOPIC, &queue, "", false);
    let mut out = Vec::new();
    for opaque in 0..count {
        put_frame(&mut out, code::SEND_MESSAGE_V2, opaque, &ext, &body);
    }
    out
}

fn pulls(queue: u32, count: i32) -> Vec<u8> {
    let queue = queue.to_string();
    let ext = pull_fields(TOPIC, &queue, "0", "0");
    let mut out = Vec::new();
    for opaque in 0..count {
        put_frame(&mut out, code::PULL_MESSAGE, opaque, &ext, &[]);
    }
    out
}

/// All kinds of connections that a flood is made of; fewer for a build that takes fifty times as long for each request.
fn pushers(to: SocketAddr) -> Vec<Pusher> {
    let (small, others) = if cfg!(debug_assertions) { (8, 3) } else { (48, 16) };
    let mut all = Vec::new();
    for n in 0..small {
        all.push(Pusher::new(to, sends(n % QUEUES, SMALL_BYTES, 64), Reads::All));
    }
    for n in 0..others {
        all.push(Pusher::new(to, sends(n % QUEUES, LARGE_BYTES, 4), Reads::All));
        all.push(Pusher::new(to, sends(n % QUEUES, SMALL_BYTES, 64), Reads::Never));
        all.push(Pusher::new(to, pulls(n % QUEUES, 64), Reads::Never));
        all.push(Pusher::new(to, pulls(n % QUEUES, 64), Reads::Slowly));
    }
    all
}

#[test]
fn a_flood_is_held_within_the_budgets_and_those_who_behave_are_served() {
    let _alone = exclusive();
    let budgets = Budgets::default();
    let dir = tempdir("flood");
    let options = Options { config: budgets.config(), ..Options::default() };
    let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
    broker.create_topic(TOPIC, QUEUES);
    let pair = Pair::start(&broker, dir.path(), 200);
    pair.await_more(100);
    let idle_kib = broker.process().memory_kib("VmRSS");
    let conns_before = judge::number(&broker, "ringmqConnections");

    let address = broker.address(0);
    let length = Duration::from_secs(seconds());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let flood = std::thread::spawn(move || run_flood(address, &stopped));
    let began = Instant::now();
    while began.elapsed() < length {
        // What the good ones get while the flood goes on; it waits as long as it takes.
        pair.await_more(10);
    }
    drop(stop);
    let pushers = flood.join().expect("the flood");

    let mut answers: BTreeMap<(i32, String), u64> = BTreeMap::new();
    for pusher in &pushers {
        for (answer, count) in &pusher.answers {
            *answers.entry(answer.clone()).or_default() += count;
        }
    }
    let closed = pushers.iter().filter(|p| p.closed).count();
    println!("answers to the flood: {answers:?}; {closed} of {} closed", pushers.len());
    let busy = (1, BUSY.to_owned());
    assert!(answers.contains_key(&busy), "nothing was refused: this was no flood");
    // 10: stored, but not at its level in time, on a disk that others use too.
    let right = |a: &(i32, String)| matches!(a.0, 0 | 10) || *a == busy;
    assert!(answers.keys().all(right), "another answer: {answers:?}");

    let peak = broker.process().memory_kib("VmHWM");
    let bound = budgets.peak_kib(idle_kib, pushers.len() as u64, 0);
    println!("resident: idle {idle_kib} KiB, peak {peak} KiB, bound {bound} KiB");
    assert!(peak <= bound, "the process had {peak} KiB, its budgets make {bound}");
    drop(pushers);
    judge::await_number(&broker, "ringmqConnections", |n| n <= conns_before);
    judge::await_number(&broker, "ringmqUnwrittenBytes", |n| n < 1 << 20);
    // A stranger finds a broker as good as new.
    pair.await_more(50);
    let mut conn = Conn::open(address).expect("a connection");
    let reply = conn.call(code::GET_MAX_OFFSET, &[("topic", TOPIC), ("queueId", "0")], &[]);
    assert!(reply.is_ok_and(|r| r.code == 0));
    let log = broker.process().log_text();
    judge::assert_no_stall(&log);
    judge::assert_calm_log(&log, 200 + 20 * seconds() as usize);
    let summary = pair.judge(&mut broker);
    assert!(summary.acked > 150, "{summary:?} on {}", pair::TOPIC);
}

/// Floods until told to stop, and gives back the connections, which are still open.
fn run_flood(to: SocketAddr, stopped: &std::sync::mpsc::Receiver<()>) -> Vec<Pusher> {
    let mut pushers = pushers(to);
    while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
        let mut moved = false;
        let mut large = 0;
        for pusher in &mut pushers {
            let is_large = pusher.requests.len() > 4 * LARGE_BYTES;
            large += if is_large { pusher.pushed } else { 0 };
            moved |= pusher.turn(!is_large || large < LARGE_TOTAL_MAX);
        }
        if !moved {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    pushers
}
