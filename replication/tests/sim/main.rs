//! Master and slaves in a world made of one seed: connections that delay and stall, two of one slave at once, nodes that die and come
//! back with torn logs or after a power loss, disks that are slow, masters that are replaced. The sessions are the real ones.
//!
//! What must hold, at every moment and at the end, is in `world.rs`. A failure prints its seed; `RINGMQ_SIM_SEED=n` repeats it alone, and
//! `RINGMQ_SIM_SEEDS=n` runs more of them.

mod link;
mod log;
mod node;
mod random;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Outcome, World};

/// Seeds of an ordinary run.
const SEEDS: u64 = 1_500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Runs one seed; a failure names it.
fn run(seed: u64) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
        Ok(outcome) => outcome,
        Err(panic) => {
            eprintln!("repeat: RINGMQ_SIM_SEED={seed} cargo test -p ringmq-replication --test sim");
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn acknowledged_messages_stay_and_logs_agree_whatever_fails() {
    let seeds = match number("RINGMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RINGMQ_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= SEEDS;
    let mut sum = Outcome::default();
    for seed in seeds {
        sum.add(&run(seed));
    }
    println!("{sum:?}");
    // A world in which nothing happens shows nothing.
    if many {
        assert!(sum.acknowledged > 10_000, "{sum:?}");
        assert!(sum.cuts > 100 && sum.terms > 1_000 && sum.kills > 1_000, "{sum:?}");
        assert!(sum.refused_cuts > 10 && sum.damaged > 10 && sum.power_losses > 100, "{sum:?}");
    }
}

#[test]
fn one_seed_is_one_world() {
    for seed in [3, 77, 1_234] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
