//! Which broker a try goes to, what follows from its answer, and what is told in the end.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::error::client_code;
use crate::fake::{eventually, route};

#[tokio::test]
async fn sends_take_turns_over_all_queues_of_all_brokers() {
    let (a, b) = (good().await, good().await);
    let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let mut counts: BTreeMap<MessageQueue, u32> = BTreeMap::new();
    for _ in 0..40 {
        let receipt = producer.send(message()).await.unwrap();
        *counts.entry(receipt.queue).or_default() += 1;
    }
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    assert_eq!((sends(&a).len(), sends(&b).len()), (20, 20));
}

#[tokio::test]
async fn a_broker_that_is_down_costs_no_message() {
    let (down, up) = (nobody().await, good().await);
    let (_servers, client) = cluster(vec![("a", down), ("b", up.addr())]).await;
    let producer = client.producer("g").send_timeout(LONG).start().await.unwrap();
    for _ in 0..20 {
        assert_eq!(producer.send(message()).await.unwrap().queue.broker_name, "b");
    }
    assert_eq!(sends(&up).len(), 20);
}

#[tokio::test]
async fn three_tries_go_to_three_brokers() {
    let (a, b, c) = (broker(|_| refusal(1)).await, broker(|_| refusal(1)).await, good().await);
    let all = vec![("a", a.addr()), ("b", b.addr()), ("c", c.addr())];
    let (_servers, client) = cluster(all).await;
    let producer = client.producer("g").send_timeout(LONG).start().await.unwrap();
    for _ in 0..12 {
        assert_eq!(producer.send(message()).await.unwrap().queue.broker_name, "c");
    }
    assert!(!sends(&a).is_empty() && !sends(&b).is_empty());
}

#[tokio::test]
async fn a_silent_broker_leaves_time_for_another_one() {
    let (silent, up) = (broker(|_| React::Silence).await, good().await);
    let (_servers, client) = cluster(vec![("a", silent.addr()), ("b", up.addr())]).await;
    let builder = client.producer("g").send_timeout(LONG);
    let producer = builder.try_timeout(Duration::from_millis(50)).start().await.unwrap();
    while sends(&silent).is_empty() {
        assert_eq!(producer.send(message()).await.unwrap().queue.broker_name, "b");
    }
    let ids = |fake: &Fake| -> Vec<String> {
        sends(fake).iter().map(|c| property(c, "UNIQ_KEY").unwrap().to_owned()).collect()
    };
    assert!(ids(&up).contains(&ids(&silent)[0]), "the second try is the same message");
}

#[tokio::test]
async fn refusals_that_another_broker_may_not_share_are_tried_there() {
    for code in [1, 2, 14, 16, 17, 204, 205, 1500] {
        let (a, b) = (broker(move |_| refusal(code)).await, good().await);
        let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
        let producer = client.producer("g").send_timeout(LONG).start().await.unwrap();
        while sends(&a).is_empty() {
            assert_eq!(producer.send(message()).await.unwrap().queue.broker_name, "b", "{code}");
        }
    }
}

#[tokio::test]
async fn a_refusal_of_the_message_itself_is_told_at_once() {
    let a = broker(|_| refusal(response::MESSAGE_ILLEGAL)).await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let error = producer.send(message()).await.unwrap_err();
    assert_eq!((error.code(), sends(&a).len()), (Some(13), 1));
    assert_eq!(error.addr(), Some(a.addr().as_str()));
    let Error::Send(failure) = error else { panic!("{error}") };
    assert!(!failure.may_be_stored());
}

#[tokio::test]
async fn more_codes_can_be_made_worth_a_retry() {
    let (a, b) = (broker(|_| refusal(777)).await, good().await);
    let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let producer = client.producer("g").retry_code(777).start().await.unwrap();
    while sends(&a).is_empty() {
        producer.send(message()).await.unwrap();
    }
}

