//! Masters and slaves as running programs: what a slave has, what a synchronous master promises, and what is left when either dies.

#[path = "../support/mod.rs"]
mod support;

mod amnesia;
mod behind;
mod busy;
mod chain;
mod consumers;
mod crowd;
mod delays;
mod deployments;
mod diverge;
mod full;
mod idle;
mod inner;
mod kill;
mod late;
mod links;
mod lost;
mod memory;
mod networks;
mod progress;
mod promote;
mod read_only;
mod stock;
mod stream;
mod sync;
mod tail;
mod three;
mod twins;
mod unread;

use std::sync::Arc;
use std::time::Duration;

use support::ha::{NO_DRAIN, Pair, await_caught_up, compare_logs};
use support::journal::Journal;
use support::load::{Load, LoadSpec};
use support::{Broker, Options, TempDir};

const TOPIC: &str = "Replicated";
const QUEUES: u32 = 4;

const STOP_MAX: Duration = Duration::from_secs(30);
const MASTER: [&str; 2] = ["--role", "async-master"];
const SLAVE: [&str; 4] = ["--role", "slave", "--broker-id", "1"];

fn role(broker: &mut Broker, args: &[&str]) {
    broker.options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
}

/// The slave becomes the master and the master, whose log parted from it, its slave: their logs are equal then. Neither runs before.
fn exchange(pair: &mut Pair) {
    role(&mut pair.slave, &MASTER);
    pair.slave.start();
    role(&mut pair.master, &SLAVE);
    pair.master.start();
    await_caught_up(pair.slave.address(0), pair.master.address(0));
    compare_logs(&pair.slave.store_dir(), &pair.master.store_dir());
}

/// A load of some hundred messages a second on every shard.
fn spec() -> LoadSpec {
    LoadSpec { topic: TOPIC.to_owned(), queues: QUEUES, conns: 2, window: 16, rate_max: 6_000 }
}

/// Segments that a test fills in no time.
fn small_segments() -> Options {
    Options {
        segment_bytes: 1 << 20,
        config: format!("{NO_DRAIN}[limits]\nmessage_bytes = 524288\n"),
        ..Options::default()
    }
}

fn journal(dir: &TempDir) -> Arc<Journal> {
    Journal::create(&dir.path().join("journal"))
}

/// Sends until so many more messages are acknowledged.
fn send(broker: &Broker, journal: &Arc<Journal>, count: u64) {
    let before = journal.count();
    let load = Load::start(&broker.addresses(), &spec(), journal);
    journal.await_count(before + count);
    load.stop();
}
