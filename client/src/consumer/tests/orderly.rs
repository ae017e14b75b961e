//! Consumption in order, and its locks.

use std::sync::atomic::{AtomicUsize, Ordering};

use ringmq_net::code::request;
use tokio::sync::Semaphore;

use super::world::place;
use super::*;

#[tokio::test]
async fn messages_come_in_order_one_at_a_time_and_a_failed_one_comes_again_first() {
    let world = World::new(2).await;
    (0..2).for_each(|queue| world.store("T", queue, 20, ""));
    let running = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world)
        .suspend(Duration::from_millis(10))
        .start_orderly(move |message| {
            let (send, running) = (send.clone(), running.clone());
            async move {
                let queue = &running[message.queue.queue_id as usize];
                assert_eq!(queue.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                tokio::task::yield_now().await;
                queue.fetch_sub(1, Ordering::SeqCst);
                let fails = message.queue_offset % 7 == 3 && message.reconsume_times < 2;
                drop(send.send(message));
                if fails { Err("not yet") } else { Ok(()) }
            }
        })
        .await
        .unwrap();
    let mut next = [(0, 0); 2];
    // 20 messages, and 3 of them come twice more, in each of two queues.
    for _ in 0..2 * (20 + 2 * 3) {
        let message = inbox.next().await;
        let (offset, times) = &mut next[message.queue.queue_id as usize];
        assert_eq!((message.queue_offset, message.reconsume_times), (*offset, *times));
        match *offset % 7 == 3 && *times < 2 {
            true => *times += 1,
            false => (*offset, *times) = (*offset + 1, 0),
        }
    }
    consumer.shutdown().await.unwrap();
    assert_eq!([world.stored(0), world.stored(1)], [Some(20), Some(20)]);
    assert!(world.table().locks.is_empty(), "locks are given back");
    let stored = world.broker.asked(request::UPDATE_CONSUMER_OFFSET);
    let unlocked = world.broker.asked(request::UNLOCK_BATCH_MQ);
    assert!(stored[0].opaque < unlocked.last().unwrap().opaque);
}

#[tokio::test]
async fn nothing_of_a_queue_is_consumed_before_its_lock_is_ours() {
    let world = World::new(2).await;
    (0..2).for_each(|queue| world.store("T", queue, 3, ""));
    world.table().locks.insert(world.queue(1), "somebody else".to_owned());
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start_orderly(into_inbox(send)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(inbox.next().await.queue.queue_id, 0);
    }
    world.broker.until_asked(request::LOCK_BATCH_MQ, 4).await;
    let all = world.broker.asked(request::PULL_MESSAGE);
    assert!(all.iter().all(|pull| place(pull) != ("T".to_owned(), 1)));
    // Where the other one got to.
    world.table().offsets.insert(("T".to_owned(), 1), 2);
    world.table().locks.clear();
    let message = inbox.next().await;
    assert_eq!((message.queue.queue_id, message.queue_offset), (1, 2));
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_lost_stops_the_queue_and_its_progress_is_looked_at_when_it_is_regained() {
    let world = World::new(1).await;
    world.store("T", 0, 10, "");
    let gate = Arc::new(Semaphore::new(2));
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .timing(|timing| timing.lock = Duration::from_millis(20))
        .start_orderly(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                held.acquire().await.unwrap().forget();
                drop(send.send(message));
            }
        })
        .await
        .unwrap();
    assert_eq!(inbox.offsets(2).await, [0, 1]);
    // The broker forgot our lock, and another member took the queue: it got to 6.
    {
        let mut table = world.table();
        table.locks.insert(world.queue(0), "somebody else".to_owned());
        table.offsets.insert(("T".to_owned(), 0), 6);
    }
    // The call that runs is stopped: its lock is gone.
    let locks = world.broker.asked(request::LOCK_BATCH_MQ).len();
    world.broker.until_asked(request::LOCK_BATCH_MQ, locks + 3).await;
    gate.add_permits(100);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(inbox.is_empty());
    world.table().locks.clear();
    assert_eq!(inbox.offsets(4).await, [6, 7, 8, 9]);
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(10));
}

#[tokio::test]
async fn a_lost_connection_costs_no_repeated_messages_when_nobody_else_had_the_queue() {
    let world = World::new(1).await;
    world.store("T", 0, 5, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start_orderly(into_inbox(send)).await.unwrap();
    assert_eq!(inbox.offsets(5).await, [0, 1, 2, 3, 4]);
    for round in 1..=3 {
        world.broker.cut();
        world.store("T", 0, 1, "");
        assert_eq!(inbox.offsets(1).await, [4 + round]);
    }
    assert!(world.broker.asked(request::LOCK_BATCH_MQ).len() >= 4, "each loss was doubted");
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_queue_that_is_given_away_is_unlocked_only_when_its_listener_has_ended() {
    let world = World::new(2).await;
    (0..2).for_each(|queue| world.store("T", queue, 2, ""));
    let gate = Arc::new(Semaphore::new(0));
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .start_orderly(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                drop(send.send(message));
                held.acquire().await.unwrap().forget();
            }
        })
        .await
        .unwrap();
    inbox.offsets(2).await;
    // A member that sorts in front of us takes the first queue.
    world.table().members.insert("0".to_owned());
    let changed = ringmq_net::command::Command::request(request::NOTIFY_CONSUMER_IDS_CHANGED);
    world.broker.tell(changed.with_ext("consumerGroup", "g"));
    let mut assignment = consumer.assignment();
    let first = world.queue(0);
    let gone = |all: &Arc<[MessageQueue]>| !all.contains(&first);
    assignment.wait_for(gone).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(world.table().locks.contains_key(&world.queue(0)));
    gate.add_permits(1);
    gate.add_permits(1);
    eventually(|| (!world.table().locks.contains_key(&world.queue(0))).then_some(())).await;
    eventually(|| (world.stored(0) == Some(1)).then_some(())).await;
    gate.add_permits(100);
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_listener_that_does_not_return_is_stopped_before_another_member_gets_the_queue() {
    let world = World::new(1).await;
    world.store("T", 0, 1, "");
    let (send, mut inbox) = inbox();
    let stopped = Arc::new(());
    let witness = stopped.clone();
    let consumer = consumer(&world)
        .timing(|timing| timing.release = Duration::from_millis(20))
        .start_orderly(move |message| {
            let (send, witness) = (send.clone(), witness.clone());
            async move {
                drop(send.send(message));
                std::future::pending::<()>().await;
                drop(witness);
            }
        })
        .await
        .unwrap();
    inbox.offsets(1).await;
    assert!(Arc::strong_count(&stopped) > 2);
    world.table().members.insert("0".to_owned());
    let changed = ringmq_net::command::Command::request(request::NOTIFY_CONSUMER_IDS_CHANGED);
    world.broker.tell(changed.with_ext("consumerGroup", "g"));
    eventually(|| (!world.table().locks.contains_key(&world.queue(0))).then_some(())).await;
    assert_eq!(Arc::strong_count(&stopped), 2);
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(0));
}

