//! The topics of one shard: `config/topics.json` in memory, with stock 4.9.8's rules of creation.
//!
//! A look-up by name returns an `Rc<Topic<X>>`: whoever holds it sees later changes of its settings, and
//! hangs its own data (the queue handles) on [`Topic::slot`], so that a request hashes the name once.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use ringmq_net::body::{Body, DataVersion, TopicConfig, TopicConfigTable, TopicFilterType};
use ringmq_net::map::{SeededMap, SeededSet};

use super::table_text::{self, TableTextError};
use super::topic_name::{self as name, TopicRefused};

/// A topic may be read.
pub const PERM_READ: i32 = 4;
/// A topic may be written.
pub const PERM_WRITE: i32 = 2;
/// A topic is a template: others may be made after it.
pub const PERM_INHERIT: i32 = 1;
const PERM_READ_WRITE: i32 = PERM_READ | PERM_WRITE;

/// sysFlag: the topic belongs to a unit.
pub const SYS_FLAG_UNIT: i32 = 1;
/// sysFlag: consumers of a unit subscribe to it.
pub const SYS_FLAG_UNIT_SUB: i32 = 2;

/// Most queues of one topic that an administrator may ask for. Stock has no bound, and loops over them.
pub const QUEUES_MAX: i32 = 65_536;

/// The settings of a topic; the field names are stock's, shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// Queues that may be read: ids from 0.
    pub read_queues: i32,
    /// Queues that may be written: ids from 0.
    pub write_queues: i32,
    /// [`PERM_READ`], [`PERM_WRITE`], [`PERM_INHERIT`].
    pub perm: i32,
    /// [`SYS_FLAG_UNIT`], [`SYS_FLAG_UNIT_SUB`].
    pub sys_flag: i32,
    /// Tags of its messages.
    pub filter_type: TopicFilterType,
    /// The name server lists it as ordered.
    pub order: bool,
}

impl TopicSettings {
    /// As many read as write queues, nothing special.
    pub fn new(queues: i32, perm: i32) -> Self {
        Self {
            read_queues: queues,
            write_queues: queues,
            perm,
            sys_flag: 0,
            filter_type: TopicFilterType::SingleTag,
            order: false,
        }
    }
}

impl TopicSettings {
    fn config(&self, name: &str) -> TopicConfig {
        TopicConfig {
            topic_name: name.to_owned(),
            read_queue_nums: self.read_queues,
            write_queue_nums: self.write_queues,
            perm: self.perm,
            topic_filter_type: self.filter_type,
            topic_sys_flag: self.sys_flag,
            order: self.order,
        }
    }
}

impl From<&TopicConfig> for TopicSettings {
    fn from(config: &TopicConfig) -> Self {
        Self {
            read_queues: config.read_queue_nums,
            write_queues: config.write_queue_nums,
            perm: config.perm,
            sys_flag: config.topic_sys_flag,
            filter_type: config.topic_filter_type,
            order: config.order,
        }
    }
}

/// One topic. Its settings change in place; a deleted topic is out of the table for good, and one made
/// anew under its name is another object.
#[derive(Debug)]
pub struct Topic<X> {
    name: Arc<str>,
    id: u32,
    settings: Cell<TopicSettings>,
    /// [`TopicTable::changes`] after its last change.
    changed: Cell<u64>,
    sendable: bool,
    deleted: Cell<bool>,
    slot: X,
}

impl<X> Topic<X> {
    /// Name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A dense number, never given to another topic of this process.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The settings now.
    #[inline]
    pub fn settings(&self) -> TopicSettings {
        self.settings.get()
    }

    /// Whether it has been deleted since it was looked up.
    #[inline]
    pub fn is_deleted(&self) -> bool {
        self.deleted.get()
    }

    /// As it goes into files, registrations and answers.
    pub fn config(&self) -> TopicConfig {
        self.settings().config(&self.name)
    }

    /// What the broker attached.
    #[inline]
    pub fn slot(&self) -> &X {
        &self.slot
    }
}

