//! A master whose log lost messages that were acknowledged because slaves held them.

use std::time::Duration;

use crate::support::ha::{
    Backup, Pair, QUICK, assert_has_acknowledged, await_streaming, await_text, number,
};
use crate::support::tempdir;
use crate::{QUEUES, STOP_MAX, TOPIC, exchange, journal, send, small_segments, stream};

#[test]
fn a_master_that_lost_what_was_acknowledged_does_not_start_and_its_slave_takes_its_place() {
    let dir = tempdir("ha-lost");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 200);
    pair.await_caught_up();
    stream::await_topic_at(&pair.slave);
    let backup = Backup::take(&mut pair.master, dir.path());
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 500);
    pair.master.terminate(STOP_MAX);
    // As after a power loss: the log's end is gone, and what says how much was acknowledged is not.
    let bound = std::path::Path::new("ringmq/replicated");
    std::fs::copy(pair.master.store_dir().join(bound), backup.copy.join(bound)).expect("the bound");
    backup.restore();
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
    exchange(&mut pair);
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
}
