//! Brokers and name servers that die, links that are cut or slow: what the client says of each message stays true.

use std::net::SocketAddr;
use std::time::Duration;

use ringmq_client::{Client, ClientBuilder, LatencyFault, Message};

use crate::audit::{Load, audit};
use crate::link::Link;
use crate::runtime;
use crate::support::broker::NameServer;
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, TempDir, rounds, tempdir};

const QUEUES: u32 = 4;
const LONG: Duration = Duration::from_secs(30);

/// Two brokers at one name server, with a topic on both.
struct Pair {
    namesrv: NameServer,
    brokers: [Broker; 2],
    // Behind the processes that write to it.
    dir: TempDir,
}

impl Pair {
    fn start(what: &str) -> Pair {
        let target = Target::from_env();
        let dir = tempdir(what);
        let namesrv = NameServer::start(target, &dir.sub("namesrv"));
        let brokers = ["broker-a", "broker-b"].map(|name| {
            let options = Options { name: name.to_owned(), ..Options::default() };
            Broker::joined(target, &dir.sub(name), options, namesrv.address)
        });
        brokers.iter().for_each(|broker| broker.create_topic("load", QUEUES));
        Pair { namesrv, brokers, dir }
    }

    fn all(&self) -> Vec<(String, SocketAddr)> {
        self.brokers.iter().map(|b| (b.shard_name(0), b.address(0))).collect()
    }

    fn client(&self) -> Client {
        quick(self.namesrv.address).build().unwrap()
    }
}

/// A client that looks at routes more often than the half minute of real ones.
fn quick(namesrv: SocketAddr) -> ClientBuilder {
    Client::builder().name_server(namesrv.to_string()).route_interval(Duration::from_millis(200))
}

#[test]
fn a_broker_killed_and_started_again_under_load_costs_no_message_and_no_error() {
    let mut random = Random::from_env("client, broker killed");
    let mut pair = Pair::start("client-kill");
    let runtime = runtime();
    let client = runtime.block_on(async { pair.client() });
    let producer =
        runtime.block_on(client.producer("g").send_timeout(LONG).retries(10).start()).unwrap();
    for round in 0..rounds(2) {
        let load = runtime.block_on(async { Load::start(&producer, "load", 8, 400) });
        let victim = random.below(2) as usize;
        runtime.block_on(load.until(200 + random.below(1000)));
        pair.brokers[victim].sigkill();
        runtime.block_on(load.until(1600));
        pair.brokers[victim].start();
        let sent = runtime.block_on(load.finish());
        let errors: Vec<String> =
            sent.iter().filter_map(|(_, r)| r.as_ref().err().map(ToString::to_string)).collect();
        assert_eq!(errors, [""; 0], "another broker was there all the time");
        let summary = audit(&pair.all(), "load", QUEUES, &sent);
        println!("round {round}: {summary:?}");
        summary.unwrap();
        // The next round's identities are those of this one.
        for broker in &pair.brokers {
            delete_messages(&runtime, &client, broker);
        }
    }
    runtime.block_on(client.shutdown()).unwrap();
}

/// Makes the topic anew, so that a round begins with nothing.
fn delete_messages(runtime: &tokio::runtime::Runtime, client: &Client, broker: &Broker) {
    let address = broker.address(0).to_string();
    runtime.block_on(client.broker(&address).delete_topic("load")).unwrap();
    broker.create_topic("load", QUEUES);
}

#[test]
fn a_frozen_broker_is_passed_over_and_what_it_got_twice_has_one_id() {
    let mut pair = Pair::start("client-freeze");
    let runtime = runtime();
    runtime.block_on(async {
        let client = pair.client();
        let builder = client.producer("g").send_timeout(LONG).retries(10);
        let producer = builder.try_timeout(Duration::from_millis(300)).start().await.unwrap();
        let load = Load::start(&producer, "load", 8, 50);
        load.until(80).await;
        // Whoever is frozen: the signal goes to a process that this test owns.
        pair.brokers[0].process().signal(libc::SIGSTOP);
        load.until(250).await;
        pair.brokers[0].process().signal(libc::SIGCONT);
        let sent = load.finish().await;
        assert!(sent.iter().all(|(_, receipt)| receipt.is_ok()));
        let summary = audit(&pair.all(), "load", QUEUES, &sent);
        println!("{summary:?}");
        summary.unwrap();
        client.shutdown().await.unwrap();
    });
}

