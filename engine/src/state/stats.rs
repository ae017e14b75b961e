//! The counters behind the runtime information (request 28): puts, gets, rates, latencies.
//!
//! Counting is a few additions on plain cells. Once a second [`StoreStats::tick`] takes a sample; rates
//! are differences of samples, over 10, 60 and 600 seconds.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write;

/// Samples kept: one a second for the longest window, and the one before it.
const SAMPLES_MAX: usize = 601;

/// The windows of a rate, in seconds.
const WINDOWS_S: [usize; 3] = [10, 60, 600];

/// How often the distribution of put times starts anew, in ms (stock 4.9.8).
const MINUTE_MS: i64 = 60_000;

/// Upper bounds of the classes of put times in ms, and how stock names the classes.
const PUT_TIME_CLASSES: [(u64, &str); 13] = [
    (0, "[<=0ms]"),
    (10, "[0~10ms]"),
    (50, "[10~50ms]"),
    (100, "[50~100ms]"),
    (200, "[100~200ms]"),
    (500, "[200~500ms]"),
    (1_000, "[500ms~1s]"),
    (2_000, "[1~2s]"),
    (3_000, "[2~3s]"),
    (4_000, "[3~4s]"),
    (5_000, "[4~5s]"),
    (10_000, "[5~10s]"),
    (u64::MAX, "[10s~]"),
];

/// The counters that are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages stored.
    pub puts: u64,
    /// Bytes of them, as stored.
    pub put_bytes: u64,
    /// Sends that failed at the store.
    pub put_failures: u64,
    /// Pulls that found messages.
    pub gets_found: u64,
    /// Pulls that found none.
    pub gets_missed: u64,
    /// Messages handed to consumers.
    pub transferred: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ms: i64,
    counters: Counters,
}

/// A day's marks: the totals when the day began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayMarks {
    /// Messages put before yesterday's midnight.
    pub puts_yesterday: u64,
    /// Messages put before today's midnight.
    pub puts_today: u64,
    /// Messages got before yesterday's midnight.
    pub gets_yesterday: u64,
    /// Messages got before today's midnight.
    pub gets_today: u64,
}

/// Put times of the running minute and of the one before, in power-of-two classes of microseconds with
/// 16 steps each: a quantile is at most 6 % off.
#[derive(Debug)]
struct Latencies {
    counts: Vec<u32>,
    total: u64,
}

const STEPS_LOG2: u32 = 4;
const LATENCY_CLASSES: usize = (41 - STEPS_LOG2 as usize) << STEPS_LOG2;

impl Latencies {
    fn new() -> Self {
        Self { counts: vec![0; LATENCY_CLASSES], total: 0 }
    }

    fn class(us: u64) -> usize {
        let us = us.min((1 << 40) - 1);
        let octave = (u64::BITS - (us >> STEPS_LOG2).leading_zeros()).saturating_sub(1);
        match us >> STEPS_LOG2 {
            0 => us as usize,
            _ => ((octave as usize + 1) << STEPS_LOG2) + ((us >> octave) as usize & 15),
        }
    }

    /// The largest value of a class.
    fn class_max(class: usize) -> u64 {
        let (octave, step) = (class >> STEPS_LOG2, class as u64 & 15);
        match octave {
            0 => step,
            _ => ((16 + step + 1) << (octave - 1)) - 1,
        }
    }

    fn add(&mut self, us: u64, n: u32) {
        self.counts[Self::class(us)] += n;
        self.total += u64::from(n);
    }

    /// The value in us that a share of `per_mille` of all does not exceed; 0 if there are none.
    fn quantile_us(&self, per_mille: u64) -> u64 {
        let wanted = (self.total * per_mille).div_ceil(1_000);
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if wanted > 0 && seen >= wanted {
                return Self::class_max(class);
            }
        }
        0
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }
}

