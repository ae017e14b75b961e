//! What a heartbeat (34) and an unregistration (35) do to topics, groups and clients together.

use ringmq_net::body::Heartbeat;

use super::ConnId;
use super::clients::{ClientConn, Clients, Notify, TooManyGroups};
use super::groups::GroupTable;
use super::topics::TopicTable;

/// What is left to do after a heartbeat.
#[derive(Debug, Default)]
pub struct HeartbeatOutcome {
    /// Whom to tell of changed memberships; may be told before the reply (stock 4.9.8).
    pub notify: Vec<Notify>,
    /// A retry topic is new: save the topics and register with the name servers.
    pub topic_created: bool,
}

/// The time of a heartbeat, by both clocks, in ms.
#[derive(Clone, Copy, Debug)]
pub struct BeatTime {
    /// Since 1970: what stands in table versions.
    pub wall_ms: i64,
    /// Of a clock that is never set: what registrations are aged by. A step of the other must not end them.
    pub steady_ms: i64,
}

/// Takes in a heartbeat: makes unknown groups and their retry topics, registers the connection in every
/// group. `notify_enable` is the broker's own `notifyConsumerIdsChangedEnable`.
///
/// Where stock makes a group named "" out of an empty name, here such an entry is passed over.
pub fn heartbeat<X: Default>(
    (clients, groups, topics): (&mut Clients, &mut GroupTable, &mut TopicTable<X>),
    client: &ClientConn<'_>,
    beat: &Heartbeat,
    notify_enable: bool,
    now: BeatTime,
) -> Result<HeartbeatOutcome, TooManyGroups> {
    let mut outcome = HeartbeatOutcome::default();
    for data in beat.consumers.iter().filter(|data| !data.group_name.is_empty()) {
        let group = groups.get_or_create(&data.group_name, now.wall_ms);
        let mut notify = notify_enable;
        if let Some(group) = &group {
            notify &= group.notify_consumer_ids_changed_enable;
            // A name that can't be a topic's makes none: the group consumes without retries.
            let queues = group.retry_queue_nums;
            let retry = topics.ensure_retry(&data.group_name, queues, data.unit_mode, now.wall_ms);
            outcome.topic_created |= retry.is_ok_and(|retry| retry.created);
        }
        outcome.notify.extend(clients.register_consumer(client, data, notify, now.steady_ms)?);
    }
    for group in beat.producers.iter().filter(|group| !group.is_empty()) {
        clients.register_producer(client, group, now.steady_ms)?;
    }
    Ok(outcome)
}

/// Takes in an unregistration; empty names count as absent (C++ clients send them).
pub fn unregister(
    clients: &mut Clients,
    groups: &GroupTable,
    conn: ConnId,
    (producer_group, consumer_group): (&str, &str),
    notify_enable: bool,
) -> Option<Notify> {
    if !producer_group.is_empty() {
        clients.unregister_producer(conn, producer_group);
    }
    if consumer_group.is_empty() {
        return None;
    }
    let settings = groups.get(consumer_group);
    let notify = settings.is_none_or(|group| group.notify_consumer_ids_changed_enable);
    clients.unregister_consumer(conn, consumer_group, notify && notify_enable)
}

#[cfg(test)]
mod tests {
    use ringmq_net::body::Body;
    use ringmq_net::language::Language;

    use super::*;
    use crate::state::groups::GroupRules;
    use crate::state::topics::{SYS_FLAG_UNIT_SUB, TopicRules};

    struct State {
        clients: Clients,
        groups: GroupTable,
        topics: TopicTable<()>,
    }

    impl State {
        fn new() -> Self {
            Self {
                clients: Clients::new(),
                groups: GroupTable::new(GroupRules::default(), 0),
                topics: TopicTable::new(TopicRules::new("c", "b"), 0),
            }
        }

        fn beat(&mut self, conn: ConnId, body: &str) -> HeartbeatOutcome {
            let beat = Heartbeat::from_json(body.as_bytes()).unwrap();
            let client_id = beat.client_id.clone();
            let client = ClientConn {
                conn,
                client_id: &client_id,
                language: Language::CPP,
                version: 333,
                addr: ([127, 0, 0, 1], 9).into(),
            };
            let tables = (&mut self.clients, &mut self.groups, &mut self.topics);
            heartbeat(tables, &client, &beat, true, BeatTime { wall_ms: 1, steady_ms: 1 }).unwrap()
        }
    }

    const CPP: &str = "{\"clientID\":\"c2@cpp\",\"consumerDataSet\":[{\"consumeFromWhere\":0,\
        \"consumeType\":1,\"groupName\":\"g2\",\"messageModel\":1,\"subscriptionDataSet\":\
        [{\"subString\":\"*\",\"subVersion\":\"100\",\"topic\":\"TopicA\"}]}]}\n";

    #[test]
    fn a_first_heartbeat_makes_the_group_and_its_retry_topic() {
        let mut state = State::new();
        let outcome = state.beat(1, CPP);
        assert!(outcome.topic_created);
        assert_eq!(outcome.notify.len(), 1);
        assert!(state.groups.get("g2").is_some());
        assert_eq!(state.topics.get("%RETRY%g2").unwrap().settings().read_queues, 1);
        assert_eq!(state.clients.consumer("g2").unwrap().client_ids(), ["c2@cpp"]);
        let outcome = state.beat(1, CPP);
        assert!(!outcome.topic_created && outcome.notify.is_empty());
    }

    #[test]
    fn unit_mode_marks_the_retry_topic_and_empty_names_make_nothing() {
        let mut state = State::new();
        let body = r#"{"clientID":"c","consumerDataSet":[{"groupName":"u","unitMode":true},
            {"groupName":""}],"producerDataSet":[{"groupName":""},{"groupName":"p"}]}"#;
        state.beat(1, body);
        let settings = state.topics.get("%RETRY%u").unwrap().settings();
        assert_eq!(settings.sys_flag, SYS_FLAG_UNIT_SUB);
        assert_eq!(state.clients.consumers().count(), 1);
        assert_eq!(state.clients.producers().count(), 1);
        let none = unregister(&mut state.clients, &state.groups, 1, ("", ""), true);
        assert_eq!(none, None);
        unregister(&mut state.clients, &state.groups, 1, ("p", "u"), true);
        assert_eq!(state.clients.consumers().count() + state.clients.producers().count(), 0);
    }

    #[test]
    fn a_group_that_wants_no_notification_gets_none() {
        let mut state = State::new();
        state.beat(1, CPP);
        let mut config = (**state.groups.get("g2").unwrap()).clone();
        config.notify_consumer_ids_changed_enable = false;
        state.groups.update(config, 2).unwrap();
        assert!(state.beat(2, CPP).notify.is_empty());
        let told = unregister(&mut state.clients, &state.groups, 1, ("", "g2"), true);
        assert_eq!(told, None);
    }
}
