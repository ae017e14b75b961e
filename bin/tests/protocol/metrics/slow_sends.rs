//! Slow sends: the log line that says where the time went, and what tools see of it. The disk is made slow by the fault seam.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Watched;
use crate::ext::Ext;
use crate::fixture::{now_ms, soon};
use crate::peer::{Frame, Peer};
use crate::support::wire::eventually;
use crate::support::{Options, TempDir, tempdir};

const UNIQUE_KEY: &str = "7F0000010A2B1F89A4F2000000000001";

/// A broker whose disk is as slow as `fault` says while the flag is there.
struct Slow {
    watched: Watched,
    flag: PathBuf,
    _dir: TempDir,
}

impl Slow {
    fn start(durability: &'static str, fault: &str, config: &str) -> Slow {
        let dir = tempdir("slow-send");
        let flag = dir.path().join("slow");
        let faults = format!("{fault}:when={}", flag.display());
        let config = format!("[log]\nslow_send_ms = 200\n{config}");
        let options = Options { durability, faults, config, ..Options::default() };
        let watched = Watched::start("slow-send", "", options);
        // A topic's first send waits for its file; this test is about the log.
        watched.peer().send("Slow", &[], b"first");
        Slow { watched, flag, _dir: dir }
    }

    fn slow_down(&self) {
        fs::write(&self.flag, "").expect("a flag");
    }

    /// The lines about slow sends so far.
    fn lines(&mut self) -> Vec<Line> {
        let log = self.watched.own.broker.process().log_text();
        log.lines().filter(|line| line.contains(" slow send ")).map(Line::read).collect()
    }

    /// Sends until a line about one of the sends is there: on a busy machine, another line may have taken its second.
    #[track_caller]
    fn sent(&mut self, pairs: &[(&str, &str)]) -> (Peer, Frame, Line) {
        let mut peer = self.watched.peer();
        for _ in 0..5 {
            let reply = peer.call(310, &Ext::send("Slow").properties(pairs), b"x");
            let offset = reply.ext("queueOffset").expect("an offset").to_owned();
            let line = eventually(Duration::from_secs(2), || {
                self.lines().into_iter().find(|line| line.text("offset") == offset)
            });
            if let Some(line) = line {
                return (peer, reply, line);
            }
        }
        panic!("five slow sends and no line");
    }

    fn slow_sends(&self) -> f64 {
        self.watched.scrape().value("ringmq_slow_sends_total", &[])
    }
}

/// The fields of a line.
#[derive(Debug)]
struct Line(std::collections::BTreeMap<String, String>);

impl Line {
    fn read(line: &str) -> Line {
        let fields = line.split(' ').filter_map(|word| word.split_once('='));
        Line(fields.map(|(k, v)| (k.to_owned(), v.trim_matches('"').to_owned())).collect())
    }

    #[track_caller]
    fn text(&self, field: &str) -> &str {
        self.0.get(field).unwrap_or_else(|| panic!("no {field} in {self:?}"))
    }

    #[track_caller]
    fn ms(&self, field: &str) -> f64 {
        self.text(field).parse().unwrap_or_else(|_| panic!("{field} is no number in {self:?}"))
    }

    /// All stages together are the whole, but for the clock's grain.
    #[track_caller]
    fn adds_up(&self) {
        let stages = ["queued_ms", "write_ms", "flush_ms", "held_ms", "reply_ms"];
        let sum: f64 = stages.iter().filter(|s| self.0.contains_key(**s)).map(|s| self.ms(s)).sum();
        let total = self.ms("total_ms");
        assert!((sum - total).abs() < 1.0, "the stages make {sum} of {total}: {self:?}");
    }
}

#[test]
fn a_slow_write_is_told_with_who_and_where() {
    let mut slow = Slow::start("write", "delay:LogWrite:ms=600", "");
    slow.slow_down();
    let (peer, reply, line) = slow.sent(&[("UNIQ_KEY", UNIQUE_KEY)]);
    assert_eq!((line.text("topic"), line.text("queue")), ("Slow", "0"));
    assert_eq!(line.text("client"), peer.address().to_string());
    assert_eq!(Some(line.text("id")), reply.ext("msgId"));
    assert_eq!(line.text("unique_key"), UNIQUE_KEY);
    assert_eq!((line.text("code"), line.text("level")), ("0", "write"));
    assert!(line.ms("write_ms") >= 600.0, "{line:?}");
    assert!(!line.0.contains_key("flush_ms"), "nobody waited for a flush: {line:?}");
    assert_eq!(line.text("unsent_bytes"), "0");
    line.adds_up();
    assert!(slow.lines().iter().all(|line| line.ms("total_ms") > 200.0), "{:?}", slow.lines());
}