/// As stock's remarks show a topic.
impl<X> fmt::Display for Topic<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.settings();
        let bit = |bit: i32, shown: char| if s.perm & bit != 0 { shown } else { '-' };
        write!(
            f,
            "TopicConfig [topicName={}, readQueueNums={}, writeQueueNums={}, perm={}{}{}, \
             topicFilterType={}, topicSysFlag={}, order={}]",
            self.name,
            s.read_queues,
            s.write_queues,
            bit(PERM_READ, 'R'),
            bit(PERM_WRITE, 'W'),
            bit(PERM_INHERIT, 'X'),
            s.filter_type.name(),
            s.sys_flag,
            s.order
        )
    }
}

/// What of the configuration decides about topics.
#[derive(Clone, Debug)]
pub struct TopicRules {
    /// Cluster name; the topic of this name is a template with 16 queues.
    pub cluster: String,
    /// Broker name; the topic of this name is a template with one queue.
    pub broker: String,
    /// `autoCreateTopicEnable`: TBW102 exists and is a template.
    pub auto_create: bool,
    /// Queues of TBW102, the most that an auto-created topic gets (`defaultTopicQueueNums`).
    pub auto_create_queues: i32,
    /// `traceTopicEnable`.
    pub trace_topic: bool,
    /// Bound on topics; stock has none.
    pub topics_max: usize,
}

impl TopicRules {
    /// Stock 4.9.8's defaults.
    pub fn new(cluster: &str, broker: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            broker: broker.to_owned(),
            auto_create: true,
            auto_create_queues: 8,
            trace_topic: false,
            topics_max: 200_000,
        }
    }

    /// The topics that exist on every broker by itself (stock 4.9.8).
    fn built_in(&self) -> Vec<(String, TopicSettings)> {
        let template = PERM_READ_WRITE | PERM_INHERIT;
        let mut topics = vec![
            (name::SELF_TEST_TOPIC.to_owned(), TopicSettings::new(1, PERM_READ_WRITE)),
            (name::BENCHMARK_TOPIC.to_owned(), TopicSettings::new(1_024, PERM_READ_WRITE)),
            (self.cluster.clone(), TopicSettings::new(16, template)),
            (self.broker.clone(), TopicSettings::new(1, template)),
            (name::OFFSET_MOVED_EVENT.to_owned(), TopicSettings::new(1, PERM_READ_WRITE)),
            (name::SCHEDULE_TOPIC.to_owned(), TopicSettings::new(18, PERM_READ_WRITE)),
            (self.reply_topic(), TopicSettings::new(1, PERM_READ_WRITE)),
        ];
        if self.auto_create {
            let settings = TopicSettings::new(self.auto_create_queues, template);
            topics.push((name::TBW102.to_owned(), settings));
        }
        if self.trace_topic {
            topics.push((name::TRACE_TOPIC.to_owned(), TopicSettings::new(1, PERM_READ_WRITE)));
        }
        topics
    }

    fn reply_topic(&self) -> String {
        format!("{}_REPLY_TOPIC", self.cluster)
    }
}

/// Reads the text of `topics.json`, also a 5.x broker's.
pub fn parse_file(bytes: &[u8]) -> Result<TopicConfigTable, TableTextError> {
    table_text::read(bytes, "topicConfigTable")
}

/// How a producer wants an unknown topic to be made.
#[derive(Clone, Copy, Debug)]
pub struct SendTemplate<'a> {
    /// `defaultTopic`: the topic to make it after.
    pub default_topic: &'a str,
    /// `defaultTopicQueueNums`.
    pub queues: i32,
    /// `unitMode`.
    pub unit: bool,
}

/// A topic found or made.
#[derive(Debug)]
pub struct Ensured<X> {
    /// The topic.
    pub topic: Rc<Topic<X>>,
    /// It is new: save the file, register with the name servers.
    pub created: bool,
}

/// Topics at one moment: cheap to take (no text is copied), and rendered on whatever thread has the time.
#[derive(Clone, Debug)]
pub struct TopicSnapshot {
    version: DataVersion,
    topics: Vec<(Arc<str>, TopicSettings)>,
}

impl TopicSnapshot {
    /// As a body, sorted by name.
    pub fn body(mut self) -> TopicConfigTable {
        self.topics.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let topics = self.topics.iter().map(|(name, settings)| settings.config(name)).collect();
        TopicConfigTable { data_version: self.version, topics }
    }

