//! Heartbeats (34) of clients in every language, unregistration (35), who is in a group (38), who is told of it (40), and who may start (46).

use std::time::Duration;

use super::ext::Ext;
use super::fixture::{Own, consumer_beat, shared, soon, stock, topic, unique};
use super::peer::{CPP, FLAG_ONEWAY, FORMS, Form, Frame, GO, Peer};

fn beat(peer: &mut Peer, body: &str) {
    let reply = peer.call(34, &Ext::none(), body.as_bytes()).ok();
    assert!(reply.body.is_empty());
}

fn members(peer: &mut Peer, group: &str) -> Vec<String> {
    let reply = peer.call(38, &Ext::new([("consumerGroup", group)]), &[]).ok();
    let body = reply.json();
    let ids = body["consumerIdList"].as_array().expect("a list");
    let mut ids: Vec<String> = ids.iter().map(|id| id.as_str().expect("text").to_owned()).collect();
    ids.sort();
    ids
}

/// Asserts that a broker's request tells of a change in the group.
#[track_caller]
fn told(request: &Frame, group: &str) {
    assert_eq!((request.code, request.flag), (40, FLAG_ONEWAY), "{request:?}");
    assert_eq!(request.ext("consumerGroup"), Some(group));
    assert!(request.body.is_empty());
    assert!(request.version == 409 || stock(), "{request:?}");
}

#[test]
fn every_member_hears_of_a_new_one_and_of_one_that_leaves() {
    for form in FORMS {
        let (group, topic) = (unique("Hear"), topic(1));
        let mut first = shared().peer(form);
        beat(&mut first, &consumer_beat("c1", &group, &topic, "*", 1));
        told(&first.request(), &group);
        assert_eq!(members(&mut first, &group), ["c1"]);
        let mut second = shared().peer(form);
        beat(&mut second, &consumer_beat("c2", &group, &topic, "*", 1));
        told(&second.request(), &group);
        told(&first.request(), &group);
        assert_eq!(members(&mut second, &group), ["c1", "c2"]);
        // The same again changes nothing.
        beat(&mut second, &consumer_beat("c2", &group, &topic, "*", 1));
        assert!(first.take_requests().is_empty() && second.take_requests().is_empty());
        // One unregisters.
        let ext = Ext::new([
            ("clientID", "c2"),
            ("consumerGroup", group.as_str()),
            ("producerGroup", ""),
        ]);
        second.call(35, &ext, &[]).ok();
        told(&first.request(), &group);
        assert!(second.take_requests().is_empty());
        assert_eq!(members(&mut first, &group), ["c1"]);
        first
            .call(35, &Ext::new([("clientID", "c1"), ("consumerGroup", group.as_str())]), &[])
            .ok();
        let remark = format!("no consumer for this group, {group}");
        first.call(38, &Ext::new([("consumerGroup", group.as_str())]), &[]).refused(1, &remark);
    }
}

#[test]
fn a_closed_connection_leaves_its_groups_and_the_rest_hear_of_it() {
    let (group, topic) = (unique("Close"), topic(1));
    let (mut stays, mut goes) = (shared().peer(Form::Json), shared().peer(Form::Json));
    beat(&mut stays, &consumer_beat("stays", &group, &topic, "*", 1));
    beat(&mut goes, &consumer_beat("goes", &group, &topic, "*", 1));
    told(&stays.request(), &group);
    told(&stays.request(), &group);
    // As Go does it: without a word.
    drop(goes);
    told(&stays.request(), &group);
    assert_eq!(members(&mut stays, &group), ["stays"]);
}

#[test]
fn topics_that_come_and_go_are_told_and_expressions_are_not() {
    let (group, topic, other) = (unique("Topics"), topic(1), topic(1));
    let mut peer = shared().peer(Form::Json);
    beat(&mut peer, &consumer_beat("c", &group, &topic, "*", 1));
    told(&peer.request(), &group);
    beat(&mut peer, &consumer_beat("c", &group, &topic, "TagA", 2));
    assert!(peer.take_requests().is_empty());
    beat(&mut peer, &consumer_beat("c", &group, &other, "*", 3));
    assert_eq!(peer.take_requests().len(), 1);
}

