//! A pair to which nothing happens.

use std::time::{Duration, Instant};

use crate::support::ha::{Pair, assert_has_acknowledged, await_streaming, await_text, number};
use crate::support::{Broker, Options, exclusive, rounds, tempdir};
use crate::{QUEUES, TOPIC, journal, send};

/// A night is eight of these here: what would be done at the end of one is done eight times.
const SHORT: &str =
    "heartbeat_ms = 100\nhousekeeping_ms = 500\nmetadata_ms = 200\nstart = \"oldest\"\n";
const PATIENCE: Duration = Duration::from_millis(500);

/// Processor time used so far.
fn cpu(broker: &mut Broker) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", broker.process().pid()));
    let stat = stat.expect("the process lives");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn an_idle_pair_stays_connected_costs_nothing_and_goes_on_at_once() {
    let _alone = exclusive();
    let dir = tempdir("ha-idle");
    let journal = journal(&dir);
    let mut pair = Pair::start(dir.path(), "sync-master", SHORT, Options::default());
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 100);
    pair.await_caught_up();
    let connections = number(pair.slave.address(0), "ringmqHaConnections");
    // A slow machine may have lines of other things.
    let of_both = |line: &&str| line.contains("slave") || line.contains("master");
    let lines = |broker: &mut Broker| broker.process().log_text().lines().filter(of_both).count();
    let told = (lines(&mut pair.master), lines(&mut pair.slave));
    let used = (cpu(&mut pair.master), cpu(&mut pair.slave));
    let began = Instant::now();
    // What is looked at is the passing of time.
    std::thread::sleep(PATIENCE * rounds(8));
    let idle = began.elapsed();
    for (used, broker) in [(used.0, &mut pair.master), (used.1, &mut pair.slave)] {
        let used = cpu(broker) - used;
        println!("{}: {used:?} of {idle:?}", broker.options.args.join(" "));
        assert!(used < idle / 4, "{used:?} of {idle:?}");
    }
    assert_eq!(number(pair.slave.address(0), "ringmqHaConnections"), connections);
    assert_eq!((lines(&mut pair.master), lines(&mut pair.slave)), told, "and say nothing");
    send(&pair.master, &journal, 100);
    assert!(journal.refused_in_earnest().is_empty());
    // The master sleeps for longer than anybody waits for it.
    pair.master.process().signal(libc::SIGSTOP);
    await_text(pair.slave.address(0), "ringmqHaState", |state| state.contains("silent"));
    pair.master.process().signal(libc::SIGCONT);
    await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
    await_streaming(pair.master.address(0));
    send(&pair.master, &journal, 100);
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}
