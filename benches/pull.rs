//! Putting messages into a shard and pulling 32 of them out of its memory, on a real store in a temporary directory.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::hint::black_box;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glommio::{LocalExecutorBuilder, Placement};
use ringmq_benches::{BODY_BYTES, HOST, STORED_PROPERTIES};
use ringmq_engine::log::LogConfig;
use ringmq_engine::shard::{
    DERIVED_UNWRITTEN_BYTES_MAX, GetLimits, NewMessage, NewRun, Queue, Shard, ShardConfig, UnitCode,
};
use ringmq_engine::state::delay::DelayLevels;
use ringmq_net::record::{Properties, tags_code};

/// Messages in the queue that is pulled from.
const MESSAGES: i64 = 1000;
/// What stock push consumers ask for.
const PULL: GetLimits = GetLimits { messages: 32, bytes: 256 * 1024, units: 800 };

fn config(store: &Path) -> ShardConfig {
    ShardConfig {
        store: store.to_owned(),
        shards: 1,
        // A temporary directory may lie in memory.
        log: LogConfig { allow_buffered: true, ..LogConfig::new(store) },
        segment_bytes: 64 << 20,
        queue_file_bytes: 6_000_000,
        index: true,
        index_slots: 5_000,
        index_entries: 20_000,
        message_bytes_max: 4 << 20,
        derived_unwritten_bytes_max: DERIVED_UNWRITTEN_BYTES_MAX,
        delay_levels: DelayLevels::default(),
    }
}

fn put(shard: &Shard, queue: &Rc<Queue>, body: &[u8]) {
    let run = NewRun {
        queue,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
    };
    let known = Properties::new(STORED_PROPERTIES).known();
    let message = NewMessage {
        flag: 0,
        body,
        properties: STORED_PROPERTIES.as_bytes(),
        known: &known,
        code: UnitCode::Tags(tags_code(known.tags)),
    };
    let put = shard.put(1_700_000_000_001, &run, std::iter::once(message), |_| {});
    assert!(put.is_ok(), "{put:?}");
}

/// A shard with a queue full of messages, all visible.
async fn filled(store: &Path) -> (Rc<Shard>, Rc<Queue>) {
    let opened = Shard::open(config(store)).await;
    let (shard, _) = opened.unwrap_or_else(|error| panic!("{error}"));
    let Some(queue) = shard.queue("TopicTest", 1) else { panic!("no queue") };
    let body = vec![b'x'; BODY_BYTES];
    for _ in 0..MESSAGES {
        put(&shard, &queue, &body);
    }
    shard.kick();
    while queue.max_offset() < MESSAGES {
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
    (shard, queue)
}

fn pull(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make();
    let executor = executor.unwrap_or_else(|error| panic!("{error}"));
    executor.run(async {
        let (shard, queue) = filled(dir.path()).await;
        let mut group = criterion.benchmark_group("shard");
        group.throughput(Throughput::Elements(PULL.messages as u64));
        group.bench_function("get 32 messages of 1 KiB from memory", |bencher| {
            let mut offset = 0;
            bencher.iter(|| {
                let Some(found) = shard.get(&queue, offset, PULL, |_| true) else {
                    panic!("not in memory")
                };
                assert_eq!(found.messages, PULL.messages);
                offset = (offset + 32) % (MESSAGES - 32);
                black_box(found.slices.len())
            });
        });
        group.finish();
    });
}

criterion_group!(benches, pull);
criterion_main!(benches);
