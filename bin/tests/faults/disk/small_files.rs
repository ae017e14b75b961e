//! Files beside the log that can't be written: each is tried again until it can, and costs what it must and no more. The faults are the
//! program's own seam (`RINGMQ_TEST_FAULTS`), each switched on and off by a file.

use std::fs::{self, FileTimes, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{
    FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE, SICK, SOON, SYSTEM_ERROR, TOPIC, Ward, create_topic,
    send,
};
use crate::support::checker::{self, Rules};
use crate::support::wire::{Conn, code, eventually, send_ext};
use crate::support::{Options, Target, exclusive, skip};

/// Switches for the faults of one broker.
struct Switches {
    dir: PathBuf,
}

impl Switches {
    /// The rules, each with its switch: `NAME=RULE`.
    fn rules(&self, named: &[(&str, &str)]) -> String {
        let rule =
            |(name, rule): &(&str, &str)| format!("{rule}:when={}", self.dir.join(name).display());
        named.iter().map(rule).collect::<Vec<_>>().join(";")
    }

    fn on(&self, name: &str) {
        fs::write(self.dir.join(name), "").expect("a switch");
    }

    fn off(&self, name: &str) {
        fs::remove_file(self.dir.join(name)).expect("a switch");
    }
}

fn open(what: &str, segment_bytes: u64, rules: &[(&str, &str)]) -> (Ward<()>, Switches) {
    let dir = crate::support::tempdir("switches");
    let switches = Switches { dir: dir.path().to_owned() };
    let faults = switches.rules(rules);
    // Small segments want small messages.
    // Nor is anything deleted unasked, whatever the hour.
    let config = "[limits]\nmessage_bytes = 131072\n\n[retention]\ndelete_when = []\n".to_owned();
    let options = Options { segment_bytes, faults, config, ..Options::default() };
    let mut ward = Ward::on_one_disk(what, options);
    ward.keep.push(dir);
    (ward, switches)
}

#[test]
fn a_segment_that_cannot_be_made_refuses_sends_until_it_can() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("the faults are a seam in RingMQ");
    }
    let rules = [("make", "errno:Allocate:error=EIO:path=shards/1/")];
    let (mut ward, switches) = open("segment", 1 << 20, &rules);
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 200);
    switches.on("make");
    let refused = ward.await_refusal(SERVICE_NOT_AVAILABLE);
    assert!(refused.remark.contains("The next segment can't be made: "), "{}", refused.remark);
    assert!(refused.remark.contains("Input/output error"), "{}", refused.remark);
    ward.await_log(&["the next segment can't be made", "tried again every second"]);
    ward.the_rest_goes_on();
    switches.off("make");
    ward.await_acks(SICK, 200);
    ward.await_log(&["is made: new messages are taken again"]);
    load.stop();
    ward.check("write");
}

#[test]
fn queues_and_index_wait_in_memory_and_new_topics_for_their_file() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("the faults are a seam in RingMQ");
    }
    let rules = [
        ("queues", "errno:Write:error=EIO:path=shards/1/consumequeue"),
        ("index", "errno:Write:error=EIO:path=shards/1/index"),
        ("topics", "errno:Write:error=ENOSPC:path=shards/1/config/topics.json"),
        ("offsets", "errno:Write:error=EIO:path=shards/1/config/consumerOffset.json"),
    ];
    let (mut ward, switches) = open("small-files", 16 << 20, &rules);
    let load = ward.load(2, 8, 1_000);
    ward.await_acks(SICK, 200);

    let mut conn = ward.conn(SICK);
    assert_eq!(create_topic(&mut conn, "Keyed").code, 0);
    for name in ["queues", "index", "topics", "offsets"] {
        switches.on(name);
    }
    let ext = send_ext("PG", "Keyed", "0", "KEYS\u{1}TheKey", false);
    let keyed = conn.call(code::SEND_MESSAGE_V2, &ext, b"keyed").expect("an answer");
    assert_eq!(keyed.code, 0, "{keyed:?}");
    queues_wait(&mut ward, &mut conn);
    topics_wait(&mut ward, &mut conn);
    commit(&mut conn, 7);
    ward.await_log(&["configuration not saved", "consumerOffset.json"]);
    ward.the_rest_goes_on();
    assert!(ward.journal.refusals().is_empty(), "{:?}", ward.journal.refusals().last());

    for name in ["queues", "index", "topics", "offsets"] {
        switches.off(name);
    }
    ward.await_log(&["configuration saved again", "topics.json"]);
    ward.await_log(&["configuration saved again", "consumerOffset.json"]);
    let found = eventually(SOON, || (by_key(&mut conn).code == 0).then_some(()));
    found.expect("the message by its key");
    assert_eq!(send(&mut conn, "New", b"second").code, 0, "the topic is saved now");
    load.stop();
    ward.broker.sigkill();
    ward.broker.start();
    let mut conn = ward.conn(SICK);
    let reply = checker::pull(&mut conn, "New", 0, 0, 0).expect("a pull");
    assert_eq!(reply.code, 0, "the new topic's messages: {:?}", reply.remark);
    assert_eq!(committed(&mut conn), 7);
    ward.check("write");
}

/// Units and entries can't be written: sends and pulls go on, a query by key says why it can't.
fn queues_wait(ward: &mut Ward<()>, conn: &mut Conn) {
    ward.await_log(&["consume queue units are kept in memory", "Input/output error"]);
    ward.await_log(&["index entries are kept in memory", "Input/output error"]);
    let reply = by_key(conn);
    let remark = reply.remark.clone().unwrap_or_default();
    assert_eq!(reply.code, SYSTEM_ERROR, "{remark}");
    assert!(remark.contains("Input/output error"), "{remark}");
    ward.await_acks(SICK, 100);
}

