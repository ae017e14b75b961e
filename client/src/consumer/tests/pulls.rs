//! Pull consumers.

use ringmq_net::code::{request, response};

use super::world::pulled;
use super::*;
use crate::Error;

async fn started(world: &World) -> PullConsumer {
    consumer(world).manual_commit().start_pull().await.unwrap()
}

async fn polled(consumer: &PullConsumer, count: usize) -> Vec<i64> {
    let mut offsets = Vec::new();
    while offsets.len() < count {
        let messages = consumer.poll(LONG).await.unwrap();
        assert!(!messages.is_empty(), "messages come");
        offsets.extend(messages.iter().map(|message| message.queue_offset));
    }
    offsets
}

#[tokio::test]
async fn polls_give_everything_in_order_and_commit_stores_what_they_gave() {
    let world = World::new(1).await;
    world.store("T", 0, 25, "");
    let consumer = started(&world).await;
    assert!(polled(&consumer, 10).await.into_iter().eq(0..10));
    assert_eq!(consumer.committed(&world.queue(0)).await.unwrap(), None);
    consumer.commit().await.unwrap();
    assert_eq!(consumer.committed(&world.queue(0)).await.unwrap(), Some(10));
    assert_eq!(consumer.position(&world.queue(0)).unwrap(), 10);
    assert!(polled(&consumer, 15).await.into_iter().eq(10..25));
    assert!(consumer.poll(Duration::from_millis(10)).await.unwrap().is_empty());
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(10), "manual means manual");
    assert!(matches!(consumer.poll(LONG).await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn automatic_commits_leave_out_what_the_last_poll_gave() {
    let world = World::new(1).await;
    world.store("T", 0, 30, "");
    let builder = consumer(&world).auto_commit(Duration::from_millis(10));
    let consumer = builder.start_pull().await.unwrap();
    polled(&consumer, 10).await;
    tokio::time::sleep(Duration::from_millis(15)).await;
    polled(&consumer, 10).await;
    eventually(|| (world.stored(0) == Some(10)).then_some(())).await;
    // Dropped: the last poll's messages may not have been dealt with.
    drop(consumer);
    world.broker.until_asked(request::UNREGISTER_CLIENT, 1).await;
    assert_eq!(world.stored(0), Some(10));
    let consumer = super::consumer(&world).start_pull().await.unwrap();
    assert_eq!(polled(&consumer, 10).await[0], 10);
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(20), "in order: they have");
}

#[tokio::test]
async fn after_a_seek_nothing_older_comes_even_from_a_pull_that_was_under_way() {
    let world = World::new(1).await;
    world.store("T", 0, 40, "");
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let held = go.clone();
    // The pull at 20 is answered when the test says so.
    world.rule(move |command| {
        let wanted =
            command.code == request::PULL_MESSAGE && command.ext("queueOffset") == Some("20");
        let held = held.clone();
        wanted.then(|| {
            React::AnswerWhen(Box::pin(async move {
                held.acquire().await.unwrap().forget();
                pulled(response::PULL_RETRY_IMMEDIATELY, 40, 40, Vec::new())
            }))
        })
    });
    let consumer = started(&world).await;
    assert!(polled(&consumer, 20).await.into_iter().eq(0..20));
    let queue = world.queue(0);
    consumer.seek(&queue, 5).await.unwrap();
    go.add_permits(10);
    assert!(polled(&consumer, 10).await.into_iter().eq(5..15));
    consumer.seek(&queue, 33).await.unwrap();
    assert!(polled(&consumer, 7).await.into_iter().eq(33..40));
    consumer.seek_to_begin(&queue).await.unwrap();
    assert_eq!(polled(&consumer, 1).await[0], 0);
    consumer.seek_to_end(&queue).await.unwrap();
    world.store("T", 0, 1, "");
    assert_eq!(polled(&consumer, 1).await, [40]);
    consumer.commit().await.unwrap();
    assert_eq!(world.stored(0), Some(41));
    for (bad, offset) in [(&queue, 42), (&queue, -1), (&world.queue(9), 0)] {
        assert!(matches!(consumer.seek(bad, offset).await, Err(Error::Invalid(_))));
    }
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_and_the_others_do() {
    let world = World::new(2).await;
    let consumer = started(&world).await;
    let mut assignment = consumer.assignment();
    assignment.wait_for(|all| all.len() == 2).await.unwrap();
    let paused = [world.queue(0)];
    consumer.pause(&paused);
    assert_eq!(consumer.is_paused(&paused[0]), Some(true));
    assert_eq!(consumer.is_paused(&world.queue(1)), Some(false));
    assert_eq!(consumer.is_paused(&world.queue(9)), None);
    (0..2).for_each(|queue| world.store("T", queue, 3, ""));
    let messages = consumer.poll(LONG).await.unwrap();
    assert!(messages.iter().all(|message| message.queue.queue_id == 1));
    assert!(consumer.poll(Duration::from_millis(30)).await.unwrap().is_empty());
    consumer.resume(&paused);
    assert_eq!(consumer.poll(LONG).await.unwrap()[0].queue.queue_id, 0);
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn assigned_queues_are_read_whoever_else_is_there_and_a_failed_read_does_not_jump() {
    let world = World::new(3).await;
    (0..3).for_each(|queue| world.store("T", queue, 6, ""));
    world.table().offsets.insert(("T".to_owned(), 1), 4);
    let failures = std::sync::atomic::AtomicUsize::new(0);
    world.rule(move |command| {
        let fails = command.code == request::QUERY_CONSUMER_OFFSET
            && failures.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 3;
        fails.then(|| refusal(response::SYSTEM_ERROR))
    });
    let consumer = consumer(&world).start_assigned([world.queue(1)]).await.unwrap();
    assert_eq!(polled(&consumer, 2).await, [4, 5]);
    let pull = &world.broker.asked(request::PULL_MESSAGE)[0];
    assert_eq!((pull.ext("subscription"), pull.ext("queueOffset")), (Some("*"), Some("4")));
    consumer.assign([world.queue(0), world.queue(1)]).await.unwrap();
    assert!(polled(&consumer, 6).await.into_iter().eq(0..6));
    assert!(matches!(consumer.subscribe("T", "*").await, Err(Error::Invalid(_))));
    assert!(matches!(consumer.assign([]).await, Err(Error::Invalid(_))));
    assert!(world.broker.asked(request::GET_CONSUMER_LIST_BY_GROUP).is_empty());
    let heartbeat = world.table().heartbeats.last().cloned().unwrap();
    assert!(heartbeat.consumers[0].subscriptions.is_empty());
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_queue_that_is_given_away_has_its_consumed_messages_stored_first() {
    let world = World::new(1).await;
    world.store("T", 0, 20, "");
    let builder = consumer(&world).auto_commit(LONG);
    let consumer = builder.start_pull().await.unwrap();
    polled(&consumer, 10).await;
    polled(&consumer, 10).await;
    world.table().members.insert("0".to_owned());
    let changed = ringmq_net::command::Command::request(request::NOTIFY_CONSUMER_IDS_CHANGED);
    world.broker.tell(changed.with_ext("consumerGroup", "g"));
    consumer.assignment().wait_for(|all| all.is_empty()).await.unwrap();
    eventually(|| (world.stored(0) == Some(10)).then_some(())).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_stream_gives_single_messages_and_what_it_did_not_give_comes_again() {
    let world = World::new(1).await;
    world.store("T", 0, 12, "");
    let consumer = started(&world).await;
    let mut stream = consumer.stream();
    for wanted in 0..4 {
        assert_eq!(stream.next().await.unwrap().queue_offset, wanted);
    }
    drop(stream);
    consumer.commit().await.unwrap();
    assert_eq!(world.stored(0), Some(4));
    let mut stream = consumer.stream();
    for wanted in 4..12 {
        assert_eq!(stream.next().await.unwrap().queue_offset, wanted);
    }
    // A future that is dropped takes nothing with it.
    let nothing = tokio::time::timeout(Duration::from_millis(20), stream.next()).await;
    assert!(nothing.is_err());
    world.store("T", 0, 1, "");
    assert_eq!(stream.next().await.unwrap().queue_offset, 12);
    let ending = consumer.clone();
    let ended = tokio::spawn(async move { ending.shutdown().await });
    assert!(stream.next().await.is_none());
    ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_streams_messages_that_nobody_has_seen_are_never_stored_as_consumed() {
    let world = World::new(2).await;
    world.store("T", 0, 10, "");
    let consumer = started(&world).await;
    let mut stream = consumer.stream();
    for wanted in 0..3 {
        assert_eq!(stream.next().await.unwrap().queue_offset, wanted);
    }
    consumer.commit().await.unwrap();
    assert_eq!(world.stored(0), Some(3), "the batch of the pull was longer");
    assert_eq!(stream.next().await.unwrap().queue_offset, 3);
    // Another handle's poll says that what was given before is consumed, and only that.
    world.store("T", 1, 1, "");
    assert_eq!(consumer.clone().poll(LONG).await.unwrap()[0].queue.queue_id, 1);
    consumer.commit().await.unwrap();
    assert_eq!([world.stored(0), world.stored(1)], [Some(4), Some(1)]);
    consumer.seek(&world.queue(0), 8).await.unwrap();
    assert_eq!(stream.next().await.unwrap().queue_offset, 8, "nothing from before a seek");
    consumer.shutdown().await.unwrap();

    let consumer = super::consumer(&world).start_pull().await.unwrap();
    let mut stream = consumer.stream();
    assert_eq!(stream.next().await.unwrap().queue_offset, 4);
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(5), "a shutdown stores what was seen");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_queue_whose_next_messages_are_gone_keeps_what_was_polled_and_stores_nothing_by_itself() {
    let world = World::new(1).await;
    world.store("T", 0, 30, "");
    // 10 to 19 have expired.
    world.rule(|command| {
        let expired =
            command.code == request::PULL_MESSAGE && command.ext("queueOffset") == Some("10");
        expired.then(|| React::Answer(pulled(response::PULL_OFFSET_MOVED, 20, 30, Vec::new())))
    });
    let consumer = started(&world).await;
    let asked = |from: &str| {
        let pulls = world.broker.asked(request::PULL_MESSAGE);
        pulls.iter().any(|pull| pull.ext("queueOffset") == Some(from)).then_some(())
    };
    eventually(|| asked("20")).await;
    assert!(polled(&consumer, 10).await.into_iter().eq(0..10), "they were pulled before");
    assert_eq!(world.stored(0), None, "manual means manual");
    consumer.commit().await.unwrap();
    eventually(|| (world.stored(0) == Some(20)).then_some(())).await;
    assert!(polled(&consumer, 10).await.into_iter().eq(20..30));
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn settings_that_happen_to_be_a_push_consumers_usual_ones_hold_for_pulls() {
    let world = World::new(1).await;
    let builder = consumer(&world).pull_batch(32).long_poll(Duration::from_secs(15));
    let consumer = builder.start_pull().await.unwrap();
    let pull = world.broker.until_asked(request::PULL_MESSAGE, 1).await.remove(0);
    let asked = [pull.ext("maxMsgNums"), pull.ext("suspendTimeoutMillis")];
    assert_eq!(asked, [Some("32"), Some("15000")]);
    consumer.shutdown().await.unwrap();
    let client = world.client();
    let consumer = client.consumer("g").subscribe("T", "*").start_pull().await.unwrap();
    let usual = |pull: &ringmq_net::command::Command| {
        [pull.ext("maxMsgNums"), pull.ext("suspendTimeoutMillis")] == [Some("10"), Some("20000")]
    };
    eventually(|| world.broker.asked(request::PULL_MESSAGE).iter().any(usual).then_some(())).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn assigned_queues_can_be_sought_in_and_paused_at_once() {
    let world = World::new(2).await;
    (0..2).for_each(|queue| world.store("T", queue, 6, ""));
    // Where they begin is slow to come.
    world.rule(|command| {
        let slow = command.code == request::QUERY_CONSUMER_OFFSET;
        slow.then(|| React::AnswerAfter(Duration::from_millis(50), ok().with_ext("offset", 0)))
    });
    let consumer = consumer(&world).start_assigned([world.queue(0)]).await.unwrap();
    consumer.seek(&world.queue(0), 4).await.unwrap();
    assert_eq!(polled(&consumer, 2).await, [4, 5]);
    consumer.assign([world.queue(1), world.queue(0), world.queue(1)]).await.unwrap();
    consumer.pause([&world.queue(1)]);
    assert_eq!(consumer.is_paused(&world.queue(1)), Some(true));
    consumer.assign([world.queue(0)]).await.unwrap();
    assert!(matches!(consumer.seek(&world.queue(1), 0).await, Err(Error::Invalid(_))));
    consumer.shutdown().await.unwrap();
    assert!(matches!(consumer.assign([world.queue(0)]).await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn a_commit_that_stores_nothing_is_an_error() {
    let world = World::new(2).await;
    (0..2).for_each(|queue| world.store("T", queue, 5, ""));
    let builder = consumer(&world).manual_commit();
    let consumer = builder.start_assigned([world.queue(0), world.queue(1)]).await.unwrap();
    let messages = consumer.poll(LONG).await.unwrap();
    let lost = messages[0].queue.queue_id;
    let kept = 1 - lost;
    consumer.assign([world.queue(kept)]).await.unwrap();
    let member_has = || consumer.is_paused(&world.queue(lost)).is_some();
    eventually(|| (!member_has()).then_some(())).await;
    assert!(matches!(consumer.commit().await, Err(Error::Invalid(_))));
    assert_eq!(polled(&consumer, 5).await, [0, 1, 2, 3, 4]);
    consumer.commit().await.unwrap();
    assert_eq!([world.stored(kept), world.stored(lost)], [Some(5), None]);
    consumer.shutdown().await.unwrap();
    assert!(matches!(consumer.commit().await, Err(Error::Closed(_))));
}
