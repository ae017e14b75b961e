//! Delayed messages across a change of masters.

use std::collections::BTreeMap;

use crate::support::ha::{CAUGHT_UP_MAX, Pair, QUICK, await_streaming};
use crate::support::wire::{Conn, code, eventually, send_ext};
use crate::support::{Broker, Options, checker, tempdir};
use crate::{MASTER, STOP_MAX, TOPIC, role, stream};

const EACH: usize = 50;

/// How often each body was delivered.
fn delivered(broker: &Broker) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in checker::read_all(broker.address(0), TOPIC, 1) {
        *counts.entry(String::from_utf8_lossy(&message.body).into_owned()).or_default() += 1;
    }
    counts
}

fn progress(broker: &Broker) -> String {
    let path = broker.store_dir().join("config/delayOffset.json");
    std::fs::read_to_string(path).unwrap_or_default().split_whitespace().collect()
}

#[test]
fn delayed_messages_are_delivered_once_each_across_a_change_of_masters() {
    let dir = tempdir("ha-delays");
    let config = "[topics]\ndelay_levels = \"1s 12s\"\n".to_owned();
    let options = Options { config, ..Options::default() };
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, options);
    pair.master.create_topic(TOPIC, 1);
    await_streaming(pair.master.address(0));
    stream::await_topic_at(&pair.slave);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    for n in 0..2 * EACH {
        let level = if n < EACH { "1" } else { "2" };
        let properties = format!("DELAY\u{1}{level}\u{2}WAIT\u{1}true");
        let ext = send_ext("g", TOPIC, "0", &properties, false);
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, format!("{n:03}").as_bytes());
        assert_eq!(reply.expect("a reply").code, 0);
    }
    // The half that is due is delivered, and the slave knows: level 1 is at 50, level 2 at its beginning.
    let fired = eventually(CAUGHT_UP_MAX, || (delivered(&pair.master).len() == EACH).then_some(()));
    assert!(fired.is_some(), "{:?}", delivered(&pair.master));
    let told = format!("1:{EACH}");
    let known = eventually(CAUGHT_UP_MAX, || progress(&pair.slave).contains(&told).then_some(()));
    assert!(known.is_some(), "{}", progress(&pair.slave));
    pair.await_caught_up();
    pair.master.sigkill();
    pair.slave.terminate(STOP_MAX);
    role(&mut pair.slave, &MASTER);
    pair.slave.start();
    let all =
        eventually(CAUGHT_UP_MAX, || (delivered(&pair.slave).len() == 2 * EACH).then_some(()));
    assert!(all.is_some(), "{:?}", delivered(&pair.slave));
    let twice: Vec<_> =
        delivered(&pair.slave).into_iter().filter(|(_, times)| *times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
