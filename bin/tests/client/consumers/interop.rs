//! A Java consumer in the same group.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ringmq_client::{ConsumeFrom, Message};

use super::seen::{Seen, until_assigned};
use super::{LONG, member};
use crate::runtime;
use crate::support::client::{Client as Peer, Running};
use crate::support::{Broker, Options, Target, tempdir};

const QUEUES: u32 = 8;

/// Numbers of the messages that the Java consumer got.
fn got(peer: &Running) -> Vec<i64> {
    peer.so_far().iter().filter(|e| e.kind == "recv").filter_map(|e| e.seq).collect()
}

/// Both divide the queues by the same rule, go on where the other one was, and get each message once while nobody comes or goes.
#[test]
fn a_java_consumer_and_this_one_share_a_group() {
    let java = Peer::Java("4.9.8");
    if !java.fetch() {
        return;
    }
    let dir = tempdir("client-java");
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), Options::default());
    broker.create_topic("shared_online", QUEUES);
    let runtime = runtime();
    let seen = Seen::new();
    let of_listener = seen.clone();
    let (consumer, producer) = runtime.block_on(async {
        let client = member(broker.namesrv).build().unwrap();
        let consumer = client.consumer("shared_g_online").subscribe("shared_online", "*");
        let consumer = consumer.consume_from(ConsumeFrom::First).start(move |message| {
            of_listener.add(message);
            async {}
        });
        (consumer.await.unwrap(), client.producer("shared").start().await.unwrap())
    });
    let send = |range: std::ops::Range<i64>| {
        runtime.block_on(async {
            for seq in range {
                let message = Message::new("shared_online", seq.to_string());
                producer.send(message.property("seq", seq.to_string())).await.unwrap();
            }
        });
    };
    // All of them first: on the way there, half of them are taken for a moment.
    runtime.block_on(until_assigned(&consumer, "shared_online", QUEUES as usize));
    let mut peer = java.start(&broker, dir.path(), "shared", QUEUES, &["online"]);
    runtime.block_on(until_assigned(&consumer, "shared_online", QUEUES as usize / 2));
    send(0..200);
    let began = Instant::now();
    let theirs = loop {
        let theirs = got(&peer);
        if theirs.len() + seen.count() >= 200 {
            break theirs;
        }
        assert!(began.elapsed() < LONG, "{} and {} of 200 came", theirs.len(), seen.count());
        std::thread::sleep(Duration::from_millis(50));
    };
    let ours: BTreeSet<i64> = seen.all().iter().map(|m| m.body_number()).collect();
    assert!(!theirs.is_empty() && !ours.is_empty());
    let all: BTreeSet<i64> = theirs.iter().copied().chain(ours).collect();
    assert!(all.into_iter().eq(0..200), "each came to one of both");
    assert_eq!(seen.repeats(), 0);

    peer.process.say("end\n");
    peer.finish(LONG);
    runtime.block_on(until_assigned(&consumer, "shared_online", QUEUES as usize));
    send(200..240);
    let began = Instant::now();
    while (200..240).any(|seq| seen.times(&seq.to_string()) == 0) {
        assert!(began.elapsed() < LONG, "what came after the other one left is lost");
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.block_on(consumer.shutdown()).unwrap();
}

trait BodyNumber {
    fn body_number(&self) -> i64;
}

impl BodyNumber for ringmq_client::ReceivedMessage {
    fn body_number(&self) -> i64 {
        std::str::from_utf8(&self.body).unwrap().parse().unwrap()
    }
}
