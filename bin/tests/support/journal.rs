//! The journal of what a broker has acknowledged, in a directory that it does not use.
//!
//! A message is known by the connection that sent it and its number there; its body and its properties follow from the two, so that a
//! checker can tell any message it meets from every other and find each byte of it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::random::Random;
use super::wire;

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
    /// Whether the sender asked to wait for the broker's level. What was sent with `WAIT=false` is acknowledged in the process's memory
    /// and may be lost with it.
    pub waits: bool,
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

/// One acknowledged delayed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    pub shard: u16,
    pub id: Identity,
    /// Its delay level.
    pub delay: i32,
    /// Where it belongs when its time has come.
    pub queue: i32,
    /// Where it waits until then, in the delay topic's queue of its level.
    pub offset: i64,
    pub message_id: String,
    pub level: Option<String>,
}

/// One message that a consumer has sent back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// Delay level, or -1 for a dead letter.
    pub delay: i32,
    /// The message id of the original.
    pub origin: String,
    pub acked: bool,
}

/// A group's commits for one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commits {
    /// Every value that was ever handed to a socket, in order.
    pub tried: Vec<i64>,
    /// The last one that was answered.
    pub acked: Option<i64>,
}

/// Everything that the broker has told its clients.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub acked: Vec<Acked>,
    pub delayed: Vec<Delayed>,
    /// By shard, group and message.
    pub returned: HashMap<(u16, String, Identity), Returned>,
    /// By shard, group and queue.
    pub commits: HashMap<(u16, String, i32), Commits>,
    /// Topics made: shard, name, queues.
    pub topics: Vec<(u16, String, u32)>,
    /// Consumer groups made: shard, name.
    pub groups: Vec<(u16, String)>,
    /// Messages that made their topic: shard, topic, queue, message.
    pub firsts: Vec<(u16, String, i32, Identity)>,
    /// Answers other than success to the load's sends.
    pub refusals: Vec<Refused>,
    /// Answers other than success to anything else.
    pub refused: Vec<String>,
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

/// What a producer sets as the message's unique key.
pub fn unique_key(id: Identity) -> String {
    format!("{:08X}{:016X}", id.conn, id.seq)
}

/// The message's own first key; its second is shared by others.
pub fn key(id: Identity) -> String {
    format!("k{}-{}", id.conn, id.seq)
}

/// The properties of a message, before what its way of being sent adds: keys, a tag, and noise that is mostly short.
pub fn properties(id: Identity) -> String {
    let mut random = Random::new(!(u64::from(id.conn) << 40 ^ id.seq));
    let tag = if random.below(2) == 0 { "TagA" } else { "TagB" };
    let len = if random.below(50) == 0 { 3_000 } else { random.below(40) };
    let noise: String = (0..len).map(|_| (b'a' + random.below(26) as u8) as char).collect();
    let (unique, key, shared) = (unique_key(id), key(id), id.seq % 97);
    format!(
        "UNIQ_KEY\u{1}{unique}\u{2}KEYS\u{1}{key} shared{shared}\u{2}TAGS\u{1}{tag}\u{2}noise\u{1}{noise}."
    )
}

