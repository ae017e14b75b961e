//! Power cuts at level `sync`. The store is on a disk that records each write and each flush ([`crate::support::fuse`]); from one recording of
//! a broker at work the disk is made again as it was at many moments: with all that had been flushed by then, and of the later writes any
//! part, torn at sectors. RingMQ starts on each and must have all that was told until that moment: messages at `sync`, delays, retries,
//! topics, groups, saved offsets, the index; and what a consumer saw must still be there.
//!
//! That this can fail is shown with the flushes taken out of the broker.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::checker::{Found, Place, Rules};
use crate::support::fuse::cut::{Damage, Survives};
use crate::support::fuse::{Cut, Keep, Record, RecordedDisk, Replay, Step};
use crate::support::image::LoopFs;
use crate::support::journal::{Journal, Returned, Told};
use crate::support::judge::{End, Judge, Verdict};
use crate::support::later::DELAYS_CONFIG;
use crate::support::load::LoadSpec;
use crate::support::mixed::{GROUP, Mixed};
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, TempDir, exclusive, rounds, skip, tempdir};

const TOPIC: &str = "Journal";
const QUEUES: u32 = 4;
const DISK_BYTES: u64 = 512 << 20;
/// Cuts of one recording; then another one is made.
const CUTS: u32 = 20;
/// Every so many cuts the power goes again during the recovery; every so many, all that is delayed must be delivered.
const AGAIN_EVERY: u32 = 3;
const DELIVER_EVERY: u32 = 10;
/// Within so many cuts a loss must be found where flushes are missing.
const LOSS_CUTS: usize = 30;
/// Each load goes on until so many messages are acknowledged: more than a segment.
const ACKS_MIN: u64 = 1_500;
/// Small files, so that all kinds of them roll.
const SMALL: &str = "consume_queue_file_bytes = 20000\nindex_slots = 5000\nindex_entries = 8000";

/// Three loads: the first ends with a SIGKILL, so that the second begins with a recovery; the second with a clean stop, which writes the
/// checkpoint and the headers of the index.
const PHASES: [End; 3] = [End::Crash, End::Clean, End::Crash];

#[test]
fn acknowledged_messages_survive_power_cuts() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return;
    }
    let mut random = Random::from_env("power cut");
    let cuts = rounds(CUTS);
    for first in (0..cuts).step_by(CUTS as usize) {
        let dir = tempdir("power");
        // In the long form every fifth recording is long enough for the checkpoint that is made while the broker runs.
        let load = if first / CUTS % 5 == 4 { 25_000 } else { 1_300 };
        let Some(recording) = Recording::make(&dir, "", &PHASES, load, &mut random) else { return };
        let mut moments = recording.moments(CUTS.min(cuts - first), &mut random);
        moments.sort_by_key(|moment| moment.cut.position);
        let mut replay = recording.replay();
        for (n, moment) in (first..).zip(&moments) {
            let damage = replay.make(moment.cut, &recording.image()).expect("a disk after a cut");
            let again = n % AGAIN_EVERY == AGAIN_EVERY - 1;
            if again {
                recording.cut_the_recovery(moment, &mut random);
            }
            let deliver = n % DELIVER_EVERY == DELIVER_EVERY - 1;
            let verdict = recording.judge(moment, again, deliver, &mut random);
            let verdict = verdict.unwrap_or_else(|why| panic!("cut {n}, {moment:?}: {why}"));
            println!("cut {n}: {moment:?}, again {again}, {damage:?}, {verdict:?}");
        }
    }
}

/// The proof that the test above can fail.
#[test]
fn power_cuts_cost_messages_where_the_log_is_not_flushed() {
    loses("skip:LogFlush", "acknowledged or seen messages are lost");
}

/// The same of files other than the log: without their syncs a topic that was answered is gone.
#[test]
fn power_cuts_cost_topics_where_files_are_not_synced() {
    loses("skip:Sync; skip:SyncDir", "shard 0: ");
}

