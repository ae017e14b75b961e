//! The network between master and slave slow, dead without a word, and back, and either side killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::ha::{
    CAUGHT_UP_MAX, Pair, QUICK, assert_has_acknowledged, await_caught_up, await_streaming,
    await_text, number,
};
use crate::support::link::Link;
use crate::support::load::Load;
use crate::support::random::Random;
use crate::support::wire::{Conn, eventually};
use crate::support::{Options, rounds, tempdir};
use crate::sync::send_one;
use crate::{QUEUES, TOPIC, journal, send, small_segments, spec};

/// A pair whose log goes over a link.
fn linked(dir: &Path, role: &str, options: Options) -> (Pair, Link) {
    let mut pair = Pair::prepare(dir, role, QUICK, options);
    pair.master.start();
    let mut ha_port = pair.master.address(0);
    ha_port.set_port(ha_port.port() + 1);
    let link = Link::to(ha_port);
    let section = format!("[ha]\nmaster = \"{}\"\n", link.address);
    let options = &mut pair.slave.options;
    options.config = options.config.replacen("[ha]\n", &section, 1);
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    await_streaming(pair.master.address(0));
    (pair, link)
}

#[test]
fn a_dead_link_is_noticed_by_both_sides_and_a_healed_one_loses_nothing() {
    let dir = tempdir("ha-link");
    let journal = journal(&dir);
    let mut options = small_segments();
    options.config.push_str("[durability]\nack_timeout_ms = 700\n");
    let (pair, link) = linked(dir.path(), "sync-master", options);
    send(&pair.master, &journal, 500);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    assert_eq!(send_one(&mut conn, "").0.code, 0);
    link.cut();
    // Nobody was told: it is waited for, then it is gone.
    assert_eq!(send_one(&mut conn, "").0.code, 12);
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "0");
    assert_eq!(send_one(&mut conn, "").0.code, 11);
    await_text(pair.slave.address(0), "ringmqHaState", |state| state.starts_with("connecting"));
    link.heal();
    pair.await_caught_up();
    await_text(pair.master.address(0), "ringmqHaSlave_0", |peer| peer.contains("lagBytes=0"));
    assert_eq!(send_one(&mut conn, "").0.code, 0);
    send(&pair.master, &journal, 500);
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

