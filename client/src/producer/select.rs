//! Which queue a message goes to.

use std::sync::atomic::{AtomicU32, Ordering};

use ringmq_net::body::MessageQueue;
use ringmq_net::record::java_hash;
use tokio::time::Instant;

use super::fault::Faults;

/// The next queue in turn. `tried` are the brokers of the tries that failed, in order: a broker that was not tried is taken if there is one, else
/// one that was not the last. With latency faults: among those not tried one that is available, else one that is reachable.
pub(super) fn next<'q>(
    queues: &'q [MessageQueue],
    cursor: &AtomicU32,
    tried: &[&str],
    faults: Option<&Faults>,
    now: Instant,
) -> Option<&'q MessageQueue> {
    if queues.is_empty() {
        return None;
    }
    let start = cursor.fetch_add(1, Ordering::Relaxed) as usize % queues.len();
    let in_turn = || queues[start..].iter().chain(&queues[..start]);
    let fresh = |queue: &&MessageQueue| !tried.contains(&queue.broker_name.as_str());
    let other = |queue: &&MessageQueue| tried.last() != Some(&queue.broker_name.as_str());
    let judged = faults.and_then(|faults| {
        let available = |q: &&MessageQueue| fresh(q) && faults.is_available(&q.broker_name, now);
        let reachable = |q: &&MessageQueue| fresh(q) && faults.is_reachable(&q.broker_name);
        in_turn().find(available).or_else(|| in_turn().find(reachable))
    });
    judged
        .or_else(|| in_turn().find(fresh))
        .or_else(|| in_turn().find(other))
        .or_else(|| in_turn().next())
}

/// The queue of a key: always the same one while the queues are the same. Java's `SelectMessageQueueByHash` gives the same for a string.
pub(super) fn by_key<'q>(queues: &'q [MessageQueue], key: &str) -> Option<&'q MessageQueue> {
    let count = i64::try_from(queues.len()).ok().filter(|count| *count > 0)?;
    let at = (i64::from(java_hash(key)) % count).unsigned_abs() as usize;
    queues.get(at)
}

#[cfg(test)]
mod tests {
    use super::super::fault::LatencyFault;
    use super::*;
    use std::collections::HashMap;
    use std::time::Duration;

    fn queues(brokers: &[&str], each: i32) -> Vec<MessageQueue> {
        let of = |b: &&str| (0..each).map(|id| MessageQueue::new("t", *b, id)).collect::<Vec<_>>();
        brokers.iter().flat_map(of).collect()
    }

    #[test]
    fn queues_take_turns_evenly_and_over_the_wrap_of_the_cursor() {
        let queues = queues(&["a", "b"], 2);
        let cursor = AtomicU32::new(u32::MAX - 5);
        let mut seen: HashMap<_, u32> = HashMap::new();
        for _ in 0..400 {
            *seen.entry(next(&queues, &cursor, &[], None, Instant::now()).unwrap()).or_default() +=
                1;
        }
        assert!(seen.values().all(|count| *count == 100), "{seen:?}");
        assert_eq!(next(&[], &cursor, &[], None, Instant::now()), None);
    }

    #[test]
    fn a_retry_avoids_the_broker_that_failed_unless_it_is_the_only_one() {
        let two = queues(&["a", "b"], 3);
        let cursor = AtomicU32::new(0);
        for _ in 0..20 {
            let queue = next(&two, &cursor, &["a"], None, Instant::now()).unwrap();
            assert_eq!(queue.broker_name, "b");
        }
        let three = queues(&["a", "b", "c"], 1);
        for _ in 0..20 {
            let queue = next(&three, &cursor, &["a", "b"], None, Instant::now()).unwrap();
            assert_eq!(queue.broker_name, "c", "the one that was not tried yet");
            let queue = next(&three, &cursor, &["a", "b", "c"], None, Instant::now()).unwrap();
            assert_ne!(queue.broker_name, "c", "not the one that failed last");
        }
        let one = queues(&["a"], 2);
        assert!(next(&one, &cursor, &["a"], None, Instant::now()).is_some());
    }

    #[test]
    fn an_isolated_broker_gets_nothing_while_another_is_there_and_all_of_them_otherwise() {
        let faults = Faults::new(LatencyFault::default());
        let now = Instant::now();
        let two = queues(&["a", "b"], 2);
        let cursor = AtomicU32::new(0);
        faults.failed("a", true, now);
        for _ in 0..20 {
            assert_eq!(next(&two, &cursor, &[], Some(&faults), now).unwrap().broker_name, "b");
        }
        // b was refused lately, a is unreachable: b it is, and a only when b just failed.
        faults.failed("b", false, now);
        assert_eq!(next(&two, &cursor, &[], Some(&faults), now).unwrap().broker_name, "b");
        assert_eq!(next(&two, &cursor, &["b"], Some(&faults), now).unwrap().broker_name, "a");
        // Time alone makes b available again, but not a, which nobody has reached.
        let later = now + Duration::from_secs(60);
        for _ in 0..20 {
            assert_eq!(next(&two, &cursor, &[], Some(&faults), later).unwrap().broker_name, "b");
        }
    }

    #[test]
    fn a_key_has_one_queue_and_it_is_that_of_java() {
        let queues = queues(&["a"], 8);
        // Java: "TagA".hashCode() is 2598919; of a negative hash the absolute remainder counts.
        assert_eq!(by_key(&queues, "TagA").unwrap().queue_id, 2_598_919 % 8);
        let negative = (0..).map(|i| format!("key{i}")).find(|k| java_hash(k) < 0).unwrap();
        let want = (java_hash(&negative) % 8).abs();
        assert_eq!(by_key(&queues, &negative).unwrap().queue_id, want);
        assert_eq!(by_key(&[], "x"), None);
    }
}
