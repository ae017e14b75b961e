//! What consumers committed at a slave while its master was away, through ends and starts of the slave.

use std::time::Duration;

use crate::support::ha::{Backup, CAUGHT_UP_MAX, Pair, QUICK, await_text};
use crate::support::journal::Journal;
use crate::support::wire::{Conn, code, eventually};
use crate::support::{Broker, Options, tempdir};
use crate::{QUEUES, STOP_MAX, TOPIC, send, small_segments, stream};

/// What a broker answers as a group's progress; nothing while it does not answer, or has none.
fn progress(broker: &Broker, group: &str, queue: &str) -> Option<i64> {
    let asked = [("consumerGroup", group), ("topic", TOPIC), ("queueId", queue)];
    let mut conn = Conn::open(broker.address(0)).ok()?;
    let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &asked, &[]).ok()?;
    (reply.code == 0).then(|| reply.number("offset"))
}

fn reached(broker: &Broker, group: &str, queue: &str, offset: i64) {
    let known =
        eventually(CAUGHT_UP_MAX, || (progress(broker, group, queue)? == offset).then_some(()));
    let has = progress(broker, group, queue);
    let at = broker.address(0);
    assert!(known.is_some(), "{group}'s queue {queue} at {at} is at {has:?}, not {offset}");
}

/// Waits until the slave's file has a group, or has it no more.
fn await_in_file(slave: &Broker, group: &str, wanted: bool) {
    let path = slave.store_dir().join("ringmq/untold-offsets");
    let text = || std::fs::read_to_string(&path);
    let key = format!("{TOPIC}@{group}\"");
    let written =
        eventually(CAUGHT_UP_MAX, || (text().ok()?.contains(&key) == wanted).then_some(()));
    assert!(written.is_some(), "{group} in {}, wanted {wanted}: {:?}", path.display(), text());
}

#[test]
fn what_was_committed_at_the_slave_reaches_the_master_though_the_slave_was_started_again() {
    let dir = tempdir("ha-untold");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    stream::await_topic_at(&pair.slave);
    stream::commit(&pair.master, "readers", "0", "10");
    stream::commit(&pair.master, "others", "1", "90");
    reached(&pair.slave, "others", "1", 90);
    reached(&pair.slave, "readers", "0", 10);
    pair.master.terminate(STOP_MAX);
    stream::commit(&pair.slave, "others", "1", "80");
    stream::commit(&pair.slave, "readers", "0", "40");
    await_in_file(&pair.slave, "readers", true);
    pair.slave.sigkill();
    pair.slave.start();
    assert_eq!(progress(&pair.slave, "readers", "0"), Some(40), "what was saved counts here");
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "2");
    // The last commit before an orderly end.
    stream::commit(&pair.slave, "late", "2", "60");
    pair.slave.terminate(STOP_MAX);
    pair.slave.start();
    pair.master.start();
    reached(&pair.master, "readers", "0", 40);
    reached(&pair.master, "late", "2", 60);
    // It knew of more, and the slave follows it again.
    reached(&pair.slave, "others", "1", 90);
    assert_eq!(progress(&pair.master, "others", "1"), Some(90));
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    // What was told is told once: what the master has from then on counts, backwards too, and through a death of the slave.
    stream::commit(&pair.master, "readers", "0", "5");
    reached(&pair.slave, "readers", "0", 5);
    for group in ["readers", "others", "late"] {
        await_in_file(&pair.slave, group, false);
    }
    pair.slave.sigkill();
    pair.slave.start();
    // A whole round of telling is over when what was committed before it is told.
    stream::commit(&pair.slave, "round", "0", "1");
    reached(&pair.master, "round", "0", 1);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    assert_eq!(progress(&pair.master, "readers", "0"), Some(5));
    reached(&pair.slave, "readers", "0", 5);
}

