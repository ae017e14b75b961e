//! Queue locks of orderly consumers (requests 41 and 42).
//!
//! A queue is topic, broker name and id exactly as the client sent them.
//! A lock belongs to a client id, not to a connection: a disconnect does not release it, 60 s without
//! a refresh do (stock 4.9.8). Clients refresh each 20 s and trust a lock for 30 s.

use ringmq_net::body::{LockBatch, LockOk, MessageQueue};
use ringmq_net::map::SeededMap;

/// How long a lock lives without a refresh, in ms (stock 4.9.8).
pub const LOCK_LIFE_MS: i64 = 60_000;

/// The default bound on locks held in one shard; see [`QueueLocks::new`].
pub const LOCKS_MAX: usize = 1_000_000;

#[derive(Debug)]
struct Lock {
    client_id: Box<str>,
    refreshed_ms: i64,
}

impl Lock {
    fn is_expired(&self, now_ms: i64) -> bool {
        now_ms - self.refreshed_ms > LOCK_LIFE_MS
    }
}

/// Who holds which queue, per consumer group. Owned by one reactor.
#[derive(Debug)]
pub struct QueueLocks {
    groups: SeededMap<Box<str>, SeededMap<MessageQueue, Lock>>,
    len: usize,
    locks_max: usize,
}

impl Default for QueueLocks {
    fn default() -> Self {
        Self::new(LOCKS_MAX)
    }
}

impl QueueLocks {
    /// No locks, and never more than `locks_max`: above it a free queue is simply not granted, which
    /// a client takes for "held by another" and asks again.
    pub fn new(locks_max: usize) -> Self {
        Self { groups: SeededMap::default(), len: 0, locks_max }
    }

    /// Locks held, expired ones included until the next [`QueueLocks::purge`].
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Request 41: takes or refreshes all that can be had, and answers which those are.
    pub fn lock_batch(&mut self, batch: &LockBatch, now_ms: i64) -> LockOk {
        let mut queues = batch.queues.clone();
        queues.retain(|q| self.lock(&batch.consumer_group, &batch.client_id, q, now_ms));
        LockOk { queues }
    }

    /// Request 42: releases what the client holds of these queues.
    pub fn unlock_batch(&mut self, batch: &LockBatch) {
        for queue in &batch.queues {
            self.unlock(&batch.consumer_group, &batch.client_id, queue);
        }
    }

    /// Takes or refreshes the lock of one queue for `client_id`; whether that client holds it now.
    pub fn lock(
        &mut self,
        group: &str,
        client_id: &str,
        queue: &MessageQueue,
        now_ms: i64,
    ) -> bool {
        if let Some(lock) = self.groups.get_mut(group).and_then(|queues| queues.get_mut(queue)) {
            if *lock.client_id != *client_id {
                if !lock.is_expired(now_ms) {
                    return false;
                }
                lock.client_id = client_id.into();
            }
            lock.refreshed_ms = now_ms;
            return true;
        }
        if self.len >= self.locks_max {
            return false;
        }
        self.len += 1;
        let lock = Lock { client_id: client_id.into(), refreshed_ms: now_ms };
        self.groups.entry(group.into()).or_default().insert(queue.clone(), lock);
        true
    }

    /// Releases the lock of one queue if `client_id` holds it; whether it did.
    pub fn unlock(&mut self, group: &str, client_id: &str, queue: &MessageQueue) -> bool {
        let Some(queues) = self.groups.get_mut(group) else { return false };
        if queues.get(queue).is_none_or(|lock| *lock.client_id != *client_id) {
            return false;
        }
        queues.remove(queue);
        if queues.is_empty() {
            self.groups.remove(group);
        }
        self.len -= 1;
        true
    }

