//! 10,000 topics of 8 queues each, made by their first sends.

use std::time::{Duration, Instant};

use super::burst::{Request, Took, burst, ok, send};
use super::sight::{descriptors, ground, mib, number, on_disk, ready_after, stalls};
use crate::support::wire::{Conn, code, eventually};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const QUEUES: usize = 8;
/// Descriptors that a broker may have open beyond what it has when fresh, however many queues there are: two sets of 128 for the files of
/// queues, and this test's connections.
const DESCRIPTORS_MAX: usize = 300;

fn topic(n: usize) -> String {
    format!("Scale-topic-{n:05}")
}

fn rss(broker: &mut Broker) -> f64 {
    mib(broker.process().memory_kib("VmRSS") << 10)
}

/// `RINGMQ_SCALE_TOPICS`: how many; `RINGMQ_SCALE_QUEUES_USED`: of how many queues of each a message is sent to.
#[test]
fn ten_thousand_topics_are_made_used_registered_and_there_after_a_kill() {
    let _alone = exclusive();
    let target = Target::from_env();
    let topics = number("RINGMQ_SCALE_TOPICS", 10_000) as usize;
    let used = number("RINGMQ_SCALE_QUEUES_USED", 1) as usize;
    let dir = tempdir("topics");
    let (ground, _fs) = ground(&dir);
    let mut broker = Broker::standalone(target, &ground.join("broker"), Options::default());
    let pid = broker.process().pid();
    let fresh = descriptors(pid);
    println!("fresh: {:.1} MiB, {fresh} descriptors", rss(&mut broker));

    let made = make(&broker, topics);
    println!("{topics} topics made by their first sends: {made}, {:.1} MiB", rss(&mut broker));
    // Every name server answers for them at once, or soon.
    let began = Instant::now();
    for n in [0, topics / 2, topics - 1] {
        await_route(&broker, &topic(n));
    }
    println!("routes known after {:?}", began.elapsed());
    let filled = fill(&broker, topics, used);
    println!("{used} of {QUEUES} queues used: {filled}, {:.1} MiB", rss(&mut broker));
    let open = descriptors(pid);
    assert!(open < fresh + DESCRIPTORS_MAX, "{open} descriptors, {fresh} when fresh");
    await_files(&broker, topics * used);
    println!("{:.1} MiB, {} descriptors", rss(&mut broker), descriptors(pid));

    broker.sigkill();
    let took = ready_after(&mut broker);
    println!("ready after SIGKILL: {took:?}, {:.1} MiB", rss(&mut broker));
    assert_ends(&broker, topics, used, 1);
    let (_, took) = broker.terminate(Duration::from_secs(60));
    println!("clean stop: {took:?}");
    let took = ready_after(&mut broker);
    println!("ready after a clean stop: {took:?}, {:.1} MiB", rss(&mut broker));
    assert!(took < Duration::from_secs(20), "ready only after {took:?}: the goal is 5 s");
    assert_ends(&broker, topics, used, 1);
    for n in [0, topics / 2, topics - 1] {
        await_route(&broker, &topic(n));
    }
    let open = descriptors(broker.process().pid());
    assert!(open < fresh + DESCRIPTORS_MAX, "{open} descriptors, {fresh} when fresh");
    println!("{:?}", stalls(&broker.process().log_text()));
}

/// A first message to queue 0 of each topic: it makes the topic.
fn make(broker: &Broker, topics: usize) -> Took {
    let first = |n| send(&topic(n), QUEUES, 0, topic(n).into_bytes());
    burst(broker.address(0), 4, topics, first, |_, reply| ok(reply))
}

/// A message to each of the other queues that are to be used.
fn fill(broker: &Broker, topics: usize, used: usize) -> Took {
    let others = used.saturating_sub(1);
    let other = |n: usize| send(&topic(n / others), QUEUES, 1 + n % others, b"one more".to_vec());
    burst(broker.address(0), 4, topics * others, other, |_, reply| ok(reply))
}

fn await_route(broker: &Broker, topic: &str) {
    let routed = eventually(Duration::from_secs(60), || {
        let mut conn = Conn::open(broker.namesrv).ok()?;
        let reply = conn.call(code::GET_ROUTE_BY_TOPIC, &[("topic", topic)], &[]).ok()?;
        (reply.code == 0).then_some(())
    });
    assert!(routed.is_some(), "no route of {topic}");
}

/// The queues' files are there, and what they take is a block each, not their length.
fn await_files(broker: &Broker, files: usize) {
    let began = Instant::now();
    let queues = broker.store_dir().join("consumequeue");
    let disk = eventually(Duration::from_secs(300), || {
        let disk = on_disk(&queues);
        (disk.files as usize >= files).then_some(disk)
    });
    let disk = disk.unwrap_or_else(|| panic!("no {files} files in {}", queues.display()));
    println!("{disk:?} = {:.1} MiB after {:?}", mib(disk.taken), began.elapsed());
    let each = disk.taken / disk.files;
    assert!(each < 64 << 10, "a queue with a message takes {each} bytes on disk");
}

/// Every queue ends where the acknowledged sends put its end.
fn assert_ends(broker: &Broker, topics: usize, used: usize, end: i64) {
    let max = |n: usize| {
        let (topic, queue) = (topic(n / QUEUES), n % QUEUES);
        Request {
            code: code::GET_MAX_OFFSET,
            ext: vec![("topic", topic), ("queueId", queue.to_string())],
            body: Vec::new(),
        }
    };
    burst(broker.address(0), 4, topics * QUEUES, max, |n, reply| {
        ok(reply);
        let expected = if n % QUEUES < used { end } else { 0 };
        assert_eq!(
            reply.number("offset"),
            expected,
            "end of queue {} of {}",
            n % QUEUES,
            topic(n / QUEUES)
        );
    });
}
