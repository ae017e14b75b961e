//! What consumers got.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringmq_client::{MessageQueue, PushConsumer, ReceivedMessage};
use tokio::sync::watch;

use super::LONG;

/// Every delivery, by the text of the message's body. Shared by all who got something.
#[derive(Clone)]
pub(crate) struct Seen {
    table: Arc<watch::Sender<BTreeMap<String, Vec<Arc<ReceivedMessage>>>>>,
}

impl Seen {
    pub(crate) fn new() -> Seen {
        Seen { table: Arc::new(watch::Sender::default()) }
    }

    /// Adds a delivery.
    pub(crate) fn add(&self, message: Arc<ReceivedMessage>) {
        let text = String::from_utf8_lossy(&message.body).into_owned();
        self.table.send_modify(|table| table.entry(text).or_default().push(message));
    }

    /// How many different messages there are.
    pub(crate) fn count(&self) -> usize {
        self.table.borrow().len()
    }

    /// How often that one came.
    pub(crate) fn times(&self, text: &str) -> usize {
        self.table.borrow().get(text).map_or(0, Vec::len)
    }

    /// Deliveries beyond the first of each.
    pub(crate) fn repeats(&self) -> usize {
        self.table.borrow().values().map(|all| all.len() - 1).sum()
    }

    /// All deliveries.
    pub(crate) fn all(&self) -> Vec<Arc<ReceivedMessage>> {
        self.table.borrow().values().flatten().cloned().collect()
    }

    /// Waits for so many different messages.
    pub(crate) async fn until(&self, count: usize) {
        let mut table = self.table.subscribe();
        let done = tokio::time::timeout(LONG, table.wait_for(|table| table.len() >= count)).await;
        if done.is_err() {
            panic!("{} of {count} messages came in {LONG:?}", self.count());
        }
    }

    /// Waits until that message came so often.
    pub(crate) async fn until_times(&self, text: &str, times: usize) {
        let mut table = self.table.subscribe();
        let enough = |table: &BTreeMap<String, Vec<Arc<ReceivedMessage>>>| {
            table.get(text).is_some_and(|all| all.len() >= times)
        };
        let done = tokio::time::timeout(LONG, table.wait_for(enough)).await;
        assert!(done.is_ok(), "{text} came {} times in {LONG:?}, not {times}", self.times(text));
    }
}

/// Waits until a consumer has so many queues of a topic.
pub(crate) async fn until_assigned(consumer: &PushConsumer, topic: &str, count: usize) {
    let mut assignment = consumer.assignment();
    let has = |all: &Arc<[MessageQueue]>| all.iter().filter(|q| q.topic == topic).count() == count;
    let done = tokio::time::timeout(LONG, assignment.wait_for(has)).await;
    assert!(done.is_ok(), "{count} queues of {topic} are not assigned");
}
