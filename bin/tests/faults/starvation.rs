//! Two busy loops beside the broker for 60 s: slow is allowed, standing still is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::checker::{Checker, Rules};
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const QUEUES: u32 = 4;
const LOOPS: usize = 2;
/// `RINGMQ_STARVE_SECONDS`, else a minute.
fn starved() -> Duration {
    let seconds = std::env::var("RINGMQ_STARVE_SECONDS").ok();
    Duration::from_secs(
        seconds.map_or(60, |s| s.parse().expect("RINGMQ_STARVE_SECONDS is a number")),
    )
}
/// Neither a send nor a reactor may wait longer than this.
const STILL_MAX: Duration = Duration::from_millis(1_500);

#[test]
fn no_reactor_stops_turning_beside_busy_loops() {
    let _alone = exclusive();
    let target = Target::from_env();
    let dir = tempdir("starvation");
    let journal = Journal::create(&dir.path().join("journal"));
    let mut broker =
        Broker::standalone(target, &dir.sub("broker"), Options { shards: 2, ..Options::default() });
    broker.create_topic("Journal", QUEUES);

    let stop = Arc::new(AtomicBool::new(false));
    let loops: Vec<_> = (0..LOOPS)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                // SAFETY: lowers the priority of this thread alone (on Linux, nice values belong to threads).
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n = std::hint::black_box(n.wrapping_add(1));
                }
            })
        })
        .collect();

    let spec = LoadSpec {
        topic: "Journal".to_owned(),
        queues: QUEUES,
        conns: 2,
        window: 4,
        rate_max: 800,
    };
    let load = Load::start(&broker.addresses(), &spec, &journal);
    std::thread::sleep(Duration::from_secs(2));
    load.reset_gaps();
    let end = Instant::now() + starved();
    while Instant::now() < end {
        let before = journal.count();
        std::thread::sleep(Duration::from_secs(2));
        assert!(journal.count() > before, "no send was acknowledged for 2 s");
    }
    let gaps = load.gaps();
    stop.store(true, Ordering::Relaxed);
    for busy in loops {
        busy.join().expect("a busy loop");
    }
    load.stop();
    println!("longest waits for an acknowledgement: {gaps:?}; acknowledged: {}", journal.count());
    let limit = if target.is_stock() { Duration::from_secs(10) } else { STILL_MAX };
    for (shard, gap) in gaps {
        assert!(gap < limit, "shard {shard} answered nothing for {gap:?}");
    }
    let stalls = longest_stall(&broker.process().log_text());
    println!("longest stall that the broker itself recorded: {stalls:?}");
    assert!(stalls.unwrap_or_default() < STILL_MAX, "a reactor stood still for {stalls:?}");
    let rules = Rules::of(target, "write");
    Checker::new().check(&broker.addresses(), "Journal", QUEUES, &journal, rules);
}

/// The broker's stall recorder writes lines with `silent_ms=` or `lasted_ms=`.
fn longest_stall(log: &str) -> Option<Duration> {
    let fields = log
        .split_whitespace()
        .filter_map(|w| w.strip_prefix("silent_ms=").or_else(|| w.strip_prefix("lasted_ms=")));
    fields.filter_map(|n| n.parse().ok()).max().map(Duration::from_millis)
}
