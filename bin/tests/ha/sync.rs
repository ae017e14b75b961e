//! What a synchronous master answers.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::ha::{Pair, assert_has_acknowledged, await_streaming, await_text};
use crate::support::wire::{Conn, Reply, code, frame, send_ext};
use crate::support::{Options, tempdir};
use crate::{QUEUES, TOPIC, journal, send, small_segments};

/// A stopped slave is noticed late here: what counts are the timeouts of sends.
const PATIENT: &str = "heartbeat_ms = 300\nhousekeeping_ms = 60000\nmetadata_ms = 300\nretry_max_ms = 500\nstart = \"oldest\"\n";

pub(crate) fn send_one(conn: &mut Conn, properties: &str) -> (Reply, Duration) {
    let began = Instant::now();
    let ext = send_ext("g", TOPIC, "0", properties, false);
    let reply = conn.call(code::SEND_MESSAGE_V2, &ext, b"a message").expect("a reply");
    (reply, began.elapsed())
}

#[test]
fn a_synchronous_master_says_who_holds_a_message() {
    let dir = tempdir("ha-sync");
    let options =
        Options { config: "[durability]\nack_timeout_ms = 700\n".to_owned(), ..Options::default() };
    let mut pair = Pair::prepare(dir.path(), "sync-master", PATIENT, options);
    pair.master.start();
    pair.master.create_topic(TOPIC, QUEUES);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    // No slave: stored here, and said so.
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 11, "{reply:?}");
    assert_eq!((reply.ext("ackLevel"), reply.ext("ackReplicas")), (Some("write"), Some("0")));
    // Who does not wait hears of success.
    let (reply, _) = send_one(&mut conn, "WAIT\u{1}false");
    assert_eq!(reply.code, 0, "{reply:?}");
    // A peer that claims more than there is counts as no slave, and is not waited for.
    let mut ha_port = pair.master.address(0);
    ha_port.set_port(ha_port.port() + 1);
    let mut forger = TcpStream::connect(ha_port).expect("a connection to the HA port");
    forger.write_all(&i64::MAX.to_be_bytes()).expect("a report");
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("state=refused"));
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!((reply.code, reply.ext("ackReplicas")), (11, Some("0")), "{reply:?}");
    drop(forger);
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "0");
    pair.slave.start();
    pair.await_caught_up();
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("lagBytes=0"));
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 0, "{reply:?}");
    assert_eq!((reply.ext("ackLevel"), reply.ext("ackReplicas")), (Some("write"), Some("1")));
    // A slave that has stopped: stored here, not there, as far as is known.
    pair.slave.process().signal(libc::SIGSTOP);
    let (reply, took) = send_one(&mut conn, "");
    assert_eq!(reply.code, 12, "{reply:?}");
    assert_eq!((reply.ext("ackLevel"), reply.ext("ackReplicas")), (Some("write"), Some("0")));
    assert!(took >= Duration::from_millis(700), "{took:?}");
    let (reply, _) = send_one(&mut conn, "WAIT\u{1}false");
    assert_eq!(reply.code, 0, "{reply:?}");
    pair.slave.process().signal(libc::SIGCONT);
    pair.await_caught_up();
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("lagBytes=0"));
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 0, "{reply:?}");
    pair.slave.sigkill();
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "0");
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!(reply.code, 11, "{reply:?}");
}

/// More comes than this disk takes: nothing is stored, and it is no matter of slaves.
fn is_busy(reply: &Reply) -> bool {
    reply.code == 1 && reply.remark.as_deref().is_some_and(|why| why.contains("broker busy"))
}

#[test]
fn sends_that_wait_are_acknowledged_in_the_midst_of_many_that_do_not() {
    let dir = tempdir("ha-sync-mixed");
    let pair =
        Pair::start(dir.path(), "sync-master", crate::support::ha::QUICK, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(pair.master.address(0));
    let address = pair.master.address(0);
    let stop = Arc::new(AtomicBool::new(false));
    let flooders = [1 << 10, 1 << 20].map(|bytes: usize| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut conn = Conn::open(address).expect("a connection");
            let ext = send_ext("g", TOPIC, "1", "WAIT\u{1}false", false);
            // Some thousand a second, and ten: what a slave keeps up with.
            let (window, pause_ms) = if bytes > 1 << 16 { (1, 100) } else { (32, 8) };
            let frame = frame(code::SEND_MESSAGE_V2, 1, &ext, &vec![b'f'; bytes]);
            let mut sent = 0u64;
            while !stop.load(Ordering::SeqCst) {
                (0..window).for_each(|_| conn.write(&frame).expect("a request"));
                for _ in 0..window {
                    let reply = conn.read_reply().expect("a reply");
                    assert!(reply.code == 0 || is_busy(&reply), "{reply:?}");
                    sent += u64::from(reply.code == 0);
                }
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
            sent
        })
    });
    let mut conn = Conn::open(address).expect("a connection");
    let replies: Vec<Reply> = (0..60).map(|_| send_one(&mut conn, "").0).collect();
    stop.store(true, Ordering::SeqCst);
    let sent = flooders.map(|flooder| flooder.join().expect("a flooder"));
    println!("{sent:?} that did not wait");
    let others: Vec<&Reply> = replies.iter().filter(|reply| !is_busy(reply)).collect();
    assert!(others.len() > 30 && others.iter().all(|reply| reply.code == 0), "{others:?}");
    pair.await_caught_up();
    pair.compare_logs();
}

#[test]
fn what_a_synchronous_master_acknowledged_is_on_its_slave_when_it_dies() {
    for (level, ack) in [("write", "write"), ("sync", "sync")] {
        let dir = tempdir("ha-sync-death");
        let journal = journal(&dir);
        let ha = format!("{PATIENT}ack = \"{ack}\"\n");
        let options = Options { durability: level, ..small_segments() };
        let mut pair = Pair::start(dir.path(), "sync-master", &ha, options);
        await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "1");
        pair.master.create_topic(TOPIC, QUEUES);
        send(&pair.master, &journal, 500);
        let before = journal.count();
        let load = crate::Load::start(&pair.master.addresses(), &crate::spec(), &journal);
        journal.await_count(before + 1_000);
        pair.master.sigkill();
        load.stop();
        // What was received before the end is dispatched without the master.
        await_text(pair.slave.address(0), "dispatchBehindBytes", |behind| behind == "0");
        await_text(pair.slave.address(0), "ringmqHaState", |state| state.contains("connecting"));
        let refusals = journal.refused_in_earnest();
        assert!(refusals.is_empty(), "{refusals:?}");
        assert!(assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal) >= 1_500);
    }
}
