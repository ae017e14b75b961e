use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn client(conn: ConnId, client_id: &str) -> ClientConn<'_> {
    let addr = SocketAddr::from(([192, 0, 2, 1], 1_000 + conn as u16));
    ClientConn { conn, client_id, language: Language::JAVA, version: 409, addr }
}

fn sub(topic: &str, expression: &str, version: i64) -> SubscriptionData {
    let sub_string = expression.to_owned();
    SubscriptionData { sub_string, ..SubscriptionData::all(topic, version) }
}

fn data(group: &str, subscriptions: &[SubscriptionData]) -> ConsumerData {
    ConsumerData {
        group_name: group.to_owned(),
        consume_type: Some(ConsumeType::Passively),
        message_model: Some(MessageModel::Clustering),
        consume_from: None,
        subscriptions: subscriptions.to_vec(),
        unit_mode: false,
    }
}

fn listed(told: Told) -> Vec<ConnId> {
    match told {
        Told::These(conns) => conns,
        Told::Crowd => panic!("these tests have no crowds"),
    }
}

fn beat(
    clients: &mut Clients,
    conn: ConnId,
    group: &str,
    subscriptions: &[SubscriptionData],
) -> Option<Vec<ConnId>> {
    let id = format!("c{conn}");
    let group = data(group, subscriptions);
    clients.register_consumer(&client(conn, &id), &group, true, 0).unwrap().map(|n| listed(n.conns))
}

#[test]
fn a_new_member_or_topic_notifies_all_and_a_new_expression_nobody() {
    let mut clients = Clients::new();
    assert_eq!(beat(&mut clients, 1, "g", &[sub("T", "A", 1)]), Some(vec![1]));
    assert_eq!(beat(&mut clients, 2, "g", &[sub("T", "A", 1)]), Some(vec![1, 2]));
    assert_eq!(beat(&mut clients, 2, "g", &[sub("T", "A", 1)]), None);
    assert_eq!(beat(&mut clients, 2, "g", &[sub("T", "B", 2)]), None);
    let two = [sub("T", "B", 2), sub("U", "*", 2)];
    assert_eq!(beat(&mut clients, 1, "g", &two), Some(vec![1, 2]));
    assert_eq!(beat(&mut clients, 1, "g", &[sub("U", "*", 2)]), Some(vec![1, 2]));
}

