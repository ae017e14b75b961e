//! What can be watched over HTTP: the numbers, health and readiness, and the log lines of slow sends.

mod health;
mod http;
mod slow_sends;
mod text;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use ringmq::metrics::{CATALOG, Kind};

use super::ext::Ext;
use super::fixture::{Own, now_ms, soon};
use super::peer::{Form, Peer};
use crate::support::{Options, ports};
use http::{Answer, get, request};
use text::Scrape;

/// A broker of its own that can be watched.
struct Watched {
    own: Own,
    http: SocketAddr,
}

impl Watched {
    fn start(what: &str, metrics: &str, options: Options) -> Watched {
        let http = SocketAddr::from(([127, 0, 0, 1], ports::single()));
        let config = format!("[metrics]\nlisten = \"{http}\"\n{metrics}\n{}", options.config);
        let own = Own::start_with(what, Options { config, ..options });
        Watched { own, http }
    }

    fn peer(&self) -> Peer {
        self.own.place.peer(Form::Json)
    }

    #[track_caller]
    fn scrape(&self) -> Scrape {
        scrape(self.http)
    }

    /// Scrapes until the scrape is as it should be.
    #[track_caller]
    fn scrape_until(&self, what: &str, right: impl Fn(&Scrape) -> bool) -> Scrape {
        soon(what, || Some(self.scrape()).filter(&right))
    }
}

#[track_caller]
fn scrape(from: SocketAddr) -> Scrape {
    let answer = get(from, "/metrics").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(answer.head.contains(kind), "{}", answer.head);
    Scrape::read(&answer.body).unwrap_or_else(|why| panic!("{why}"))
}

