//! One operation: a damaged copy of a store, a broker on it, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::specimen::{End, Place, QUEUES, SEGMENT_BYTES, Specimen, TOPIC, options};
use crate::support::checker::pull;
use crate::support::load::{body, identity};
use crate::support::record::Record;
use crate::support::wire::{Conn, code, eventually};
use crate::support::{Broker, Target, TempDir, tempdir};

const QUERY_MESSAGE: i32 = 12;
/// Operations at the same time: most of one is waiting.
const THREADS: usize = 3;

/// What a start on a damaged store must come to.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The start is refused by one line that has these words.
    Refuses(Vec<String>),
    /// Everything is served, byte for byte, by queue and by key; the log has these words. After a clean stop `ringmq log verify` finds nothing.
    Repairs(Vec<String>),
    /// As before, but what was damaged is no part of any checksum that a read looks at: `ringmq log verify` names it.
    OnlyVerifyTells(String),
    /// Everything is served but the message at this queue and offset: its pull is refused by name, and `ringmq log verify` names what this says.
    RefusesOne(i32, i64, String),
    /// The log ends here now, and everything before it is served.
    CutsAt(u64),
    /// Everything from here on is served: as after a deletion.
    BeginsAt(u64),
}

/// What is done to a store: the specimen tells where things are, the path is the copy's.
pub(super) type Cut = Box<dyn Fn(&Specimen, &Path) + Sync>;

/// A named operation with its outcome.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) cut: Cut,
    pub(super) outcome: Outcome,
}

impl Case {
    pub(super) fn new(
        name: impl Into<String>,
        outcome: Outcome,
        cut: impl Fn(&Specimen, &Path) + Sync + 'static,
    ) -> Case {
        Case { name: name.into(), cut: Box::new(cut), outcome }
    }
}

/// Operates all cases on copies of a store and reports every one that did not come to its outcome.
pub(super) fn operate(end: End, cases: impl FnOnce(&Specimen) -> Vec<Case>) {
    let specimen = Specimen::of(end);
    let cases = cases(&specimen);
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = catch_unwind(AssertUnwindSafe(|| one(&specimen, case)));
                    println!("{}: {}", case.name, if done.is_ok() { "ok" } else { "FAILED" });
                    if done.is_err() {
                        failed.lock().expect("the list of failures").push(case.name.clone());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("the list of failures");
    assert!(failed.is_empty(), "{} of {} cases: {failed:?}", failed.len(), cases.len());
}

fn one(specimen: &Specimen, case: &Case) {
    let mut patient = Patient::new(specimen);
    (case.cut)(specimen, &patient.store);
    if let Outcome::OnlyVerifyTells(word) | Outcome::RefusesOne(_, _, word) = &case.outcome {
        patient.expect_verify_names(word);
    }
    let started = patient.start();
    match (&case.outcome, started) {
        (Outcome::Refuses(words), Err(line)) => {
            for word in words {
                assert!(line.contains(word), "{}: no {word:?} in: {line}", case.name);
            }
        }
        (Outcome::Refuses(_), Ok(())) => panic!("{}: it started", case.name),
        (_, Err(line)) => panic!("{}: refused: {line}", case.name),
        (outcome, Ok(())) => judge_served(specimen, &mut patient, &case.name, outcome),
    }
}

fn judge_served(specimen: &Specimen, patient: &mut Patient, name: &str, outcome: &Outcome) {
    let (from, to) = match outcome {
        Outcome::CutsAt(at) => (0, *at),
        Outcome::BeginsAt(at) => (*at, u64::MAX),
        _ => (0, u64::MAX),
    };
    let verdict = patient.judge(specimen);
    let expected: BTreeSet<(i32, i64)> = specimen
        .records
        .iter()
        .filter(|place| place.topic == TOPIC && (from..to).contains(&place.at))
        .map(|place| (place.queue, place.offset))
        .collect();
    let refused: Vec<&(i32, i64)> = verdict.refused.keys().collect();
    let mut served = verdict.served.clone();
    match outcome {
        // A search at the start may have met the damage.
        Outcome::RefusesOne(..) if patient.log().contains("repaired: consume queue") => {
            assert!(refused.is_empty(), "{name}: {:?}", verdict.refused);
        }
        Outcome::RefusesOne(queue, offset, _) => {
            assert_eq!(refused, [&(*queue, *offset)], "{name}: {:?}", verdict.refused);
            let remark = &verdict.refused[&(*queue, *offset)];
            let place = format!("message {offset} of {TOPIC}/{queue}");
            assert!(remark.contains(&place), "{name}: {remark}");
            served.insert((*queue, *offset));
        }
        _ => assert!(refused.is_empty(), "{name}: {:?}", verdict.refused),
    }
    // A killed broker may have stored what it had not acknowledged yet, behind what is expected.
    let missing: Vec<_> = expected.difference(&served).take(5).collect();
    assert!(missing.is_empty(), "{name}: not served: {missing:?}");
    assert!(
        served.iter().all(|place| expected.contains(place)),
        "{name}: served behind its end or before its beginning"
    );
    match outcome {
        Outcome::Repairs(words) => {
            let log = patient.log();
            for word in words {
                assert!(log.contains(word), "{name}: the log does not say {word:?}");
            }
            patient.expect_all_keys(specimen, name);
            patient.broker.terminate(Duration::from_secs(20));
            let (status, text) = patient.verify();
            assert_eq!(status, Some(0), "{name}: {text}");
        }
        Outcome::CutsAt(_) => {
            assert!(patient.log().contains("the log was cut"), "{name}: cut in silence");
        }
        _ => {}
    }
}

/// A damaged copy and the broker on it.
pub(super) struct Patient {
    pub(super) store: PathBuf,
    pub(super) broker: Broker,
    _dir: TempDir,
}

/// What a broker serves of the load's topic.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Queue and offset of what was served right.
    pub(super) served: BTreeSet<(i32, i64)>,
    /// What was refused, with its remark.
    pub(super) refused: BTreeMap<(i32, i64), String>,
}

