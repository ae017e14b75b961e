//! Receiving.

use crate::fake::{FakeBroker, Manners};
use crate::{assert_plausible, load};

#[test]
fn all_queues_are_read_to_their_ends() {
    for options in ["", "--serialize binary", "--connections 2 --threads 2", "--batch 1"] {
        let broker = FakeBroker::start(Manners::default());
        let counts = [100, 0, 37, 64, 1];
        (0..).zip(counts).for_each(|(queue, count)| broker.fill(queue, count));
        let report = load(&broker, "consume", &format!("--queues 5 {options}"));
        let side = report.receive.as_ref().unwrap();
        assert_eq!((side.messages, side.messages_all), (202, 202), "{options}");
        assert!(report.clean, "{}", report.table());
        let pulls: usize = match options {
            "--batch 1" => 202,
            _ => counts.iter().map(|count| count.div_ceil(32)).sum(),
        };
        assert_plausible(&side.latency, pulls as u64);
    }
}

#[test]
fn it_begins_where_it_is_told() {
    let broker = FakeBroker::start(Manners { min_offset: 50, ..Manners::default() });
    broker.fill(0, 100);
    let count = |from: &str| {
        let report = load(&broker, "consume", &format!("--queues 1 --from {from}"));
        let side = report.receive.unwrap();
        assert_eq!(side.bad_records, 0);
        (side.messages, side.offsets_moved)
    };
    assert_eq!(count("min"), (100, 0));
    assert_eq!(count("max"), (0, 0));
    assert_eq!(count("140"), (10, 0));
    // Before the first message: the broker says where to go on.
    assert_eq!(count("0"), (100, 1));
    assert_eq!(count("1000"), (0, 1));
}

#[test]
fn a_count_ends_it() {
    let broker = FakeBroker::start(Manners::default());
    broker.fill(0, 1000);
    let report = load(&broker, "consume", "--queues 1 --count 64 --follow");
    assert_eq!(report.receive.unwrap().messages_all, 64);
}

#[test]
fn following_waits_for_more_and_time_ends_it() {
    let broker = FakeBroker::start(Manners::default());
    broker.fill(0, 10);
    let report = load(&broker, "consume", "--queues 2 --follow --warmup 0 --seconds 1");
    let side = report.receive.unwrap();
    assert_eq!((side.messages, side.errors.len()), (10, 0));
    assert!((report.measured_seconds - 1.0).abs() < 1e-6);
}
