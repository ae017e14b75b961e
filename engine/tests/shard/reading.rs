//! What a reader sees, and when.

use std::rc::Rc;

use ringmq_engine::shard::{
    GetLimits, GetStatus, NewMessage, NewRun, PutError, QUEUE_ID_MAX, ShardConfig, UnitCode,
};
use ringmq_engine::state::waiters::Waiters;
use ringmq_net::record::{Properties, index_hash, tags_code};

use crate::shards::{
    ALL, HOST, Noted, bodies, for_each_record, get, open, open_with, put, put_run, settle,
    shard_config,
};
use crate::support::{disk_dir, on_reactor};

#[test]
fn nothing_is_seen_before_it_is_written() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("T", 0).expect("a queue");
        let mut waiters: Waiters<()> = Waiters::new(1);
        queue.set_wait_list(waiters.add_queue());
        let noted = Rc::new(Noted::default());
        shard.set_listener(noted.clone());
        let stored = put(&shard, &queue, 1_000, b"one");
        assert_eq!((stored.queue_offset, stored.physical_offset), (0, 0));
        assert_eq!((queue.max_offset(), queue.next_offset()), (0, 1));
        assert_eq!(get(&shard, &queue, 0, ALL).await.status, GetStatus::NoMessageInQueue);
        assert!(noted.arrived.borrow().is_empty());
        settle(&shard).await;
        assert_eq!(queue.max_offset(), 1);
        assert_eq!(*noted.arrived.borrow(), [(1, tags_code(None))]);
        assert!(noted.progressed.get() > 0);
        assert_eq!(bodies(&shard, &queue, 0).await, [b"one"]);
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn statuses_and_next_offsets_are_stocks() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("T", 3).expect("a queue");
        for n in 0..40 {
            put(&shard, &queue, 1_000 + n, &[b'x'; 100]);
        }
        settle(&shard).await;
        let at = |offset| get(&shard, &queue, offset, ALL);
        assert_eq!(at(-1).await.status, GetStatus::OffsetTooSmall);
        let badly = at(41).await;
        assert_eq!((badly.status, badly.next_offset), (GetStatus::OffsetOverflowBadly, 40));
        let end = at(40).await;
        assert_eq!((end.status, end.next_offset), (GetStatus::OffsetOverflowOne, 40));
        let first = at(0).await;
        assert_eq!((first.status, first.messages, first.next_offset), (GetStatus::Found, 32, 32));
        assert_eq!((first.min_offset, first.max_offset), (0, 40));
        let none = shard.get(&queue, 0, ALL, |_| false).expect("all in memory");
        assert_eq!((none.status, none.next_offset), (GetStatus::NoMatchedMessage, 40));
        let few =
            shard.get(&queue, 5, GetLimits { units: 10, ..ALL }, |_| false).expect("in memory");
        assert_eq!((few.status, few.next_offset), (GetStatus::NoMatchedMessage, 15));
        // The first record is returned whatever the limit on bytes.
        let tight = get(&shard, &queue, 7, GetLimits { bytes: 1, ..ALL }).await;
        assert_eq!((tight.messages, tight.next_offset), (1, 8));
        for_each_record(&tight, |record| assert_eq!(record.queue_offset(), 7));
        assert!(shard.queue("T", -1).is_none());
        assert!(shard.queue("T", QUEUE_ID_MAX + 1).is_none());
        assert!(shard.existing_queue("T", 4).is_none());
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn puts_are_refused_while_too_many_units_wait_for_a_file_that_fails() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let config = ShardConfig { derived_unwritten_bytes_max: 1_000, ..shard_config(dir.path()) };
        let (shard, _) = open_with(config).await;
        // A file where the queue's directory should be.
        let blocked = dir.path().join("consumequeue/T");
        std::fs::create_dir_all(dir.path().join("consumequeue")).expect("a directory");
        std::fs::write(&blocked, b"").expect("a file");
        let queue = shard.queue("T", 0).expect("a queue");
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
            body: b"x",
            properties: b"",
            known: &Properties::new("").known(),
            code: UnitCode::Tags(0),
        };
        let refused = loop {
            match shard.put(1, &run, std::iter::once(message), |_| {}) {
                Ok(_) => settle(&shard).await,
                Err(error) => break error,
            }
            shard.poll();
        };
        let why = match refused {
            PutError::DerivedBehind { bytes, max: 1_000, why } if bytes > 1_000 => why,
            other => panic!("{other}"),
        };
        // Only slow until the first try has failed.
        assert!(why.is_none_or(|why| why.contains("consumequeue/T")));
        std::fs::remove_file(blocked).expect("the file goes");
        while shard.put(1, &run, std::iter::once(message), |_| {}).is_err() {
            glommio::timer::sleep(std::time::Duration::from_millis(50)).await;
            shard.poll();
        }
        settle(&shard).await;
        assert_eq!(bodies(&shard, &queue, 0).await.len() as i64, queue.max_offset());
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn a_batch_is_consecutive_and_found_by_each_of_its_keys() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("B", 0).expect("a queue");
        put(&shard, &queue, 1_000, b"before");
        let messages: Vec<_> = (0..5)
            .map(|n| (vec![n; 10], format!("KEYS\u{1}k{n} shared\u{2}TAGS\u{1}t{n}")))
            .collect();
        let stored = put_run(&shard, &queue, 900, &messages);
        assert_eq!(stored.queue_offset, 1);
        // The clock went back: store times do not.
        assert_eq!(stored.store_timestamp, 1_000);
        settle(&shard).await;
        assert_eq!(
            bodies(&shard, &queue, 1).await,
            (0..5).map(|n| vec![n; 10]).collect::<Vec<_>>()
        );
        let one = shard.query_index(index_hash("B", "k3"), 32, 0, i64::MAX).await.expect("a query");
        assert_eq!(one.physical_offsets.len(), 1);
        let record = shard.record_at(one.physical_offsets[0] as u64).await.expect("a read");
        let record = record.expect("a record");
        let view = ringmq_net::record::decode(record.bytes()).expect("whole");
        assert_eq!((view.queue_offset(), view.body()), (4, &[3; 10][..]));
        let all =
            shard.query_index(index_hash("B", "shared"), 32, 0, i64::MAX).await.expect("a query");
        assert_eq!(all.physical_offsets.len(), 5);
        assert!(all.physical_offsets.is_sorted());
        // An offset that is no record's start gives nothing, and neither does one beyond the end.
        assert!(shard.record_at(stored.physical_offset + 4).await.expect("a read").is_none());
        assert!(shard.record_at(stored.end).await.expect("a read").is_none());
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn cold_messages_are_the_same_bytes_as_hot_ones() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("C", 0).expect("a queue");
        let other = shard.queue("C", 1).expect("a queue");
        let body = |n: u32| vec![n as u8; 500 + n as usize % 3000];
        // More than the budgets of recent blocks (256 KiB) and of the cache (1 MiB), over three segments.
        for n in 0..1500 {
            put(&shard, if n % 3 == 0 { &other } else { &queue }, 1_000 + i64::from(n), &body(n));
            if n % 50 == 0 {
                settle(&shard).await;
            }
        }
        settle(&shard).await;
        assert!(
            shard.get(&queue, 0, ALL, |_| true).is_none(),
            "the first messages have left memory"
        );
        let wanted: Vec<_> = (0..1500).filter(|n| n % 3 != 0).map(body).collect();
        assert_eq!(bodies(&shard, &queue, 0).await, wanted);
        let wanted: Vec<_> = (0..1500).filter(|n| n % 3 == 0).map(body).collect();
        assert_eq!(bodies(&shard, &other, 0).await, wanted);
        // Store times are 1,000 + n; the nearest message is found, the earlier one on a tie.
        assert_eq!(shard.offset_by_time(&other, 1_000 + 30).await.expect("a search"), 10);
        assert_eq!(shard.offset_by_time(&other, 0).await.expect("a search"), 0);
        assert_eq!(shard.offset_by_time(&other, i64::MAX).await.expect("a search"), 499);
        shard.close().await.expect("a clean stop");
    });
}
