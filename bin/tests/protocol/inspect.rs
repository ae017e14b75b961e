//! Progress looked at and copied (303, 308, 314, 317), and queues from within (306, 321).

use super::ext::Ext;
use super::fixture::{consumer_beat, shared, stock, topic, unique};
use super::peer::{FORMS, Form, Peer};

/// Three messages on queue 0, and their store times.
fn three(peer: &mut Peer, topic: &str) -> Vec<i64> {
    for tag in ["TagA", "TagB", "TagA"] {
        peer.send(topic, &[("TAGS", tag)], b"x");
    }
    peer.pull(topic, 0, 0).iter().map(|message| message.stored).collect()
}

#[test]
fn how_old_a_groups_next_message_is_is_told_queue_by_queue() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group) = (topic(2), unique("Span"));
        let ext = Ext::new([("topic", topic.as_str()), ("group", group.as_str())]);
        let times = three(&mut peer, &topic);
        let ask = |peer: &mut Peer| {
            let body = peer.call(303, &ext, &[]).ok().json();
            let mut spans = body["consumeTimeSpanSet"].as_array().expect("a list").clone();
            spans.sort_by_key(|span| span["messageQueue"]["queueId"].as_i64());
            assert_eq!(spans.len(), 2);
            spans.remove(0)
        };
        let span = ask(&mut peer);
        assert_eq!(span["messageQueue"]["topic"], topic.as_str());
        assert_eq!(span["messageQueue"]["brokerName"], "broker-a");
        assert_eq!(
            (&span["minTimeStamp"], &span["maxTimeStamp"]),
            (&times[0].into(), &times[2].into())
        );
        // Nothing consumed: the first message's time stands for it, and its age is the delay.
        assert_eq!(span["consumeTimeStamp"], times[0]);
        assert!(span["delayTime"].as_i64() >= Some(0));
        peer.commit(&group, &topic, 0, 2);
        assert_eq!(ask(&mut peer)["consumeTimeStamp"], times[1]);
        peer.commit(&group, &topic, 0, 3);
        let span = ask(&mut peer);
        assert_eq!((&span["consumeTimeStamp"], &span["delayTime"]), (&times[2].into(), &0.into()));
        let unknown = unique("Unknown");
        let ext = ext.clone().with("topic", &unknown);
        peer.call(303, &ext, &[]).refused(17, &format!("topic[{unknown}] not exist"));
    }
}

#[test]
fn the_least_progress_of_all_groups_is_told_with_bare_queue_ids() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(2);
    let [near, far, last] = ["Near", "Far", "Last"].map(unique);
    three(&mut peer, &topic);
    for (group, offsets) in [(&near, [1, 5]), (&far, [3, 4]), (&last, [0, 9])] {
        for (queue, offset) in offsets.into_iter().enumerate() {
            peer.commit(group, &topic, queue as i32, offset);
        }
    }
    let ask = |peer: &mut Peer, compare: &str, filter: Option<&str>| {
        let mut ext = Ext::new([("topic", topic.as_str()), ("compareGroup", compare)]);
        if let Some(filter) = filter {
            ext = ext.with("filterGroups", filter);
        }
        peer.call(308, &ext, &[]).ok().text()
    };
    assert_eq!(ask(&mut peer, &far, None), r#"{"correctionOffsets":{0:0,1:4}}"#);
    if stock() {
        return; // The groups to be left out lose their progress there.
    }
    assert_eq!(ask(&mut peer, &far, Some(&last)), r#"{"correctionOffsets":{0:1,1:4}}"#);
    // Where the one compared with is behind all others, there is nothing to correct.
    let both = format!("{last},{near}");
    assert_eq!(
        ask(&mut peer, &last, Some(&both)),
        r#"{"correctionOffsets":{0:9223372036854775807,1:4}}"#
    );
    for (group, offset) in [(&near, 1), (&far, 3), (&last, 0)] {
        assert_eq!(peer.committed(group, &topic, 0), Some(offset));
    }
    assert_eq!(ask(&mut peer, &unique("Nobody"), None), r#"{"correctionOffsets":{0:0,1:4}}"#);
}

#[test]
fn a_group_begins_where_another_one_is() {
    let mut peer = shared().peer(Form::Json);
    let topics = [topic(2), topic(1)];
    let [from, to, all] = ["From", "To", "All"].map(unique);
    for topic in &topics {
        three(&mut peer, topic);
        peer.commit(&from, topic, 0, 2);
    }
    peer.commit(&from, &topics[0], 1, 7);
    let ext = Ext::new([("srcGroup", from.as_str()), ("destGroup", &to), ("topic", &topics[0])])
        .with("offline", "false");
    peer.call(314, &ext, &[]).ok();
    assert_eq!(peer.committed(&to, &topics[0], 0), Some(2));
    assert_eq!(peer.committed(&to, &topics[0], 1), Some(7));
    assert_eq!(peer.committed(&to, &topics[1], 0), Some(0), "another topic's");
    let ext = Ext::new([("srcGroup", from.as_str()), ("destGroup", &all)]).with("offline", "false");
    peer.call(314, &ext, &[]).ok();
    if stock() {
        return; // Without a topic it copies nothing, and says that it did.
    }
    for topic in &topics {
        assert_eq!(peer.committed(&all, topic, 0), Some(2));
    }
    // What does not exist has nothing to give.
    let ext = Ext::new([("srcGroup", "NoSuchGroup"), ("destGroup", &all), ("topic", &topics[0])]);
    peer.call(314, &ext.with("offline", "false"), &[]).ok();
    assert_eq!(peer.committed(&all, &topics[0], 0), Some(2));
}

#[test]
fn how_far_every_group_is_is_told_in_one_answer() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group, idle) = (topic(1), unique("Stats"), unique("Idle"));
        for group in [&group, &idle] {
            let body = format!("{{\"groupName\":\"{group}\"}}");
            peer.call(200, &Ext::none(), body.as_bytes()).ok();
        }
        let times = three(&mut peer, &topic);
        peer.commit(&group, &topic, 0, 2);
        let body = peer.call(317, &Ext::new([("isOrder", "false")]), &[]).ok().text();
        let row = format!(
            "{{\"{group}\":[{{\"consumeTps\":0.0,\"offsetTable\":{{{{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"{topic}\"}}:{{\"brokerOffset\":3,\"consumerOffset\":2,\"lastTimestamp\":{}}}}}}}]}}",
            times[1]
        );
        assert!(body.contains(&row), "{row} in {body}");
        assert!(body.contains(&format!("{{\"{idle}\":[]}}")), "{body}");
        let address = format!("{{\"brokerAddr\":\"{}\",\"consumeStatsList\":[", shared().main);
        assert!(body.starts_with(&address), "{body}");
        // No topic of these is ordered.
        let body = peer.call(317, &Ext::new([("isOrder", "true")]), &[]).ok().text();
        assert!(body.contains(&format!("{{\"{group}\":[]}}")), "{body}");
    }
}

