//! Entering units into consume queues, with the batches that go to files beside it; and finding them in memory.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::hint::black_box;
use std::rc::Rc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_engine::queue::{Appended, LoadedQueues, QueueConfig, QueueRef, QueueStore};
use ringmq_engine::store::{StoreLayout, Worker};

/// Queues that messages go to in turn.
const QUEUES: i64 = 8;
/// Bytes of a record.
const RECORD: i32 = 1200;

fn store(dir: &std::path::Path) -> QueueStore {
    let layout = StoreLayout::new(dir);
    layout.create().unwrap_or_else(|error| panic!("{error}"));
    let worker = Worker::start("bench-store").unwrap_or_else(|error| panic!("{error}"));
    QueueStore::new(QueueConfig::new(&layout), Rc::new(worker), LoadedQueues::default())
}

/// Enters the unit of message `number`.
fn enter(store: &QueueStore, queues: &[QueueRef], number: i64) {
    let queue = &queues[(number % QUEUES) as usize];
    let physical = number * i64::from(RECORD);
    let appended = store.append(queue, number / QUEUES, physical, RECORD, number);
    assert_eq!(appended, Appended::Stored(number / QUEUES));
}

fn append(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let store = store(dir.path());
    let queues: Vec<_> = (0..QUEUES as i32).map(|id| store.open("TopicTest", id)).collect();
    let mut number = 0;
    let mut group = criterion.benchmark_group("consume queues");
    group.throughput(Throughput::Elements(1));
    group.bench_function("append a unit", |bencher| {
        bencher.iter(|| {
            enter(&store, &queues, number);
            number += 1;
            // A reactor polls ten times a second; at a million messages a second that is this often.
            if number % 100_000 == 0 {
                store.poll();
            }
        });
    });
    for _ in 0..1000 * QUEUES {
        enter(&store, &queues, number);
        number += 1;
    }
    group.throughput(Throughput::Elements(32));
    group.bench_function("find 32 recent units", |bencher| {
        let from = queues[0].max_offset() - 500;
        bencher.iter(|| {
            let mut bytes = 0;
            let found = store.recent(black_box(&queues[0]), from, 32, |unit| {
                bytes += unit.size;
                true
            });
            assert!(found);
            black_box(bytes)
        });
    });
    group.finish();
}

criterion_group!(benches, append);
criterion_main!(benches);
