//! Damage at random, anywhere in a store: either the start is refused by name, or everything acknowledged is served byte for byte, but for
//! what the damage hit, which is refused by name.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::case::Patient;
use super::specimen::{End, QUEUE_FILE_BYTES, QUEUES, SEGMENT_BYTES, Specimen, TOPIC};
use crate::support::random::Random;
use crate::support::{exclusive, rounds};

#[test]
fn random_damage_is_repaired_or_named_and_never_served() {
    let _alone = exclusive();
    let mut random = Random::from_env("surgery");
    let mut refused = 0;
    let rounds = rounds(12);
    for round in 0..rounds {
        // Each round has a seed of its own, so that one can be played again alone.
        let seed = if rounds == 1 { random.clone() } else { Random::new(random.next()) };
        let what = format!("{seed:?}");
        let how = one(seed);
        println!("round {round}, {what}: {how}");
        refused += u32::from(how.starts_with("refused"));
    }
    println!("{refused} of {rounds} starts refused");
}

fn one(mut random: Random) -> String {
    let end = if random.below(2) == 0 { End::Clean } else { End::Killed };
    let specimen = Specimen::of(end);
    let mut patient = Patient::new(&specimen);
    let damages: Vec<Damage> =
        (0..1 + random.below(3)).map(|_| Damage::make(&mut random, &patient.store)).collect();
    let told: Vec<String> = damages.iter().map(|damage| damage.tell(&patient.store)).collect();
    println!("{end:?}: {}", told.join("; "));
    let (status, text) = patient.verify();
    assert!(matches!(status, Some(0 | 1)), "verify: {status:?}: {text}");
    if let Err(line) = patient.start() {
        let named =
            ["physical offset", "00000", "ringmq/", "config/", "index", "segment", "consume queue"];
        assert!(named.iter().any(|word| line.contains(word)), "{line}");
        return format!("refused: {line}");
    }
    if damages.iter().any(|damage| damage.is_in("config")) {
        // A flipped letter is another topic; its messages are still there.
        patient.broker.create_topic(TOPIC, QUEUES);
    }
    let verdict = patient.judge(&specimen);
    let log = patient.log();
    let hit = |place: (i32, i64), at: u64, len: u64| {
        damages.iter().any(|damage| damage.hits_log(at, len) || damage.hits_unit(place))
    };
    for (place, remark) in &verdict.refused {
        let record = specimen
            .records
            .iter()
            .find(|record| record.topic == TOPIC && (record.queue, record.offset) == *place);
        let explained = record.is_some_and(|record| hit(*place, record.at, record.len as u64));
        assert!(explained, "{place:?} is refused, and was not damaged: {remark}");
    }
    // Without our state, or behind the durable offset, the log may be cut, and says so.
    let cut = log.lines().filter(|line| line.contains("the log was cut")).find_map(|line| {
        line.split("at=").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    });
    let places: HashSet<(i32, i64)> =
        verdict.served.iter().chain(verdict.refused.keys()).copied().collect();
    for ack in &specimen.acked {
        let at = i64::from_str_radix(&ack.message_id[16..], 16).expect("a message id") as u64;
        let gone = !places.contains(&(ack.queue, ack.offset));
        let removed_first = damages.iter().any(|damage| damage.removed && damage.hits_log(at, 1));
        assert!(
            !gone || cut.is_some_and(|cut| at >= cut) || removed_first,
            "{ack:?} is gone without a word; cut at {cut:?}"
        );
    }
    format!("{} served, {} refused, cut at {cut:?}", verdict.served.len(), verdict.refused.len())
}

/// A file and what of it was changed.
struct Damage {
    path: PathBuf,
    range: Range<u64>,
    how: &'static str,
    removed: bool,
}

impl Damage {
    fn make(random: &mut Random, store: &Path) -> Damage {
        let mut files = Vec::new();
        all_files(store, &mut files);
        files.sort();
        // As often the log as everything else.
        let log: Vec<PathBuf> = files
            .iter()
            .filter(|path| path.starts_with(store.join("commitlog")))
            .cloned()
            .collect();
        let pool = if random.below(2) == 0 && !log.is_empty() { &log } else { &files };
        let path = pool[random.below(pool.len() as u64) as usize].clone();
        let mut bytes = fs::read(&path).expect("a file");
        let len = bytes.len() as u64;
        let at = if len == 0 { 0 } else { random.below(len) };
        let (range, how) = match random.below(10) {
            0..4 => (at..(at + 1).min(len), "flipped"),
            4..7 => (at..(at + 1 + random.below(8192)).min(len), "zeroed"),
            7 => (at..(at + 1 + random.below(600)).min(len), "noise"),
            8 => (at..len, "cut"),
            _ => (0..len, "removed"),
        };
        let hit = &mut bytes[range.start as usize..range.end as usize];
        match how {
            "flipped" => hit.iter_mut().for_each(|byte| *byte ^= 1 << random.below(8)),
            "zeroed" => hit.fill(0),
            "noise" => hit.iter_mut().for_each(|byte| *byte = random.next() as u8),
            "cut" => bytes.truncate(range.start as usize),
            _ => {}
        }
        if how == "removed" {
            fs::remove_file(&path).expect("removed");
        } else {
            fs::write(&path, bytes).expect("written");
        }
        Damage { path, range, how, removed: how == "removed" }
    }

    fn tell(&self, store: &Path) -> String {
        let path = self.path.strip_prefix(store).unwrap_or(&self.path);
        format!("{} {:?} {}", path.display(), self.range, self.how)
    }

    fn is_in(&self, dir: &str) -> bool {
        self.path.parent().is_some_and(|parent| parent.ends_with(dir))
    }

    /// Where the file begins, if its name says so.
    fn start(&self) -> u64 {
        self.path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
    }

    fn hits_log(&self, at: u64, len: u64) -> bool {
        let start = self.start();
        self.is_in("commitlog")
            && at / SEGMENT_BYTES * SEGMENT_BYTES == start
            && start + self.range.start < at + len
            && at < start + self.range.end
    }

    fn hits_unit(&self, (queue, offset): (i32, i64)) -> bool {
        let at = offset as u64 * 20;
        let start = self.start();
        self.is_in(&format!("consumequeue/{TOPIC}/{queue}"))
            && at / QUEUE_FILE_BYTES * QUEUE_FILE_BYTES == start
            && start + self.range.start < at + 20
            && at < start + self.range.end
    }
}

fn all_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all_files(&path, files);
        } else {
            files.push(path);
        }
    }
}