    /// The content of `topics.json`.
    pub fn to_file(self) -> Vec<u8> {
        table_text::to_file(&self.body())
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }
}

/// The topics of one shard. Owned by its reactor; bounded by [`TopicRules::topics_max`].
#[derive(Debug)]
pub struct TopicTable<X> {
    topics: SeededMap<Arc<str>, Rc<Topic<X>>>,
    rules: TopicRules,
    version: DataVersion,
    /// Counts changes of topics, for [`TopicTable::changed_since`].
    changes: u64,
    next_id: u32,
    dirty: bool,
}

impl<X: Default> TopicTable<X> {
    /// The built-in topics, at version `{now, 0}`.
    pub fn new(rules: TopicRules, now_ms: i64) -> Self {
        let version = DataVersion { timestamp: now_ms, counter: 0 };
        let topics = SeededMap::default();
        let mut table = Self { topics, rules, version, changes: 0, next_id: 0, dirty: false };
        for (name, settings) in table.rules.built_in() {
            table.put(&name, settings);
        }
        table
    }

    /// The rules it was made with.
    pub fn rules(&self) -> &TopicRules {
        &self.rules
    }

    /// The version of the table: name servers and slaves compare it for equality.
    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Never: there are built-in topics.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// A topic by name.
    #[inline]
    pub fn get(&self, topic: &str) -> Option<&Rc<Topic<X>>> {
        self.topics.get(topic)
    }