/// With these operations left out some cut must end in a verdict that says `complaint`.
fn loses(faults: &str, complaint: &str) {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return;
    }
    let mut random = Random::from_env(faults);
    let dir = tempdir("unflushed");
    let Some(recording) = Recording::make(&dir, faults, &PHASES[..1], 1_300, &mut random) else {
        return;
    };
    let mut moments = recording.worst_moments(LOSS_CUTS, &mut random);
    moments.sort_by_key(|moment| moment.cut.position);
    let mut replay = recording.replay();
    let mut verdicts = Vec::new();
    for moment in &moments {
        replay.make(moment.cut, &recording.image()).expect("a disk after a cut");
        let verdict = match catch_unwind(AssertUnwindSafe(|| {
            recording.judge(moment, false, false, &mut random)
        })) {
            Ok(Ok(_)) => "nothing is missing".to_owned(),
            Ok(Err(why)) => why,
            // A broker that refuses to start on what it finds.
            Err(_) => "it does not start".to_owned(),
        };
        println!("{:?}: {verdict}", moment.cut);
        let found = verdict.contains(complaint);
        verdicts.push(verdict);
        if found {
            return;
        }
    }
    panic!("{faults}: {} cuts, and no loss was found: {verdicts:#?}", verdicts.len());
}

/// A broker at work, all that its disk did meanwhile, and what it had told when.
struct Recording {
    dir: std::path::PathBuf,
    base: std::path::PathBuf,
    record: Arc<Record>,
    journal: Arc<Journal>,
    options: Options,
    /// By position in the record.
    told: Vec<Known>,
    /// All that consumers saw.
    seen: Vec<(Place, Found)>,
}

/// What was known to be promised at a position of the record.
struct Known {
    position: u64,
    told: Told,
    /// SIGKILLs until then.
    kills: u64,
}

/// A moment at which the power goes.
#[derive(Debug)]
struct Moment {
    cut: Cut,
    /// Which entry of [`Recording::told`] holds then.
    known: usize,
}

impl Recording {
    /// Loads of about `load_ms` each, one for each of `phases`. `None`, after saying why, where there is no FUSE.
    fn make(
        dir: &TempDir,
        faults: &str,
        phases: &[End],
        load_ms: u64,
        random: &mut Random,
    ) -> Option<Recording> {
        let disk = match RecordedDisk::create(dir.path(), "disk", DISK_BYTES, Keep::Record) {
            Ok(disk) => disk,
            Err(why) => {
                skip(&format!("power cuts need root, loop devices and FUSE: {why}"));
                return None;
            }
        };
        let options = Options {
            durability: "sync",
            segment_bytes: 1 << 20,
            store_keys: SMALL.to_owned(),
            config: format!("[limits]\nmessage_bytes = 131072\n{DELAYS_CONFIG}"),
            ..Options::default()
        };
        let mut recording = Recording {
            dir: dir.path().to_owned(),
            base: disk.base().to_owned(),
            record: disk.record(),
            journal: Journal::create(&dir.path().join("journal")),
            options: options.clone(),
            told: Vec::new(),
            seen: Vec::new(),
        };
        let home = disk.mount.join("broker");
        let options = Options { faults: faults.to_owned(), ..options };
        let mut broker = Broker::standalone(Target::RingMq, &home, options);
        Mixed::prepare(&broker, TOPIC, QUEUES);
        // What is on the disk so far is not of interest; a broker whose syncs are left out has not made it durable either.
        sync_all_of(&disk.mount);
        for (n, end) in phases.iter().enumerate() {
            if n > 0 {
                broker.start();
            }
            recording.run(&mut broker, *end, load_ms, random);
        }
        recording.nothing_was_refused();
        Some(recording)
    }

