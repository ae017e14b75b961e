//! Judges what a broker serves by a journal of acknowledgements. It pulls every queue from the beginning, decodes the records by itself and
//! holds against them: each acknowledged message once, at the queue and offset that were told, every byte of it; offsets without a hole;
//! the order of each connection's sends kept in each queue; nothing that was not sent; nothing twice.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::Target;
use super::load::{Acked, Identity, Journal, body, identity};
use super::record::Record;
use super::wire::{Conn, Reply, code};

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
    /// Places that a check or a watcher once saw filled and that are beyond the queue's end now; as `lost`.
    pub vanished: u64,
}

/// How strict a check is.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Whether requests on one connection are stored in the order they were sent in (a stock broker has several threads for them).
    pub ordered: bool,
    /// The `ackLevel` that each reply must have carried.
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
        let mut summary = Summary::default();
        for (shard, address) in shards.iter().enumerate() {
            let shard = shard as u16;
            let mut conn = Conn::open(*address).expect("a connection to the broker");
            for queue in 0..queues as i32 {
                let max = self.read_queue(&mut conn, shard, topic, queue, journal, rules);
                summary.records += max as u64;
                summary.vanished += self.forget_beyond(shard, queue, max);
                if rules.ordered && rules.whole {
                    self.check_order(shard, queue, max);
                }
            }
        }
        for ack in acked {
            summary.acked += 1;
            let place = (ack.shard, ack.queue, ack.offset);
            match self.seen.get(&place) {
                None => summary.lost += 1,
                Some(found) => {
                    assert_eq!(
                        found.id, ack.id,
                        "another message stands at {place:?} than the one acknowledged there"
                    );
                    let told =
                        ack.message_id.get(16..).and_then(|hex| i64::from_str_radix(hex, 16).ok());
                    assert_eq!(
                        told,
                        Some(found.physical_offset),
                        "message id {} and the record's offset",
                        ack.message_id
                    );
                }
            }
            if let Some(level) = rules.level {
                assert_eq!(
                    ack.level.as_deref(),
                    Some(level),
                    "ackLevel of the reply for {place:?}"
                );
            }
        }
        summary
    }

    /// Pulls a queue from the beginning to its end and returns the end.
    fn read_queue(
        &mut self,
        conn: &mut Conn,
        shard: u16,
        topic: &str,
        queue: i32,
        journal: &Journal,
        rules: Rules,
    ) -> i64 {
        let end = |conn: &mut Conn, code| {
            let reply = conn
                .call(code, &[("topic", topic), ("queueId", &queue.to_string())], &[])
                .expect("a queue's end");
            assert_eq!(reply.code, 0, "{reply:?}");
            reply.number("offset")
        };
        let (min, max) = (end(conn, code::GET_MIN_OFFSET), end(conn, code::GET_MAX_OFFSET));
        assert!(
            min == 0 || !rules.whole,
            "nothing was deleted, yet queue {queue} of shard {shard} begins at {min}"
        );
        let mut at = min;
        let mut physical = -1;
        while at < max {
            let reply = pull(conn, topic, queue, at, 0).expect("a pull");
            assert_eq!(
                reply.code, 0,
                "pull of {topic} {queue} at {at} of {max} on shard {shard}: {:?}",
                reply.remark
            );
            let records = Record::all(&reply.body).expect("records");
            assert!(!records.is_empty(), "an empty pull at {at} of {max}");
            for record in records {
                assert_eq!(
                    (record.queue_offset, record.queue_id),
                    (at, queue),
                    "queue offsets are dense"
                );
                assert!(record.physical_offset > physical, "physical offsets rise along a queue");
                physical = record.physical_offset;
                self.take(shard, topic, &record, journal);
                at += 1;
            }
        }
        assert_eq!(at, max, "the queue's end");
        max
    }

    /// Forgets the places beyond a queue's end; gives how many there were.
    fn forget_beyond(&mut self, shard: u16, queue: i32, max: i64) -> u64 {
        let before = self.seen.len();
        self.seen.retain(|(s, q, o), _| *s != shard || *q != queue || *o < max);
        self.where_is.retain(|_, (s, q, o)| *s != shard || *q != queue || *o < max);
        (before - self.seen.len()) as u64
    }

    /// One record: of the topic, sent by somebody, byte for byte, never seen elsewhere, and what stood there before if anything did.
    fn take(&mut self, shard: u16, topic: &str, record: &Record<'_>, journal: &Journal) {
        let place = (shard, record.queue_id, record.queue_offset);
        assert_eq!(record.topic, topic, "topic of the record at {place:?}");
        let id =
            identity(record.body).unwrap_or_else(|| panic!("the body at {place:?} is nobody's"));
        assert!(journal.was_sent(id), "{id:?} at {place:?} was never sent");
        assert!(record.body == body(id), "the body of {id:?} at {place:?} is not what was sent");
        let key = format!("{:08X}{:016X}", id.conn, id.seq);
        assert_eq!(
            record.property("UNIQ_KEY"),
            Some(key.as_str()),
            "properties of {id:?} at {place:?}"
        );
        let found = Found { id, physical_offset: record.physical_offset };
        if let Some(before) = self.seen.insert(place, found) {
            assert_eq!(before, found, "what was seen at {place:?} has been replaced");
        }
        if let Some(elsewhere) = self.where_is.insert(id, place) {
            assert_eq!(elsewhere, place, "{id:?} is there twice");
        }
    }

    fn check_order(&self, shard: u16, queue: i32, max: i64) {
        let mut last: HashMap<u32, u64> = HashMap::new();
        for offset in 0..max {
            let id = self.seen[&(shard, queue, offset)].id;
            if let Some(before) = last.insert(id.conn, id.seq) {
                assert!(
                    before < id.seq,
                    "queue {queue} of shard {shard}: {id:?} at {offset} stands after number {before}"
                );
            }
        }
    }
}

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
    let mut conn = Conn::open(address).expect("a connection to the broker");
    let mut messages = Vec::new();
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
                messages.push(Message {
                    queue,
                    offset: record.queue_offset,
                    body: record.body.to_vec(),
                    properties: record.properties.to_owned(),
                });
            }
        }
    }
    messages
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
