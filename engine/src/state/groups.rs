//! The consumer groups of one shard: `config/subscriptionGroup.json` in memory.

use std::cell::Cell;
use std::rc::Rc;

use ringmq_net::code::response;
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use super::topic_name::{FAQ, is_name_byte};
use super::version::DataVersion;

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

/// The settings of a consumer group; the field names are stock's, shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// The group may consume.
    pub consume_enable: bool,
    /// Not used by a 4.9.8 broker, only kept.
    pub consume_from_min_enable: bool,
    /// It may consume by broadcast.
    pub consume_broadcast_enable: bool,
    /// Queues of its retry topic.
    pub retry_queues: i32,
    /// Attempts before a message goes to the dead letters.
    pub retry_times_max: i32,
    /// Which broker id to read from while consumption keeps up.
    pub broker_id: i64,
    /// Which one when it lags.
    pub broker_id_when_slow: i64,
    /// Members are told when the membership changes.
    pub notify_ids_changed: bool,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self {
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            retry_queues: 1,
            retry_times_max: 16,
            broker_id: 0,
            broker_id_when_slow: 1,
            notify_ids_changed: true,
        }
    }
}

/// One consumer group; its settings change in place.
#[derive(Debug)]
pub struct Group {
    name: Box<str>,
    settings: Cell<GroupSettings>,
}

impl Group {
    /// Name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings now.
    #[inline]
    pub fn settings(&self) -> GroupSettings {
        self.settings.get()
    }
}

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
    groups: FxHashMap<Box<str>, Rc<Group>>,
    rules: GroupRules,
    version: DataVersion,
    dirty: bool,
}

impl GroupTable {
    /// The built-in groups, at version `{now, 0}`.
    pub fn new(rules: GroupRules, now_ms: i64) -> Self {
        let version = DataVersion { timestamp: now_ms, counter: 0 };
        let mut table = Self { groups: FxHashMap::default(), rules, version, dirty: false };
        for group in BUILT_IN_GROUPS {
            table.put(group, GroupSettings::default());
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
    pub fn get(&self, group: &str) -> Option<&Rc<Group>> {
        self.groups.get(group)
    }

    /// All groups, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Group>> {
        self.groups.values()
    }

    /// Makes an unknown group if the rules and its name allow (first heartbeat, pull, send-back);
    /// `None` if they don't. Unlike stock 4.9.8, a name that no client could have started with makes none.
    pub fn create(&mut self, group: &str, now_ms: i64) -> Option<Rc<Group>> {
        let allowed = self.rules.auto_create || group.starts_with(SYSTEM_GROUP_PREFIX);
        if !allowed || check_name(group).is_err() || self.groups.len() >= self.rules.groups_max {
            return None;
        }
        let made = self.put(group, GroupSettings::default());
        self.touch(now_ms);
        Some(made)
    }

    /// [`GroupTable::get`], else [`GroupTable::create`].
    pub fn get_or_create(&mut self, group: &str, now_ms: i64) -> Option<Rc<Group>> {
        match self.groups.get(group) {
            Some(found) => Some(found.clone()),
            None => self.create(group, now_ms),
        }
    }

    /// An administrator's create or update (request 200).
    pub fn update(
        &mut self,
        group: &str,
        settings: GroupSettings,
        now_ms: i64,
    ) -> Result<Rc<Group>, GroupRefused> {
        let checked = match settings.retry_queues {
            0..=RETRY_QUEUES_MAX => check_name(group),
            _ => Err("retryQueueNums must be between 0 and 65536"),
        };
        checked.map_err(|why| GroupRefused::Invalid(group.to_owned(), why))?;
        let updated = self.put(group, settings);
        self.touch(now_ms);
        Ok(updated)
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
    pub fn replace<'a>(
        &mut self,
        version: DataVersion,
        groups: impl IntoIterator<Item = (&'a str, GroupSettings)>,
    ) {
        let mut kept = FxHashSet::default();
        for (group, settings) in groups {
            self.put(group, settings);
            kept.insert(group);
        }
        self.groups.retain(|name, _| kept.contains(&**name));
        self.version = version;
        self.dirty = true;
    }

    fn touch(&mut self, now_ms: i64) {
        self.version.next(now_ms);
        self.dirty = true;
    }

    fn put(&mut self, group: &str, settings: GroupSettings) -> Rc<Group> {
        if let Some(group) = self.groups.get(group) {
            group.settings.set(settings);
            return group.clone();
        }
        let made = Rc::new(Group { name: group.into(), settings: Cell::new(settings) });
        self.groups.insert(group.into(), made.clone());
        made
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
        assert_eq!(made.settings().retry_times_max, 16);
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
            assert!(table.update(name, GroupSettings::default(), 0).is_err(), "{name:?}");
        }
        let wild = GroupSettings { retry_queues: i32::MAX, ..Default::default() };
        assert_eq!(table.update("CG", wild, 0).unwrap_err().code(), 1);
        assert_eq!(table.len(), 7);
    }

    #[test]
    fn an_update_is_seen_by_whoever_holds_the_group() {
        let mut table = GroupTable::new(GroupRules::default(), 0);
        let held = table.get_or_create("CG", 0).unwrap();
        let settings = GroupSettings { consume_enable: false, ..Default::default() };
        table.update("CG", settings, 0).unwrap();
        assert!(!held.settings().consume_enable);
        assert!(table.delete("CG", 0));
        assert!(!table.delete("CG", 0));
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