#[test]
fn members_that_subscribe_differently_are_noticed_at_every_heartbeat() {
    let mut clients = Clients::new();
    let told = |clients: &mut Clients| {
        let conflicts = clients.take_conflicts();
        conflicts.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    beat(&mut clients, 1, "g", &[sub("T", "A", 1)]);
    // One that changes its mind alone is no conflict.
    beat(&mut clients, 1, "g", &[sub("T", "B", 2)]);
    beat(&mut clients, 2, "g", &[sub("T", "B", 9)]);
    assert!(told(&mut clients).is_empty());
    beat(&mut clients, 2, "g", &[sub("T", "C", 10)]);
    let lines = told(&mut clients);
    assert!(lines.len() == 1 && lines[0].contains("T: \"C\", not \"B\""), "{lines:?}");
    // The other keeps sending what it wants, which loses by its version.
    beat(&mut clients, 1, "g", &[sub("T", "B", 2)]);
    assert_eq!(told(&mut clients).len(), 1);
    beat(&mut clients, 1, "g", &[sub("U", "*", 3)]);
    beat(&mut clients, 2, "g", &[]);
    assert_eq!(told(&mut clients).len(), 2);
    assert_eq!(clients.subscription_conflicts(), 4);
}

#[test]
fn one_client_id_on_two_connections_is_noticed_once() {
    let mut clients = Clients::new();
    for conn in [1, 2, 1, 2] {
        clients.register_consumer(&client(conn, "same"), &data("g", &[]), true, 5).unwrap();
    }
    let conflicts = clients.take_conflicts();
    assert!(matches!(&conflicts[..], [Conflict::ClientId { .. }]), "{conflicts:?}");
    assert!(conflicts[0].to_string().contains("192.0.2.1:1001"));
}

#[test]
fn only_a_greater_version_replaces_an_expression() {
    let mut clients = Clients::new();
    beat(&mut clients, 1, "g", &[sub("T", "A", 5)]);
    beat(&mut clients, 1, "g", &[sub("T", "B", 5)]);
    assert_eq!(clients.consumer("g").unwrap().subscription("T").unwrap().data().sub_string, "A");
    beat(&mut clients, 1, "g", &[sub("T", "B", 6)]);
    assert_eq!(clients.consumer("g").unwrap().subscription("T").unwrap().data().sub_string, "B");
}

#[test]
fn a_group_with_notification_off_is_left_in_peace() {
    let mut clients = Clients::new();
    let one = clients.register_consumer(&client(1, "a"), &data("g", &[]), false, 0);
    assert_eq!(one, Ok(None));
    clients.register_consumer(&client(2, "b"), &data("g", &[]), false, 0).unwrap();
    assert_eq!(clients.unregister_consumer(1, "g", false), None);
    assert_eq!(clients.consumer("g").unwrap().client_ids(), ["b"]);
}

#[test]
fn a_close_ends_all_registrations_and_tells_who_remains() {
    let mut clients = Clients::new();
    for (conn, group) in [(1, "g"), (2, "g"), (1, "h"), (3, "i"), (1, "i")] {
        beat(&mut clients, conn, group, &[]);
    }
    clients.register_producer(&client(1, "c1"), "p", 0).unwrap();
    assert_eq!(clients.reply_conn("c1"), Some(1));
    let told = clients.close_conn(1);
    let told: Vec<_> = told.iter().map(|n| (&*n.group, listed(n.conns.clone()))).collect();
    assert_eq!(told, [("g", vec![2]), ("i", vec![3])]);
    assert!(clients.consumer("h").is_none());
    assert!(clients.producer("p").is_none());
    assert_eq!(clients.reply_conn("c1"), None);
    assert!(clients.close_conn(1).is_empty());
}

#[test]
fn silence_for_120_s_ends_a_registration_and_tells_who_remains() {
    let mut clients = Clients::new();
    beat(&mut clients, 1, "g", &[]);
    beat(&mut clients, 2, "g", &[]);
    clients.register_producer(&client(3, "c3"), "p", 0).unwrap();
    let later = client(2, "c2");
    clients.register_consumer(&later, &data("g", &[]), true, 100).unwrap();
    assert_eq!(clients.expire(120_000), Expired::default());
    let expired = clients.expire(120_001);
    assert_eq!(expired.close, [1, 3]);
    assert_eq!(expired.notify, [Notify { group: "g".into(), conns: Told::These(vec![2]) }]);
    assert_eq!(clients.reply_conn("c3"), None);
    assert_eq!(clients.expire(200_000).close, [2]);
    assert!(clients.consumers().next().is_none() && clients.producers().next().is_none());
}

#[test]
fn a_pull_is_checked_against_the_registration_in_stocks_order() {
    let mut clients = Clients::new();
    let refuse = |clients: &Clients, topic: &str, version, broadcast| {
        clients.subscription_for_pull("g", topic, version, broadcast).unwrap_err().code()
    };
    assert_eq!(refuse(&clients, "T", 1, true), 24);
    let sql = SubscriptionData { expression_type: "SQL92".into(), ..sub("S", "a > 5", 1) };
    let mut group = data("g", &[sub("T", "A", 5), sql]);
    group.message_model = Some(MessageModel::Broadcasting);
    clients.register_consumer(&client(1, "c1"), &group, true, 0).unwrap();
    assert_eq!(refuse(&clients, "T", 1, false), 16);
    assert_eq!(refuse(&clients, "U", 1, true), 24);
    assert_eq!(refuse(&clients, "T", 6, true), 25);
    assert_eq!(refuse(&clients, "S", 1, true), 1);
    assert!(clients.subscription_for_pull("g", "T", 5, true).is_ok());
    assert_eq!(clients.groups_of_topic("T"), ["g"]);
}

#[test]
fn of_two_connections_with_one_client_id_the_fresher_is_found() {
    let mut clients = Clients::new();
    clients.register_consumer(&client(1, "same"), &data("g", &[]), true, 5).unwrap();
    clients.register_consumer(&client(2, "same"), &data("g", &[]), true, 9).unwrap();
    let group = clients.consumer("g").unwrap();
    assert_eq!(group.client_ids(), ["same", "same"]);
    assert_eq!(group.members().by_client_id("same").unwrap().conn, 2);
    assert!(group.members().by_client_id("other").is_none());
}

#[test]
fn a_reply_goes_to_the_latest_connection_and_survives_leaving_one_group() {
    let mut clients = Clients::new();
    clients.register_producer(&client(1, "c"), "p", 0).unwrap();
    clients.register_producer(&client(1, "c"), "CLIENT_INNER_PRODUCER", 0).unwrap();
    clients.unregister_producer(1, "p");
    assert_eq!(clients.reply_conn("c"), Some(1));
    clients.register_producer(&client(2, "c"), "p", 0).unwrap();
    clients.close_conn(1);
    assert_eq!(clients.reply_conn("c"), Some(2));
    clients.unregister_producer(2, "p");
    assert_eq!(clients.reply_conn("c"), None);
}

#[test]
fn one_connection_cannot_register_groups_without_end() {
    let mut clients = Clients::new();
    for n in 0..CONN_GROUPS_MAX {
        clients.register_producer(&client(1, "c"), &format!("p{n}"), 0).unwrap();
    }
    assert_eq!(clients.register_producer(&client(1, "c"), "more", 0), Err(TooManyGroups::Groups));
    assert_eq!(clients.register_producer(&client(1, "c"), "p0", 0), Ok(()));
    assert!(clients.register_producer(&client(2, "d"), "more", 0).is_ok());
}

#[test]
fn the_members_of_a_crowd_are_not_listed() {
    let mut clients = Clients::new();
    for conn in 0..=CROWD as u64 {
        let id = format!("c{conn}");
        let group = data("g", &[]);
        let told = clients.register_consumer(&client(conn, &id), &group, true, 0).unwrap().unwrap();
        assert_eq!(told.conns == Told::Crowd, conn == CROWD as u64);
    }
    let left = clients.close_conn(0);
    assert!(matches!(&left[0].conns, Told::These(conns) if conns.len() == CROWD));
}

#[test]
fn what_clients_register_is_bounded_and_comes_free_when_they_leave() {
    let mut clients = Clients::new();
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    let refused = clients.register_producer(&client(1, &long), "p", 0);
    assert_eq!(refused, Err(TooManyGroups::Name));
    let large = data("g", &[sub("T", &"tag || ".repeat(100_000), 1)]);
    let mut taken = 0;
    while clients.register_consumer(&client(taken, "c"), &named(&large, taken), true, 0).is_ok() {
        taken += 1;
        assert!(taken < 100, "nothing is refused");
    }
    assert!(taken > 0 && clients.bytes() <= REGISTERED_BYTES_MAX);
    // Those who are in keep their registrations alive.
    clients.register_consumer(&client(0, "c"), &named(&large, 0), true, 0).unwrap();
    for conn in 0..taken {
        clients.close_conn(conn);
    }
    assert_eq!(clients.bytes(), 0);
    // An id that changes to and fro costs what it is.
    for n in 0..100 {
        let id = "i".repeat(1 + n % 2 * 1_000);
        clients.register_producer(&client(1, &id), "p", 0).unwrap();
    }
    clients.close_conn(1);
    assert_eq!(clients.bytes(), 0);
}

fn named(data: &ConsumerData, n: u64) -> ConsumerData {
    ConsumerData { group_name: format!("g{n}"), ..data.clone() }
}

#[derive(Clone, Debug)]
enum Op {
    Beat { conn: u64, group: u8, topics: Vec<u8>, version: i64 },
    Unregister { conn: u64, group: u8 },
    Close(u64),
    Advance(i64),
    Expire,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4u64, 0..3u8, prop::collection::vec(0..3u8, 0..3), 0..5i64)
            .prop_map(|(conn, group, topics, version)| Op::Beat { conn, group, topics, version }),
        2 => (0..4u64, 0..3u8).prop_map(|(conn, group)| Op::Unregister { conn, group }),
        1 => (0..4u64).prop_map(Op::Close),
        2 => (0..90_000i64).prop_map(Op::Advance),
        1 => Just(Op::Expire),
    ]
}

