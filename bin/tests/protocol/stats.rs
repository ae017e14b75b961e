//! Numbers about the broker: runtime information (28) and named statistics (315).

use super::ext::{Ext, properties};
use super::fixture::{Own, shared, soon, topic, unique};
use super::peer::{FORMS, Form, Peer};

fn runtime(peer: &mut Peer) -> serde_json::Value {
    peer.call(28, &Ext::none(), &[]).ok().json()["table"].clone()
}

/// Every key that a stock 4.9.8 broker tells; its tools print empty rows or fail where one is missing.
const KEYS: [&str; 58] = [
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferedTps",
    "putLatency99",
    "putLatency999",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "brokerVersionDesc",
    "brokerVersion",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush",
    "commitLogDirCapacity",
    // Of RingMQ alone.
    "ringmqLevel",
    "ringmqWrittenOffset",
    "ringmqDurableOffset",
    "ringmqUnwrittenBytes",
    "ringmqWaitingPulls",
    "ringmqBusyAnswers",
    "ringmqLogWrites",
    "ringmqLogFlushes",
    "ringmqHotBytes",
    "ringmqConnections",
    "ringmqSendCalls",
];

#[test]
fn every_key_of_the_runtime_information_is_there_as_text() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let table = runtime(&mut peer);
        for key in KEYS {
            if super::fixture::stock() && key.starts_with("ringmq") {
                continue;
            }
            assert!(table[key].is_string(), "{key} in {table}");
        }
    }
}

#[test]
fn what_tools_take_for_numbers_is_numbers_from_the_first_second_on() {
    // A broker that has just started: windows of rates are not filled yet.
    let own = Own::start("young", "");
    let table = runtime(&mut own.place.peer(Form::Json));
    let text = |key: &str| table[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
    // clusterList takes the first of each three.
    for key in ["putTps", "getTransferedTps", "getTotalTps"] {
        let first = text(key).split(' ').next().expect("a first part").to_owned();
        assert!(first.parse::<f64>().is_ok(), "{key}={:?}", text(key));
    }
    for key in ["putMessageAverageSize", "putLatency99"] {
        assert!(text(key).parse::<f64>().is_ok(), "{key}={:?}", text(key));
    }
    for key in ["commitLogDiskRatio", "consumeQueueDiskRatio"] {
        let ratio: f64 = text(key).parse().unwrap_or(-1.0);
        assert!((0.0..=1.0).contains(&ratio), "{key}={:?}", text(key));
    }
    for key in KEYS.iter().filter(|k| {
        ["Size", "Capacity", "Mills", "Morning", "Now", "Offset", "Max", "Timestamp", "TimeStamp"]
            .iter()
            .any(|end| k.ends_with(end))
            && **k != "putMessageAverageSize"
            && **k != "commitLogDirCapacity"
    }) {
        assert!(text(key).parse::<i64>().is_ok(), "{key}={:?}", text(key));
    }
    assert_eq!(
        (text("brokerVersion").as_str(), text("brokerVersionDesc").as_str()),
        ("409", "V4_9_8")
    );
    assert!(text("runtime").starts_with("[ 0 days, 0 hours, "), "{}", text("runtime"));
    assert!(
        text("commitLogDirCapacity").starts_with("Total : "),
        "{}",
        text("commitLogDirCapacity")
    );
    assert!(text("remainHowManyDataToFlush").ends_with('B'));
}

#[test]
fn counters_count_messages() {
    let own = Own::start("counters", "");
    let mut peer = own.place.peer(Form::Json);
    let number = |table: &serde_json::Value, key: &str| {
        table[key].as_str().expect("text").parse::<i64>().expect("a number")
    };
    for _ in 0..5 {
        peer.send("Count", &[], b"0123456789");
    }
    assert_eq!(peer.pull("Count", 0, 0).len(), 5);
    assert_eq!(peer.pull("Count", 0, 3).len(), 2);
    let table = runtime(&mut peer);
    assert_eq!(number(&table, "msgPutTotalTodayNow"), 5);
    assert_eq!(number(&table, "msgGetTotalTodayNow"), 7);
    assert_eq!(number(&table, "putMessageTimesTotal"), 5);
    assert_eq!(number(&table, "putMessageFailedTimes"), 0);
    let end = number(&table, "commitLogMaxOffset") - number(&table, "commitLogMinOffset");
    assert_eq!(number(&table, "putMessageSizeTotal"), end);
    let earliest = number(&table, "earliestMessageTimeStamp");
    assert_eq!(earliest, peer.pull("Count", 0, 0)[0].stored);
}

fn named(peer: &mut Peer, name: &str, key: &str) -> Option<serde_json::Value> {
    let reply = peer.call(315, &Ext::new([("statsName", name), ("statsKey", key)]), &[]);
    if reply.code == 0 {
        return Some(reply.json());
    }
    reply.refused(1, &format!("The stats <{name}> <{key}> not exist"));
    None
}

#[test]
fn statistics_exist_from_their_first_event_on() {
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(1), unique("Stat"));
    let both = format!("{topic}@{group}");
    assert_eq!(named(&mut peer, "TOPIC_PUT_NUMS", &topic), None);
    assert_eq!(named(&mut peer, "GROUP_GET_NUMS", &both), None);
    assert_eq!(named(&mut peer, "SNDBCK_PUT_NUMS", &both), None);
    assert_eq!(named(&mut peer, "NO_SUCH_NAME", &topic), None);
    let reply = peer.send(&topic, &[], b"x");
    assert_eq!(peer.call(11, &Ext::pull(&group, &topic, 0, 0), &[]).code, 0);
    let offset = super::fixture::physical_offset(reply.ext("msgId").expect("an id"));
    let back = Ext::new([("group", group.as_str()), ("delayLevel", "-1")]).with("offset", offset);
    peer.call(36, &back, &[]).ok();
    let expected = serde_json::json!({
        "statsDay": {"avgpt": 0.0, "sum": 0, "tps": 0.0},
        "statsHour": {"avgpt": 0.0, "sum": 0, "tps": 0.0},
        "statsMinute": {"avgpt": 0.0, "sum": 0, "tps": 0.0},
    });
    for (name, key) in [
        ("TOPIC_PUT_NUMS", topic.as_str()),
        ("TOPIC_PUT_SIZE", &topic),
        ("GROUP_GET_NUMS", &both),
        ("GROUP_GET_SIZE", &both),
        ("SNDBCK_PUT_NUMS", &both),
        ("BROKER_PUT_NUMS", "DefaultCluster"),
        ("BROKER_GET_NUMS", "DefaultCluster"),
    ] {
        let got = soon(name, || named(&mut peer, name, key));
        let names = |value: &serde_json::Value| {
            value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(names(&got), names(&expected), "{name}");
        assert_eq!(names(&got["statsMinute"]), names(&expected["statsMinute"]), "{name}");
    }
}

#[test]
fn a_batch_counts_each_of_its_messages() {
    let own = Own::start("batches", "");
    let mut peer = own.place.peer(Form::Json);
    let one = {
        let text = properties(&[("k", "v")]);
        let mut out =
            [0i32, 0, 0, 0, 1].iter().flat_map(|int| int.to_be_bytes()).collect::<Vec<u8>>();
        out.push(b'x');
        out.extend_from_slice(&(text.len() as i16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
        out
    };
    peer.call(320, &Ext::send("Batches").with("m", "true"), &one.repeat(9)).ok();
    assert_eq!(runtime(&mut peer)["msgPutTotalTodayNow"], "9");
}
