//! One store, served in turn by a stock broker and by RingMQ, after clean stops and after SIGKILL: each opens what the other wrote, serves
//! all that either acknowledged, and goes on: batches, segment rolls, delayed messages and retries under way, keys, offsets, topics, groups.

use std::process::Command;
use std::time::Duration;

use crate::support::broker::NameServer;
use crate::support::checker::{Checker, Rules, read_all};
use crate::support::load::{Acked, Journal, Load, LoadSpec, body, identity};
use crate::support::record::Record;
use crate::support::wire::{Conn, code, eventually, send_ext};
use crate::support::{Broker, Options, Target, exclusive, have, peers, tempdir};

const TOPIC: &str = "Journal";
const QUEUES: u32 = 4;
const SEGMENT_BYTES: u64 = 2 << 20;
/// Messages a turn: a segment and more.
const MESSAGES: u64 = 2_000;
/// Delay level of what the next broker must deliver: 5 s.
const SOON: &str = "2";
/// Delay level of what stays: 2 h.
const LATE: &str = "18";
const RETRY_TOPIC: &str = "%RETRY%group";
const LIMIT: Duration = Duration::from_secs(60);

mod request {
    pub(super) const QUERY_MESSAGE: i32 = 12;
    pub(super) const GET_ALL_TOPIC_CONFIG: i32 = 21;
    pub(super) const VIEW_MESSAGE: i32 = 33;
    pub(super) const SEND_BACK: i32 = 36;
    pub(super) const UPDATE_GROUP: i32 = 200;
    pub(super) const GET_ALL_GROUPS: i32 = 201;
}

#[test]
fn stock_4_and_ringmq_open_what_the_other_wrote() {
    round_trips(Target::Stock497);
}

#[test]
fn stock_5_and_ringmq_open_what_the_other_wrote() {
    round_trips(Target::Stock550);
}

fn round_trips(stock: Target) {
    if !have("java", "a stock broker") || !have("mvn", "a stock broker") {
        return;
    }
    peers::fetch(&format!("stock-{}", stock.version().expect("a stock broker")));
    let _alone = exclusive();
    let ours = match Target::from_env() {
        Target::RingMq => Target::RingMq,
        // The test proves itself with stock brokers alone.
        _ => stock,
    };
    let dir = tempdir("stock-store");
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = Options {
        segment_bytes: SEGMENT_BYTES,
        config: "[limits]\nmessage_bytes = 1048576\n".to_owned(),
        // Else a stock broker forgets the keys of its newest index file after a crash.
        stock: vec!["messageIndexSafe=true".to_owned()],
        ..Options::default()
    };
    let mut store = Store {
        journal: Journal::create(&dir.path().join("journal")),
        broker: Broker::new(stock, &dir.sub("broker"), options, Some(namesrv.address)),
        checker: Checker::new(),
        turns: 0,
        offset: None,
        sent_back: Vec::new(),
    };
    // Who serves, and whether it is then killed.
    for (target, kill) in [(stock, true), (ours, true), (stock, false), (ours, false)] {
        store.broker.switch(target);
        store.turn(kill);
    }
    for target in [stock, ours] {
        store.broker.switch(target);
        let took = store.broker.start();
        store.check();
        println!("at the end, {target:?}: serving after {took:?}");
        store.broker.sigkill();
    }
}

/// The store under test, and what it must hold.
struct Store {
    broker: Broker,
    journal: std::sync::Arc<Journal>,
    checker: Checker,
    turns: usize,
    /// The group's offset, unless a killed broker may have had no time to save it.
    offset: Option<i64>,
    /// Bodies of what was sent back.
    sent_back: Vec<Vec<u8>>,
}

