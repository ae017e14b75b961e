//! What needs a reactor: cold reads, trims, removal, search by time.

use std::cell::Cell;
use std::future::Future;

use glommio::LocalExecutorBuilder;

use super::*;

fn on_reactor<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    let builder = LocalExecutorBuilder::default().io_memory(1 << 20);
    builder.make().expect("reactor").run(test)
}

/// `count` units of 100 bytes each.
fn fill(store: &QueueStore, topic: &str, count: i64) -> QueueRef {
    let queue = store.open(topic, 0);
    for n in 0..count {
        store.append(&queue, n, n * 100, 100, n);
    }
    queue
}

async fn read_all(store: &QueueStore, queue: &QueueRef) -> Vec<i64> {
    let mut found = Vec::new();
    let mut at = queue.min_offset();
    while at < queue.max_offset() {
        let units = store.read(queue, at, 7).await.expect("read");
        assert!(!units.is_empty(), "at {at}");
        at += units.len() as i64;
        found.extend(units.iter().map(|unit| unit.tags_code));
    }
    found
}

#[test]
fn every_unit_is_read_from_file_or_memory() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    on_reactor(async move {
        let (store, _) = open(&config, clean(0));
        let queue = fill(&store, "A", 95);
        assert_eq!(read_all(&store, &queue).await, (0..95).collect::<Vec<_>>());
        store.flush().await.expect("flush");
        store.poll();
        assert!(!store.recent(&queue, 0, 1, |_| true), "the budget is 15 units");
        assert_eq!(read_all(&store, &queue).await, (0..95).collect::<Vec<_>>());
        for n in 95..99 {
            store.append(&queue, n, n * 100, 100, n);
        }
        assert_eq!(read_all(&store, &queue).await, (0..99).collect::<Vec<_>>());
        assert!(store.read(&queue, 99, 5).await.expect("read").is_empty());
        assert!(store.read(&queue, -1, 5).await.expect("read").is_empty());
    });
}

#[test]
fn a_trim_deletes_files_and_raises_first_offsets() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    on_reactor(async move {
        let (store, _) = open(&config, clean(0));
        let long = fill(&store, "A", 70);
        let short = fill(&store, "B", 3);
        store.flush().await.expect("flush");
        store.poll();
        let report = store.trim(4550).await.expect("trim");
        assert_eq!(report, TrimReport { raised_queues: 2, deleted_files: 2 });
        assert_eq!((long.min_offset(), long.max_offset()), (46, 70));
        assert_eq!((short.min_offset(), short.max_offset()), (3, 3));
        assert!(!file(&config, "A", 0, 400).exists() && file(&config, "A", 0, 800).exists());
        assert!(file(&config, "B", 0, 0).exists(), "the last file stays");
        assert!(store.read(&long, 45, 1).await.expect("read").is_empty());
        assert_eq!(read_all(&store, &long).await, (46..70).collect::<Vec<_>>());
        assert_eq!(store.trim(4550).await.expect("trim"), TrimReport::default());

        // Units only in memory count too, and offsets go on where they were.
        store.append(&short, 3, 7000, 100, 3);
        store.append(&short, 4, 7100, 100, 4);
        store.trim(7050).await.expect("trim");
        assert_eq!((short.min_offset(), short.max_offset()), (4, 5));
        assert_eq!((long.min_offset(), long.max_offset()), (70, 70));
        store.flush().await.expect("flush");
        let recovery = QueueRecovery { log_min: 7050, ..clean(7200) };
        let (store, report) = open(&config, recovery);
        assert_eq!(report.repaired, 0);
        let (long, short) = (store.open("A", 0), store.open("B", 0));
        assert_eq!((long.min_offset(), long.max_offset()), (70, 70));
        assert_eq!((short.min_offset(), short.max_offset()), (4, 5));
    });
}

#[test]
fn a_removed_topic_starts_over() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    on_reactor(async move {
        let (store, _) = open(&config, clean(0));
        let old = fill(&store, "A", 50);
        fill(&store, "B", 5);
        store.flush().await.expect("flush");
        read_all(&store, &old).await;
        store.append(&old, 50, 5000, 100, 50);
        store.remove_topic("A").await.expect("remove");
        store.remove_topic("unknown").await.expect("remove");
        assert!(!config.dir.join("A").exists() && config.dir.join("B").exists());
        assert_eq!(store.append(&old, 51, 5100, 100, 51), Appended::Skipped);
        assert!(store.read(&old, 0, 1).await.expect("read").is_empty());
        let new = store.open("A", 0);
        assert_eq!(store.append(&new, 0, 6000, 100, 1), Appended::Stored(0));
        store.flush().await.expect("flush");
        assert_eq!(store.stats().unwritten_bytes, 0);
        assert_eq!(store.stats().queues, 2);
        assert_eq!(
            read_file(&config, "A", 0, 0)[..20],
            Unit { physical_offset: 6000, size: 100, tags_code: 1 }.encode()
        );
    });
}

#[test]
fn the_offset_by_time_is_the_nearest_as_in_stock() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    on_reactor(async move {
        let (store, _) = open(&config, clean(0));
        let queue = fill(&store, "A", 15);
        // One a second, three of them (5, 6, 7) at 5000.
        let time = |n: i64| match n {
            0..5 => n * 1000,
            5..8 => 5000,
            _ => (n - 2) * 1000,
        };
        let at = async |timestamp: i64, log_min: u64| {
            store
                .offset_by_time(&queue, timestamp, log_min, async |physical, _| {
                    Some(time(physical / 100))
                })
                .await
                .expect("search")
        };
        assert_eq!(at(-5000, 0).await, 0);
        assert_eq!(at(500, 0).await, 0);
        assert_eq!(at(501, 0).await, 1);
        assert_eq!(at(4999, 0).await, 5);
        assert_eq!(at(5000, 0).await, 7);
        assert_eq!(at(99_999, 0).await, 14);
        assert_eq!(at(0, 350).await, 4);
        let unknown = store.open("unknown", 0);
        let asked = Cell::new(0);
        let found = store.offset_by_time(&unknown, 0, 0, async |_, _| {
            asked.set(1);
            None
        });
        assert_eq!((found.await.expect("search"), asked.get()), (0, 0));
        let unreadable = store.offset_by_time(&queue, 5, 0, async |_, _| None).await;
        assert_eq!(unreadable.expect("search"), 0);
    });
}