#[tokio::test]
async fn a_message_that_fails_too_often_becomes_a_dead_letter_and_the_queue_goes_on() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world)
        .retries(2)
        .suspend(Duration::from_millis(10))
        .start_orderly(move |message| {
            let send = send.clone();
            async move {
                let poison = message.queue_offset == 1;
                drop(send.send(message));
                if poison { Outcome::Retry } else { Outcome::Consumed }
            }
        })
        .await
        .unwrap();
    assert_eq!(inbox.offsets(5).await, [0, 1, 1, 1, 2]);
    let sent = world.broker.until_asked(request::SEND_MESSAGE_V2, 1).await;
    assert_eq!(
        (sent[0].ext("b"), sent[0].ext("j"), sent[0].ext("l")),
        (Some("%RETRY%g"), Some("3"), Some("2"))
    );
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(3));
}

/// The queues of a request for locks, or to give them back.
fn asked_for(command: &ringmq_net::command::Command) -> Vec<MessageQueue> {
    use ringmq_net::body::{Body, LockBatch};
    LockBatch::from_json(&command.body).unwrap().queues
}

#[tokio::test]
async fn a_consumer_that_ends_while_it_takes_queues_gives_their_locks_back() {
    for stuck in [request::LOCK_BATCH_MQ, request::QUERY_CONSUMER_OFFSET] {
        let world = World::new(1).await;
        let gate = Arc::new(Semaphore::new(0));
        let (held, queue) = (gate.clone(), world.queue(0));
        world.rule(move |command| {
            use ringmq_net::body::{Body, LockOk};
            let about_us = match command.code {
                request::LOCK_BATCH_MQ => asked_for(command).contains(&queue),
                request::QUERY_CONSUMER_OFFSET => place(command).0 == "T",
                _ => false,
            };
            let (held, body) = (held.clone(), LockOk { queues: vec![queue.clone()] }.to_json());
            (about_us && command.code == stuck).then(|| {
                React::AnswerWhen(Box::pin(async move {
                    held.acquire().await.unwrap().forget();
                    ok().with_ext("offset", 0).with_body(body)
                }))
            })
        });
        let consumer = consumer(&world).start_orderly(|_| async {}).await.unwrap();
        world.broker.until_asked(stuck, 1).await;
        let about_us = |world: &World, code| {
            let all = world.broker.asked(code);
            all.iter().any(|command| match code {
                request::QUERY_CONSUMER_OFFSET => place(command).0 == "T",
                _ => asked_for(command).contains(&world.queue(0)),
            })
        };
        eventually(|| about_us(&world, stuck).then_some(())).await;
        let ended = tokio::spawn(async move { consumer.shutdown().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        gate.add_permits(100);
        ended.await.unwrap().unwrap();
        assert!(about_us(&world, request::UNLOCK_BATCH_MQ), "stuck at {stuck}");
    }
}

#[tokio::test]
async fn a_lock_is_not_renewed_behind_the_word_that_gives_it_back() {
    let world = World::new(1).await;
    let (gate, holds) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let consumer = consumer(&world)
        .timing(|timing| timing.lock = Duration::from_millis(20))
        .start_orderly(|_| async {})
        .await
        .unwrap();
    let mut assignment = consumer.assignment();
    assignment.wait_for(|all| all.contains(&world.queue(0))).await.unwrap();
    let (held, count, queue) = (gate.clone(), holds.clone(), world.queue(0));
    world.rule(move |command| {
        use ringmq_net::body::{Body, LockOk};
        let ours = command.code == request::LOCK_BATCH_MQ && asked_for(command).contains(&queue);
        let (held, body) = (held.clone(), LockOk { queues: vec![queue.clone()] }.to_json());
        ours.then(|| {
            count.fetch_add(1, Ordering::SeqCst);
            React::AnswerWhen(Box::pin(async move {
                held.acquire().await.unwrap().forget();
                ok().with_body(body)
            }))
        })
    });
    eventually(|| (holds.load(Ordering::SeqCst) == 1).then_some(())).await;
    let ended = tokio::spawn(async move { consumer.shutdown().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(
        world.broker.asked(request::UNLOCK_BATCH_MQ).is_empty(),
        "the renewal is answered first"
    );
    gate.add_permits(100);
    ended.await.unwrap().unwrap();
    assert!(!world.table().locks.contains_key(&world.queue(0)));
    assert_eq!(holds.load(Ordering::SeqCst), 1);
}
