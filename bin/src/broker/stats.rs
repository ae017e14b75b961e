//! What the broker counts: for `brokerStatus`, `statsAll` and the like.

use std::cell::RefCell;
use std::rc::Rc;

use ringmq_engine::shard::{GetResult, Queue};
use ringmq_engine::state::stats::StoreStats;
use ringmq_engine::state::stats_items::{StatsItem, StatsItems, StatsName};
use ringmq_net::headers::PullHeader;
use ringmq_net::map::SeededMap;

use super::clock::local_day;
use super::meters::{Meters, TopicMeter};
use super::{Broker, TopicHandle};

/// All counters of one shard.
pub(super) struct Stats {
    pub(super) store: StoreStats,
    pub(super) items: RefCell<StatsItems>,
    pub(super) meters: Meters,
    /// The items of a pull, by group and topic: found without building their key.
    pulls: RefCell<SeededMap<Box<str>, ItemsByTopic>>,
    put_total: Rc<StatsItem>,
    get_total: Rc<StatsItem>,
    ticks: std::cell::Cell<u64>,
    /// The day of the last sample, as [`local_day`] counts.
    day: std::cell::Cell<i32>,
    busy: std::cell::Cell<u64>,
}

/// The items that a topic carries, so that a put finds them without a look-up.
pub(super) struct TopicItems {
    nums: Rc<StatsItem>,
    size: Rc<StatsItem>,
    meter: Rc<TopicMeter>,
}

type ItemsByTopic = SeededMap<Box<str>, GroupItems>;

#[derive(Clone)]
struct GroupItems {
    nums: Rc<StatsItem>,
    size: Rc<StatsItem>,
    meter: Rc<TopicMeter>,
}

impl Stats {
    pub(super) fn new(cluster: &str, metered_topics_max: usize, now_ms: i64) -> Self {
        let mut items = StatsItems::default();
        Stats {
            store: StoreStats::new(now_ms),
            put_total: items.item(StatsName::BrokerPutNums, cluster),
            get_total: items.item(StatsName::BrokerGetNums, cluster),
            items: RefCell::new(items),
            meters: Meters::new(metered_topics_max),
            pulls: RefCell::default(),
            ticks: std::cell::Cell::new(0),
            day: std::cell::Cell::new(local_day(now_ms)),
            busy: std::cell::Cell::new(0),
        }
    }

    /// How many requests were told to come back because the broker was busy.
    pub(super) fn busy(&self) -> u64 {
        self.busy.get()
    }

    fn topic_items(&self, topic: &str) -> TopicItems {
        let mut items = self.items.borrow_mut();
        TopicItems {
            nums: items.item(StatsName::TopicPutNums, topic),
            size: items.item(StatsName::TopicPutSize, topic),
            meter: self.meters.topic(topic),
        }
    }

    fn group_items(&self, group: &str, topic: &str) -> GroupItems {
        if let Some(found) = self.pulls.borrow().get(group).and_then(|topics| topics.get(topic)) {
            return found.clone();
        }
        let key = format!("{topic}@{group}");
        let mut items = self.items.borrow_mut();
        let made = GroupItems {
            nums: items.item(StatsName::GroupGetNums, &key),
            size: items.item(StatsName::GroupGetSize, &key),
            meter: self.meters.topic(topic),
        };
        let mut pulls = self.pulls.borrow_mut();
        pulls.entry(group.into()).or_default().insert(topic.into(), made.clone());
        made
    }

    /// Forgets a topic's items.
    pub(super) fn remove_topic(&self, topic: &str) {
        self.meters.remove_topic(topic);
        self.items.borrow_mut().remove_topic(topic);
        for topics in self.pulls.borrow_mut().values_mut() {
            topics.remove(topic);
        }
    }
}

impl Broker {
    /// Counts stored messages, under the topic that they went to.
    pub(super) fn stats_put(&self, queue: &Queue, messages: u64, bytes: u64) {
        let topic = self.topics.borrow().get(queue.topic()).cloned();
        match topic {
            Some(topic) => self.stats_put_to(&topic, messages, bytes),
            // Delivered to a topic that was deleted meanwhile.
            None => {
                self.stats.store.put(messages, bytes);
                self.stats.meters.topic(queue.topic()).put(messages, bytes);
            }
        }
    }

    /// [`Broker::stats_put`] for a topic at hand.
    pub(super) fn stats_put_to(&self, topic: &TopicHandle, messages: u64, bytes: u64) {
        self.stats.store.put(messages, bytes);
        self.stats.put_total.add(messages as i64, 0);
        let items = topic.slot().put.get_or_init(|| self.stats.topic_items(topic.name()));
        items.nums.add(messages as i64, 1);
        items.size.add(bytes as i64, 1);
        items.meter.put(messages, bytes);
    }

    /// Counts a message of `topic` that a consumer returned and that went to the queue `stored`.
    pub(super) fn stats_sent_back(&self, group: &str, topic: &str, stored: &Queue, bytes: u64) {
        self.stats.meters.topic(stored.topic()).put(1, bytes);
        self.stats.store.put(1, bytes);
        self.stats.put_total.add(1, 0);
        let key = format!("{topic}@{group}");
        self.stats.items.borrow_mut().item(StatsName::SndbckPutNums, &key).add(1, 1);
    }

    /// Counts a pull that was answered.
    pub(super) fn stats_pulled(&self, header: &PullHeader<'_>, result: &GetResult) {
        self.stats.store.get(result.messages as u64);
        if result.messages == 0 {
            return;
        }
        self.stats.get_total.add(result.messages as i64, 0);
        let items = self.stats.group_items(header.consumer_group, header.topic);
        items.nums.add(result.messages as i64, 1);
        items.size.add(result.bytes as i64, 1);
        items.meter.got(result.messages as u64, result.bytes as u64);
    }

    /// Counts sends that were answered, each this long after it was received.
    pub(super) fn stats_sends_took(&self, us: u64, n: u32) {
        self.stats.store.puts_took_us(us, n);
        self.stats.meters.send_times.add_many(us, u64::from(n));
    }

    /// Counts a pull's read that was not served from memory.
    pub(super) fn stats_read_took(&self, us: i64) {
        let us = u64::try_from(us).unwrap_or(0);
        self.stats.store.get_took_us(us);
        self.stats.meters.cold_pull_times.add(us);
    }

    /// Counts a put that the store did not take.
    pub(super) fn stats_put_failed(&self) {
        self.stats.store.put_failed();
    }

    /// Counts a request that was told to come back.
    pub(super) fn stats_busy(&self) {
        self.stats.busy.set(self.stats.busy.get() + 1);
    }

    /// Once a second: samples, and at midnight the day's marks.
    pub(super) fn tick_stats(self: &Rc<Self>) {
        let now_ms = self.clock.now_ms();
        self.stats.store.tick(now_ms);
        let day = local_day(now_ms);
        if self.stats.day.replace(day) != day {
            self.stats.store.roll_day();
        }
        let ticks = self.stats.ticks.get() + 1;
        self.stats.ticks.set(ticks);
        if ticks.is_multiple_of(10) {
            self.stats.items.borrow_mut().tick(now_ms);
        }
    }
}
