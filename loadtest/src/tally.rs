//! What a worker counts, and what it shows meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use ringmq_net::frame::FrameRef;
use ringmq_net::header::HeaderDecoder;

use crate::clock::{SECOND_NS, Span};
use crate::ledger::{ByConnection, Seen};
use crate::trace::Recorded;
use crate::usage::{ThreadUsage, thread};

/// Latencies are kept from a microsecond...
const LATENCY_NS_MIN: u64 = 1_000;
/// ...to ten minutes; longer ones count as that.
const LATENCY_NS_MAX: u64 = 600 * SECOND_NS;
/// To three digits.
const LATENCY_DIGITS: u8 = 3;
/// How often a worker hands its latencies to the progress line.
const PUBLISH_NS: u64 = SECOND_NS / 5;
/// Longest error text that is kept.
const REMARK_CHARS_MAX: usize = 200;

/// An empty histogram of latencies in nanoseconds.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    let bounded = Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, LATENCY_DIGITS);
    bounded.unwrap_or_else(|_| unreachable!("the bounds are constants that the crate accepts"))
}

/// Counters that all workers of one kind add to, for the progress line.
#[derive(Debug)]
pub struct Live {
    /// Messages so far, warm-up included.
    pub messages: AtomicU64,
    /// Bytes of their bodies (sent) or records (pulled).
    pub bytes: AtomicU64,
    /// Requests answered with an error so far.
    pub errors: AtomicU64,
    /// Latencies since the last look.
    pub recent: Mutex<Histogram<u64>>,
    /// Ends the run early.
    pub stop: AtomicBool,
}

impl Default for Live {
    fn default() -> Self {
        Live {
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            recent: Mutex::new(latencies()),
            stop: AtomicBool::new(false),
        }
    }
}

impl Live {
    /// The latencies since the last call.
    pub fn take_recent(&self) -> Histogram<u64> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recent, latencies())
    }
}

/// Answers with one code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// How many.
    pub count: u64,
    /// The text of the first.
    pub remark: String,
}

/// What one worker saw. Merged when all are done.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Messages that were acknowledged or received, warm-up and tail included.
    pub messages_all: u64,
    /// Of these, those whose answer came inside the measured span.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Successful answers inside the span.
    pub answers: u64,
    /// Latencies of requests (or, end to end, messages) that were meant to begin inside the span.
    pub latency: Histogram<u64>,
    /// Open loop: how late requests were sent although their window had room, which is the harness's own fault.
    pub lag: Histogram<u64>,
    /// Error answers by code, warm-up included.
    pub errors: BTreeMap<i32, Errors>,
    /// Requests that never got an answer.
    pub unanswered: u64,
    /// Answers that no request waited for.
    pub strays: u64,
    /// Broken connections.
    pub breaks: u64,
    /// Connections that were closed and made anew on purpose.
    pub renewed: u64,
    /// Open loop: requests that were due and never sent.
    pub unsent: u64,
    /// Messages that were acknowledged, if that is kept.
    pub acknowledged: ByConnection,
    /// What arrived at each group, if that is checked.
    pub seen: BTreeMap<usize, Seen>,
    /// Messages that were received, if they are recorded.
    pub recorded: Vec<Recorded>,
    /// End to end: ages by group.
    pub ages: Vec<Histogram<u64>>,
    /// Records that were not what the protocol promises; the first few by what was wrong.
    pub bad_records: u64,
    /// See [`Self::bad_records`].
    pub bad_record_texts: Vec<String>,
    /// Pulls whose queue offset the broker had to correct.
    pub offsets_moved: u64,
    /// When the last successful answer came.
    pub last: u64,
    /// Part of the measured time that the busiest thread used its processor.
    pub busy: f64,
    /// Part of the measured time that a thread waited for a processor, at worst.
    pub waited: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            messages_all: 0,
            messages: 0,
            bytes: 0,
            answers: 0,
            latency: latencies(),
            lag: latencies(),
            errors: BTreeMap::new(),
            unanswered: 0,
            strays: 0,
            breaks: 0,
            renewed: 0,
            unsent: 0,
            acknowledged: ByConnection::default(),
            seen: BTreeMap::new(),
            recorded: Vec::new(),
            ages: Vec::new(),
            bad_records: 0,
            bad_record_texts: Vec::new(),
            offsets_moved: 0,
            last: 0,
            busy: 0.0,
            waited: 0.0,
        }
    }
}

