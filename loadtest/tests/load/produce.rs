//! Sending.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use ringmq_net::record::Properties;

use crate::fake::{FakeBroker, Manners};
use crate::{assert_plausible, load, try_load};

#[test]
fn every_message_is_sent_once_with_a_key_of_its_own() {
    for options in [
        "--window 1 --connections 1",
        "--window 7 --connections 3",
        "--window 7 --connections 3 --serialize binary",
        "--window 64 --connections 5 --threads 2 --burst",
    ] {
        for reverse in [false, true] {
            let broker = FakeBroker::start(Manners { reverse, ..Manners::default() });
            let options = format!("--count 1000 --size 100 --queues 4 {options}");
            let report = load(&broker, "produce", &options);
            let sent = broker.sent();
            let keys: HashSet<_> = sent.iter().map(|message| &message.key).collect();
            assert_eq!((sent.len(), keys.len()), (1000, 1000), "{options}");
            assert!(sent.iter().all(|message| message.key.len() == 32 && message.body == 100));
            let mut queues = BTreeMap::new();
            sent.iter().for_each(|message| *queues.entry(message.queue).or_insert(0) += 1);
            // Each connection sends to all queues in turn.
            assert_eq!(queues.len(), 4);
            assert!(queues.values().all(|count| (240..=260).contains(count)), "{queues:?}");
            let side = report.send.as_ref().unwrap();
            assert_eq!((side.messages, side.messages_all), (1000, 1000));
            assert!(report.clean, "{}", report.table());
            assert_plausible(&side.latency, 1000);
        }
    }
}