#[test]
fn a_slow_link_delays_a_synchronous_masters_answers_by_its_round_trip_and_nothing_else() {
    const ONE_WAY: Duration = Duration::from_millis(60);
    let dir = tempdir("ha-slow-link");
    let journal = journal(&dir);
    let (pair, link) = linked(dir.path(), "sync-master", small_segments());
    link.delay(ONE_WAY);
    let mut conn = Conn::open(pair.master.address(0)).expect("a connection");
    let (reply, took) = send_one(&mut conn, "");
    assert_eq!(reply.code, 0, "{reply:?}");
    assert!(took >= 2 * ONE_WAY, "acknowledged after {took:?}, before its slave can have it");
    assert_eq!(send_one(&mut conn, "WAIT\u{1}false").0.code, 0);
    send(&pair.master, &journal, 1_000);
    let refusals = journal.refused_in_earnest();
    assert!(refusals.is_empty(), "{refusals:?}");
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

#[test]
fn a_narrow_link_that_loses_packets_costs_a_synchronous_master_time_and_nothing_else() {
    let dir = tempdir("ha-narrow-link");
    let journal = journal(&dir);
    let (pair, link) = linked(dir.path(), "sync-master", small_segments());
    link.delay(Duration::from_millis(50));
    link.rate(Some(192 << 10));
    link.lose(Some(100));
    send(&pair.master, &journal, 800);
    let refusals = journal.refused_in_earnest();
    assert!(refusals.is_empty(), "{refusals:?}");
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    let connections = number(pair.slave.address(0), "ringmqHaConnections");
    assert_eq!(connections, Some(1), "a slow link is no dead one");
    link.lose(None);
    link.rate(None);
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
}

#[test]
fn no_weather_and_no_kill_costs_what_a_synchronous_master_acknowledged() {
    let mut random = Random::from_env("ha-links");
    let dir = tempdir("ha-links");
    let journal = journal(&dir);
    let (mut pair, link) = linked(dir.path(), "sync-master", small_segments());
    for round in 0..rounds(4) {
        let before = journal.count();
        let load = Load::start(&pair.master.addresses(), &spec(), &journal);
        journal.await_count(before + 50);
        let until = Instant::now() + Duration::from_millis(1_500);
        let mut told = Vec::new();
        while Instant::now() < until {
            let what = random.below(4);
            match what {
                0 => link.cut(),
                1 => link.reset(),
                2 => link.delay(Duration::from_millis(random.below(40))),
                _ => link.heal(),
            }
            told.push(what);
            // The weather's own pace.
            std::thread::sleep(Duration::from_millis(random.below(300)));
        }
        if round % 2 == 0 {
            pair.slave.sigkill();
            load.stop();
            pair.slave.start();
        } else {
            pair.master.sigkill();
            load.stop();
            pair.master.start();
        }
        link.delay(Duration::ZERO);
        link.heal();
        pair.await_caught_up();
        println!("round {round}: {told:?}, {} bytes equal", pair.compare_logs());
        assert_has_acknowledged(&pair.master, TOPIC, QUEUES, &journal);
        assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    }
}

/// The master's requests are answered nowhere here: where they are asked for, one below the link's port, nobody listens.
#[test]
fn a_damaged_frame_of_a_master_that_dies_right_after_is_named_once_and_asked_for_again_when_it_is_back()
 {
    let dir = tempdir("ha-damaged-link");
    let journal = journal(&dir);
    let (mut pair, link) = linked(dir.path(), "async-master", small_segments());
    send(&pair.master, &journal, 500);
    pair.await_caught_up();
    let at = pair.slave.address(0);
    let end = |at| number(at, "commitLogMaxOffset").expect("a log's end");
    let held = end(at);
    // Nothing is under way: the first chunk of more than a heartbeat or a report is a frame with records.
    link.damage(1_000);
    send(&pair.master, &journal, 500);
    assert!(!link.is_to_damage());
    let tries = || number(at, "ringmqHaFailures").expect("a number");
    let tried = eventually(CAUGHT_UP_MAX, || (tries() > 3).then_some(()));
    assert!(tried.is_some(), "it tries again");
    await_text(at, "ringmqHaState", |state| state.starts_with("connecting"));
    assert!(held <= end(at) && end(at) < end(pair.master.address(0)), "it has what came before");
    let mut named = || {
        let text = pair.slave.process().log_text();
        text.lines().filter(|line| line.contains("came damaged")).count()
    };
    assert_eq!(named(), 1, "once, however often it tries");
    pair.master.sigkill();
    pair.master.start();
    link.heal();
    await_caught_up(pair.master.address(0), at);
    assert_eq!(named(), 1);
    // By the same frames, not by stock's.
    await_text(at, "ringmqHaProtocol", |protocol| protocol == "terms");
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}

/// Twice as much as the sockets on the way can hold is sent behind a link that carries nothing.
#[test]
fn a_slave_that_cannot_be_reached_costs_its_master_no_memory() {
    const MANY: u64 = 24 << 20;
    let dir = tempdir("ha-memory");
    let journal = journal(&dir);
    let (pair, link) = linked(dir.path(), "async-master", small_segments());
    link.cut();
    let start = number(pair.master.address(0), "commitLogMaxOffset").expect("the log's end");
    let sent = || number(pair.master.address(0), "commitLogMaxOffset").expect("its end") - start;
    while sent() < MANY {
        send(&pair.master, &journal, 2_000);
    }
    link.heal();
    pair.await_caught_up();
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
}
