//! What consumers do at each kind of broker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ringmq_client::protocol::code::response;
use ringmq_client::{
    Client, ConsumeFrom, ConsumerBuilder, Error, Message, MessageQueue, Outcome, ResetOffsets,
    Result, SendReceipt,
};

use super::seen::{Seen, until_assigned};
use super::{LONG, member};
use crate::meet::Stage;
use crate::support::tempdir;

/// All of them, beside each other.
pub(crate) async fn all(stage: &Stage) -> Result<()> {
    tokio::try_join!(
        members_share(stage),
        failures_come_again_and_end_as_dead_letters(stage),
        order_is_kept(stage),
        everybody_gets_a_broadcast(stage),
        messages_are_pulled(stage),
        administrators_look_and_move(stage),
        expressions_are_checked(stage),
    )
    .map(drop)
}

impl Stage {
    fn member(&self) -> Result<Client> {
        // A message that a busy broker takes back too late is sent to it once more, and then comes once more.
        member(self.namesrv).call_timeout(LONG).build()
    }

    /// Sends one message with each of these texts, and a tag by its place.
    async fn send_texts(
        &self,
        topic: &str,
        texts: impl IntoIterator<Item = String>,
    ) -> Result<Vec<SendReceipt>> {
        let producer = self.producer(&format!("to_{topic}")).await?;
        let mut receipts = Vec::new();
        for (at, text) in texts.into_iter().enumerate() {
            let tag = ["a", "b", "c"][at % 3];
            receipts.push(producer.send(Message::new(topic, text).tag(tag)).await?);
        }
        producer.shutdown().await?;
        Ok(receipts)
    }

    async fn offset(&self, group: &str, queue: &MessageQueue) -> Result<Option<i64>> {
        self.client.broker(&self.address_of(&queue.broker_name)).consumer_offset(group, queue).await
    }

    fn address_of(&self, broker: &str) -> String {
        let found = self.brokers.iter().find(|(name, _)| name == broker);
        found.expect("a broker of the cluster").1.to_string()
    }

    fn queues(&self) -> usize {
        4 * self.brokers.len()
    }

