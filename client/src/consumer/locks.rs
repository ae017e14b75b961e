//! Locks on the queues of orderly consumers: asked for, renewed, given back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use tokio::time::Instant;

use super::allocate::queue_text;
use super::member::Member;
use super::queue::Queue;
use crate::broker::{Broker, Lock};
use crate::error::{Error, Result};

/// Longest wait for an answer; a lock whose answer comes late is worth little.
const ANSWER_MAX: Duration = Duration::from_secs(1);

impl Member {
    async fn lock_broker(&self, queue: &MessageQueue) -> Result<Broker> {
        match self.instance.queue_broker(queue, 0).await? {
            (broker, 0) => Ok(broker.with_timeout(ANSWER_MAX)),
            _ => Err(Error::NoMaster { broker: queue.broker_name.clone() }),
        }
    }

    fn lock_request<'a>(&'a self, queues: &'a [MessageQueue]) -> Lock<'a> {
        Lock { client_id: &self.instance.client_id, group: self.group(), queues }
    }

    /// Asks one broker group. None of an empty list.
    async fn ask_locks(&self, queues: &[MessageQueue]) -> Result<Vec<MessageQueue>> {
        let Some(first) = queues.first() else { return Ok(Vec::new()) };
        self.lock_broker(first).await?.lock(&self.lock_request(queues)).await
    }

    /// Asks for locks; gives those of the queues that are ours now.
    pub(crate) async fn lock_all(&self, queues: Vec<MessageQueue>) -> Vec<MessageQueue> {
        let mut held = Vec::new();
        for queues in by_broker(queues).into_values() {
            if self.is_ending() {
                break;
            }
            match self.ask_locks(&queues).await {
                Ok(ours) => held.extend(ours.into_iter().filter(|queue| queues.contains(queue))),
                Err(error) => tracing::debug!(%error, "queues could not be locked"),
            }
        }
        held
    }

    /// Renews all locks. One whose group's progress has to be looked at is left to the queue's own task.
    pub(crate) async fn renew_locks(self: &Arc<Self>) {
        let all: Vec<MessageQueue> = self.table().keys().cloned().collect();
        for queues in by_broker(all).into_values() {
            let Some(first) = queues.first() else { continue };
            let broker = match self.lock_broker(first).await {
                Ok(broker) => broker,
                Err(error) => {
                    tracing::debug!(%error, "locks were not renewed");
                    continue;
                }
            };
            // From here to the answer no lock is given back. Those that were meanwhile, while other brokers were asked, are not asked for.
            let _locking = self.locking.write().await;
            let ids: Vec<MessageQueue> = {
                let table = self.table();
                queues.into_iter().filter(|id| table.contains_key(id)).collect()
            };
            if ids.is_empty() {
                continue;
            }
            let asked = Instant::now();
            let held = match broker.lock(&self.lock_request(&ids)).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::debug!(%error, "locks were not renewed");
                    continue;
                }
            };
            for queue in ids.iter().filter_map(|id| self.queue(id)) {
                if !held.contains(&queue.id) {
                    queue.refused();
                } else if queue.lock_continues(asked) {
                    queue.granted(asked);
                }
            }
        }
    }

    /// Asks for the lock of a queue that we work on and whose lock has ended or is doubtful. Gives whether it is ours, with a state of the queue
    /// that fits the group's progress.
    pub(crate) async fn regain_lock(&self, queue: &Queue) -> bool {
        let asked = Instant::now();
        match self.ask_locks(std::slice::from_ref(&queue.id)).await {
            Ok(held) if held.contains(&queue.id) => {}
            Ok(_) => {
                queue.refused();
                return false;
            }
            Err(error) => {
                tracing::debug!(queue = queue_text(&queue.id), %error, "a lock could not be asked for");
                return false;
            }
        }
        if !queue.lock_continues(asked) {
            // Nobody may write progress meanwhile: that of another member would be lost.
            let mut known = queue.stored.lock().await;
            let stored = self.store.read(&self.instance, self.group(), &queue.id).await;
            let stored = match stored {
                Ok(stored) => stored,
                Err(error) => {
                    tracing::debug!(queue = queue_text(&queue.id), %error, "progress could not be read");
                    return false;
                }
            };
            if let Some(stored) = stored {
                if !queue.is_own(*known, stored) {
                    tracing::info!(
                        queue = queue_text(&queue.id),
                        stored,
                        "another member had the queue, we go on where it was"
                    );
                    queue.reset(stored);
                }
                *known = Some(stored);
            }
        }
        queue.granted(asked);
        true
    }

    /// Gives a lock back.
    pub(crate) async fn unlock(&self, queue: &Queue) {
        self.unlock_id(&queue.id).await;
    }

    pub(crate) async fn unlock_id(&self, id: &MessageQueue) {
        let unlock = async {
            let broker = self.lock_broker(id).await?;
            broker.unlock(&self.lock_request(std::slice::from_ref(id))).await
        };
        if let Err(error) = unlock.await {
            tracing::debug!(queue = queue_text(id), %error, "a lock was not given back and ends by itself");
        }
    }
}

fn by_broker(queues: Vec<MessageQueue>) -> BTreeMap<String, Vec<MessageQueue>> {
    let mut groups: BTreeMap<String, Vec<MessageQueue>> = BTreeMap::new();
    for queue in queues {
        groups.entry(queue.broker_name.clone()).or_default().push(queue);
    }
    groups
}
