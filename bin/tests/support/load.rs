//! A load of raw sends whose every acknowledgement goes into a journal, in a directory that the broker does not use.
//!
//! A message is known by the connection that sent it and its number there; its body follows from the two, so that a checker can tell any
//! body it meets from every other and find each byte of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::random::Random;
use super::wire::{self, Conn, Reply, code};

/// Which message: the connection's number in the whole test, and the message's on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub conn: u32,
    pub seq: u64,
}

/// One acknowledged message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acked {
    pub shard: u16,
    pub queue: i32,
    pub offset: i64,
    pub id: Identity,
    /// The broker's message id, as told.
    pub message_id: String,
    /// Ext field `ackLevel` of the reply.
    pub level: Option<String>,
}

/// An answer other than success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub shard: u16,
    /// The first message of the send, and how many it had.
    pub first: Identity,
    pub count: u64,
    pub code: i32,
    pub remark: String,
    /// Ext field `ackLevel`, where the message was stored all the same.
    pub level: Option<String>,
    /// Where it was stored then: queue and offset of the first message.
    pub place: Option<(i32, i64)>,
    /// How long the answer took.
    pub took: Duration,
}

/// The body of a message: its identity in text, then noise that depends on it. Mostly small, now and then long.
pub fn body(id: Identity) -> Vec<u8> {
    let mut random = Random::new(u64::from(id.conn) << 40 ^ id.seq);
    let len = match random.below(100) {
        0 => 20_000 + random.below(60_000),
        1..10 => 2_000 + random.below(6_000),
        _ => 40 + random.below(900),
    } as usize;
    let mut body = format!("{}/{}/", id.conn, id.seq).into_bytes();
    while body.len() < len {
        body.extend_from_slice(&random.next().to_le_bytes());
    }
    body.truncate(len.max(24));
    body
}

/// The identity that a body begins with.
pub fn identity(body: &[u8]) -> Option<Identity> {
    let mut parts = body.split(|b| *b == b'/');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    Some(Identity { conn: u32::try_from(number()?).ok()?, seq: number()? })
}

/// Fowler-Noll-Vo, 64 bits: what the journal keeps of a body.
pub fn hash(body: &[u8]) -> u64 {
    body.iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// What was acknowledged, and how far each connection got with sending.
pub struct Journal {
    file: Mutex<BufWriter<File>>,
    acked: Mutex<Vec<Acked>>,
    sent: Mutex<HashMap<u32, u64>>,
    refused: Mutex<Vec<Refused>>,
    count: AtomicU64,
    next_conn: AtomicU64,
}

impl Journal {
    /// A journal in the file `path`, one line an acknowledgement: shard, queue, offset, connection, number, body hash, message id, level.
    pub fn create(path: &Path) -> Arc<Journal> {
        Arc::new(Journal {
            file: Mutex::new(BufWriter::new(File::create(path).expect("the journal's file"))),
            acked: Mutex::default(),
            sent: Mutex::default(),
            refused: Mutex::default(),
            count: AtomicU64::new(0),
            next_conn: AtomicU64::new(0),
        })
    }

    fn add(&self, batch: Vec<Acked>) {
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            for a in &batch {
                let hash = hash(&body(a.id));
                let level = a.level.as_deref().unwrap_or("-");
                writeln!(
                    file,
                    "{} {} {} {} {} {hash:016x} {} {level}",
                    a.shard, a.queue, a.offset, a.id.conn, a.id.seq, a.message_id
                )
                .expect("writing the journal");
            }
            file.flush().expect("writing the journal");
        }
        self.count.fetch_add(batch.len() as u64, Ordering::Release);
        self.acked.lock().unwrap_or_else(PoisonError::into_inner).extend(batch);
    }

    /// All acknowledgements so far.
    pub fn acked(&self) -> Vec<Acked> {
        self.acked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until there are `n` acknowledgements in all.
    pub fn await_count(&self, n: u64) {
        let there = wire::eventually(Duration::from_secs(60), || (self.count() >= n).then_some(()));
        assert!(
            there.is_some(),
            "{} acknowledgements of {n} within 60 s; refused: {:?}",
            self.count(),
            self.refused()
        );
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether a message was handed to a socket: what a store holds must be among these.
    pub fn was_sent(&self, id: Identity) -> bool {
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id.conn)
            .is_some_and(|n| id.seq < *n)
    }

    fn note_sent(&self, conn: u32, up_to: u64) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(conn, up_to);
    }

    /// Answers other than success, as text.
    pub fn refused(&self) -> Vec<String> {
        let refusals = self.refusals();
        refusals.iter().map(|r| format!("code {} {:?}", r.code, Some(&r.remark))).collect()
    }

    /// Answers other than success.
    pub fn refusals(&self) -> Vec<Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many acknowledgements came from one shard.
    pub fn count_of(&self, shard: u16) -> usize {
        let acked = self.acked.lock().unwrap_or_else(PoisonError::into_inner);
        acked.iter().filter(|a| a.shard == shard).count()
    }
}

