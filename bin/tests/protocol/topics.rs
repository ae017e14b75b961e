//! Topics: made and changed (17), listed (21, 305, 300), counted (202), deleted (215, 316).

use super::ext::Ext;
use super::fixture::{consumer_beat, shared, soon, stock, topic, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Peer};

#[test]
fn a_topic_is_made_and_changed_as_asked_and_the_name_server_knows_when_answered() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let mut namesrv = Peer::open(shared().namesrv, Form::Json);
        let name = unique("Made");
        let ext = Ext::create_topic(&name, 3)
            .with("writeQueueNums", 5)
            .with("topicFilterType", "MULTI_TAG")
            .with("topicSysFlag", 1)
            .with("order", "true");
        let reply = peer.call(17, &ext, &[]).ok();
        if !stock() {
            assert_eq!(reply.remark, None);
        }
        let config = peer.topic_config(&name).expect("the topic");
        let expected = serde_json::json!({
            // Order is the name server's to say, whatever was asked for.
            "order": false, "perm": 6, "readQueueNums": 3, "topicFilterType": "MULTI_TAG", "topicName": name,
            "topicSysFlag": 1, "writeQueueNums": 5,
        });
        assert_eq!(config, expected);
        let route = namesrv.call(105, &Ext::new([("topic", name.as_str())]), &[]).ok();
        assert_eq!(route.json()["queueDatas"][0]["writeQueueNums"], 5);
        // The tags of such a topic's messages are marked.
        peer.send(&name, &[("TAGS", "a b")], b"x");
        assert_eq!(peer.pull(&name, 0, 0)[0].sys_flag, 2);
        peer.call(17, &Ext::create_topic(&name, 1).with("perm", 4), &[]).ok();
        let config = peer.topic_config(&name).expect("the topic");
        assert_eq!((&config["perm"], &config["writeQueueNums"]), (&4.into(), &1.into()));
        let route = namesrv.call(105, &Ext::new([("topic", name.as_str())]), &[]).ok();
        assert_eq!(route.json()["queueDatas"][0]["perm"], 4);
        // A topic's own write permission is not looked at by a send.
        peer.send(&name, &[], b"x");
    }
}

#[test]
fn names_are_checked_before_a_topic_is_made_or_deleted() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        for code in [17, 215] {
            let mut refused = |name: &str, remark: &str| {
                let ext = Ext::create_topic(name, 1);
                peer.call(code, &ext, &[]).refused(1, remark);
            };
            refused("", "The specified topic is blank.");
            let illegal =
                "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$";
            refused("a b", illegal);
            refused(&"x".repeat(128), "The specified topic is longer than topic max length.");
            for system in
                ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster", "rmq_sys_x"]
            {
                refused(system, &format!("The topic[{system}] is conflict with system topic."));
            }
        }
        for (field, value) in [("topicFilterType", "OTHER"), ("readQueueNums", "x"), ("perm", "x")]
        {
            let ext = Ext::create_topic("Never", 1).with(field, value);
            assert_eq!(peer.call(17, &ext, &[]).code, 1, "{field}");
        }
        if !stock() {
            for queues in [-1, 70_000] {
                assert_eq!(peer.call(17, &Ext::create_topic("Never", queues), &[]).code, 1);
            }
        }
        assert_eq!(peer.topic_config("Never"), None);
    }
}

#[test]
fn the_topic_table_has_every_topic_and_a_version() {
    let mut peer = shared().peer(Form::Json);
    topic(1);
    let table = peer.call(21, &Ext::none(), &[]).ok().json();
    assert!(table["dataVersion"]["counter"].as_i64() > Some(0));
    let topics = table["topicConfigTable"].as_object().expect("an object");
    let expected = [
        ("TBW102", 8, 7),
        ("SELF_TEST_TOPIC", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
    ];
    for (name, queues, perm) in expected {
        let config = &topics[name];
        let got = (&config["readQueueNums"], &config["writeQueueNums"], &config["perm"]);
        assert_eq!(got, (&queues.into(), &queues.into(), &perm.into()), "{name}");
    }
}

#[test]
fn system_topics_are_listed() {
    let mut peer = shared().peer(Form::Json);
    let body = peer.call(305, &Ext::none(), &[]).ok().json();
    let list: Vec<&str> =
        body["topicList"].as_array().expect("a list").iter().filter_map(|t| t.as_str()).collect();
    for name in
        ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster", "RMQ_SYS_TRANS_HALF_TOPIC"]
    {
        assert!(list.contains(&name), "{name} in {list:?}");
    }
}

#[test]
fn a_topics_queues_are_told_with_their_bounds_and_last_store_time() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let name = unique("Stats");
        peer.call(17, &Ext::create_topic(&name, 1).with("writeQueueNums", 2), &[]).ok();
        for _ in 0..3 {
            peer.call(310, &Ext::send(&name).with("e", 1), b"x").ok();
        }
        let ext = Ext::queue(&name, 1);
        soon("visible messages", || (peer.call(30, &ext, &[]).number("offset") == 3).then_some(()));
        let stored = {
            let time = Ext::queue(&name, 1);
            peer.call(32, &time, &[]).ok().number("timestamp")
        };
        let body = peer.call(202, &Ext::new([("topic", name.as_str())]), &[]).ok().text();
        // Keys are objects, without a blank anywhere: Go cuts them as text.
        let row = |queue: i32| {
            format!("{{\"brokerName\":\"broker-a\",\"queueId\":{queue},\"topic\":\"{name}\"}}:")
        };
        assert!(body.starts_with("{\"offsetTable\":{{\"brokerName\""), "{body}");
        let empty =
            format!("{}{{\"lastUpdateTimestamp\":0,\"maxOffset\":0,\"minOffset\":0}}", row(0));
        assert!(body.contains(&empty), "{empty} in {body}");
        let full = format!("{}{{\"lastUpdateTimestamp\":", row(1));
        let at = body.find(&full).unwrap_or_else(|| panic!("{full} in {body}")) + full.len();
        let (last, rest) = body[at..].split_once(',').expect("more fields");
        assert!(last.parse::<i64>().expect("a time") >= stored);
        assert!(rest.starts_with("\"maxOffset\":3,\"minOffset\":0}"), "{rest}");
        let unknown = unique("Unknown");
        let ext = Ext::new([("topic", unknown.as_str())]);
        peer.call(202, &ext, &[]).refused(17, &format!("topic[{unknown}] not exist"));
    }
}

