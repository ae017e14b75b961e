//! Bounds, cancellation, what brokers are told, and the end.

use ringmq_net::body::{Body, Heartbeat};

use super::*;
use crate::fake::eventually;

#[tokio::test]
async fn sends_beyond_the_bound_wait_and_then_fail_and_those_within_it_do_not() {
    let (a, gate) = gated().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let by_number = client.producer("g").in_flight_max(2, 1 << 20).send_timeout(LONG);
    let by_bytes = client.producer("h").in_flight_max(100, 8 * 1024).send_timeout(LONG);
    for (builder, body) in [(by_number, vec![1; 10]), (by_bytes, vec![1; 4000])] {
        let producer = builder.start().await.unwrap();
        let before = sends(&a).len();
        let send = || {
            let (producer, message) = (producer.clone(), Message::new("t", body.clone()));
            tokio::spawn(async move { producer.send(message).await })
        };
        let held = [send(), send()];
        a.until_asked(request::SEND_MESSAGE_V2, before + 2).await;
        let short = Duration::from_millis(30);
        let full = producer.send_within(Message::new("t", body.clone()), short).await.unwrap_err();
        assert!(matches!(full, Error::Busy { .. }), "{full}");
        assert_eq!(sends(&a).len(), before + 2, "nothing was sent beyond the bound");
        let waiting = send();
        gate.add_permits(3);
        for send in held.into_iter().chain([waiting]) {
            send.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_message_larger_than_the_bound_goes_alone_and_not_never() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").in_flight_max(10, 1024).start().await.unwrap();
    producer.send(Message::new("t", vec![1; 3000])).await.unwrap();
}

#[tokio::test]
async fn dropped_sends_leave_every_table_and_bound() {
    let (a, gate) = gated().await;
    let servers = Fake::name_server(vec![("a", a.addr())], 2).await;
    let builder = Client::builder().name_server(servers.addr()).requests_in_flight_max(4);
    let client = builder.build().unwrap();
    let producer = client.producer("g").in_flight_max(4, 1 << 20).start().await.unwrap();
    for round in 1..=5 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let producer = producer.clone();
            tasks.spawn(async move { producer.send_within(message(), LONG).await });
        }
        a.until_asked(request::SEND_MESSAGE_V2, round * 4).await;
        tasks.shutdown().await;
    }
    // All places are free again.
    gate.add_permits(100);
    for _ in 0..8 {
        producer.send_within(message(), LONG).await.unwrap();
    }
}

fn groups(heartbeat: &Command) -> Vec<String> {
    Heartbeat::from_json(&heartbeat.body).unwrap().producers
}

#[tokio::test]
async fn a_broker_is_told_of_the_group_over_each_new_connection() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    assert_eq!(a.connections(), 0, "nothing is sent without a need");
    producer.send(message()).await.unwrap();
    let heartbeats = a.until_asked(request::HEART_BEAT, 1).await;
    assert_eq!(groups(&heartbeats[0]), ["g"]);
    let before = a.asked(request::HEART_BEAT).len();
    a.cut();
    while producer.send(message()).await.is_err() {}
    a.until_asked(request::HEART_BEAT, before + 1).await;
    assert_eq!(a.connections(), 2);
}

#[tokio::test]
async fn a_broker_hears_of_a_second_producer_over_the_connection_it_has() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let first = client.producer("g").start().await.unwrap();
    first.send(message()).await.unwrap();
    a.until_asked(request::HEART_BEAT, 1).await;
    let second = client.producer("h").start().await.unwrap();
    second.send(message()).await.unwrap();
    let told =
        || a.asked(request::HEART_BEAT).iter().any(|h| groups(h) == ["g", "h"]).then_some(());
    eventually(told).await;
    assert_eq!(a.connections(), 1);
}

