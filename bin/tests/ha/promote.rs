//! A slave becomes the master by hand, as `docs/replication.md` has it; from a stock broker to RingMQ and back as well.

use std::sync::Arc;

use crate::support::broker::NameServer;
use crate::support::ha::{
    Pair, QUICK, assert_has_acknowledged, await_caught_up, await_text, compare_logs, number,
};
use crate::support::journal::Journal;
use crate::support::wire::{Conn, code, send_ext};
use crate::support::{Target, TempDir, tempdir};
use crate::{
    MASTER, QUEUES, SLAVE, STOP_MAX, TOPIC, journal, role, send, small_segments, stock, stream,
};

/// A pair whose slave has the topic and so many messages, all of them.
fn replicated(dir: &TempDir, role: &str, messages: u64) -> (Pair, Arc<Journal>) {
    let journal = journal(dir);
    let pair = Pair::start(dir.path(), role, QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, messages);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    (pair, journal)
}

#[test]
fn a_slave_that_is_made_master_goes_on_where_the_log_ends_and_the_old_master_joins_it() {
    let dir = tempdir("ha-promote");
    let (mut pair, journal) = replicated(&dir, "async-master", 2_000);
    pair.master.sigkill();
    pair.slave.terminate(STOP_MAX);
    role(&mut pair.slave, &MASTER);
    pair.slave.start();
    send(&pair.slave, &journal, 1_000);
    // Reading finds that queue offsets are dense.
    assert!(assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal) >= 3_000);
    std::fs::rename(pair.master.store_dir(), pair.master.dir.join("set-aside"))
        .expect("the old master's store moves away");
    role(&mut pair.master, &SLAVE);
    pair.master.start();
    await_caught_up(pair.slave.address(0), pair.master.address(0));
    assert!(compare_logs(&pair.slave.store_dir(), &pair.master.store_dir()) > 2 << 20);
    stream::await_topic_at(&pair.master);
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
}

#[test]
fn a_master_that_lost_its_disk_takes_nothing_from_its_slave() {
    let dir = tempdir("ha-wiped");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    send(&pair.master, &journal, 1_000);
    pair.master.sigkill();
    std::fs::remove_dir_all(pair.master.store_dir()).expect("the disk is gone");
    pair.master.start();
    let diverged = |state: &str| state.contains("diverged") && state.contains("share no term");
    await_text(pair.slave.address(0), "ringmqHaState", diverged);
    // It tries again and again, for seconds in which it would take over the master's tables three times each.
    let tries = number(pair.slave.address(0), "ringmqHaConnections").expect("a number");
    await_text(pair.slave.address(0), "ringmqHaConnections", |now| {
        now.parse::<u64>().is_ok_and(|now| now >= tries + 2)
    });
    await_text(pair.slave.address(0), "ringmqHaState", diverged);
    assert!(assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal) >= 1_000);
    // And it acknowledges nothing that only the master has.
    pair.master.create_topic("Another", 1);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    let sent =
        conn.call(code::SEND_MESSAGE_V2, &send_ext("g", "Another", "0", "", false), b"alone");
    assert_eq!(sent.expect("a reply").code, 11);
}

#[test]
fn a_group_moves_from_a_stock_broker_to_ringmq_and_back_without_losing_a_message() {
    if !stock::have_stock() {
        return;
    }
    let dir = tempdir("ha-migrate");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let mut old = stock::broker(
        Target::Stock497,
        &dir.sub("stock"),
        stock::stock("ASYNC_MASTER", 0),
        &namesrv,
    );
    old.start();
    old.create_topic(TOPIC, QUEUES);
    send(&old, &journal, 2_000);
    let mut new =
        stock::broker(Target::RingMq, &dir.sub("ringmq"), stock::ringmq(&SLAVE), &namesrv);
    new.start();
    await_caught_up(old.address(0), new.address(0));
    stream::await_topic_at(&new);
    // The switch: producers get no answer meanwhile, and try again.
    old.terminate(STOP_MAX);
    new.terminate(STOP_MAX);
    role(&mut new, &MASTER);
    new.start();
    send(&new, &journal, 1_000);
    assert!(assert_has_acknowledged(&new, TOPIC, QUEUES, &journal) >= 3_000);
    // And back: the stock broker's store is as long as the log was at the switch, and goes on from there.
    old.options = stock::stock("SLAVE", 1);
    old.start();
    let follows = |peer: &str| peer.contains("state=streaming") && peer.contains("lagBytes=0");
    await_text(new.address(0), "ringmqHaSlave_0", follows);
    await_caught_up(new.address(0), old.address(0));
    new.terminate(STOP_MAX);
    old.terminate(STOP_MAX);
    assert!(compare_logs(&new.store_dir(), &old.store_dir()) > 2 << 20);
    old.options = stock::stock("ASYNC_MASTER", 0);
    old.start();
    send(&old, &journal, 500);
    assert!(assert_has_acknowledged(&old, TOPIC, QUEUES, &journal) >= 3_500);
}
