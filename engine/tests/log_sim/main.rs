//! The crash simulator of the commit log: seeded worlds in which the pure log core runs against a disk that tears, loses
//! and fails, is killed at any point, recovers, is killed again while it recovers, and goes on; an oracle with its own
//! record format checks every promise after each recovery.
//!
//! - `RINGMQ_SIM_SEEDS=n` runs n seeds (default 2,000), from `RINGMQ_SIM_BASE=n` (default 0).
//! - `RINGMQ_SIM_SEED=n` runs one and prints what happens. A failing run prints the command.

mod disk;
mod message;
mod oracle;
mod rng;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmq_engine::log::Switches;

use crate::{
    oracle::Violation,
    world::{Counts, World},
};

const SEEDS_DEFAULT: u64 = 2_000;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What the oracle looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// What a sender was told and what a reader sees. With a core that is broken on purpose, what is noticed is harm.
    AsAUser,
    /// Also what a later crash could change.
    AtTheDisk,
}

/// Runs one seed. A failed assertion inside the core is a violation as well.
fn run(
    seed: u64,
    switches: Switches,
    look: Look,
    verbose: bool,
) -> Result<(u64, Counts), Violation> {
    let world = || {
        let mut world = World::new(seed, switches, look == Look::AtTheDisk, verbose);
        world.run().map(|trace| (trace, world.counts))
    };
    catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn fail(seed: u64, violation: &str) -> ! {
    panic!(
        "seed {seed}: {violation}\nreplay: RINGMQ_SIM_SEED={seed} cargo test -p ringmq-engine --test log_sim acknowledged -- --nocapture"
    )
}

#[test]
fn acknowledged_records_survive_every_crash_their_level_covers() {
    if let Some(seed) = env("RINGMQ_SIM_SEED") {
        match run(seed, Switches::default(), Look::AtTheDisk, true) {
            Ok((_, counts)) => println!("seed {seed} holds: {counts:?}"),
            Err(violation) => fail(seed, &violation),
        }
        return;
    }
    let base = env("RINGMQ_SIM_BASE").unwrap_or(0);
    let seeds = env("RINGMQ_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let mut counts = Counts::default();
    for seed in base..base + seeds {
        match run(seed, Switches::default(), Look::AtTheDisk, false) {
            Ok((_, seen)) => counts.add(&seen),
            Err(violation) => fail(seed, &violation),
        }
    }
    println!("{seeds} seeds from {base} hold: {counts:?}");
    if seeds >= SEEDS_DEFAULT {
        assert_everything_happened(&counts);
    }
}

/// A simulator that never gets somewhere proves nothing about it.
fn assert_everything_happened(counts: &Counts) {
    let least = [
        counts.kills,
        counts.kernel_crashes,
        counts.power_cuts,
        counts.crashes_in_recovery,
        counts.closes,
        counts.failures,
        counts.rolls,
        counts.torn_cuts,
        counts.zeroed,
        counts.removed_segments,
        counts.retention,
        counts.refused,
        counts.hot_reads,
        counts.seen_lost_at_write,
        counts.states_lost,
        counts.settled,
        counts.loose,
    ];
    assert!(least.iter().all(|count| *count >= 50), "something hardly happened: {counts:?}");
}

#[test]
fn a_seed_gives_the_same_world_twice() {
    let base = env("RINGMQ_SIM_BASE").unwrap_or(0);
    for seed in base..base + 20 {
        let first = run(seed, Switches::default(), Look::AtTheDisk, false);
        assert_eq!(first, run(seed, Switches::default(), Look::AtTheDisk, false), "seed {seed}");
    }
    assert_ne!(
        run(base, Switches::default(), Look::AtTheDisk, false),
        run(base + 1, Switches::default(), Look::AtTheDisk, false)
    );
}

/// Within how many seeds the simulator must notice a rule that is missing.
const SEEDS_TO_NOTICE: u64 = 1000;

#[track_caller]
fn assert_noticed(what: &str, look: Look, switches: Switches) {
    let noticed = (0..SEEDS_TO_NOTICE)
        .find_map(|seed| run(seed, switches, look, false).err().map(|violation| (seed, violation)));
    match noticed {
        Some((seed, violation)) => println!("without {what}, seed {seed}: {violation}"),
        None => panic!("{SEEDS_TO_NOTICE} seeds did not notice that {what} is missing"),
    }
}

#[test]
fn a_missing_flush_is_noticed() {
    assert_noticed("the flush", Look::AsAUser, Switches { skip_flush: true, ..Default::default() });
}

#[test]
fn a_missing_frontier_is_noticed() {
    assert_noticed(
        "the frontier",
        Look::AsAUser,
        Switches { skip_frontier: true, ..Default::default() },
    );
}

#[test]
fn a_missing_wait_for_the_flush_of_bulk_writes_is_noticed() {
    assert_noticed(
        "the wait for the flush of what went beyond the frontier",
        Look::AsAUser,
        Switches { skip_loose: true, ..Default::default() },
    );
}

#[test]
fn missing_zeros_after_the_cut_are_noticed() {
    let switches = Switches { skip_zero_after_cut: true, ..Default::default() };
    assert_noticed("zeroing after the cut", Look::AsAUser, switches);
}

#[test]
fn a_missing_wait_for_visibility_is_noticed() {
    let switches = Switches { skip_visibility_wait: true, ..Default::default() };
    assert_noticed("the wait for visibility", Look::AsAUser, switches);
}

#[test]
fn a_missing_write_bound_is_noticed() {
    assert_noticed(
        "the write bound",
        Look::AtTheDisk,
        Switches { skip_write_bound: true, ..Default::default() },
    );
}

#[test]
fn a_missing_flush_in_recovery_is_noticed() {
    let switches = Switches { skip_recovery_flush: true, ..Default::default() };
    assert_noticed("the flush in recovery", Look::AsAUser, switches);
}
