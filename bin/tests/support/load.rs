//! A load of raw sends whose every acknowledgement goes into a journal: single messages, batches, messages that do not wait for their
//! level, and oneway messages, which nobody acknowledges. What consumers, delays and retries add is in [`super::mixed`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use super::journal::{Acked, Identity, Journal, Refused, body, hash, identity, properties};
use super::random::Random;
use super::wire::{self, Conn, Reply, code};

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
    /// Starts sending to the shards at `shards`, single messages and batches that wait for the broker's level.
    pub fn start(shards: &[SocketAddr], spec: &LoadSpec, journal: &Arc<Journal>) -> Load {
        Load::start_as(&numbered(shards), spec, journal, false)
    }

    /// The same for some shards of a broker, each with its number.
    pub fn start_on(shards: &[(u16, SocketAddr)], spec: &LoadSpec, journal: &Arc<Journal>) -> Load {
        Load::start_as(shards, spec, journal, false)
    }

    /// As [`Load::start`], with messages that do not wait and oneway messages among them.
    pub fn start_varied(shards: &[SocketAddr], spec: &LoadSpec, journal: &Arc<Journal>) -> Load {
        Load::start_as(&numbered(shards), spec, journal, true)
    }

    fn start_as(
        shards: &[(u16, SocketAddr)],
        spec: &LoadSpec,
        journal: &Arc<Journal>,
        varied: bool,
    ) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Load { stop: stop.clone(), threads: Vec::new(), last_ack: Vec::new() };
        let rate = spec.rate_max / (shards.len() as u64 * u64::from(spec.conns)).max(1);
        for (shard, address) in shards {
            for _ in 0..spec.conns {
                let conn = journal.new_conn();
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
                    varied,
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

fn numbered(shards: &[SocketAddr]) -> Vec<(u16, SocketAddr)> {
    (0..).zip(shards.iter().copied()).collect()
}

/// What one request carries.
#[derive(Clone, Copy)]
struct InFlight {
    first: u64,
    count: u64,
    waits: bool,
    began: Instant,
}

struct Sender {
    conn: u32,
    shard: u16,
    spec: LoadSpec,
    varied: bool,
    rate: u64,
    journal: Arc<Journal>,
    next: u64,
    /// By opaque.
    in_flight: HashMap<i32, InFlight>,
    random: Random,
    last: Arc<LastAck>,
}

impl Sender {
    fn run(&mut self, address: SocketAddr, stop: &AtomicBool) {
        // An error is the end of this connection: what it had in flight stays unacknowledged.
        let ended = Conn::open(address).and_then(|mut conn| self.send_until(&mut conn, stop));
        if let Err(error) = ended {
            println!("load: connection {} to {address} ended: {error}", self.conn);
        }
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

    /// A single message, or now and then a batch of up to eight; of a varied load also one that does not wait for its level, or a oneway
    /// one.
    fn put_request(&mut self, out: &mut Vec<u8>, opaque: i32) {
        let queue = self.random.below(u64::from(self.spec.queues)).to_string();
        let (batch, oneway, waits) = match self.random.below(100) {
            0..10 => (true, false, true),
            10..13 if self.varied => (false, true, true),
            13..16 if self.varied => (false, false, false),
            _ => (false, false, true),
        };
        let count = if batch { 2 + self.random.below(7) } else { 1 };
        let first = self.next;
        self.next += count;
        if !oneway {
            self.in_flight.insert(opaque, InFlight { first, count, waits, began: Instant::now() });
        }
        let id = |seq| Identity { conn: self.conn, seq };
        let (body, properties) = if batch {
            let mut body = Vec::new();
            for seq in first..first + count {
                put_batched(&mut body, &self::body(id(seq)), &properties(id(seq)));
            }
            (body, "WAIT\u{1}true".to_owned())
        } else {
            (self::body(id(first)), format!("{}\u{2}WAIT\u{1}{waits}", properties(id(first))))
        };
        let ext = wire::send_ext("journal", &self.spec.topic, &queue, &properties, batch);
        let code = if batch { code::SEND_BATCH_MESSAGE } else { code::SEND_MESSAGE_V2 };
        let flag = if oneway { wire::ONEWAY } else { 0 };
        wire::put_flagged(out, code, flag, opaque, &ext, &body);
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
        let InFlight { first, count, waits, began } =
            self.in_flight.remove(&reply.opaque).expect("a reply to a request that was sent");
        if reply.code != 0 {
            self.journal.note_refused(Refused {
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
                waits,
            });
        }
    }
}

/// Appends a message of a batch.
pub fn put_batched(out: &mut Vec<u8>, body: &[u8], properties: &str) {
    out.extend_from_slice(&((22 + body.len() + properties.len()) as u32).to_be_bytes());
    out.extend_from_slice(&[0; 12]); // magic, body CRC, flag
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
}
