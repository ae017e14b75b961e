//! The consumer groups of one shard: `config/subscriptionGroup.json` in memory.

use std::rc::Rc;

use ringmq_net::body::{Body, DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable};
use ringmq_net::code::response;
use ringmq_net::map::SeededMap;
use thiserror::Error;

use super::table_text::{self, TableTextError};
use super::topic_name::{FAQ, is_name_byte};

/// Groups that exist on every broker (stock 4.9.8).
pub const BUILT_IN_GROUPS: [&str; 7] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
];

/// Groups with this prefix are made on first use even if auto-creation is off.
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

/// Longest name, in characters: what stock's clients allow.
pub const GROUP_CHARS_MAX: usize = 255;

/// Most retry queues of one group.
pub const RETRY_QUEUES_MAX: i32 = super::topics::QUEUES_MAX;

/// Why a request about a group was refused. The two remarks of "not exist" are stock's: a pull and a
/// send-back word it differently. [`GroupRefused::code`] is the response code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupRefused {
    /// A pull of a group that doesn't exist and is not to be made.
    #[error("subscription group [{0}] does not exist, {FAQ}")]
    PullNotExist(String),
    /// A send-back, or a send to a retry topic, of such a group.
    #[error("subscription group not exist, {0} {FAQ}")]
    SendNotExist(String),
    /// A pull of a group that may not consume.
    #[error("subscription group no permission, {0}")]
    NoPermission(String),
    /// A name or number that can't be kept.
    #[error("consumer group [{0}] not changed: {1}")]
    Invalid(String, &'static str),
}

impl GroupRefused {
    /// The response code that goes with the remark.
    pub fn code(&self) -> i32 {
        match self {
            Self::PullNotExist(_) | Self::SendNotExist(_) => response::SUBSCRIPTION_GROUP_NOT_EXIST,
            Self::NoPermission(_) => response::NO_PERMISSION,
            Self::Invalid(..) => response::SYSTEM_ERROR,
        }
    }
}

/// Reads the text of `subscriptionGroup.json`, also a 5.x broker's.
pub fn parse_file(bytes: &[u8]) -> Result<SubscriptionGroupTable, TableTextError> {
    table_text::read(bytes, "subscriptionGroupTable")
}

/// What of the configuration decides about groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupRules {
    /// `autoCreateSubscriptionGroup`.
    pub auto_create: bool,
    /// Bound on groups; stock has none. At it nothing is auto-created.
    pub groups_max: usize,
}

impl Default for GroupRules {
    fn default() -> Self {
        Self { auto_create: true, groups_max: 200_000 }
    }
}

/// The consumer groups of one shard. Owned by its reactor; bounded by [`GroupRules::groups_max`].
#[derive(Debug)]
pub struct GroupTable {
    groups: SeededMap<Box<str>, Rc<SubscriptionGroupConfig>>,
    rules: GroupRules,
    version: DataVersion,
    dirty: bool,
}

impl GroupTable {
    /// The built-in groups, at version `{now, 0}`.
    pub fn new(rules: GroupRules, now_ms: i64) -> Self {
        let version = DataVersion { timestamp: now_ms, counter: 0 };
        let mut table = Self { groups: SeededMap::default(), rules, version, dirty: false };
        for group in BUILT_IN_GROUPS {
            table.put(SubscriptionGroupConfig::new(group));
        }
        table
    }

    /// The version of the table.
    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Never: there are built-in groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// A group by name.
    #[inline]
    pub fn get(&self, group: &str) -> Option<&Rc<SubscriptionGroupConfig>> {
        self.groups.get(group)
    }