/// How a load is made.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    pub topic: String,
    /// Queues of the topic on each shard.
    pub queues: u32,
    /// Connections to each shard.
    pub conns: u32,
    /// Requests in flight on each.
    pub window: usize,
    /// Messages a second in all, at most.
    pub rate_max: u64,
}

/// A load at work. It goes on until it is stopped or its connections break.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    last_ack: Vec<Arc<LastAck>>,
}

/// When a connection was last answered, and the longest it has waited.
pub struct LastAck {
    pub shard: u16,
    began: Instant,
    last_ms: AtomicU64,
    gap_max_ms: AtomicU64,
}

impl LastAck {
    fn note(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let gap = now.saturating_sub(self.last_ms.swap(now, Ordering::Relaxed));
        self.gap_max_ms.fetch_max(gap, Ordering::Relaxed);
    }
}

impl Load {
    /// Starts sending to the shards at `shards`.
    pub fn start(shards: &[SocketAddr], spec: &LoadSpec, journal: &Arc<Journal>) -> Load {
        Load::start_on(&(0..).zip(shards.iter().copied()).collect::<Vec<_>>(), spec, journal)
    }

    /// The same for some shards of a broker, each with its number.
    pub fn start_on(shards: &[(u16, SocketAddr)], spec: &LoadSpec, journal: &Arc<Journal>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Load { stop: stop.clone(), threads: Vec::new(), last_ack: Vec::new() };
        let rate = spec.rate_max / (shards.len() as u64 * u64::from(spec.conns)).max(1);
        for (shard, address) in shards {
            for _ in 0..spec.conns {
                let conn = journal.next_conn.fetch_add(1, Ordering::Relaxed) as u32;
                let last = Arc::new(LastAck {
                    shard: *shard,
                    began: Instant::now(),
                    last_ms: AtomicU64::new(0),
                    gap_max_ms: AtomicU64::new(0),
                });
                let mut sender = Sender {
                    conn,
                    shard: *shard,
                    spec: spec.clone(),
                    rate: rate.max(1),
                    journal: journal.clone(),
                    next: 0,
                    in_flight: HashMap::new(),
                    random: Random::new(u64::from(conn)),
                    last: last.clone(),
                };
                let (stop, address) = (stop.clone(), *address);
                load.last_ack.push(last);
                load.threads.push(std::thread::spawn(move || sender.run(address, &stop)));
            }
        }
        load
    }

    /// No new sends; waits until what is in flight is answered or the connections are gone.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a sender");
        }
    }

    /// Forgets the gaps seen so far.
    pub fn reset_gaps(&self) {
        for last in &self.last_ack {
            last.gap_max_ms.store(0, Ordering::Relaxed);
        }
    }

    /// The longest time that some connection to each shard waited for its next acknowledgement.
    pub fn gaps(&self) -> HashMap<u16, Duration> {
        let mut gaps = HashMap::new();
        for last in &self.last_ack {
            let gap = Duration::from_millis(last.gap_max_ms.load(Ordering::Relaxed));
            let known: &mut Duration = gaps.entry(last.shard).or_default();
            *known = (*known).max(gap);
        }
        gaps
    }
}

struct Sender {
    conn: u32,
    shard: u16,
    spec: LoadSpec,
    rate: u64,
    journal: Arc<Journal>,
    next: u64,
    /// First message, how many, and when they were sent, by opaque.
    in_flight: HashMap<i32, (u64, u64, Instant)>,
    random: Random,
    last: Arc<LastAck>,
}