#[tokio::test]
async fn a_stored_message_that_is_not_durable_yet_is_a_receipt_with_its_status() {
    let table = [
        (10, SendStatus::FlushDiskTimeout),
        (11, SendStatus::SlaveNotAvailable),
        (12, SendStatus::FlushSlaveTimeout),
    ];
    for (code, status) in table {
        let a = broker(move |command| React::Answer(stored(command, code))).await;
        let (_servers, client) = cluster(vec![("a", a.addr())]).await;
        let producer = client.producer("g").start().await.unwrap();
        assert_eq!(producer.send(message()).await.unwrap().status, status);
        assert_eq!(sends(&a).len(), 1);
        // Tried elsewhere only when wished for; if nobody does better, the last status is told.
        let producer = client.producer("h").retry_when_not_durable(true).start().await.unwrap();
        assert_eq!(producer.send(message()).await.unwrap().status, status);
        assert_eq!(sends(&a).len(), 1 + 3);
    }
}

#[tokio::test]
async fn a_failed_send_tells_every_try_and_whether_it_may_be_stored() {
    let (busy, silent) = (broker(|_| refusal(2)).await, broker(|_| React::Silence).await);
    let (_servers, client) = cluster(vec![("a", busy.addr()), ("b", silent.addr())]).await;
    let builder = client.producer("g").send_timeout(Duration::from_millis(900));
    let producer = builder.try_timeout(Duration::from_millis(100)).start().await.unwrap();
    let error = producer.send(message()).await.unwrap_err();
    let Error::Send(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.attempts.len(), 3);
    assert!(failure.may_be_stored());
    let text = error.to_string();
    for part in [busy.addr(), silent.addr(), "2 SYSTEM_BUSY".into(), "did not answer".into()] {
        assert!(text.contains(&part), "{part} is missing in: {text}");
    }
    assert!(matches!(error.code(), Some(2 | client_code::ACCESS_BROKER_TIMEOUT)));
}

#[tokio::test]
async fn a_limit_that_is_over_sends_nothing_and_one_without_end_is_no_panic() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    producer.send_within(message(), Duration::MAX).await.unwrap();
    let error = producer.send_within(message(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert_eq!(sends(&a).len(), 1);
}

#[tokio::test]
async fn with_latency_faults_a_failed_broker_is_left_out_until_a_probe_reaches_it() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let a = Fake::start(move |command| match is_down.load(Ordering::SeqCst) {
        true => React::Close,
        false if is_send(command) => React::Answer(stored(command, 0)),
        // Whatever a probe is answered, it is an answer.
        false => refusal(response::SYSTEM_ERROR),
    })
    .await;
    let b = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let faults =
        LatencyFault { probe_interval: Duration::from_millis(20), ..LatencyFault::default() };
    let producer = client.producer("g").latency_fault(faults).start().await.unwrap();
    while sends(&a).is_empty() {
        producer.send(message()).await.unwrap();
    }
    for _ in 0..20 {
        assert_eq!(producer.send(message()).await.unwrap().queue.broker_name, "b");
    }
    assert_eq!(sends(&a).len(), 1, "nothing but probes goes to a broker that failed");
    down.store(false, Ordering::SeqCst);
    let mut brokers = Vec::new();
    while !brokers.contains(&"a".to_owned()) {
        brokers.push(producer.send(message()).await.unwrap().queue.broker_name);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(brokers.len() < 4000, "it never returns");
    }
}

#[tokio::test]
async fn a_message_that_no_broker_takes_isolates_none() {
    let a = broker(|command| match command.body.starts_with(b"bad") {
        true => refusal(response::MESSAGE_ILLEGAL),
        false => React::Answer(stored(command, 0)),
    })
    .await;
    let b = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let builder = client.producer("g").latency_fault(LatencyFault::default());
    let producer = builder.start().await.unwrap();
    while producer.send(Message::new("t", "bad")).await.is_ok() {}
    let mut on_a = 0;
    for _ in 0..8 {
        on_a += u32::from(producer.send(message()).await.unwrap().queue.broker_name == "a");
    }
    assert_eq!(on_a, 4);
}