    /// A broker that was asked to end refuses what comes, and a slow machine may not flush in time (10, or `broker busy`); nothing else is
    /// refused.
    fn nothing_was_refused(&self) {
        let allowed = ["service not available", "SERVICE_NOT_AVAILABLE", "code 10 ", "broker busy"];
        let refused = self.journal.refused();
        let other = refused.iter().find(|line| !allowed.iter().any(|part| line.contains(part)));
        assert_eq!(other, None, "something was refused");
    }

    /// One load and the end of the broker.
    fn run(&mut self, broker: &mut Broker, end: End, load_ms: u64, random: &mut Random) {
        let spec = LoadSpec {
            topic: TOPIC.to_owned(),
            queues: QUEUES,
            conns: 4,
            window: 16,
            rate_max: 60_000_000 / (load_ms * 20),
        };
        let before = self.journal.count();
        let kills = self.told.last().map_or(0, |known| known.kills);
        let pause = load_ms / 20;
        let load = Mixed::start(&broker.addresses(), &spec, &self.journal, random.next());
        let (journal, record, stop) =
            (self.journal.clone(), self.record.clone(), Arc::new(AtomicBool::new(false)));
        let watching = std::thread::spawn({
            let (stop, mut random) = (stop.clone(), Random::new(random.next()));
            move || {
                let mut told = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(random.below(2 * pause)));
                    told.push(known(&journal, &record, kills));
                }
                told
            }
        });
        std::thread::sleep(Duration::from_millis(load_ms));
        // On a busy machine it takes longer until something has happened.
        self.journal.await_count(before + ACKS_MIN);
        match end {
            End::Clean => drop(broker.terminate(Duration::from_secs(20))),
            End::Crash => broker.sigkill(),
        }
        self.seen.extend(load.stop());
        stop.store(true, Ordering::Relaxed);
        self.told.extend(watching.join().expect("the watching thread"));
        // The next start begins where this ended.
        let kills = kills + u64::from(end == End::Crash);
        self.told.push(known(&self.journal, &self.record, kills));
    }

    /// Moments at which the power goes, in no particular order.
    fn moments(&self, count: u32, random: &mut Random) -> Vec<Moment> {
        let steps = self.record.steps();
        let first = self.told.first().expect("something was told").position;
        let moment = |_| {
            let known = random.below(self.told.len() as u64) as usize;
            let at = self.told[known].position;
            let position = match random.below(4) {
                // Right when something was told.
                0 => at,
                // Before the next flush is done: the most that can be torn while nothing more is promised.
                1 => {
                    let later = steps[at as usize..].iter().position(|s| *s == Step::Flush);
                    later.map_or(steps.len() as u64, |n| at + n as u64)
                }
                // At any step, such as within a recovery or a stop.
                _ => first + random.below(steps.len() as u64 + 1 - first),
            };
            let known = self.told.partition_point(|known| known.position <= position) - 1;
            let cut = Cut { position, survives: Survives::any(random), seed: random.next() };
            Moment { cut, known }
        };
        (0..count).map(moment).collect()
    }

    /// Of the moments at which something was told, those with the most steps that no flush had covered.
    fn worst_moments(&self, count: usize, random: &mut Random) -> Vec<Moment> {
        let steps = self.record.steps();
        let unflushed = |position: u64| {
            steps[..position as usize].iter().rev().take_while(|s| **s != Step::Flush).count()
        };
        let mut known: Vec<usize> = (0..self.told.len()).collect();
        known.sort_by_key(|n| std::cmp::Reverse(unflushed(self.told[*n].position)));
        // Each moment once before any comes again: what is told at one of them may all have been written by chance.
        let mut times = HashMap::new();
        known.sort_by_cached_key(|n| {
            let before: &mut usize = times.entry(self.told[*n].position).or_default();
            *before += 1;
            *before
        });
        let moment = |known: usize| {
            let position = self.told[known].position;
            let cut = Cut { position, survives: Survives::any(random), seed: random.next() };
            Moment { cut, known }
        };
        known.into_iter().take(count).map(moment).collect()
    }

    fn replay(&self) -> Replay {
        let medium = self.dir.join("medium.img");
        std::fs::rename(&self.base, &medium).expect("the disk as it was");
        Replay::new(&self.record, &medium).expect("a replay of the record")
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.join("cut.img")
    }

    fn broker_on(&self, mount: &Path) -> Broker {
        Broker::new(Target::RingMq, &mount.join("broker"), self.options.clone(), None)
    }

    /// Lets a broker recover on the image and cuts the power once more, anywhere until it serves: the image becomes what that leaves.
    fn cut_the_recovery(&self, moment: &Moment, random: &mut Random) {
        let disk = RecordedDisk::attach(&self.dir, "again", &self.image(), Keep::Record)
            .expect("the disk after a cut mounts");
        let mut broker = self.broker_on(&disk.mount);
        broker.start();
        broker.sigkill();
        drop(broker);
        let (base, record) = (disk.base().to_owned(), disk.record());
        let position = random.below(record.position() + 1);
        drop(disk);
        let cut = Cut { position, survives: Survives::any(random), seed: random.next() };
        let damage: Damage = Replay::new(&record, &base)
            .and_then(|mut replay| replay.make(cut, &self.image()))
            .expect("a disk after another cut");
        println!("after {:?}: {cut:?} of the recovery, {damage:?}", moment.cut);
    }

    /// Starts a broker on the image and holds it to what was known.
    fn judge(
        &self,
        moment: &Moment,
        again: bool,
        deliver: bool,
        random: &mut Random,
    ) -> Result<Verdict, String> {
        let known = &self.told[moment.known];
        let told = self.told_at(moment);
        let disk = LoopFs::attach(&self.dir, "cut", self.image())?;
        let mut broker = self.broker_on(&disk.mount);
        let mut judge = Judge::new(TOPIC, QUEUES);
        for _ in 0..known.kills + u64::from(again) {
            judge.ended_unseen(&broker, End::Crash);
        }
        judge.ended(&broker, End::Crash, self.seen_by(&known.told));
        broker.start();
        let rules = Rules::of(Target::RingMq, "sync");
        judge.try_verdict(&broker, &self.journal, &told, rules, deliver, random)
    }

    /// What had been answered then. The power may go a little later: what clients tried in between may be there, too.
    fn told_at(&self, moment: &Moment) -> Told {
        let mut told = self.told[moment.known].told.clone();
        let tried = &self.told.last().expect("something was told").told;
        for (key, returned) in &tried.returned {
            let unanswered = || Returned { acked: false, ..returned.clone() };
            told.returned.entry(key.clone()).or_insert_with(unanswered);
        }
        for (key, commits) in &tried.commits {
            told.commits.entry(key.clone()).or_default().tried.clone_from(&commits.tried);
        }
        told
    }

    /// What consumers had seen by then: all below what they had tried to commit.
    fn seen_by(&self, told: &Told) -> Vec<(Place, Found)> {
        let below = |shard, queue| {
            let commits = told.commits.get(&(shard, GROUP.to_owned(), queue));
            commits.and_then(|c| c.tried.iter().max()).copied().unwrap_or(0)
        };
        let seen =
            self.seen.iter().filter(|((shard, queue, offset), _)| *offset < below(*shard, *queue));
        seen.copied().collect()
    }
}

/// What is told at this moment. The position is read while nothing can be added: all that was told was durable before it.
fn known(journal: &Journal, record: &Record, kills: u64) -> Known {
    journal.look(|told| Known { position: record.position(), told: told.clone(), kills })
}

fn sync_all_of(mount: &Path) {
    use std::os::fd::AsRawFd;
    let dir = std::fs::File::open(mount).expect("the mount");
    // SAFETY: syncfs takes a descriptor, which `dir` keeps open over the call.
    assert_eq!(unsafe { libc::syncfs(dir.as_raw_fd()) }, 0, "syncfs");
}
