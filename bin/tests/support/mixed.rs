//! All that clients do at once: the sends of [`super::load`], delayed messages, consumers that pull, commit and send back, and
//! administrators that make topics and groups. Everything the broker answers is in the journal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Broker;
use super::broker::ask_for_topic;
use super::checker::{Found, Place, pull_fields};
use super::journal::{Delayed, Identity, Journal, Returned, body, identity, properties};
use super::later::DELAYS_MS;
use super::load::{Load, LoadSpec};
use super::random::Random;
use super::record::Record;
use super::wire::{self, Conn, Reply, code};

/// The group that consumes the load.
pub const GROUP: &str = "Readers";
/// Delayed messages a second to each shard, at most.
const DELAYED_PAUSE: Duration = Duration::from_millis(20);
/// A long poll, milliseconds; short, so that a stop is noticed.
const SUSPEND_MS: &str = "200";
/// Of so many messages, a consumer sends one back.
const RETURN_ONE_OF: u64 = 24;
/// What is made in each run of a load on each shard: topics, groups, and topics by a first send.
const MADE: u32 = 2;

/// The topic that delayed messages are for.
pub fn late_topic(topic: &str) -> String {
    format!("{topic}Late")
}

/// A mixed load at work, until it is stopped or its connections break.
pub struct Mixed {
    load: Load,
    stop: Arc<AtomicBool>,
    consumers: Vec<JoinHandle<Vec<(Place, Found)>>>,
    others: Vec<JoinHandle<()>>,
}

impl Mixed {
    /// Makes the topics of such a load.
    pub fn prepare(broker: &Broker, topic: &str, queues: u32) {
        broker.create_topic(topic, queues);
        broker.create_topic(&late_topic(topic), queues);
    }

    /// Starts it. `seed` chooses what is sent back, and names what is made: another one for each start on the same store.
    pub fn start(
        shards: &[SocketAddr],
        spec: &LoadSpec,
        journal: &Arc<Journal>,
        seed: u64,
    ) -> Mixed {
        let load = Load::start_varied(shards, spec, journal);
        let stop = Arc::new(AtomicBool::new(false));
        let (mut consumers, mut others) = (Vec::new(), Vec::new());
        for (shard, address) in shards.iter().enumerate() {
            let client = Client {
                shard: shard as u16,
                address: *address,
                topic: spec.topic.clone(),
                queues: spec.queues,
                journal: journal.clone(),
                stop: stop.clone(),
            };
            for queue in 0..spec.queues as i32 {
                let (client, random) = (client.clone(), Random::new(seed ^ queue as u64));
                consumers.push(std::thread::spawn(move || client.consume(queue, random)));
            }
            let delaying = client.clone();
            others.push(std::thread::spawn(move || {
                let _ = delaying.delay();
            }));
            others.push(std::thread::spawn(move || {
                let _ = client.make(seed);
            }));
        }
        Mixed { load, stop, consumers, others }
    }

    /// No new requests; waits until what is in flight is answered or the connections are gone. Gives what the consumers saw.
    pub fn stop(self) -> Vec<(Place, Found)> {
        self.stop.store(true, Ordering::Relaxed);
        self.load.stop();
        for other in self.others {
            other.join().expect("a client");
        }
        self.consumers.into_iter().flat_map(|c| c.join().expect("a consumer")).collect()
    }
}

/// What every client of one shard needs.
#[derive(Clone)]
struct Client {
    shard: u16,
    address: SocketAddr,
    topic: String,
    queues: u32,
    journal: Arc<Journal>,
    stop: Arc<AtomicBool>,
}

impl Client {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn refused(&self, what: &str, reply: &Reply) {
        let line = format!("{what}: code {} {:?}", reply.code, reply.remark);
        self.journal.note(&line.clone(), |told| told.refused.push(line));
    }

    // ---- delayed messages ----

