//! From the queues that a consumer has to those that it should have.

use std::collections::{BTreeMap, BTreeSet};

use ringmq_net::body::MessageQueue;

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Diff {
    pub(crate) remove: Vec<MessageQueue>,
    pub(crate) add: Vec<MessageQueue>,
}

/// Compares. `wanted` has an entry for each topic whose division is known now; `subscribed` are all topics. A subscribed topic whose division is
/// not known keeps its queues; a topic that is not subscribed any more loses them.
pub(crate) fn diff(
    current: &BTreeSet<MessageQueue>,
    wanted: &BTreeMap<String, Vec<MessageQueue>>,
    subscribed: &BTreeSet<String>,
) -> Diff {
    let goes = |queue: &&MessageQueue| match wanted.get(&queue.topic) {
        _ if !subscribed.contains(&queue.topic) => true,
        Some(own) => !own.contains(queue),
        None => false,
    };
    let all_wanted = wanted.iter().filter(|(topic, _)| subscribed.contains(*topic));
    let comes = |queue: &&MessageQueue| !current.contains(*queue);
    Diff {
        remove: current.iter().filter(goes).cloned().collect(),
        add: all_wanted.flat_map(|(_, own)| own).filter(comes).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(topic: &str, ids: impl IntoIterator<Item = i32>) -> Vec<MessageQueue> {
        ids.into_iter().map(|id| MessageQueue::new(topic, "b", id)).collect()
    }

    #[test]
    fn only_what_differs_moves() {
        let current: BTreeSet<_> = queues("T", 0..4).into_iter().collect();
        let wanted = BTreeMap::from([("T".to_owned(), queues("T", 2..6))]);
        let diff = diff(&current, &wanted, &["T".to_owned()].into());
        assert_eq!((diff.remove, diff.add), (queues("T", 0..2), queues("T", 4..6)));
    }

    #[test]
    fn a_topic_that_cannot_be_divided_now_keeps_its_queues_and_one_that_is_left_loses_them() {
        let current: BTreeSet<_> = queues("T", 0..2).into_iter().chain(queues("U", 0..2)).collect();
        let wanted = BTreeMap::new();
        let diff = diff(&current, &wanted, &["T".to_owned()].into());
        assert_eq!((diff.remove, diff.add), (queues("U", 0..2), vec![]));
    }

    #[test]
    fn after_the_difference_exactly_the_wanted_queues_are_there() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut pick = || (0..8).filter(|_| random.bool()).collect::<Vec<_>>();
            let mut current: BTreeSet<_> = queues("T", pick()).into_iter().collect();
            let own = queues("T", pick());
            let wanted = BTreeMap::from([("T".to_owned(), own.clone())]);
            let diff = diff(&current, &wanted, &["T".to_owned()].into());
            for queue in &diff.remove {
                assert!(current.remove(queue), "seed {seed}");
            }
            for queue in diff.add {
                assert!(current.insert(queue), "seed {seed}");
            }
            assert!(current.into_iter().eq(own), "seed {seed}");
        }
    }
}