#[test]
fn a_cut_takes_nothing_from_what_was_committed_but_what_lies_behind_it() {
    let dir = tempdir("ha-untold-cut");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    let journal = |name: &str| Journal::create(&dir.path().join(name));
    send(&pair.master, &journal("kept"), 400);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    let backup = Backup::take(&mut pair.master, dir.path());
    send(&pair.master, &journal("lost"), 400);
    pair.await_caught_up();
    let end = |broker: &Broker| {
        let mut conn = Conn::open(broker.address(0)).expect("a connection");
        let queue = [("topic", TOPIC), ("queueId", "0")];
        conn.call(code::GET_MAX_OFFSET, &queue, &[]).expect("a reply").number("offset")
    };
    let beyond = end(&pair.slave);
    pair.master.sigkill();
    stream::commit(&pair.slave, "readers", "0", &beyond.to_string());
    stream::commit(&pair.slave, "slow", "0", "20");
    backup.restore();
    pair.master.start();
    let clamped = end(&pair.master);
    assert!(20 < clamped && clamped < beyond, "{clamped}, {beyond}");
    // The slave opens its store anew for the cut.
    await_text(pair.slave.address(0), "ringmqHaCut", |cut| cut.contains("at="));
    reached(&pair.master, "slow", "0", 20);
    reached(&pair.master, "readers", "0", clamped);
    reached(&pair.slave, "readers", "0", clamped);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    pair.await_caught_up();
    // Nor does what is told now lie beyond what the master has: consumers would pass by what comes there.
    pair.master.terminate(STOP_MAX);
    stream::commit(&pair.slave, "ahead", "0", &beyond.to_string());
    pair.master.start();
    reached(&pair.master, "ahead", "0", clamped);
    reached(&pair.slave, "ahead", "0", clamped);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
}

#[test]
fn a_slave_that_was_made_master_tells_nobody_what_was_committed_before() {
    let dir = tempdir("ha-untold-master");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    stream::await_topic_at(&pair.slave);
    pair.master.terminate(STOP_MAX);
    stream::commit(&pair.slave, "readers", "0", "40");
    await_in_file(&pair.slave, "readers", true);
    pair.slave.sigkill();
    // As a master it has what was committed, and consumers go on there, or back.
    crate::role(&mut pair.slave, &crate::MASTER);
    pair.slave.start();
    assert_eq!(progress(&pair.slave, "readers", "0"), Some(40));
    await_in_file(&pair.slave, "readers", false);
    stream::commit(&pair.slave, "readers", "0", "7");
    crate::role(&mut pair.master, &crate::SLAVE);
    pair.master.start();
    reached(&pair.master, "readers", "0", 7);
    // And the same once more the other way round: it is a slave again.
    pair.slave.terminate(STOP_MAX);
    pair.master.terminate(Duration::from_secs(30));
    crate::role(&mut pair.master, &crate::MASTER);
    crate::role(&mut pair.slave, &crate::SLAVE);
    pair.master.start();
    pair.slave.start();
    stream::commit(&pair.slave, "round", "0", "1");
    reached(&pair.master, "round", "0", 1);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    assert_eq!(progress(&pair.master, "readers", "0"), Some(7));
    reached(&pair.slave, "readers", "0", 7);
}

#[test]
fn no_progress_is_saved_before_it_is_saved_that_the_master_is_to_be_told_of_it() {
    let dir = tempdir("ha-untold-first");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    stream::await_topic_at(&pair.slave);
    stream::commit(&pair.master, "readers", "0", "10");
    reached(&pair.slave, "readers", "0", 10);
    pair.master.terminate(STOP_MAX);
    // It cannot be written where a directory is.
    let blocked = pair.slave.store_dir().join("ringmq/untold-offsets.tmp");
    std::fs::create_dir(&blocked).expect("a directory");
    stream::commit(&pair.slave, "readers", "0", "40");
    pair.slave.terminate(STOP_MAX);
    let offsets = pair.slave.store_dir().join("config/consumerOffset.json");
    let offsets = std::fs::read_to_string(offsets).expect("the offsets");
    assert!(!offsets.contains(":40"), "{offsets}");
    std::fs::remove_dir(&blocked).expect("a directory");
    pair.slave.start();
    stream::commit(&pair.slave, "others", "0", "40");
    pair.slave.terminate(STOP_MAX);
    pair.slave.start();
    pair.master.start();
    reached(&pair.master, "others", "0", 40);
    assert_eq!(progress(&pair.master, "readers", "0"), Some(10));
}