    /// One after the other, to the levels in turn.
    fn delay(&self) -> std::io::Result<()> {
        let mut conn = Conn::open(self.address)?;
        let topic = late_topic(&self.topic);
        let number = self.journal.new_conn();
        let mut seq = 0;
        while !self.stopped() {
            let id = Identity { conn: number, seq };
            seq += 1;
            self.journal.note_sent(number, seq);
            let (delay, queue) =
                (1 + (seq % DELAYS_MS.len() as u64) as i32, (seq / 2) % u64::from(self.queues));
            let text = format!("{}\u{2}DELAY\u{1}{delay}\u{2}WAIT\u{1}true", properties(id));
            let ext = [queue.to_string()];
            let ext = wire::send_ext("journal", &topic, &ext[0], &text, false);
            let reply = conn.call(code::SEND_MESSAGE_V2, &ext, &body(id))?;
            if reply.code == 0 {
                self.journal.add_delayed(Delayed {
                    shard: self.shard,
                    id,
                    delay,
                    queue: queue as i32,
                    offset: reply.number("queueOffset"),
                    message_id: reply.ext("msgId").unwrap_or_default().to_owned(),
                    level: reply.ext("ackLevel").map(str::to_owned),
                });
            } else {
                self.refused("delayed", &reply);
            }
            std::thread::sleep(DELAYED_PAUSE);
        }
        Ok(())
    }

    // ---- consumers ----

    /// Consumes a queue until the connection breaks; an error is the end of it.
    fn consume(&self, queue: i32, mut random: Random) -> Vec<(Place, Found)> {
        let mut seen = Vec::new();
        let _ = self.consume_into(queue, &mut random, &mut seen);
        seen
    }

