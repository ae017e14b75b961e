//! What is derived from the log comes back from it.

use std::fs;
use std::path::Path;

use ringmq_engine::index::HEADER_BYTES;
use ringmq_engine::shard::{NewMessage, NewRun, UnitCode};
use ringmq_engine::state::delay::SCHEDULE_TOPIC;
use ringmq_net::record::{Properties, index_hash};

use crate::shards::{
    HOST, bodies, die, open, put, put_run, run_until_death, settle, shard_config,
    store_of_the_dying,
};
use crate::support::{disk_dir, on_reactor};

/// Fills a store and stops cleanly.
async fn fill(store: &Path, count: i64) {
    let (shard, report) = open(store).await;
    assert_eq!(report.redone_records, 0);
    for n in 0..count {
        let queue = shard.queue("T", (n % 3) as i32).expect("a queue");
        let body = n.to_be_bytes().to_vec();
        put_run(&shard, &queue, 1_000 + n, &[(body, format!("UNIQ_KEY\u{1}u{n}\u{2}TAGS\u{1}a"))]);
        if n % 40 == 0 {
            settle(&shard).await;
        }
    }
    settle(&shard).await;
    shard.close().await.expect("a clean stop");
}

/// All messages are where they were.
async fn assert_filled(store: &Path, count: i64) -> u64 {
    let (shard, report) = open(store).await;
    for id in 0..3 {
        let queue = shard.queue("T", id).expect("a queue");
        let wanted: Vec<Vec<u8>> = (0..count)
            .filter(|n| n % 3 == i64::from(id))
            .map(|n| n.to_be_bytes().to_vec())
            .collect();
        assert_eq!(bodies(&shard, &queue, 0).await, wanted, "queue {id}");
        assert_eq!(queue.next_offset(), wanted.len() as i64);
    }
    let hash = index_hash("T", "u5");
    let found = shard.query_index(hash, 32, 0, i64::MAX).await.expect("a query");
    assert_eq!(found.physical_offsets.len(), 1, "the key of message 5");
    shard.close().await.expect("a clean stop");
    report.redone_records
}

/// The power goes when a clean stop has closed the log and writes the slots of the index: one of them is still that of the stop before.
#[test]
fn slots_of_a_stop_that_did_not_end_are_made_again() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let store = dir.path();
        for now_ms in [1_000, 2_000] {
            let (shard, _) = open(store).await;
            let queue = shard.queue("T", 0).expect("a queue");
            let keys = "UNIQ_KEY\u{1}a\u{2}KEYS\u{1}b".to_owned();
            put_run(&shard, &queue, now_ms, &[(b"body".to_vec(), keys)]);
            settle(&shard).await;
            shard.close().await.expect("a clean stop");
        }
        let mut files = fs::read_dir(store.join("index")).expect("the index");
        let path = files.next().expect("a file").expect("an entry").path();
        let mut bytes = fs::read(&path).expect("the file");
        let slots = shard_config(store).index_slots as usize;
        let mut slots = bytes[HEADER_BYTES..][..slots * 4].chunks_mut(4);
        let slot = slots.find(|slot| **slot == 3u32.to_be_bytes()).expect("a slot of entry 3");
        slot.copy_from_slice(&1u32.to_be_bytes());
        fs::write(&path, bytes).expect("the file");
        fs::write(store.join("abort"), "").expect("the marker");

        let (shard, report) = open(store).await;
        assert!(report.log.recovered.clean, "the log was closed");
        for key in ["a", "b"] {
            let found = shard.query_index(index_hash("T", key), 32, 0, i64::MAX).await;
            assert_eq!(found.expect("a query").physical_offsets.len(), 2, "messages with {key}");
        }
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn a_clean_stop_leaves_nothing_to_redo_and_no_abort_marker() {
    let dir = disk_dir();
    on_reactor(move || async move {
        fill(dir.path(), 300).await;
        assert!(!dir.path().join("abort").exists());
        assert_eq!(assert_filled(dir.path(), 300).await, 0);
    });
}

#[test]
fn lost_queues_and_index_are_made_again_from_the_log() {
    let dir = disk_dir();
    on_reactor(move || async move {
        fill(dir.path(), 300).await;
        fs::remove_dir_all(dir.path().join("consumequeue")).expect("removed");
        fs::remove_dir_all(dir.path().join("index")).expect("removed");
        assert_eq!(assert_filled(dir.path(), 300).await, 300);
    });
}

