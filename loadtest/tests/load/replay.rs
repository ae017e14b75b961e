//! Sending what was recorded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::fake::{FakeBroker, Manners};
use crate::{load, try_load};

#[test]
fn a_recorded_load_is_sent_again_with_its_sizes_tags_and_times() {
    let first = FakeBroker::start(Manners::default());
    load(&first, "produce", "--count 300 --size 10..500 --tag A,B --connections 2 --queues 2");
    let trace = tempfile::NamedTempFile::new().unwrap();
    let path = trace.path().display();
    let recorded = load(&first, "consume", &format!("--queues 2 --record {path}"));
    assert_eq!(recorded.receive.unwrap().messages, 300);

    let second = FakeBroker::start(Manners::default());
    let report = load(&second, "replay", &format!("--connections 3 --queues 2 --speed 100 {path}"));
    assert!(report.clean, "{}", report.table());
    let counts = |broker: &FakeBroker| {
        let mut counts = BTreeMap::new();
        for sent in broker.sent() {
            let tag = sent
                .properties
                .split('\u{2}')
                .find(|part| part.starts_with("TAGS"))
                .unwrap_or_default()
                .to_owned();
            *counts.entry((sent.body, tag)).or_insert(0) += 1;
        }
        counts
    };
    assert_eq!(counts(&first), counts(&second));
}

#[test]
fn times_are_kept_and_scaled() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..20)
        .map(|n| format!("{{\"at_us\":{},\"topic\":\"t\",\"size\":9}}\n", n * 50_000))
        .collect();
    std::fs::write(trace.path(), format!("{{\"ringmq_trace\":1}}\n{lines}")).unwrap();
    let broker = FakeBroker::start(Manners::default());
    let began = Instant::now();
    let report =
        load(&broker, "replay", &format!("--connections 2 --speed 2 {}", trace.path().display()));
    assert!(report.clean, "{}", report.table());
    let sent = broker.sent();
    assert_eq!(sent.len(), 20);
    // None comes before its time; late ones are the machine's business.
    for (number, message) in sent.iter().enumerate() {
        let due = Duration::from_millis(25 * number as u64);
        assert!(message.at >= began + due, "{number} came early");
    }
}

#[test]
fn topics_of_a_trace_need_an_address_or_one_topic() {
    let error = try_load("x replay --raw --quiet --namesrv 127.0.0.1:1 none.jsonl").unwrap_err();
    assert!(error.to_string().contains("--redirect"), "{error}");
    let error =
        try_load("x replay --raw --quiet --addr 127.0.0.1:1 /nonexistent/trace").unwrap_err();
    assert!(error.to_string().contains("/nonexistent/trace"), "{error}");
}
