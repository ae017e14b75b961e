//! Logs that parted: the old master comes back as a slave, is cut where it parts from the new one, and goes on.

use std::time::Duration;

use crate::support::ha::{
    Backup, Pair, QUICK, assert_has_acknowledged, await_caught_up, await_streaming, await_text,
    compare_logs, number, runtime,
};
use crate::support::journal::Journal;
use crate::support::load::Load;
use crate::support::wire::{Conn, code};
use crate::support::{Broker, tempdir};
use crate::{
    MASTER, QUEUES, SLAVE, STOP_MAX, TOPIC, exchange, journal, role, send, small_segments, spec,
    stream,
};

/// The lines of a broker's epoch file behind count and checksum.
fn terms(broker: &Broker) -> Vec<String> {
    let text = std::fs::read_to_string(broker.store_dir().join("epochFileCheckpoint"));
    text.expect("the epoch file").lines().skip(2).map(str::to_owned).collect()
}

#[test]
fn an_old_master_that_is_ahead_is_cut_where_it_parts_and_follows_the_new_one() {
    let dir = tempdir("ha-diverged");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 1_000);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    await_text(pair.slave.address(0), "ringmqHaProtocol", |protocol| protocol == "terms");
    pair.slave.terminate(STOP_MAX);
    let parted = number(pair.master.address(0), "commitLogMaxOffset").expect("its end");
    // What the old master takes now, the new one never sees: some segments of it. It is not acknowledged by both, so it is in no journal.
    let lost = Journal::create(&dir.path().join("lost"));
    send(&pair.master, &lost, 4_000);
    let ahead = number(pair.master.address(0), "commitLogMaxOffset").expect("its end");
    // A consumer went on to the end of it.
    stream::commit(&pair.master, "readers", "0", "1000000");
    // It stops in order, so that its consumers' progress is in its file.
    pair.master.terminate(STOP_MAX);
    role(&mut pair.slave, &MASTER);
    pair.slave.start();
    send(&pair.slave, &journal, 1_000);
    assert_eq!(terms(&pair.slave), ["1-0".to_owned(), format!("2-{parted}")]);
    role(&mut pair.master, &SLAVE);
    pair.master.start();
    await_text(pair.master.address(0), "ringmqHaCut", |cut| {
        cut.contains(&format!("at={parted} ")) && cut.contains("kept=")
    });
    await_caught_up(pair.slave.address(0), pair.master.address(0));
    await_text(pair.master.address(0), "ringmqHaState", |state| state == "following");
    assert!(compare_logs(&pair.slave.store_dir(), &pair.master.store_dir()) > 1 << 20);
    assert_eq!(terms(&pair.master), terms(&pair.slave));
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
    // Its consumer went beyond the cut: it is back at the queue's end there, and what came since is not passed by.
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    let asked = [("consumerGroup", "readers"), ("topic", TOPIC), ("queueId", "0")];
    let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &asked, &[]).expect("a reply");
    let queue = [("topic", TOPIC), ("queueId", "0")];
    let max = conn.call(code::GET_MAX_OFFSET, &queue, &[]).expect("a reply").number("offset");
    let offset = reply.number("offset");
    assert!(reply.code == 0 && (1..max).contains(&offset), "{reply:?}, the queue ends at {max}");
    // What was cut is kept.
    let cut = runtime(pair.master.address(0)).remove("ringmqHaCut").expect("a cut");
    let kept = cut.split("kept=").nth(1).expect("a file");
    let bytes = std::fs::metadata(kept).expect("what was cut").len();
    assert!(bytes > 1 << 20 && bytes <= ahead - parted, "{bytes} of {}", ahead - parted);
    // And back again: a second cut in a second life.
    pair.master.terminate(STOP_MAX);
    send(&pair.slave, &lost, 500);
    pair.slave.sigkill();
    role(&mut pair.master, &MASTER);
    pair.master.start();
    send(&pair.master, &journal, 500);
    role(&mut pair.slave, &SLAVE);
    pair.slave.start();
    await_caught_up(pair.master.address(0), pair.slave.address(0));
    compare_logs(&pair.master.store_dir(), &pair.slave.store_dir());
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

#[test]
fn a_running_slave_whose_master_is_replaced_by_one_with_less_is_cut_and_goes_on() {
    let dir = tempdir("ha-replaced");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 500);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    // The master's disk is set back to what it was, as from a backup, and it goes on from there.
    let backup = Backup::take(&mut pair.master, dir.path());
    let lost = Journal::create(&dir.path().join("lost"));
    send(&pair.master, &lost, 500);
    pair.await_caught_up();
    pair.master.sigkill();
    backup.restore();
    pair.master.start();
    send(&pair.master, &journal, 500);
    await_text(pair.slave.address(0), "ringmqHaCut", |cut| cut.contains("at="));
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

#[test]
fn what_was_acknowledged_because_slaves_hold_it_is_never_cut() {
    let dir = tempdir("ha-bound");
    let journal = journal(&dir);
    let mut pair = Pair::prepare(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.start();
    pair.master.create_topic(TOPIC, QUEUES);
    pair.slave.start();
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 200);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    let backup = Backup::take(&mut pair.master, dir.path());
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 1_000);
    // The slave hears of it with the next frame or heartbeat.
    await_text(pair.slave.address(0), "ringmqHaAcknowledged", |bound| {
        bound.parse::<u64>().is_ok_and(|bound| bound > 100_000)
    });
    pair.master.sigkill();
    backup.restore();
    pair.master.start();
    let end = number(pair.slave.address(0), "commitLogMaxOffset").expect("its end");
    await_text(pair.slave.address(0), "ringmqHaState", |state| {
        state.contains("diverged")
            && state.contains("were acknowledged")
            && state.contains(&end.to_string())
    });
    // It stays so, and nothing is lost.
    pair.slave.terminate(STOP_MAX);
    pair.slave.start();
    await_text(pair.slave.address(0), "ringmqHaState", |state| state.contains("diverged"));
    assert_eq!(number(pair.slave.address(0), "commitLogMaxOffset"), Some(end));
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    // What to do is in the message: the slave becomes the master, and the other one follows it.
    pair.master.terminate(STOP_MAX);
    pair.slave.terminate(STOP_MAX);
    exchange(&mut pair);
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
}

#[test]
fn a_pair_whose_roles_are_exchanged_by_sigkill_under_load_has_equal_logs() {
    let dir = tempdir("ha-exchange");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    for round in 0..crate::support::rounds(3) {
        await_streaming(pair.master.address(0));
        let before = journal.count();
        let load = Load::start(&pair.master.addresses(), &spec(), &journal);
        journal.await_count(before + 300);
        std::thread::sleep(Duration::from_millis(50 * u64::from(round % 4)));
        pair.master.sigkill();
        load.stop();
        pair.slave.sigkill();
        std::mem::swap(&mut pair.master, &mut pair.slave);
        role(&mut pair.master, &["--role", "sync-master"]);
        role(&mut pair.slave, &SLAVE);
        pair.master.start();
        pair.slave.start();
        pair.await_caught_up();
        await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
        println!("round {round}: {} bytes equal", pair.compare_logs());
        assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
        assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    }
}
