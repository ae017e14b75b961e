//! The files of a live stock 4.9.8 broker, and what a 5.x broker adds to them.

use ringmq_net::json::{Limits, Value};

use super::delay::DelayOffsets;
use super::groups::{self, GroupRules, GroupTable};
use super::offsets::{ENTRIES_MAX, OffsetTable};
use super::topics::{self, TopicRules, TopicTable};

const TOPICS: &str = include_str!("../../tests/stock_config/topics.json");
const GROUPS: &str = include_str!("../../tests/stock_config/subscriptionGroup.json");
const OFFSETS: &str = include_str!("../../tests/stock_config/consumerOffset.json");
const DELAYS: &str = include_str!("../../tests/stock_config/delayOffset.json");

fn topic_table() -> TopicTable<()> {
    TopicTable::new(TopicRules::new("DefaultCluster", "broker-a"), 5)
}

fn group_table() -> GroupTable {
    GroupTable::new(GroupRules::default(), 5)
}

/// Nothing but the order of an object's pairs is free.
fn same(a: &[u8], b: &str) -> bool {
    let a = std::str::from_utf8(a).unwrap();
    equal(&parse(a), &parse(b))
}

fn parse(text: &str) -> Value<'_> {
    Value::parse_within(text, Limits::TRUSTED).unwrap()
}

fn equal(a: &Value<'_>, b: &Value<'_>) -> bool {
    if !matches!((a, b), (Value::Object(_), Value::Object(_))) {
        return a == b;
    }
    let has = |(key, value): &(Value<'_>, Value<'_>)| {
        b.pairs().iter().any(|(k, v)| k == key && equal(v, value))
    };
    a.pairs().len() == b.pairs().len() && a.pairs().iter().all(has)
}

fn sorted_lines(text: &str) -> Vec<&str> {
    // The last pair of an object has no comma, and which is last depends on the order.
    let mut lines: Vec<&str> = text.lines().map(|l| l.trim_end_matches(',')).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn stocks_topics_load_and_save_to_the_same() {
    let mut table = topic_table();
    table.load(&topics::parse_file(TOPICS.as_bytes()).unwrap());
    assert_eq!(table.version().counter, 6);
    assert!(table.get("OrderT").is_some());
    assert!(!table.take_dirty());
    assert!(same(&table.snapshot().to_file(), TOPICS));
    let text = String::from_utf8(table.snapshot().to_file()).unwrap();
    assert_eq!(sorted_lines(&text), sorted_lines(TOPICS));
}

#[test]
fn stocks_groups_load_and_save_to_the_same() {
    let mut table = group_table();
    table.load(groups::parse_file(GROUPS.as_bytes()).unwrap());
    assert_eq!(table.version().counter, 3);
    assert!(same(&table.to_file(), GROUPS));
    let text = String::from_utf8(table.to_file()).unwrap();
    assert_eq!(sorted_lines(&text), sorted_lines(GROUPS));
}

#[test]
fn stocks_offsets_load_and_save_to_the_same() {
    let mut table = OffsetTable::from_json(OFFSETS.as_bytes(), ENTRIES_MAX).unwrap();
    assert_eq!(table.get("CG1", "OrderT", 0), Some(3));
    assert_eq!(table.get("CG1", "%RETRY%CG1", 0), Some(1));
    assert_eq!(table.len(), 17);
    assert!(!table.take_dirty());
    assert!(same(&table.to_file(), OFFSETS));
    let text = String::from_utf8(table.to_file()).unwrap();
    assert_eq!(sorted_lines(&text), sorted_lines(OFFSETS));
}

#[test]
fn stocks_delay_offsets_load_and_save_to_the_same() {
    let table = DelayOffsets::from_json(DELAYS.as_bytes()).unwrap();
    assert_eq!(table.iter().collect::<Vec<_>>(), [(1, 1), (3, 1)]);
    assert_eq!(String::from_utf8(table.to_file()).unwrap(), DELAYS);
    assert_eq!(table.to_json(), b"{\"offsetTable\":{1:1,3:1}}");
}

#[test]
fn what_a_5_x_broker_adds_is_ignored() {
    let mut table = topic_table();
    let text = r#"{"dataVersion":{"counter":9,"stateVersion":1,"timestamp":7},"topicConfigTable":{
        "T":{"attributes":{"+a":"b"},"order":false,"perm":2,"readQueueNums":3,"topicName":"T"}}}"#;
    table.load(&topics::parse_file(text.as_bytes()).unwrap());
    assert_eq!(table.get("T").unwrap().settings().perm, 2);
    assert_eq!(table.get("T").unwrap().settings().write_queues, 16);
    let mut table = group_table();
    let text = r#"{"subscriptionGroupTable":{"g":{"groupName":"g","consumeMessageOrderly":false,
        "groupRetryPolicy":{"type":"CUSTOMIZED"},"attributes":{},"retryMaxTimes":3}}}"#;
    table.load(groups::parse_file(text.as_bytes()).unwrap());
    assert_eq!(table.get("g").unwrap().retry_max_times, 3);
    let text = br#"{"dataVersion":{"counter":1},"offsetTable":{"T@g":{"0":5}}}"#;
    assert_eq!(OffsetTable::from_json(text, 9).unwrap().get("g", "T", 0), Some(5));
}

#[test]
fn an_impossible_value_makes_the_text_unusable() {
    assert!(OffsetTable::from_json(br#"{"offsetTable":{"T@g":{0:"x"}}}"#, 9).is_err());
    assert!(OffsetTable::from_json(br#"{"offsetTable":{"T@g":{0:5}"#, 9).is_err());
    assert!(OffsetTable::from_json(b"{}", 9).is_err());
    assert!(OffsetTable::from_json(b"{\"offsetTable\":{}}\xff", 9).is_err());
    assert!(DelayOffsets::from_json(br#"{"offsetTable":{"x":5}}"#).is_err());
    let error = topics::parse_file(br#"{"topicConfigTable":{"T":{"perm":"rw"}}}"#).unwrap_err();
    assert!(error.to_string().contains("perm"), "{error}");
}

#[test]
fn a_key_without_an_at_sign_is_kept_as_it_is() {
    let text = r#"{"offsetTable":{"odd":{0:1},"T@a@b":{2:3}}}"#;
    let table = OffsetTable::from_json(text.as_bytes(), ENTRIES_MAX).unwrap();
    assert_eq!(table.get("a@b", "T", 2), Some(3));
    assert!(same(&table.to_json(), text));
}

#[test]
fn commits_between_the_steps_of_a_rendering_are_not_lost() {
    let mut table = OffsetTable::default();
    for n in 0..100 {
        table.commit(&format!("g{}", n % 10), &format!("T{n}"), 0, 1).unwrap();
    }
    assert!(table.take_dirty());
    let mut text = table.render(ringmq_net::json::Writer::pretty());
    assert!(!table.render_step(&mut text, 30));
    table.remove_group("g3");
    table.commit("g4", "T4", 0, 2).unwrap();
    while !table.render_step(&mut text, 30) {}
    let loaded = OffsetTable::from_json(&text.finish(), ENTRIES_MAX).unwrap();
    assert_eq!(loaded.get("g5", "T5", 0), Some(1));
    assert!(table.take_dirty(), "what changed meanwhile is saved the next time");
    let loaded = OffsetTable::from_json(&table.to_file(), ENTRIES_MAX).unwrap();
    assert_eq!((loaded.get("g4", "T4", 0), loaded.len()), (Some(2), 90));
}
