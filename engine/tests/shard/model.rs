//! Random work against a plain model: puts, batches, reads, checkpoints, clean stops and crashes in any order.

use std::collections::HashMap;
use std::path::Path;

use crate::shards::{bodies, open, put_run, settle};
use crate::support::{disk_dir, on_reactor};

/// A small generator of its own, so that a seed means the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Default)]
struct Model {
    queues: HashMap<(usize, i32), Vec<Vec<u8>>>,
}

const TOPICS: [&str; 3] = ["A", "B", "%RETRY%g"];

async fn run_seed(seed: u64, store: &Path) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut model = Model::default();
    let mut now_ms = 1_000_000;
    let (mut shard, _) = open(store).await;
    for step in 0..120 {
        now_ms += random.below(20) as i64;
        match random.below(20) {
            0..=13 => {
                let (topic, id) = (random.below(3) as usize, random.below(2) as i32);
                let queue = shard.queue(TOPICS[topic], id).expect("a queue");
                let count = if random.below(3) == 0 { 1 + random.below(20) } else { 1 };
                let messages: Vec<_> = (0..count)
                    .map(|n| {
                        let len = random.below(6_000) as usize;
                        let body = vec![random.below(256) as u8; len];
                        (body, format!("UNIQ_KEY\u{1}s{step}n{n}"))
                    })
                    .collect();
                let stored = put_run(&shard, &queue, now_ms, &messages);
                let known = model.queues.entry((topic, id)).or_default();
                assert_eq!(stored.queue_offset, known.len() as i64);
                known.extend(messages.into_iter().map(|(body, _)| body));
            }
            14 | 15 => settle(&shard).await,
            16 => {
                settle(&shard).await;
                shard.checkpoint().await.expect("a checkpoint");
            }
            17 => shard.poll(),
            18 => {
                settle(&shard).await;
                shard.close().await.expect("a clean stop");
                drop(shard);
                let (again, report) = open(store).await;
                assert_eq!(
                    report.redone_records, 0,
                    "seed {seed}: nothing to redo after a clean stop"
                );
                shard = again;
                check(seed, &shard, &model).await;
            }
            _ => {
                settle(&shard).await;
                // Dropped without a stop: what a crash of the process looks like.
                drop(shard);
                shard = open(store).await.0;
                check(seed, &shard, &model).await;
            }
        }
    }
    settle(&shard).await;
    check(seed, &shard, &model).await;
    shard.close().await.expect("a clean stop");
}

async fn check(seed: u64, shard: &ringmq_engine::shard::Shard, model: &Model) {
    for ((topic, id), wanted) in &model.queues {
        let queue = shard.queue(TOPICS[*topic], *id).expect("a queue");
        let found = bodies(shard, &queue, 0).await;
        assert!(found == *wanted, "seed {seed}: queue {id} of {} differs", TOPICS[*topic]);
    }
}

#[test]
fn any_order_of_work_stops_and_crashes_leaves_what_a_model_expects() {
    let env = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (base, count) = (env("RINGMQ_SEED", 1), env("RINGMQ_SHARD_SEEDS", 12));
    for seed in base..base + count {
        println!("seed {seed}: replay with RINGMQ_SEED={seed} RINGMQ_SHARD_SEEDS=1");
        let dir = disk_dir();
        on_reactor(move || async move { run_seed(seed, dir.path()).await });
    }
}