/// The store's counters of one shard. Owned by its reactor; counting needs only `&self`.
#[derive(Debug)]
pub struct StoreStats {
    counters: Cell<Counters>,
    put_us_max: Cell<u64>,
    get_us_max: Cell<u64>,
    put_classes: [Cell<u64>; PUT_TIME_CLASSES.len()],
    put_classes_before: Cell<[u64; PUT_TIME_CLASSES.len()]>,
    latencies: RefCell<Latencies>,
    /// The quantiles of the last full minute; `None` before there was one.
    latency_us: Cell<Option<(u64, u64)>>,
    minute_began_ms: Cell<i64>,
    samples: RefCell<VecDeque<Sample>>,
    days: Cell<DayMarks>,
    boot_ms: i64,
}

impl StoreStats {
    /// All zero, from `now_ms` on.
    pub fn new(now_ms: i64) -> Self {
        Self {
            counters: Cell::default(),
            put_us_max: Cell::new(0),
            get_us_max: Cell::new(0),
            put_classes: Default::default(),
            put_classes_before: Cell::default(),
            latencies: RefCell::new(Latencies::new()),
            latency_us: Cell::new(None),
            minute_began_ms: Cell::new(now_ms),
            samples: RefCell::new(VecDeque::new()),
            days: Cell::default(),
            boot_ms: now_ms,
        }
    }

    /// The totals since the start.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// One append of `messages` messages (a batch counts each) with `bytes` bytes as stored.
    #[inline]
    pub fn put(&self, messages: u64, bytes: u64) {
        self.count(|c| {
            c.puts += messages;
            c.put_bytes += bytes;
        });
    }

    /// How long one send took at the store, from its append until its level was reached.
    #[inline]
    pub fn put_took_us(&self, us: u64) {
        self.puts_took_us(us, 1);
    }

    /// [`StoreStats::put_took_us`] for `n` sends that took equally long: those of one receive are answered together.
    #[inline]
    pub fn puts_took_us(&self, us: u64, n: u32) {
        self.put_us_max.set(self.put_us_max.get().max(us));
        let ms = us / 1_000;
        let class = PUT_TIME_CLASSES.partition_point(|(max, _)| *max < ms);
        let class = &self.put_classes[class.min(PUT_TIME_CLASSES.len() - 1)];
        class.set(class.get() + u64::from(n));
        self.latencies.borrow_mut().add(us, n);
    }

    /// One send that the store refused.
    pub fn put_failed(&self) {
        self.count(|c| c.put_failures += 1);
    }

    /// One pull that found `messages` messages, or none.
    #[inline]
    pub fn get(&self, messages: u64) {
        self.count(|c| {
            c.gets_found += u64::from(messages > 0);
            c.gets_missed += u64::from(messages == 0);
            c.transferred += messages;
        });
    }

    /// How long one pull took at the store.
    #[inline]
    pub fn get_took_us(&self, us: u64) {
        self.get_us_max.set(self.get_us_max.get().max(us));
    }

    /// Takes a sample: call it each second.
    pub fn tick(&self, now_ms: i64) {
        let mut samples = self.samples.borrow_mut();
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(Sample { at_ms: now_ms, counters: self.counters.get() });
        if now_ms - self.minute_began_ms.get() >= MINUTE_MS {
            self.minute_began_ms.set(now_ms);
            self.put_classes_before.set(self.put_classes_now());
            self.put_classes.iter().for_each(|class| class.set(0));
            let mut latencies = self.latencies.borrow_mut();
            self.latency_us.set(Some((latencies.quantile_us(990), latencies.quantile_us(999))));
            latencies.clear();
        }
    }

    /// Local midnight: today becomes yesterday.
    pub fn roll_day(&self) {
        let days = self.days.get();
        let counters = self.counters.get();
        self.days.set(DayMarks {
            puts_yesterday: days.puts_today,
            puts_today: counters.puts,
            gets_yesterday: days.gets_today,
            gets_today: counters.transferred,
        });
    }

    /// Totals at the last two midnights.
    pub fn days(&self) -> DayMarks {
        self.days.get()
    }

