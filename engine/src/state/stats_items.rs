//! Named statistics (request 315): a counter per name and key, with samples per minute, hour and day.
//!
//! Look an item up once and keep its `Rc` beside the topic or group: counting is then two additions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ringmq_net::map::SeededMap;

/// The default bound on items of one shard: about 60 MB when all samples are full.
pub const ITEMS_MAX: usize = 200_000;

/// Which lists are due, in calls of [`StatsItems::tick`] each 10 s: every call, every 10 min, every hour.
const HOUR_LIST_EVERY: u64 = 60;
const DAY_LIST_EVERY: u64 = 360;

/// Samples per list, and their distance in ms (stock 4.9.8).
const LISTS: [(usize, i64); 3] = [(7, 10_000), (7, 600_000), (25, 3_600_000)];

/// The statistics that a RingMQ broker keeps, under stock's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum StatsName {
    TopicPutNums,
    TopicPutSize,
    GroupGetNums,
    GroupGetSize,
    GroupGetLatency,
    SndbckPutNums,
    BrokerPutNums,
    BrokerGetNums,
}

impl StatsName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TopicPutNums,
        Self::TopicPutSize,
        Self::GroupGetNums,
        Self::GroupGetSize,
        Self::GroupGetLatency,
        Self::SndbckPutNums,
        Self::BrokerPutNums,
        Self::BrokerGetNums,
    ];

    /// Stock's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TopicPutNums => "TOPIC_PUT_NUMS",
            Self::TopicPutSize => "TOPIC_PUT_SIZE",
            Self::GroupGetNums => "GROUP_GET_NUMS",
            Self::GroupGetSize => "GROUP_GET_SIZE",
            Self::GroupGetLatency => "GROUP_GET_LATENCY",
            Self::SndbckPutNums => "SNDBCK_PUT_NUMS",
            Self::BrokerPutNums => "BROKER_PUT_NUMS",
            Self::BrokerGetNums => "BROKER_GET_NUMS",
        }
    }

    /// From stock's name.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// What the samples of one list say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// What was added between the first and the last sample.
    pub sum: i64,
    /// The same per second.
    pub tps: f64,
    /// The same per time counted.
    pub average: f64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ms: i64,
    times: i64,
    value: i64,
}

/// One counter with its samples.
#[derive(Debug, Default)]
pub struct StatsItem {
    value: Cell<i64>,
    times: Cell<i64>,
    lists: RefCell<[VecDeque<Sample>; 3]>,
}

impl StatsItem {
    /// Adds `value`, counted as `times` events.
    #[inline]
    pub fn add(&self, value: i64, times: i64) {
        self.value.set(self.value.get().wrapping_add(value));
        self.times.set(self.times.get().wrapping_add(times));
    }

    /// The total since it exists.
    pub fn value(&self) -> i64 {
        self.value.get()
    }

    /// The last minute.
    pub fn minute(&self) -> Snapshot {
        self.snapshot(0)
    }

    /// The last hour.
    pub fn hour(&self) -> Snapshot {
        self.snapshot(1)
    }

    /// The last day.
    pub fn day(&self) -> Snapshot {
        self.snapshot(2)
    }

    fn snapshot(&self, list: usize) -> Snapshot {
        let lists = self.lists.borrow();
        let (Some(first), Some(last)) = (lists[list].front(), lists[list].back()) else {
            return Snapshot::default();
        };
        let sum = last.value.wrapping_sub(first.value);
        let (ms, times) = (last.at_ms - first.at_ms, last.times.wrapping_sub(first.times));
        Snapshot {
            sum,
            tps: if ms > 0 { sum as f64 * 1_000.0 / ms as f64 } else { 0.0 },
            average: if times > 0 { sum as f64 / times as f64 } else { 0.0 },
        }
    }

    fn sample(&self, list: usize, now_ms: i64) {
        let (samples_max, interval_ms) = LISTS[list];
        let samples = &mut self.lists.borrow_mut()[list];
        if samples.is_empty() {
            samples.push_back(Sample { at_ms: now_ms - interval_ms, times: 0, value: 0 });
        }
        let (times, value) = (self.times.get(), self.value.get());
        samples.push_back(Sample { at_ms: now_ms, times, value });
        if samples.len() > samples_max {
            samples.pop_front();
        }
    }
}

