//! Stock masters that are not what they were: nothing is taken over from them on trust.

use crate::support::broker::NameServer;
use crate::support::ha::{assert_has_acknowledged, await_caught_up, await_text, number};
use crate::support::{Target, tempdir};
use crate::{QUEUES, SLAVE, STOP_MAX, TOPIC, journal, send, stock, stream};

/// A slave that is silent for longer than its master: the master's heartbeat is the first that it hears.
const RARELY: &str = "heartbeat_ms = 60000\nhousekeeping_ms = 120000\nmetadata_ms = 300\nretry_max_ms = 500\nstart = \"oldest\"\n";

#[test]
fn a_stock_master_that_lost_its_disk_is_not_followed_and_takes_no_topics_along() {
    if !stock::have_stock() {
        return;
    }
    let dir = tempdir("ha-stock-wiped");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = stock::stock("ASYNC_MASTER", 0);
    let mut master = stock::broker(Target::Stock497, &dir.sub("master"), options, &namesrv);
    master.start();
    master.create_topic(TOPIC, QUEUES);
    let mut options = stock::ringmq(&SLAVE);
    options.config = options.config.replace(crate::support::ha::QUICK, RARELY);
    let mut slave = stock::broker(Target::RingMq, &dir.sub("slave"), options, &namesrv);
    slave.start();
    send(&master, &journal, 500);
    await_caught_up(master.address(0), slave.address(0));
    stream::await_topic_at(&slave);
    let end = number(slave.address(0), "commitLogMaxOffset").expect("its end");
    // A sound one is followed again, by its heartbeat alone.
    slave.terminate(STOP_MAX);
    slave.start();
    await_text(slave.address(0), "ringmqHaState", |state| state == "following");
    let lose = |master: &mut crate::support::Broker| {
        master.sigkill();
        std::fs::remove_dir_all(master.store_dir()).expect("the disk is gone");
        master.start();
    };
    lose(&mut master);
    let shorter =
        |state: &str| state.contains("diverged") && state.contains("ends before this one");
    await_text(slave.address(0), "ringmqHaState", shorter);
    stands(&slave, end);
    // It grows beyond the slave's end, with other messages.
    master.create_topic("Another", QUEUES);
    let others = crate::support::journal::Journal::create(&dir.path().join("others"));
    let spec = crate::support::load::LoadSpec { topic: "Another".to_owned(), ..crate::spec() };
    while number(master.address(0), "commitLogMaxOffset") < Some(end + (1 << 20)) {
        let before = others.count();
        let load = crate::Load::start(&master.addresses(), &spec, &others);
        others.await_count(before + 500);
        load.stop();
    }
    let other =
        |state: &str| state.contains("diverged") && state.contains("does not have the message");
    await_text(slave.address(0), "ringmqHaState", other);
    assert_eq!(number(slave.address(0), "commitLogMaxOffset"), Some(end));
    stream::await_topic_at(&slave);
    assert_has_acknowledged(&slave, TOPIC, QUEUES, &journal);
}

/// The slave tries again and again, and keeps what it has.
fn stands(slave: &crate::support::Broker, end: u64) {
    let address = slave.address(0);
    let tries = number(address, "ringmqHaConnections").expect("a number");
    await_text(address, "ringmqHaConnections", |now| {
        now.parse::<u64>().is_ok_and(|now| now > tries)
    });
    await_text(address, "ringmqHaState", |state| state.contains("diverged"));
    assert_eq!(number(address, "commitLogMaxOffset"), Some(end));
    stream::await_topic_at(slave);
}
