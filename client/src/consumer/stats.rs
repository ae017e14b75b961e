//! Rates of a consumer, for administrators.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ringmq_net::body::ConsumeStatus;
use tokio::time::Instant;

/// Parts of a minute, and of an hour, that sums are kept of.
const PARTS: usize = 6;

/// What happened in the last whole period, in parts of it.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    parts: [Part; PARTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Which part since the beginning this is, from 1.
    at: u64,
    calls: u64,
    messages: u64,
    took: Duration,
}

impl Window {
    fn add(&mut self, at: u64, messages: u64, took: Duration) {
        let part = &mut self.parts[(at % PARTS as u64) as usize];
        if part.at != at {
            *part = Part { at, ..Part::default() };
        }
        part.calls += 1;
        part.messages += messages;
        part.took += took;
    }

    /// Calls, messages and time within the period that ends with part `now`.
    fn sum(&self, now: u64) -> (u64, u64, Duration) {
        let recent = self.parts.iter().filter(|part| part.at + PARTS as u64 > now);
        recent.fold((0, 0, Duration::ZERO), |(calls, messages, took), part| {
            (calls + part.calls, messages + part.messages, took + part.took)
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Topic {
    pulls: Window,
    consumed: Window,
    failed: Window,
    failed_of_hour: Window,
}

/// Rates by topic.
#[derive(Debug)]
pub(crate) struct Stats {
    began: Instant,
    topics: Mutex<BTreeMap<String, Topic>>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { began: Instant::now(), topics: Mutex::default() }
    }
}

impl Stats {
    fn part(&self, seconds: u64) -> u64 {
        self.began.elapsed().as_secs() / seconds + 1
    }

    fn change(&self, topic: &str, change: impl FnOnce(&mut Topic, u64, u64)) {
        let (now, of_hour) = (self.part(10), self.part(600));
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if !topics.contains_key(topic) {
            topics.insert(topic.to_owned(), Topic::default());
        }
        if let Some(topic) = topics.get_mut(topic) {
            change(topic, now, of_hour);
        }
    }

    pub(crate) fn pulled(&self, topic: &str, messages: usize, took: Duration) {
        self.change(topic, |topic, now, _| topic.pulls.add(now, messages as u64, took));
    }

    pub(crate) fn consumed(&self, topic: &str, done: usize, failed: usize, took: Duration) {
        self.change(topic, |topic, now, of_hour| {
            topic.consumed.add(now, done as u64, took);
            if failed > 0 {
                topic.failed.add(now, failed as u64, took);
                topic.failed_of_hour.add(of_hour, failed as u64, took);
            }
        });
    }

    /// Rates over the last minute.
    pub(crate) fn status(&self) -> BTreeMap<String, ConsumeStatus> {
        let (now, of_hour) = (self.part(10), self.part(600));
        let mean = |calls: u64, took: Duration| took.as_secs_f64() * 1e3 / calls.max(1) as f64;
        let rate = |messages: u64| messages as f64 / 60.0;
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let status = |topic: &Topic| {
            let (pulls, pulled, pull_time) = topic.pulls.sum(now);
            let (calls, consumed, consume_time) = topic.consumed.sum(now);
            ConsumeStatus {
                pull_rt: mean(pulls, pull_time),
                pull_tps: rate(pulled),
                consume_rt: mean(calls, consume_time),
                consume_ok_tps: rate(consumed),
                consume_failed_tps: rate(topic.failed.sum(now).1),
                consume_failed_msgs: i64::try_from(topic.failed_of_hour.sum(of_hour).1)
                    .unwrap_or(i64::MAX),
            }
        };
        topics.iter().map(|(name, topic)| (name.clone(), status(topic))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_forgets_what_is_older_than_its_period() {
        let mut window = Window::default();
        let second = Duration::from_secs(1);
        (1..=6).for_each(|at| window.add(at, 10, second));
        assert_eq!(window.sum(6), (6, 60, 6 * second));
        assert_eq!(window.sum(8), (4, 40, 4 * second));
        window.add(7, 1, second);
        assert_eq!(window.sum(8), (5, 41, 5 * second));
        assert_eq!(window.sum(20).0, 0);
    }

    #[test]
    fn rates_are_told_by_topic() {
        let stats = Stats::default();
        stats.consumed("T", 3, 1, Duration::from_millis(8));
        stats.pulled("T", 120, Duration::from_millis(2));
        let status = stats.status()["T"];
        assert_eq!((status.consume_failed_msgs, status.pull_tps), (1, 2.0));
        assert_eq!((status.consume_rt, status.pull_rt), (8.0, 2.0));
    }
}
