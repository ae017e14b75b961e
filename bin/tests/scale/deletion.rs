//! 100 segments deleted while messages come in.

use std::fs::{File, FileTimes};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use super::burst::{batch, fill};
use super::sight::stalls;
use crate::support::checker::{Checker, Rules, pull};
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::wire::{Conn, code, eventually};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPIC: &str = "Scale-old";
const QUEUES: usize = 4;
/// The smallest that may be configured.
const SEGMENT: u64 = 1 << 20;
const SEGMENTS: usize = 105;
/// Messages of a batch, and bytes of each: a batch is a quarter of a segment, less its headers.
const BATCH: usize = 16;
const BODY: usize = 15_000;

#[test]
fn a_hundred_segments_go_while_sends_go_on() {
    let _alone = exclusive();
    let dir = tempdir("deletion");
    let options = Options {
        segment_bytes: SEGMENT,
        config: "[limits]\nmessage_bytes = 262144\n\n[retention]\nhours = 1\n".to_owned(),
        ..Options::default()
    };
    let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
    broker.create_topic(TOPIC, QUEUES as u32);
    broker.create_topic("Journal", QUEUES as u32);
    let bodies = vec![vec![b'o'; BODY]; BATCH];
    let old = |n| batch(TOPIC, n % QUEUES, &bodies);
    let (_, took) = fill(broker.address(0), (1, 2), SEGMENTS * 4, old);
    println!("filled: {took}");
    let (status, _) = broker.terminate(Duration::from_secs(60));
    assert!(status.success(), "{status}");
    let aged = age(&broker);
    println!("{} segments are two hours old", aged.len());
    assert!(aged.len() >= 100, "{} full segments", aged.len());

    broker.start();
    let log_before = broker.process().log_text().len();
    let journal = Journal::create(&dir.path().join("journal"));
    let spec =
        LoadSpec { topic: "Journal".to_owned(), queues: 4, conns: 2, window: 8, rate_max: 300 };
    let load = Load::start(&broker.addresses(), &spec, &journal);
    journal.await_count(100);
    load.reset_gaps();
    let (before, took) = (journal.count(), delete(&broker, &aged));
    let (during, gap) = (journal.count() - before, load.gaps()[&0]);
    println!("deleted after {took:?}; {during} messages meanwhile, at most {gap:?} without one");
    assert!(during > 0, "no message was acknowledged while segments were deleted");
    assert!(gap < Duration::from_secs(5), "{gap:?} without an acknowledgement");
    assert_begins(&broker);
    journal.await_count(journal.count() + 100);
    load.stop();
    println!("refused: {:?}", journal.refused_by_kind());
    let stalls = stalls(&broker.process().log_text()[log_before..]);
    println!("{stalls:?}");
    stalls.assert_short();
    let rules = Rules::of(Target::RingMq, "write");
    let summary =
        Checker::new().check(&broker.addresses(), "Journal", QUEUES as u32, &journal, rules);
    println!("{summary:?}");
}

/// Lets all segments but the last two seem two hours old; gives their files.
fn age(broker: &Broker) -> Vec<PathBuf> {
    let dir = broker.shard_dir(0).join("commitlog");
    let mut segments: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("the log")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.metadata().is_ok_and(|meta| meta.len() == SEGMENT))
        .collect();
    segments.sort();
    segments.truncate(segments.len().saturating_sub(2));
    let old = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(2 * 3_600));
    for segment in &segments {
        let file = File::options().write(true).open(segment);
        file.and_then(|file| file.set_times(old)).expect("a segment's time");
    }
    segments
}

/// Asks for expired segments to go until none is left. A round deletes ten; each request begins one.
fn delete(broker: &Broker, aged: &[PathBuf]) -> Duration {
    let began = Instant::now();
    let mut conn = Conn::open(broker.address(0)).expect("a connection to the broker");
    let gone = eventually(Duration::from_secs(60), || {
        let reply = conn.call(code::DELETE_EXPIRED_COMMITLOG, &[], &[]).expect("a reply");
        assert_eq!(reply.code, 0, "{reply:?}");
        aged.iter().all(|segment| !segment.exists()).then_some(())
    });
    let left = aged.iter().filter(|segment| segment.exists()).count();
    assert!(gone.is_some(), "{left} of {} segments are still there", aged.len());
    began.elapsed()
}

/// Each queue begins where its messages are still there, and who asks for less is sent there.
fn assert_begins(broker: &Broker) {
    let mut conn = Conn::open(broker.address(0)).expect("a connection to the broker");
    for queue in 0..QUEUES as i32 {
        let id = queue.to_string();
        let ext = [("topic", TOPIC), ("queueId", id.as_str())];
        let mut offset = |code| conn.call(code, &ext, &[]).expect("a reply").number("offset");
        let (min, max) = (offset(code::GET_MIN_OFFSET), offset(code::GET_MAX_OFFSET));
        println!("queue {queue}: {min}..{max}");
        assert!(0 < min && min <= max, "queue {queue} holds {min}..{max}");
        assert_eq!(max as usize, SEGMENTS * 4 / QUEUES * BATCH);
        for at in [0, min / 2, min - 1] {
            let reply = pull(&mut conn, TOPIC, queue, at, 0).expect("a pull");
            assert_eq!((reply.code, reply.number("nextBeginOffset")), (21, min), "at {at}");
        }
        if min < max {
            let reply = pull(&mut conn, TOPIC, queue, min, 0).expect("a pull");
            assert_eq!(reply.code, 0, "at {min}: {:?}", reply.remark);
        }
    }
}