impl Sender {
    fn run(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let Ok(mut conn) = Conn::open(address) else { return };
        // An error is the end of this connection: what it had in flight stays unacknowledged.
        let _ = self.send_until(&mut conn, stop);
    }

    fn send_until(&mut self, conn: &mut Conn, stop: &AtomicBool) -> std::io::Result<()> {
        let began = Instant::now();
        let mut opaque = 0;
        let mut out = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let due = (began.elapsed().as_secs_f64() * self.rate as f64) as u64 + 1;
            out.clear();
            while self.in_flight.len() < self.spec.window && self.next < due {
                opaque += 1;
                self.put_request(&mut out, opaque);
            }
            self.journal.note_sent(self.conn, self.next);
            conn.write(&out)?;
            if self.in_flight.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.take_replies(conn)?;
        }
        while !self.in_flight.is_empty() {
            self.take_replies(conn)?;
        }
        Ok(())
    }

    /// A single message, or now and then a batch of up to eight.
    fn put_request(&mut self, out: &mut Vec<u8>, opaque: i32) {
        let queue = self.random.below(u64::from(self.spec.queues)).to_string();
        let count = if self.random.below(10) == 0 { 2 + self.random.below(7) } else { 1 };
        let (first, batch) = (self.next, count > 1);
        self.next += count;
        self.in_flight.insert(opaque, (first, count, Instant::now()));
        let key = |seq: u64| format!("UNIQ_KEY\u{1}{:08X}{seq:016X}", self.conn);
        let (body, properties) = if batch {
            let mut body = Vec::new();
            for seq in first..first + count {
                put_batched(&mut body, &self::body(Identity { conn: self.conn, seq }), &key(seq));
            }
            (body, "WAIT\u{1}true".to_owned())
        } else {
            (
                self::body(Identity { conn: self.conn, seq: first }),
                format!("{}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA", key(first)),
            )
        };
        let ext = wire::send_ext("journal", &self.spec.topic, &queue, &properties, batch);
        let code = if batch { code::SEND_BATCH_MESSAGE } else { code::SEND_MESSAGE_V2 };
        wire::put_frame(out, code, opaque, &ext, &body);
    }

    fn take_replies(&mut self, conn: &mut Conn) -> std::io::Result<()> {
        let mut acked = Vec::new();
        let mut reply = conn.read_reply()?;
        loop {
            self.judge(&reply, &mut acked);
            match conn.buffered_reply()? {
                Some(next) => reply = next,
                None => break,
            }
        }
        self.last.note();
        self.journal.add(acked);
        Ok(())
    }

    fn judge(&mut self, reply: &Reply, acked: &mut Vec<Acked>) {
        let (first, count, began) =
            self.in_flight.remove(&reply.opaque).expect("a reply to a request that was sent");
        if reply.code != 0 {
            let mut refused = self.journal.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.push(Refused {
                shard: self.shard,
                first: Identity { conn: self.conn, seq: first },
                count,
                code: reply.code,
                remark: reply.remark.clone().unwrap_or_default(),
                level: reply.ext("ackLevel").map(str::to_owned),
                place: reply
                    .ext("queueOffset")
                    .map(|_| (reply.number("queueId") as i32, reply.number("queueOffset"))),
                took: began.elapsed(),
            });
            return;
        }
        let ids: Vec<&str> = reply.ext("msgId").unwrap_or_default().split(',').collect();
        assert_eq!(ids.len() as u64, count, "a message id for each message: {reply:?}");
        for (i, message_id) in (0..count).zip(ids) {
            acked.push(Acked {
                shard: self.shard,
                queue: reply.number("queueId") as i32,
                offset: reply.number("queueOffset") + i as i64,
                id: Identity { conn: self.conn, seq: first + i },
                message_id: message_id.to_owned(),
                level: reply.ext("ackLevel").map(str::to_owned),
            });
        }
    }
}

fn put_batched(out: &mut Vec<u8>, body: &[u8], properties: &str) {
    out.extend_from_slice(&((22 + body.len() + properties.len()) as u32).to_be_bytes());
    out.extend_from_slice(&[0; 12]); // magic, body CRC, flag
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
}