    /// All groups, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<SubscriptionGroupConfig>> {
        self.groups.values()
    }

    /// Makes an unknown group if the rules and its name allow (first heartbeat, pull, send-back);
    /// `None` if they don't. Unlike stock 4.9.8, a name that no client could have started with makes none.
    pub fn create(&mut self, group: &str, now_ms: i64) -> Option<Rc<SubscriptionGroupConfig>> {
        let allowed = self.rules.auto_create || group.starts_with(SYSTEM_GROUP_PREFIX);
        if !allowed || check_name(group).is_err() || self.groups.len() >= self.rules.groups_max {
            return None;
        }
        let made = self.put(SubscriptionGroupConfig::new(group));
        self.touch(now_ms);
        Some(made)
    }

    /// [`GroupTable::get`], else [`GroupTable::create`].
    pub fn get_or_create(
        &mut self,
        group: &str,
        now_ms: i64,
    ) -> Option<Rc<SubscriptionGroupConfig>> {
        match self.groups.get(group) {
            Some(found) => Some(found.clone()),
            None => self.create(group, now_ms),
        }
    }

    /// An administrator's create or update (request 200).
    pub fn update(
        &mut self,
        config: SubscriptionGroupConfig,
        now_ms: i64,
    ) -> Result<(), GroupRefused> {
        let checked = match config.retry_queue_nums {
            0..=RETRY_QUEUES_MAX => check_name(&config.group_name),
            _ => Err("retryQueueNums must be between 0 and 65536"),
        };
        checked.map_err(|why| GroupRefused::Invalid(config.group_name.clone(), why))?;
        self.put(config);
        self.touch(now_ms);
        Ok(())
    }

    /// An administrator's delete (request 207); whether there was one. A group that is still connected
    /// comes back with its next heartbeat. Its offsets are the caller's.
    pub fn delete(&mut self, group: &str, now_ms: i64) -> bool {
        let existed = self.groups.remove(group).is_some();
        if existed {
            self.touch(now_ms);
        }
        existed
    }

    /// Whether anything changed since the last call: save the file then.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// A slave takes over its master's table and version.
    pub fn replace(&mut self, table: SubscriptionGroupTable) {
        self.groups.clear();
        self.version = table.data_version;
        self.dirty = true;
        table.groups.into_iter().for_each(|config| drop(self.put(config)));
    }

    /// Puts the groups of `subscriptionGroup.json` (see [`parse_file`]) over the built-in ones, and takes
    /// its version.
    pub fn load(&mut self, table: SubscriptionGroupTable) {
        self.version = table.data_version;
        table.groups.into_iter().for_each(|config| drop(self.put(config)));
    }

    /// The table as a body, sorted by name: the answer of request 201.
    pub fn body(&self) -> SubscriptionGroupTable {
        let mut groups: Vec<_> = self.groups.values().map(|group| (**group).clone()).collect();
        groups.sort_unstable_by(|a, b| a.group_name.cmp(&b.group_name));
        SubscriptionGroupTable { data_version: self.version, groups }
    }

    /// The answer of request 201.
    pub fn to_json(&self) -> Vec<u8> {
        self.body().to_json()
    }

    /// The content of `subscriptionGroup.json`.
    pub fn to_file(&self) -> Vec<u8> {
        table_text::to_file(&self.body())
    }

    fn touch(&mut self, now_ms: i64) {
        self.version = self.version.next(now_ms);
        self.dirty = true;
    }

    fn put(&mut self, config: SubscriptionGroupConfig) -> Rc<SubscriptionGroupConfig> {
        let config = Rc::new(config);
        self.groups.insert(config.group_name.as_str().into(), config.clone());
        config
    }
}

fn check_name(group: &str) -> Result<(), &'static str> {
    if group.is_empty() {
        return Err("its name is empty");
    }
    if !group.bytes().all(is_name_byte) {
        return Err("its name has characters other than ^[%|a-zA-Z0-9_-]+$");
    }
    if group.len() > GROUP_CHARS_MAX {
        return Err("its name is longer than 255 characters");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_made_on_first_use_with_stocks_defaults() {
        let mut table = GroupTable::new(GroupRules::default(), 1_000);
        assert_eq!(table.len(), 7);
        let made = table.get_or_create("CG", 2_000).unwrap();
        assert_eq!(made.retry_max_times, 16);
        assert_eq!(table.version(), DataVersion { timestamp: 2_000, counter: 1 });
        assert!(table.take_dirty());
        table.get_or_create("CG", 3_000).unwrap();
        assert!(!table.take_dirty());
    }

    #[test]
    fn without_auto_creation_only_system_groups_come_by_themselves() {
        let rules = GroupRules { auto_create: false, ..Default::default() };
        let mut table = GroupTable::new(rules, 0);
        assert!(table.get_or_create("CG", 0).is_none());
        assert!(table.get_or_create("CID_RMQ_SYS_TRANS", 0).is_some());
    }

    #[test]
    fn names_that_no_client_can_have_make_no_group() {
        let mut table = GroupTable::new(GroupRules::default(), 0);
        for name in ["", "a b", "a@b", &"g".repeat(256)] {
            assert!(table.get_or_create(name, 0).is_none(), "{name:?}");
            assert!(table.update(SubscriptionGroupConfig::new(name), 0).is_err(), "{name:?}");
        }
        let new = SubscriptionGroupConfig::new("CG");
        let wild = SubscriptionGroupConfig { retry_queue_nums: i32::MAX, ..new };
        assert_eq!(table.update(wild, 0).unwrap_err().code(), 1);
        assert_eq!(table.len(), 7);
    }

    #[test]
    fn an_update_replaces_all_settings_and_a_delete_forgets_them() {
        let mut table = GroupTable::new(GroupRules::default(), 0);
        let new = SubscriptionGroupConfig::new("CG");
        let config = SubscriptionGroupConfig { consume_enable: false, ..new };
        table.update(config, 0).unwrap();
        assert!(!table.get_or_create("CG", 0).unwrap().consume_enable);
        assert!(table.delete("CG", 0));
        assert!(!table.delete("CG", 0));
        assert!(table.get_or_create("CG", 0).unwrap().consume_enable);
    }

    #[test]
    fn remarks_are_stocks() {
        assert_eq!(
            GroupRefused::PullNotExist("g".into()).to_string(),
            "subscription group [g] does not exist, \
             \nSee http://rocketmq.apache.org/docs/faq/ for further details."
        );
        assert_eq!(
            GroupRefused::SendNotExist("g".into()).to_string(),
            "subscription group not exist, g \
             \nSee http://rocketmq.apache.org/docs/faq/ for further details."
        );
    }
}