    fn consume_into(
        &self,
        queue: i32,
        random: &mut Random,
        seen: &mut Vec<(Place, Found)>,
    ) -> std::io::Result<()> {
        let mut conn = Conn::open(self.address)?;
        let queue_text = queue.to_string();
        let ext = [("consumerGroup", GROUP), ("topic", &self.topic), ("queueId", &queue_text)];
        let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &ext, &[])?;
        let mut at = if reply.code == 0 { reply.number("offset") } else { 0 };
        while !self.stopped() {
            let at_text = at.to_string();
            let mut ext = pull_fields(&self.topic, &queue_text, &at_text, SUSPEND_MS);
            ext[0].1 = GROUP;
            // Every second queue's progress goes with the pulls, as stock consumers send it; the others' in requests of its own.
            let with_pull = queue % 2 == 1;
            if with_pull {
                ext[5].1 = "7";
                ext[6].1 = &at_text;
                self.try_commit(queue, at);
            }
            let reply = conn.call(code::PULL_MESSAGE, &ext, &[])?;
            if with_pull && matches!(reply.code, 0 | 19 | 20 | 21) {
                self.committed(queue, at);
            }
            if reply.code != 0 {
                continue;
            }
            for record in Record::all(&reply.body).expect("records") {
                assert_eq!(record.queue_offset, at, "queue offsets are dense");
                let id = identity(record.body).expect("a body of the load");
                let found = Found { id, physical_offset: record.physical_offset };
                seen.push(((self.shard, queue, at), found));
                at += 1;
                if random.below(RETURN_ONE_OF) == 0 {
                    self.send_back(&mut conn, id, record.physical_offset, random)?;
                }
            }
            if !with_pull {
                let at_text = at.to_string();
                let ext = [
                    ("consumerGroup", GROUP),
                    ("topic", &self.topic),
                    ("queueId", &queue_text),
                    ("commitOffset", &at_text),
                ];
                self.try_commit(queue, at);
                if conn.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[])?.code == 0 {
                    self.committed(queue, at);
                }
            }
        }
        Ok(())
    }

    fn try_commit(&self, queue: i32, at: i64) {
        self.journal.note(&format!("commits {} {queue} {at}", self.shard), |told| {
            let of = told.commits.entry((self.shard, GROUP.to_owned(), queue)).or_default();
            if of.tried.last() != Some(&at) {
                of.tried.push(at);
            }
        });
    }

    fn committed(&self, queue: i32, at: i64) {
        self.journal.note(&format!("committed {} {queue} {at}", self.shard), |told| {
            told.commits.entry((self.shard, GROUP.to_owned(), queue)).or_default().acked = Some(at);
        });
    }

    /// Sends a message back for a retry or, one of eight, as a dead letter. Each at most once, so that each copy has one cause.
    fn send_back(
        &self,
        conn: &mut Conn,
        id: Identity,
        physical_offset: i64,
        random: &mut Random,
    ) -> std::io::Result<()> {
        let delay = match random.below(8) {
            0 => -1,
            n => 1 + (n % DELAYS_MS.len() as u64) as i32,
        };
        let SocketAddr::V4(address) = self.address else { panic!("an IPv4 address") };
        let [a, b, c, d] = address.ip().octets();
        let port = address.port();
        let origin = format!("{a:02X}{b:02X}{c:02X}{d:02X}{port:08X}{physical_offset:016X}");
        let key = (self.shard, GROUP.to_owned(), id);
        let mut known = false;
        self.journal.note(&format!("returns {} {id:?} {delay}", self.shard), |told| {
            known = told.returned.contains_key(&key);
            told.returned.entry(key.clone()).or_insert(Returned { delay, origin, acked: false });
        });
        if known {
            return Ok(());
        }
        let (offset, delay) = (physical_offset.to_string(), delay.to_string());
        let ext = [
            ("group", GROUP),
            ("offset", &offset),
            ("delayLevel", &delay),
            ("originMsgId", ""),
            ("originTopic", &self.topic),
            ("unitMode", "false"),
        ];
        let reply = conn.call(code::CONSUMER_SEND_MSG_BACK, &ext, &[])?;
        if reply.code == 0 {
            self.journal.note(&format!("returned {} {id:?}", self.shard), |told| {
                if let Some(returned) = told.returned.get_mut(&key) {
                    returned.acked = true;
                }
            });
        } else {
            self.refused("sent back", &reply);
        }
        Ok(())
    }

    // ---- administrators ----

    /// Topics and groups, made by command and by a first send.
    fn make(&self, seed: u64) -> std::io::Result<()> {
        let mut conn = Conn::open(self.address)?;
        let number = self.journal.new_conn();
        for n in 0..MADE {
            let name = format!("{seed:x}-{}-{n}", self.shard);
            self.make_topic(&mut conn, &format!("Made-{name}"), 1 + n % 5)?;
            self.make_group(&mut conn, &format!("Group-{name}"))?;
            let id = Identity { conn: number, seq: u64::from(n) };
            self.journal.note_sent(number, u64::from(n) + 1);
            self.send_first(&mut conn, &format!("First-{name}"), id)?;
        }
        Ok(())
    }

    fn make_topic(&self, conn: &mut Conn, topic: &str, queues: u32) -> std::io::Result<()> {
        let reply = ask_for_topic(conn, topic, queues)?;
        assert_eq!(reply.code, 0, "making {topic}: {:?}", reply.remark);
        self.journal.note(&format!("topic {} {topic}", self.shard), |told| {
            told.topics.push((self.shard, topic.to_owned(), queues));
        });
        Ok(())
    }

    fn make_group(&self, conn: &mut Conn, group: &str) -> std::io::Result<()> {
        let config = format!("{{\"groupName\":\"{group}\",\"retryMaxTimes\":7}}");
        let reply =
            conn.call(code::UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, &[], config.as_bytes())?;
        assert_eq!(reply.code, 0, "making {group}: {:?}", reply.remark);
        self.journal.note(&format!("group {} {group}", self.shard), |told| {
            told.groups.push((self.shard, group.to_owned()));
        });
        Ok(())
    }

    fn send_first(&self, conn: &mut Conn, topic: &str, id: Identity) -> std::io::Result<()> {
        let text = format!("{}\u{2}WAIT\u{1}true", properties(id));
        let ext = wire::send_ext("journal", topic, "0", &text, false);
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, &body(id))?;
        if reply.code != 0 {
            self.refused("first", &reply);
            return Ok(());
        }
        self.journal.note(&format!("first {} {topic} {id:?}", self.shard), |told| {
            told.firsts.push((self.shard, topic.to_owned(), 0, id));
        });
        Ok(())
    }
}
