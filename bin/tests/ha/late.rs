//! A slave that joins a master with a history of several segments.

use crate::support::ha::{Pair, QUICK, assert_has_acknowledged, await_text, number, segments};
use crate::support::{Options, tempdir};
use crate::{QUEUES, TOPIC, journal, send, small_segments};

#[test]
fn an_empty_slave_gets_all_there_is_if_it_asks_for_the_oldest() {
    let dir = tempdir("ha-oldest");
    let journal = journal(&dir);
    let mut pair = Pair::prepare(dir.path(), "async-master", QUICK, small_segments());
    pair.master.start();
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 4_000);
    pair.slave.start();
    pair.await_caught_up();
    let of_slave = segments(&pair.slave.store_dir());
    assert_eq!(of_slave.keys().next(), Some(&0), "{of_slave:?}");
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

#[test]
fn a_slave_with_another_number_of_shards_says_so_and_takes_nothing() {
    let dir = tempdir("ha-shards");
    let journal = journal(&dir);
    let options = Options { shards: 2, ..small_segments() };
    let mut pair = Pair::prepare(dir.path(), "async-master", QUICK, options);
    pair.slave.options.shards = 1;
    pair.master.start();
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 500);
    pair.slave.start();
    let state = |state: &str| state.contains("the master has 2 shards and this slave 1");
    await_text(pair.slave.address(0), "ringmqHaState", state);
    await_text(pair.slave.address(0), "ringmqHaLastError", state);
    assert_eq!(number(pair.slave.address(0), "commitLogMaxOffset"), Some(0));
}

#[test]
fn an_empty_slave_gets_the_last_segment_as_a_stock_one_does() {
    let dir = tempdir("ha-newest");
    let journal = journal(&dir);
    let ha = QUICK.replace("oldest", "newest");
    let mut pair = Pair::prepare(dir.path(), "async-master", &ha, small_segments());
    pair.master.start();
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 4_000);
    let end = number(pair.master.address(0), "commitLogMaxOffset").expect("the log's end");
    pair.slave.start();
    pair.await_caught_up();
    let first = number(pair.slave.address(0), "commitLogMinOffset");
    assert_eq!(first, Some(end / (1 << 20) * (1 << 20)));
    assert!(pair.compare_logs() > 0);
    // Its queues begin where the segment's messages do, under the master's queue offsets; a restart keeps all of it.
    send(&pair.master, &journal, 1_000);
    pair.slave.sigkill();
    pair.slave.start();
    pair.await_caught_up();
    assert_eq!(number(pair.slave.address(0), "commitLogMinOffset"), first);
    pair.compare_logs();
}
