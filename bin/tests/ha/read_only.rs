//! A slave whose file system finds itself damaged and goes read-only (`errors=remount-ro`) while a synchronous master is under load.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::ha::{
    Pair, QUICK, assert_has_acknowledged, assert_has_refused, await_streaming, await_text,
};
use crate::support::image::LoopFs;
use crate::support::load::Load;
use crate::support::wire::eventually;
use crate::support::{checker, skip, tempdir};
use crate::{QUEUES, STOP_MAX, TOPIC, journal, send, small_segments, spec, stream};

const DISK_BYTES: u64 = 128 << 20;
const FLUSH_SLAVE_TIMEOUT: i32 = 12;
const SLAVE_NOT_AVAILABLE: i32 = 11;
const ACK_TIMEOUT: Duration = Duration::from_millis(700);
/// What a busy machine adds.
const SLACK: Duration = Duration::from_secs(10);

#[test]
fn a_slave_whose_disk_goes_read_only_holds_nobody_up_and_has_all_when_it_is_started_again() {
    let dir = tempdir("ha-read-only");
    let disk = match LoopFs::create(dir.path(), "disk", DISK_BYTES) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a disk of its own needs root and loop devices: {why}")),
    };
    let journal = journal(&dir);
    let mut options = small_segments();
    options.config.push_str("[durability]\nack_timeout_ms = 700\n");
    let mut pair = Pair::prepare(dir.path(), "sync-master", QUICK, options);
    // Its store alone is there: where it logs stays sound.
    let store = disk.mount.join("store");
    std::fs::create_dir(&store).expect("a directory on the disk");
    std::os::unix::fs::symlink(&store, pair.slave.store_dir()).expect("a link to it");
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(pair.master.address(0));
    stream::await_topic_at(&pair.slave);
    send(&pair.master, &journal, 500);
    let refused = journal.refused_in_earnest();
    assert!(refused.is_empty(), "{refused:?}");

    let load = Load::start(&pair.master.addresses(), &spec(), &journal);
    journal.await_count(journal.count() + 500);
    disk.go_read_only().expect("a read-only file system");
    let halted = |state: &str| {
        ["halted", "Read-only file system", "start the broker again"]
            .iter()
            .all(|part| state.contains(part))
    };
    await_text(pair.slave.address(0), "ringmqHaState", halted);
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "0");
    // The master goes on, and keeps nobody waiting for a slave that is not there.
    let answered =
        |code: i32| journal.refusals().iter().filter(|answer| answer.code == code).count();
    let goes_on =
        eventually(Duration::from_secs(60), || (answered(SLAVE_NOT_AVAILABLE) > 500).then_some(()));
    assert!(goes_on.is_some(), "{:?}", journal.refused_by_kind());
    load.stop();
    let refusals = journal.refusals();
    let codes: BTreeSet<i32> = refusals.iter().map(|answer| answer.code).collect();
    // What was on its way when the disk went is waited for; what is sent later is not.
    assert_eq!(codes, [SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT].into(), "{codes:?}");
    let longest = refusals.iter().map(|answer| answer.took).max().unwrap_or_default();
    assert!(longest < ACK_TIMEOUT + SLACK, "an answer took {longest:?}");
    // What the slave has is read on, and nothing comes and goes.
    let first = checker::pull(&mut conn_to(&pair.slave), TOPIC, 0, 0, 0).expect("a pull");
    assert_eq!(first.code, 0, "{:?}", first.remark);
    await_text(pair.slave.address(0), "ringmqHaState", halted);
    let said = pair.slave.process().log_text().matches("this slave has stopped following").count();
    assert_eq!(said, 1);

    let (status, _) = pair.slave.terminate(STOP_MAX);
    assert_eq!(status.code(), Some(1), "an end that left something undone says so");
    disk.repair().expect("a repaired file system");
    pair.slave.start();
    pair.await_caught_up();
    await_text(pair.master.address(0), "ringmqHaSlave_0", |slave| slave.contains("lagBytes=0"));
    send(&pair.master, &journal, 300);
    assert_eq!(journal.refusals().len(), refusals.len(), "{:?}", journal.refused_by_kind());
    pair.await_caught_up();
    pair.compare_logs();
    for broker in [&pair.master, &pair.slave] {
        assert_has_acknowledged(broker, TOPIC, QUEUES, &journal);
        assert_has_refused(broker, TOPIC, QUEUES, &journal);
    }
    drop(pair);
}

fn conn_to(broker: &crate::support::Broker) -> crate::support::wire::Conn {
    crate::support::wire::Conn::open(broker.address(0)).expect("a connection")
}
