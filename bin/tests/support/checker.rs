//! Judges what a broker serves by a journal of acknowledgements. It pulls every queue from the beginning, decodes the records by itself and
//! holds against them: each acknowledged message once, at the queue and offset that were told, every byte of it; offsets without a hole;
//! the order of each connection's sends kept in each queue and in the log; nothing that was not sent; nothing twice.
//!
//! What it finds wrong is one line of text, so that its own tests can lie to it: `faults/checker.rs`.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::Target;
use super::journal::{Acked, Identity, Journal, body, identity, properties};
use super::record::Record;
use super::wire::{Conn, Reply, code};

/// Gives up with a line of text unless something holds.
macro_rules! hold {
    ($what:expr, $($why:tt)+) => {
        if !$what {
            return Err(format!($($why)+));
        }
    };
}
pub(crate) use hold;

/// A place in a store: shard, queue, queue offset.
pub type Place = (u16, i32, i64);

/// What stood at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub id: Identity,
    pub physical_offset: i64,
}

/// What a topic holds, place by place. Kept from one check to the next, it also shows whether a place changed.
#[derive(Debug, Default, Clone)]
pub struct Checker {
    /// Every record ever seen by a check or a watcher.
    pub seen: HashMap<Place, Found>,
    where_is: HashMap<Identity, Place>,
}

/// What one check went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records that are there.
    pub records: u64,
    /// Acknowledgements judged.
    pub acked: u64,
    /// Acknowledged messages that are not there; only [`Checker::check_allowing_loss`] lets this be.
    pub lost: u64,
    /// Messages that are not there and were acknowledged in memory, as their senders had asked: this may be.
    pub lost_unwaited: u64,
    /// Places that a check or a watcher once saw filled and that are beyond the queue's end now; as `lost`.
    pub vanished: u64,
}

/// How strict a check is.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Whether requests on one connection are stored in the order they were sent in (a stock broker has several threads for them).
    pub ordered: bool,
    /// The `ackLevel` that each reply must have carried, `memory` for messages that did not wait.
    pub level: Option<&'static str>,
    /// Whether every queue must begin at 0: a stock broker that lost pages in a crash may begin later.
    pub whole: bool,
}

impl Rules {
    /// What holds for this kind of broker; `level` is the one that RingMQ was started with.
    pub fn of(target: Target, level: &'static str) -> Rules {
        Rules {
            ordered: !target.is_stock(),
            level: (!target.is_stock()).then_some(level),
            whole: true,
        }
    }

    /// The reply's level is the one that was promised, and no other: a higher one would be a lie, too.
    pub fn judge_level(&self, level: Option<&str>, waits: bool, what: &str) -> Result<(), String> {
        let Some(promised) = self.level else { return Ok(()) };
        let promised = if waits { promised } else { "memory" };
        hold!(level == Some(promised), "ackLevel of {what} is {level:?} instead of {promised}");
        Ok(())
    }
}

impl Checker {
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Checks all queues of `topic` on `shards` against all that `journal` has.
    pub fn check(
        &mut self,
        shards: &[SocketAddr],
        topic: &str,
        queues: u32,
        journal: &Journal,
        rules: Rules,
    ) -> Summary {
        let acked = journal.acked();
        let summary = self.check_allowing_loss(shards, topic, queues, journal, &acked, rules);
        assert_eq!(summary.lost, 0, "acknowledged messages are lost: {summary:?}");
        assert_eq!(summary.vanished, 0, "messages that were seen are gone: {summary:?}");
        summary
    }

    /// As [`Checker::check`], by the acknowledgements given, and lost messages are only counted. A lost tail frees its offsets: the
    /// places that are beyond a queue's end now are forgotten.
    pub fn check_allowing_loss(
        &mut self,
        shards: &[SocketAddr],
        topic: &str,
        queues: u32,
        journal: &Journal,
        acked: &[Acked],
        rules: Rules,
    ) -> Summary {
        self.try_check(shards, topic, queues, journal, acked, rules)
            .unwrap_or_else(|why| panic!("{topic}: {why}"))
    }

