//! LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

use super::ext::Ext;
use super::fixture::{shared, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Peer};

fn body(client: &str, group: &str, queues: &[(&str, i32)]) -> String {
    let queues: Vec<serde_json::Value> = queues
        .iter()
        .map(|(broker, id)| serde_json::json!({"brokerName": broker, "queueId": id, "topic": "L"}))
        .collect();
    serde_json::json!({"clientId": client, "consumerGroup": group, "mqSet": queues}).to_string()
}

fn lock(peer: &mut Peer, client: &str, group: &str, queues: &[(&str, i32)]) -> Vec<(String, i64)> {
    let reply = peer.call(41, &Ext::none(), body(client, group, queues).as_bytes()).ok();
    let held = reply.json();
    let held = held["lockOKMQSet"].as_array().expect("a list");
    let mut held: Vec<(String, i64)> = held
        .iter()
        .map(|q| {
            assert_eq!(q["topic"], "L");
            (
                q["brokerName"].as_str().expect("text").to_owned(),
                q["queueId"].as_i64().expect("a number"),
            )
        })
        .collect();
    held.sort();
    held
}

fn on(broker: &str, ids: &[i64]) -> Vec<(String, i64)> {
    ids.iter().map(|id| (broker.to_owned(), *id)).collect()
}

#[test]
fn a_queue_is_held_by_one_client_until_it_lets_go() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let group = unique("Lock");
        let queues = [("broker-a", 0), ("broker-a", 1)];
        assert_eq!(lock(&mut peer, "c1", &group, &queues), on("broker-a", &[0, 1]));
        // Held on, and refreshed.
        assert_eq!(lock(&mut peer, "c1", &group, &queues), on("broker-a", &[0, 1]));
        assert!(lock(&mut peer, "c2", &group, &queues).is_empty());
        assert_eq!(
            lock(&mut peer, "c2", &group, &[("broker-a", 1), ("broker-a", 2)]),
            on("broker-a", &[2])
        );
        // Another group, and another broker's name, is another queue.
        assert_eq!(lock(&mut peer, "c2", &unique("Lock"), &queues), on("broker-a", &[0, 1]));
        assert_eq!(lock(&mut peer, "c2", &group, &[("broker-b", 0)]), on("broker-b", &[0]));
        // Nobody lets go for another.
        let reply = peer.call(42, &Ext::none(), body("c2", &group, &queues).as_bytes()).ok();
        assert!(reply.body.is_empty());
        assert!(lock(&mut peer, "c2", &group, &queues).is_empty());
        peer.call(42, &Ext::none(), body("c1", &group, &queues[..1]).as_bytes()).ok();
        assert_eq!(lock(&mut peer, "c2", &group, &queues), on("broker-a", &[0]));
    }
}

#[test]
fn a_lock_belongs_to_the_client_and_not_to_its_connection() {
    let group = unique("Lock");
    let mut peer = shared().peer(Form::Json);
    assert_eq!(lock(&mut peer, "c1", &group, &[("broker-a", 0)]), on("broker-a", &[0]));
    drop(peer);
    let mut peer = shared().peer(Form::Json);
    assert!(lock(&mut peer, "c2", &group, &[("broker-a", 0)]).is_empty());
    assert_eq!(lock(&mut peer, "c1", &group, &[("broker-a", 0)]), on("broker-a", &[0]));
}

#[test]
fn the_answer_names_queues_in_stocks_field_order() {
    let mut peer = shared().peer(Form::Json);
    let reply =
        peer.call(41, &Ext::none(), body("c", &unique("Lock"), &[("broker-a", 3)]).as_bytes()).ok();
    let expected = r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"L"}]}"#;
    assert_eq!(reply.text(), expected);
}

#[test]
fn a_oneway_unlock_is_done_and_not_answered() {
    let group = unique("Lock");
    let mut peer = shared().peer(Form::Json);
    lock(&mut peer, "c1", &group, &[("broker-a", 0)]);
    let unlock = body("c1", &group, &[("broker-a", 0)]);
    peer.post(42, FLAG_ONEWAY, &Ext::none(), unlock.as_bytes());
    assert_eq!(lock(&mut peer, "c2", &group, &[("broker-a", 0)]), on("broker-a", &[0]));
}

#[test]
fn a_body_that_cannot_be_read_is_1() {
    let mut peer = shared().peer(Form::Json);
    for code in [41, 42] {
        for body in [&b""[..], b"{", b"3"] {
            assert_eq!(peer.call(code, &Ext::none(), body).code, 1);
        }
    }
}
