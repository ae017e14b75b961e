//! A slave that joins a synchronous master far behind it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::ha::{CAUGHT_UP_MAX, Pair, QUICK, await_streaming, number};
use crate::support::link::Link;
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Broker, Options, checker, tempdir};
use crate::{QUEUES, TOPIC};

const BODY_BYTES: usize = 128 << 10;
/// So slow that a slave is not near within any patience.
const NARROW: u64 = 64 << 10;
const SLAVE_NOT_AVAILABLE: i32 = 11;
const FLUSH_SLAVE_TIMEOUT: i32 = 12;

/// Bytes that the slave is behind when it joins: `RINGMQ_TEST_BEHIND_MIB`, else 12 MiB.
fn behind() -> u64 {
    let mib = std::env::var("RINGMQ_TEST_BEHIND_MIB").map_or(12, |mib| mib.parse().expect("MiB"));
    mib << 20
}

/// With that much to be brought over, at the pace of a busy machine.
fn patience() -> Duration {
    CAUGHT_UP_MAX + Duration::from_secs((behind() >> 20) / 4)
}

/// Sends to a master and keeps what was said of each message, and what it was.
struct Sender {
    conn: Conn,
    sent: u64,
    /// Where each was stored: the first byte of its body.
    stored: BTreeMap<(i32, i64), u8>,
}

impl Sender {
    fn to(master: &Broker) -> Sender {
        let conn = Conn::open(master.address(0)).expect("a connection");
        Sender { conn, sent: 0, stored: BTreeMap::new() }
    }

    fn send(&mut self) -> Reply {
        self.sent += 1;
        let (mark, queue) = (self.sent as u8, (self.sent % u64::from(QUEUES)).to_string());
        let ext = send_ext("g", TOPIC, &queue, "", false);
        let body = vec![mark; BODY_BYTES];
        let reply = self.conn.call(code::SEND_MESSAGE_V2, &ext, &body).expect("a reply");
        let place = (reply.number("queueId") as i32, reply.number("queueOffset"));
        assert_eq!(self.stored.insert(place, mark), None, "two messages at {place:?}");
        reply
    }

    fn assert_all_at(&self, broker: &Broker) {
        let mut found = BTreeMap::new();
        checker::read_each(broker.address(0), TOPIC, QUEUES, |message| {
            let place = (message.queue, message.offset);
            found.insert(place, (message.body[0], message.body.len()));
        });
        assert_eq!(found.len(), self.stored.len());
        for (place, mark) in &self.stored {
            assert_eq!(found.get(place), Some(&(*mark, BODY_BYTES)), "at {place:?}");
        }
    }
}

fn refused(reply: &Reply) -> (i32, Option<&str>, Option<&str>) {
    (reply.code, reply.ext("ackLevel"), reply.ext("ackReplicas"))
}

#[test]
fn a_slave_that_is_far_behind_is_not_waited_for_until_it_is_nearer_and_then_holds_all() {
    let dir = tempdir("ha-behind");
    let bound = behind() / 3;
    let ha = format!("{QUICK}fall_behind_bytes = {bound}\n");
    let mut pair = Pair::prepare(dir.path(), "sync-master", &ha, Options::default());
    pair.master.start();
    let master = pair.master.address(0);
    let mut ha_port = master;
    ha_port.set_port(ha_port.port() + 1);
    let link = Link::to(ha_port);
    let section = format!("[ha]\nmaster = \"{}\"\n", link.address);
    let options = &mut pair.slave.options;
    options.config = options.config.replacen("[ha]\n", &section, 1);
    pair.master.create_topic(TOPIC, QUEUES);
    let mut sender = Sender::to(&pair.master);
    while number(master, "commitLogMaxOffset") < Some(behind()) {
        for _ in 0..16 {
            let reply = sender.send();
            assert_eq!(refused(&reply), (SLAVE_NOT_AVAILABLE, Some("write"), Some("0")));
        }
    }
    link.rate(Some(NARROW));
    pair.slave.start();
    await_streaming(master);
    // It is there, and too far away.
    for _ in 0..8 {
        let reply = sender.send();
        assert_eq!(refused(&reply), (SLAVE_NOT_AVAILABLE, Some("write"), Some("0")));
    }
    assert_eq!(number(master, "ringmqHaSlaves"), Some(1));
    let held = number(pair.slave.address(0), "commitLogMaxOffset").expect("its end");
    assert!(held + bound < behind(), "it has {held} already: the link was not narrow");
    link.rate(None);
    let mut before = BTreeMap::new();
    let waits = eventually(patience(), || {
        let reply = sender.send();
        *before.entry(reply.code).or_insert(0) += 1;
        assert!([0, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT].contains(&reply.code), "{reply:?}");
        (reply.code == 0).then_some(reply)
    });
    println!("answers while it came near: {before:?}");
    let reply = waits.expect("the slave comes near enough to be waited for");
    assert_eq!(refused(&reply), (0, Some("write"), Some("1")));
    pair.await_caught_up();
    for _ in 0..8 {
        assert_eq!(refused(&sender.send()), (0, Some("write"), Some("1")));
    }
    pair.await_caught_up();
    pair.compare_logs();
    // Whatever was answered is stored, on either side.
    sender.assert_all_at(&pair.master);
    sender.assert_all_at(&pair.slave);
}