    /// As [`Checker::check_allowing_loss`].
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn try_check(
        &mut self,
        shards: &[SocketAddr],
        topic: &str,
        queues: u32,
        journal: &Journal,
        acked: &[Acked],
        rules: Rules,
    ) -> Result<Summary, String> {
        let mut summary = Summary::default();
        for (shard, address) in shards.iter().enumerate() {
            let shard = shard as u16;
            let mut conn = Conn::open(*address).map_err(|e| format!("connecting: {e}"))?;
            for queue in 0..queues as i32 {
                let max = scan(&mut conn, topic, queue, rules.whole, |record| {
                    self.take(shard, record, journal)
                })
                .map_err(|why| format!("shard {shard}, queue {queue}: {why}"))?;
                summary.records += max as u64;
                summary.vanished += self.forget_beyond(shard, queue, max);
            }
        }
        for ack in acked {
            self.judge(ack, rules, &mut summary)?;
        }
        if rules.ordered && rules.whole {
            self.check_order()?;
        }
        Ok(summary)
    }

    /// One acknowledgement against what is there.
    fn judge(&self, ack: &Acked, rules: Rules, summary: &mut Summary) -> Result<(), String> {
        summary.acked += 1;
        let place = (ack.shard, ack.queue, ack.offset);
        rules.judge_level(ack.level.as_deref(), ack.waits, &format!("the reply for {place:?}"))?;
        let found = self.seen.get(&place).filter(|found| ack.waits || found.id == ack.id);
        let Some(found) = found else {
            // Elsewhere it would not be lost but misplaced.
            let elsewhere = self.where_is.get(&ack.id);
            hold!(elsewhere.is_none(), "{:?} is at {elsewhere:?} instead of {place:?}", ack.id);
            *(if ack.waits { &mut summary.lost } else { &mut summary.lost_unwaited }) += 1;
            return Ok(());
        };
        hold!(
            found.id == ack.id,
            "another message ({:?}) stands at {place:?} than the one acknowledged there ({:?})",
            found.id,
            ack.id
        );
        hold!(
            physical_offset(&ack.message_id) == Some(found.physical_offset),
            "message id {} does not say the record's offset {}",
            ack.message_id,
            found.physical_offset
        );
        Ok(())
    }

    /// Forgets the places beyond a queue's end; gives how many there were.
    fn forget_beyond(&mut self, shard: u16, queue: i32, max: i64) -> u64 {
        let before = self.seen.len();
        self.seen.retain(|(s, q, o), _| *s != shard || *q != queue || *o < max);
        self.where_is.retain(|_, (s, q, o)| *s != shard || *q != queue || *o < max);
        (before - self.seen.len()) as u64
    }

    /// One record: sent by somebody, byte for byte, never seen elsewhere, and what stood there before if anything did.
    fn take(&mut self, shard: u16, record: &Record<'_>, journal: &Journal) -> Result<(), String> {
        let place = (shard, record.queue_id, record.queue_offset);
        let id = known(record, journal)?;
        same_properties(record, &properties(id), &[&[], &[("WAIT", "true")]])?;
        hold!(record.reconsume_times == 0, "{id:?} was consumed {} times", record.reconsume_times);
        let found = Found { id, physical_offset: record.physical_offset };
        if let Some(before) = self.seen.insert(place, found) {
            hold!(before == found, "what was seen at {place:?} was {before:?} and is {found:?}");
        }
        if let Some(elsewhere) = self.where_is.insert(id, place) {
            hold!(elsewhere == place, "{id:?} is there twice: at {elsewhere:?} and {place:?}");
        }
        Ok(())
    }

    /// Each connection's messages stand in the log in the order they were sent in, and so in each queue.
    fn check_order(&self) -> Result<(), String> {
        let mut sent: Vec<(u16, Identity, i64, Place)> = self
            .seen
            .iter()
            .map(|(place, found)| (place.0, found.id, found.physical_offset, *place))
            .collect();
        sent.sort_unstable();
        for pair in sent.windows(2) {
            let ((shard, id, at, place), (next_shard, next, next_at, next_place)) =
                (pair[0], pair[1]);
            if (shard, id.conn) == (next_shard, next.conn) {
                hold!(
                    at < next_at,
                    "{next:?} at {next_place:?} stands before {id:?} at {place:?}, which was sent first"
                );
            }
        }
        Ok(())
    }
}

/// The physical offset that a message id of an IPv4 broker says.
pub fn physical_offset(message_id: &str) -> Option<i64> {
    i64::from_str_radix(message_id.get(16..)?, 16).ok()
}

