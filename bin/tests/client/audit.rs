//! A load through the client, and its judgement: every message that was said to be stored is where the receipt says, byte by byte; nothing else
//! is there than what was sent; what was said not to be stored is not there.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringmq_client::{Error, Message, Producer, Result, SendReceipt};
use tokio::task::JoinSet;

use crate::support::checker::{self, read_all};
use crate::support::journal::{Identity, body, identity, key};

/// Messages sent and how each ended.
pub(crate) type Sent = Vec<(Identity, Result<SendReceipt>)>;

/// A load that runs until it has sent all.
pub(crate) struct Load {
    tasks: JoinSet<Sent>,
    done: Arc<AtomicU64>,
}

impl Load {
    /// `tasks` tasks send `each` messages, one after the other.
    pub(crate) fn start(producer: &Producer, topic: &str, tasks: u32, each: u64) -> Load {
        let done = Arc::new(AtomicU64::new(0));
        let mut set = JoinSet::new();
        for conn in 0..tasks {
            let (producer, topic, done) = (producer.clone(), topic.to_owned(), done.clone());
            set.spawn(async move {
                let mut sent = Vec::new();
                for seq in 0..each {
                    let id = Identity { conn, seq };
                    let message = Message::new(topic.as_str(), body(id)).key(key(id));
                    sent.push((id, producer.send(message).await));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                sent
            });
        }
        Load { tasks: set, done }
    }

    /// Waits until so many sends have ended.
    pub(crate) async fn until(&self, count: u64) {
        while self.done.load(Ordering::Relaxed) < count {
            assert!(!self.tasks.is_empty());
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Waits for all of them.
    pub(crate) async fn finish(mut self) -> Sent {
        let mut sent = Vec::new();
        while let Some(part) = self.tasks.join_next().await {
            sent.extend(part.expect("a sender"));
        }
        sent
    }
}

/// What an audit went through.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) receipts: usize,
    pub(crate) failures: usize,
    /// Records by broker.
    pub(crate) records: BTreeMap<String, usize>,
    /// Messages that are there more than once, with one unique id.
    pub(crate) twice: usize,
}

/// Holds the topic's messages on all brokers (name, address) against what was said of them.
pub(crate) fn audit(
    brokers: &[(String, SocketAddr)],
    topic: &str,
    queues: u32,
    sent: &Sent,
) -> Result<Summary, String> {
    let mut summary = Summary::default();
    let mut places: HashMap<(String, i32, i64), checker::Message> = HashMap::new();
    let mut copies: HashMap<Identity, Vec<String>> = HashMap::new();
    for (name, address) in brokers {
        let messages = read_all(*address, topic, queues);
        summary.records.insert(name.clone(), messages.len());
        for message in messages {
            let id = identity(&message.body).ok_or("a body that nobody sent")?;
            if message.body != body(id) {
                return Err(format!("the body of {id:?} is not what was sent"));
            }
            copies.entry(id).or_default().push(unique_key(&message.properties)?);
            places.insert((name.clone(), message.queue, message.offset), message);
        }
    }
    let all: HashMap<Identity, &Result<SendReceipt>> = sent.iter().map(|(i, r)| (*i, r)).collect();
    for (id, keys) in &copies {
        if !all.contains_key(id) {
            return Err(format!("{id:?} was never sent and is there"));
        }
        if keys.len() > 1 {
            summary.twice += 1;
            if keys.iter().any(|key| *key != keys[0]) {
                return Err(format!("{id:?} is there with several unique ids: {keys:?}"));
            }
        }
    }
    for (id, outcome) in sent {
        match outcome {
            Ok(receipt) => {
                summary.receipts += 1;
                let queue = &receipt.queue;
                let place = (queue.broker_name.clone(), queue.queue_id, receipt.queue_offset);
                let found = places.get(&place);
                let Some(found) = found else {
                    return Err(format!("{id:?} is lost: it was stored at {place:?}"));
                };
                if identity(&found.body) != Some(*id) {
                    return Err(format!("at {place:?} is another message than {id:?}"));
                }
                if unique_key(&found.properties)? != receipt.message_id {
                    return Err(format!("{id:?} has another id than {}", receipt.message_id));
                }
            }
            Err(error) => {
                summary.failures += 1;
                if !may_be_stored(error) && copies.contains_key(id) {
                    return Err(format!("{id:?} is there, but the client said it is not: {error}"));
                }
            }
        }
    }
    Ok(summary)
}

fn may_be_stored(error: &Error) -> bool {
    matches!(error, Error::Send(failure) if failure.may_be_stored())
}

fn unique_key(properties: &str) -> Result<String, String> {
    let found = properties.split('\u{2}').find_map(|p| p.strip_prefix("UNIQ_KEY\u{1}"));
    found.map(str::to_owned).ok_or_else(|| "a message without a unique id".to_owned())
}
