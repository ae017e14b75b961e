//! A master whose log lost messages that were acknowledged because slaves held them.

use std::time::Duration;

use crate::support::ha::{
    Pair, QUICK, assert_has_acknowledged, await_caught_up, await_text, compare_logs, number,
};
use crate::support::tempdir;
use crate::{MASTER, QUEUES, SLAVE, STOP_MAX, TOPIC, journal, role, send, small_segments, stream};

#[test]
fn a_master_that_lost_what_was_acknowledged_does_not_start_and_its_slave_takes_its_place() {
    let dir = tempdir("ha-lost");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("streaming"));
    send(&pair.master, &journal, 200);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    let (store, copy) = (pair.master.store_dir(), dir.path().join("copy"));
    pair.master.terminate(STOP_MAX);
    let copied = std::process::Command::new("cp").arg("-a").arg(&store).arg(&copy).status();
    assert!(copied.expect("cp").success());
    pair.master.start();
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("streaming"));
    send(&pair.master, &journal, 500);
    pair.master.terminate(STOP_MAX);
    // As after a power loss: the log's end is gone, and what says how much was acknowledged is not.
    let bound = std::path::Path::new("ringmq/replicated");
    std::fs::copy(store.join(bound), copy.join(bound)).expect("the bound");
    std::fs::remove_dir_all(&store).expect("the store");
    std::fs::rename(&copy, &store).expect("the shorter one");
    pair.master.spawn();
    let ended = pair.master.process().wait(Duration::from_secs(30)).expect("it does not serve");
    assert!(!ended.success());
    let log = pair.master.process().log_text();
    assert!(log.contains("were acknowledged because slaves held them"), "{log}");
    assert!(log.contains("ha.give_up_acknowledged"), "{log}");
    // By order of the operator it does; then the slave keeps what it has.
    let end = number(pair.slave.address(0), "commitLogMaxOffset").expect("the slave's end");
    let config = pair.master.options.config.clone();
    pair.master.options.config =
        config.replacen("[ha]\n", "[ha]\ngive_up_acknowledged = true\n", 1);
    pair.master.start();
    await_text(pair.slave.address(0), "ringmqHaState", |state| state.contains("were acknowledged"));
    assert_eq!(number(pair.slave.address(0), "commitLogMaxOffset"), Some(end));
    pair.master.terminate(STOP_MAX);
    pair.slave.terminate(STOP_MAX);
    // What the message said: the slave becomes the master.
    role(&mut pair.slave, &MASTER);
    pair.slave.start();
    role(&mut pair.master, &SLAVE);
    pair.master.start();
    await_caught_up(pair.slave.address(0), pair.master.address(0));
    compare_logs(&pair.slave.store_dir(), &pair.master.store_dir());
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
}