/// Whose message a record is: of the journal, every byte of its body.
pub fn known(record: &Record<'_>, journal: &Journal) -> Result<Identity, String> {
    let at = record.queue_offset;
    let id = identity(record.body).ok_or_else(|| format!("the body at {at} is nobody's"))?;
    hold!(journal.was_sent(id), "{id:?} at {at} was never sent");
    hold!(record.body == body(id), "the body of {id:?} at {at} is not what was sent");
    Ok(id)
}

/// The record's properties are those of `text`, the cluster's name, and one of the `more`: no other, none missing, none changed. Their order
/// is not looked at (a stock broker keeps none).
pub fn same_properties(
    record: &Record<'_>,
    text: &str,
    more: &[&[(&str, &str)]],
) -> Result<(), String> {
    let pairs = |text| {
        let mut pairs: Vec<(String, String)> = split_properties(text);
        pairs.sort_unstable();
        pairs
    };
    let mut there = pairs(record.properties);
    if let Some(at) = there.iter().position(|(name, _)| name == "CLUSTER") {
        there.remove(at);
    }
    // What stock 5 stores besides: its defaults, which 4.9 only tells in replies.
    for (name, value) in [("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true")] {
        there.retain(|(n, v)| (&**n, &**v) != (name, value));
    }
    let matches = more.iter().any(|more| {
        let mut wanted = pairs(text);
        wanted.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        wanted.sort_unstable();
        wanted == there
    });
    hold!(
        matches,
        "properties at {} are {:?}, not {text:?} and one of {more:?}",
        record.queue_offset,
        record.properties
    );
    Ok(())
}