#[test]
fn who_consumes_a_topic_is_told() {
    let mut peer = shared().peer(Form::Json);
    let (topic, online, offline) = (topic(1), unique("Online"), unique("Offline"));
    let ask = |peer: &mut Peer| {
        let body = peer.call(300, &Ext::new([("topic", topic.as_str())]), &[]).ok().json();
        let mut groups: Vec<String> = body["groupList"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|g| g.as_str().expect("text").to_owned())
            .collect();
        groups.sort();
        groups
    };
    assert!(ask(&mut peer).is_empty());
    let beat = consumer_beat("c", &online, &topic, "*", 1);
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    let commit = Ext::queue(&topic, 0).with("consumerGroup", &offline).with("commitOffset", 1);
    peer.call(15, &commit, &[]).ok();
    let mut expected = vec![online, offline];
    expected.sort();
    assert_eq!(ask(&mut peer), expected);
}

#[test]
fn a_deleted_topic_is_gone_and_starts_over_when_it_is_made_again() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group) = (topic(2), unique("Deleted"));
        for _ in 0..3 {
            peer.send(&topic, &[], b"old");
        }
        assert_eq!(peer.pull(&topic, 0, 0).len(), 3);
        let commit = Ext::queue(&topic, 0).with("consumerGroup", &group).with("commitOffset", 3);
        peer.call(15, &commit, &[]).ok();
        peer.call(215, &Ext::new([("topic", topic.as_str())]), &[]).ok();
        assert_eq!(peer.topic_config(&topic), None);
        assert_eq!(peer.call(11, &Ext::pull("TOOLS_CONSUMER", &topic, 0, 0), &[]).code, 17);
        assert_eq!(peer.max_offset(&topic, 0), 0);
        // So is the groups' progress: it would lie beyond what comes. Stock keeps it.
        assert_eq!(peer.committed(&group, &topic, 0), Some(if stock() { 3 } else { 0 }));
        let reply = peer.send(&topic, &[], b"new");
        assert_eq!(reply.number("queueOffset"), 0);
        let messages = peer.pull(&topic, 0, 0);
        assert_eq!((messages.len(), messages[0].text().as_str()), (1, "new"));
        // Deleting what is not there is fine.
        peer.call(215, &Ext::new([("topic", unique("No").as_str())]), &[]).ok();
        peer.call(316, &Ext::none(), &[]).ok();
        assert_eq!(peer.pull(&topic, 0, 0).len(), 1);
    }
}

#[test]
fn a_pull_that_waits_on_a_topic_is_answered_when_that_is_deleted() {
    let (mut consumer, mut admin) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let topic = topic(1);
    let timeout_ms = if stock() { 1_000 } else { 60_000 };
    let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, 0).waiting(timeout_ms);
    consumer.post(11, 0, &ext, &[]);
    consumer.post(30, 0, &Ext::queue(&topic, 0), &[]);
    assert_eq!(consumer.reply().number("offset"), 0, "the pull waits");
    admin.call(215, &Ext::new([("topic", topic.as_str())]), &[]).ok();
    assert_eq!(consumer.reply().code, 17);
    // Made again, it wakes who waits on it.
    admin.call(17, &Ext::create_topic(&topic, 1), &[]).ok();
    consumer.post(11, 0, &ext.waiting(60_000), &[]);
    consumer.post(30, 0, &Ext::queue(&topic, 0), &[]);
    assert_eq!(consumer.reply().number("offset"), 0, "the pull waits");
    admin.send(&topic, &[], b"x");
    assert_eq!(consumer.reply().code, 0);
}