#[tokio::test]
async fn a_topic_that_does_not_exist_goes_where_the_template_says() {
    let a = good().await;
    let addr = a.addr();
    let servers = Fake::start(move |command| match command.ext("topic") {
        Some("TBW102") => React::Answer(ok().with_body(route(&[("a", addr.clone())], 8))),
        _ => refusal(response::TOPIC_NOT_EXIST),
    })
    .await;
    let producer = client(&servers).producer("g").start().await.unwrap();
    for _ in 0..16 {
        producer.send(message()).await.unwrap();
    }
    for command in sends(&a) {
        assert_eq!((command.ext("c"), command.ext("d")), (Some("TBW102"), Some("4")));
        assert!(command.ext("e").unwrap().parse::<i32>().unwrap() < 4);
    }
}

#[tokio::test]
async fn sends_go_on_without_name_servers_and_begin_without_the_first_of_them() {
    let a = good().await;
    let servers = Fake::name_server(vec![("a", a.addr())], 2).await;
    let list = format!("{};{}", nobody().await, servers.addr());
    let client = Client::builder()
        .name_server(list)
        .route_interval(Duration::from_millis(10))
        .build()
        .unwrap();
    let producer = client.producer("g").start().await.unwrap();
    producer.send(message()).await.unwrap();
    servers.until_asked(request::GET_ROUTEINFO_BY_TOPIC, 3).await;
    servers.stop().await;
    for _ in 0..10 {
        producer.send(message()).await.unwrap();
    }
}

#[tokio::test]
async fn a_renewed_route_moves_sends_to_the_brokers_new_address() {
    let (old, new) = (good().await, good().await);
    let addr = Arc::new(Mutex::new(old.addr()));
    let current = addr.clone();
    let servers = Fake::start(move |_| {
        let addr = current.lock().unwrap().clone();
        React::Answer(ok().with_body(route(&[("a", addr)], 2)))
    })
    .await;
    let client = Client::builder()
        .name_server(servers.addr())
        .route_interval(Duration::from_millis(10))
        .build()
        .unwrap();
    let producer = client.producer("g").start().await.unwrap();
    producer.send(message()).await.unwrap();
    *addr.lock().unwrap() = new.addr();
    let moved = || (client.broker_group("a").get(&0) == Some(&new.addr())).then_some(());
    eventually(moved).await;
    producer.send(message()).await.unwrap();
    assert_eq!((sends(&old).len(), sends(&new).len()), (1, 1));
}

#[tokio::test]
async fn a_host_name_is_resolved_at_each_connect() {
    // A name with two addresses stands for one whose address changes: only one of them answers at a time.
    let first = good().await;
    let port = first.addr().rsplit(':').next().unwrap().to_owned();
    let (_servers, client) = cluster(vec![("a", format!("localhost:{port}"))]).await;
    let producer = client.producer("g").send_timeout(LONG).start().await.unwrap();
    producer.send(message()).await.unwrap();
    first.stop().await;
    // Down: nobody is there under that name.
    assert!(producer.send(message()).await.is_err());
    let again = Fake::start_at(format!("127.0.0.1:{port}").parse().unwrap(), |command| {
        React::Answer(if is_send(command) { stored(command, 0) } else { ok() })
    })
    .await;
    while producer.send(message()).await.is_err() {}
    assert_eq!(sends(&again).len(), 1);
}

#[tokio::test]
async fn nothing_is_ever_sent_to_the_port_two_below() {
    let a = good().await;
    let addr: std::net::SocketAddr = a.addr().parse().unwrap();
    let below = std::net::SocketAddr::new(addr.ip(), addr.port() - 2);
    // Whoever has that port instead is none that this client was told of.
    let Ok(vip) = tokio::net::TcpListener::bind(below).await else { return };
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    for _ in 0..10 {
        producer.send(message()).await.unwrap();
    }
    client.shutdown().await.unwrap();
    let nobody = tokio::time::timeout(Duration::from_millis(1), vip.accept()).await;
    assert!(nobody.is_err());
}