#[test]
fn a_name_server_that_dies_stops_no_send_and_new_topics_only_until_it_is_back() {
    let mut pair = Pair::start("client-namesrv");
    let runtime = runtime();
    let client = runtime.block_on(async { pair.client() });
    let builder = client.producer("g").send_timeout(LONG);
    let producer = runtime.block_on(builder.start()).unwrap();
    let load = runtime.block_on(async { Load::start(&producer, "load", 8, 300) });
    runtime.block_on(load.until(300));
    pair.namesrv.process.kill();
    let sent = runtime.block_on(load.finish());
    assert!(sent.iter().all(|(_, receipt)| receipt.is_ok()), "the route was known");
    audit(&pair.all(), "load", QUEUES, &sent).unwrap();
    let short = Duration::from_millis(500);
    let new = || Message::new("made-later", "first");
    let error = runtime.block_on(producer.send_within(new(), short)).unwrap_err();
    let address = pair.namesrv.address.to_string();
    assert!(error.is_network() && error.to_string().contains(&address), "{error}");
    // It comes back during the call, which does not fail: brokers register again within their period.
    let (sender, message) = (producer.clone(), new());
    let waiting = runtime.spawn(async move { sender.send(message).await });
    let port = pair.namesrv.address.port();
    let dir = pair.dir.sub("namesrv");
    pair.namesrv = NameServer::start_at(Target::from_env(), &dir, port);
    let first = runtime.block_on(waiting).unwrap();
    if let Err(error) = first {
        // It was back before its brokers were: then it said so, and the topic can be made when they are.
        assert_eq!(error.code(), Some(ringmq_client::client_code::NOT_FOUND_TOPIC), "{error}");
        let began = std::time::Instant::now();
        while runtime.block_on(producer.send(new())).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "it never works again");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    runtime.block_on(client.shutdown()).unwrap();
}

#[test]
fn a_connection_cut_within_a_request_or_an_answer_leaves_no_doubt_about_a_message() {
    let mut random = Random::from_env("client, cut mid-frame");
    let pair = Pair::start("client-cut");
    let broker = Link::to(pair.brokers[0].address(0));
    let namesrv =
        Link::redirecting(pair.namesrv.address, pair.brokers[0].address(0), broker.address);
    runtime().block_on(async {
        let client = quick(namesrv.address).build().unwrap();
        let builder = client.producer("g").send_timeout(LONG).retries(5);
        let producer = builder.start().await.unwrap();
        let load = Load::start(&producer, "load", 8, 500);
        let mut cuts = 0;
        while cuts < 10 {
            match random.below(2) {
                0 => broker.cut_answer_after(random.below(60) as i64),
                _ => broker.cut_request_after(random.below(60) as i64),
            }
            while broker.cuts() == cuts {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            cuts = broker.cuts();
        }
        let sent = load.finish().await;
        assert!(sent.iter().all(|(_, receipt)| receipt.is_ok()));
        let summary = audit(&pair.all(), "load", QUEUES, &sent);
        println!("{summary:?}");
        let summary = summary.unwrap();
        assert!(summary.records.values().all(|records| *records > 0), "both brokers were used");
        // Without a retry each cut costs an error that says whether the message may be there.
        let once = client.producer("h").retries(0).start().await.unwrap();
        broker.cut_answer_after(random.below(20) as i64);
        let sent = Load::start(&once, "once", 4, 50).finish().await;
        let summary = audit(&pair.all(), "once", QUEUES, &sent).unwrap();
        println!("without retries: {summary:?}");
        client.shutdown().await.unwrap();
    });
}

#[test]
fn a_slow_broker_is_used_less_with_latency_faults_and_every_message_counts() {
    let pair = Pair::start("client-slow");
    let broker = Link::to(pair.brokers[0].address(0));
    let namesrv =
        Link::redirecting(pair.namesrv.address, pair.brokers[0].address(0), broker.address);
    broker.delay_answers(Duration::from_millis(600));
    runtime().block_on(async {
        let client = quick(namesrv.address).build().unwrap();
        let builder = client.producer("g").send_timeout(LONG);
        let producer = builder.latency_fault(LatencyFault::default()).start().await.unwrap();
        let sent = Load::start(&producer, "load", 4, 250).finish().await;
        assert!(sent.iter().all(|(_, receipt)| receipt.is_ok()));
        let summary = audit(&pair.all(), "load", QUEUES, &sent).unwrap();
        println!("{summary:?}");
        let (slow, well) = (summary.records["broker-a"], summary.records["broker-b"]);
        assert!(slow * 10 < well, "{slow} to the slow broker, {well} to the other");
        assert_eq!(summary.twice, 0, "slow is not failed");
        client.shutdown().await.unwrap();
    });
}