impl Store {
    fn turn(&mut self, kill: bool) {
        let took = self.broker.start();
        if self.turns == 0 {
            self.broker.create_topic(TOPIC, QUEUES);
            for topic in ["Late", "Keyed"] {
                self.broker.create_topic(topic, 1);
            }
            let group = br#"{"groupName":"group","consumeEnable":true,"retryMaxTimes":16,"retryQueueNums":1}"#;
            self.call(request::UPDATE_GROUP, &[], group);
        }
        self.check();
        println!("turn {}, {:?}: serving after {took:?}", self.turns, self.broker.target);
        let spec = LoadSpec {
            topic: TOPIC.to_owned(),
            queues: QUEUES,
            conns: 4,
            window: 8,
            rate_max: 8_000,
        };
        let load = Load::start(&self.broker.addresses(), &spec, &self.journal);
        self.journal.await_count(self.journal.count() + MESSAGES);
        self.send_the_rest();
        self.offset = self.commit(kill);
        if kill {
            self.broker.sigkill();
            load.stop();
        } else {
            load.stop();
            self.broker.terminate(LIMIT);
            self.verify();
        }
        self.turns += 1;
    }

    fn conn(&self) -> Conn {
        Conn::open(self.broker.address(0)).expect("a connection")
    }

    fn call(&self, code: i32, ext: &[(&str, &str)], body: &[u8]) {
        let reply = self.conn().call(code, ext, body).expect("a reply");
        assert_eq!(reply.code, 0, "request {code}: {reply:?}");
    }

    /// What is under way when this broker ends: delayed messages, a retry; and a message with keys.
    fn send_the_rest(&mut self) {
        let turn = self.turns;
        let send = |topic: &str, properties: String, body: &str| {
            let ext = send_ext("producers", topic, "0", &properties, false);
            self.call(code::SEND_MESSAGE_V2, &ext, body.as_bytes());
        };
        send("Keyed", format!("UNIQ_KEY\u{1}keyed{turn}\u{2}KEYS\u{1}all turn{turn}"), "keyed");
        for n in 0..3 {
            let properties = format!("UNIQ_KEY\u{1}late{turn}-{n}\u{2}DELAY\u{1}{SOON}");
            send("Late", properties, &format!("late {turn} {n}"));
        }
        let properties = format!("UNIQ_KEY\u{1}later{turn}\u{2}DELAY\u{1}{LATE}");
        send("Late", properties, "much later");
        let back = self.journal.acked().pop().expect("an acknowledged message");
        let ext = [
            ("offset", &*physical_offset(&back).to_string()),
            ("group", "group"),
            ("delayLevel", SOON),
            ("originMsgId", &*back.message_id),
            ("originTopic", TOPIC),
            ("unitMode", "false"),
            ("maxReconsumeTimes", "16"),
        ];
        self.call(request::SEND_BACK, &ext, &[]);
        self.sent_back.push(body(back.id));
    }