impl Patient {
    pub(super) fn new(specimen: &Specimen) -> Patient {
        let dir = tempdir("patient");
        let broker = Broker::new(Target::RingMq, dir.path(), options(), None);
        let store = broker.store_dir();
        specimen.copy_to(&store);
        Patient { store, broker, _dir: dir }
    }

    /// Starts the broker; an error is the line by which it refused.
    pub(super) fn start(&mut self) -> Result<(), String> {
        self.broker.spawn();
        let served = eventually(Duration::from_secs(60), || {
            if !self.broker.is_running() {
                return Some(false);
            }
            self.log().contains("boot success").then_some(true)
        });
        if served.expect("the broker serves or refuses within a minute") {
            return Ok(());
        }
        let status = self.broker.process().wait(Duration::ZERO).expect("it has ended");
        let log = self.log();
        assert!(!log.contains("panicked"), "a panic: {log}");
        assert_eq!(status.code(), Some(1), "an orderly end: {log}");
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("ringmq: ")).collect();
        assert_eq!(lines.len(), 1, "one line says why: {log}");
        Err(lines[0].to_owned())
    }

    /// What the process has written so far.
    pub(super) fn log(&self) -> String {
        let log = fs::read(self.broker.dir.join("process.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Reads every queue from its beginning, around what is refused. Everything served must be what was sent.
    pub(super) fn judge(&mut self, specimen: &Specimen) -> Verdict {
        let mut verdict = Verdict::default();
        let mut conn = Conn::open(self.broker.address(0)).expect("a connection");
        for queue in 0..QUEUES as i32 {
            let ext = [("topic", TOPIC), ("queueId", &*queue.to_string())];
            let mut end =
                |code| conn.call(code, &ext, &[]).expect("a queue's end").number("offset");
            let (mut at, max) = (end(code::GET_MIN_OFFSET), end(code::GET_MAX_OFFSET));
            while at < max {
                let reply = pull(&mut conn, TOPIC, queue, at, 0).expect("a pull");
                if reply.code != 0 {
                    let remark = reply.remark.unwrap_or_default();
                    assert_eq!(reply.code, 1, "pull of {queue} at {at} of {max}: {remark}");
                    verdict.refused.insert((queue, at), remark);
                    at += 1;
                    continue;
                }
                for (place, served) in bodies(&reply.body) {
                    assert_eq!(place, (queue, at), "another message's place");
                    let id = identity(served).expect("a body of the load");
                    assert!(served == body(id), "wrong bytes are served at {place:?}");
                    verdict.served.insert(place);
                    at += 1;
                }
            }
        }
        let wrong = specimen.acked.iter().find(|ack| {
            let place = (ack.queue, ack.offset);
            verdict.served.contains(&place) && !self.is_there(ack, &mut conn)
        });
        assert!(wrong.is_none(), "another message than the one acknowledged: {wrong:?}");
        verdict
    }

    /// Whether what was acknowledged is what stands there: asked of a few, for all were compared with their own identity.
    fn is_there(&self, ack: &crate::support::load::Acked, conn: &mut Conn) -> bool {
        if !ack.id.seq.is_multiple_of(50) {
            return true;
        }
        let reply = pull(conn, TOPIC, ack.queue, ack.offset, 0).expect("a pull");
        bodies(&reply.body).first().and_then(|(_, body)| identity(body)) == Some(ack.id)
    }

    /// A sample of the messages is found by key.
    fn expect_all_keys(&self, specimen: &Specimen, name: &str) {
        let mut conn = Conn::open(self.broker.address(0)).expect("a connection");
        for ack in specimen.acked.iter().step_by(40) {
            let key = format!("{:08X}{:016X}", ack.id.conn, ack.id.seq);
            let ext = [
                ("topic", TOPIC),
                ("key", &*key),
                ("maxNum", "32"),
                ("beginTimestamp", "0"),
                ("endTimestamp", "9223372036854775807"),
                ("_UNIQUE_KEY_QUERY", "true"),
            ];
            let reply = conn.call(QUERY_MESSAGE, &ext, &[]).expect("a query");
            let found = Record::all(&reply.body).unwrap_or_default();
            assert!(
                found.iter().any(|record| identity(record.body) == Some(ack.id)),
                "{name}: {:?} is not found by its key: {} {:?}",
                ack.id,
                reply.code,
                reply.remark
            );
        }
    }

    /// `ringmq log verify` on the copy: its exit status and what it printed.
    pub(super) fn verify(&self) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_ringmq"))
            .args(["log", "verify"])
            .arg(&self.store)
            .output()
            .expect("ringmq log verify");
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), text.concat())
    }

    fn expect_verify_names(&self, word: &str) {
        let (status, text) = self.verify();
        assert_eq!(status, Some(1), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("PROBLEM ") && line.contains(word)),
            "no problem names {word:?}: {text}"
        );
    }
}

/// Place and body of each record of a pull, whatever its properties are: no checksum of the record covers them.
fn bodies(mut bytes: &[u8]) -> Vec<((i32, i64), &[u8])> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let int = |at: usize| i32::from_be_bytes(*bytes[at..].first_chunk().expect("a record"));
        let long = |at: usize| i64::from_be_bytes(*bytes[at..].first_chunk().expect("a record"));
        let body = &bytes[Place::BODY_AT..Place::BODY_AT + int(84) as usize];
        found.push(((int(12), long(20)), body));
        bytes = &bytes[int(0) as usize..];
    }
    found
}

/// Changes a file's bytes.
pub(super) fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    change(&mut bytes);
    fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Changes bytes of the log from a physical offset on.
pub(super) fn edit_log(store: &Path, offset: u64, change: impl FnOnce(&mut [u8])) {
    let start = offset - offset % SEGMENT_BYTES;
    edit(&segment(store, start), |bytes| change(&mut bytes[(offset - start) as usize..]));
}

pub(super) fn segment(store: &Path, start: u64) -> PathBuf {
    store.join("commitlog").join(format!("{start:020}"))
}

/// Words as the outcome wants them.
pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
