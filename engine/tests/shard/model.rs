//! Random work against a plain model: puts, batches, reads, checkpoints, clean stops and crashes in any order.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use ringmq_engine::shard::Shard;

use crate::shards::{bodies, die, open, put_run, run_until_death, settle, store_of_the_dying};
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

/// The queues, by topic and id: the bodies of their messages.
#[derive(Default)]
struct Model {
    queues: HashMap<(usize, i32), Vec<Vec<u8>>>,
}

const TOPICS: [&str; 3] = ["A", "B", "%RETRY%g"];
const STEPS: u64 = 120;

/// One step. What is done does not depend on what happens, so that a process can begin in the middle.
enum Step {
    Put {
        topic: usize,
        id: i32,
        now_ms: i64,
        messages: Vec<(Vec<u8>, String)>,
    },
    Settle,
    Checkpoint,
    Poll,
    Restart,
    /// The process dies.
    Crash,
}

fn steps(seed: u64) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut now_ms = 1_000_000;
    let mut step = |step: u64| {
        now_ms += random.below(20) as i64;
        match random.below(20) {
            0..=13 => {
                let (topic, id) = (random.below(3) as usize, random.below(2) as i32);
                let count = if random.below(3) == 0 { 1 + random.below(20) } else { 1 };
                let messages = (0..count).map(|n| {
                    let body = vec![random.below(256) as u8; random.below(6_000) as usize];
                    (body, format!("UNIQ_KEY\u{1}s{step}n{n}"))
                });
                Step::Put { topic, id, now_ms, messages: messages.collect() }
            }
            14 | 15 => Step::Settle,
            16 => Step::Checkpoint,
            17 => Step::Poll,
            18 => Step::Restart,
            _ => Step::Crash,
        }
    };
    (0..STEPS).map(&mut step).collect()
}

impl Model {
    fn apply(&mut self, step: &Step) {
        if let Step::Put { topic, id, messages, .. } = step {
            let bodies = messages.iter().map(|(body, _)| body.clone());
            self.queues.entry((*topic, *id)).or_default().extend(bodies);
        }
    }
}

/// Does the steps after the crash number `life` (0: from the start) up to the next one, where the process dies, or to the end.
async fn live(seed: u64, life: usize, store: &Path) {
    let mut model = Model::default();
    let mut crashes = 0;
    let (mut shard, _) = open(store).await;
    for step in steps(seed) {
        let mine = crashes == life;
        if mine && matches!(step, Step::Crash) {
            settle(&shard).await;
            die();
        }
        if crashes < life && matches!(step, Step::Crash) {
            crashes += 1;
            if crashes == life {
                check(seed, &shard, &model).await;
            }
            continue;
        }
        if mine {
            shard = do_step(&step, shard, &model, seed, store).await;
        }
        model.apply(&step);
    }
    settle(&shard).await;
    check(seed, &shard, &model).await;
    shard.close().await.expect("a clean stop");
}

async fn do_step(
    step: &Step,
    shard: Rc<Shard>,
    model: &Model,
    seed: u64,
    store: &Path,
) -> Rc<Shard> {
    match step {
        Step::Put { topic, id, now_ms, messages } => {
            let queue = shard.queue(TOPICS[*topic], *id).expect("a queue");
            let stored = put_run(&shard, &queue, *now_ms, messages);
            let known = model.queues.get(&(*topic, *id)).map_or(0, Vec::len);
            assert_eq!(stored.queue_offset, known as i64);
        }
        Step::Settle => settle(&shard).await,
        Step::Checkpoint => {
            settle(&shard).await;
            shard.checkpoint().await.expect("a checkpoint");
        }
        Step::Poll => shard.poll(),
        Step::Restart => {
            settle(&shard).await;
            shard.close().await.expect("a clean stop");
            drop(shard);
            let (shard, report) = open(store).await;
            assert_eq!(report.redone_records, 0, "seed {seed}: nothing to redo after a clean stop");
            check(seed, &shard, model).await;
            return shard;
        }
        Step::Crash => {}
    }
    shard
}

async fn check(seed: u64, shard: &Shard, model: &Model) {
    for ((topic, id), wanted) in &model.queues {
        let queue = shard.queue(TOPICS[*topic], *id).expect("a queue");
        let found = bodies(shard, &queue, 0).await;
        assert!(found == *wanted, "seed {seed}: queue {id} of {} differs", TOPICS[*topic]);
    }
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Not a test by itself: a process that dies at its next crash.
#[test]
#[ignore = "run by the model test"]
fn child() {
    let Some(store) = store_of_the_dying() else { return };
    let (seed, life) = (env(SEED, 0), env(LIFE, 0) as usize);
    on_reactor(move || async move { live(seed, life, &store).await });
}

const SEED: &str = "RINGMQ_SHARD_SEED";
const LIFE: &str = "RINGMQ_SHARD_LIFE";

#[test]
fn any_order_of_work_stops_and_crashes_leaves_what_a_model_expects() {
    let (base, count) = (env("RINGMQ_SEED", 1), env("RINGMQ_SHARD_SEEDS", 12));
    for seed in base..base + count {
        println!("seed {seed}: replay with RINGMQ_SEED={seed} RINGMQ_SHARD_SEEDS=1");
        let dir = disk_dir();
        let lives = steps(seed).iter().filter(|step| matches!(step, Step::Crash)).count();
        for life in 0..lives {
            let variables = [(SEED, seed.to_string()), (LIFE, life.to_string())];
            run_until_death("model::child", dir.path(), &variables);
        }
        on_reactor(move || async move { live(seed, lives, dir.path()).await });
    }
}
