//! Brokers that reach each other by another address than clients reach them.

use crate::support::ha::{Pair, QUICK, await_text};
use crate::support::tempdir;
use crate::support::wire::{Conn, code};
use crate::{QUEUES, TOPIC, journal, send, small_segments, stream};

/// Nobody is there (RFC 5737).
const OUTER: &str = "192.0.2.1";

#[test]
fn slaves_use_the_inner_address_and_clients_the_outer_one() {
    let dir = tempdir("ha-inner");
    let journal = journal(&dir);
    let mut pair = Pair::prepare(dir.path(), "async-master", QUICK, small_segments());
    let outer = format!("{OUTER}:{}", pair.master.port);
    pair.master.options.args.extend(["--advertise".to_owned(), outer.clone()]);
    let config =
        pair.master.options.config.replacen("[ha]\n", "[ha]\nadvertise = \"127.0.0.1\"\n", 1);
    pair.master.options.config = config;
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 500);
    pair.await_caught_up();
    // Its tables as well: the address that clients are told leads nowhere.
    stream::await_topic_at(&pair.slave);
    let mut inner = pair.master.address(0);
    inner.set_port(inner.port() + 1);
    await_text(pair.slave.address(0), "ringmqHaMaster", |master| master == inner.to_string());
    let mut names = Conn::open(pair.namesrv.address).expect("the name server");
    let route = names.call(code::GET_ROUTE_BY_TOPIC, &[("topic", TOPIC)], &[]).expect("a route");
    let route = String::from_utf8_lossy(&route.body).into_owned();
    assert!(route.contains(&outer), "{route}");
}