    /// Forgets expired locks: nothing observable changes, memory comes back. Run it each minute.
    pub fn purge(&mut self, now_ms: i64) {
        self.groups.retain(|_, queues| {
            queues.retain(|_, lock| !lock.is_expired(now_ms));
            !queues.is_empty()
        });
        self.len = self.groups.values().map(SeededMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn q(broker: &str, queue_id: i32) -> MessageQueue {
        MessageQueue::new("T", broker, queue_id)
    }

    #[test]
    fn a_held_queue_is_refused_until_60_s_pass_without_a_refresh() {
        let mut locks = QueueLocks::default();
        assert!(locks.lock("g", "a", &q("broker-a", 1), 0));
        assert!(!locks.lock("g", "b", &q("broker-a", 1), 60_000));
        assert!(locks.lock("g", "a", &q("broker-a", 1), 60_000));
        assert!(!locks.lock("g", "b", &q("broker-a", 1), 120_000));
        assert!(locks.lock("g", "b", &q("broker-a", 1), 120_001));
        assert!(!locks.lock("g", "a", &q("broker-a", 1), 120_002));
    }

    #[test]
    fn groups_and_broker_names_are_apart() {
        let mut locks = QueueLocks::default();
        assert!(locks.lock("g", "a", &q("broker-a", 1), 0));
        assert!(locks.lock("h", "b", &q("broker-a", 1), 0));
        assert!(locks.lock("g", "b", &q("broker-b", 1), 0));
        assert!(locks.lock("g", "b", &q("broker-a", 2), 0));
    }

    #[test]
    fn only_the_holder_unlocks() {
        let mut locks = QueueLocks::default();
        assert!(locks.lock("g", "a", &q("broker-a", 1), 0));
        assert!(!locks.unlock("g", "b", &q("broker-a", 1)));
        assert!(!locks.lock("g", "b", &q("broker-a", 1), 1));
        assert!(locks.unlock("g", "a", &q("broker-a", 1)));
        assert!(locks.is_empty());
        assert!(locks.lock("g", "b", &q("broker-a", 1), 2));
    }

    #[test]
    fn the_bound_refuses_new_locks_and_still_refreshes_old_ones() {
        let mut locks = QueueLocks::new(1);
        assert!(locks.lock("g", "a", &q("broker-a", 1), 0));
        assert!(!locks.lock("g", "a", &q("broker-a", 2), 0));
        assert!(locks.lock("g", "a", &q("broker-a", 1), 5));
    }

    #[test]
    fn a_batch_is_answered_with_what_was_had() {
        let mut locks = QueueLocks::default();
        assert!(locks.lock("g", "other", &q("b", 1), 0));
        let batch = LockBatch {
            client_id: "a".into(),
            consumer_group: "g".into(),
            queues: vec![q("b", 0), q("b", 1), q("b", 2)],
        };
        assert_eq!(locks.lock_batch(&batch, 0).queues, [q("b", 0), q("b", 2)]);
        locks.unlock_batch(&batch);
        assert_eq!(locks.len(), 1);
    }

    proptest! {
        #[test]
        fn locks_behave_as_a_plain_map(
            ops in prop::collection::vec((0..4u8, 0..2u8, 0..3u8, 0..3i32, 0..40_000i64), 1..200)
        ) {
            let mut locks = QueueLocks::default();
            let mut model: HashMap<(u8, i32), (u8, i64)> = HashMap::new();
            let mut now = 0;
            for (op, group, client, queue, ms) in ops {
                now += ms;
                let (g, c) = (format!("g{group}"), format!("c{client}"));
                let q = &q("b", queue);
                match op {
                    0 | 1 => {
                        let holder = model.get(&(group, queue)).copied();
                        let free = holder.is_none_or(|(held_by, at)| {
                            held_by == client || now - at > LOCK_LIFE_MS
                        });
                        prop_assert_eq!(locks.lock(&g, &c, q, now), free);
                        if free {
                            model.insert((group, queue), (client, now));
                        }
                    }
                    2 => {
                        let held = model.get(&(group, queue)).is_some_and(|(by, _)| *by == client);
                        prop_assert_eq!(locks.unlock(&g, &c, q), held);
                        if held {
                            model.remove(&(group, queue));
                        }
                    }
                    _ => {
                        locks.purge(now);
                        model.retain(|_, (_, at)| now - *at <= LOCK_LIFE_MS);
                    }
                }
                prop_assert_eq!(locks.len(), model.len());
            }
        }
    }
}