    /// Events per second of what `of` picks, over the last `window_s` seconds; `None` until the window
    /// is filled.
    pub fn rate(&self, window_s: usize, of: impl Fn(&Counters) -> u64) -> Option<f64> {
        let samples = self.samples.borrow();
        let last = samples.back()?;
        let before = samples.get(samples.len().checked_sub(window_s + 1)?)?;
        let ms = last.at_ms - before.at_ms;
        if ms <= 0 {
            return None;
        }
        let events = of(&last.counters) - of(&before.counters);
        Some(events as f64 * 1_000.0 / ms as f64)
    }

    /// Three rates as stock writes them: separated by blanks, `unfilled` for a window that isn't full. The first is a number in any
    /// case: stock's `clusterList` reads it as one, and shows no row for a broker without.
    fn rates(&self, unfilled: &str, of: impl Fn(&Counters) -> u64) -> String {
        let text = |window| match self.rate(window, &of) {
            Some(rate) => format!("{rate:?}"),
            None if window == WINDOWS_S[0] => "0.0".to_owned(),
            None => unfilled.to_owned(),
        };
        WINDOWS_S.map(text).join(" ")
    }

    /// The runtime information that these counters know, under stock 4.9.8's keys. Offsets, disks and
    /// queues of the broker are the caller's to add.
    pub fn runtime(&self, now_ms: i64) -> Vec<(&'static str, String)> {
        let c = self.counters.get();
        let days = self.days.get();
        let puts = c.puts.max(1);
        let (p99_us, p999_us) = self
            .latency_us
            .get()
            .unwrap_or_else(|| (self.put_quantile_us(990), self.put_quantile_us(999)));
        let in_ms = |us: u64| format!("{:.2}", us as f64 / 1_000.0);
        vec![
            ("bootTimestamp", self.boot_ms.to_string()),
            ("runtime", runtime_text(now_ms - self.boot_ms)),
            ("putMessageEntireTimeMax", (self.put_us_max.get() / 1_000).to_string()),
            ("getMessageEntireTimeMax", (self.get_us_max.get() / 1_000).to_string()),
            ("putMessageTimesTotal", puts.to_string()),
            ("putMessageFailedTimes", c.put_failures.to_string()),
            ("putMessageSizeTotal", c.put_bytes.to_string()),
            ("putMessageDistributeTime", self.distribution_text()),
            ("putMessageAverageSize", format!("{:?}", c.put_bytes as f64 / puts as f64)),
            ("dispatchMaxBuffer", "0".to_owned()),
            ("putTps", self.rates("", |c| c.puts)),
            ("getFoundTps", self.rates("", |c| c.gets_found)),
            ("getMissTps", self.rates("", |c| c.gets_missed)),
            ("getTotalTps", self.rates("0.0", |c| c.gets_found + c.gets_missed)),
            ("getTransferedTps", self.rates("", |c| c.transferred)),
            ("putLatency99", in_ms(p99_us)),
            ("putLatency999", in_ms(p999_us)),
            ("msgPutTotalYesterdayMorning", days.puts_yesterday.to_string()),
            ("msgPutTotalTodayMorning", days.puts_today.to_string()),
            ("msgPutTotalTodayNow", c.puts.to_string()),
            ("msgGetTotalYesterdayMorning", days.gets_yesterday.to_string()),
            ("msgGetTotalTodayMorning", days.gets_today.to_string()),
            ("msgGetTotalTodayNow", c.transferred.to_string()),
        ]
    }

    fn put_classes_now(&self) -> [u64; PUT_TIME_CLASSES.len()] {
        std::array::from_fn(|class| self.put_classes[class].get())
    }

    /// The classes of put times: of the last full minute, or of the running one while it is the first.
    fn distribution_text(&self) -> String {
        let before = self.put_classes_before.get();
        let classes = if before.iter().any(|n| *n > 0) { before } else { self.put_classes_now() };
        let mut text = String::new();
        for ((_, name), count) in PUT_TIME_CLASSES.iter().zip(classes) {
            let _ = write!(text, "{name}:{count} ");
        }
        text
    }