/// Per group: members with the time of their last heartbeat, and topics with their version.
type Model = BTreeMap<String, (BTreeMap<u64, i64>, BTreeMap<String, i64>)>;

/// Takes members out of the model; tells `(group, remaining)` for groups that lost one and live on.
fn leave(model: &mut Model, gone: impl Fn(&str, u64, i64) -> bool) -> Vec<(String, Vec<u64>)> {
    let mut told = vec![];
    model.retain(|group, (members, _)| {
        let before = members.len();
        members.retain(|conn, at| !gone(group, *conn, *at));
        if members.len() < before && !members.is_empty() {
            told.push((group.clone(), members.keys().copied().collect()));
        }
        !members.is_empty()
    });
    told
}

fn told(notify: impl IntoIterator<Item = Notify>) -> Vec<(String, Vec<u64>)> {
    notify.into_iter().map(|n| (n.group.to_string(), listed(n.conns))).collect()
}

proptest! {
    #[test]
    fn consumers_behave_as_a_plain_table(ops in prop::collection::vec(op(), 1..150)) {
        let mut clients = Clients::new();
        let mut model = Model::new();
        let mut now = 0;
        for op in ops {
            match op {
                Op::Beat { conn, group, topics, version } => {
                    let (id, group) = (format!("c{conn}"), format!("g{group}"));
                    let topics: BTreeSet<String> = topics.iter().map(|t| format!("T{t}")).collect();
                    let subs: Vec<_> = topics.iter().map(|t| sub(t, "*", version)).collect();
                    let got = clients.register_consumer(
                        &client(conn, &id), &data(&group, &subs), true, now);
                    let (members, known) = model.entry(group.clone()).or_default();
                    let mut changed = members.insert(conn, now).is_none();
                    changed |= topics != known.keys().cloned().collect();
                    known.retain(|topic, _| topics.contains(topic));
                    for topic in topics {
                        let stored = known.entry(topic).or_insert(version);
                        *stored = version.max(*stored);
                    }
                    let conns: Vec<u64> = members.keys().copied().collect();
                    let expected = changed.then_some((group, conns));
                    prop_assert_eq!(told(got.unwrap()), Vec::from_iter(expected));
                }
                Op::Unregister { conn, group } => {
                    let group = format!("g{group}");
                    let got = clients.unregister_consumer(conn, &group, true);
                    prop_assert_eq!(told(got), leave(&mut model, |g, c, _| g == group && c == conn));
                }
                Op::Close(conn) => {
                    let expected = leave(&mut model, |_, c, _| c == conn);
                    prop_assert_eq!(told(clients.close_conn(conn)), expected);
                }
                Op::Advance(ms) => now += ms,
                Op::Expire => {
                    let expected = leave(&mut model, |_, _, at| now - at > LIFE_MS);
                    prop_assert_eq!(told(clients.expire(now).notify), expected);
                }
            }
            prop_assert_eq!(clients.consumers().count(), model.len());
            for (group, (members, topics)) in &model {
                let found = clients.consumer(group).unwrap();
                let conns: Vec<u64> = found.members().sorted().iter().map(|m| m.conn).collect();
                prop_assert_eq!(conns, members.keys().copied().collect::<Vec<_>>());
                let subs: BTreeMap<String, i64> =
                    found.subscriptions().map(|s| (s.data().topic.clone(), s.version())).collect();
                prop_assert_eq!(&subs, topics);
            }
        }
        for conn in 0..4 {
            clients.close_conn(conn);
        }
        prop_assert!(clients.consumers.is_empty() && clients.conns.is_empty());
        prop_assert_eq!(clients.bytes(), 0);
    }
}
