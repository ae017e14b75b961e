//! Requests that are answered by a message: one outcome each, whatever comes first.

use super::*;
use crate::message::names;

/// What a broker pushes when somebody replied to that request.
fn push(sent: &Command, body: &'static str) -> Command {
    let id = property(sent, names::CORRELATION_ID).unwrap();
    let properties = format!("{}\u{1}{id}\u{2}MSG_TYPE\u{1}reply", names::CORRELATION_ID);
    Command::request(request::PUSH_REPLY_MESSAGE_TO_CLIENT)
        .with_ext("topic", "C_REPLY_TOPIC")
        .with_ext("sysFlag", 0)
        .with_ext("properties", properties)
        .with_ext("bornHost", "10.0.0.9:5000")
        .with_ext("storeTimestamp", 5)
        .with_body(body)
}

async fn start(client: &Client) -> Producer {
    client.producer("g").send_timeout(LONG).retries(0).start().await.unwrap()
}

fn ask(producer: &Producer) -> tokio::task::JoinHandle<Result<crate::ReceivedMessage>> {
    let producer = producer.clone();
    tokio::spawn(async move { producer.request(message(), LONG).await })
}

#[tokio::test]
async fn a_request_says_who_waits_and_gets_the_reply_with_its_host_and_time() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let waiting = ask(&producer);
    let sent = a.until_asked(request::SEND_MESSAGE_V2, 1).await.remove(0);
    assert_eq!(property(&sent, names::REPLY_TO_CLIENT), Some(client.id()));
    assert_eq!(property(&sent, names::TTL), Some("20000"));
    assert!(!a.asked(request::HEART_BEAT).is_empty(), "the broker has to know whom to push to");
    assert_eq!(a.ask(push(&sent, "pong")).await.code, 0);
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(&reply.body[..], b"pong");
    assert_eq!(reply.born_host, "10.0.0.9:5000".parse().unwrap());
    assert!(reply.property(names::ARRIVE_TIME).is_some());
    // A second reply has nobody to go to, and harms nobody.
    assert_eq!(a.ask(push(&sent, "again")).await.code, 0);
}

#[tokio::test]
async fn a_reply_before_the_answer_to_the_send_is_the_outcome() {
    let (a, gate) = gated().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let waiting = ask(&producer);
    let sent = a.until_asked(request::SEND_MESSAGE_V2, 1).await.remove(0);
    a.ask(push(&sent, "early")).await;
    assert_eq!(&waiting.await.unwrap().unwrap().body[..], b"early");
    gate.add_permits(1);
    // The place in the bounds is free, and the late answer found nobody.
    gate.add_permits(1);
    producer.send(message()).await.unwrap();
}

#[tokio::test]
async fn a_send_that_fails_is_the_outcome_and_a_reply_after_it_is_not() {
    let a = broker(|_| refusal(response::MESSAGE_ILLEGAL)).await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let error = producer.request(message(), LONG).await.unwrap_err();
    assert_eq!(error.code(), Some(13));
    let sent = sends(&a).remove(0);
    assert_eq!(a.ask(push(&sent, "late")).await.code, 0);
}

#[tokio::test]
async fn a_reply_counts_although_the_answer_to_the_send_was_lost() {
    let a = broker(|_| React::Silence).await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let waiting = ask(&producer);
    let sent = a.until_asked(request::SEND_MESSAGE_V2, 1).await.remove(0);
    a.ask(push(&sent, "there")).await;
    assert_eq!(&waiting.await.unwrap().unwrap().body[..], b"there");
}

#[tokio::test]
async fn without_a_reply_the_error_says_so_and_the_table_is_empty() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let error = producer.request(message(), Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, Error::NoReply { .. }), "{error}");
    assert_eq!(error.code(), Some(crate::client_code::REQUEST_TIMEOUT));
    let sent = a.until_asked(request::SEND_MESSAGE_V2, 1).await.remove(0);
    assert_eq!(a.ask(push(&sent, "late")).await.code, 0);
    let dropped = ask(&producer);
    a.until_asked(request::SEND_MESSAGE_V2, 2).await;
    dropped.abort();
    let _ = dropped.await;
    assert!(client.instance().replies.is_empty());
}

#[tokio::test]
async fn replies_find_their_requests_among_many() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let waiting: Vec<_> = (0..20)
        .map(|number: u32| {
            let producer = producer.clone();
            tokio::spawn(async move {
                let message = Message::new("t", number.to_string());
                let reply = producer.request(message, LONG).await.unwrap();
                assert_eq!(&reply.body[..], number.to_string().as_bytes());
            })
        })
        .collect();
    let mut asked = a.until_asked(request::SEND_MESSAGE_V2, 20).await;
    fastrand::shuffle(&mut asked);
    for sent in asked {
        a.tell(push(&sent, "").with_body(sent.body.clone()));
    }
    for one in waiting {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn a_reply_is_sent_by_its_own_code_to_the_requesters_cluster() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client).await;
    let text =
        "CLUSTER\u{1}C\u{2}CORRELATION_ID\u{1}id\u{2}REPLY_TO_CLIENT\u{1}me\u{2}TTL\u{1}3000";
    let record = crate::fake::record("t", 0, b"?", text);
    let asked = crate::ReceivedMessage::decode_all(&record, "a").unwrap().remove(0);
    producer.send(Message::reply_to(&asked, "!").unwrap()).await.unwrap();
    let sent = a.asked(request::SEND_REPLY_MESSAGE_V2).remove(0);
    assert_eq!(sent.ext("b"), Some("C_REPLY_TOPIC"));
    assert_eq!(property(&sent, names::CORRELATION_ID), Some("id"));
}