    /// The highest put time of a share of `per_mille` sends of the running minute, in us.
    pub fn put_quantile_us(&self, per_mille: u64) -> u64 {
        self.latencies.borrow().quantile_us(per_mille)
    }
}

/// `[ 0 days, 0 hours, 1 minutes, 33 seconds ]`.
fn runtime_text(ms: i64) -> String {
    let s = ms.max(0) / 1_000;
    let (days, hours, minutes) = (s / 86_400, s / 3_600 % 24, s / 60 % 60);
    format!("[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]", s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(stats: &StoreStats, key: &str, now_ms: i64) -> String {
        stats.runtime(now_ms).into_iter().find(|(k, _)| *k == key).unwrap().1
    }

    #[test]
    fn a_window_that_is_not_filled_is_an_empty_text() {
        let stats = StoreStats::new(0);
        for second in 0..=60 {
            stats.tick(second * 1_000);
            stats.put(41, 4_100);
            stats.get(0);
        }
        assert_eq!(value(&stats, "putTps", 0), "41.0 41.0 ");
        assert_eq!(value(&stats, "getTotalTps", 0), "1.0 1.0 0.0");
        assert_eq!(value(&stats, "getFoundTps", 0), "0.0 0.0 ");
        assert_eq!(StoreStats::new(0).rate(10, |c| c.puts), None);
    }

    #[test]
    fn samples_are_bounded_and_the_longest_window_fills() {
        let stats = StoreStats::new(0);
        for second in 0..2_000 {
            stats.tick(second * 1_000);
            stats.put(2, 0);
        }
        assert_eq!(stats.rate(600, |c| c.puts), Some(2.0));
        assert!(stats.samples.borrow().len() <= SAMPLES_MAX);
    }

    #[test]
    fn put_times_fall_into_stocks_classes() {
        let stats = StoreStats::new(0);
        for us in [0, 999, 1_000, 10_999, 11_000, 10_000_999, 10_001_000, u64::MAX] {
            stats.put_took_us(us);
        }
        assert_eq!(
            value(&stats, "putMessageDistributeTime", 0),
            "[<=0ms]:2 [0~10ms]:2 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 \
             [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:2 "
        );
    }

    #[test]
    fn quantiles_are_within_their_step() {
        let mut latencies = Latencies::new();
        for us in 1..=100_000u64 {
            latencies.add(us, 1);
        }
        for (per_mille, exact) in [(500, 50_000.0), (990, 99_000.0), (999, 99_900.0)] {
            let off = latencies.quantile_us(per_mille) as f64 / exact;
            assert!((1.0..1.07).contains(&off), "{per_mille}: off by {off}");
        }
        assert_eq!(Latencies::new().quantile_us(990), 0);
    }

    #[test]
    fn latency_classes_are_gapless() {
        for class in 1..LATENCY_CLASSES {
            let (below, own) = (Latencies::class_max(class - 1), Latencies::class_max(class));
            assert_eq!(Latencies::class(below + 1), class);
            assert_eq!(Latencies::class(own), class);
        }
        assert!(Latencies::class(u64::MAX) < LATENCY_CLASSES);
    }

    #[test]
    fn each_midnight_moves_the_marks() {
        let stats = StoreStats::new(0);
        stats.put(5, 0);
        stats.get(3);
        stats.roll_day();
        stats.put(1, 0);
        stats.roll_day();
        let marks = DayMarks { puts_yesterday: 5, puts_today: 6, gets_yesterday: 3, gets_today: 3 };
        assert_eq!(stats.days(), marks);
    }

    #[test]
    fn run_time_reads_as_stocks() {
        assert_eq!(runtime_text(93_500), "[ 0 days, 0 hours, 1 minutes, 33 seconds ]");
        assert_eq!(runtime_text(90_061_000), "[ 1 days, 1 hours, 1 minutes, 1 seconds ]");
    }
}
