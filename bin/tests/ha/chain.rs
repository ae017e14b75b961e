//! A slave that follows a slave.

use crate::support::broker::NameServer;
use crate::support::ha::{
    Backup, QUICK, assert_has_acknowledged, await_caught_up, await_text, compare_logs,
};
use crate::support::journal::Journal;
use crate::support::{Broker, Target, tempdir};
use crate::{QUEUES, TOPIC, journal, send, small_segments, stream};

fn epochs(broker: &Broker) -> String {
    std::fs::read_to_string(broker.store_dir().join("epochFileCheckpoint")).unwrap_or_default()
}

/// The one in the middle hears of new terms while the last one is connected to it.
#[test]
fn a_slave_of_a_slave_hears_of_new_terms_and_is_cut_with_it() {
    let dir = tempdir("ha-chain");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let broker = |name: &str, args: &[&str], ha: &str| {
        let mut options = small_segments();
        options.config = format!("[ha]\n{QUICK}{ha}{}", options.config);
        options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut broker =
            Broker::new(Target::RingMq, &dir.sub(name), options, Some(namesrv.address));
        broker.start();
        broker
    };
    let mut first = broker("first", &["--role", "async-master"], "");
    let second = broker("second", &["--role", "slave", "--broker-id", "1"], "");
    let above = format!("master = \"127.0.0.1:{}\"\n", second.port + 1);
    let third = broker("third", &["--role", "slave", "--broker-id", "2"], &above);
    first.create_topic(TOPIC, QUEUES);
    let follow_on = |first: &Broker| {
        await_caught_up(first.address(0), second.address(0));
        await_caught_up(first.address(0), third.address(0));
        for slave in [&second, &third] {
            await_text(slave.address(0), "ringmqHaState", |state| state == "following");
            compare_logs(&first.store_dir(), &slave.store_dir());
            assert_eq!(epochs(slave), epochs(first));
        }
    };
    send(&first, &journal, 300);
    follow_on(&first);
    stream::await_topic_at(&third);
    for _ in 0..2 {
        first.sigkill();
        first.start();
        send(&first, &journal, 100);
        follow_on(&first);
    }
    // The master goes back to what it was, as from a backup: both are cut there.
    let backup = Backup::take(&mut first, dir.path());
    send(&first, &Journal::create(&dir.path().join("lost")), 300);
    follow_on(&first);
    first.sigkill();
    backup.restore();
    first.start();
    await_text(first.address(0), "ringmqHaSlaves", |slaves| !slaves.is_empty());
    send(&first, &journal, 100);
    for slave in [&second, &third] {
        await_text(slave.address(0), "ringmqHaCut", |cut| cut.contains("at="));
    }
    follow_on(&first);
    for broker in [&first, &second, &third] {
        assert_has_acknowledged(broker, TOPIC, QUEUES, &journal);
    }
}
