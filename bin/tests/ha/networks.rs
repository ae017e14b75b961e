//! Master and slave in two networks of the kernel, with a wire between that is pulled while messages are sent: no end and no reset of a
//! connection tells either side.

use std::net::{Ipv4Addr, SocketAddr};

use crate::support::broker::NameServer;
use crate::support::ha::{
    Pair, QUICK, assert_has_acknowledged, await_streaming, await_text, number,
};
use crate::support::load::Load;
use crate::support::net::{FarNetwork, Wire, in_own_network};
use crate::support::random::Random;
use crate::support::wire::Conn;
use crate::support::{Broker, Options, Target, ports, rounds, tempdir};
use crate::sync::send_one;
use crate::{QUEUES, TOPIC, journal, send, small_segments, spec};

/// A synchronous pair whose slave is in the far network. The log goes over `log`, all else over `other`.
fn pair(dir: &std::path::Path, far: &FarNetwork, log: &Wire<'_>, other: &Wire<'_>) -> Pair {
    let names = SocketAddr::new(other.near_addr.into(), ports::single());
    let namesrv = NameServer::start_on(Target::RingMq, &dir.join("namesrv"), names);
    let quick = QUICK.replace("2000", "1000");
    let options = |role: &[&str], ha: &str| Options {
        args: role.iter().map(|arg| (*arg).to_owned()).collect(),
        config: format!(
            "[ha]\n{ha}{quick}[durability]\nack_timeout_ms = 500\n[limits]\nmessage_bytes = 524288\n"
        ),
        ..small_segments()
    };
    let new = |name: &str, options| {
        Broker::new(Target::RingMq, &dir.join(name), options, Some(namesrv.address))
    };
    let mut master = new("master", options(&["--role", "sync-master"], ""));
    master.listen = Some(Ipv4Addr::UNSPECIFIED.into());
    let ha_port = SocketAddr::new(log.near_addr.into(), master.port + 1);
    let slave_options = options(&crate::SLAVE, &format!("master = \"{ha_port}\"\n"));
    let mut slave = new("slave", slave_options);
    slave.host = other.far_addr.into();
    slave.options.enter = far.enter();
    Pair { namesrv, master, slave }
}

#[test]
fn a_replication_port_that_cannot_be_reached_is_named_by_the_slave() {
    let name = "networks::a_replication_port_that_cannot_be_reached_is_named_by_the_slave";
    if !in_own_network(name) {
        return;
    }
    let dir = tempdir("ha-blocked");
    let far = FarNetwork::new(dir.path());
    let (log, other) = (far.wire(1), far.wire(2));
    let mut pair = pair(dir.path(), &far, &log, &other);
    log.cut_far();
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    // It is registered, and its store stays empty.
    let ha_port = format!("{}:{}", log.near_addr, pair.master.port + 1);
    let state = |state: &str| state.starts_with("connecting") && state.contains(&ha_port);
    await_text(pair.slave.address(0), "ringmqHaState", state);
    let failures = number(pair.slave.address(0), "ringmqHaFailures").expect("a number");
    await_text(pair.slave.address(0), "ringmqHaFailures", |now| {
        now.parse::<u64>().is_ok_and(|now| now > failures + 2)
    });
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    assert_eq!(send_one(&mut conn, "").0.code, 11);
    log.heal();
    pair.await_caught_up();
    await_text(pair.slave.address(0), "ringmqHaFailures", |failures| failures == "0");
    await_streaming(pair.master.address(0));
    assert_eq!(send_one(&mut conn, "").0.code, 0);
}

#[test]
fn a_wire_that_is_pulled_in_silence_costs_nothing_that_was_acknowledged() {
    let name = "networks::a_wire_that_is_pulled_in_silence_costs_nothing_that_was_acknowledged";
    if !in_own_network(name) {
        return;
    }
    let mut random = Random::from_env("ha-networks");
    let dir = tempdir("ha-networks");
    let journal = journal(&dir);
    let far = FarNetwork::new(dir.path());
    let (log, other) = (far.wire(1), far.wire(2));
    let mut pair = pair(dir.path(), &far, &log, &other);
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    let streams = |peer: &str| peer.contains("state=streaming");
    for round in 0..rounds(3) {
        await_text(pair.master.address(0), "ringmqHaSlave_0", streams);
        let before = journal.count();
        let load = Load::start(&pair.master.addresses(), &spec(), &journal);
        journal.await_count(before + 200 + random.below(300));
        match random.below(2) {
            0 => log.cut_near(),
            _ => log.cut_far(),
        }
        // Both find out by themselves.
        await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "0");
        await_text(pair.slave.address(0), "ringmqHaState", |state| state.starts_with("connecting"));
        match round % 3 {
            0 => load.stop(),
            1 => {
                pair.slave.sigkill();
                load.stop();
                pair.slave.start();
            }
            _ => {
                pair.master.sigkill();
                load.stop();
                pair.master.start();
            }
        }
        log.heal();
        pair.await_caught_up();
        await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
        println!("round {round}: {} bytes equal", pair.compare_logs());
        assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
        assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    }
    await_text(pair.master.address(0), "ringmqHaSlave_0", streams);
    send(&pair.master, &journal, 200);
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}