/// A topic that can't be saved: what is sent to it is stored and says that it isn't safe; no other topic's sends wait for it.
fn topics_wait(ward: &mut Ward<()>, conn: &mut Conn) {
    let reply = send(conn, "New", b"first");
    let remark = reply.remark.clone().unwrap_or_default();
    assert_eq!(reply.code, FLUSH_DISK_TIMEOUT, "{remark}");
    assert!(remark.contains("its new topic not saved yet"), "{remark}");
    assert!(remark.contains("No space left"), "{remark}");
    assert_eq!(reply.ext("ackLevel"), Some("write"));
    let reply = create_topic(conn, "Asked");
    assert_eq!(reply.code, SYSTEM_ERROR);
    assert!(reply.remark.unwrap_or_default().contains("but not saved yet"));
    ward.await_acks(SICK, 100);
}

fn by_key(conn: &mut Conn) -> crate::support::wire::Reply {
    let end = i64::MAX.to_string();
    let ext = [
        ("topic", "Keyed"),
        ("key", "TheKey"),
        ("maxNum", "8"),
        ("beginTimestamp", "0"),
        ("endTimestamp", end.as_str()),
    ];
    conn.call(code::QUERY_MESSAGE, &ext, &[]).expect("an answer")
}

fn commit(conn: &mut Conn, offset: i64) {
    let offset = offset.to_string();
    let ext =
        [("consumerGroup", "G"), ("topic", TOPIC), ("queueId", "0"), ("commitOffset", &offset)];
    assert_eq!(conn.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[]).expect("an answer").code, 0);
}

fn committed(conn: &mut Conn) -> i64 {
    let ext = [("consumerGroup", "G"), ("topic", TOPIC), ("queueId", "0")];
    conn.call(code::QUERY_CONSUMER_OFFSET, &ext, &[]).expect("an answer").number("offset")
}

#[test]
fn a_segment_that_cannot_be_deleted_is_served_on_and_goes_later() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("the faults are a seam in RingMQ");
    }
    let rules = [
        ("rename", "errno:Rename:error=EIO:path=shards/1/commitlog"),
        ("sync", "errno:SyncDir:error=EIO:path=shards/1/commitlog"),
    ];
    let (mut ward, switches) = open("delete", 1 << 20, &rules);
    let load = ward.load(2, 8, 2_000);
    let segment = |start: u64| format!("commitlog/{start:020}");
    let store = ward.broker.shard_dir(SICK);
    let later = store.join(segment(3 << 20));
    eventually(SOON, || later.exists().then_some(())).expect("the fourth segment");
    load.stop();
    let (status, _) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0));
    // Past the retention time, as the broker sees it at its next start.
    let firsts = [store.join(segment(0)), store.join(segment(1 << 20))];
    firsts.iter().for_each(|path| age(path));
    ward.broker.start();

    switches.on("rename");
    let mut conn = ward.conn(SICK);
    delete_expired(&mut conn);
    ward.await_log(&["deleting a segment", "Input/output error"]);
    assert!(firsts.iter().all(|path| path.exists()));
    ward.check("write");
    // Once it is out of the log's folder it is gone, whatever fails then.
    switches.on("sync");
    switches.off("rename");
    delete_expired(&mut conn);
    let gone = |path: &Path| eventually(SOON, || (!path.exists()).then_some(()));
    gone(&firsts[0]).and(gone(&firsts[1])).expect("the segments go");
    ward.await_log(&["is deleted, its space freed at the next start", "Input/output error"]);
    switches.off("sync");
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 100);
    load.stop();
    ward.broker.sigkill();
    ward.broker.start();
    let rules = Rules { whole: false, ..Rules::of(Target::RingMq, "write") };
    let acked: Vec<_> = super::acked_on(&ward.journal, SICK)
        .into_iter()
        .filter(|a| physical_offset(&a.message_id) >= 2 << 20)
        .collect();
    let sick = [ward.broker.address(super::WELL), ward.broker.address(SICK)];
    let summary = checker::Checker::new().check_allowing_loss(
        &sick,
        TOPIC,
        super::QUEUES,
        &ward.journal,
        &acked,
        rules,
    );
    assert_eq!(summary.lost, 0, "behind the deleted segments: {summary:?}");
}

fn physical_offset(message_id: &str) -> u64 {
    u64::from_str_radix(&message_id[16..], 16).expect("a message id")
}

fn age(path: &Path) {
    let long_ago = SystemTime::now() - Duration::from_secs(100 * 3_600);
    let file = OpenOptions::new().write(true).open(path).expect("a segment");
    file.set_times(FileTimes::new().set_modified(long_ago)).expect("a time");
}

fn delete_expired(conn: &mut Conn) {
    let reply = conn.call(code::DELETE_EXPIRED_COMMITLOG, &[], &[]).expect("an answer");
    assert_eq!(reply.code, 0);
}

#[test]
fn zeroing_that_fails_stops_the_log() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("the faults are a seam in RingMQ");
    }
    let rules = [("zero", "errno:Zero:error=EIO:path=shards/1/commitlog")];
    let (mut ward, switches) = open("zero", 64 << 20, &rules);
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 200);
    switches.on("zero");
    let refused = ward.await_refusal(SERVICE_NOT_AVAILABLE);
    assert!(refused.remark.contains("The log has stopped: zero of"), "{}", refused.remark);
    ward.await_log(&["the log takes no more messages", "zero of"]);
    ward.the_rest_goes_on();
    switches.off("zero");
    ward.stays_stopped();
    load.stop();
    let (status, _) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(1));
    ward.broker.start();
    ward.check("write");
}
