//! How far a consumer is, and what of it is stored when.

use ringmq_net::code::request;
use tokio::sync::Semaphore;

use super::*;
use crate::Error;

#[tokio::test]
async fn all_messages_are_consumed_and_progress_is_stored_before_the_group_is_left() {
    let world = World::new(3).await;
    (0..3).for_each(|queue| world.store("T", queue, 50, ""));
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 150 {
        let message = inbox.next().await;
        assert_eq!(message.body, format!("body {}", message.queue_offset));
        assert!(seen.insert((message.queue.queue_id, message.queue_offset)), "none comes twice");
    }
    consumer.shutdown().await.unwrap();
    for queue in 0..3 {
        assert_eq!(world.stored(queue), Some(50));
    }
    let left = world.broker.asked(request::UNREGISTER_CLIENT);
    let stored = world.broker.asked(request::UPDATE_CONSUMER_OFFSET);
    assert_eq!(left.len(), 1);
    assert!(stored.iter().all(|stored| stored.opaque < left[0].opaque));
    consumer.shutdown().await.unwrap();
    assert!(matches!(consumer.subscribe("U", "*").await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn progress_never_passes_a_message_that_is_not_done() {
    let world = World::new(1).await;
    world.store("T", 0, 20, "");
    let gate = Arc::new(Semaphore::new(0));
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .timing(|timing| timing.persist = Duration::from_millis(10))
        .start(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                if message.queue_offset == 7 {
                    held.acquire().await.unwrap().forget();
                }
                drop(send.send(message));
            }
        })
        .await
        .unwrap();
    inbox.offsets(19).await;
    eventually(|| (world.stored(0) == Some(7)).then_some(())).await;
    assert_eq!(consumer.progress("T"), [(world.queue(0), 7)]);
    gate.add_permits(1);
    eventually(|| (world.stored(0) == Some(20)).then_some(())).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_waits_for_listeners_and_leaves_what_was_not_begun() {
    let world = World::new(1).await;
    world.store("T", 0, 20, "");
    let gate = Arc::new(Semaphore::new(0));
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .concurrency(4)
        .start(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                drop(send.send(message));
                held.acquire().await.unwrap().forget();
            }
        })
        .await
        .unwrap();
    inbox.offsets(4).await;
    let ending = consumer.clone();
    let ended = tokio::spawn(async move { ending.shutdown().await });
    eventually(|| world.broker.asked(request::PULL_MESSAGE).first().map(drop)).await;
    tokio::task::yield_now().await;
    assert!(!ended.is_finished());
    gate.add_permits(4);
    ended.await.unwrap().unwrap();
    assert!(inbox.is_empty(), "nothing is begun at the end");
    assert_eq!(world.stored(0), Some(4));
}

#[tokio::test]
async fn a_shutdown_ends_at_its_deadline_and_what_ran_comes_again() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    let (send, mut inbox) = inbox();
    let client = crate::Client::builder().name_server(world.servers_addr());
    let client = client.drain_timeout(Duration::from_millis(100)).build().unwrap();
    let builder = client.consumer("g").subscribe("T", "*").consume_from(ConsumeFrom::First);
    let consumer = builder
        .start(move |message| {
            let send = send.clone();
            async move {
                let stuck = message.queue_offset == 1;
                drop(send.send(message));
                if stuck {
                    std::future::pending::<()>().await;
                }
            }
        })
        .await
        .unwrap();
    inbox.offsets(3).await;
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(1));
}