impl Tally {
    /// Adds what another worker saw.
    pub fn merge(&mut self, other: &Tally) {
        self.messages_all += other.messages_all;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.answers += other.answers;
        // Both have the same bounds: adding can't fail.
        let _ = self.latency.add(&other.latency);
        let _ = self.lag.add(&other.lag);
        for (code, errors) in &other.errors {
            let mine = self.errors.entry(*code).or_default();
            mine.count += errors.count;
            if mine.remark.is_empty() {
                mine.remark.clone_from(&errors.remark);
            }
        }
        self.unanswered += other.unanswered;
        self.strays += other.strays;
        self.breaks += other.breaks;
        self.renewed += other.renewed;
        self.unsent += other.unsent;
        self.acknowledged.merge(&other.acknowledged);
        for (group, seen) in &other.seen {
            self.seen.entry(*group).or_default().merge(seen);
        }
        self.recorded.extend_from_slice(&other.recorded);
        for (group, ages) in other.ages.iter().enumerate() {
            let _ = self.ages_of(group).add(ages);
        }
        self.bad_records += other.bad_records;
        self.bad_record_texts.extend(other.bad_record_texts.iter().cloned());
        self.bad_record_texts.truncate(BAD_RECORD_TEXTS_MAX);
        self.offsets_moved += other.offsets_moved;
        self.last = self.last.max(other.last);
        self.busy = self.busy.max(other.busy);
        self.waited = self.waited.max(other.waited);
    }

    /// The ages of a group's messages.
    pub fn ages_of(&mut self, group: usize) -> &mut Histogram<u64> {
        if group >= self.ages.len() {
            self.ages.resize_with(group + 1, latencies);
        }
        &mut self.ages[group]
    }

    /// Notes a record that is not as it should be.
    pub fn bad_record(&mut self, text: impl FnOnce() -> String) {
        self.bad_records += 1;
        if self.bad_record_texts.len() < BAD_RECORD_TEXTS_MAX {
            self.bad_record_texts.push(text());
        }
    }

    /// Notes a failure with its code.
    pub fn failure(&mut self, code: i32, remark: impl FnOnce() -> String) {
        let errors = self.errors.entry(code).or_default();
        errors.count += 1;
        if errors.count == 1 {
            errors.remark = remark().chars().take(REMARK_CHARS_MAX).collect();
        }
    }

    /// Notes an answer that is an error.
    pub fn error(&mut self, code: i32, frame: &FrameRef<'_>) {
        self.failure(code, || {
            let mut decoder = HeaderDecoder::new();
            let view = decoder.decode(frame.serialize, frame.header);
            view.ok().and_then(|view| view.remark().map(str::to_owned)).unwrap_or_default()
        });
    }
}

/// Most texts of bad records that are kept.
const BAD_RECORD_TEXTS_MAX: usize = 10;

/// A worker's tally with the times it needs, and its window to the progress line.
#[derive(Debug)]
pub struct Recorder {
    /// What was counted.
    pub tally: Tally,
    /// The run's times.
    pub span: Span,
    live: Arc<Live>,
    recent: Histogram<u64>,
    published: (u64, u64, u64),
    bytes_all: u64,
    publish_at: u64,
    begun: Option<(u64, ThreadUsage)>,
    ended: bool,
}

