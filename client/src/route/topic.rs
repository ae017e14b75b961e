//! What a route means: the queues that a topic can be written to and read from.

use std::collections::BTreeMap;

use ringmq_net::body::{MessageQueue, TopicRouteData};

const PERM_READ: i32 = 4;
const PERM_WRITE: i32 = 2;
/// Most queues of one broker group that are believed; stock allows no more.
const QUEUES_MAX: i32 = 65_536;

/// Where a topic lives, as the name servers told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicRoute {
    /// As received.
    pub data: TopicRouteData,
    /// Queues that take messages, by broker group. For an ordered topic exactly those that its configuration names, in its order.
    pub writable: Vec<MessageQueue>,
    /// Queues that can be read, by broker group.
    pub readable: Vec<MessageQueue>,
    /// The topic does not exist yet: this is where the first send would create it.
    pub assumed: bool,
}

impl TopicRoute {
    pub(crate) fn new(topic: &str, mut data: TopicRouteData, assumed: bool) -> TopicRoute {
        data.queues.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        data.brokers.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        let writable = match data.order_topic_conf.as_deref().filter(|conf| !conf.is_empty()) {
            Some(conf) => ordered(topic, conf),
            None => writable(topic, &data),
        };
        let readable = data
            .queues
            .iter()
            .filter(|queue| queue.perm & PERM_READ != 0)
            .flat_map(|queue| numbered(topic, &queue.broker_name, queue.read_queue_nums))
            .collect();
        TopicRoute { data, writable, readable, assumed }
    }

    /// The route that a topic will have once it is made from the template.
    pub(crate) fn of_template(topic: &str, mut data: TopicRouteData, queues: i32) -> TopicRoute {
        for queue in &mut data.queues {
            let nums = queues.min(queue.read_queue_nums);
            (queue.read_queue_nums, queue.write_queue_nums) = (nums, nums);
        }
        TopicRoute::new(topic, data, true)
    }

    /// Addresses by id of each broker group.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = (&str, &BTreeMap<i64, String>)> {
        self.data.brokers.iter().map(|broker| (broker.broker_name.as_str(), &broker.broker_addrs))
    }
}

/// Queues 0..n of each group that allows writes and has a master.
fn writable(topic: &str, data: &TopicRouteData) -> Vec<MessageQueue> {
    let has_master = |name: &str| {
        data.brokers.iter().any(|b| b.broker_name == name && b.broker_addrs.contains_key(&0))
    };
    data.queues
        .iter()
        .filter(|queue| queue.perm & PERM_WRITE != 0 && has_master(&queue.broker_name))
        .flat_map(|queue| numbered(topic, &queue.broker_name, queue.write_queue_nums))
        .collect()
}

/// `broker:count` joined by `;`. Parts of another form are left out.
fn ordered(topic: &str, conf: &str) -> Vec<MessageQueue> {
    conf.split(';')
        .filter_map(|part| part.split_once(':'))
        .filter_map(|(broker, count)| Some((broker, count.trim().parse().ok()?)))
        .flat_map(|(broker, count)| numbered(topic, broker, count))
        .collect()
}

fn numbered(topic: &str, broker: &str, count: i32) -> impl Iterator<Item = MessageQueue> {
    (0..count.clamp(0, QUEUES_MAX)).map(move |id| MessageQueue::new(topic, broker, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmq_net::body::{BrokerData, QueueData};

    fn data(queues: &[(&str, i32, i32, i32)], brokers: &[(&str, &[i64])]) -> TopicRouteData {
        TopicRouteData {
            queues: queues
                .iter()
                .map(|(name, read, write, perm)| QueueData {
                    broker_name: (*name).into(),
                    read_queue_nums: *read,
                    write_queue_nums: *write,
                    perm: *perm,
                    topic_sys_flag: 0,
                })
                .collect(),
            brokers: brokers
                .iter()
                .map(|(name, ids)| BrokerData {
                    cluster: "c".into(),
                    broker_name: (*name).into(),
                    broker_addrs: ids.iter().map(|id| (*id, format!("{name}:{id}"))).collect(),
                })
                .collect(),
            ..TopicRouteData::default()
        }
    }

    fn short(queues: &[MessageQueue]) -> Vec<String> {
        queues.iter().map(|q| format!("{}{}", q.broker_name, q.queue_id)).collect()
    }

    #[test]
    fn queues_without_permission_or_master_are_left_out() {
        let data = data(
            &[("c", 1, 2, 6), ("b", 2, 2, 4), ("a", 3, 1, 2), ("d", 1, 1, 6), ("e", 1, 1, 6)],
            &[("a", &[0]), ("b", &[0]), ("c", &[0, 1]), ("d", &[1])],
        );
        let route = TopicRoute::new("t", data, false);
        assert_eq!(short(&route.writable), ["a0", "c0", "c1"]);
        assert_eq!(short(&route.readable), ["b0", "b1", "c0", "d0", "e0"]);
    }

    #[test]
    fn an_ordered_topic_has_the_queues_of_its_configuration() {
        let mut data = data(&[("a", 8, 8, 6)], &[("a", &[0])]);
        data.order_topic_conf = Some("b:2;a:1;broken;c:x".into());
        assert_eq!(short(&TopicRoute::new("t", data, false).writable), ["b0", "b1", "a0"]);
    }

    #[test]
    fn a_topic_from_the_template_has_no_more_queues_than_were_wished_for() {
        let route = TopicRoute::of_template("t", data(&[("a", 8, 8, 7)], &[("a", &[0])]), 4);
        assert_eq!(short(&route.writable), ["a0", "a1", "a2", "a3"]);
        assert!(route.assumed);
        let few = TopicRoute::of_template("t", data(&[("a", 2, 8, 7)], &[("a", &[0])]), 4);
        assert_eq!(few.writable.len(), 2);
    }
}