#[test]
fn a_queues_units_are_shown_with_what_a_groups_filter_makes_of_them() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group) = (topic(1), unique("Units"));
        three(&mut peer, &topic);
        let records = peer.pull(&topic, 0, 0);
        let ask = |peer: &mut Peer, ext: Ext| peer.call(321, &ext, &[]).ok();
        let ext = Ext::queue(&topic, 0).with("index", 1).with("count", 10);
        let body = ask(&mut peer, ext.clone()).json();
        assert_eq!((&body["minQueueIndex"], &body["maxQueueIndex"]), (&0.into(), &3.into()));
        let units = body["queueData"].as_array().expect("a list");
        assert_eq!(units.len(), 2);
        for (unit, record) in units.iter().zip(&records[1..]) {
            assert_eq!(unit["physicOffset"], record.physical_offset);
        }
        // `TagB` and `TagA` in Java's hash.
        let codes: Vec<i64> =
            units.iter().map(|u| u["tagsCode"].as_i64().expect("a code")).collect();
        assert_eq!(codes, [2_598_920, 2_598_919]);
        let ext = ext.with("index", 0).with("count", 3).with("consumerGroup", &group);
        let body = ask(&mut peer, ext.clone()).json();
        assert_eq!(body["filterData"], format!("{group}@{topic} is not online!"));
        let beat = consumer_beat("c", &group, &topic, "TagA", 1);
        let beat = beat.replace("\"codeSet\":[]", "\"codeSet\":[2598919]");
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        let body = ask(&mut peer, ext.clone()).json();
        assert_eq!(
            (&body["filterData"], &body["subscriptionData"]["subString"]),
            (&"null".into(), &"TagA".into())
        );
        let taken: Vec<bool> = body["queueData"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|unit| unit["eval"].as_bool().expect("a bool"))
            .collect();
        // Stock evaluates expressions alone.
        assert_eq!(taken, if stock() { [false; 3] } else { [true, false, true] });
        let remark = format!("9@{topic} is not exist!");
        if !stock() {
            // Stock makes the queue instead.
            peer.call(321, &ext.clone().with("queueId", 9), &[]).refused(1, &remark);
            let body = ask(&mut peer, ext.clone().with("index", 99)).json();
            assert_eq!(body["queueData"], serde_json::json!([]));
            let body = ask(&mut peer, ext.clone().with("count", i32::MAX)).json();
            assert_eq!(body["queueData"].as_array().map(Vec::len), Some(3));
        }
    }
}

#[test]
fn queues_that_are_of_use_stay_when_the_others_are_cleaned() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    three(&mut peer, &topic);
    peer.call(306, &Ext::none(), &[]).ok();
    assert_eq!(peer.pull(&topic, 0, 0).len(), 3);
    assert_eq!(peer.send(&topic, &[], b"x").number("queueOffset"), 3);
}
