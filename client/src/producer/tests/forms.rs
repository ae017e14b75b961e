//! What a message becomes on its way, and the other forms of sending.

use super::*;

#[tokio::test]
async fn the_callers_message_is_not_changed_and_every_send_has_an_id_of_its_own() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let message = Message::new("t", vec![b'x'; 10_000]).tag("tag").key("key");
    let before = message.clone();
    let one = producer.send(message.clone()).await.unwrap();
    let two = producer.send(message.clone()).await.unwrap();
    assert_eq!(message, before);
    assert_ne!(one.message_id, two.message_id);
    for (command, receipt) in sends(&a).iter().zip([&one, &two]) {
        assert_eq!(property(command, "UNIQ_KEY"), Some(receipt.message_id.as_str()));
        assert_eq!(
            (property(command, "TAGS"), property(command, "KEYS")),
            (Some("tag"), Some("key"))
        );
        assert_eq!(command.ext("f"), Some("769"), "compressed, by zlib");
        assert!(command.body.len() < 10_000);
    }
    // One that has an id keeps it: a message that is sent again by its owner is the same one.
    let again = Message::new("t", "b").system(crate::names::UNIQ_KEY, one.message_id.as_str());
    assert_eq!(producer.send(again).await.unwrap().message_id, one.message_id);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_anybody_is_asked() {
    let a = good().await;
    let (servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").body_bytes_max(100).start().await.unwrap();
    let refused = [
        Message::new("", "b"),
        Message::new("a b", "b"),
        Message::new("SCHEDULE_TOPIC_XXXX", "b"),
        Message::new("t", ""),
        Message::new("t", vec![0; 101]),
        Message::new("t", "b").property("TAGS", "x"),
        Message::new("t", "b").property("x", "y".repeat(33_000)),
    ];
    for message in refused {
        let error = producer.send(message).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert!(servers.asked(request::GET_ROUTEINFO_BY_TOPIC).is_empty() && sends(&a).is_empty());
}

#[tokio::test]
async fn a_batch_is_stored_in_parts_and_every_message_gets_its_own_receipt() {
    let a = broker(|command| {
        let count = ringmq_net::record::BatchBody::parse(&command.body).unwrap().count();
        let ids: Vec<String> = (0..count).map(|at| format!("PLACE{at}")).collect();
        let mut reply = stored(command, 0);
        reply.ext[0].1 = ids.join(",");
        React::Answer(reply)
    })
    .await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").body_bytes_max(4096).start().await.unwrap();
    let messages: Vec<Message> = (0..30).map(|i| Message::new("t", format!("{i:0>300}"))).collect();
    let receipts = producer.send_batch(messages).await.unwrap();
    let asked = a.asked(request::SEND_BATCH_MESSAGE);
    assert!(asked.len() > 2 && asked.iter().all(|command| command.ext("m") == Some("true")));
    assert_eq!(receipts.len(), 30);
    let ids: std::collections::BTreeSet<_> = receipts.iter().map(|r| &r.message_id).collect();
    assert_eq!(ids.len(), 30);
    assert_eq!(receipts[0].offset_message_id, "PLACE0");
    assert_eq!((receipts[1].offset_message_id.as_str(), receipts[1].queue_offset), ("PLACE1", 8));
}

#[tokio::test]
async fn a_batch_that_fails_on_the_way_tells_what_was_stored() {
    let count = AtomicUsize::new(0);
    let a = broker(move |command| match count.fetch_add(1, Ordering::SeqCst) {
        0 => React::Answer(stored(command, 0)),
        _ => refusal(response::MESSAGE_ILLEGAL),
    })
    .await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").body_bytes_max(4096).start().await.unwrap();
    let messages = || (0..30).map(|i| Message::new("t", format!("{i:0>300}"))).collect::<Vec<_>>();
    let Err(Error::Batch(failure)) = producer.send_batch(messages()).await else { panic!() };
    assert_eq!(failure.total, 30);
    assert!((1..30).contains(&failure.sent.len()));
    assert_eq!(failure.cause.code(), Some(13));
    // When nothing at all was stored it is the failure of a send.
    assert!(matches!(producer.send_batch(messages()).await, Err(Error::Send(_))));
}

#[tokio::test]
async fn messages_of_one_key_go_to_one_queue_in_one_try() {
    let (a, b) = (good().await, broker(|_| refusal(response::SYSTEM_BUSY)).await);
    let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let (mut on_a, mut on_b) = (0, 0);
    for key in 0..20 {
        let key = format!("order-{key}");
        let before = sends(&b).len();
        match producer.send_ordered(message(), &key).await {
            Ok(first) => {
                on_a += 1;
                let second = producer.send_ordered(message(), &key).await.unwrap();
                assert_eq!(first.queue, second.queue);
            }
            Err(error) => {
                on_b += 1;
                assert_eq!(error.code(), Some(response::SYSTEM_BUSY));
                assert_eq!(sends(&b).len(), before + 1, "another queue would break the order");
            }
        }
    }
    assert!(on_a > 0 && on_b > 0);
}

#[tokio::test]
async fn a_selector_sees_all_queues_and_must_name_one() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let receipt = producer.send_selected(message(), |queues| queues.len() - 1).await.unwrap();
    assert_eq!(receipt.queue, MessageQueue::new("t", "a", 1));
    let error = producer.send_selected(message(), |_| 2).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let queue = MessageQueue::new("other", "a", 0);
    assert!(matches!(producer.send_to(message(), &queue).await, Err(Error::Invalid(_))));
    let nowhere = MessageQueue::new("t", "z", 0);
    let error = producer.send_to(message(), &nowhere).await.unwrap_err();
    assert_eq!(error.code(), Some(crate::client_code::BROKER_NOT_EXIST), "{error}");
    assert_eq!(producer.queues("t").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_oneway_send_is_marked_so_and_waits_for_no_answer() {
    let a = broker(|_| React::Silence).await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    producer.send_oneway(message()).await.unwrap();
    assert!(a.until_asked(request::SEND_MESSAGE_V2, 1).await[0].is_oneway());
    let (_servers, client) = cluster(vec![("a", nobody().await)]).await;
    let producer = client.producer("g").start().await.unwrap();
    let error = producer.send_oneway(message()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}