#[test]
fn an_expression_is_replaced_by_a_newer_version_alone() {
    let (group, topic) = (unique("Newer"), topic(1));
    let mut peer = shared().peer(Form::Json);
    let expression = |peer: &mut Peer| {
        let reply = peer.call(203, &Ext::new([("consumerGroup", group.as_str())]), &[]).ok();
        reply.json()["subscriptionTable"][&topic]["subString"].as_str().expect("text").to_owned()
    };
    beat(&mut peer, &consumer_beat("c", &group, &topic, "A", 10));
    for (version, sent, expected) in [(10, "B", "A"), (9, "C", "A"), (11, "D", "D")] {
        beat(&mut peer, &consumer_beat("c", &group, &topic, sent, version));
        assert_eq!(expression(&mut peer), expected);
    }
}

#[test]
fn a_group_that_wants_no_word_of_members_hears_of_broken_connections_alone() {
    let (group, topic) = (unique("Silent"), topic(1));
    let mut peer = shared().peer(Form::Json);
    let off = format!("{{\"groupName\":\"{group}\",\"notifyConsumerIdsChangedEnable\":false}}");
    peer.call(200, &Ext::none(), off.as_bytes()).ok();
    let mut second = shared().peer(Form::Json);
    beat(&mut peer, &consumer_beat("c1", &group, &topic, "*", 1));
    beat(&mut second, &consumer_beat("c2", &group, &topic, "*", 1));
    let leave = Ext::new([("clientID", "c2"), ("consumerGroup", group.as_str())]);
    second.call(35, &leave, &[]).ok();
    assert!(peer.take_requests().is_empty() && second.take_requests().is_empty());
    beat(&mut second, &consumer_beat("c2", &group, &topic, "*", 1));
    drop(second);
    told(&peer.request(), &group);
    assert_eq!(members(&mut peer, &group), ["c1"]);
}

#[test]
fn nobody_is_told_where_the_broker_has_it_switched_off() {
    let own = Own::start("silent", "");
    let mut peer = own.place.peer(Form::Json);
    peer.call(25, &Ext::none(), b"notifyConsumerIdsChangedEnable=false\n").ok();
    beat(&mut peer, &consumer_beat("c1", "G", "T", "*", 1));
    assert!(peer.take_requests().is_empty());
    peer.call(25, &Ext::none(), b"notifyConsumerIdsChangedEnable=true\n").ok();
    beat(&mut own.place.peer(Form::Json), &consumer_beat("c2", "G", "T", "*", 1));
    told(&peer.request(), "G");
}

