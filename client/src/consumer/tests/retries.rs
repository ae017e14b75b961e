//! What becomes of messages that fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use ringmq_net::code::{request, response};
use ringmq_net::record::Properties;

use super::*;

/// A consumer whose listener does that with each message, counting its calls.
async fn with_outcome(
    world: &World,
    change: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    outcome: Outcome,
) -> (PushConsumer, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let listener = move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { outcome }
    };
    (change(consumer(world)).start(listener).await.unwrap(), calls)
}

async fn until_stored(world: &World, consumer: &PushConsumer, offset: i64) {
    let at = || (consumer.progress("T").first()?.1 == offset).then_some(());
    eventually(at).await;
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(offset));
}

#[tokio::test]
async fn a_failed_message_is_given_back_with_the_level_that_was_asked_for() {
    for (outcome, retries, level, max) in [
        (Outcome::Retry, None, "0", "16"),
        (Outcome::RetryAtLevel(5), Some(3), "5", "3"),
        (Outcome::DeadLetter, None, "-1", "16"),
    ] {
        let world = World::new(1).await;
        world.store("T", 0, 2, "UNIQ_KEY\u{1}ID");
        let change = |builder: ConsumerBuilder| match retries {
            Some(retries) => builder.retries(retries),
            None => builder,
        };
        let (consumer, calls) = with_outcome(&world, change, outcome).await;
        let back = world.broker.until_asked(request::CONSUMER_SEND_MSG_BACK, 2).await;
        let mut places: Vec<_> = back.iter().map(|b| b.ext("offset").unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, ["0", "1000"]);
        for back in &back {
            assert_eq!(back.ext("group"), Some("g"));
            assert_eq!(back.ext("delayLevel"), Some(level));
            assert_eq!(back.ext("maxReconsumeTimes"), Some(max));
            assert_eq!(back.ext("originTopic"), Some("T"));
        }
        until_stored(&world, &consumer, 2).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn what_a_broker_does_not_take_back_is_sent_to_the_retry_topic() {
    let world = World::new(1).await;
    world.store("T", 0, 1, "UNIQ_KEY\u{1}ID\u{2}mine\u{1}1");
    world.rule(|command| {
        let back = command.code == request::CONSUMER_SEND_MSG_BACK;
        back.then(|| refusal(response::SYSTEM_ERROR))
    });
    let (consumer, _) = with_outcome(&world, |builder| builder, Outcome::Retry).await;
    let sent = world.broker.until_asked(request::SEND_MESSAGE_V2, 1).await;
    let sent = &sent[0];
    assert_eq!(
        (sent.ext("b"), sent.ext("j"), sent.ext("l")),
        (Some("%RETRY%g"), Some("1"), Some("16"))
    );
    let properties = Properties::new(sent.ext("i").unwrap());
    for (name, value) in [
        ("UNIQ_KEY", "ID"),
        ("mine", "1"),
        ("RETRY_TOPIC", "T"),
        ("DELAY", "3"),
        ("RECONSUME_TIME", "1"),
    ] {
        assert_eq!(properties.get(name), Some(value), "{name}");
    }
    until_stored(&world, &consumer, 1).await;
}

#[tokio::test]
async fn what_nobody_takes_is_consumed_again_here_and_holds_the_progress() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    world.rule(|command| {
        let back =
            matches!(command.code, request::CONSUMER_SEND_MSG_BACK | request::SEND_MESSAGE_V2);
        back.then(|| refusal(response::MESSAGE_ILLEGAL))
    });
    let (send, mut inbox) = inbox();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let consumer = consumer(&world)
        .start(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                let (times, fails) = (message.reconsume_times, message.queue_offset == 1);
                drop(send.send(message));
                if times == 2 {
                    held.acquire().await.unwrap().forget();
                }
                if fails && times < 2 { Err("not yet") } else { Ok(()) }
            }
        })
        .await
        .unwrap();
    let mut times = Vec::new();
    while times.len() < 3 {
        let message = inbox.next().await;
        if message.queue_offset == 1 {
            times.push(message.reconsume_times);
            assert!(consumer.progress("T")[0].1 <= 1);
        }
    }
    gate.add_permits(1);
    assert_eq!(times, [0, 1, 2]);
    until_stored(&world, &consumer, 3).await;
}

#[tokio::test]
async fn a_panic_is_a_failure_of_that_message_alone() {
    let world = World::new(1).await;
    world.store("T", 0, 5, "");
    let consumer = consumer(&world)
        .start(|message| async move { assert_ne!(message.queue_offset, 2, "two is too much") })
        .await
        .unwrap();
    let back = world.broker.until_asked(request::CONSUMER_SEND_MSG_BACK, 1).await;
    assert_eq!(back[0].ext("offset"), Some("2000"));
    until_stored(&world, &consumer, 5).await;
    assert_eq!(world.broker.asked(request::CONSUMER_SEND_MSG_BACK).len(), 1);
}

#[tokio::test]
async fn every_late_message_is_given_back_and_frees_its_place() {
    let world = World::new(1).await;
    world.store("T", 0, 6, "");
    let consumer = consumer(&world)
        .concurrency(2)
        .consume_timeout(Duration::from_millis(30))
        .start(|message| async move {
            if message.queue_offset % 2 == 1 {
                std::future::pending::<()>().await;
            }
        })
        .await
        .unwrap();
    let back = world.broker.until_asked(request::CONSUMER_SEND_MSG_BACK, 3).await;
    assert!(back.iter().all(|back| back.ext("delayLevel") == Some("3")));
    until_stored(&world, &consumer, 6).await;
}

#[tokio::test]
async fn of_a_batch_the_first_ones_may_be_done_and_the_rest_not() {
    let world = World::new(1).await;
    world.store("T", 0, 8, "");
    let consumer = consumer(&world)
        .batch(8)
        .start_batches(|messages| async move {
            assert!(messages.is_sorted_by_key(|message| message.queue_offset));
            BatchOutcome { consumed: 5, rest: Outcome::Retry }
        })
        .await
        .unwrap();
    let back = world.broker.until_asked(request::CONSUMER_SEND_MSG_BACK, 3).await;
    let places: Vec<_> = back.iter().map(|back| back.ext("offset").unwrap()).collect();
    assert_eq!(places, ["5000", "6000", "7000"]);
    until_stored(&world, &consumer, 8).await;
}
