//! Sending and receiving.

use crate::fake::{FakeBroker, Manners};
use crate::{assert_plausible, load};

#[test]
fn every_group_receives_everything_and_ages_are_plausible() {
    let broker = FakeBroker::start(Manners::default());
    // Messages of others in the queues are not counted.
    broker.fill(0, 10);
    let options = "--rate 1000 --warmup 0.2 --seconds 1 --connections 3 --groups 3 --queues 2";
    let report = load(&broker, "e2e", options);
    let sent = report.send.as_ref().unwrap();
    // On a machine that is too busy some are never sent, which is told.
    assert!((1_199..=1_200).contains(&(sent.messages_all + sent.unsent)), "{sent:?}");
    assert!(sent.messages_all > 0 && report.clean == (sent.unsent == 0), "{}", report.table());
    assert_eq!(report.groups.len(), 3);
    for group in &report.groups {
        assert_eq!((group.received, group.missing, group.surplus), (sent.messages_all, 0, 0));
    }
    let received = report.receive.as_ref().unwrap();
    assert_plausible(&received.latency, sent.latency.count * 3);
    // Nothing arrives before it is sent, or in the future.
    assert!(received.latency.max_us < 5e6, "{received:?}");
}

#[test]
fn messages_of_a_batch_have_ages_too() {
    let broker = FakeBroker::start(Manners::default());
    let options = "--count 200 --batch 10 --connections 2 --window 1 --queues 2";
    let report = load(&broker, "e2e", options);
    assert!(report.clean, "{}", report.table());
    assert_plausible(&report.receive.unwrap().latency, 200);
}

#[test]
fn lost_messages_are_missed() {
    let broker = FakeBroker::start(Manners { lose: Some(10), ..Manners::default() });
    let options = "--count 100 --connections 1 --window 1 --queues 1 --grace 0.5";
    let report = load(&broker, "e2e", options);
    assert_eq!(report.groups[0].missing, 10);
    assert!(!report.clean);
}