#[test]
fn a_store_without_anything_of_ours_opens_and_serves() {
    let dir = disk_dir();
    on_reactor(move || async move {
        fill(dir.path(), 300).await;
        for gone in ["consumequeue", "index", "ringmq"] {
            fs::remove_dir_all(dir.path().join(gone)).expect("removed");
        }
        fs::remove_file(dir.path().join("checkpoint")).expect("removed");
        assert_eq!(assert_filled(dir.path(), 300).await, 300);
    });
}

/// Not a test by itself: the process that dies.
#[test]
#[ignore = "run by the crash test"]
fn child() {
    let Some(store) = store_of_the_dying() else { return };
    on_reactor(move || async move {
        let (shard, _) = open(&store).await;
        let queue = shard.queue("T", 0).expect("a queue");
        for n in 0..100 {
            put(&shard, &queue, 1_000 + n, &n.to_be_bytes());
        }
        settle(&shard).await;
        die();
    });
}

#[test]
fn a_crash_keeps_what_was_written_and_goes_on_behind_it() {
    let dir = disk_dir();
    run_until_death("rebuilding::child", dir.path(), &[]);
    on_reactor(move || async move {
        let path = dir.path();
        assert!(path.join("abort").exists());
        let (shard, report) = open(path).await;
        assert!(!report.log.recovered.clean);
        assert_eq!(report.redone_records, 100);
        let queue = shard.queue("T", 0).expect("a queue");
        assert_eq!(queue.max_offset(), 100);
        // The clock is behind the last message: its store time is not passed by.
        let stored = put(&shard, &queue, 5, b"after");
        assert_eq!((stored.queue_offset, stored.store_timestamp), (100, 1_099));
        settle(&shard).await;
        assert_eq!(bodies(&shard, &queue, 100).await, [b"after"]);
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn a_delayed_message_keeps_its_time_when_its_queue_is_made_again() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue(SCHEDULE_TOPIC, 2).expect("a queue");
        let properties = "DELAY\u{1}3\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}1";
        let run = NewRun {
            queue: &queue,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: HOST,
            store_host: HOST,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
        };
        let message = NewMessage {
            flag: 0,
            body: b"late",
            properties: properties.as_bytes(),
            known: &Properties::new(properties).known(),
            code: UnitCode::DeliverAfterMs(10_000),
        };
        shard.put(50_000, &run, std::iter::once(message), |_| {}).expect("a put");
        settle(&shard).await;
        let before = shard.unit(&queue, 0).await.expect("a read").expect("a unit");
        assert_eq!(before.tags_code, 60_000);
        shard.close().await.expect("a clean stop");
        drop(shard);
        fs::remove_dir_all(dir.path().join("consumequeue")).expect("removed");
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue(SCHEDULE_TOPIC, 2).expect("a queue");
        assert_eq!(shard.unit(&queue, 0).await.expect("a read"), Some(before));
        shard.close().await.expect("a clean stop");
    });
}

/// A log keeps the records of a topic that was deleted: made again, the topic must not get them instead of its own.
#[test]
fn a_topic_that_was_deleted_and_made_again_gets_back_its_own_messages_alone() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let send = async |body: &[u8]| {
            let queue = shard.queue("T", 0).expect("a queue");
            put_run(&shard, &queue, 1_000, &[(body.to_vec(), String::new())]);
            settle(&shard).await;
        };
        for body in [b"old 0", b"old 1", b"old 2"] {
            send(body).await;
        }
        shard.remove_topic("T").await.expect("removed");
        for body in [b"new 0", b"new 1"] {
            send(body).await;
        }
        shard.close().await.expect("a clean stop");
        drop(shard);
        for gone in ["consumequeue", "ringmq/derived"] {
            let path = dir.path().join(gone);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
                .expect("removed");
        }
        let (shard, report) = open(dir.path()).await;
        assert_eq!(report.redone_records, 5);
        let queue = shard.queue("T", 0).expect("a queue");
        let wanted: Vec<Vec<u8>> = vec![b"new 0".to_vec(), b"new 1".to_vec()];
        assert_eq!(bodies(&shard, &queue, 0).await, wanted);
        assert_eq!(queue.next_offset(), 2);
        shard.close().await.expect("a clean stop");
    });
}