#[test]
fn topics_made_at_the_same_time_are_all_answered_at_once() {
    if stock() {
        return;
    }
    let mut peers: Vec<Peer> = (0..8).map(|_| shared().peer(Form::Json)).collect();
    let began = std::time::Instant::now();
    for peer in &mut peers {
        for _ in 0..3 {
            peer.post(17, 0, &Ext::create_topic(&unique("Together"), 1), &[]);
        }
    }
    for peer in &mut peers {
        for _ in 0..3 {
            peer.reply().ok();
        }
    }
    // A creation waits 3 s for name servers that do not answer, and this one does.
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_millis(2_900), "{took:?}");
}

#[test]
fn requests_without_answers_are_done() {
    let mut peer = shared().peer(Form::Json);
    let name = unique("Oneway");
    peer.post(17, FLAG_ONEWAY, &Ext::create_topic(&name, 1), &[]);
    soon("the topic", || peer.topic_config(&name));
    peer.post(215, FLAG_ONEWAY, &Ext::new([("topic", name.as_str())]), &[]);
    soon("its end", || peer.topic_config(&name).is_none().then_some(()));
    peer.quiet();
}

#[test]
fn a_5x_tool_gets_one_topics_settings() {
    if stock() {
        return;
    }
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = topic(3);
        let body =
            peer.call(351, &Ext::new([("topic", topic.as_str()), ("lo", "false")]), &[]).ok();
        let expected = serde_json::json!({
            "order": false, "perm": 6, "readQueueNums": 3, "topicFilterType": "SINGLE_TAG", "topicName": topic,
            "topicSysFlag": 0, "writeQueueNums": 3,
        });
        assert_eq!(body.json(), expected);
        let unknown = unique("Unknown");
        let reply = peer.call(351, &Ext::new([("topic", unknown.as_str())]), &[]);
        assert_eq!(reply.code, 17, "{reply:?}");
    }
}

#[test]
fn a_group_consumes_all_of_a_topic_that_was_deleted_and_made_again() {
    if stock() {
        return; // It keeps the progress, and the group skips what is there when it comes.
    }
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(1), unique("Again"));
    for _ in 0..20 {
        peer.send(&topic, &[], b"old");
    }
    peer.commit(&group, &topic, 0, 20);
    peer.call(215, &Ext::new([("topic", topic.as_str())]), &[]).ok();
    // A consumer that was not stopped stores its progress on and on.
    peer.commit(&group, &topic, 0, 20);
    // Made by an administrator, or by the first send.
    for made_by_send in [false, true] {
        if !made_by_send {
            peer.call(17, &Ext::create_topic(&topic, 1), &[]).ok();
        }
        for n in 0..10 {
            peer.send(&topic, &[], format!("{n}").as_bytes());
        }
        assert_eq!(peer.committed(&group, &topic, 0), Some(0));
        assert_eq!(peer.pull(&topic, 0, 0).len(), 10);
        let stats = Ext::new([("consumerGroup", group.as_str()), ("topic", topic.as_str())]);
        let body = peer.call(208, &stats, &[]).ok().text();
        assert!(body.contains("\"brokerOffset\":10,\"consumerOffset\":0,"), "{body}");
        peer.commit(&group, &topic, 0, 10);
        peer.call(215, &Ext::new([("topic", topic.as_str())]), &[]).ok();
        peer.commit(&group, &topic, 0, 20);
    }
    // Progress that a topic's messages are there for outlives its entry in the table.
    let kept = super::fixture::topic(1);
    peer.send(&kept, &[], b"x");
    peer.commit(&group, &kept, 0, 1);
    peer.call(17, &Ext::create_topic(&kept, 2), &[]).ok();
    assert_eq!(peer.committed(&group, &kept, 0), Some(1));
}

#[test]
fn what_waits_in_queues_that_are_taken_away_stays_and_comes_back_with_them() {
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(8), unique("Shrink"));
    for queue in 0..8 {
        peer.call(310, &Ext::send(&topic).with("e", queue), format!("{queue}").as_bytes()).ok();
        peer.commit(&group, &topic, queue, 1);
    }
    let set = |peer: &mut Peer, read: i32, write: i32| {
        let ext = Ext::create_topic(&topic, read).with("writeQueueNums", write);
        peer.call(17, &ext, &[]).ok();
    };
    set(&mut peer, 8, 4);
    for queue in 0..8 {
        assert_eq!(peer.pull(&topic, queue, 0)[0].text(), queue.to_string());
    }
    set(&mut peer, 4, 4);
    let ext = Ext::pull("TOOLS_CONSUMER", &topic, 5, 0);
    assert_eq!(peer.call(11, &ext, &[]).code, 1);
    set(&mut peer, 8, 8);
    for queue in 0..8 {
        assert_eq!(peer.pull(&topic, queue, 0)[0].text(), queue.to_string());
        assert_eq!(peer.committed(&group, &topic, queue), Some(1));
        assert_eq!(peer.max_offset(&topic, queue), 1);
    }
}
