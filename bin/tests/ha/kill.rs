//! SIGKILL of either side under load, again and again: the logs stay equal and nothing acknowledged is lost on either.

use std::time::Duration;

use crate::support::ha::{Pair, QUICK, assert_has_acknowledged, await_text};
use crate::support::load::Load;
use crate::support::random::Random;
use crate::support::{rounds, tempdir};
use crate::{QUEUES, TOPIC, journal, small_segments, spec};

#[test]
fn logs_stay_equal_when_either_side_is_killed_under_load() {
    let mut random = Random::from_env("ha-kill");
    let dir = tempdir("ha-kill");
    let journal = journal(&dir);
    let options = small_segments();
    let mut pair = Pair::start(dir.path(), "async-master", QUICK, options);
    pair.master.create_topic(TOPIC, QUEUES);
    for round in 0..rounds(6) {
        let before = journal.count();
        let load = Load::start(&pair.master.addresses(), &spec(), &journal);
        journal.await_count(before + 1);
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let (master, slave) = [(false, true), (true, false), (true, true)][round as usize % 3];
        if slave {
            pair.slave.sigkill();
        }
        if master {
            std::thread::sleep(Duration::from_millis(random.below(100)));
            pair.master.sigkill();
            load.stop();
            pair.master.start();
        } else {
            load.stop();
        }
        if slave {
            pair.slave.start();
        }
        pair.await_caught_up();
        await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
        println!("round {round}: {} bytes equal", pair.compare_logs());
        assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
        assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    }
}
