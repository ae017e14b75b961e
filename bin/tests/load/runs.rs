//! Runs and what they must find.

use std::time::Duration;

use ringmq_loadtest::Report;
use ringmq_loadtest::ledger::Account;

use crate::load;
use crate::proxy::{Deed, start};
use crate::support::{Broker, Options, Target, tempdir};

fn broker(dir: &std::path::Path, shards: u16) -> Broker {
    Broker::standalone(Target::RingMq, dir, Options { shards, ..Options::default() })
}

fn assert_sound(report: &Report, messages: u64) {
    let verdict = report.verify.as_ref().expect("an account");
    assert!(report.is_sound() && report.clean, "{}", report.table());
    assert!(verdict.acknowledged >= messages, "{}", report.table());
    for account in &verdict.groups {
        assert_eq!(account.arrived, verdict.acknowledged, "{}", report.table());
    }
}

#[test]
fn every_message_is_accounted_for_by_both_drivers_in_every_mode() {
    let dir = tempdir("loads");
    let broker = broker(dir.path(), 2);
    let journal = dir.path().join("journal.json");
    let trace = dir.path().join("trace.jsonl");
    let (journal, trace) = (journal.display(), trace.display());
    for (driver, tag) in [("--raw", "Raw"), ("", "Client")] {
        let all = format!("{driver} --quiet --namesrv {}", broker.namesrv);
        let send = "--connections 3 --window 8 --size 60..900 --tag A,B --keys 4";

        let report = load(&format!("produce {all} --topic P{tag} {send} --count 600 --verify"));
        assert_sound(&report, 600);
        let report =
            load(&format!("produce {all} --topic B{tag} {send} --count 600 --batch 20 --verify"));
        assert_sound(&report, 600);

        let report = load(&format!(
            "e2e {all} --topic E{tag} {send} --rate 600 --warmup 0 --seconds 1 --groups 2 --verify"
        ));
        let unsent = report.send.as_ref().map_or(0, |side| side.unsent);
        // On a machine that is too busy some are never sent, which is told.
        assert!(report.is_sound(), "{}", report.table());
        assert!(unsent > 0 || report.clean, "{}", report.table());

        let report = load(&format!(
            "produce {all} --topic J{tag} {send} --count 500 --churn 20 --journal {journal}"
        ));
        assert!(report.clean, "{}", report.table());
        let report = load(&format!(
            "consume {all} --topic J{tag} --journal {journal} --record {trace} --threads 2"
        ));
        assert_sound(&report, 500);
        let report = load(&format!(
            "replay {all} --redirect --topic R{tag} --speed 50 --connections 3 {trace}"
        ));
        assert!(report.clean, "{}", report.table());
        assert_eq!(report.send.map(|side| side.messages_all), Some(500));
        let report = load(&format!("consume {all} --topic R{tag}"));
        assert_eq!(report.receive.map(|side| side.messages_all), Some(500));
    }
}

fn account(deed: Deed) -> Account {
    let dir = tempdir("unfaithful");
    let broker = broker(dir.path(), 1);
    let address = start(broker.address(0), deed, 137);
    let options = "--topic T --connections 2 --window 4 --size 100 --count 400 --verify";
    let report = load(&format!("produce --raw --quiet --addr {address} {options}"));
    let account = report.verify.as_ref().expect("an account").groups[0].clone();
    assert_eq!(report.is_sound(), deed == Deed::Nothing, "{}", report.table());
    assert_eq!((account.reordered, account.corrupt), (0, 0), "{}", report.table());
    account
}

#[test]
fn a_faithful_network_passes() {
    let account = account(Deed::Nothing);
    assert_eq!((account.arrived, account.lost, account.duplicated), (400, 0, 0));
}

#[test]
fn a_message_that_was_taken_away_is_told_as_lost() {
    let account = account(Deed::TakeAway);
    assert_eq!((account.arrived, account.lost, account.duplicated), (399, 1, 0));
    assert!(account.texts.iter().any(|text| text.contains("is not there")), "{account:?}");
}

#[test]
fn a_message_that_was_doubled_is_told_as_duplicated() {
    let account = account(Deed::Double);
    assert_eq!((account.arrived, account.lost, account.duplicated), (400, 0, 1));
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_after_the_restart() {
    let dir = tempdir("killed");
    let mut broker = broker(dir.path(), 1);
    let journal = dir.path().join("journal.json");
    let line = format!(
        "produce --raw --quiet --addr {} --topic K --connections 4 --window 32 --size 300 --rate 4000 --seconds 4 --warmup 0 --journal {}",
        broker.address(0),
        journal.display()
    );
    let sending = std::thread::spawn(move || load(&line));
    // Any moment will do.
    std::thread::sleep(Duration::from_millis(1500));
    broker.sigkill();
    broker.start();
    let sent = sending.join().expect("a report");
    let side = sent.send.as_ref().expect("a side");
    assert!(side.breaks > 0 && side.messages_all > 0, "{}", sent.table());
    let report = load(&format!(
        "consume --raw --quiet --addr {} --topic K --journal {}",
        broker.address(0),
        journal.display()
    ));
    assert!(report.is_sound(), "{}", report.table());
    assert_eq!(report.verify.map(|verdict| verdict.acknowledged), Some(side.messages_all));
}