    /// Waits until a group has so many dead letters.
    async fn until_dead(&self, group: &str, count: i64) {
        let topic = format!("%DLQ%{group}");
        let began = std::time::Instant::now();
        loop {
            let mut found = 0;
            for (_, addr) in &self.brokers {
                // Without dead letters there is no such topic.
                let broker = self.client.broker(&addr.to_string());
                found += broker.max_offset(&topic, 0).await.unwrap_or(0);
            }
            if found == count {
                return;
            }
            assert!(found < count && began.elapsed() < LONG, "{found} dead letters of {group}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn texts(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|at| at.to_string())
}

fn from_start(client: &Client, group: &str, topic: &str, tags: &str) -> ConsumerBuilder {
    client.consumer(group).subscribe(topic, tags).consume_from(ConsumeFrom::First)
}

/// Two members of a group share the queues, get what they subscribed to exactly once, and store how far they are.
async fn members_share(stage: &Stage) -> Result<()> {
    stage.topic("shared").await?;
    let seen = Seen::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        let (client, seen) = (stage.member()?, seen.clone());
        let listener = move |message| {
            seen.add(message);
            async {}
        };
        members.push(from_start(&client, "sharers", "shared", "a || b").start(listener).await?);
    }
    for member in &members {
        until_assigned(member, "shared", stage.queues() / 2).await;
    }
    let sent = stage.send_texts("shared", texts(0..300)).await?;
    seen.until(200).await;
    for member in members {
        member.shutdown().await?;
    }
    assert_eq!((seen.count(), seen.repeats()), (200, 0));
    assert!(seen.all().iter().all(|message| matches!(message.tag(), Some("a" | "b"))));
    let mut wanted: BTreeMap<MessageQueue, i64> = BTreeMap::new();
    for (at, receipt) in sent.into_iter().enumerate().filter(|(at, _)| at % 3 != 2) {
        assert_eq!(seen.times(&at.to_string()), 1);
        let last = wanted.entry(receipt.queue).or_default();
        *last = (*last).max(receipt.queue_offset + 1);
    }
    for (queue, wanted) in wanted {
        let stored = stage.offset("sharers", &queue).await?.expect("progress");
        assert!(stored >= wanted, "{queue:?}: {stored} of {wanted}");
    }
    Ok(())
}

/// A failed message comes again after its delay; one that always fails becomes a dead letter, exactly once.
async fn failures_come_again_and_end_as_dead_letters(stage: &Stage) -> Result<()> {
    for topic in ["failing", "failing_in_order"] {
        stage.topic(topic).await?;
    }
    let (seen, in_order) = (Seen::new(), Seen::new());
    let (client, of_listener) = (stage.member()?, seen.clone());
    let consumer = from_start(&client, "failers", "failing", "*").retries(1);
    let consumer = consumer
        .start(move |message| {
            let again = message.body == "again" && message.reconsume_times == 0;
            let dead = message.body == "dead";
            assert_eq!(message.topic(), "failing");
            of_listener.add(message);
            async move { if again || dead { Outcome::RetryAtLevel(1) } else { Outcome::Consumed } }
        })
        .await?;
    let of_listener = in_order.clone();
    let orderly = from_start(&client, "failers_in_order", "failing_in_order", "*").retries(2);
    let orderly = orderly
        .suspend(Duration::from_millis(20))
        .start_orderly(move |message| {
            let dead = message.body == "dead";
            of_listener.add(message);
            async move { if dead { Err("always") } else { Ok(()) } }
        })
        .await?;
    let three = || ["again", "fine", "dead"].map(str::to_owned);
    stage.send_texts("failing", three()).await?;
    stage.send_texts("failing_in_order", three()).await?;
    seen.until_times("again", 2).await;
    seen.until_times("dead", 2).await;
    in_order.until_times("dead", 3).await;
    in_order.until(3).await;
    stage.until_dead("failers", 1).await;
    stage.until_dead("failers_in_order", 1).await;
    consumer.shutdown().await?;
    orderly.shutdown().await?;
    assert_eq!([seen.times("again"), seen.times("fine"), seen.times("dead")], [2, 1, 2]);
    assert_eq!([in_order.times("again"), in_order.times("dead")], [1, 3]);
    Ok(())
}

/// Of each queue messages come in order, also when some have to come twice.
async fn order_is_kept(stage: &Stage) -> Result<()> {
    stage.topic("ordered").await?;
    type Last = BTreeMap<MessageQueue, (i64, i32)>;
    let last: Arc<Mutex<Last>> = Arc::default();
    let seen = Seen::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        let (client, last, seen) = (stage.member()?, last.clone(), seen.clone());
        let consumer = from_start(&client, "orderers", "ordered", "*");
        let listener = move |message: Arc<ringmq_client::ReceivedMessage>| {
            let (offset, times) = (message.queue_offset, message.reconsume_times);
            let before = last.lock().unwrap().insert(message.queue.clone(), (offset, times));
            let (before, tries) = before.unwrap_or((-1, 0));
            let fails = offset % 5 == 2 && times == 0;
            let right = if times > 0 { (offset, tries + 1) } else { (before + 1, 0) };
            assert_eq!((offset, times), right, "out of order in {:?}", message.queue);
            if !fails {
                seen.add(message);
            }
            async move { if fails { Err("once") } else { Ok(()) } }
        };
        let pause = Duration::from_millis(20);
        members.push(consumer.suspend(pause).start_orderly(listener).await?);
    }
    for member in &members {
        until_assigned(member, "ordered", stage.queues() / 2).await;
    }
    let producer = stage.producer("to_ordered").await?;
    for at in 0..120 {
        let message = Message::new("ordered", at.to_string());
        producer.send_ordered(message, &format!("key-{}", at % 7)).await?;
    }
    seen.until(120).await;
    for member in members {
        member.shutdown().await?;
    }
    let last = std::mem::take(&mut *last.lock().unwrap());
    for (queue, (offset, _)) in last {
        assert_eq!(stage.offset("orderers", &queue).await?, Some(offset + 1));
    }
    Ok(())
}

/// Each member gets all, and goes on from its own file.
async fn everybody_gets_a_broadcast(stage: &Stage) -> Result<()> {
    stage.topic("broadcast").await?;
    let dir = tempdir("client-broadcast");
    let mut expected = 0;
    for round in 0..2 {
        let mut members = Vec::new();
        for name in ["one", "two"] {
            let (client, seen) = (stage.member()?, Seen::new());
            let of_listener = seen.clone();
            let consumer = from_start(&client, "listeners", "broadcast", "*")
                .broadcasting(dir.path().join(name))
                .start(move |message| {
                    of_listener.add(message);
                    async {}
                })
                .await?;
            members.push((consumer, seen));
        }
        for (consumer, _) in &members {
            until_assigned(consumer, "broadcast", stage.queues()).await;
        }
        stage.send_texts("broadcast", texts(expected..expected + 40)).await?;
        for (consumer, seen) in members {
            seen.until(40).await;
            consumer.shutdown().await?;
            assert_eq!((seen.count(), seen.repeats()), (40, 0), "round {round}");
            assert_eq!(seen.times(&expected.to_string()), 1);
        }
        expected += 40;
    }
    Ok(())
}

/// Polls, seeks, commits, streams.
async fn messages_are_pulled(stage: &Stage) -> Result<()> {
    stage.topic("pulled").await?;
    let sent = stage.send_texts("pulled", texts(0..100)).await?;
    let client = stage.member()?;
    let consumer = from_start(&client, "pullers", "pulled", "*").manual_commit();
    let consumer = consumer.start_pull().await?;
    let seen = Seen::new();
    while seen.count() < 100 {
        consumer.poll(LONG).await?.into_iter().for_each(|message| seen.add(message));
    }
    assert_eq!(seen.repeats(), 0);
    consumer.commit().await?;
    let queue = sent[0].queue.clone();
    let of_queue = sent.iter().filter(|receipt| receipt.queue == queue).count() as i64;
    assert_eq!(consumer.committed(&queue).await?, Some(of_queue));
    consumer.seek(&queue, of_queue - 2).await?;
    let again = consumer.poll(LONG).await?;
    assert_eq!((again[0].queue.clone(), again[0].queue_offset), (queue.clone(), of_queue - 2));
    assert!(matches!(consumer.seek(&queue, of_queue + 1).await, Err(Error::Invalid(_))));
    let stored = SystemTime::UNIX_EPOCH
        + Duration::from_millis(u64::try_from(again[0].store_timestamp).expect("a time"));
    assert!(consumer.offset_for_time(&queue, stored).await? <= of_queue - 2);
    consumer.shutdown().await?;
    // Without a group's division: one queue, as a stream, from where the group is.
    stage
        .client
        .broker(&stage.address_of(&queue.broker_name))
        .update_consumer_offset("pullers", &queue, 1)
        .await?;
    let assigned = client.consumer("pullers").manual_commit().start_assigned([queue]).await?;
    let mut stream = assigned.stream();
    for wanted in 1..of_queue {
        let message = tokio::time::timeout(LONG, stream.next()).await.expect("it comes");
        assert_eq!(message.expect("a message").queue_offset, wanted);
    }
    assigned.shutdown().await?;
    Ok(())
}

/// Progress, states, a reset, one message directly.
async fn administrators_look_and_move(stage: &Stage) -> Result<()> {
    stage.topic("watched").await?;
    let (client, seen) = (stage.member()?, Seen::new());
    let of_listener = seen.clone();
    let consumer = from_start(&client, "watched", "watched", "*")
        .start(move |message| {
            of_listener.add(message);
            async {}
        })
        .await?;
    let sent = stage.send_texts("watched", texts(0..40)).await?;
    seen.until(40).await;
    let queue = &sent[0].queue;
    let broker = stage.client.broker(&stage.address_of(&queue.broker_name));
    let info = broker.running_info("watched", client.id(), false).await?;
    assert_eq!(info.properties["PROP_CONSUME_TYPE"], "CONSUME_PASSIVELY");
    assert!(info.queues.contains_key(queue), "{:?}", info.queues.keys());
    let status = broker.consumer_status("watched", "watched", None).await?;
    assert!(status.clients[client.id()].iter().any(|(of, at)| of == queue && *at > 0));
    let id = &sent[0].offset_message_id;
    let directly = broker.consume_directly("watched", Some(client.id()), id).await?;
    assert_eq!(directly.consume_result, "CR_SUCCESS");
    assert_eq!(seen.times("0"), 2);
    let reset = ResetOffsets { topic: "watched", group: "watched", timestamp_ms: 0, force: true };
    let offsets = broker.reset_offsets(&reset).await?;
    assert!(offsets.contains(&(queue.clone(), 0)), "{offsets:?}");
    seen.until_times("0", 3).await;
    consumer.shutdown().await?;
    Ok(())
}

/// Brokers without filters by properties say so at the start.
async fn expressions_are_checked(stage: &Stage) -> Result<()> {
    stage.topic("filtered").await?;
    let client = stage.member()?;
    let consumer = client.consumer("filterers").subscribe_sql("filtered", "a > 5 AND");
    let refused = consumer.start(|_| async {}).await.expect_err("no such filter");
    let code = refused.code();
    let known = [response::SYSTEM_ERROR, response::SUBSCRIPTION_PARSE_FAILED];
    assert!(code.is_some_and(|code| known.contains(&code)), "{refused}");
    Ok(())
}