#[tokio::test]
async fn dropping_the_last_handle_ends_in_order_too() {
    let world = World::new(1).await;
    world.store("T", 0, 5, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    inbox.offsets(5).await;
    drop(consumer.clone());
    assert!(world.broker.asked(request::UNREGISTER_CLIENT).is_empty());
    drop(consumer);
    world.broker.until_asked(request::UNREGISTER_CLIENT, 1).await;
    assert_eq!(world.stored(0), Some(5));
    // The group is free again.
    let again = super::consumer(&world).start(|_| async {}).await.unwrap();
    let twice = super::consumer(&world).start(|_| async {}).await;
    assert!(matches!(twice, Err(Error::GroupTaken { kind: "consumer", .. })));
    again.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_new_group_begins_at_the_end_and_stores_where_that_was() {
    let world = World::new(1).await;
    world.store("T", 0, 9, "");
    let (send, mut inbox) = inbox();
    let consumer =
        consumer(&world).consume_from(ConsumeFrom::Last).start(into_inbox(send)).await.unwrap();
    eventually(|| consumer.progress("T").first().map(drop)).await;
    consumer.shutdown().await.unwrap();
    // Otherwise what comes while it is away would be lost.
    assert_eq!(world.stored(0), Some(9));
    assert!(inbox.is_empty());
}

#[tokio::test]
async fn a_queue_that_begins_while_the_group_listens_is_consumed_from_its_first_message() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    world.rule(|command| {
        let far = crate::id::now_ms() + 1_000_000;
        let asked = command.code == request::GET_EARLIEST_MSG_STORETIME;
        asked.then(|| React::Answer(ok().with_ext("timestamp", far)))
    });
    let (send, mut inbox) = inbox();
    let consumer =
        consumer(&world).consume_from(ConsumeFrom::Last).start(into_inbox(send)).await.unwrap();
    inbox.offsets(3).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_broker_that_fails_is_not_taken_for_a_group_without_progress() {
    let world = World::new(1).await;
    world.store("T", 0, 10, "");
    world.table().offsets.insert(("T".to_owned(), 0), 6);
    let failures = std::sync::atomic::AtomicUsize::new(0);
    world.rule(move |command| {
        let fails = command.code == request::QUERY_CONSUMER_OFFSET
            && failures.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 8;
        fails.then(|| refusal(ringmq_net::code::response::SYSTEM_ERROR))
    });
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    let mut offsets = inbox.offsets(4).await;
    offsets.sort_unstable();
    assert_eq!(offsets, [6, 7, 8, 9]);
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn broadcasting_members_go_on_from_their_file_and_repeat_nothing_that_failed() {
    let world = World::new(2).await;
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=2 {
        (0..2).for_each(|queue| world.store("T", queue, 5, ""));
        let (send, mut inbox) = inbox();
        let consumer = consumer(&world)
            .broadcasting(dir.path())
            .start(move |message| {
                let send = send.clone();
                async move {
                    drop(send.send(message));
                    Err::<(), _>("no")
                }
            })
            .await
            .unwrap();
        let offsets = inbox.offsets(10).await;
        assert!(offsets.iter().all(|offset| (5 * (round - 1)..5 * round).contains(offset)));
        eventually(|| consumer.progress("T").iter().all(|p| p.1 == 5 * round).then_some(())).await;
        consumer.shutdown().await.unwrap();
        let text = std::fs::read_to_string(dir.path().join("g/offsets.json")).unwrap();
        assert!(text.contains(&format!("\"queueId\":1,\"topic\":\"T\"}}:{}", 5 * round)), "{text}");
    }
    assert!(world.broker.asked(request::CONSUMER_SEND_MSG_BACK).is_empty());
    assert!(world.table().offsets.is_empty());
    let heartbeat = world.table().heartbeats.last().cloned().unwrap();
    let topics: Vec<_> =
        heartbeat.consumers.iter().flat_map(|c| &c.subscriptions).map(|s| &s.topic).collect();
    assert_eq!(topics, ["T"], "broadcasting has no retry topic");
}

#[tokio::test]
async fn the_directory_of_a_broadcasting_consumer_is_free_when_it_is_shut_down() {
    let world = World::new(1).await;
    let dir = tempfile::tempdir().unwrap();
    let builder = consumer(&world).broadcasting(dir.path());
    let first = builder.clone().start(|_| async {}).await.unwrap();
    let taken = super::super::local_offsets::LocalOffsets::open(&dir.path().join("g"));
    assert!(matches!(taken, Err(crate::Error::Offsets { .. })));
    first.shutdown().await.unwrap();
    let second = builder.start(|_| async {}).await.unwrap();
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_listener_may_end_its_consumer_and_an_end_that_nobody_waits_for_is_one() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    let slot: Arc<std::sync::Mutex<Option<PushConsumer>>> = Arc::default();
    let own = slot.clone();
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world)
        .start_orderly(move |message| {
            let (own, send) = (own.clone(), send.clone());
            async move {
                drop(send.send(message.clone()));
                // It may be called before the consumer is in its slot.
                let consumer = eventually(|| own.lock().unwrap().take()).await;
                if message.queue_offset == 0 {
                    let ending = async { consumer.shutdown().await };
                    let _ = tokio::time::timeout(Duration::from_millis(10), ending).await;
                }
            }
        })
        .await
        .unwrap();
    *slot.lock().unwrap() = Some(consumer);
    world.broker.until_asked(request::UNREGISTER_CLIENT, 1).await;
    assert_eq!(inbox.offsets(1).await, [0]);
    assert!(inbox.is_empty());
    assert_eq!(world.stored(0), Some(1));
}

/// From now on the broker answers each heartbeat when there is a permit for it.
fn hold_heartbeats(world: &World) -> Arc<Semaphore> {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    world.rule(move |command| {
        let held = held.clone();
        (command.code == request::HEART_BEAT).then(|| {
            React::AnswerWhen(Box::pin(async move {
                held.acquire().await.unwrap().forget();
                ok()
            }))
        })
    });
    gate
}

#[tokio::test]
async fn a_group_leaves_brokers_that_have_not_answered_its_first_heartbeat() {
    let world = World::new(1).await;
    let gate = hold_heartbeats(&world);
    let builder = consumer(&world);
    let starting = tokio::spawn(async move { builder.start(|_| async {}).await });
    world.broker.until_asked(request::HEART_BEAT, 1).await;
    let client = world.client();
    let ended = tokio::spawn(async move { client.shutdown().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.add_permits(100);
    world.broker.until_asked(request::UNREGISTER_CLIENT, 1).await;
    ended.await.unwrap().unwrap();
    drop(starting.await.unwrap());
}

#[tokio::test]
async fn a_group_that_leaves_is_not_brought_back_by_a_heartbeat_under_way() {
    let world = World::new(1).await;
    let consumer = consumer(&world).start(|_| async {}).await.unwrap();
    eventually(|| consumer.progress("T").first().map(drop)).await;
    let gate = hold_heartbeats(&world);
    let before = world.broker.asked(request::HEART_BEAT).len();
    let client = world.client();
    let beat = tokio::spawn(async move { client.heartbeat(true).await });
    world.broker.until_asked(request::HEART_BEAT, before + 1).await;
    let ended = tokio::spawn(async move { consumer.shutdown().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(world.broker.asked(request::UNREGISTER_CLIENT).is_empty());
    gate.add_permits(100);
    ended.await.unwrap().unwrap();
    beat.await.unwrap();
    let last = world.broker.asked(request::UNREGISTER_CLIENT).pop().unwrap();
    assert!(world.broker.asked(request::HEART_BEAT).iter().all(|beat| beat.opaque < last.opaque));
}
