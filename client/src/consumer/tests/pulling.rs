//! The pulls of push consumers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use tokio::sync::Semaphore;

use super::world::{place, pulled};
use super::*;

fn of_topic(command: &Command) -> bool {
    command.code == request::PULL_MESSAGE && place(command).0 == "T"
}

fn pulls(world: &World) -> Vec<Command> {
    let all = world.broker.asked(request::PULL_MESSAGE);
    all.into_iter().filter(|command| place(command).0 == "T").collect()
}

#[tokio::test]
async fn whatever_happens_to_a_pull_another_one_follows() {
    let world = World::new(1).await;
    world.store("T", 0, 40, "");
    let turn = AtomicUsize::new(0);
    let garbage = || React::Answer(pulled(0, 7, 40, vec![0xFF; 60]));
    let incomplete = || React::Answer(ok());
    world.rule(move |command| {
        if !of_topic(command) {
            return None;
        }
        Some(match turn.fetch_add(1, Ordering::SeqCst) {
            0 => refusal(response::SYSTEM_ERROR),
            1 => refusal(response::SYSTEM_BUSY),
            2 => refusal(response::FLOW_CONTROL),
            3 => refusal(response::NO_PERMISSION),
            4 => refusal(response::TOPIC_NOT_EXIST),
            5 => refusal(response::SUBSCRIPTION_GROUP_NOT_EXIST),
            6 => garbage(),
            7 => incomplete(),
            9 => React::CutMidFrame,
            11 => React::Close,
            at if at > 11 && at.is_multiple_of(3) => refusal(response::SYSTEM_ERROR),
            _ => return None,
        })
    });
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).pull_batch(5).start(into_inbox(send)).await.unwrap();
    let mut offsets = inbox.offsets(40).await;
    offsets.sort_unstable();
    assert!(offsets.into_iter().eq(0..40));
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(40));
}

#[tokio::test]
async fn a_broker_that_lost_the_subscription_is_told_and_asked_again() {
    for code in [response::SUBSCRIPTION_NOT_EXIST, response::SUBSCRIPTION_NOT_LATEST] {
        let world = World::new(1).await;
        world.store("T", 0, 1, "");
        let refused = Mutex::new(false);
        world.rule(move |command| {
            let first = of_topic(command) && !std::mem::replace(&mut refused.lock().unwrap(), true);
            first.then(|| refusal(code))
        });
        let (send, mut inbox) = inbox();
        let consumer = consumer(&world)
            // A pause would show.
            .timing(|timing| timing.pull_again = LONG)
            .start(into_inbox(send))
            .await
            .unwrap();
        inbox.offsets(1).await;
        let pulls = pulls(&world);
        let between = world.broker.asked(request::HEART_BEAT);
        let between =
            between.iter().filter(|h| (pulls[0].opaque..pulls[1].opaque).contains(&h.opaque));
        assert_eq!(between.count(), 1, "{code}");
        consumer.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn pulls_wait_without_asking_while_too_much_is_in_memory() {
    let world = World::new(1).await;
    world.store("T", 0, 100, "");
    let gate = Arc::new(Semaphore::new(0));
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .pull_batch(8)
        .queue_cache(10, 1 << 20, 50)
        .concurrency(2)
        .start(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                drop(send.send(message));
                held.acquire().await.unwrap().forget();
            }
        })
        .await
        .unwrap();
    inbox.offsets(2).await;
    // Two pulls of 8 are over the bound of 10.
    eventually(|| (consumer.progress("T")[0].1 == 0 && pulls(&world).len() == 2).then_some(()))
        .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(pulls(&world).len(), 2);
    assert!(inbox.is_empty(), "no more calls than two at once");
    gate.add_permits(1000);
    inbox.offsets(98).await;
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(100));
}