#[track_caller]
fn status(from: SocketAddr, path: &str) -> Answer {
    get(from, path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Progress of a group on queue 0.
fn commit(group: &str, topic: &str, offset: i64) -> Ext {
    Ext::new([("consumerGroup", group), ("topic", topic), ("queueId", "0")])
        .with("commitOffset", offset)
}

/// Metrics that have a series only once something went wrong, at a slave, or beside one: those are scraped where masters and slaves are.
const NOT_AT_A_MASTER_ALONE: [&str; 8] = [
    "ringmq_stalls_total",
    "ringmq_stalled_seconds_total",
    "ringmq_stall_longest_seconds",
    "ringmq_ha_slave_lag_bytes",
    "ringmq_ha_slave_lag_seconds",
    "ringmq_ha_following",
    "ringmq_ha_behind_bytes",
    "ringmq_ha_received_bytes_total",
];

#[test]
fn every_metric_is_scraped_and_documented() {
    let watched = Watched::start("catalogue", "", Options::default());
    let mut peer = watched.peer();
    peer.send("Scraped", &[], b"x");
    peer.call(15, &commit("G", "Scraped", 0), &[]).ok();
    peer.call(9_999, &Ext::none(), &[]);
    let all: BTreeSet<&str> = CATALOG.iter().map(|family| family.name).collect();
    let scrape = watched.scrape_until("a survey of lags", |scrape| {
        !scrape.find("ringmq_consumer_lag_messages", &[]).is_empty()
    });
    for (name, kind) in &scrape.families {
        let known = CATALOG.iter().find(|family| family.name == name);
        let known = known.unwrap_or_else(|| panic!("{name} is not in the catalogue"));
        let expected = match known.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        assert_eq!(kind, expected, "{name}");
    }
    let names = |scrape: &Scrape| -> BTreeSet<String> {
        let samples = scrape.samples.keys().map(|(name, _)| name.clone());
        samples.map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
    };
    let seen = names(&scrape);
    for name in all.iter().filter(|name| !NOT_AT_A_MASTER_ALONE.contains(name)) {
        assert!(seen.contains(*name), "{name} has no series");
    }

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let document = std::fs::read_to_string(document).expect("docs/metrics.md");
    let mut rows = BTreeSet::new();
    for row in document
        .lines()
        .filter(|line| line.starts_with("| `ringmq_") || line.starts_with("| `process_"))
    {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`');
        assert!(rows.insert(name), "{name} has two rows");
        let family = CATALOG.iter().find(|family| family.name == name);
        let family = family.unwrap_or_else(|| panic!("docs/metrics.md: there is no {name}"));
        let kind = format!("{:?}", family.kind).to_lowercase();
        assert_eq!(cells[1], kind, "docs/metrics.md: {name}");
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
    assert_eq!(rows, all, "docs/metrics.md and the catalogue");
}

#[test]
fn numbers_are_what_a_client_did() {
    let watched = Watched::start("numbers", "", Options::default());
    let mut peer = watched.peer();
    let before = now_ms();
    for n in 0..10 {
        peer.send("Count", &[], format!("body {n}").as_bytes());
    }
    let sent = now_ms();
    peer.send("Count", &[("DELAY", "5")], b"later");
    let got = peer.pull("Count", 0, 4).len() as f64;
    peer.call(15, &commit("Behind", "Count", 3), &[]).ok();
    peer.call(15, &commit("Done", "Count", 10), &[]).ok();
    assert_eq!(peer.call(11, &Ext::pull("G", "Nowhere", 0, 0), &[]).code, 17);
    assert_eq!(peer.call(9_999, &Ext::none(), &[]).code, 3);
    let mut waiting = watched.peer();
    waiting.post(11, 0, &Ext::pull("G", "Count", 0, 10).waiting(20_000), &[]);

    let scrape = watched.scrape_until("the lag of both groups and a waiting pull", |scrape| {
        scrape.find("ringmq_consumer_lag_seconds", &[]).len() == 2
            && scrape.value("ringmq_waiting_pulls", &[]) == 1.0
    });
    let count = [("topic", "Count"), ("shard", "0"), ("broker", "broker-a")];
    assert_eq!(scrape.value("ringmq_messages_in_total", &count), 10.0);
    let delayed = [("topic", "SCHEDULE_TOPIC_XXXX")];
    assert_eq!(scrape.value("ringmq_messages_in_total", &delayed), 1.0);
    assert_eq!(
        scrape.sum("ringmq_bytes_in_total", &[]),
        scrape.value("ringmq_log_max_offset_bytes", &[])
    );
    assert_eq!(scrape.value("ringmq_messages_out_total", &count), got);
    assert_eq!(scrape.value("ringmq_delay_backlog_messages", &[("level", "5")]), 1.0);
    assert_eq!(scrape.sum("ringmq_delay_backlog_messages", &[]), 1.0);

    let answers = |level, code| {
        scrape.value("ringmq_send_answers_total", &[("level", level), ("code", code)])
    };
    assert_eq!(answers("write", "0"), 11.0);
    assert_eq!(scrape.sum("ringmq_send_answers_total", &[]), 11.0);
    assert_eq!(scrape.value("ringmq_send_seconds_count", &[]), 11.0);
    assert!(scrape.value("ringmq_log_write_seconds_count", &[]) >= 1.0);
    assert!(scrape.value("ringmq_log_write_seconds_count", &[]) <= 11.0);

    assert_eq!(scrape.value("ringmq_requests_total", &[("code", "310")]), 11.0);
    assert_eq!(scrape.value("ringmq_requests_total", &[("code", "11")]), 3.0);
    assert_eq!(scrape.value("ringmq_requests_total", &[("code", "other")]), 1.0);
    assert_eq!(scrape.value("ringmq_request_failures_total", &[("code", "17")]), 1.0);
    assert_eq!(scrape.value("ringmq_request_failures_total", &[("code", "3")]), 1.0);
    assert_eq!(scrape.sum("ringmq_refused_total", &[]), 0.0);
    assert_eq!(scrape.value("ringmq_connections", &[]), 2.0);
    assert_eq!(scrape.value("ringmq_pulls_total", &[("result", "found")]), 1.0);

    let lag = |name, group| scrape.value(name, &[("group", group), ("topic", "Count")]);
    assert_eq!(lag("ringmq_consumer_lag_messages", "Behind"), 7.0);
    assert_eq!(lag("ringmq_consumer_lag_messages", "Done"), 0.0);
    assert_eq!(lag("ringmq_consumer_lag_seconds", "Done"), 0.0);
    let age_ms = (lag("ringmq_consumer_lag_seconds", "Behind") * 1e3).round() as i64;
    let now = now_ms();
    assert!(age_ms <= now - before && age_ms >= 0, "{age_ms} ms old, sent {before} to {sent}");

    // It goes on by itself: the consumer catches up.
    peer.call(15, &commit("Behind", "Count", 10), &[]).ok();
    watched.scrape_until("no lag", |scrape| scrape.sum("ringmq_consumer_lag_messages", &[]) == 0.0);
    assert_eq!(scrape.value("ringmq_shard_up", &[]), 1.0);
    assert_eq!(scrape.value("ringmq_namesrv_up", &[]), 1.0);
    assert_eq!(scrape.value("ringmq_namesrv_registered", &[]), 1.0);
    assert!(scrape.value("process_resident_memory_bytes", &[]) > (1 << 20) as f64);
    assert!(scrape.value("ringmq_disk_used_ratio", &[]) < 1.0);
    assert!(scrape.value("ringmq_log_frontier_bytes", &[]) > 0.0);
}

#[test]
fn the_age_of_a_message_that_left_memory_is_read_from_the_disk() {
    let config = "[limits]\nblock_budget_bytes = 8388608\nunwritten_bytes = 8388608\n";
    let options = Options { config: config.to_owned(), ..Options::default() };
    let watched = Watched::start("cold", "", options);
    let mut peer = watched.peer();
    peer.send("Old", &[], b"first");
    let first = peer.pull("Old", 0, 0)[0].stored;
    for _ in 0..24 {
        peer.send("Old", &[], &[b'x'; 1 << 20]);
    }
    peer.call(15, &commit("Behind", "Old", 0), &[]).ok();
    let scrape = watched.scrape_until("a lag with an age", |scrape| {
        !scrape.find("ringmq_consumer_lag_seconds", &[]).is_empty()
    });
    let age_ms = (scrape.value("ringmq_consumer_lag_seconds", &[]) * 1e3).round() as i64;
    assert!(age_ms > 0 && age_ms <= now_ms() - first, "{age_ms} ms");
    assert_eq!(scrape.value("ringmq_consumer_lag_messages", &[]), 25.0);
}

#[test]
fn topics_and_groups_beyond_their_caps_cost_no_series() {
    let watched = Watched::start("caps", "topics_max = 2\ngroups_max = 1\n", Options::default());
    let mut peer = watched.peer();
    for topic in ["A", "B", "C", "D", "C"] {
        peer.send(topic, &[], b"x");
        peer.call(15, &commit("G", topic, 0), &[]).ok();
    }
    let scrape = watched.scrape_until("a survey", |scrape| {
        scrape.value("ringmq_consumer_lag_left_out", &[]) == 3.0
    });
    let topics = scrape.find("ringmq_messages_in_total", &[]);
    assert_eq!(topics.len(), 3, "{topics:?}");
    assert_eq!(scrape.value("ringmq_messages_in_total", &[("topic", "A")]), 1.0);
    assert_eq!(scrape.value("ringmq_messages_in_total", &[("topic", "(other)")]), 3.0);
    assert_eq!(scrape.find("ringmq_consumer_lag_messages", &[]).len(), 1);
    // A deleted topic takes its series along; the others stay what they are.
    peer.call(215, &Ext::new([("topic", "A")]), &[]).ok();
    let scrape = watched.scrape_until("A is gone", |scrape| {
        scrape.find("ringmq_messages_in_total", &[("topic", "A")]).is_empty()
    });
    assert_eq!(scrape.value("ringmq_messages_in_total", &[("topic", "(other)")]), 3.0);
}

#[test]
fn each_shard_has_its_own_series() {
    let watched = Watched::start("two", "", Options { shards: 2, ..Options::default() });
    let mut second = Peer::open(watched.own.broker.address(1), Form::Json);
    second.send("There", &[], b"x");
    let scrape = watched.scrape_until("the second shard's send", |scrape| {
        scrape.sum("ringmq_messages_in_total", &[("topic", "There")]) == 1.0
    });
    let labels = [("shard", "1"), ("broker", "shard01-broker-a"), ("topic", "There")];
    assert_eq!(scrape.value("ringmq_messages_in_total", &labels), 1.0);
    assert_eq!(scrape.sum("ringmq_messages_in_total", &[("shard", "0")]), 0.0);
    assert_eq!(scrape.find("ringmq_shard_up", &[]).len(), 2);
    assert_eq!(scrape.find("ringmq_reactor_turns_total", &[]).len(), 2);
}

#[test]
fn only_reading_is_allowed_and_only_what_is_there() {
    let watched = Watched::start("http", "", Options::default());
    let http = watched.http;
    let status = |method, path| request(http, method, path).expect("an answer").status;
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!((status("GET", path), status("HEAD", path)), (200, 200), "{path}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            assert_eq!(status(method, path), 405, "{method} {path}");
        }
    }
    for path in ["/", "/metrics/", "/metricsx", "/../metrics", "//metrics"] {
        assert_eq!(status("GET", path), 404, "{path}");
    }
    assert_eq!(status("GET", "/metrics?x=1"), 200);
}
