//! What a report is besides its table.

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use crate::fake::{FakeBroker, Manners};
use crate::load;

#[test]
fn the_page_holds_the_report_and_refers_to_nothing_else() {
    let broker = FakeBroker::start(Manners::default());
    let options = format!(
        "--rate 500 --warmup 0 --seconds 2 --connections 2 --groups 2 --pid {}",
        std::process::id()
    );
    let report = load(&broker, "e2e", &options);
    let page = report.html();
    let data = page
        .split_once("id=\"data\">")
        .and_then(|(_, rest)| rest.split_once("</script>"))
        .unwrap()
        .0;
    let read: serde_json::Value = serde_json::from_str(data).unwrap();
    let told: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(read, told);
    assert!(read["series"].as_array().unwrap().len() >= 2);
    for side in ["send", "receive"] {
        let count: u64 = read[side]["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bucket| bucket[1].as_u64().unwrap())
            .sum();
        assert_eq!(count, read[side]["latency"]["count"].as_u64().unwrap());
        let curve = read[side]["curve"].as_array().unwrap();
        assert!(curve.len() > 5 && curve.is_sorted_by(|a, b| a[1].as_f64() <= b[1].as_f64()));
    }
    assert!(!page.contains("http"), "a reference");
}

#[test]
fn the_histogram_log_has_every_latency_once() {
    let broker = FakeBroker::start(Manners::default());
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = format!("--count 2500 --connections 2 --hdr-log {}", file.path().display());
    let report = load(&broker, "e2e", &options);
    assert!(report.clean, "{}", report.table());
    let text = std::fs::read(file.path()).unwrap();
    let mut tags = Vec::new();
    for entry in IntervalLogIterator::new(&text) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            tags.push(interval.tag().unwrap().as_str().to_owned());
        }
    }
    assert!(tags.contains(&"send".to_owned()) && tags.contains(&"receive".to_owned()), "{tags:?}");
    let seconds: u64 = report
        .series
        .iter()
        .filter_map(|second| second.send.as_ref())
        .map(|send| send.messages)
        .sum();
    assert_eq!(seconds, 2500, "the last part of a second is there too");
}
