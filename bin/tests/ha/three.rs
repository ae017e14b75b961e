//! A master with two slaves, both of which must hold a message.

use crate::support::broker::NameServer;
use crate::support::ha::{
    QUICK, assert_has_acknowledged, await_caught_up, await_text, compare_logs,
};
use crate::support::load::Load;
use crate::support::{Broker, Target, tempdir};
use crate::{QUEUES, STOP_MAX, TOPIC, journal, role, send, small_segments, spec, stream};

fn of_id(id: &str) -> Vec<&str> {
    vec!["--role", "slave", "--broker-id", id]
}

#[test]
fn of_two_slaves_one_becomes_the_master_and_the_other_follows_it_without_a_restart() {
    let dir = tempdir("ha-three");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let broker = |name: &str, args: &[&str]| {
        let mut options = small_segments();
        options.config = format!("[ha]\n{QUICK}in_sync_replicas = 2\n{}", options.config);
        options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut broker =
            Broker::new(Target::RingMq, &dir.sub(name), options, Some(namesrv.address));
        broker.start();
        broker
    };
    let mut a = broker("a", &["--role", "sync-master"]);
    a.create_topic(TOPIC, QUEUES);
    let mut b = broker("b", &of_id("1"));
    let c = broker("c", &of_id("2"));
    for slave in ["ringmqHaSlave_0", "ringmqHaSlave_1"] {
        await_text(a.address(0), slave, |peer| peer.contains("streaming"));
    }
    stream::await_topic_at(&b);
    stream::await_topic_at(&c);
    send(&a, &journal, 500);
    let load = Load::start(&a.addresses(), &spec(), &journal);
    journal.await_count(1_500);
    a.sigkill();
    load.stop();
    // Whatever was acknowledged is on both: either may become the master.
    b.terminate(STOP_MAX);
    role(&mut b, &["--role", "sync-master"]);
    b.start();
    await_text(b.address(0), "ringmqHaSlave_0", |peer| peer.contains("id=2 "));
    await_caught_up(b.address(0), c.address(0));
    // The old master is the second slave, with messages that only it has.
    role(&mut a, &of_id("3"));
    a.start();
    for slave in ["ringmqHaSlave_0", "ringmqHaSlave_1"] {
        await_text(b.address(0), slave, |peer| peer.contains("streaming"));
    }
    send(&b, &journal, 500);
    for slave in [&a, &c] {
        await_caught_up(b.address(0), slave.address(0));
        assert_has_acknowledged(slave, TOPIC, QUEUES, &journal);
        compare_logs(&b.store_dir(), &slave.store_dir());
    }
    assert!(assert_has_acknowledged(&b, TOPIC, QUEUES, &journal) >= 2_000);
}