#[test]
fn sizes_tags_and_keys_are_those_asked_for() {
    for batch in [1, 5] {
        let broker = FakeBroker::start(Manners::default());
        let options = format!(
            "--count 2000 --size 100:1,300:1 --tag A,B --keys 3 --batch {batch} --connections 3"
        );
        let report = load(&broker, "produce", &options);
        assert!(report.clean, "{}", report.table());
        let mut counts = BTreeMap::new();
        for sent in broker.sent() {
            let properties = Properties::new(&sent.properties);
            let tag = properties.get("TAGS").unwrap().to_owned();
            let key = properties.get("KEYS").unwrap().to_owned();
            *counts.entry((sent.body, tag, key)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 2 * 2 * 3, "{counts:?}");
        // Evenly, but for the chance of a draw; a batch is drawn as one.
        assert!(counts.values().all(|count| (60..300).contains(count)), "{counts:?}");
        let bytes: usize = broker.sent().iter().map(|sent| sent.body).sum();
        let side = report.send.as_ref().unwrap();
        let told = side.megabytes_per_second * report.measured_seconds * 1e6;
        assert!((told - bytes as f64).abs() < 1.0, "{told} of {bytes}");
    }
}

#[test]
fn connections_that_leave_lose_nothing_and_come_back() {
    let broker = FakeBroker::start(Manners::default());
    let options =
        "--rate 2000 --warmup 0 --seconds 1 --connections 4 --churn 50 --verify --queues 2";
    let report = load(&broker, "produce", options);
    let side = report.send.as_ref().unwrap();
    assert!((1..=50).contains(&side.renewed), "{side:?}");
    assert_eq!((side.breaks, side.unanswered, side.errors.len()), (0, 0, 0));
    assert!(report.is_sound(), "{}", report.table());
    assert!(broker.connections() >= 4 + side.renewed, "{side:?}");
}

#[test]
fn the_knee_is_the_rate_at_which_the_broker_turns_slow() {
    // It answers a request in a millisecond, one after the other on a connection: no more than 1,000 a second.
    let manners = Manners { pause: Some(Duration::from_millis(1)), ..Manners::default() };
    let broker = FakeBroker::start(manners);
    let options = "--knee-p99 50 --rate 100 --seconds 0.4 --warmup 0.1 --connections 1 --window 500 --knee-precision 0.5";
    let report = load(&broker, "produce", options);
    let knee = report.knee.as_ref().unwrap();
    // A machine that is too busy bears less; a broker of this kind never more.
    assert!(knee.rate.is_none_or(|rate| (100.0..=1_500.0).contains(&rate)), "{knee:?}");
    let failed = knee.tries.iter().filter(|tried| !tried.borne);
    assert!(failed.count() >= 1, "{knee:?}");
    assert!(report.table().contains("knee:"), "{}", report.table());
}

#[test]
fn without_a_driver_it_says_so() {
    let error = try_load("x produce --quiet --addr 127.0.0.1:1 --count 1").unwrap_err().to_string();
    assert!(error.contains("--raw"), "{error}");
}

#[test]
fn batches_count_their_messages() {
    let broker = FakeBroker::start(Manners::default());
    let report = load(&broker, "produce", "--count 1000 --batch 20 --window 4 --connections 2");
    let keys: HashSet<_> = broker.sent().into_iter().map(|message| message.key).collect();
    assert_eq!((keys.len(), broker.requests()), (1000, 50));
    let side = report.send.unwrap();
    assert_eq!((side.messages, side.messages_per_answer), (1000, 20.0));
    assert_plausible(&side.latency, 50);
}

#[test]
fn refusals_are_counted_by_code_and_are_no_successes() {
    let broker = FakeBroker::start(Manners { refuse: Some((10, 2)), ..Manners::default() });
    let report = load(&broker, "produce", "--count 500 --window 8 --connections 2");
    let side = report.send.as_ref().unwrap();
    assert_eq!((side.messages_all, side.errors.len()), (450, 1));
    let errors = &side.errors[0];
    assert_eq!((errors.code, errors.count, errors.remark.as_str()), (2, 50, "not now"));
    assert!(!report.clean);
    assert!(report.table().contains("50 x code 2 not now"), "{}", report.table());
}

#[test]
fn answers_that_come_twice_are_noticed() {
    let broker = FakeBroker::start(Manners { repeat: Some(50), ..Manners::default() });
    let report = load(&broker, "produce", "--count 499 --window 8 --connections 1");
    let side = report.send.as_ref().unwrap();
    assert_eq!((side.messages_all, side.strays), (499, 9));
    assert!(!report.clean);
}

#[test]
fn a_broken_connection_is_made_anew_and_its_requests_count_as_unanswered() {
    let broker = FakeBroker::start(Manners { close_at: Some(200), ..Manners::default() });
    let report = load(&broker, "produce", "--count 1000 --window 8 --connections 2");
    let side = report.send.as_ref().unwrap();
    assert_eq!(side.breaks, 1);
    assert!((1..=8).contains(&side.unanswered), "{side:?}");
    assert_eq!(side.messages_all + side.unanswered, 1000);
    assert!(!report.clean);
}

#[test]
fn the_open_loop_sends_what_is_due_and_no_more() {
    let broker = FakeBroker::start(Manners::default());
    let options = "--rate 2000 --warmup 0.5 --seconds 1 --connections 4 --threads 2 --window 500";
    let began = Instant::now();
    let report = load(&broker, "produce", options);
    let sent = broker.sent();
    let side = report.send.as_ref().unwrap();
    // On a machine that is too busy some are never sent, which is told.
    let due = sent.len() as u64 + side.unsent;
    assert!(!sent.is_empty() && (2_999..=3_000).contains(&due), "{side:?}");
    assert_plausible(&side.latency, side.latency.count);
    assert!((1_999..=2_001).contains(&(side.latency.count + side.unsent)), "{side:?}");
    // No message may come before its time; late ones are the machine's business.
    for (number, message) in sent.iter().enumerate() {
        let due = Duration::from_micros(number as u64 * 500);
        assert!(message.at >= began + due, "{number} came early");
    }
}

/// The test of the correction for coordinated omission: a stall of 400 ms within a second is half a request's worth in the
/// closed loop, and in the open loop it is what almost half of all requests saw.
#[test]
fn a_stall_shows_in_every_request_that_was_due_meanwhile() {
    let manners =
        || Manners { stall: Some((300, Duration::from_millis(400))), ..Manners::default() };
    let open = "--rate 1000 --warmup 0 --seconds 1 --connections 1 --window 2000";
    let report = load(&FakeBroker::start(manners()), "produce", open);
    let open = report.send.unwrap().latency;
    assert!(open.p50_us >= 1.0 && open.p90_us > 200_000.0, "{open:?}");
    let delayed = open.mean_us * open.count as f64;
    // Up to 400 requests, delayed by 200 ms on average.
    assert!(delayed > 0.7 * 400.0 * 200_000.0, "{open:?}");
    // A window that is full must not hide it either.
    let narrow = "--rate 1000 --warmup 0 --seconds 1 --connections 1 --window 1";
    let report = load(&FakeBroker::start(manners()), "produce", narrow);
    let narrow = report.send.unwrap().latency;
    assert!(narrow.p90_us > 200_000.0, "{narrow:?}");

    let closed = "--count 1000 --connections 1 --window 1";
    let report = load(&FakeBroker::start(manners()), "produce", closed);
    let closed = report.send.unwrap().latency;
    assert!(closed.max_us >= 390_000.0 && closed.p90_us < 200_000.0, "{closed:?}");
}

#[test]
fn what_an_overloaded_broker_leaves_unsent_is_reported() {
    let manners = Manners { stall: Some((1, Duration::from_secs(2))), ..Manners::default() };
    let options = "--rate 1000 --warmup 0 --seconds 1 --connections 1 --window 10";
    let report = load(&FakeBroker::start(manners), "produce", options);
    let side = report.send.as_ref().unwrap();
    assert_eq!(side.unsent, 990);
    assert_eq!(side.messages, 0, "answers after the end are not of the span");
    assert_eq!(side.messages_all, 10);
    assert!(report.warnings.iter().any(|warning| warning.contains("asked for 1,000")));
}

#[test]
fn the_report_is_json_with_numbers_in_it() {
    let broker = FakeBroker::start(Manners::default());
    let options = format!("--count 200 --connections 2 --pid {}", std::process::id());
    let report = load(&broker, "produce", &options);
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["mode"], "produce");
    assert_eq!(json["send"]["messages"], 200);
    assert_eq!(json["options"]["window"], 64);
    assert_eq!(json["targets"][0][0], broker.address());
    for number in [
        &json["send"]["messages_per_second"],
        &json["send"]["latency"]["p99_us"],
        &json["broker"]["cpu_seconds_per_million"],
        &json["broker"]["rss_bytes"],
        &json["harness"]["cpu_us_per_message"],
    ] {
        assert!(number.as_f64().is_some_and(|number| number > 0.0), "{json:#}");
    }
}

