//! `ringmq log tail`: every record of a running shard, in order, and no replica.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use crate::support::broker::ringmq;
use crate::support::ha::{Pair, QUICK, await_text, number, segments};
use crate::support::wire::Conn;
use crate::support::{Broker, tempdir};
use crate::sync::send_one;
use crate::{QUEUES, TOPIC, journal, send, small_segments};

/// The program under way; killed when dropped.
struct Tail(Child);

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tail(broker: &Broker, args: &[&str]) -> Tail {
    let mut ha_port = broker.address(0);
    ha_port.set_port(ha_port.port() + 1);
    let mut command = ringmq();
    command.args(["log", "tail", &ha_port.to_string()]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Tail(command.spawn().expect("ringmq runs"))
}

/// It prints the records at these physical offsets.
fn assert_prints(tail: &mut Tail, wanted: &[u64]) {
    let got = offsets(tail, wanted.len());
    if got != wanted {
        let _ = tail.0.kill();
        let mut said = String::new();
        tail.0.stderr.take().expect("errors").read_to_string(&mut said).expect("its errors");
        let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        let (got, wanted) = (got.len(), wanted.len());
        panic!("{got} of {wanted} records, the first other one: {differs:?}; {said}");
    }
}

/// The physical offsets of that many records.
fn offsets(tail: &mut Tail, count: usize) -> Vec<u64> {
    let out = BufReader::new(tail.0.stdout.as_mut().expect("its output"));
    let offset = |line: std::io::Result<String>| {
        let line = line.expect("a line");
        line.split(' ').next().and_then(|text| text.parse().ok()).expect("a physical offset")
    };
    out.lines().take(count).map(offset).collect()
}

#[test]
fn an_observer_gets_every_record_and_counts_as_no_replica() {
    let dir = tempdir("ha-tail");
    let journal = journal(&dir);
    let mut pair = Pair::prepare(dir.path(), "sync-master", QUICK, small_segments());
    pair.master.start();
    let master = pair.master.address(0);
    pair.master.create_topic(TOPIC, QUEUES);
    let mut conn = Conn::open(master).expect("a connection");
    let _ = send_one(&mut conn, "");
    let mut late = tail(&pair.master, &["--from", "now"]);
    await_text(master, "ringmqHaObservers", |observers| observers == "1");
    await_text(master, "ringmqHaSlaves", |slaves| slaves == "0");
    // Nobody holds it, though somebody reads along.
    let (reply, _) = send_one(&mut conn, "");
    assert_eq!((reply.code, reply.ext("ackReplicas")), (11, Some("0")), "{reply:?}");
    pair.slave.start();
    await_text(master, "ringmqHaSlave_0", |slave| slave.contains("lagBytes=0"));
    // Over the ends of some segments.
    send(&pair.master, &journal, 4_000);
    let mut all = tail(&pair.master, &["--from", "oldest"]);
    let records = {
        let mut dump = ringmq();
        dump.args(["log", "dump"]).arg(pair.master.store_dir());
        let output = dump.output().expect("ringmq runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect::<Vec<u64>>()
    };
    assert!(records.len() > 4_000, "{}", records.len());
    assert_prints(&mut all, &records);
    assert_prints(&mut late, &records[1..]);
    // One that nobody reads from for longer than a silent peer is borne is a slow reader, not a silent one.
    let mut slow = tail(&pair.master, &["--from", "oldest", "--body"]);
    await_text(master, "ringmqHaObservers", |observers| observers == "3");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_prints(&mut slow, &records);
    drop(slow);
    // From any record on, and only so many.
    let middle = records.len() / 2;
    let from = records[middle].to_string();
    let mut some = tail(&pair.master, &["--from", &from, "--count", "10"]);
    assert_prints(&mut some, &records[middle..middle + 10]);
    assert!(offsets(&mut some, 1).is_empty(), "it goes on");
    assert!(some.0.wait().expect("it ends").success());

    // The bytes are those of the files.
    let mut raw = tail(&pair.master, &["--from", "oldest", "--raw"]);
    let end = number(master, "commitLogMaxOffset").expect("the log's end") as usize;
    let mut copy = vec![0; end];
    raw.0.stdout.as_mut().expect("its output").read_exact(&mut copy).expect("the log");
    for (start, path) in segments(&pair.master.store_dir()) {
        let segment = fs::read(&path).expect("a segment");
        let start = (start as usize).min(end);
        let part = &copy[start..end.min(start + segment.len())];
        assert!(part == &segment[..part.len()], "segment {start} differs");
    }

    // It says where to go on when the broker dies, and what is wrong with a place where no record is.
    let mut wrong = tail(&pair.master, &["--from", &(records[middle] + 1).to_string()]);
    assert_eq!(wrong.0.wait().expect("it ends").code(), Some(1));
    let mut said = String::new();
    wrong.0.stderr.take().expect("errors").read_to_string(&mut said).expect("a line");
    assert!(said.contains("is a record there?"), "{said}");
    pair.master.sigkill();
    assert_eq!(late.0.wait().expect("it ends").code(), Some(1));
    said.clear();
    late.0.stderr.take().expect("errors").read_to_string(&mut said).expect("a line");
    assert!(said.contains("go on with --from"), "{said}");
}
