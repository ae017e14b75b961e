//! Consumer groups: made and changed (200), listed (201), deleted (207); who is connected (203, 204, 328); how far a group is (208).

use super::ext::Ext;
use super::fixture::{consumer_beat, shared, soon, stock, topic, unique};
use super::peer::{FORMS, Form, Peer};

#[test]
fn a_group_is_made_changed_and_deleted() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let group = unique("Group");
        let body = serde_json::json!({
            "brokerId": 0, "consumeBroadcastEnable": false, "consumeEnable": true, "consumeFromMinEnable": false,
            "groupName": group, "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": 5, "retryQueueNums": 2,
            "whichBrokerWhenConsumeSlowly": 1,
        });
        peer.call(200, &Ext::none(), body.to_string().as_bytes()).ok();
        assert_eq!(peer.group_config(&group), Some(body.clone()));
        let version = |peer: &mut Peer| {
            peer.call(201, &Ext::none(), &[]).ok().json()["dataVersion"]["counter"]
                .as_i64()
                .expect("a number")
        };
        let before = version(&mut peer);
        let changed = body.to_string().replace("\"retryMaxTimes\":5", "\"retryMaxTimes\":6");
        peer.call(200, &Ext::none(), changed.as_bytes()).ok();
        assert_eq!(peer.group_config(&group).expect("the group")["retryMaxTimes"], 6);
        assert!(version(&mut peer) > before);
        // A 5.x tool sends more fields.
        let more = changed
            .replace('}', ",\"groupSysFlag\":0,\"attributes\":{},\"consumeTimeoutMinute\":15}");
        peer.call(200, &Ext::none(), more.as_bytes()).ok();
        peer.call(207, &Ext::new([("groupName", group.as_str())]), &[]).ok();
        assert_eq!(peer.group_config(&group), None);
        peer.call(207, &Ext::new([("groupName", group.as_str())]), &[]).ok();
        if !stock() {
            for body in [&b""[..], b"{", b"{\"groupName\":\"a b\"}", b"{\"groupName\":\"\"}"] {
                assert_eq!(peer.call(200, &Ext::none(), body).code, 1);
            }
        }
    }
}

#[test]
fn built_in_groups_are_there() {
    let mut peer = shared().peer(Form::Json);
    for group in [
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    ] {
        let config = peer.group_config(group).unwrap_or_else(|| panic!("{group}"));
        if !stock() {
            assert_eq!(config["consumeBroadcastEnable"], true);
        }
    }
}

#[test]
fn a_groups_offsets_go_with_it_when_that_is_asked_for() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    // 4.9 and 5.x call it differently.
    for (field, value, expected) in
        [("removeOffset", "false", 7), ("removeOffset", "true", 0), ("cleanOffset", "true", 0)]
    {
        if stock() && field == "cleanOffset" {
            continue;
        }
        let group = unique("Forget");
        let offset = Ext::queue(&topic, 0).with("consumerGroup", &group);
        peer.call(15, &offset.clone().with("commitOffset", 7), &[]).ok();
        let ext = Ext::new([("groupName", group.as_str()), (field, value)]);
        peer.call(207, &ext, &[]).ok();
        assert_eq!(peer.call(14, &offset, &[]).ok().number("offset"), expected, "{field}={value}");
    }
}

#[test]
fn who_is_connected_to_a_consumer_group_is_told() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (group, topic) = (unique("Conns"), topic(1));
        let remark = format!("the consumer group[{group}] not online");
        let ext = Ext::new([("consumerGroup", group.as_str())]);
        peer.call(203, &ext, &[]).refused(206, &remark);
        let beat = consumer_beat("client-1", &group, &topic, "TagA || TagB", 100);
        let beat = beat.replace("\"codeSet\":[]", "\"codeSet\":[2598919,2598920]");
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        let got = peer.call(203, &ext, &[]).ok().json();
        let expected = serde_json::json!({
            "connectionSet": [{
                "clientAddr": peer.address().to_string(), "clientId": "client-1", "language": "JAVA", "version": 409,
            }],
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionTable": {&topic: {
                "classFilterMode": false, "codeSet": [2_598_919, 2_598_920], "expressionType": "TAG",
                "subString": "TagA || TagB", "subVersion": 100, "tagsSet": ["TagA", "TagB"], "topic": topic,
            }},
        });
        assert_eq!(got, expected);
    }
}

