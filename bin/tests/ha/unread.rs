//! Metadata that a slave does not take as it is told: one that stands still, and one that gets more than may wait for it.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::ha::{CAUGHT_UP_MAX, Pair, await_streaming, await_text, number, runtime};
use crate::support::wire::{Conn, code, eventually, send_ext};
use crate::support::{Broker, Options, tempdir};
use crate::{QUEUES, TOPIC, stream};

const GET_ALL_CONSUMER_OFFSET: i32 = 43;
/// More than may wait for a slave.
const COMMITS: u32 = 1_000;
/// Theirs: progress on a topic that is made later is forgotten then.
const OTHER: &str = "Other";
/// A slave that stands still is not given up, and tables are not asked for by time.
const PATIENT: &str =
    "heartbeat_ms = 300\nhousekeeping_ms = 600000\nmetadata_ms = 600000\nstart = \"oldest\"\n";

/// Groups that a slave has to be told of when it joins, a thousand a piece: `RINGMQ_TEST_GROUPS`, else 10,000.
fn groups() -> u32 {
    std::env::var("RINGMQ_TEST_GROUPS").map_or(10_000, |groups| groups.parse().expect("a number"))
}

/// Commits at a master for a group each, and has every answer.
fn commit_many(master: SocketAddr, offset: u32) -> Duration {
    let offset = offset.to_string();
    let mut conn = Conn::open(master).expect("a connection");
    let began = Instant::now();
    for n in 0..COMMITS {
        let group = format!("reader-{n}");
        let ext = [
            ("consumerGroup", group.as_str()),
            ("topic", TOPIC),
            ("queueId", "0"),
            ("commitOffset", offset.as_str()),
        ];
        let reply = conn.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[]).expect("an answer");
        assert_eq!(reply.code, 0);
    }
    began.elapsed()
}

/// All progress that a broker has, one text for each group and topic.
fn all_progress(broker: SocketAddr) -> HashSet<String> {
    let mut conn = Conn::open(broker).expect("a connection");
    let reply = conn.call(GET_ALL_CONSUMER_OFFSET, &[], &[]).expect("an answer");
    let text = String::from_utf8(reply.body).expect("text");
    let table = text.split_once(":{").expect("a table").1;
    table.split('}').map(|entry| entry.trim_start_matches(',').to_owned()).collect()
}

fn await_equal_progress(pair: &Pair) {
    let wanted = all_progress(pair.master.address(0));
    assert!(wanted.len() >= COMMITS as usize);
    let slave = pair.slave.address(0);
    let missing = || wanted.difference(&all_progress(slave)).count();
    let equal = eventually(CAUGHT_UP_MAX, || {
        (missing() == 0).then_some(()).or_else(|| {
            // The table is large: it is not asked for all the time.
            std::thread::sleep(Duration::from_millis(300));
            None
        })
    });
    assert!(equal.is_some(), "{} of {} are not at the slave", missing(), wanted.len());
}

/// The end of what the master has sent to its first slave.
fn sent(master: SocketAddr) -> Option<u64> {
    let table = runtime(master);
    let slave = table.get("ringmqHaSlave_0")?;
    slave.split("sent=").nth(1)?.split(' ').next()?.parse().ok()
}

/// Sends until sockets and all on the way to the slave are full: nothing gets away for a while in which more comes.
fn fill_the_way(master: &Broker) {
    const AHEAD: u64 = 4 << 20;
    const STILL: Duration = Duration::from_millis(500);
    let address = master.address(0);
    let mut conn = Conn::open(address).expect("a connection");
    let body = vec![b'u'; 128 << 10];
    let mut still = None;
    let filled = eventually(CAUGHT_UP_MAX, || {
        for _ in 0..if still.is_some() { 2 } else { 16 } {
            let ext = send_ext("g", TOPIC, "0", "", false);
            let reply = conn.call(code::SEND_MESSAGE_V2, &ext, &body).expect("an answer");
            assert_eq!(reply.code, 0, "{reply:?}");
        }
        let now = sent(address)?;
        let end = number(address, "commitLogMaxOffset")?;
        match still {
            Some((at, since)) if at == now && end > now + AHEAD => {
                (Instant::elapsed(&since) >= STILL).then_some(())
            }
            _ => {
                still = (end > now + AHEAD).then(|| (now, Instant::now()));
                None
            }
        }
    });
    assert!(filled.is_some(), "{:?}", runtime(address));
}

#[test]
fn a_slave_that_takes_nothing_delays_no_commit_and_has_them_all_when_it_goes_on() {
    let dir = tempdir("ha-unread");
    let mut pair = Pair::start(dir.path(), "async-master", PATIENT, Options::default());
    let master = pair.master.address(0);
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(master);
    stream::await_topic_at(&pair.slave);
    // Well: each commit is answered when it is told.
    println!("{COMMITS} commits took {:?}", commit_many(master, 1));
    await_equal_progress(&pair);

    pair.slave.process().signal(libc::SIGSTOP);
    fill_the_way(&pair.master);
    let took = commit_many(master, 2);
    println!("with a slave that takes nothing: {took:?}");
    // If each waited for its 20 ms it would be 20 s.
    assert!(took < Duration::from_millis(20) * COMMITS / 2, "{took:?}");
    assert_eq!(number(master, "ringmqHaSlaves"), Some(1), "it is still there");

    pair.slave.process().signal(libc::SIGCONT);
    await_equal_progress(&pair);
    assert_eq!(number(pair.slave.address(0), "ringmqHaConnections"), Some(1));
    // And it is told of single commits again.
    println!("after it: {:?}", commit_many(master, 3));
    await_equal_progress(&pair);
    pair.await_caught_up();
}

#[test]
fn all_progress_reaches_a_slave_that_joins_under_more_commits_than_may_wait() {
    let dir = tempdir("ha-many-pieces");
    let mut pair = Pair::prepare(dir.path(), "async-master", PATIENT, Options::default());
    let mut table = "{\"offsetTable\":{".to_owned();
    for n in 0..groups() {
        let comma = if n > 0 { "," } else { "" };
        write!(table, "{comma}\"{OTHER}@group-{n}\":{{0:{n}}}").expect("a text");
    }
    table.push_str("}}");
    let config = pair.master.store_dir().join("config");
    std::fs::create_dir_all(&config).expect("a directory");
    std::fs::write(config.join("consumerOffset.json"), table).expect("a table");
    pair.master.start();
    let master = pair.master.address(0);
    pair.master.create_topic(TOPIC, QUEUES);
    pair.slave.start();
    await_streaming(master);
    // While all of the table is on its way: more than may wait beside it.
    commit_many(master, 7);
    await_equal_progress(&pair);
    let all = all_progress(pair.slave.address(0)).len();
    assert!(all >= (groups() + COMMITS) as usize, "{all}");
    await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
    commit_many(master, 8);
    await_equal_progress(&pair);
}