    /// All topics, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Topic<X>>> {
        self.topics.values()
    }

    /// The topic of a send. `Ok(None)`: unknown, ask [`TopicTable::create_for_send`]. For a known topic it
    /// is one hash and one flag: its name was judged when it was made.
    #[inline]
    pub fn get_for_send(&self, topic: &str) -> Result<Option<&Rc<Topic<X>>>, TopicRefused> {
        match self.topics.get(topic) {
            Some(found) if found.sendable => Ok(Some(found)),
            found => name::check_send(topic).map(|()| found),
        }
    }

    /// Makes the unknown topic of a send, if the rules allow: after the template if that is one, a retry
    /// topic in any case. On success the topic is new: save the file, register with the name servers.
    pub fn create_for_send(
        &mut self,
        topic: &str,
        template: SendTemplate<'_>,
        now_ms: i64,
    ) -> Result<Rc<Topic<X>>, TopicRefused> {
        name::check_send(topic)?;
        let sys_flag = match (template.unit, topic.starts_with(name::RETRY_PREFIX)) {
            (false, _) => 0,
            (true, false) => SYS_FLAG_UNIT,
            (true, true) => SYS_FLAG_UNIT_SUB,
        };
        let mut settings = None;
        // Stock makes topics after those of cluster and broker whether or not topics are to be made.
        if self.rules.auto_create
            && let Some(found) = self.topics.get(template.default_topic)
        {
            let after = found.settings();
            if after.perm & PERM_INHERIT != 0 {
                let queues = template.queues.min(after.write_queues).max(0);
                let perm = after.perm & !PERM_INHERIT;
                let new = TopicSettings::new(queues, perm);
                settings = Some(TopicSettings { sys_flag, filter_type: after.filter_type, ..new });
            }
        }
        if settings.is_none() && topic.starts_with(name::RETRY_PREFIX) {
            settings = Some(TopicSettings { sys_flag, ..TopicSettings::new(1, PERM_READ_WRITE) });
        }
        match settings {
            Some(settings) => self.create(topic, settings, now_ms),
            None => Err(TopicRefused::NotExist(topic.to_owned())),
        }
    }

    /// A topic that the broker itself needs (retry, dead letter, transaction): found, or made with these
    /// settings. Fails only for a name that can't be stored and at the bound.
    pub fn ensure(
        &mut self,
        topic: &str,
        settings: TopicSettings,
        now_ms: i64,
    ) -> Result<Ensured<X>, TopicRefused> {
        if let Some(topic) = self.topics.get(topic) {
            return Ok(Ensured { topic: topic.clone(), created: false });
        }
        name::check_name(topic)?;
        Ok(Ensured { topic: self.create(topic, settings, now_ms)?, created: true })
    }

    /// [`TopicTable::ensure`] for a group's retry topic, as heartbeats and send-backs need it.
    pub fn ensure_retry(
        &mut self,
        group: &str,
        queues: i32,
        unit: bool,
        now_ms: i64,
    ) -> Result<Ensured<X>, TopicRefused> {
        let sys_flag = if unit { SYS_FLAG_UNIT_SUB } else { 0 };
        let settings = TopicSettings { sys_flag, ..TopicSettings::new(queues, PERM_READ_WRITE) };
        self.ensure(&name::retry_topic(group), settings, now_ms)
    }

    /// [`TopicTable::ensure`] for a group's dead letter topic.
    pub fn ensure_dlq(&mut self, group: &str, now_ms: i64) -> Result<Ensured<X>, TopicRefused> {
        self.ensure(&name::dlq_topic(group), TopicSettings::new(1, PERM_READ_WRITE), now_ms)
    }

    /// An administrator's create or update (request 17). Validates the name; the caller gives `order` as
    /// false, since stock ignores the request's. Bumps the version even if nothing changed, as stock does.
    pub fn update(
        &mut self,
        topic: &str,
        settings: TopicSettings,
        now_ms: i64,
    ) -> Result<Ensured<X>, TopicRefused> {
        self.check_admin(topic)?;
        for queues in [settings.read_queues, settings.write_queues] {
            if !(0..=QUEUES_MAX).contains(&queues) {
                return Err(TopicRefused::Queues(topic.to_owned(), queues));
            }
        }
        if !self.topics.contains_key(topic) {
            return Ok(Ensured { topic: self.create(topic, settings, now_ms)?, created: true });
        }
        let topic = self.put(topic, settings);
        self.touch(now_ms);
        Ok(Ensured { topic, created: false })
    }

    /// An administrator's delete (request 215). `Ok(None)`: there was none, which is fine. Destroying the
    /// queues and forgetting the groups' progress is the caller's.
    pub fn delete(
        &mut self,
        topic: &str,
        now_ms: i64,
    ) -> Result<Option<Rc<Topic<X>>>, TopicRefused> {
        self.check_admin(topic)?;
        let Some(removed) = self.topics.remove(topic) else { return Ok(None) };
        removed.deleted.set(true);
        self.touch(now_ms);
        Ok(Some(removed))
    }

    /// The checks of requests 17 and 215.
    pub fn check_admin(&self, topic: &str) -> Result<(), TopicRefused> {
        name::check_name(topic)?;
        if self.is_system(topic) {
            return Err(TopicRefused::System(topic.to_owned()));
        }
        Ok(())
    }

    /// Whether administrators must leave it alone.
    pub fn is_system(&self, topic: &str) -> bool {
        name::SYSTEM_TOPICS.contains(&topic)
            || topic.starts_with("rmq_sys_")
            || topic == self.rules.cluster
            || topic == self.rules.broker
            || topic == self.rules.reply_topic()
    }

    /// The answer of request 305.
    pub fn system_topics(&self) -> Vec<String> {
        let mut topics: Vec<String> = name::SYSTEM_TOPICS.map(str::to_owned).to_vec();
        topics.extend([self.rules.reply_topic(), self.rules.broker.clone()]);
        topics.push(self.rules.cluster.clone());
        topics
    }

    /// Applies the name server's list of ordered topics: those are ordered, all others not. Whether
    /// anything changed (then the version has, too). Not to be called when the answer had no list.
    pub fn apply_order<'a>(
        &mut self,
        ordered: impl IntoIterator<Item = &'a str>,
        now_ms: i64,
    ) -> bool {
        let ordered: SeededSet<&str> = ordered.into_iter().collect();
        let mut changed = false;
        for topic in self.topics.values() {
            let order = ordered.contains(topic.name());
            let before = topic.settings.replace(TopicSettings { order, ..topic.settings() });
            if before.order != order {
                topic.changed.set(self.changes + 1);
                changed = true;
            }
        }
        if changed {
            self.changes += 1;
            self.touch(now_ms);
        }
        changed
    }

    /// A new version in which every topic counts as changed: `brokerPermission`, which registrations carry with each, did.
    pub fn touch_all(&mut self, now_ms: i64) {
        self.changes += 1;
        self.topics.values().for_each(|topic| topic.changed.set(self.changes));
        self.touch(now_ms);
    }

    /// A new version, under which whoever compares versions takes the whole table again.
    pub fn touch(&mut self, now_ms: i64) {
        self.version = self.version.next(now_ms);
        self.dirty = true;
    }

    /// Whether anything changed since the last call: save the file then. Not at each change: a burst of
    /// auto-created topics would render the table once per topic.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// A slave takes over its master's table and version; returns the topics that are gone.
    pub fn replace(&mut self, table: &TopicConfigTable) -> Vec<Rc<Topic<X>>> {
        let mut kept = SeededSet::default();
        for config in &table.topics {
            kept.insert(self.put(&config.topic_name, config.into()).id);
        }
        let mut gone = Vec::new();
        self.topics.retain(|_, topic| {
            let keep = kept.contains(&topic.id);
            if !keep {
                topic.deleted.set(true);
                gone.push(topic.clone());
            }
            keep
        });
        self.version = table.data_version;
        self.dirty = true;
        gone
    }

    /// Puts the topics of `topics.json` (see [`parse_file`]) over the built-in ones, and takes its version. A template that
    /// survived there from a time when topics were made by themselves is left out: its route would lead producers here.
    pub fn load(&mut self, table: &TopicConfigTable) {
        for config in &table.topics {
            if config.topic_name != name::TBW102 || self.rules.auto_create {
                self.put(&config.topic_name, config.into());
            }
        }
        self.version = table.data_version;
    }

    /// The whole table at this moment.
    pub fn snapshot(&self) -> TopicSnapshot {
        self.snapshot_of(|_| true)
    }

    /// The whole table as a body, sorted by name.
    pub fn body(&self) -> TopicConfigTable {
        self.snapshot().body()
    }

    /// How many changes of topics there were so far. Changes that touch no topic (a deletion, a new version alone) do not count.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The topics that were made or set after [`TopicTable::changes`] was `changes`, under the table's version now.
    pub fn changed_since(&self, changes: u64) -> TopicSnapshot {
        self.snapshot_of(|topic| topic.changed.get() > changes)
    }

    fn snapshot_of(&self, wanted: impl Fn(&Topic<X>) -> bool) -> TopicSnapshot {
        let topics = self.topics.values().filter(|topic| wanted(topic));
        let topics = topics.map(|topic| (Arc::clone(&topic.name), topic.settings())).collect();
        TopicSnapshot { version: self.version, topics }
    }

    /// The answer of request 21.
    pub fn to_json(&self) -> Vec<u8> {
        self.body().to_json()
    }

    fn create(
        &mut self,
        topic: &str,
        settings: TopicSettings,
        now_ms: i64,
    ) -> Result<Rc<Topic<X>>, TopicRefused> {
        let topics_max = self.rules.topics_max;
        if self.topics.len() >= topics_max {
            return Err(TopicRefused::TooMany { topic: topic.to_owned(), topics_max });
        }
        let made = self.put(topic, settings);
        self.touch(now_ms);
        Ok(made)
    }

    /// Sets a topic's settings, making it if needed, whatever the rules.
    fn put(&mut self, topic: &str, settings: TopicSettings) -> Rc<Topic<X>> {
        self.changes += 1;
        if let Some(topic) = self.topics.get(topic) {
            topic.settings.set(settings);
            topic.changed.set(self.changes);
            return topic.clone();
        }
        let name: Arc<str> = topic.into();
        let made = Rc::new(Topic {
            name: Arc::clone(&name),
            id: self.next_id,
            settings: Cell::new(settings),
            changed: Cell::new(self.changes),
            sendable: name::check_send(topic).is_ok(),
            deleted: Cell::new(false),
            slot: X::default(),
        });
        self.next_id += 1;
        self.topics.insert(name, made.clone());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TopicTable<Cell<u32>> {
        TopicTable::new(TopicRules::new("DefaultCluster", "broker-a"), 1_000)
    }

    const TEMPLATE: SendTemplate<'_> =
        SendTemplate { default_topic: name::TBW102, queues: 4, unit: false };

    #[test]
    fn a_fresh_broker_has_stocks_topics() {
        let table = table();
        let of = |topic: &str| {
            let s = table.get(topic).unwrap().settings();
            (s.read_queues, s.write_queues, s.perm)
        };
        assert_eq!(of("SELF_TEST_TOPIC"), (1, 1, 6));
        assert_eq!(of("TBW102"), (8, 8, 7));
        assert_eq!(of("BenchmarkTest"), (1024, 1024, 6));
        assert_eq!(of("DefaultCluster"), (16, 16, 7));
        assert_eq!(of("broker-a"), (1, 1, 7));
        assert_eq!(of("OFFSET_MOVED_EVENT"), (1, 1, 6));
        assert_eq!(of("SCHEDULE_TOPIC_XXXX"), (18, 18, 6));
        assert_eq!(of("DefaultCluster_REPLY_TOPIC"), (1, 1, 6));
        assert_eq!(table.len(), 8);
        assert_eq!(table.version(), DataVersion { timestamp: 1_000, counter: 0 });
    }

    #[test]
    fn an_unknown_topic_is_made_after_its_template() {
        let mut table = table();
        assert!(table.get_for_send("T").unwrap().is_none());
        let made = table.create_for_send("T", TEMPLATE, 2_000).unwrap();
        assert_eq!(made.settings(), TopicSettings::new(4, 6));
        assert_eq!(table.version(), DataVersion { timestamp: 2_000, counter: 1 });
        assert!(table.take_dirty());
        let many = SendTemplate { queues: 99, ..TEMPLATE };
        assert_eq!(table.create_for_send("U", many, 0).unwrap().settings().write_queues, 8);
        let none = SendTemplate { queues: -1, unit: true, ..TEMPLATE };
        let made = table.create_for_send("V", none, 0).unwrap().settings();
        assert_eq!((made.read_queues, made.sys_flag), (0, SYS_FLAG_UNIT));
        assert_eq!(table.create_for_send("%RETRY%g", none, 0).unwrap().settings().sys_flag, 2);
    }

    #[test]
    fn without_a_template_only_retry_topics_are_made() {
        let mut table = table();
        let odd = SendTemplate { default_topic: "BenchmarkTest", ..TEMPLATE };
        let refused = table.create_for_send("T", odd, 0).unwrap_err();
        assert_eq!(
            (refused.code(), refused.to_string().split_once('\n').unwrap().0),
            (17, "topic[T] not exist, apply first please!")
        );
        assert_eq!(
            table.create_for_send("%RETRY%g", odd, 0).unwrap().settings(),
            TopicSettings::new(1, 6)
        );
    }

    #[test]
    fn without_auto_creation_there_is_no_template_not_even_one_from_the_file() {
        let rules = TopicRules { auto_create: false, ..TopicRules::new("c", "b") };
        let mut table: TopicTable<()> = TopicTable::new(rules, 0);
        table.load(&TopicTable::<()>::new(TopicRules::new("c", "b"), 0).body());
        assert!(table.get(name::TBW102).is_none());
        for default_topic in [name::TBW102, "b", "c"] {
            let template = SendTemplate { default_topic, ..TEMPLATE };
            assert_eq!(table.create_for_send("T", template, 0).unwrap_err().code(), 17);
        }
        assert!(table.create_for_send("%RETRY%g", TEMPLATE, 0).is_ok());
    }

    #[test]
    fn sends_to_the_brokers_own_topics_are_refused_though_they_exist() {
        let table = table();
        assert_eq!(table.get_for_send("SCHEDULE_TOPIC_XXXX").unwrap_err().code(), 16);
        assert_eq!(table.get_for_send("a b").unwrap_err().code(), 1);
        assert!(table.get_for_send("BenchmarkTest").unwrap().is_some());
    }

    #[test]
    fn who_holds_a_topic_sees_changes_and_its_end() {
        let mut table = table();
        let held = table.create_for_send("T", TEMPLATE, 0).unwrap();
        held.slot().set(7);
        table.update("T", TopicSettings::new(16, 6), 0).unwrap();
        assert_eq!((held.settings().read_queues, held.slot().get()), (16, 7));
        table.delete("T", 0).unwrap();
        assert!(held.is_deleted());
        let again = table.update("T", TopicSettings::new(1, 6), 0).unwrap();
        assert!(again.created);
        assert_ne!(again.topic.id(), held.id());
        assert_eq!(again.topic.slot().get(), 0);
    }

    #[test]
    fn administrators_cannot_touch_system_topics() {
        let mut table = table();
        for topic in
            ["TBW102", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_x"]
        {
            assert_eq!(table.delete(topic, 0).unwrap_err(), TopicRefused::System(topic.to_owned()));
        }
        assert_eq!(table.system_topics().len(), 12);
        assert!(table.delete("Unknown", 0).unwrap().is_none());
        assert!(!table.take_dirty());
        let wild = TopicSettings::new(i32::MAX, 6);
        assert_eq!(table.update("T", wild, 0).unwrap_err().code(), 1);
    }

    #[test]
    fn the_order_list_sets_and_clears_and_changes_the_version_once() {
        let mut table = table();
        table.update("T", TopicSettings::new(1, 6), 0).unwrap();
        table.update("U", TopicSettings::new(1, 6), 0).unwrap();
        let counter = table.version().counter;
        assert!(table.apply_order(["T", "Unknown"], 0));
        assert!(!table.apply_order(["T"], 0));
        assert!(table.get("T").unwrap().settings().order);
        assert!(table.apply_order(["U"], 0));
        assert!(!table.get("T").unwrap().settings().order);
        assert_eq!(table.version().counter, counter + 2);
    }

    #[test]
    fn what_changed_since_a_moment_is_all_of_that_and_nothing_else() {
        let mut table = table();
        let names = |table: &TopicTable<Cell<u32>>, since| {
            let body = table.changed_since(since).body();
            assert_eq!(body.data_version, table.version());
            body.topics.into_iter().map(|topic| topic.topic_name).collect::<Vec<_>>()
        };
        assert_eq!(names(&table, 0).len(), table.len());
        let moment = table.changes();
        assert!(names(&table, moment).is_empty());
        table.create_for_send("B", TEMPLATE, 0).unwrap();
        table.update("A", TopicSettings::new(1, 6), 0).unwrap();
        assert_eq!(names(&table, moment), ["A", "B"]);
        let moment = table.changes();
        table.update("B", TopicSettings::new(2, 6), 0).unwrap();
        table.delete("A", 0).unwrap();
        assert_eq!(names(&table, moment), ["B"]);
        let moment = table.changes();
        table.apply_order(["B"], 0);
        assert_eq!(names(&table, moment), ["B"]);
        let moment = table.changes();
        table.touch(0);
        assert!(names(&table, moment).is_empty());
        table.touch_all(0);
        assert_eq!(names(&table, moment).len(), table.len());
    }

    #[test]
    fn a_topic_shows_as_in_stocks_remark() {
        let table = table();
        assert_eq!(
            table.get("broker-a").unwrap().to_string(),
            "TopicConfig [topicName=broker-a, readQueueNums=1, writeQueueNums=1, perm=RWX, \
             topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
        );
    }

    #[test]
    fn the_bound_refuses_new_topics() {
        let rules = TopicRules { topics_max: 9, ..TopicRules::new("c", "b") };
        let mut table: TopicTable<()> = TopicTable::new(rules, 0);
        table.create_for_send("T", TEMPLATE, 0).unwrap();
        assert_eq!(table.create_for_send("U", TEMPLATE, 0).unwrap_err().code(), 17);
        assert!(table.get_for_send("T").unwrap().is_some());
    }

    #[test]
    fn a_slave_takes_over_its_masters_table() {
        let mut table = table();
        let held = table.update("Old", TopicSettings::new(1, 6), 0).unwrap().topic;
        let version = DataVersion { timestamp: 5, counter: 9 };
        let topics = vec![TopicConfig::new("TBW102", 8), TopicConfig::new("New", 2)];
        let gone = table.replace(&TopicConfigTable { data_version: version, topics });
        assert_eq!((table.len(), table.version()), (2, version));
        assert!(held.is_deleted() && gone.iter().any(|t| t.name() == "Old"));
    }
}
