//! What each scenario's report must say.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Broker;
use crate::support::client::{Client, Event};

/// The report of one client program on one broker.
pub(crate) struct Judge<'a> {
    client: Client,
    broker: &'a Broker,
    scenarios: BTreeMap<&'a str, Vec<&'a Event>>,
    failures: Vec<String>,
}

/// When a message became visible. Delivery is the broker's affair, when a consumer takes it is its own: a Java client that misses itself or
/// its retry topic in its first look at the group looks again after 20 s.
fn delivered(event: &Event) -> i64 {
    if event.stored > 0 { event.stored } else { event.at }
}

impl<'a> Judge<'a> {
    pub(crate) fn new(client: Client, broker: &'a Broker, events: &'a [Event]) -> Judge<'a> {
        let mut scenarios: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in events {
            scenarios.entry(&event.scenario).or_default().push(event);
        }
        Judge { client, broker, scenarios, failures: Vec::new() }
    }

    /// All that is wrong, a line each.
    pub(crate) fn judge(mut self) -> Vec<String> {
        let scenarios: Vec<(&str, Vec<&Event>)> =
            self.scenarios.iter().map(|(n, e)| (*n, e.clone())).collect();
        for (name, events) in scenarios {
            let before = self.failures.len();
            let mut one = Scenario::new(name, self.client, self.broker, &events);
            one.judge();
            self.failures.append(&mut one.failures);
            let sent = events.iter().filter(|e| e.kind == "sent").count();
            let got = events.iter().filter(|e| e.kind == "recv").count();
            let verdict = if self.failures.len() == before { "right" } else { "WRONG" };
            println!("{} {name}: {sent} sent, {got} received: {verdict}", self.client.tag());
        }
        self.failures
    }
}

struct Scenario<'a> {
    name: &'a str,
    client: Client,
    broker: &'a Broker,
    sent: BTreeMap<i64, &'a Event>,
    received: Vec<&'a Event>,
    values: Vec<&'a Event>,
    failures: Vec<String>,
}

impl<'a> Scenario<'a> {
    fn new(
        name: &'a str,
        client: Client,
        broker: &'a Broker,
        events: &[&'a Event],
    ) -> Scenario<'a> {
        let mut s = Scenario {
            name,
            client,
            broker,
            sent: BTreeMap::new(),
            received: Vec::new(),
            values: Vec::new(),
            failures: Vec::new(),
        };
        for event in events {
            match event.kind.as_str() {
                "sent" => {
                    let seq = event.seq.unwrap_or(-1);
                    if s.sent.insert(seq, event).is_some() {
                        s.fail(format!("{seq} was reported as sent twice"));
                    }
                }
                "recv" => s.received.push(event),
                "value" => s.values.push(event),
                "fail" => s.fail(event.text.clone().unwrap_or_default()),
                "short" => s.fail(format!(
                    "waited in vain for {:?}, have {:?} {:?}",
                    event.want, event.have, event.what
                )),
                "done" => {}
                other => s.fail(format!("an event {other}")),
            }
        }
        s
    }

    fn fail(&mut self, what: String) {
        self.failures.push(format!("{} {}: {what}", self.client.tag(), self.name));
    }

    fn judge(&mut self) {
        self.sends();
        match self.name {
            "auto" | "quick" => self.exactly_once("c1", 0..10),
            "send" => {
                self.exactly_once("c1", 0..if self.client == Client::Python { 100 } else { 130 })
            }
            "orderly" => self.orderly(),
            "broadcast" => {
                self.exactly_once("c1", 0..40);
                self.exactly_once("c2", 0..40);
            }
            "tags" => self.exactly_once("c1", (0..60).filter(|n| n % 2 == 0)),
            "retry" => self.retry(),
            "dead" => self.dead(),
            "delay" => self.delay(),
            "restart" => {
                self.exactly_once("c1", 0..30);
                self.exactly_once("c2", 30..60);
            }
            "rebalance" => self.rebalance(),
            "lite" => {
                self.exactly_once("c1", 0..40);
                self.exactly_once("c2", 40..60);
                self.exactly_once("c3", 0..60);
            }
            "poll" => self.exactly_once("c1", 0..40),
            "pull" => {
                self.exactly_once("c1", 0..40);
                self.offsets();
            }
            "query" => {
                for way in ["offsetId", "uniqId", "key"] {
                    self.exactly_once(way, 0..5);
                }
            }
            other => self.fail(format!("there is no scenario {other}")),
        }
    }