/// All named statistics of one shard. Owned by its reactor; bounded.
#[derive(Debug)]
pub struct StatsItems {
    items: SeededMap<StatsName, SeededMap<Box<str>, Rc<StatsItem>>>,
    len: usize,
    items_max: usize,
    ticks: u64,
}

impl Default for StatsItems {
    fn default() -> Self {
        Self::new(ITEMS_MAX)
    }
}

impl StatsItems {
    /// None, and never more than `items_max`.
    pub fn new(items_max: usize) -> Self {
        Self { items: SeededMap::default(), len: 0, items_max, ticks: 0 }
    }

    /// The item to count on; made if need be. At the bound it counts, but nobody can query it.
    pub fn item(&mut self, name: StatsName, key: &str) -> Rc<StatsItem> {
        let items = self.items.entry(name).or_default();
        if let Some(item) = items.get(key) {
            return item.clone();
        }
        let item = Rc::new(StatsItem::default());
        if self.len < self.items_max {
            self.len += 1;
            items.insert(key.into(), item.clone());
        }
        item
    }

    /// An item that exists.
    pub fn get(&self, name: StatsName, key: &str) -> Option<&Rc<StatsItem>> {
        self.items.get(&name)?.get(key)
    }

    /// Takes the samples that are due: call it each 10 s.
    pub fn tick(&mut self, now_ms: i64) {
        let due = [
            true,
            self.ticks.is_multiple_of(HOUR_LIST_EVERY),
            self.ticks.is_multiple_of(DAY_LIST_EVERY),
        ];
        self.ticks += 1;
        for item in self.items.values().flat_map(|items| items.values()) {
            for list in (0..due.len()).filter(|list| due[*list]) {
                item.sample(list, now_ms);
            }
        }
    }

    /// Forgets what counts on a deleted topic: keys `topic`, `topic@..` and `..@topic@..`.
    pub fn remove_topic(&mut self, topic: &str) {
        for items in self.items.values_mut() {
            items.retain(|key, _| !key.split('@').any(|part| part == topic));
        }
        self.len = self.items.values().map(SeededMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_the_difference_of_its_samples() {
        let mut items = StatsItems::default();
        let item = items.item(StatsName::TopicPutNums, "T");
        let mut now = 1_000_000;
        for _ in 0..20 {
            now += 10_000;
            item.add(30, 10);
            items.tick(now);
        }
        let minute = item.minute();
        assert_eq!(minute, Snapshot { sum: 180, tps: 3.0, average: 3.0 });
        assert_eq!(item.lists.borrow()[0].len(), 7);
    }

    #[test]
    fn the_first_sample_is_preceded_by_a_zero_one_interval_earlier() {
        let mut items = StatsItems::default();
        let item = items.item(StatsName::TopicPutNums, "T");
        item.add(21, 21);
        items.tick(50_000);
        assert_eq!(item.minute(), Snapshot { sum: 21, tps: 2.1, average: 1.0 });
        assert_eq!(item.hour(), Snapshot { sum: 21, tps: 0.035, average: 1.0 });
    }

    #[test]
    fn counting_goes_on_at_the_bound_and_a_deleted_topic_is_forgotten() {
        let mut items = StatsItems::new(2);
        items.item(StatsName::GroupGetNums, "T@g").add(1, 1);
        items.item(StatsName::GroupGetLatency, "3@T@g").add(1, 1);
        items.item(StatsName::TopicPutNums, "U").add(1, 1);
        assert!(items.get(StatsName::TopicPutNums, "U").is_none());
        items.remove_topic("T");
        assert_eq!(items.len, 0);
        assert!(items.get(StatsName::GroupGetNums, "T@g").is_none());
    }

    #[test]
    fn names_round_trip() {
        for name in StatsName::ALL {
            assert_eq!(StatsName::from_text(name.as_str()), Some(name));
        }
        assert_eq!(StatsName::from_text("COMMERCIAL_SEND_TIMES"), None);
    }
}
