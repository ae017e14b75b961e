//! A slave follows its master: bytes, messages, topics, groups, progress; and serves reads.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::ha::{
    CAUGHT_UP_MAX, Pair, QUICK, assert_has_acknowledged, await_streaming, await_text,
};
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Broker, Options, tempdir};
use crate::{QUEUES, TOPIC, journal, send, small_segments};

#[test]
fn a_slave_has_every_byte_of_each_shard_and_serves_it_when_its_master_is_gone() {
    let dir = tempdir("ha-stream");
    let journal = journal(&dir);
    let options = Options { shards: 2, ..small_segments() };
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, options);
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 6_000);
    pair.await_caught_up();
    assert!(pair.compare_logs() > 4 << 20, "some segments on each shard");
    for shard in 0..2 {
        await_text(pair.slave.address(shard), "ringmqHaState", |state| state == "following");
        await_text(pair.master.address(shard), "ringmqHaSlaves", |slaves| slaves == "1");
    }
    // Either side starts again, and the other goes on.
    pair.slave.terminate(Duration::from_secs(20));
    send(&pair.master, &journal, 1_000);
    pair.slave.start();
    pair.await_caught_up();
    pair.master.terminate(Duration::from_secs(20));
    pair.master.start();
    send(&pair.master, &journal, 1_000);
    pair.await_caught_up();
    pair.compare_logs();
    await_topic(&pair);
    pair.master.sigkill();
    let found = assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    assert!(found >= 8_000, "{found}");
}

fn await_topic(pair: &Pair) {
    await_topic_at(&pair.slave);
}

/// The slave knows the topic.
pub(crate) fn await_topic_at(slave: &Broker) {
    for shard in 0..slave.shards() {
        await_topic_on(slave.address(shard));
    }
}

/// One shard knows the topic.
pub(crate) fn await_topic_on(slave: SocketAddr) {
    await_topic_named(slave, TOPIC);
}

/// The slave knows a topic.
pub(crate) fn await_at(slave: &Broker, topic: &str) {
    (0..slave.shards()).for_each(|shard| await_topic_named(slave.address(shard), topic));
}

fn await_topic_named(slave: SocketAddr, topic: &str) {
    let known = eventually(CAUGHT_UP_MAX, || {
        let mut conn = Conn::open(slave).ok()?;
        let reply = conn.call(code::GET_ALL_TOPIC_CONFIG, &[], &[]).ok()?;
        String::from_utf8_lossy(&reply.body).contains(topic).then_some(())
    });
    assert!(known.is_some(), "{topic} does not reach the slave at {slave}");
}

fn call(pair: &Pair, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut conn = Conn::open(pair.slave.address(0)).expect("a connection");
    conn.call(code, ext, body).expect("a reply")
}

/// Commits a group's progress in a queue of the topic, and has the answer when it returns.
pub(crate) fn commit(broker: &Broker, group: &str, queue: &str, offset: &str) {
    let progress =
        [("consumerGroup", group), ("topic", TOPIC), ("queueId", queue), ("commitOffset", offset)];
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let done = conn.call(code::UPDATE_CONSUMER_OFFSET, &progress, &[]).expect("a reply");
    assert_eq!(done.code, 0);
}

/// Tables are asked for every ten minutes here: what comes sooner comes with the log.
const RARELY: &str = "heartbeat_ms = 300\nhousekeeping_ms = 2000\nmetadata_ms = 600000\nretry_max_ms = 500\nstart = \"oldest\"\n";

#[test]
fn what_was_committed_and_made_just_before_the_masters_death_is_at_its_slave() {
    let dir = tempdir("ha-metadata-stream");
    let mut pair = Pair::start(dir.path(), "async-master", RARELY, Options::default());
    await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
    // The first round is over: from here on nothing is asked for by time.
    await_streaming(pair.master.address(0));
    pair.master.create_topic(TOPIC, QUEUES);
    await_topic(&pair);
    let asked = [("consumerGroup", "readers"), ("topic", TOPIC), ("queueId", "2")];
    let reached = |pair: &Pair, offset: u64| {
        let progress = call(pair, code::QUERY_CONSUMER_OFFSET, &asked, &[]);
        (progress.code == 0 && progress.number("offset") == offset as i64).then_some(())
    };
    for offset in [5, 700, 20] {
        commit(&pair.master, "readers", "2", &offset.to_string());
        assert!(eventually(CAUGHT_UP_MAX, || reached(&pair, offset)).is_some(), "{offset}");
    }
    pair.master.sigkill();
    assert!(reached(&pair, 20).is_some());
    // A slave that comes later gets what was committed before.
    pair.slave.sigkill();
    std::fs::remove_dir_all(pair.slave.store_dir()).expect("the slave's disk is lost");
    pair.master.start();
    commit(&pair.master, "readers", "2", "33");
    pair.slave.start();
    assert!(eventually(CAUGHT_UP_MAX, || reached(&pair, 33)).is_some());
}