/// Fowler-Noll-Vo, 64 bits: what the journal's file keeps of a body.
pub fn hash(body: &[u8]) -> u64 {
    body.iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// What was acknowledged, and how far each connection got with sending.
pub struct Journal {
    file: Mutex<BufWriter<File>>,
    told: Mutex<Told>,
    sent: Mutex<HashMap<u32, u64>>,
    count: AtomicU64,
    next_conn: AtomicU32,
}

impl Journal {
    /// A journal in the file `path`, one line an acknowledgement. Of a message: shard, queue, offset, connection, number, body hash,
    /// message id, level.
    pub fn create(path: &Path) -> Arc<Journal> {
        Arc::new(Journal {
            file: Mutex::new(BufWriter::new(File::create(path).expect("the journal's file"))),
            told: Mutex::default(),
            sent: Mutex::default(),
            count: AtomicU64::new(0),
            next_conn: AtomicU32::new(0),
        })
    }

    /// A number that no connection had.
    pub fn new_conn(&self) -> u32 {
        self.next_conn.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes acknowledged messages.
    pub fn add(&self, batch: Vec<Acked>) {
        for a in &batch {
            let hash = hash(&body(a.id));
            let level = a.level.as_deref().unwrap_or("-");
            self.line(&format!(
                "{} {} {} {} {} {hash:016x} {} {level}",
                a.shard, a.queue, a.offset, a.id.conn, a.id.seq, a.message_id
            ));
        }
        self.flush();
        let count = batch.len() as u64;
        self.lock().acked.extend(batch);
        self.count.fetch_add(count, Ordering::Release);
    }

    /// Notes an acknowledged delayed message.
    pub fn add_delayed(&self, delayed: Delayed) {
        self.line(&format!("delayed {delayed:?}"));
        self.flush();
        self.lock().delayed.push(delayed);
    }

    /// Changes what was told otherwise; `line` goes into the file.
    pub fn note(&self, line: &str, change: impl FnOnce(&mut Told)) {
        self.line(line);
        self.flush();
        change(&mut self.lock());
    }

    fn line(&self, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{line}").expect("writing the journal");
    }

    fn flush(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.flush().expect("writing the journal");
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All acknowledgements so far.
    pub fn acked(&self) -> Vec<Acked> {
        self.lock().acked.clone()
    }

    /// Everything told so far.
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    /// Looks at what was told so far.
    pub fn look<T>(&self, look: impl FnOnce(&Told) -> T) -> T {
        look(&self.lock())
    }

    /// Waits until there are `n` acknowledgements in all.
    pub fn await_count(&self, n: u64) {
        let there = wire::eventually(Duration::from_secs(60), || (self.count() >= n).then_some(()));
        assert!(
            there.is_some(),
            "{} acknowledgements of {n} within 60 s; refused: {:?}",
            self.count(),
            self.refused_by_kind()
        );
    }

    /// How often the load's sends were answered with each code and remark other than success.
    pub fn refused_by_kind(&self) -> BTreeMap<(i32, String), usize> {
        let mut kinds = BTreeMap::new();
        for answer in self.refusals() {
            *kinds.entry((answer.code, answer.remark)).or_default() += 1;
        }
        kinds
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether a message was handed to a socket: what a store holds must be among these.
    pub fn was_sent(&self, id: Identity) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(&id.conn).is_some_and(|n| id.seq < *n)
    }

    /// The messages of a connection before `up_to` are about to be handed to its socket.
    pub fn note_sent(&self, conn: u32, up_to: u64) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(conn, up_to);
    }

    /// Answers other than success, as text.
    pub fn refused(&self) -> Vec<String> {
        let refusals = self.refusals();
        let sends = refusals.iter().map(|r| format!("code {} {:?}", r.code, Some(&r.remark)));
        sends.chain(self.look(|told| told.refused.clone())).collect()
    }

    /// Answers other than success to sends of the load.
    pub fn refusals(&self) -> Vec<Refused> {
        self.look(|told| told.refusals.clone())
    }

    /// Notes an answer other than success.
    pub fn note_refused(&self, refused: Refused) {
        self.lock().refusals.push(refused);
    }

    /// Answers other than success and than 10, that the level was not reached in time: how long a disk takes is not for a test to say.
    pub fn refused_in_earnest(&self) -> Vec<String> {
        let late = |r: &String| r.contains("code 10 ") || r.contains("FLUSH_DISK_TIMEOUT");
        self.refused().into_iter().filter(|r| !late(r)).collect()
    }

    /// How many acknowledgements came from one shard.
    pub fn count_of(&self, shard: u16) -> usize {
        self.look(|told| told.acked.iter().filter(|a| a.shard == shard).count())
    }
}