    /// Every send succeeded, each at a place of its own, with an id that names the broker.
    fn sends(&mut self) {
        let mut places = BTreeSet::new();
        let sent: Vec<&Event> = self.sent.values().copied().collect();
        for e in sent {
            if e.how.as_deref() == Some("oneway") {
                continue;
            }
            if e.status.as_deref() != Some("SEND_OK") {
                self.fail(format!("status {:?} of {:?}", e.status, e.seq));
            }
            let (Some(broker), Some(queue), Some(offset)) = (&e.broker, e.queue, e.offset) else {
                continue;
            };
            if e.how.as_deref() != Some("delay") && !places.insert((broker.clone(), queue, offset))
            {
                self.fail(format!("two messages were told to be at {broker} {queue} {offset}"));
            }
            let Some(shard) = self.broker.shard_of(broker) else {
                self.fail(format!("a broker named {broker}"));
                continue;
            };
            let host = format!("7F000001{:08X}", self.broker.address(shard).port());
            let id = e.offset_id.clone().unwrap_or_default();
            if id.len() != 32 || !id.starts_with(&host) {
                self.fail(format!(
                    "message id {id} of {:?} at {broker} should begin with {host}",
                    e.seq
                ));
            }
        }
    }

    /// The messages that one consumer got, by number, in the order in which it got them.
    fn of(&self, who: &str) -> BTreeMap<i64, Vec<&'a Event>> {
        let mut by_seq: BTreeMap<i64, Vec<&Event>> = BTreeMap::new();
        for e in self.received.iter().filter(|e| e.who.as_deref() == Some(who)) {
            by_seq.entry(e.seq.unwrap_or(-1)).or_default().push(e);
        }
        by_seq
    }

    fn exactly_once(&mut self, who: &str, seqs: impl IntoIterator<Item = i64>) {
        self.times(who, seqs, |_| 1, true);
    }

    /// `who` got the messages `seqs` as often as `times` says and no others; each first one from where it was sent to, if `placed`.
    fn times(
        &mut self,
        who: &str,
        seqs: impl IntoIterator<Item = i64>,
        times: impl Fn(i64) -> usize,
        placed: bool,
    ) {
        let mut got = self.of(who);
        for seq in seqs {
            let deliveries = got.remove(&seq).unwrap_or_default();
            if deliveries.len() != times(seq) {
                self.fail(format!(
                    "{who} got message {seq} {} times instead of {}",
                    deliveries.len(),
                    times(seq)
                ));
            }
            let Some(sent) = self.sent.get(&seq).copied() else {
                self.fail(format!("message {seq} was never sent"));
                continue;
            };
            for (n, e) in deliveries.into_iter().enumerate() {
                self.same_message(who, sent, e);
                if e.reconsume != n as i32 {
                    self.fail(format!(
                        "{who}: delivery {n} of {seq} says reconsumeTimes {}",
                        e.reconsume
                    ));
                }
                if placed && n == 0 {
                    self.same_place(who, sent, e);
                }
            }
        }
        for (seq, e) in got {
            self.fail(format!("{who} got message {seq}, which it should not: {} times", e.len()));
        }
    }

    fn same_message(&mut self, who: &str, sent: &Event, got: &Event) {
        let seq = sent.seq.unwrap_or(-1);
        if sent.crc != got.crc {
            self.fail(format!("{who}: body of {seq}: {:?} instead of {:?}", got.crc, sent.crc));
        }
        if sent.tags.as_deref().unwrap_or_default() != got.tags.as_deref().unwrap_or_default() {
            self.fail(format!("{who}: tag of {seq}: {:?} instead of {:?}", got.tags, sent.tags));
        }
        if got.keys.as_deref() != Some(&format!("k{seq}")) {
            self.fail(format!("{who}: keys of {seq}: {:?}", got.keys));
        }
        // A 5.x producer names a batch as a whole too, and a stock broker lets that name win over each message's own.
        let batch = sent.how.as_deref() == Some("batch");
        if matches!(self.client, Client::Java(_))
            && !batch
            && sent.unique_id.is_some()
            && sent.unique_id != got.unique_id
        {
            self.fail(format!(
                "{who}: id of {seq}: {:?} instead of {:?}",
                got.unique_id, sent.unique_id
            ));
        }
        if got.topic != sent.topic && self.name != "dead" {
            self.fail(format!(
                "{who}: topic of {seq}: {:?} instead of {:?}",
                got.topic, sent.topic
            ));
        }
    }

    /// Where both sides know it: a client may not tell the queue or the broker.
    fn same_place(&mut self, who: &str, sent: &Event, got: &Event) {
        let differ = |a: &Option<i64>, b: &Option<i64>| a.is_some() && b.is_some() && a != b;
        let queues = (sent.queue.map(i64::from), got.queue.map(i64::from));
        let brokers_differ =
            sent.broker.is_some() && got.broker.is_some() && sent.broker != got.broker;
        if differ(&queues.0, &queues.1) || differ(&sent.offset, &got.offset) || brokers_differ {
            self.fail(format!(
                "{who} got {:?} from {:?} {:?} {:?}, and it was sent to {:?} {:?} {:?}",
                sent.seq, got.broker, got.queue, got.offset, sent.broker, sent.queue, sent.offset
            ));
        }
    }

    /// Along each queue in order; Java refuses message 40 once and gets it again before any later one of its queue.
    fn orderly(&mut self) {
        let twice = if matches!(self.client, Client::Java(_)) { 40 } else { -1 };
        self.times("c1", 0..100, |seq| if seq == twice { 2 } else { 1 }, true);
        let mut last: BTreeMap<(Option<String>, Option<i32>), (i64, i64)> = BTreeMap::new();
        for e in self.received.clone() {
            let (offset, seq) = (e.offset.unwrap_or(-1), e.seq.unwrap_or(-1));
            // Without the broker's name, queues of two shards cannot be told apart, but the key of the ordered sends can: one queue each.
            let lane = match &e.broker {
                Some(_) => (e.broker.clone(), e.queue),
                None => (None, Some((seq % 4) as i32)),
            };
            if let Some((before, before_seq)) = last.insert(lane, (offset, seq)) {
                let again = seq == twice && before_seq == twice && offset == before;
                if offset <= before && !again {
                    self.fail(format!(
                        "message {seq} at {offset} came after {before_seq} at {before} of its queue"
                    ));
                }
            }
        }
    }

    /// The even ones once more, 10 s later.
    fn retry(&mut self) {
        self.times("c1", 0..10, |seq| if seq % 2 == 0 { 2 } else { 1 }, true);
        for (seq, e) in self.of("c1") {
            if let [first, second] = e[..] {
                self.in_time(seq, delivered(second) - first.at, 10_000);
                self.origin(seq, second);
            }
        }
    }

    fn origin(&mut self, seq: i64, again: &Event) {
        let id = self.sent.get(&seq).and_then(|s| s.offset_id.clone());
        if matches!(self.client, Client::Java(_)) && again.origin != id {
            self.fail(format!("ORIGIN_MESSAGE_ID of {seq}: {:?} instead of {id:?}", again.origin));
        }
    }

    fn dead(&mut self) {
        self.times("c1", 0..4, |_| 2, true);
        let topic = format!("%DLQ%{}_g_dead", self.client.tag());
        for seq in 0..4 {
            let mut dead = self.of("dead").remove(&seq).unwrap_or_default();
            let (Some(e), true) = (dead.pop(), dead.is_empty()) else {
                self.fail(format!("message {seq} should be once among the dead"));
                continue;
            };
            if let Some(sent) = self.sent.get(&seq).copied() {
                self.same_message("dead", sent, e);
            }
            if e.reconsume != 2 || e.topic.as_ref() != Some(&topic) {
                self.fail(format!(
                    "dead letter {seq}: reconsumeTimes {}, topic {:?}",
                    e.reconsume, e.topic
                ));
            }
            self.origin(seq, e);
        }
        if self.of("dead").len() != 4 {
            self.fail("other messages among the dead".to_owned());
        }
    }

    fn in_time(&mut self, seq: i64, took_ms: i64, due_ms: i64) {
        // 100 ms before: the client's clock of the first delivery runs a little behind the broker's of the send back.
        if took_ms < due_ms - 100 || took_ms > due_ms + 5_000 {
            self.fail(format!("message {seq} came after {took_ms} ms instead of {due_ms}"));
        }
    }

    fn delay(&mut self) {
        // The offset told is the one in the delay queue, so only the queue can be held against the delivery.
        self.times("c1", 0..10, |_| 1, false);
        for (seq, e) in self.of("c1") {
            let due = if seq % 2 == 0 { 1_000 } else { 5_000 };
            self.in_time(seq, delivered(e[0]) - e[0].born, due);
            let sent = self.sent.get(&seq).and_then(|s| s.queue);
            if sent.is_some() && sent != e[0].queue {
                self.fail(format!(
                    "message {seq} came from queue {:?} instead of {sent:?}",
                    e[0].queue
                ));
            }
        }
    }

    /// 40 messages for the first member, 40 shared, 40 for the second.
    fn rebalance(&mut self) {
        let (one, two) = (self.of("c1"), self.of("c2"));
        for seq in 0..120 {
            let (a, b) = (one.get(&seq).map_or(0, Vec::len), two.get(&seq).map_or(0, Vec::len));
            let right = match seq {
                0..40 => (a, b) == (1, 0),
                40..80 => a + b == 1,
                _ => (a, b) == (0, 1),
            };
            if !right {
                self.fail(format!(
                    "message {seq} came {a} times to the first member and {b} times to the second"
                ));
            }
        }
        for shared in [&one, &two] {
            if !shared.keys().any(|seq| (40..80).contains(seq)) {
                self.fail("a member got no share of what was sent while there were two".to_owned());
            }
        }
        let held = self.values.first().and_then(|v| v.value);
        if held != Some(4 * i64::from(self.broker.shards())) {
            self.fail(format!("the two members hold {held:?} queues"));
        }
    }

    /// The offset questions of the old pull consumer (Java only).
    fn offsets(&mut self) {
        type Queue = (Option<String>, Option<i32>);
        let mut by_queue: BTreeMap<Queue, BTreeMap<&str, i64>> = BTreeMap::new();
        for v in &self.values {
            by_queue
                .entry((v.broker.clone(), v.queue))
                .or_default()
                .insert(v.what.as_deref().unwrap_or_default(), v.value.unwrap_or(-1));
        }
        for (queue, values) in by_queue {
            let max = values["max"];
            let expected = [
                ("min", 0),
                ("before all", 0),
                ("after all", (max - 1).max(0)),
                ("earliest is recent", i64::from(max > 0)),
                ("end is", 1),
                ("beyond is", 1),
                ("committed", max),
            ];
            for (what, value) in expected {
                // An empty queue has no end to be beyond of: its answers are others.
                if max > 0 && values[what] != value {
                    self.fail(format!(
                        "{queue:?}: {what} is {} instead of {value} (max {max})",
                        values[what]
                    ));
                }
            }
        }
    }
}
