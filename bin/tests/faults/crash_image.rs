//! Crashes of the kernel, by images of the disk: see [`crate::support::image`]. At `write` nothing acknowledged may be lost, and nothing else
//! that was answered when it was durable. Without zeroed space ahead of the log there is loss, and the same test finds it.

use std::sync::Arc;
use std::time::Duration;

use crate::support::checker::{Checker, Rules};
use crate::support::image::LoopFs;
use crate::support::journal::{Journal, Told};
use crate::support::judge::{End, Judge};
use crate::support::later::DELAYS_CONFIG;
use crate::support::load::{Load, LoadSpec};
use crate::support::mixed::Mixed;
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, TempDir, exclusive, rounds, skip, tempdir};

const TOPIC: &str = "Journal";
const QUEUES: u32 = 4;
const DISK_BYTES: u64 = 4 << 30;
/// After so many images a new disk is begun: what an image costs grows with what is on it.
const DISK_IMAGES: u32 = 20;
/// Every so many images, everything that is delayed must be delivered too.
const DELIVER_EVERY: u32 = 5;
/// Within so many images a loss must be found where it is possible.
const LOSS_IMAGES: u32 = 10;
/// Small files, so that all kinds of them roll.
const SMALL: &str = "consume_queue_file_bytes = 20000\nindex_slots = 5000\nindex_entries = 20000";

#[test]
fn acknowledged_messages_survive_kernel_crashes() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return;
    }
    let mut random = Random::from_env("kernel crash");
    let images = rounds(20);
    for first in (0..images).step_by(DISK_IMAGES as usize) {
        let dir = tempdir("crash");
        let Some(mut disk) = Crashing::new(&dir, "") else { return };
        for image in first..images.min(first + DISK_IMAGES) {
            let spec = LoadSpec { rate_max: 3_000, ..Crashing::spec() };
            let load = Mixed::start(&disk.broker.addresses(), &spec, &disk.journal, random.next());
            disk.journal.await_count(disk.journal.count() + 1);
            std::thread::sleep(Duration::from_millis(100 + random.below(600)));
            let told = disk.crash();
            load.stop();
            disk.judge(image, &told, &mut random);
        }
        let refused = disk.journal.refused_in_earnest();
        assert_eq!(refused, Vec::<String>::new(), "something was refused");
    }
}

/// The proof that the test above can fail. A direct write that has completed into space that is merely reserved cannot be read after a
/// crash of the kernel, until the file system has committed its journal.
#[test]
fn kernel_crashes_without_zeroed_space_cost_messages_and_the_checker_finds_them() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return;
    }
    lose_something("unzeroed", Target::RingMq);
}

/// The reason for zeroed space and direct writes: what a stock broker acknowledges is in the kernel's memory alone.
#[test]
fn kernel_crashes_cost_messages_of_a_stock_broker() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        lose_something("stock", Target::Stock497);
    }
}

/// Sends until an image lacks an acknowledged message. Nothing else goes on: each file that is made durable commits the journal.
fn lose_something(name: &str, target: Target) {
    let mut random = Random::from_env(name);
    let dir = tempdir(name);
    let Some(mut disk) = Crashing::new(&dir, "zero_ahead = false") else { return };
    let rules = Rules { whole: !target.is_stock(), ..Rules::of(target, "write") };
    let mut images = 0;
    let lost = loop {
        let load = Load::start(&disk.broker.addresses(), &Crashing::spec(), &disk.journal);
        disk.journal.await_count(disk.journal.count() + 1);
        std::thread::sleep(Duration::from_millis(100 + random.below(600)));
        let told = disk.crash();
        load.stop();
        images += 1;
        let mut lost = 0;
        disk.with_image(|after| {
            after.start();
            if target.is_stock() {
                // It writes its tables without fsync: the topic is gone with the rest.
                after.create_topic(TOPIC, QUEUES);
            }
            let shards = after.addresses();
            let found = Checker::new().check_allowing_loss(
                &shards,
                TOPIC,
                QUEUES,
                &disk.journal,
                &told.acked,
                rules,
            );
            println!("image {images}: {found:?}");
            lost = found.lost;
        });
        if lost > 0 || images == LOSS_IMAGES {
            break lost;
        }
    };
    assert!(lost > 0, "{images} images, and none of them lacks an acknowledged message");
}

