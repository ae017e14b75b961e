//! What brokers and administrators ask of a consumer, and its membership.

use ringmq_net::body::{
    Body, ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus, ResetOffset,
};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;

use super::*;

fn about_group(code: i32) -> Command {
    Command::request(code)
        .with_ext("group", "g")
        .with_ext("consumerGroup", "g")
        .with_ext("topic", "T")
        .with_ext("timestamp", 0)
        .with_ext("isForce", true)
}

#[tokio::test]
async fn a_notice_of_changed_members_divides_the_queues_at_once() {
    let world = World::new(4).await;
    let consumer = consumer(&world).start(|_| async {}).await.unwrap();
    let mut assignment = consumer.assignment();
    let own = |all: &Arc<[MessageQueue]>| all.iter().filter(|q| q.topic == "T").count();
    assignment.wait_for(|all| own(all) == 4).await.unwrap();
    for (members, wanted) in [(1, 2), (3, 1), (0, 4)] {
        {
            let mut table = world.table();
            table.members.retain(|member| member.len() > 2);
            table.members.extend((0..members).map(|at| format!("z{at}")));
        }
        world.broker.tell(about_group(request::NOTIFY_CONSUMER_IDS_CHANGED));
        let divided = tokio::time::timeout(LONG, assignment.wait_for(|all| own(all) == wanted));
        divided.await.expect("without the pause of 20 s").unwrap();
    }
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_rule_of_division_that_panics_is_asked_again() {
    let world = World::new(2).await;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let rule = move |_: &str, queues: &[MessageQueue], _: &[String]| {
        let asked = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert!(asked >= 3, "a rule that fails at first");
        queues.to_vec()
    };
    let builder = consumer(&world).allocate(Allocate::Custom(Arc::new(rule)));
    let consumer = builder.start(|_| async {}).await.unwrap();
    let mut assignment = consumer.assignment();
    let own = |all: &Arc<[MessageQueue]>| all.iter().filter(|q| q.topic == "T").count() == 2;
    let divided = tokio::time::timeout(LONG, assignment.wait_for(own));
    divided.await.expect("it goes on").unwrap();
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_broker_that_has_forgotten_us_is_told_before_the_queues_are_divided() {
    let world = World::new(2).await;
    let consumer = consumer(&world).start(|_| async {}).await.unwrap();
    let mut assignment = consumer.assignment();
    let own = |all: &Arc<[MessageQueue]>| all.iter().filter(|q| q.topic == "T").count();
    assignment.wait_for(|all| own(all) == 2).await.unwrap();
    {
        let mut table = world.table();
        table.members.clear();
        table.members.insert("somebody else".to_owned());
    }
    world.broker.tell(about_group(request::NOTIFY_CONSUMER_IDS_CHANGED));
    assignment.wait_for(|all| own(all) == 1).await.unwrap();
    assert_eq!(world.table().members.len(), 2);
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_offset_that_is_reset_moves_the_consumer_and_is_stored() {
    let world = World::new(1).await;
    world.store("T", 0, 10, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    inbox.offsets(10).await;
    let table = ResetOffset { offsets: vec![(world.queue(0), 4), (world.queue(7), 1)] };
    for body in [table.to_json(), table.to_list_json()] {
        world.broker.tell(about_group(request::RESET_CONSUMER_CLIENT_OFFSET).with_body(body));
        let mut again = inbox.offsets(6).await;
        again.sort_unstable();
        assert!(again.into_iter().eq(4..10));
    }
    let stored = world.broker.asked(request::UPDATE_CONSUMER_OFFSET);
    assert!(stored.iter().any(|stored| stored.ext("commitOffset") == Some("4")));
    consumer.shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(10));
}

#[tokio::test]
async fn administrators_see_how_far_it_is_and_what_it_does() {
    let world = World::new(2).await;
    world.store("T", 0, 10, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    inbox.offsets(10).await;
    eventually(|| consumer.progress("T").contains(&(world.queue(0), 10)).then_some(())).await;
    let status = world.broker.ask(about_group(request::GET_CONSUMER_STATUS_FROM_CLIENT)).await;
    let status = ConsumerStatus::from_json(&status.body).unwrap();
    assert!(status.queues.contains(&(world.queue(0), 10)));
    let info = world.broker.ask(about_group(request::GET_CONSUMER_RUNNING_INFO)).await;
    let info = ConsumerRunningInfo::from_json(&info.body).unwrap();
    assert_eq!(info.properties["PROP_CONSUME_TYPE"], "CONSUME_PASSIVELY");
    assert_eq!(info.queues[&world.queue(0)].commit_offset, 10);
    assert_eq!(info.subscriptions.len(), 2);
    assert!(info.status["T"].consume_ok_tps > 0.0);
    let unknown =
        Command::request(request::GET_CONSUMER_RUNNING_INFO).with_ext("consumerGroup", "x");
    assert_eq!(world.broker.ask(unknown).await.code, response::SYSTEM_ERROR);
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_message_is_consumed_directly_with_the_listeners_result() {
    let world = World::new(1).await;
    let consumer = consumer(&world)
        .start(|message| async move {
            match &message.body[..] {
                b"ok" => Ok(()),
                b"no" => Err("no"),
                _ => panic!("what is that"),
            }
        })
        .await
        .unwrap();
    for (body, result) in [("ok", "CR_SUCCESS"), ("no", "CR_LATER"), ("?", "CR_THROW_EXCEPTION")] {
        let record = crate::fake::record("T", 0, body.as_bytes(), "");
        let asked = about_group(request::CONSUME_MESSAGE_DIRECTLY).with_body(record);
        let reply = world.broker.ask(asked).await;
        let got = ConsumeDirectlyResult::from_json(&reply.body).unwrap();
        assert_eq!((got.consume_result.as_str(), got.order), (result, false));
        if body == "?" {
            assert!(got.remark.unwrap().contains("what is that"));
        }
    }
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn brokers_hear_of_a_changed_subscription_and_its_queues_come_and_go() {
    let world = World::new(1).await;
    world.store("U", 0, 2, "TAGS\u{1}a");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    let version = |world: &World| {
        let last = world.table().heartbeats.last().cloned().unwrap();
        let of_u = last.consumers[0].subscriptions.iter().find(|s| s.topic == "U").cloned();
        of_u.map(|of_u| (of_u.sub_version, of_u.sub_string))
    };
    consumer.subscribe("U", "a || b").await.unwrap();
    let (first, text) = version(&world).unwrap();
    assert_eq!(text, "a || b");
    inbox.offsets(2).await;
    consumer.subscribe("U", "a").await.unwrap();
    let (second, text) = version(&world).unwrap();
    assert_eq!(text, "a");
    assert!(second > first);
    consumer.unsubscribe("U").await.unwrap();
    assert_eq!(version(&world), None);
    let mut assignment = consumer.assignment();
    let gone = |all: &Arc<[MessageQueue]>| all.iter().all(|queue| queue.topic != "U");
    assignment.wait_for(gone).await.unwrap();
    let of_u = ("U".to_owned(), 0);
    eventually(|| (world.table().offsets.get(&of_u) == Some(&2)).then_some(())).await;
    consumer.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_expression_that_does_not_compile_fails_the_start_and_leaves_nothing_behind() {
    let world = World::new(1).await;
    world.rule(|command| {
        let check = command.code == request::CHECK_CLIENT_CONFIG;
        check.then(|| refusal(response::SUBSCRIPTION_PARSE_FAILED))
    });
    let broken = consumer(&world).subscribe_sql("T", "a >").start(|_| async {}).await;
    assert_eq!(broken.unwrap_err().code(), Some(response::SUBSCRIPTION_PARSE_FAILED));
    let consumer = consumer(&world).start(|_| async {}).await.unwrap();
    consumer.shutdown().await.unwrap();
    assert!(world.table().members.is_empty());
}

#[tokio::test]
async fn a_client_ends_its_consumers_in_order() {
    let world = World::new(1).await;
    world.store("T", 0, 5, "");
    let (send, mut inbox) = inbox();
    let consumer = consumer(&world).start(into_inbox(send)).await.unwrap();
    inbox.offsets(5).await;
    world.client().shutdown().await.unwrap();
    assert_eq!(world.stored(0), Some(5));
    assert!(world.table().members.is_empty());
    consumer.shutdown().await.unwrap();
}
