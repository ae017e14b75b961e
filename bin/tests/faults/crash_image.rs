//! Crashes of the kernel, by images of the disk: see [`crate::support::image`]. At `write` nothing acknowledged may be lost.

use std::time::Duration;

use crate::support::checker::{Checker, Rules};
use crate::support::image::LoopFs;
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, exclusive, rounds, skip, tempdir};

const QUEUES: u32 = 4;
const DISK_BYTES: u64 = 4 << 30;

#[test]
fn acknowledged_messages_survive_kernel_crashes() {
    let _alone = exclusive();
    let target = Target::from_env();
    let mut random = Random::from_env("kernel crash");
    let dir = tempdir("crash");
    let disk = match LoopFs::create(dir.path(), "disk", DISK_BYTES) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("kernel crash images need root and loop devices: {why}")),
    };
    let journal = Journal::create(&dir.path().join("journal"));
    let options = Options { segment_bytes: 16 << 20, ..Options::default() };
    let mut broker = Broker::standalone(target, &disk.mount.join("broker"), options.clone());
    broker.create_topic("Journal", QUEUES);
    let rules = Rules { whole: !target.is_stock(), ..Rules::of(target, "write") };
    let spec = LoadSpec {
        topic: "Journal".to_owned(),
        queues: QUEUES,
        conns: 4,
        window: 16,
        rate_max: 4_000,
    };
    let mut lost = 0;
    for round in 0..rounds(10) {
        let load = Load::start(&broker.addresses(), &spec, &journal);
        journal.await_count(journal.count() + 1);
        std::thread::sleep(Duration::from_millis(200 + random.below(1_000)));
        let copy = dir.path().join("crashed.img");
        broker.process().signal(libc::SIGSTOP);
        disk.copy_at_rest(&copy).expect("a copy of the disk");
        let acked = settled(&journal);
        broker.process().signal(libc::SIGCONT);
        load.stop();

        let crashed =
            LoopFs::attach(dir.path(), "crashed", copy.clone()).expect("the crashed disk mounts");
        let mut after = Broker::new(target, &crashed.mount.join("broker"), options.clone(), None);
        let took = after.start();
        if target.is_stock() {
            // It writes its tables without fsync: the topic is gone with the rest.
            after.create_topic("Journal", QUEUES);
        }
        let mut checker = Checker::new();
        let summary = checker.check_allowing_loss(
            &after.addresses(),
            "Journal",
            QUEUES,
            &journal,
            &acked,
            rules,
        );
        println!("image {round}: serving after {took:?}, {summary:?}");
        lost += summary.lost;
        if !target.is_stock() {
            assert_eq!(summary.lost, 0, "image {round}: acknowledged messages are lost");
        }
        drop(after);
        drop(crashed);
        std::fs::remove_file(copy).expect("removing the crashed image");
    }
    assert_eq!(journal.refused(), Vec::<String>::new(), "a send was refused");
    drop(broker);
    if target.is_stock() {
        // The reason for zeroed space and direct writes: what a stock broker acknowledges is in the kernel's memory alone.
        assert!(lost > 0, "a stock broker was expected to lose what it had acknowledged");
    }
}

/// The acknowledgements, once the ones on their way through sockets have come: the broker stands still, so nothing else comes.
fn settled(journal: &Journal) -> Vec<crate::support::load::Acked> {
    let mut before = journal.count();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = journal.count();
        if now == before {
            return journal.acked();
        }
        before = now;
    }
}