/// A broker on a disk of its own, whose kernel crashes again and again, as far as copies of the disk are concerned.
struct Crashing {
    // Dropped in this order: the disk under the broker last.
    broker: Broker,
    journal: Arc<Journal>,
    dir: std::path::PathBuf,
    disk: LoopFs,
}

impl Crashing {
    /// `None`, after saying why, where there are no loop devices.
    fn new(dir: &TempDir, durability: &str) -> Option<Crashing> {
        let disk = match LoopFs::create(dir.path(), "disk", DISK_BYTES) {
            Ok(disk) => disk,
            Err(why) => {
                skip(&format!("kernel crash images need root and loop devices: {why}"));
                return None;
            }
        };
        let options = Options {
            segment_bytes: 4 << 20,
            store_keys: SMALL.to_owned(),
            config: format!(
                "[limits]\nmessage_bytes = 1048576\n[durability]\n{durability}\n{DELAYS_CONFIG}"
            ),
            ..Options::default()
        };
        let journal = Journal::create(&dir.path().join("journal"));
        let broker = Broker::standalone(Target::from_env(), &disk.mount.join("broker"), options);
        Mixed::prepare(&broker, TOPIC, QUEUES);
        Some(Crashing { broker, journal, dir: dir.path().to_owned(), disk })
    }

    fn spec() -> LoadSpec {
        LoadSpec { topic: TOPIC.to_owned(), queues: QUEUES, conns: 4, window: 16, rate_max: 4_000 }
    }

    /// Copies the disk while the broker stands still; gives what it had told until then.
    fn crash(&mut self) -> Told {
        self.broker.process().signal(libc::SIGSTOP);
        self.disk.copy_at_rest(&self.image()).expect("a copy of the disk");
        let told = settled(&self.journal);
        self.broker.process().signal(libc::SIGCONT);
        told
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.join("crashed.img")
    }

    /// Gives a broker on the image, not started yet, and removes the image afterwards.
    fn with_image(&self, look: impl FnOnce(&mut Broker)) {
        let crashed =
            LoopFs::attach(&self.dir, "crashed", self.image()).expect("the crashed disk mounts");
        let (target, options) = (self.broker.target, self.broker.options.clone());
        let mut after = Broker::new(target, &crashed.mount.join("broker"), options, None);
        look(&mut after);
        drop(after);
        drop(crashed);
        std::fs::remove_file(self.image()).expect("removing the crashed image");
    }

    fn judge(&mut self, image: u32, told: &Told, random: &mut Random) {
        // Each image is the first start after its crash.
        let mut judge = Judge::new(TOPIC, QUEUES);
        let rules = Rules::of(Target::RingMq, "write");
        self.with_image(|after| {
            judge.ended_unseen(after, End::Crash);
            let took = after.start();
            let wait = image % DELIVER_EVERY == DELIVER_EVERY - 1;
            let verdict = judge.verdict(after, &self.journal, told, rules, wait, random);
            println!("image {image}: serving after {took:?}, {verdict:?}");
        });
    }
}

/// What was told, once the answers on their way through sockets have come: the broker stands still, so nothing else comes.
fn settled(journal: &Journal) -> Told {
    let count = || {
        journal.look(|told| {
            let made = told.topics.len() + told.groups.len() + told.firsts.len();
            (told.acked.len(), told.delayed.len(), told.returned.len(), made)
        })
    };
    let mut before = count();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = count();
        if now == before {
            return journal.told();
        }
        before = now;
    }
}