/// Makes a consumer group as an administrator does.
fn make_group(broker: &Broker, group: &str) {
    let config =
        format!("{{\"groupName\":\"{group}\",\"consumeEnable\":true,\"retryQueueNums\":1}}");
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let made = conn.call(code::UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, &[], config.as_bytes());
    assert_eq!(made.expect("a reply").code, 0);
}

#[test]
fn progress_of_a_group_that_was_deleted_while_the_slave_was_down_stays_gone_until_somebody_commits()
{
    let dir = tempdir("ha-untold-deleted");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    for group in ["readers", "others"] {
        make_group(&pair.master, group);
    }
    stream::await_topic_at(&pair.slave);
    let file = pair.slave.store_dir().join("ringmq/masters-groups");
    let known = eventually(CAUGHT_UP_MAX, || {
        let text = std::fs::read_to_string(&file).ok()?;
        ["readers", "others"].iter().all(|group| text.contains(group)).then_some(())
    });
    assert!(known.is_some(), "the master's groups are not in {}", file.display());
    pair.master.terminate(STOP_MAX);
    for group in ["readers", "others", "late"] {
        // The last one is made here, and never was the master's.
        stream::commit(&pair.slave, group, "0", "40");
        await_in_file(&pair.slave, group, true);
    }
    pair.slave.sigkill();
    pair.master.start();
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    let gone = [("groupName", "readers"), ("cleanOffset", "true")];
    let deleted = conn.call(code::DELETE_SUBSCRIPTION_GROUP, &gone, &[]).expect("a reply");
    assert_eq!(deleted.code, 0, "{deleted:?}");
    pair.slave.start();
    reached(&pair.master, "others", "0", 40);
    reached(&pair.master, "late", "0", 40);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    assert_ne!(progress(&pair.master, "readers", "0"), Some(40));
    await_in_file(&pair.slave, "readers", false);
    // From here on it is a group as any other, at either side.
    stream::commit(&pair.slave, "readers", "0", "30");
    reached(&pair.master, "readers", "0", 30);
    stream::commit(&pair.master, "readers", "0", "7");
    reached(&pair.slave, "readers", "0", 7);
}

#[test]
fn a_stock_brokers_visit_is_not_forgotten_by_a_start_that_is_cut_off() {
    let dir = tempdir("ha-untold-visit");
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    stream::await_topic_at(&pair.slave);
    pair.master.terminate(STOP_MAX);
    stream::commit(&pair.slave, "readers", "0", "40");
    await_in_file(&pair.slave, "readers", true);
    pair.slave.terminate(STOP_MAX);
    // What a stock broker writes into the store that it opens; consumers may have gone back there.
    std::fs::write(pair.slave.store_dir().join("lock"), "lock").expect("the lock file");
    // The start ends where what was to be told is to be emptied: by then the store is marked as RingMQ's again.
    let blocked = pair.slave.store_dir().join("ringmq/untold-offsets.tmp");
    std::fs::create_dir(&blocked).expect("a directory");
    pair.slave.spawn();
    let ended = pair.slave.process().wait(STOP_MAX).expect("it does not serve");
    assert!(!ended.success(), "{}", pair.slave.process().log_text());
    std::fs::remove_dir(&blocked).expect("a directory");
    pair.master.start();
    pair.slave.start();
    stream::commit(&pair.slave, "round", "0", "1");
    reached(&pair.master, "round", "0", 1);
    await_text(pair.slave.address(0), "ringmqHaUntold", |untold| untold == "0");
    assert_ne!(progress(&pair.master, "readers", "0"), Some(40));
    assert!(!pair.slave.store_dir().join("ringmq/visited").exists(), "it is dealt with");
}
