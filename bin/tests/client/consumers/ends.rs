//! What is stored after each kind of end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringmq_client::{Client, ConsumeFrom, Message, MessageQueue, PushConsumer};

use super::member;
use super::seen::Seen;
use crate::runtime;
use crate::support::{Broker, Options, Target, tempdir};

const QUEUES: u32 = 4;
const MESSAGES: usize = 200;

async fn consume(client: &Client, group: &str, seen: &Seen) -> PushConsumer {
    let seen = seen.clone();
    let consumer = client.consumer(group).subscribe("load", "*").consume_from(ConsumeFrom::First);
    consumer
        .start(move |message| {
            seen.add(message);
            async {}
        })
        .await
        .unwrap()
}

async fn stored(client: &Client, broker: &Broker, group: &str) -> BTreeMap<i32, i64> {
    let peer = client.broker(&broker.address(0).to_string());
    let mut stored = BTreeMap::new();
    for id in 0..QUEUES as i32 {
        let queue = MessageQueue::new("load", broker.shard_name(0), id);
        stored.insert(id, peer.consumer_offset(group, &queue).await.unwrap().unwrap_or(0));
    }
    stored
}

/// How many messages of each queue there are.
fn ends(seen: &Seen) -> BTreeMap<i32, i64> {
    let mut ends = BTreeMap::new();
    for message in seen.all() {
        let end = ends.entry(message.queue.queue_id).or_insert(0);
        *end = (*end).max(message.queue_offset + 1);
    }
    ends
}

#[test]
fn after_an_end_in_order_or_by_drop_all_is_stored_and_after_a_kill_nothing_is_lost() {
    let dir = tempdir("client-ends");
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), Options::default());
    broker.create_topic("load", QUEUES);
    let outer = runtime();
    let watcher = outer.block_on(async { member(broker.namesrv).build().unwrap() });
    outer.block_on(async {
        let producer = watcher.producer("load").start().await.unwrap();
        for at in 0..MESSAGES {
            producer.send(Message::new("load", at.to_string())).await.unwrap();
        }
    });
    for end in ["shutdown", "client", "drop", "kill"] {
        let seen = Seen::new();
        let inner = runtime();
        let (client, consumer) = inner.block_on(async {
            let client = member(broker.namesrv).build().unwrap();
            let consumer = consume(&client, end, &seen).await;
            seen.until(MESSAGES).await;
            (client, consumer)
        });
        match end {
            "shutdown" => inner.block_on(consumer.shutdown()).unwrap(),
            "client" => inner.block_on(client.shutdown()).unwrap(),
            // Nobody waits for it, but it needs its runtime.
            "drop" => drop((consumer, client)),
            // All tasks and connections end in the middle of what they do.
            _ => inner.shutdown_background(),
        }
        // What it sent last may be under way still: the broker has all of it once it has seen the connection's end.
        outer.block_on(async {
            let peer = watcher.broker(&broker.address(0).to_string());
            while peer.consumer_ids(end).await.is_ok_and(|ids| !ids.is_empty()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let after = outer.block_on(stored(&watcher, &broker, end));
        assert_eq!(seen.repeats(), 0, "{end}");
        if end == "kill" {
            let late = after.iter().all(|(id, at)| *at <= ends(&seen)[id]);
            assert!(late, "nothing is stored that was not consumed: {after:?}");
        } else {
            assert_eq!(after, ends(&seen), "{end}");
        }
        // Another member takes over: what was not stored comes again, and all that is new.
        outer.block_on(async {
            let again = Seen::new();
            let client = member(broker.namesrv).build().unwrap();
            let consumer = consume(&client, end, &again).await;
            let producer = watcher.producer("more").start().await.unwrap();
            for at in 0..20 {
                producer.send(Message::new("load", format!("{end} {at}"))).await.unwrap();
            }
            let missing: i64 = ends(&seen).iter().map(|(id, end)| end - after[id]).sum();
            again.until(20 + usize::try_from(missing).unwrap()).await;
            assert_eq!(again.repeats(), 0);
            consumer.shutdown().await.unwrap();
            producer.shutdown().await.unwrap();
        });
    }
}

/// While a listener runs, an end waits for it; what was only pulled is left.
#[test]
fn an_end_waits_for_running_listeners_and_leaves_the_rest_to_others() {
    let dir = tempdir("client-drain");
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), Options::default());
    broker.create_topic("load", 1);
    runtime().block_on(async {
        let client = member(broker.namesrv).build().unwrap();
        let producer = client.producer("load").start().await.unwrap();
        for at in 0..50 {
            producer.send(Message::new("load", at.to_string())).await.unwrap();
        }
        let (begun, done) = (Seen::new(), Seen::new());
        let (of_begun, of_done) = (begun.clone(), done.clone());
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let held = gate.clone();
        let consumer = client.consumer("drained").subscribe("load", "*");
        let consumer = consumer
            .consume_from(ConsumeFrom::First)
            .concurrency(3)
            .start(move |message| {
                let (begun, done, held) = (of_begun.clone(), of_done.clone(), held.clone());
                async move {
                    begun.add(message.clone());
                    held.acquire().await.unwrap().forget();
                    done.add(message);
                }
            })
            .await
            .unwrap();
        begun.until(3).await;
        let ending = consumer.clone();
        let ended = tokio::spawn(async move { ending.shutdown().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!ended.is_finished());
        gate.add_permits(3);
        ended.await.unwrap().unwrap();
        assert_eq!((begun.count(), done.count()), (3, 3));
        let peer = client.broker(&broker.address(0).to_string());
        let queue = MessageQueue::new("load", broker.shard_name(0), 0);
        assert_eq!(peer.consumer_offset("drained", &queue).await.unwrap(), Some(3));
    });
}
