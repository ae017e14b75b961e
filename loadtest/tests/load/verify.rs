//! Every message accounted for: each kind of unfaithfulness is found, and no other.

use ringmq_loadtest::Report;
use ringmq_loadtest::ledger::Account;

use crate::fake::{FakeBroker, Manners};
use crate::{load, try_load};

/// Sends 200 messages to a broker and has them accounted for, by each mode that can.
fn accounts(manners: &Manners) -> Vec<(&'static str, Report)> {
    let broker = || FakeBroker::start(manners.clone());
    let send = "--count 200 --connections 2 --window 4 --queues 2 --size 60..90";
    let journal = tempfile::NamedTempFile::new().unwrap();
    let path = journal.path().display();
    let kept = broker();
    load(&kept, "produce", &format!("{send} --journal {path}"));
    vec![
        ("produce", load(&broker(), "produce", &format!("{send} --verify"))),
        ("e2e", load(&broker(), "e2e", &format!("{send} --verify --grace 0.5 --groups 2"))),
        ("consume", load(&kept, "consume", &format!("--queues 2 --journal {path}"))),
    ]
}

fn check(manners: &Manners, expected: impl Fn(&Account) -> bool) {
    for (mode, report) in accounts(manners) {
        let verdict = report.verify.as_ref().unwrap();
        assert_eq!(verdict.groups.len(), if mode == "e2e" { 2 } else { 1 });
        for account in &verdict.groups {
            assert!(expected(account), "{mode}: {}", report.table());
        }
        let counts = |account: &Account| {
            account.lost + account.duplicated + account.reordered + account.corrupt
        };
        let sound = verdict.groups.iter().all(|account| counts(account) == 0);
        assert_eq!((report.is_sound(), verdict.sound), (sound, sound), "{mode}");
        assert!(sound || !report.clean, "{mode}");
    }
}

#[test]
fn a_faithful_broker_passes() {
    check(&Manners::default(), |account| {
        let Account { arrived, lost, duplicated, reordered, corrupt, unacknowledged, .. } = account;
        *arrived == 200 && lost + duplicated + reordered + corrupt + unacknowledged == 0
    });
}

#[test]
fn what_was_taken_away_is_lost() {
    check(&Manners { lose: Some(50), ..Manners::default() }, |account| {
        // The first message of `e2e` and of `produce --verify` makes the topic.
        (account.lost == 4 || account.lost == 3)
            && account.duplicated + account.reordered + account.corrupt == 0
    });
}

#[test]
fn what_was_doubled_is_duplicated() {
    check(&Manners { double: Some(50), ..Manners::default() }, |account| {
        (account.duplicated == 4 || account.duplicated == 3)
            && account.lost + account.reordered + account.corrupt == 0
    });
}

#[test]
fn a_changed_byte_is_corruption() {
    check(&Manners { damage: Some(50), ..Manners::default() }, |account| {
        (account.corrupt == 4 || account.corrupt == 3)
            && account.duplicated + account.reordered == 0
    });
}

#[test]
fn what_overtook_its_answered_predecessors_is_told() {
    // Number 60 stands before nearly all of its queue, most of which was answered long before it left.
    for mode in ["produce", "consume"] {
        let manners = Manners { overtake: Some(60), ..Manners::default() };
        let broker = FakeBroker::start(manners);
        let send = "--count 100 --connections 1 --window 2 --queues 1 --size 60";
        let report = if mode == "produce" {
            load(&broker, "produce", &format!("{send} --verify"))
        } else {
            let journal = tempfile::NamedTempFile::new().unwrap();
            let path = journal.path().display();
            load(&broker, "produce", &format!("{send} --journal {path}"));
            load(&broker, "consume", &format!("--queues 1 --journal {path}"))
        };
        let account = &report.verify.as_ref().unwrap().groups[0];
        assert!((55..60).contains(&account.reordered), "{mode}: {account:?}");
        assert_eq!(account.lost + account.duplicated + account.corrupt, 0, "{mode}: {account:?}");
        assert!(!report.is_sound());
    }
}

#[test]
fn messages_whose_send_failed_are_neither_missed_nor_counted_against_the_broker() {
    let manners = Manners { refuse: Some((10, 2)), ..Manners::default() };
    let report = load(
        &FakeBroker::start(manners),
        "produce",
        "--count 100 --connections 1 --queues 1 --window 4 --verify",
    );
    let verdict = report.verify.as_ref().unwrap();
    assert!(verdict.acknowledged < 100 && report.is_sound(), "{}", report.table());
    assert!(!report.clean, "refused sends are errors all the same");
}

#[test]
fn a_slow_group_gets_everything_and_later_than_the_others() {
    let broker = FakeBroker::start(Manners::default());
    let options = "--rate 500 --warmup 0 --seconds 1 --connections 1 --queues 1 --groups 2 --slow-groups 1 --slow-us 20000 --verify";
    let report = load(&broker, "e2e", options);
    assert!(report.is_sound(), "{}", report.table());
    let [fast, slow] = &report.groups[..] else { panic!("two groups") };
    assert_eq!(fast.received, slow.received);
    // 50 messages a second of 500: most of them wait for the end.
    assert!(
        slow.latency.p50_us > 100_000.0 && slow.latency.p50_us > fast.latency.p50_us,
        "{:?}",
        report.groups
    );
}

#[test]
fn a_journal_that_is_none_is_named() {
    let line = "x consume --raw --quiet --addr 127.0.0.1:1 --journal /nonexistent/journal";
    assert!(try_load(line).unwrap_err().to_string().contains("/nonexistent/journal"));
}