#[test]
fn a_first_heartbeat_makes_the_group_and_its_retry_topic() {
    let (group, unit) = (unique("First"), unique("Unit"));
    let mut peer = shared().peer(Form::Json);
    assert_eq!(peer.group_config(&group), None);
    let body = consumer_beat("c", &group, "T", "*", 1);
    beat(&mut peer, &body);
    let config = peer.group_config(&group).expect("the group");
    let expected = serde_json::json!({
        "brokerId": 0, "consumeBroadcastEnable": true, "consumeEnable": true, "consumeFromMinEnable": true,
        "groupName": group, "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": 16, "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    });
    assert_eq!(config, expected);
    let retry = peer.topic_config(&format!("%RETRY%{group}")).expect("the retry topic");
    assert_eq!((&retry["readQueueNums"], &retry["writeQueueNums"]), (&1.into(), &1.into()));
    assert_eq!((&retry["perm"], &retry["topicSysFlag"]), (&6.into(), &0.into()));
    let body = body.replace(&group, &unit).replace("\"unitMode\":false", "\"unitMode\":true");
    beat(&mut peer, &body);
    let retry = peer.topic_config(&format!("%RETRY%{unit}")).expect("the retry topic");
    assert_eq!(retry["topicSysFlag"], 2);
}

#[test]
fn heartbeats_of_every_language_are_understood() {
    let topic = topic(1);
    let group = |name: &str| unique(name);
    let (java5, go, cpp) = (group("Java5"), group("Go"), group("Cpp"));
    let mut peer = shared().peer(Form::Json);
    peer.version = 479;
    let body = format!(
        r#"{{"clientID":"192.0.2.2@12604#1","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{java5}","messageModel":"BROADCASTING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1,"tagsSet":["TagA"],"topic":"{topic}"}}],"unitMode":false}}],"heartbeatFingerprint":0,"producerDataSet":[{{"groupName":"P{java5}"}},{{"groupName":"CLIENT_INNER_PRODUCER"}}],"withoutSub":false}}"#
    );
    beat(&mut peer, &body);
    let connection = |peer: &mut Peer, group: &str| {
        peer.call(203, &Ext::new([("consumerGroup", group)]), &[]).ok().json()
    };
    let got = connection(&mut peer, &java5);
    assert_eq!(
        (&got["messageModel"], &got["consumeFromWhere"]),
        (&"BROADCASTING".into(), &"CONSUME_FROM_LAST_OFFSET".into())
    );
    assert_eq!(got["connectionSet"][0]["version"], 479);
    let ext = Ext::new([("producerGroup", format!("P{java5}").as_str())]);
    assert_eq!(
        peer.call(204, &ext, &[]).ok().json()["connectionSet"][0]["clientId"],
        "192.0.2.2@12604#1"
    );

    let mut peer = shared().peer(Form::Json);
    (peer.language, peer.version) = (GO, 317);
    let body = format!(
        r#"{{"clientID":"go@2","producerDataSet":[],"consumerDataSet":[{{"groupName":"{go}","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{{"classFilterMode":false,"topic":"{topic}","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],"subVersion":1700000000000000001,"expressionType":"TAG"}}],"unitMode":false}}]}}"#
    );
    beat(&mut peer, &body);
    let got = connection(&mut peer, &go);
    assert_eq!(got["connectionSet"][0]["language"], "GO");
    let subscription = &got["subscriptionTable"][&topic];
    assert_eq!(
        (&subscription["subVersion"], &subscription["codeSet"]),
        (&1_700_000_000_000_000_001i64.into(), &serde_json::json!([2_598_919]))
    );

    let mut peer = shared().peer(Form::Json);
    (peer.language, peer.version) = (CPP, 333);
    let body = format!(
        "{{\"clientID\":\"c2@cpp\",\"consumerDataSet\":[{{\"consumeFromWhere\":0,\"consumeType\":1,\"groupName\":\"{cpp}\",\"messageModel\":1,\"subscriptionDataSet\":[{{\"subString\":\"*\",\"subVersion\":\"100\",\"topic\":\"{topic}\"}}]}}]}}\n"
    );
    beat(&mut peer, &body);
    let got = connection(&mut peer, &cpp);
    assert_eq!(
        (&got["consumeType"], &got["messageModel"]),
        (&"CONSUME_PASSIVELY".into(), &"CLUSTERING".into())
    );
    assert_eq!(got["consumeFromWhere"], "CONSUME_FROM_LAST_OFFSET");
    assert_eq!(got["subscriptionTable"][&topic]["subVersion"], 100);
    // It unregisters with empty names beside the one it means.
    let ext =
        Ext::new([("clientID", "c2@cpp"), ("consumerGroup", cpp.as_str()), ("producerGroup", "")]);
    peer.call(35, &ext, &[]).ok();
    assert_eq!(peer.call(38, &Ext::new([("consumerGroup", cpp.as_str())]), &[]).code, 1);
}

#[test]
fn a_heartbeat_that_cannot_be_read_is_1() {
    let mut peer = shared().peer(Form::Json);
    for body in [&b""[..], b"{\"clientID\":", b"[]", b"\xff\xfe"] {
        let reply = peer.call(34, &Ext::none(), body);
        assert_eq!(reply.code, 1, "{body:?}: {reply:?}");
    }
}

#[test]
fn the_same_client_on_two_connections_counts_twice() {
    let (group, topic) = (unique("Twice"), topic(1));
    let mut peers = [shared().peer(Form::Json), shared().peer(Form::Json)];
    for peer in &mut peers {
        beat(peer, &consumer_beat("same", &group, &topic, "*", 1));
    }
    assert_eq!(members(&mut peers[0], &group), ["same", "same"]);
    let [mut first, second] = peers;
    drop(second);
    soon("the closed one to leave", || (members(&mut first, &group) == ["same"]).then_some(()));
}

#[test]
fn tag_subscriptions_may_start_and_others_may_not() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let mut check = |kind: &str, expression: &str| {
            let body = serde_json::json!({
                "clientId": "c", "group": "G",
                "subscriptionData": {
                    "classFilterMode": false, "codeSet": [], "expressionType": kind, "subString": expression,
                    "subVersion": 1, "tagsSet": [], "topic": "T",
                },
            });
            peer.call(46, &Ext::none(), body.to_string().as_bytes())
        };
        check("TAG", "TagA").ok();
        let remark = "The broker does not support consumer to filter message by SQL92";
        check("SQL92", "a > 5").refused(1, remark);
        check("OTHER", "x")
            .refused(1, "The broker does not support consumer to filter message by OTHER");
        peer.call(46, &Ext::none(), b"{\"clientId\":\"c\",\"group\":\"G\"}").ok();
        if !stock() {
            assert_eq!(peer.call(46, &Ext::none(), b"").code, 1);
        }
    }
}