impl Recorder {
    /// A recorder that shows itself through `live`.
    #[must_use]
    pub fn new(span: Span, live: Arc<Live>) -> Self {
        Recorder {
            tally: Tally::default(),
            span,
            live,
            recent: latencies(),
            published: (0, 0, 0),
            bytes_all: 0,
            publish_at: span.start + PUBLISH_NS,
            begun: None,
            ended: false,
        }
    }

    /// Whether somebody wants the run to end now.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.live.stop.load(Relaxed)
    }

    /// Notes messages that came with one answer at `now`.
    pub fn messages(&mut self, now: u64, messages: u64, bytes: u64) {
        self.tally.messages_all += messages;
        self.bytes_all += bytes;
        self.tally.last = now;
        if self.span.measures(now) {
            self.tally.messages += messages;
            self.tally.bytes += bytes;
            self.tally.answers += 1;
        }
    }

    /// Notes how long something took that was meant to begin at `started`.
    pub fn latency(&mut self, now: u64, started: u64) {
        let latency = now.saturating_sub(started);
        self.recent.saturating_record(latency);
        if self.span.measures(started) {
            self.tally.latency.saturating_record(latency);
        }
    }

    /// Notes how old a message of a group was that was meant to be sent at `intended`.
    pub fn age(&mut self, now: u64, intended: u64, group: usize) {
        self.latency(now, intended);
        if self.span.measures(intended) {
            let age = now.saturating_sub(intended);
            self.tally.ages_of(group).saturating_record(age);
        }
    }

    /// Keeps the numbers of messages that were acknowledged.
    pub fn acknowledged(&mut self, connection: usize, numbers: std::ops::Range<u64>) {
        let bits = self.tally.acknowledged.of(connection);
        for number in numbers {
            bits.insert(number);
        }
    }

    /// Notes that a request which could have left at `intended` left now.
    pub fn lag(&mut self, now: u64, intended: u64) {
        if self.span.measures(intended) {
            self.tally.lag.saturating_record(now.saturating_sub(intended));
        }
    }

    /// Shows what is new. Call it once a turn.
    pub fn publish(&mut self, now: u64) {
        self.watch_thread(now);
        let errors = self.tally.errors.values().map(|errors| errors.count).sum();
        let (messages, bytes, errors_before) = self.published;
        self.live.messages.fetch_add(self.tally.messages_all - messages, Relaxed);
        self.live.bytes.fetch_add(self.bytes_all - bytes, Relaxed);
        self.live.errors.fetch_add(errors - errors_before, Relaxed);
        self.published = (self.tally.messages_all, self.bytes_all, errors);
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_NS;
            let mut shared = self.live.recent.lock().unwrap_or_else(PoisonError::into_inner);
            // Both have the same bounds: adding can't fail.
            let _ = shared.add(&self.recent);
            self.recent.reset();
        }
    }

    /// Measures this thread from the start of the span to its end.
    fn watch_thread(&mut self, now: u64) {
        match self.begun {
            None if now >= self.span.warm => self.begun = Some((now, thread())),
            Some(_) if now >= self.span.end && !self.ended => self.end_watch(now),
            _ => {}
        }
    }

    fn end_watch(&mut self, now: u64) {
        self.ended = true;
        let Some((since, before)) = self.begun else { return };
        let (usage, seconds) = (thread(), now.saturating_sub(since).max(1) as f64 / 1e9);
        self.tally.busy = (usage.cpu_seconds - before.cpu_seconds) / seconds;
        self.tally.waited = (usage.waited_seconds - before.waited_seconds) / seconds;
    }

    /// The tally, when the worker is done.
    #[must_use]
    pub fn finish(mut self, now: u64) -> Tally {
        self.take(now)
    }

    /// As [`Self::finish`], for a recorder that is shared by tasks; nothing is noted any more.
    pub fn take(&mut self, now: u64) -> Tally {
        self.publish_at = 0;
        self.publish(now);
        if !self.ended {
            self.end_watch(now);
        }
        std::mem::take(&mut self.tally)
    }
}