#[test]
fn who_is_connected_to_a_producer_group_is_told() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let group = unique("Producers");
        let ext = Ext::new([("producerGroup", group.as_str())]);
        peer.call(204, &ext, &[]).refused(1, &format!("the producer group[{group}] not exist"));
        let beat =
            format!("{{\"clientID\":\"p-1\",\"producerDataSet\":[{{\"groupName\":\"{group}\"}}]}}");
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        let connection = serde_json::json!({
            "clientAddr": peer.address().to_string(), "clientId": "p-1", "language": "JAVA", "version": 409,
        });
        let got = peer.call(204, &ext, &[]).ok().json();
        assert_eq!(got, serde_json::json!({"connectionSet": [connection]}));
        let all = peer.call(328, &Ext::none(), &[]).ok().json();
        let one = &all["data"][&group][0];
        assert_eq!(one["remoteIP"], format!("/{}", peer.address()));
        assert_eq!(
            (&one["clientId"], &one["language"], &one["version"]),
            (&"p-1".into(), &"JAVA".into(), &409.into())
        );
        assert!(one["lastUpdateTimestamp"].as_i64() > Some(0));
        if stock() {
            continue; // An empty group stays, and is answered with nobody in it.
        }
        // Closed is gone.
        let mut other = shared().peer(form);
        drop(peer);
        soon("the closed producer to leave", || {
            (other.call(204, &ext, &[]).code == 1).then_some(())
        });
    }
}

#[test]
fn how_far_a_group_is_is_told_queue_by_queue() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group) = (topic(2), unique("Far"));
        for _ in 0..3 {
            peer.send(&topic, &[], b"x");
        }
        let messages = peer.pull(&topic, 0, 0);
        let ask = |peer: &mut Peer, topic: Option<&str>| {
            let mut ext = Ext::new([("consumerGroup", group.as_str())]);
            if let Some(topic) = topic {
                ext = ext.with("topic", topic);
            }
            peer.call(208, &ext, &[]).ok().text()
        };
        assert_eq!(ask(&mut peer, None), "{\"consumeTps\":0.0,\"offsetTable\":{}}");
        let commit = Ext::queue(&topic, 0).with("consumerGroup", &group);
        peer.call(15, &commit.with("commitOffset", 2), &[]).ok();
        let rows = [
            format!(
                "{{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"{topic}\"}}:{{\"brokerOffset\":3,\"consumerOffset\":2,\"lastTimestamp\":{}}}",
                messages[1].stored
            ),
            format!(
                "{{\"brokerName\":\"broker-a\",\"queueId\":1,\"topic\":\"{topic}\"}}:{{\"brokerOffset\":0,\"consumerOffset\":0,\"lastTimestamp\":0}}"
            ),
        ];
        for topic in [None, Some(topic.as_str())] {
            let body = ask(&mut peer, topic);
            for row in &rows {
                assert!(body.contains(row), "{row} in {body}");
            }
        }
        // Of a topic that is not there, and of one that the group, being online, does not subscribe to: nothing.
        assert_eq!(ask(&mut peer, Some("NoSuchTopic")), "{\"consumeTps\":0.0,\"offsetTable\":{}}");
        let beat = consumer_beat("c", &group, "AnotherTopic", "*", 1);
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        assert_eq!(ask(&mut peer, Some(&topic)), "{\"consumeTps\":0.0,\"offsetTable\":{}}");
    }
}

#[test]
fn a_lag_is_never_negative_and_nobody_spoils_it_for_the_rest() {
    let mut peer = shared().peer(Form::Json);
    let (topic, gone, group) = (topic(2), topic(1), unique("Lag"));
    peer.send(&topic, &[], b"x");
    peer.send(&gone, &[], b"x");
    // Beyond the end, backwards, on a queue that is taken away, on a topic that is deleted: of a group that is offline.
    peer.commit(&group, &topic, 0, 1_000);
    peer.commit(&group, &topic, 1, -7);
    peer.commit(&group, &topic, 99, 5);
    peer.commit(&group, &gone, 0, 1);
    peer.call(215, &Ext::new([("topic", gone.as_str())]), &[]).ok();
    peer.commit(&group, &gone, 0, 1);
    let ext = Ext::new([("consumerGroup", group.as_str())]);
    let body = peer.call(208, &ext, &[]).ok().text();
    let row = |queue: i32| format!("\"queueId\":{queue},\"topic\":\"{topic}\"}}:{{");
    assert_eq!(body.matches("\"queueId\"").count(), 2, "{body}");
    assert!(body.contains(&format!("{}\"brokerOffset\":0,\"consumerOffset\":0", row(1))), "{body}");
    if !stock() {
        let clamped = format!("{}\"brokerOffset\":1,\"consumerOffset\":1", row(0));
        assert!(body.contains(&clamped), "{body}");
    }
}

#[test]
fn a_group_that_consumes_by_broadcast_does_not_look_as_if_it_lagged() {
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(1), unique("Broadcast"));
    peer.send(&topic, &[], b"x");
    let beat = consumer_beat("c", &group, &topic, "*", 1).replace("CLUSTERING", "BROADCASTING");
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    let ext = Ext::new([("consumerGroup", group.as_str())]);
    let nothing = "{\"consumeTps\":0.0,\"offsetTable\":{}}";
    assert_eq!(peer.call(208, &ext, &[]).ok().text(), nothing);
    if !stock() {
        assert_eq!(peer.call(208, &ext.with("topic", &topic), &[]).ok().text(), nothing);
    }
}