#[tokio::test]
async fn no_more_listeners_run_at_once_than_the_bound_and_all_of_them_do() {
    let world = World::new(4).await;
    (0..4).for_each(|queue| world.store("T", queue, 50, ""));
    let (running, most, done) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let counts = (running, most.clone(), done.clone());
    let consumer = consumer(&world)
        .concurrency(5)
        .start(move |_| {
            let (running, most, done) = counts.clone();
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await
        .unwrap();
    eventually(|| (done.load(Ordering::SeqCst) == 200).then_some(())).await;
    assert_eq!(most.load(Ordering::SeqCst), 5);
    // From now on more, and then fewer.
    for (wanted, bound) in [(9, 400), (2, 600)] {
        consumer.set_concurrency(wanted).unwrap();
        most.store(0, Ordering::SeqCst);
        (0..4).for_each(|queue| world.store("T", queue, 50, ""));
        eventually(|| (done.load(Ordering::SeqCst) == bound).then_some(())).await;
        assert_eq!((most.load(Ordering::SeqCst), consumer.concurrency()), (wanted, wanted));
    }
    assert!(consumer.set_concurrency(0).is_err());
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_offset_outside_the_queue_is_repaired_and_a_late_listener_does_not_undo_it() {
    let world = World::new(1).await;
    world.store("T", 0, 5, "");
    let gate = Arc::new(Semaphore::new(0));
    let moved = Arc::new(Mutex::new(false));
    let rule = moved.clone();
    world.rule(move |command| {
        let due = of_topic(command) && std::mem::take(&mut *rule.lock().unwrap());
        due.then(|| React::Answer(pulled(response::PULL_OFFSET_MOVED, 2, 5, Vec::new())))
    });
    let (send, mut inbox) = inbox();
    let held = gate.clone();
    let consumer = consumer(&world)
        .timing(|timing| timing.persist = Duration::from_millis(10))
        .start(move |message| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                drop(send.send(message));
                held.acquire().await.unwrap().forget();
            }
        })
        .await
        .unwrap();
    inbox.offsets(5).await;
    eventually(|| (pulls(&world).len() == 2).then_some(())).await;
    *moved.lock().unwrap() = true;
    // The pull that waits ends with the next message.
    world.store("T", 0, 1, "");
    let mut again = inbox.offsets(7).await;
    again.sort_unstable();
    assert_eq!(again, [0, 1, 2, 3, 4, 5, 5], "none of them is done");
    assert_eq!(world.stored(0), Some(0));
    gate.add_permits(100);
    eventually(|| (world.stored(0) == Some(6)).then_some(())).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn reads_go_to_the_slave_that_the_master_suggests_and_come_back() {
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    // A slave that has one message more, so that what came from it shows.
    let slave = crate::fake::Fake::start(|command| match command.code {
        request::PULL_MESSAGE if command.ext("topic") == Some("T") => {
            React::Answer(pulled(response::PULL_RETRY_IMMEDIATELY, 3, 3, Vec::new()))
        }
        _ => React::Answer(ok()),
    })
    .await;
    let (master, addr) = (world.broker.addr(), slave.addr());
    let servers = crate::fake::Fake::start(move |_| {
        let body = crate::fake::route(&[("a", master.clone())], 1);
        let mut data =
            <ringmq_net::body::TopicRouteData as ringmq_net::body::Body>::from_json(&body).unwrap();
        data.brokers[0].broker_addrs.insert(1, addr.clone());
        React::Answer(ok().with_body(ringmq_net::body::Body::to_json(&data)))
    })
    .await;
    world.rule(|command| {
        let from_start = of_topic(command) && command.ext("queueOffset") == Some("0");
        from_start.then(|| {
            React::Answer(
                pulled(response::PULL_RETRY_IMMEDIATELY, 1, 3, Vec::new())
                    .with_ext("suggestWhichBrokerId", 1),
            )
        })
    });
    let client = crate::Client::builder().name_server(servers.addr()).build().unwrap();
    let (send, mut inbox) = inbox();
    world.store("T", 0, 1, "");
    let builder = client.consumer("g").subscribe("T", "*").consume_from(ConsumeFrom::First);
    let consumer = builder.start(into_inbox(send)).await.unwrap();
    // Message 3 is with the master alone, and 0 to 2 were passed over there.
    assert_eq!(inbox.offsets(1).await, [3]);
    let asked = slave.until_asked(request::PULL_MESSAGE, 1).await;
    let flags: i32 = asked[0].ext("sysFlag").unwrap().parse().unwrap();
    assert_eq!(flags & 1, 0, "a slave stores no progress");
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn tags_are_compared_as_texts_and_a_dead_letter_keeps_its_topic() {
    let world = World::new(1).await;
    for tag in ["TAGS\u{1}Aa\u{2}RETRY_TOPIC\u{1}other", "TAGS\u{1}BB", ""] {
        world.store("T", 0, 1, tag);
    }
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world)
        .subscribe("T", "Aa || C")
        .timing(|timing| timing.persist = Duration::from_millis(10))
        .start(into_inbox(send))
        .await
        .unwrap();
    let message = inbox.next().await;
    assert_eq!((message.topic(), message.tag()), ("T", Some("Aa")));
    // The others are done by being left out.
    eventually(|| (world.stored(0) == Some(3)).then_some(())).await;
    assert!(inbox.is_empty());
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_pause_stops_pulls_and_the_end_of_it_starts_them() {
    let world = World::new(1).await;
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world)
        .long_poll(Duration::from_millis(20))
        .start(into_inbox(send))
        .await
        .unwrap();
    world.broker.until_asked(request::PULL_MESSAGE, 2).await;
    consumer.pause();
    assert!(consumer.is_paused());
    tokio::time::sleep(Duration::from_millis(60)).await;
    let before = pulls(&world).len();
    world.store("T", 0, 3, "");
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(pulls(&world).len(), before);
    consumer.resume();
    inbox.offsets(3).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_group_goes_on_with_the_slave_when_its_master_is_gone() {
    // What plays the slave here.
    let world = World::new(1).await;
    world.store("T", 0, 3, "");
    let (master, slave) = (crate::fake::nobody().await, world.broker.addr());
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let known = gone.clone();
    let servers = crate::fake::Fake::start(move |_| {
        use ringmq_net::body::{Body, TopicRouteData};
        let body = crate::fake::route(&[("a", master.clone())], 1);
        let mut data = TopicRouteData::from_json(&body).unwrap();
        let addrs = &mut data.brokers[0].broker_addrs;
        addrs.insert(1, slave.clone());
        if known.load(Ordering::SeqCst) {
            addrs.remove(&0);
        }
        React::Answer(ok().with_body(data.to_json()))
    })
    .await;
    let client = crate::Client::builder().name_server(servers.addr()).build().unwrap();
    let (send, mut inbox) = inbox();
    let builder = client.consumer("g").subscribe("T", "*").consume_from(ConsumeFrom::First);
    let consumer = builder
        .timing(|timing| timing.rebalance_again = Duration::from_millis(20))
        .start(into_inbox(send))
        .await
        .unwrap();
    // The slave knows the members; but a group's progress is not guessed while its master does not answer.
    world.broker.until_asked(request::GET_CONSUMER_LIST_BY_GROUP, 2).await;
    assert!(inbox.is_empty());
    gone.store(true, Ordering::SeqCst);
    inbox.offsets(3).await;
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(3));
}