#[test]
fn a_oneway_unregistration_is_done_and_not_answered() {
    let (group, topic) = (unique("OnewayLeave"), topic(1));
    let mut peer = shared().peer(Form::Json);
    beat(&mut peer, &consumer_beat("c", &group, &topic, "*", 1));
    told(&peer.request(), &group);
    peer.post(
        35,
        FLAG_ONEWAY,
        &Ext::new([("clientID", "c"), ("consumerGroup", group.as_str())]),
        &[],
    );
    let reply = peer.call(38, &Ext::new([("consumerGroup", group.as_str())]), &[]);
    assert_eq!(reply.code, 1, "{reply:?}");
    assert!(peer.request_within(Duration::from_millis(50)).is_none());
}

#[test]
fn members_that_subscribe_differently_are_counted_and_named_in_the_log() {
    let mut own = Own::start("conflict", "");
    let mut first = own.place.peer(Form::Json);
    let mut second = own.place.peer(Form::Json);
    let count = |peer: &mut Peer| {
        let table = peer.call(28, &Ext::none(), &[]).ok().json();
        let text = table["table"]["ringmqSubscriptionConflicts"].as_str().expect("text").to_owned();
        text.parse::<u64>().expect("a number")
    };
    beat(&mut first, &consumer_beat("c1", "Same", "T", "A", 1));
    beat(&mut second, &consumer_beat("c2", "Same", "T", "A", 2));
    assert_eq!(count(&mut first), 0);
    beat(&mut second, &consumer_beat("c2", "Same", "T", "B", 3));
    beat(&mut first, &consumer_beat("c1", "Same", "T", "A", 1));
    assert_eq!(count(&mut first), 2);
    beat(&mut first, &consumer_beat("c1", "Other", "U", "*", 1));
    beat(&mut second, &consumer_beat("c1", "Other", "U", "*", 1));
    assert_eq!(count(&mut first), 2);
    soon("both lines in the log", || {
        let log = own.broker.process().log_text();
        let both =
            ["consumer group Same: c2 subscribes otherwise", "client id c1 on two connections"];
        both.iter().all(|line| log.contains(line)).then_some(())
    });
}