#[test]
fn a_commit_that_was_answered_is_at_the_slave_however_soon_the_master_dies() {
    let dir = tempdir("ha-commit");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    await_topic(&pair);
    for round in 0..crate::support::rounds(4) {
        let offset = u64::from(round) * 100 + 7;
        await_streaming(pair.master.address(0));
        let queue = (round % 2).to_string();
        commit(&pair.master, "readers", &queue, &offset.to_string());
        pair.master.sigkill();
        // What came before the end of the connection is taken before its end is seen.
        await_text(pair.slave.address(0), "ringmqHaState", |state| state.contains("connecting"));
        let asked = [("consumerGroup", "readers"), ("topic", TOPIC), ("queueId", queue.as_str())];
        let reply = call(&pair, code::QUERY_CONSUMER_OFFSET, &asked, &[]);
        assert_eq!((reply.code, reply.number("offset")), (0, offset as i64), "round {round}");
        pair.master.start();
    }
}

#[test]
fn what_was_committed_at_the_slave_while_its_master_was_away_is_at_the_master_when_it_is_back() {
    let dir = tempdir("ha-progress-back");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    await_topic(&pair);
    let reached = |broker: &Broker, group: &str, queue: &str, offset: i64| {
        let asked = [("consumerGroup", group), ("topic", TOPIC), ("queueId", queue)];
        let known = eventually(CAUGHT_UP_MAX, || {
            let mut conn = Conn::open(broker.address(0)).ok()?;
            let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &asked, &[]).ok()?;
            (reply.code == 0 && reply.number("offset") == offset).then_some(())
        });
        assert!(
            known.is_some(),
            "{offset} of {group}'s queue {queue} is not at {}",
            broker.address(0)
        );
    };
    commit(&pair.master, "readers", "0", "10");
    // A group of its own: what comes of it comes with no other commit.
    commit(&pair.master, "others", "1", "90");
    reached(&pair.slave, "others", "1", 90);
    pair.master.terminate(Duration::from_secs(20));
    commit(&pair.slave, "readers", "0", "40");
    // The master knows of more than this.
    commit(&pair.slave, "others", "1", "80");
    reached(&pair.slave, "others", "1", 80);
    pair.master.start();
    reached(&pair.master, "readers", "0", 40);
    reached(&pair.master, "others", "1", 90);
    // From here on the slave follows again, backwards too.
    reached(&pair.slave, "others", "1", 90);
    commit(&pair.master, "readers", "0", "5");
    reached(&pair.slave, "readers", "0", 5);
    // Nor does it stay behind when a consumer goes on here while the master is there: nothing else tells it of this queue.
    commit(&pair.slave, "others", "1", "70");
    reached(&pair.slave, "others", "1", 90);
    reached(&pair.master, "others", "1", 90);
    // The slave dies right after: consumers go on at the master.
    pair.slave.sigkill();
    reached(&pair.master, "readers", "0", 5);
}

#[test]
fn a_slave_refuses_messages_and_changes_and_takes_over_progress_and_groups() {
    let dir = tempdir("ha-metadata");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    await_topic(&pair);
    let sent =
        call(&pair, code::SEND_MESSAGE_V2, &send_ext("g", TOPIC, "0", "", false), b"to a slave");
    assert_eq!(sent.code, 14, "{sent:?}");
    let topic = [("topic", "Another"), ("defaultTopic", "TBW102"), ("readQueueNums", "1")];
    let made = call(&pair, code::UPDATE_AND_CREATE_TOPIC, &topic, &[]);
    assert_eq!(made.code, 1, "{made:?}");
    assert!(made.remark.as_deref().unwrap_or("").contains("slave broker"), "{made:?}");
    // Progress and a group made at the master.
    commit(&pair.master, "readers", "1", "7");
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    let group =
        br#"{"groupName":"writers","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":3}"#;
    let made = conn.call(code::UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, &[], group);
    assert_eq!(made.expect("a reply").code, 0);
    let asked = [("consumerGroup", "readers"), ("topic", TOPIC), ("queueId", "1")];
    let reached = eventually(CAUGHT_UP_MAX, || {
        let progress = call(&pair, code::QUERY_CONSUMER_OFFSET, &asked, &[]);
        let groups = call(&pair, code::GET_ALL_SUBSCRIPTION_GROUP_CONFIG, &[], &[]);
        let known = String::from_utf8_lossy(&groups.body).contains("writers");
        (progress.code == 0 && progress.number("offset") == 7 && known).then_some(())
    });
    assert!(reached.is_some(), "progress and groups do not reach the slave");
    // They are there after a restart without the master.
    pair.slave.terminate(Duration::from_secs(20));
    pair.master.terminate(Duration::from_secs(20));
    pair.slave.start();
    assert_eq!(call(&pair, code::QUERY_CONSUMER_OFFSET, &asked, &[]).number("offset"), 7);
}