#[test]
fn the_name_server_tells_where_to_send() {
    let broker = FakeBroker::start(Manners::default());
    // The first name server is down.
    let namesrv = format!("127.0.0.1:1;{}", broker.address());
    let line = format!("x produce --raw --quiet --namesrv {namesrv} --count 100 --connections 2");
    let report = try_load(&format!("{line} --topic known")).unwrap();
    // Neither the read-only broker nor the one without a master.
    assert_eq!(report.targets, [(broker.address(), 2)]);
    assert_eq!(broker.sent().len(), 100);
    let error = try_load(&format!("{line} --topic unknown")).unwrap_err().to_string();
    assert!(error.contains("code 17"), "{error}");
}

#[test]
fn impossible_options_are_refused_by_name() {
    for (options, name) in [
        ("", "--addr"),
        ("--addr 127.0.0.1:1 --window 0", "--window"),
        ("--addr 127.0.0.1:1 --rate 0", "--rate"),
        ("--addr 127.0.0.1:1 --connections 0", "--connections"),
        ("--addr 127.0.0.1:1 --seconds -1", "--seconds"),
        ("--addr 127.0.0.1:1 --churn 0", "--churn"),
        ("--addr 127.0.0.1:1 --verify --size 10", "--size"),
        ("--addr 127.0.0.1:1 --verify --topics 2", "--verify"),
        ("--addr 127.0.0.1:1 --batch 2 --delay-level 3", "--delay-level"),
        ("--addr 127.0.0.1:1 --knee-p99 1 --burst", "--knee-p99"),
        ("--addr 127.0.0.1:1 --slave nowhere --count 1", "127.0.0.1:1"),
        ("--addr 127.0.0.1:1 --pid 2147483647", "--pid"),
        ("--addr nowhere --count 1", "nowhere"),
        ("--addr 127.0.0.1:1 --count 1", "127.0.0.1:1"),
    ] {
        let line =
            format!("x produce --raw --quiet {}", options.replace("--seconds -1", "--seconds=-1"));
        let error = try_load(&line).unwrap_err().to_string();
        assert!(error.contains(name), "{options}: {error}");
    }
}
