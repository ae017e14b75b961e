//! More than one slave: a synchronous master that waits for both, slaves on shards of their own, and what `ringmq admin` tells of all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Output;

use crate::support::broker::ringmq;
use crate::support::ha::{
    Pair, QUICK, assert_has_acknowledged, await_caught_up, await_streaming, await_text,
    compare_logs,
};
use crate::support::wire::Conn;
use crate::support::{Broker, Options, Target, ports, tempdir};
use crate::sync::send_one;
use crate::{QUEUES, TOPIC, journal, send, small_segments};

fn ha_status(args: &[&str]) -> (Output, String) {
    let mut command = ringmq();
    let output = command.args(["admin", "ha-status"]).args(args).output().expect("ringmq runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// The text of /metrics.
fn scrape(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the metrics port");
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The values of the series that begin so.
fn values<'a>(scrape: &'a str, start: &str) -> Vec<&'a str> {
    let series = scrape.lines().filter(|line| line.starts_with(start));
    series.filter_map(|line| line.rsplit(' ').next()).collect()
}

#[test]
fn a_master_that_waits_for_two_slaves_has_every_message_on_both() {
    const SHARDS: u16 = 2;
    let dir = tempdir("ha-two");
    let journal = journal(&dir);
    let ha = format!("{QUICK}in_sync_replicas = 2\n");
    let mut options = Options { shards: SHARDS, ..small_segments() };
    options.config.push_str("[durability]\nack_timeout_ms = 700\n");
    let mut pair = Pair::prepare(dir.path(), "sync-master", &ha, options);
    let watched = [ports::single(), ports::single()];
    let sides = [&mut pair.master, &mut pair.slave];
    for (broker, port) in sides.into_iter().zip(watched) {
        let listen = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
        broker.options.config.push_str(&listen);
    }
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    for shard in 0..SHARDS {
        await_streaming(pair.master.address(shard));
    }
    // One of two is not enough, and is not waited for.
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 11, "{reply:?}");
    let mut options = pair.slave.options.clone();
    options.args = ["--role", "slave", "--broker-id", "2"].map(str::to_owned).to_vec();
    options.config = options.config.replace(&watched[1].to_string(), &ports::single().to_string());
    let second = dir.sub("second");
    let mut second = Broker::joined(Target::RingMq, &second, options, pair.namesrv.address);
    let everywhere = |second: &Broker, wanted: &dyn Fn(SocketAddr, SocketAddr)| {
        (0..SHARDS).for_each(|shard| wanted(pair.master.address(shard), second.address(shard)));
    };
    everywhere(&second, &|master, slave| {
        await_text(master, "ringmqHaSlaves", |slaves| slaves == "2");
        await_caught_up(master, slave);
        await_text(master, "ringmqHaSlave_0", |s| s.contains("lagBytes=0"));
        await_text(master, "ringmqHaSlave_1", |s| s.contains("lagBytes=0"));
    });
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 0, "{reply:?}");
    assert_eq!(reply.ext("ackReplicas"), Some("2"));
    send(&pair.master, &journal, 1_000);

    // All of it at a glance, well and unwell.
    let namesrv = pair.namesrv.address.to_string();
    let (output, text) = ha_status(&["--namesrv", &namesrv]);
    assert!(output.status.success(), "{text}");
    for shard in 0..SHARDS {
        let (name, address) = (pair.master.shard_name(shard), pair.master.address(shard));
        assert!(text.contains(&format!("{name} 0 {address} SYNC_MASTER, ")), "{text}");
        assert!(text.contains(&format!("{name} 2 {} SLAVE, ", second.address(shard))), "{text}");
    }
    assert_eq!(text.matches(": streaming, sent ").count(), 4, "{text}");
    assert_eq!(text.matches(": following, reported ").count(), 4, "{text}");

    let at_master = scrape(watched[0]);
    assert_eq!(values(&at_master, "ringmq_ha_slaves{"), ["2.0", "2.0"], "{at_master}");
    assert_eq!(values(&at_master, "ringmq_ha_slaves_refused{"), ["0.0", "0.0"], "{at_master}");
    assert_eq!(values(&at_master, "ringmq_ha_slave_lag_bytes{").len(), 4, "{at_master}");
    assert_eq!(values(&at_master, "ringmq_ha_slave_lag_seconds{").len(), 4, "{at_master}");
    let at_slave = scrape(watched[1]);
    assert_eq!(values(&at_slave, "ringmq_ha_following{"), ["1.0", "1.0"], "{at_slave}");
    assert_eq!(values(&at_slave, "ringmq_ha_behind_bytes{").len(), 2, "{at_slave}");
    let received = values(&at_slave, "ringmq_ha_received_bytes_total{");
    assert!(received.iter().all(|bytes| *bytes != "0") && received.len() == 2, "{at_slave}");

    // One of the two stops without a word: the other one alone is not what was asked for.
    second.process().signal(libc::SIGSTOP);
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!((reply.code, reply.ext("ackReplicas")), (12, Some("1")), "{reply:?}");
    second.sigkill();
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "1");
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 11, "{reply:?}");
    let gone = second.address(0).to_string();
    let (output, text) = ha_status(&["--json", "--broker", &gone]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(json[0]["error"].as_str().expect("an error").contains(&gone), "{text}");

    second.start();
    everywhere(&second, &|master, slave| {
        await_caught_up(master, slave);
        await_text(master, "ringmqHaSlaves", |slaves| slaves == "2");
    });
    pair.await_caught_up();
    pair.compare_logs();
    for shard in 0..SHARDS {
        compare_logs(&pair.master.shard_dir(shard), &second.shard_dir(shard));
    }
    // Either slave has all of it when the master is gone.
    pair.master.sigkill();
    for slave in [&pair.slave, &second] {
        assert_has_acknowledged(slave, TOPIC, QUEUES, &journal);
    }
}
