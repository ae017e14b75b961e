//! A cluster of one broker that keeps what a broker keeps, in a table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use ringmq_net::body::{Body, ConsumerList, Heartbeat, LockBatch, LockOk, MessageQueue};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::record::RecordFields;
use tokio::sync::watch;

use crate::Client;
use crate::fake::{Fake, React, ok, refusal};

/// A rule of a test: its reaction, or `None` for the usual one.
type Rule = Box<dyn Fn(&Command) -> Option<React> + Send + Sync>;

#[derive(Default)]
pub(super) struct Table {
    pub(super) messages: BTreeMap<(String, i32), Vec<Bytes>>,
    /// Offsets by topic and queue.
    pub(super) offsets: BTreeMap<(String, i32), i64>,
    /// Client ids with consumers.
    pub(super) members: BTreeSet<String>,
    pub(super) locks: BTreeMap<MessageQueue, String>,
    pub(super) heartbeats: Vec<Heartbeat>,
    rules: Vec<Rule>,
}

pub(super) struct World {
    pub(super) broker: Fake,
    servers: Fake,
    table: Arc<Mutex<Table>>,
    changed: watch::Sender<()>,
    client: Client,
}

impl World {
    /// A cluster with so many queues of every topic.
    pub(super) async fn new(queues: i32) -> World {
        let table: Arc<Mutex<Table>> = Arc::default();
        let changed = watch::Sender::new(());
        let (of_broker, news) = (table.clone(), changed.clone());
        let broker = Fake::start(move |command| react(&of_broker, &news, command)).await;
        let servers = Fake::name_server(vec![("a", broker.addr())], queues).await;
        let client = Client::builder().name_server(servers.addr());
        let client = client.drain_timeout(Duration::from_secs(5)).build().unwrap();
        World { broker, servers, table, changed, client }
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn servers_addr(&self) -> String {
        self.servers.addr()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap()
    }

    /// From now on reactions are asked of this first.
    pub(super) fn rule(&self, rule: impl Fn(&Command) -> Option<React> + Send + Sync + 'static) {
        self.table().rules.push(Box::new(rule));
    }

    /// Messages `0..count` more in a queue, with these properties.
    pub(super) fn store(&self, topic: &str, queue: i32, count: usize, properties: &str) {
        {
            let mut table = self.table();
            let messages = table.messages.entry((topic.to_owned(), queue)).or_default();
            for _ in 0..count {
                messages.push(record(topic, queue, messages.len() as i64, properties));
            }
        }
        self.changed.send_replace(());
    }

    /// The stored progress.
    pub(super) fn stored(&self, queue: i32) -> Option<i64> {
        self.table().offsets.get(&("T".to_owned(), queue)).copied()
    }

    pub(super) fn queue(&self, id: i32) -> MessageQueue {
        MessageQueue::new("T", "a", id)
    }
}

fn record(topic: &str, queue_id: i32, offset: i64, properties: &str) -> Bytes {
    let body = format!("body {offset}");
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    let fields = RecordFields {
        queue_id,
        flag: 0,
        queue_offset: offset,
        physical_offset: offset * 1000,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: host,
        store_timestamp: 2,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: body.as_bytes(),
        topic,
        properties: properties.as_bytes(),
    };
    let mut out = vec![0; fields.encoded_len()];
    fields.encode(&mut out);
    out.into()
}

fn number(command: &Command, field: &str) -> i64 {
    command.ext(field).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The queue that a request is about.
pub(super) fn place(command: &Command) -> (String, i32) {
    (command.ext("topic").unwrap_or_default().to_owned(), number(command, "queueId") as i32)
}

fn react(table: &Arc<Mutex<Table>>, changed: &watch::Sender<()>, command: &Command) -> React {
    let mut guard = table.lock().unwrap();
    if let Some(reaction) = guard.rules.iter().rev().find_map(|rule| rule(command)) {
        return reaction;
    }
    let place = place(command);
    let offset = |offset: i64| React::Answer(ok().with_ext("offset", offset));
    match command.code {
        request::HEART_BEAT => {
            let heartbeat = Heartbeat::from_json(&command.body).unwrap();
            if !heartbeat.consumers.is_empty() {
                guard.members.insert(heartbeat.client_id.clone());
            }
            guard.heartbeats.push(heartbeat);
            React::Answer(ok())
        }
        request::UNREGISTER_CLIENT => {
            guard.members.remove(command.ext("clientID").unwrap_or_default());
            React::Answer(ok())
        }
        request::GET_CONSUMER_LIST_BY_GROUP => {
            let consumer_ids = guard.members.iter().cloned().collect();
            React::Answer(ok().with_body(ConsumerList { consumer_ids }.to_json()))
        }
        request::QUERY_CONSUMER_OFFSET => match guard.offsets.get(&place) {
            Some(at) => offset(*at),
            None => refusal(response::QUERY_NOT_FOUND),
        },
        request::UPDATE_CONSUMER_OFFSET => {
            guard.offsets.insert(place, number(command, "commitOffset"));
            React::Answer(ok())
        }
        request::GET_MAX_OFFSET => offset(guard.messages.get(&place).map_or(0, Vec::len) as i64),
        request::GET_MIN_OFFSET => offset(0),
        request::GET_EARLIEST_MSG_STORETIME => React::Answer(ok().with_ext("timestamp", 1)),
        request::LOCK_BATCH_MQ => {
            let asked = LockBatch::from_json(&command.body).unwrap();
            let mut ours = asked.queues.clone();
            ours.retain(|queue| {
                let owner = guard.locks.entry(queue.clone()).or_insert(asked.client_id.clone());
                *owner == asked.client_id
            });
            React::Answer(ok().with_body(LockOk { queues: ours }.to_json()))
        }
        request::UNLOCK_BATCH_MQ => {
            let asked = LockBatch::from_json(&command.body).unwrap();
            guard
                .locks
                .retain(|queue, owner| !asked.queues.contains(queue) || *owner != asked.client_id);
            React::Answer(ok())
        }
        request::SEND_MESSAGE_V2 => React::Answer(
            ok().with_ext("msgId", "7F00000100002A9F0000000000001234")
                .with_ext("queueId", 0)
                .with_ext("queueOffset", 0),
        ),
        request::PULL_MESSAGE => {
            let hold = Duration::from_millis(number(command, "suspendTimeoutMillis") as u64);
            let (table, from) = (table.clone(), number(command, "queueOffset"));
            let max = number(command, "maxMsgNums") as usize;
            let mut news = changed.subscribe();
            React::AnswerWhen(Box::pin(async move {
                let found = async {
                    loop {
                        if let Some(reply) = found(&table.lock().unwrap(), &place, from, max) {
                            return reply;
                        }
                        news.changed().await.unwrap();
                    }
                };
                let none = || pulled(response::PULL_NOT_FOUND, from, from, Vec::new());
                tokio::time::timeout(hold, found).await.unwrap_or_else(|_| none())
            }))
        }
        _ => React::Answer(ok()),
    }
}

fn found(table: &Table, place: &(String, i32), from: i64, max: usize) -> Option<Command> {
    let all = table.messages.get(place)?;
    let end = all.len() as i64;
    if from > end {
        return Some(pulled(response::PULL_OFFSET_MOVED, end, end, Vec::new()));
    }
    let some: Vec<u8> = all.iter().skip(from as usize).take(max).flatten().copied().collect();
    (from < end).then(|| pulled(0, (from + max as i64).min(end), end, some))
}

/// The answer to a pull.
pub(super) fn pulled(code: i32, next: i64, max: i64, body: Vec<u8>) -> Command {
    let mut reply = ok()
        .with_ext("suggestWhichBrokerId", 0)
        .with_ext("nextBeginOffset", next)
        .with_ext("minOffset", 0)
        .with_ext("maxOffset", max)
        .with_body(body);
    reply.code = code;
    reply
}
