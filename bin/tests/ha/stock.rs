//! Stock 4.9.7 brokers as peers, both ways.

use std::path::Path;

use crate::support::broker::NameServer;
use crate::support::ha::{
    QUICK, assert_has_acknowledged, await_caught_up, compare_logs, number, segments,
};
use crate::support::{Broker, Options, Target, have, peers, tempdir};
use crate::{QUEUES, TOPIC, consumers, journal, send, small_segments, stream};

/// A stock broker's clients find out about it by these, and it is sooner there.
const STOCK: [&str; 3] =
    ["registerNameServerPeriod=10000", "haSendHeartbeatInterval=1000", "slaveReadEnable=false"];

pub(crate) fn stock(role: &str, id: u32) -> Options {
    let mut options = small_segments();
    options.stock = STOCK.iter().map(|line| (*line).to_owned()).collect();
    options.stock.push(format!("brokerRole={role}"));
    options.stock.push(format!("brokerId={id}"));
    options
}

pub(crate) fn ringmq(args: &[&str]) -> Options {
    let mut options = small_segments();
    options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    options.config = format!("[ha]\n{QUICK}{}", options.config);
    options
}

pub(crate) fn have_stock() -> bool {
    let tools = ["java", "mvn"].iter().all(|tool| have(tool, "stock brokers"));
    if tools {
        peers::fetch("stock-4.9.7");
    }
    tools
}

pub(crate) fn broker(target: Target, dir: &Path, options: Options, namesrv: &NameServer) -> Broker {
    Broker::new(target, dir, options, Some(namesrv.address))
}

#[test]
fn a_stock_slave_behind_a_ringmq_master_has_every_byte_and_serves_it() {
    if !have_stock() {
        return;
    }
    let dir = tempdir("ha-stock-slave");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = ringmq(&["--role", "async-master"]);
    let mut master = broker(Target::RingMq, &dir.sub("master"), options, &namesrv);
    let mut slave = broker(Target::Stock497, &dir.sub("slave"), stock("SLAVE", 1), &namesrv);
    master.start();
    slave.start();
    master.create_topic(TOPIC, QUEUES);
    // It joins while the log is in its first segment, and so has all of it.
    let address = master.address(0);
    crate::support::ha::await_streaming(address);
    send(&master, &journal, 3_000);
    await_caught_up(address, slave.address(0));
    assert!(number(address, "commitLogMaxOffset") > Some(2 << 20), "a segment's end on the way");
    stream::await_topic_at(&slave);
    master.sigkill();
    assert_has_acknowledged(&slave, TOPIC, QUEUES, &journal);
    consumers::assert_a_consumer_reads_all(&slave, dir.path(), &journal);
    slave.sigkill();
    assert!(compare_logs(&master.store_dir(), &slave.store_dir()) > 2 << 20);
}

#[test]
fn a_ringmq_slave_behind_a_stock_master_has_every_byte_and_serves_it() {
    if !have_stock() {
        return;
    }
    let dir = tempdir("ha-stock-master");
    let journal = journal(&dir);
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let mut master =
        broker(Target::Stock497, &dir.sub("master"), stock("ASYNC_MASTER", 0), &namesrv);
    master.start();
    master.create_topic(TOPIC, QUEUES);
    // Three segments of history, then a slave that wants all of it.
    send(&master, &journal, 3_000);
    let options = ringmq(&["--role", "slave", "--broker-id", "1"]);
    let mut slave = broker(Target::RingMq, &dir.sub("slave"), options, &namesrv);
    slave.start();
    await_caught_up(master.address(0), slave.address(0));
    assert_eq!(segments(&slave.store_dir()).keys().next(), Some(&0), "from the first byte on");
    send(&master, &journal, 1_000);
    await_caught_up(master.address(0), slave.address(0));
    stream::await_topic_at(&slave);
    master.sigkill();
    assert_has_acknowledged(&slave, TOPIC, QUEUES, &journal);
    consumers::assert_a_consumer_reads_all(&slave, dir.path(), &journal);
    slave.sigkill();
    assert!(compare_logs(&master.store_dir(), &slave.store_dir()) > 2 << 20);
}
