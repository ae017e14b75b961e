//! How long a store of gigabytes and 1,000 queues takes to be ready after a kill.

use std::time::Duration;

use super::burst::{Request, batch, burst, fill, ok};
use super::sight::{mib, on_disk, ready_after, stalls};
use crate::support::checker::pull;
use crate::support::record::Record;
use crate::support::wire::{Conn, code};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPICS: usize = 125;
const QUEUES: usize = 8;
/// Messages of a batch, and bytes of each body.
const BATCH: usize = 64;
const BODY: usize = 4_000;

fn topic(n: usize) -> String {
    format!("Scale-recovery-{n:03}")
}

/// Topic and queue of a batch: one after the other.
fn place(n: usize) -> (String, usize) {
    let queue = n % (TOPICS * QUEUES);
    (topic(queue / QUEUES), queue % QUEUES)
}

fn body(batch: usize, message: usize) -> Vec<u8> {
    let mut body = format!("{batch}/{message}/").into_bytes();
    body.resize(BODY, b'a' + (batch % 26) as u8);
    body
}

fn request(n: usize) -> Request {
    let (topic, queue) = place(n);
    let bodies: Vec<Vec<u8>> = (0..BATCH).map(|message| body(n, message)).collect();
    batch(&topic, queue, &bodies)
}

fn gigabytes() -> f64 {
    let name = "RINGMQ_SCALE_GB";
    std::env::var(name).map_or(0.5, |n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// `RINGMQ_SCALE_GB`: how many.
#[test]
fn gigabytes_in_a_thousand_queues_are_ready_soon_after_a_kill() {
    let _alone = exclusive();
    let dir = tempdir("recovery");
    let target = Target::from_env();
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    // The first message to queue 0 would make a topic with four queues.
    make_topics(&broker);
    let batches = (gigabytes() * 1e9 / (BATCH * BODY) as f64).ceil() as usize;
    let (offsets, took) = fill(broker.address(0), (4, 8), batches, request);
    println!("{batches} batches of {BATCH} messages: {took}");
    let disk = on_disk(&broker.store_dir());
    println!("{disk:?} = {:.1} MiB", mib(disk.taken));

    broker.sigkill();
    let took = ready_after(&mut broker);
    println!("ready after SIGKILL with {} GB in {} queues: {took:?}", gigabytes(), TOPICS * QUEUES);
    assert!(took < Duration::from_secs(10), "ready only after {took:?}");
    assert_ends(&broker, &offsets);
    let mut conn = Conn::open(broker.address(0)).expect("a connection to the broker");
    for n in [0, 1, batches / 2, batches - 2, batches - 1] {
        read_back(&mut conn, n, offsets[n]);
    }
    println!("{:?}", stalls(&broker.process().log_text()));
}

fn make_topics(broker: &Broker) {
    let make = |n| {
        let queues = QUEUES.to_string();
        let ext = vec![
            ("topic", topic(n)),
            ("defaultTopic", "TBW102".to_owned()),
            ("readQueueNums", queues.clone()),
            ("writeQueueNums", queues),
            ("perm", "6".to_owned()),
            ("topicFilterType", "SINGLE_TAG".to_owned()),
            ("topicSysFlag", "0".to_owned()),
            ("order", "false".to_owned()),
        ];
        Request { code: code::UPDATE_AND_CREATE_TOPIC, ext, body: Vec::new() }
    };
    burst(broker.address(0), 1, TOPICS, make, |_, reply| ok(reply));
}

/// Every queue ends behind the last batch that was acknowledged there.
fn assert_ends(broker: &Broker, offsets: &[i64]) {
    let mut ends = vec![0; TOPICS * QUEUES];
    for (n, offset) in offsets.iter().enumerate() {
        let end = &mut ends[n % (TOPICS * QUEUES)];
        *end = (*end).max(offset + BATCH as i64);
    }
    let max = |n| {
        let (topic, queue) = place(n);
        let ext = vec![("topic", topic), ("queueId", queue.to_string())];
        Request { code: code::GET_MAX_OFFSET, ext, body: Vec::new() }
    };
    burst(broker.address(0), 1, TOPICS * QUEUES, max, |n, reply| {
        ok(reply);
        assert_eq!(reply.number("offset"), ends[n], "end of {:?}", place(n));
    });
}

/// A batch is where it was acknowledged, every byte of it.
fn read_back(conn: &mut Conn, n: usize, offset: i64) {
    let (topic, queue) = place(n);
    let mut message = 0;
    while message < BATCH {
        let at = offset + message as i64;
        let reply = pull(conn, &topic, queue as i32, at, 0).expect("a pull");
        ok(&reply);
        let records = Record::all(&reply.body).expect("records");
        assert!(!records.is_empty(), "an empty pull of {topic} {queue} at {at}");
        for record in records.into_iter().take(BATCH - message) {
            assert_eq!(record.queue_offset, offset + message as i64);
            assert!(record.body == body(n, message), "message {message} of batch {n} is another");
            message += 1;
        }
    }
}
