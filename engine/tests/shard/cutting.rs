//! A log that is cut below its end: what is before the cut is all there, what is behind it is kept elsewhere, and the log goes on.

use std::path::Path;
use std::rc::Rc;

use ringmq_engine::shard::Shard;
use ringmq_net::record::index_hash;

use crate::shards::{bodies, open, put, settle};
use crate::support::{MIB, disk_dir, on_reactor};

/// Puts messages into three queues; gives where each ends.
async fn fill(shard: &Rc<Shard>, from: i64, count: i64) -> Vec<u64> {
    let mut ends = Vec::new();
    for n in from..from + count {
        let queue = shard.queue("T", (n % 3) as i32).expect("a queue");
        put(shard, &queue, 1_000 + n, format!("{n:07}").repeat(600).as_bytes());
        ends.push(shard.log().appended());
        if n % 64 == 0 {
            settle(shard).await;
        }
    }
    settle(shard).await;
    ends
}

/// The messages of all queues, by their number.
async fn numbers(shard: &Rc<Shard>) -> Vec<i64> {
    let mut found = Vec::new();
    for id in 0..3 {
        let queue = shard.queue("T", id).expect("a queue");
        for body in bodies(shard, &queue, queue.min_offset()).await {
            let text = String::from_utf8(body[..7].to_vec()).expect("digits");
            found.push(text.parse().expect("a number"));
        }
    }
    found.sort_unstable();
    found
}

/// Every byte of the commit log files behind `at`.
fn behind(store: &Path, at: u64) -> Vec<u8> {
    let segments = ringmq_engine::store::list_numbered(&store.join("commitlog")).expect("a list");
    let mut bytes = Vec::new();
    for start in segments.into_iter().filter_map(|file| file.start) {
        if start + MIB > at {
            let name = ringmq_engine::store::numbered_name(start);
            let whole = std::fs::read(store.join("commitlog").join(name)).expect("a segment");
            bytes.extend_from_slice(&whole[at.saturating_sub(start) as usize..]);
        }
    }
    bytes
}

/// Whatever of queues and index is not what it was, is made again, from as far back as that takes.
#[test]
fn a_cut_redoes_no_more_than_what_is_not_there() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let ends = fill(&shard, 0, 300).await;
        shard.checkpoint().await.expect("a checkpoint");
        fill(&shard, 300, 300).await;
        let at = ends[199];
        shard.order_cut(at).await.expect("an order");
        // The process is killed: the checkpoint is beyond the cut, and much of the queues beyond that.
        drop(shard);
        std::fs::write(dir.path().join("abort"), []).expect("the mark of a crash");
        let (shard, report) = open(dir.path()).await;
        assert_eq!((report.redone_records, shard.log().appended()), (0, at));
        assert_eq!(numbers(&shard).await, (0..200).collect::<Vec<_>>());
        fill_and_close(&shard, 200, 50).await;
        drop(shard);
        // A queue is damaged where nobody looks at a usual start.
        let (shard, _) = open(dir.path()).await;
        shard.order_cut(ends[99]).await.expect("an order");
        shard.close().await.expect("a clean stop");
        drop(shard);
        std::fs::remove_dir_all(dir.path().join("consumequeue/T/1")).expect("a queue is gone");
        let (shard, report) = open(dir.path()).await;
        assert_eq!(report.redone_records, 100, "all of it");
        assert_eq!(numbers(&shard).await, (0..100).collect::<Vec<_>>());
        shard.settle_cut().await.expect("a settled order");
        shard.close().await.expect("a clean stop");
    });
}

/// Settles the cut, and goes on.
async fn fill_and_close(shard: &Rc<Shard>, from: i64, count: i64) {
    shard.settle_cut().await.expect("a settled order");
    fill(shard, from, count).await;
    shard.close().await.expect("a clean stop");
}

#[test]
fn a_cut_log_has_what_was_before_keeps_the_rest_aside_and_goes_on() {
    for (kept, clean) in [(500, true), (150, false), (1, true)] {
        let dir = disk_dir();
        on_reactor(move || async move {
            let (shard, _) = open(dir.path()).await;
            let ends = fill(&shard, 0, 600).await;
            let (at, end) = (ends[kept - 1], *ends.last().expect("messages"));
            assert!(end > 2 * MIB, "some segments: {end}");
            let beyond = behind(dir.path(), at);
            shard.order_cut(at).await.expect("an order");
            shard.close().await.expect("a clean stop");
            drop(shard);
            if !clean {
                std::fs::write(dir.path().join("abort"), []).expect("the mark of a crash");
            }
            // A start that is cut off before the order is settled leads to another cut at the same place.
            for again in [false, true] {
                let (shard, report) = open(dir.path()).await;
                // Queues and index were durable beyond the cut, and so they are below it.
                assert_eq!((report.redone_records, report.redo_from), (0, at), "{kept} {again}");
                let cut = report.cut.expect("a cut");
                assert_eq!((cut.at, shard.log().appended()), (at, at), "{kept}");
                let saved = std::fs::read(&cut.saved).expect("what was cut");
                assert!(beyond.starts_with(&saved), "{kept}: every byte is kept");
                assert!(beyond[saved.len()..].iter().all(|byte| *byte == 0), "{kept}");
                assert!(behind(dir.path(), at).iter().all(|byte| *byte == 0), "{kept}: zeros");
                let want: Vec<i64> = (0..kept as i64).collect();
                assert_eq!(numbers(&shard).await, want);
                for (key, count) in [(kept - 1, 1), (kept, 0), (599, 0)] {
                    let key = index_hash("T", &format!("key-{}", 1_000 + key));
                    let found = shard.query_index(key, 32, 0, i64::MAX).await.expect("a query");
                    assert_eq!(found.physical_offsets.len(), count, "{kept}");
                }
                shard.close().await.expect("a clean stop");
            }
            let (shard, report) = open(dir.path()).await;
            assert!(report.cut.is_some());
            shard.settle_cut().await.expect("a settled order");
            fill(&shard, kept as i64, 100).await;
            shard.close().await.expect("a clean stop");
            drop(shard);
            let (shard, report) = open(dir.path()).await;
            assert_eq!(report.cut, None);
            assert_eq!(numbers(&shard).await, (0..kept as i64 + 100).collect::<Vec<_>>());
            shard.close().await.expect("a clean stop");
        });
    }
}
