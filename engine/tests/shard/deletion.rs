//! What goes, and what that leaves.

use ringmq_engine::shard::GetStatus;

use crate::shards::{ALL, bodies, get, open, put, settle};
use crate::support::{MIB, disk_dir, on_reactor};

#[test]
fn a_deleted_segment_takes_its_messages_out_of_every_queue() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("T", 0).expect("a queue");
        let mut first_of_second = None;
        for n in 0..1000_i64 {
            let stored = put(&shard, &queue, 1_000 + n, &[n as u8; 3000]);
            if stored.physical_offset >= MIB && first_of_second.is_none() {
                first_of_second = Some(stored.queue_offset);
            }
            if n % 50 == 0 {
                settle(&shard).await;
            }
        }
        settle(&shard).await;
        let first_of_second = first_of_second.expect("a second segment");
        let gone = shard.delete_oldest().await.expect("the oldest segment goes");
        assert_eq!(gone.start, 0);
        assert_eq!(shard.log().min_offset(), MIB);
        assert_eq!(queue.min_offset(), first_of_second);
        let early = get(&shard, &queue, 0, ALL).await;
        assert_eq!((early.status, early.next_offset), (GetStatus::OffsetTooSmall, first_of_second));
        assert_eq!(
            bodies(&shard, &queue, first_of_second).await.len() as i64,
            1000 - first_of_second
        );
        assert!(shard.record_at(0).await.expect("a read").is_none());
        shard.close().await.expect("a clean stop");
        drop(shard);
        let (shard, report) = open(dir.path()).await;
        assert_eq!(report.redone_records, 0);
        let queue = shard.queue("T", 0).expect("a queue");
        assert_eq!((queue.min_offset(), queue.max_offset()), (first_of_second, 1000));
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn the_segment_that_is_written_is_never_deleted() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("T", 0).expect("a queue");
        put(&shard, &queue, 1_000, b"x");
        settle(&shard).await;
        assert!(shard.delete_oldest().await.is_err());
        assert_eq!(bodies(&shard, &queue, 0).await, [b"x"]);
        shard.close().await.expect("a clean stop");
    });
}

#[test]
fn a_removed_topic_starts_over_and_stays_removed() {
    let dir = disk_dir();
    on_reactor(move || async move {
        let (shard, _) = open(dir.path()).await;
        for topic in ["Gone", "Kept"] {
            let queue = shard.queue(topic, 0).expect("a queue");
            for n in 0..10 {
                put(&shard, &queue, 1_000 + n, b"x");
            }
        }
        settle(&shard).await;
        shard.poll();
        shard.remove_topic("Gone").await.expect("removed");
        shard.checkpoint().await.expect("a checkpoint");
        assert!(shard.existing_queue("Gone", 0).is_none());
        assert_eq!(shard.topics_with_queues().len(), 1);
        let queue = shard.queue("Gone", 0).expect("a queue");
        assert_eq!((queue.max_offset(), queue.next_offset()), (0, 0));
        let stored = put(&shard, &queue, 2_000, b"again");
        assert_eq!(stored.queue_offset, 0);
        settle(&shard).await;
        assert_eq!(bodies(&shard, &queue, 0).await, [b"again"]);
        shard.close().await.expect("a clean stop");
        drop((shard, queue));
        let (shard, _) = open(dir.path()).await;
        let queue = shard.queue("Gone", 0).expect("a queue");
        assert_eq!(bodies(&shard, &queue, 0).await, [b"again"]);
        assert_eq!(shard.queue("Kept", 0).expect("a queue").max_offset(), 10);
        shard.close().await.expect("a clean stop");
    });
}