/// The entries of a properties text.
pub fn split_properties(text: &str) -> Vec<(String, String)> {
    text.split('\u{2}')
        .filter(|entry| !entry.is_empty())
        .map(|entry| entry.split_once('\u{1}').unwrap_or((entry, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Pulls a queue from its beginning to the end that it has now, each record of it to `take`, and returns the end. Offsets are dense, and
/// physical offsets rise.
pub fn scan(
    conn: &mut Conn,
    topic: &str,
    queue: i32,
    whole: bool,
    mut take: impl FnMut(&Record<'_>) -> Result<(), String>,
) -> Result<i64, String> {
    let end = |conn: &mut Conn, code| {
        let reply = conn
            .call(code, &[("topic", topic), ("queueId", &queue.to_string())], &[])
            .map_err(|e| format!("a queue's end: {e}"))?;
        hold!(reply.code == 0, "a queue's end: {reply:?}");
        Ok(reply.number("offset"))
    };
    let (min, max) = (end(conn, code::GET_MIN_OFFSET)?, end(conn, code::GET_MAX_OFFSET)?);
    hold!(min == 0 || !whole, "nothing was deleted, yet the queue begins at {min}");
    let (mut at, mut physical) = (min, -1);
    while at < max {
        let reply = pull(conn, topic, queue, at, 0).map_err(|e| format!("a pull: {e}"))?;
        hold!(reply.code == 0, "pull of {topic} at {at} of {max}: {:?}", reply.remark);
        let records = Record::all(&reply.body)?;
        hold!(!records.is_empty(), "an empty pull at {at} of {max}");
        // What has come since the end was asked for is left out.
        for record in records.into_iter().take((max - at) as usize) {
            hold!(record.topic == topic, "a record of topic {} at {at}", record.topic);
            hold!(
                (record.queue_offset, record.queue_id) == (at, queue),
                "queue offsets are not dense: record {} of queue {} at {at}",
                record.queue_offset,
                record.queue_id
            );
            hold!(record.physical_offset > physical, "physical offsets fall at {at}");
            hold!(
                record.body_crc == crc32(record.body),
                "body CRC of the record at {at} is {:#x}",
                record.body_crc
            );
            physical = record.physical_offset;
            take(&record)?;
            at += 1;
        }
    }
    Ok(max)
}

/// RocketMQ's body CRC: CRC-32 (IEEE), 31 bits of it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc = TABLE[((crc ^ u32::from(*byte)) & 0xFF) as usize] ^ (crc >> 8);
    }
    !crc & 0x7FFF_FFFF
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xEDB8_8320 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// A pull of up to 32 messages with its own subscription to all, waiting up to `suspend_ms`.
pub fn pull(
    conn: &mut Conn,
    topic: &str,
    queue: i32,
    offset: i64,
    suspend_ms: u64,
) -> std::io::Result<Reply> {
    let numbers = (queue.to_string(), offset.to_string(), suspend_ms.to_string());
    let ext = pull_fields(topic, &numbers.0, &numbers.1, &numbers.2);
    conn.call(code::PULL_MESSAGE, &ext, &[])
}

/// The fields of such a pull.
pub fn pull_fields<'a>(
    topic: &'a str,
    queue: &'a str,
    offset: &'a str,
    suspend_ms: &'a str,
) -> [(&'a str, &'a str); 11] {
    [
        ("consumerGroup", "checker"),
        ("topic", topic),
        ("queueId", queue),
        ("queueOffset", offset),
        ("maxMsgNums", "32"),
        ("sysFlag", if suspend_ms == "0" { "4" } else { "6" }),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", suspend_ms),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ]
}

/// A message as a queue has it, for tests that judge by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub queue: i32,
    pub offset: i64,
    pub body: Vec<u8>,
    pub properties: String,
}

/// All messages of a topic on one shard.
pub fn read_all(address: SocketAddr, topic: &str, queues: u32) -> Vec<Message> {
    let mut messages = Vec::new();
    read_each(address, topic, queues, |message| messages.push(message));
    messages
}

/// The same, one after the other: of more than fits into memory.
pub fn read_each(address: SocketAddr, topic: &str, queues: u32, mut see: impl FnMut(Message)) {
    let mut conn = Conn::open(address).expect("a connection to the broker");
    for queue in 0..queues as i32 {
        let mut at = 0;
        loop {
            let reply = pull(&mut conn, topic, queue, at, 0).expect("a pull");
            if reply.code != 0 {
                assert!(
                    matches!(reply.code, 19 | 21),
                    "pull of {topic} {queue} at {at}: {reply:?}"
                );
                break;
            }
            for record in Record::all(&reply.body).expect("records") {
                assert_eq!(record.queue_offset, at, "queue offsets are dense");
                at += 1;
                see(Message {
                    queue,
                    offset: record.queue_offset,
                    body: record.body.to_vec(),
                    properties: record.properties.to_owned(),
                });
            }
        }
    }
}

/// Watches all queues as a consumer does, until the connection breaks: what it saw must be there for ever.
pub fn watch(
    shards: &[SocketAddr],
    topic: &str,
    queues: u32,
    from: &HashMap<(u16, i32), i64>,
) -> Vec<std::thread::JoinHandle<Vec<(Place, Found)>>> {
    let mut threads = Vec::new();
    for (shard, address) in shards.iter().enumerate() {
        for queue in 0..queues as i32 {
            let (address, topic, shard) = (*address, topic.to_owned(), shard as u16);
            let mut at = from.get(&(shard, queue)).copied().unwrap_or(0);
            threads.push(std::thread::spawn(move || {
                let mut seen = Vec::new();
                let Ok(mut conn) = Conn::open(address) else { return seen };
                while let Ok(reply) = pull(&mut conn, &topic, queue, at, 5_000) {
                    if reply.code != 0 {
                        continue;
                    }
                    for record in Record::all(&reply.body).expect("records") {
                        assert_eq!(record.queue_offset, at, "queue offsets are dense");
                        let id = identity(record.body).expect("a body of the load");
                        seen.push((
                            (shard, queue, at),
                            Found { id, physical_offset: record.physical_offset },
                        ));
                        at += 1;
                    }
                }
                seen
            }));
        }
    }
    threads
}

impl Checker {
    /// Adds what watchers saw: the next check holds the store to it.
    pub fn hold_to(&mut self, seen: Vec<(Place, Found)>) -> usize {
        let count = seen.len();
        for (place, found) in seen {
            if let Some(before) = self.seen.insert(place, found) {
                assert_eq!(before, found, "a consumer saw two messages at {place:?}");
            }
        }
        count
    }

    /// Where each queue ended at the last check.
    pub fn ends(&self) -> HashMap<(u16, i32), i64> {
        let mut ends = HashMap::new();
        for (shard, queue, offset) in self.seen.keys() {
            let end: &mut i64 = ends.entry((*shard, *queue)).or_default();
            *end = (*end).max(offset + 1);
        }
        ends
    }
}