#[tokio::test]
async fn declared_topics_are_resolved_and_their_brokers_told_at_the_start() {
    let (a, b) = (good().await, good().await);
    let (servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let _producer = client.producer("g").topics(["t"]).start().await.unwrap();
    for broker in [&a, &b] {
        assert_eq!(groups(&broker.asked(request::HEART_BEAT)[0]), ["g"]);
    }
    assert_eq!(servers.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 1);
}

#[tokio::test]
async fn one_group_is_taken_once_and_free_again_after_its_end() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let first = client.producer("g").start().await.unwrap();
    let taken = client.producer("g").start().await.unwrap_err();
    assert!(matches!(taken, Error::GroupTaken { .. }), "{taken}");
    first.shutdown().await.unwrap();
    let second = client.producer("g").start().await.unwrap();
    drop(second);
    // A drop lets go at once, the brokers are told by a task.
    let third = || client.producer("g").start();
    while third().await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_shutdown_waits_for_what_is_on_its_way_tells_the_brokers_and_refuses_the_rest() {
    let (a, gate) = gated().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").send_timeout(LONG).topics(["t"]).start().await.unwrap();
    let sender = producer.clone();
    let held = tokio::spawn(async move { sender.send(message()).await });
    a.until_asked(request::SEND_MESSAGE_V2, 1).await;
    let closer = client.clone();
    let shutdown = tokio::spawn(async move { closer.shutdown().await });
    let short = Duration::from_millis(5);
    while !matches!(producer.send_within(message(), short).await, Err(Error::Closed(_))) {}
    assert!(!shutdown.is_finished());
    assert!(a.asked(request::UNREGISTER_CLIENT).is_empty());
    let late = client.producer("late").start().await.unwrap_err();
    assert!(matches!(late, Error::Closed(_)), "{late}");
    gate.add_permits(10);
    held.await.unwrap().unwrap();
    shutdown.await.unwrap().unwrap();
    let left = a.asked(request::UNREGISTER_CLIENT);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].ext("producerGroup"), Some("g"));
    assert_eq!(left[0].ext("clientID"), Some(client.id()));
    client.shutdown().await.unwrap();
    assert!(matches!(client.route("t").await, Ok(_) | Err(Error::Closed(_))));
    assert!(matches!(client.renew_route("t").await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn a_shutdown_does_not_wait_longer_than_it_is_allowed() {
    let a = broker(|_| React::Silence).await;
    let servers = Fake::name_server(vec![("a", a.addr())], 2).await;
    let client = Client::builder()
        .name_server(servers.addr())
        .drain_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let producer = client.producer("g").send_timeout(LONG).retries(0).start().await.unwrap();
    let held = tokio::spawn(async move { producer.send(message()).await });
    a.until_asked(request::SEND_MESSAGE_V2, 1).await;
    client.shutdown().await.unwrap();
    let error = held.await.unwrap().unwrap_err();
    let Error::Send(failure) = &error else { panic!("{error}") };
    assert!(failure.may_be_stored());
}

#[tokio::test]
async fn the_end_of_the_last_handle_ends_connections_and_tasks() {
    let a = good().await;
    let (servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    producer.send(message()).await.unwrap();
    let remoting = Arc::downgrade(&client.instance().remoting);
    drop(client);
    producer.send(message()).await.unwrap();
    drop(producer);
    eventually(|| (remoting.strong_count() == 0).then_some(())).await;
    drop(servers);
}

#[tokio::test]
async fn a_broker_that_answers_no_heartbeat_delays_those_of_no_other() {
    let silent = Fake::start(|command| match command.code {
        request::HEART_BEAT => React::Silence,
        _ => React::Answer(stored(command, 0)),
    })
    .await;
    let b = good().await;
    let servers = Fake::name_server(vec![("a", silent.addr()), ("b", b.addr())], 2).await;
    let client = Client::builder()
        .name_server(servers.addr())
        .heartbeat_interval(Duration::from_millis(20))
        .call_timeout(LONG)
        .build()
        .unwrap();
    let producer = client.producer("g").start().await.unwrap();
    for _ in 0..4 {
        producer.send(message()).await.unwrap();
    }
    b.until_asked(request::HEART_BEAT, 6).await;
    // One is on its way to the silent broker, and not one more for each round.
    assert!(silent.asked(request::HEART_BEAT).len() <= 2);
}

#[tokio::test]
async fn other_name_servers_are_asked_from_now_on_and_the_old_ones_left() {
    let a = good().await;
    let (old, client) = cluster(vec![("a", a.addr())]).await;
    client.route("t").await.unwrap();
    let new = Fake::name_server(vec![("a", a.addr())], 5).await;
    assert!(matches!(client.set_name_servers(""), Err(Error::NoNameServer)));
    assert!(matches!(client.set_name_servers("nowhere"), Err(Error::Invalid(_))));
    client.set_name_servers(&new.addr()).unwrap();
    assert!(!client.instance().remoting.is_connected(&old.addr()), "that connection is closed");
    assert_eq!(client.renew_route("t").await.unwrap().writable.len(), 5);
    assert_eq!(old.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 1);
}
