//! Subscription group configurations.

use super::{Body, BodyError, DataVersion, boolean, int, key_text, long, pairs, text};
use crate::json::{Limits, Value, Writer};

/// What a consumer group may do on one broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubscriptionGroupConfig {
    /// Name.
    pub group_name: String,
    /// May it pull at all?
    pub consume_enable: bool,
    /// Not used by 4.9.8.
    pub consume_from_min_enable: bool,
    /// May it consume by broadcast?
    pub consume_broadcast_enable: bool,
    /// Queues of its retry topic; 0 drops retries.
    pub retry_queue_nums: i32,
    /// Retries before the dead letter queue.
    pub retry_max_times: i32,
    /// Broker id to pull from while consumption keeps up.
    pub broker_id: i64,
    /// Broker id to pull from when it lags.
    pub which_broker_when_consume_slowly: i64,
    /// Are members told of each other's coming and going?
    pub notify_consumer_ids_changed_enable: bool,
}

impl SubscriptionGroupConfig {
    /// A group as it is created on first use.
    #[must_use]
    pub fn new(group_name: impl Into<String>) -> Self {
        SubscriptionGroupConfig {
            group_name: group_name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            retry_queue_nums: 1,
            retry_max_times: 16,
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            notify_consumer_ids_changed_enable: true,
        }
    }
}

/// Also the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200).
impl Body for SubscriptionGroupConfig {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let new = Self::new("");
        Ok(SubscriptionGroupConfig {
            group_name: text(value, "groupName")?,
            consume_enable: boolean(value, "consumeEnable", new.consume_enable)?,
            consume_from_min_enable: boolean(
                value,
                "consumeFromMinEnable",
                new.consume_from_min_enable,
            )?,
            consume_broadcast_enable: boolean(
                value,
                "consumeBroadcastEnable",
                new.consume_broadcast_enable,
            )?,
            retry_queue_nums: int(value, "retryQueueNums", new.retry_queue_nums)?,
            retry_max_times: int(value, "retryMaxTimes", new.retry_max_times)?,
            broker_id: long(value, "brokerId", new.broker_id)?,
            which_broker_when_consume_slowly: long(
                value,
                "whichBrokerWhenConsumeSlowly",
                new.which_broker_when_consume_slowly,
            )?,
            notify_consumer_ids_changed_enable: boolean(
                value,
                "notifyConsumerIdsChangedEnable",
                new.notify_consumer_ids_changed_enable,
            )?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_i64("brokerId", self.broker_id);
        w.field_bool("consumeBroadcastEnable", self.consume_broadcast_enable);
        w.field_bool("consumeEnable", self.consume_enable);
        w.field_bool("consumeFromMinEnable", self.consume_from_min_enable);
        w.field_str("groupName", &self.group_name);
        w.field_bool("notifyConsumerIdsChangedEnable", self.notify_consumer_ids_changed_enable);
        w.field_i64("retryMaxTimes", self.retry_max_times);
        w.field_i64("retryQueueNums", self.retry_queue_nums);
        w.field_i64("whichBrokerWhenConsumeSlowly", self.which_broker_when_consume_slowly);
        w.end_object();
    }
}

/// All groups of a broker: the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) and
/// `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionGroupTable {
    /// The table's version.
    pub data_version: DataVersion,
    /// The groups.
    pub groups: Vec<SubscriptionGroupConfig>,
}

impl Body for SubscriptionGroupTable {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut groups = Vec::new();
        for (key, config) in pairs(value, "subscriptionGroupTable")? {
            let mut config = SubscriptionGroupConfig::read(config)?;
            if config.group_name.is_empty() {
                config.group_name = key_text(key, "subscriptionGroupTable")?;
            }
            groups.push(config);
        }
        Ok(SubscriptionGroupTable { data_version: DataVersion::field(value)?, groups })
    }

    fn write(&self, w: &mut Writer) {
        write_group_table(w, self.data_version, &self.groups);
    }
}

/// Writes a [`SubscriptionGroupTable`] out of the caller's own.
pub fn write_group_table<'g>(
    w: &mut Writer,
    version: DataVersion,
    groups: impl IntoIterator<Item = &'g SubscriptionGroupConfig>,
) {
    w.begin_object();
    w.key("dataVersion");
    version.write(w);
    w.key("subscriptionGroupTable");
    w.begin_object();
    for group in groups {
        w.key(&group.group_name);
        group.write(w);
    }
    w.end_object();
    w.end_object();
}