#[test]
fn a_send_behind_a_slow_write_was_queued() {
    // Two lines a second apart; and nothing is given up meanwhile.
    let config = "[durability]\nack_timeout_ms = 20000\n";
    let mut slow = Slow::start("write", "delay:LogWrite:ms=1500", config);
    let before = slow.slow_sends();
    let (mut first, mut second) = (slow.watched.peer(), slow.watched.peer());
    slow.slow_down();
    first.post(310, 0, &Ext::send("Slow"), b"in the write");
    // The first is in the write when it is no longer only appended.
    let scrape = || slow.watched.scrape();
    soon("the first waits", || (scrape().value("ringmq_waiting_sends", &[]) == 1.0).then_some(()));
    second.post(310, 0, &Ext::send("Slow"), b"behind it");
    assert_eq!((first.reply().code, second.reply().code), (0, 0));
    let line = soon("the second's line", || {
        slow.lines().into_iter().find(|line| line.text("offset") == "2")
    });
    assert!(line.ms("queued_ms") > 0.0 && line.ms("write_ms") >= 1_500.0, "{line:?}");
    line.adds_up();
    let scrape = slow.watched.scrape();
    assert_eq!(scrape.value("ringmq_slow_sends_total", &[]) - before, 2.0);
    assert_eq!(scrape.value("ringmq_send_seconds_count", &[]), 3.0);
}

#[test]
fn a_slow_flush_is_told_at_the_level_that_waits_for_it() {
    let mut slow = Slow::start("sync", "delay:LogFlush:ms=600", "");
    slow.slow_down();
    let (_, _, line) = slow.sent(&[]);
    assert_eq!(line.text("level"), "sync");
    assert!(line.ms("flush_ms") >= 600.0, "{line:?}");
    line.adds_up();
}

#[test]
fn a_send_that_was_given_up_is_told_with_what_it_waited_for() {
    let config = "[durability]\nack_timeout_ms = 500\n";
    let mut slow = Slow::start("write", "delay:LogWrite:ms=1500", config);
    slow.slow_down();
    let (_, reply, line) = slow.sent(&[]);
    assert_eq!((reply.code, reply.ext("ackLevel")), (10, Some("memory")));
    assert_eq!((line.text("code"), line.text("level")), ("10", "memory"));
    assert!(line.ms("total_ms") >= 500.0, "{line:?}");
    line.adds_up();
    let scrape = slow.watched.scrape();
    let answers = scrape.value("ringmq_send_answers_total", &[("level", "memory"), ("code", "10")]);
    assert!(answers >= 1.0, "{answers}");
}

#[test]
fn many_slow_sends_make_few_lines() {
    let mut slow = Slow::start("write", "delay:LogWrite:ms=300", "");
    let before = slow.slow_sends();
    slow.slow_down();
    let began = now_ms();
    let mut peer = slow.watched.peer();
    for round in 0..5 {
        for _ in 0..20 {
            peer.post(310, 0, &Ext::send("Slow"), format!("{round}").as_bytes());
        }
        let replies: Vec<Frame> = (0..20).map(|_| peer.reply()).collect();
        assert!(replies.iter().all(|reply| reply.code == 0));
    }
    let lines = slow.lines().len() as i64;
    let seconds = (now_ms() - began) / 1_000 + 1;
    assert!((1..=seconds + 2).contains(&lines), "{lines} lines in {seconds} s");
    assert_eq!(slow.slow_sends() - before, 100.0, "all are counted");
}

#[test]
fn tools_see_how_long_sends_and_pulls_took() {
    let slow = Slow::start("write", "delay:LogWrite:ms=300", "");
    let mut peer = slow.watched.peer();
    for _ in 0..9 {
        peer.send("Slow", &[], b"quick");
    }
    slow.slow_down();
    peer.send("Slow", &[], b"slow");
    peer.pull("Slow", 0, 0);
    let table = peer.call(28, &Ext::none(), &[]).ok().json()["table"].clone();
    let text = |key: &str| table[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
    let number = |key: &str| text(key).parse::<f64>().unwrap_or_else(|_| panic!("{key}"));
    assert!(number("putMessageEntireTimeMax") >= 300.0, "{table}");
    assert!(number("putLatency999") >= 300.0, "{table}");
    assert!(number("putLatency99") >= 300.0, "one in eleven is slow: {table}");
    let classes = text("putMessageDistributeTime");
    let counts = classes.split_whitespace().filter_map(|class| class.rsplit_once(':'));
    let sum: u64 = counts.clone().map(|(_, count)| count.parse::<u64>().expect("a count")).sum();
    assert_eq!(sum, 11, "{classes}");
    let slow_class =
        counts.clone().any(|(name, count)| name != "[<=0ms]" && name != "[0~10ms]" && count != "0");
    assert!(slow_class, "{classes}");
    assert!(number("getMessageEntireTimeMax") < 20_000.0, "{table}");
}

#[test]
fn no_threshold_is_no_line() {
    let dir = tempdir("no-threshold");
    let flag = dir.path().join("slow");
    let faults = format!("delay:LogWrite:ms=600:when={}", Path::display(&flag));
    let config = "[log]\nslow_send_ms = 0\n".to_owned();
    let mut watched =
        Watched::start("no-threshold", "", Options { faults, config, ..Options::default() });
    fs::write(&flag, "").expect("a flag");
    watched.peer().send("T", &[], b"x");
    let scrape = watched.scrape();
    assert_eq!(scrape.value("ringmq_slow_sends_total", &[]), 0.0);
    assert!(!watched.own.broker.process().log_text().contains("slow send"));
}