    fn commit(&self, kill: bool) -> Option<i64> {
        let offset = 10 + self.turns as i64;
        let ext = [
            ("consumerGroup", "group"),
            ("topic", TOPIC),
            ("queueId", "1"),
            ("commitOffset", &*offset.to_string()),
        ];
        self.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[]);
        (!kill).then_some(offset)
    }

    /// All that was acknowledged up to now, whoever it was.
    fn check(&mut self) {
        self.await_dispatch();
        // One level for all would be wrong: a stock broker tells none.
        let rules = Rules::of(Target::Stock497, "");
        let addresses = self.broker.addresses();
        let summary = self.checker.check(&addresses, TOPIC, QUEUES, &self.journal, rules);
        println!("  {summary:?}");
        self.check_keys_and_ids();
        self.check_delayed();
        if let Some(offset) = self.offset {
            let ext = [("consumerGroup", "group"), ("topic", TOPIC), ("queueId", "1")];
            let reply = self.conn().call(code::QUERY_CONSUMER_OFFSET, &ext, &[]).expect("a reply");
            assert_eq!(reply.number("offset"), offset, "the group's offset, as stored before");
        }
        for (what, name) in
            [(request::GET_ALL_TOPIC_CONFIG, "\"Keyed\""), (request::GET_ALL_GROUPS, "\"group\"")]
        {
            let reply = self.conn().call(what, &[], &[]).expect("a reply");
            let text = String::from_utf8_lossy(&reply.body);
            assert!(text.contains(name), "{name} is gone: {text}");
        }
    }

    /// A stock broker serves before all of its queues are up to its log.
    fn await_dispatch(&self) {
        let mut conn = self.conn();
        for queue in 0..QUEUES as i32 {
            let acked = self.journal.acked();
            let end = acked.iter().filter(|ack| ack.queue == queue).map(|ack| ack.offset + 1).max();
            let ext = [("topic", TOPIC), ("queueId", &*queue.to_string())];
            let there = eventually(LIMIT, || {
                let reply = conn.call(code::GET_MAX_OFFSET, &ext, &[]).ok()?;
                (reply.number("offset") >= end.unwrap_or(0)).then_some(())
            });
            assert!(there.is_some(), "queue {queue} does not reach {end:?}");
        }
    }

    fn check_keys_and_ids(&self) {
        let acked = self.journal.acked();
        for ack in acked.iter().step_by(acked.len() / 60 + 1) {
            let key = format!("{:08X}{:016X}", ack.id.conn, ack.id.seq);
            self.expect_key(TOPIC, &key, |found| {
                found.iter().any(|record| identity(record.body) == Some(ack.id))
            });
            let offset = physical_offset(ack).to_string();
            let ext = [("offset", &*offset)];
            let reply = self.conn().call(request::VIEW_MESSAGE, &ext, &[]).expect("a reply");
            let record = Record::decode(&reply.body).expect("the message of an id");
            assert!(record.body == body(ack.id), "{ack:?} by its id");
        }
        if self.turns > 0 {
            self.expect_key("Keyed", "all", |found| found.len() == self.turns);
            for turn in 0..self.turns {
                self.expect_key("Keyed", &format!("turn{turn}"), |found| found.len() == 1);
            }
        }
    }

    fn expect_key(&self, topic: &str, key: &str, right: impl Fn(&[Record<'_>]) -> bool) {
        let mut conn = self.conn();
        let ext = [
            ("topic", topic),
            ("key", key),
            ("maxNum", "32"),
            ("beginTimestamp", "0"),
            ("endTimestamp", "9223372036854775807"),
        ];
        let found = eventually(Duration::from_secs(10), || {
            let reply = conn.call(request::QUERY_MESSAGE, &ext, &[]).ok()?;
            let records = Record::all(&reply.body).ok()?;
            right(&records).then_some(())
        });
        assert!(found.is_some(), "the key {key} of {topic} does not find what it must");
    }

    /// What was delayed in former turns is delivered, at least once; what is not due waits; what was sent back is there again.
    fn check_delayed(&self) {
        if self.turns == 0 {
            return;
        }
        let address = self.broker.address(0);
        let wanted: Vec<String> = (0..self.turns)
            .flat_map(|turn| (0..3).map(move |n| format!("late {turn} {n}")))
            .collect();
        let delivered = eventually(LIMIT, || {
            let there = read_all(address, "Late", 1);
            let is_there = |body: &[u8]| there.iter().any(|message| message.body == body);
            wanted.iter().all(|body| is_there(body.as_bytes())).then_some(there)
        });
        let there = delivered.expect("all delayed messages that are due");
        assert!(there.iter().all(|message| message.body != b"much later"), "delivered hours early");
        let ext = [("topic", "SCHEDULE_TOPIC_XXXX"), ("queueId", "17")];
        let reply = self.conn().call(code::GET_MAX_OFFSET, &ext, &[]).expect("a reply");
        assert_eq!(reply.number("offset"), self.turns as i64, "messages that wait for hours");
        let retried = eventually(LIMIT, || {
            let there = read_all(address, RETRY_TOPIC, 1);
            let is_there = |body: &Vec<u8>| there.iter().any(|message| message.body == *body);
            self.sent_back.iter().all(is_there).then_some(())
        });
        assert!(retried.is_some(), "not everything that was sent back is there again");
    }

    /// After a clean stop, whoever stopped, log, queues and index fit together.
    fn verify(&self) {
        let output = Command::new(env!("CARGO_BIN_EXE_ringmq"))
            .args(["log", "verify"])
            .arg(self.broker.store_dir())
            .output()
            .expect("ringmq log verify");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "after {:?}: {text}", self.broker.target);
    }
}

/// From the message id: the address of the broker, then this.
fn physical_offset(ack: &Acked) -> i64 {
    let hex = ack.message_id.get(16..).expect("a message id");
    i64::from_str_radix(hex, 16).expect("a message id")
}
