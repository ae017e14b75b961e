//! Who is connected: client lists and connection tables.

use std::collections::BTreeMap;

use super::{
    Body, BodyError, ConsumeFrom, ConsumeType, MessageModel, SubscriptionData, bodies, int,
    key_text, long, pairs, text, texts, write_bodies,
};
use crate::json::{Limits, Value, Writer};
use crate::language::Language;

/// The answer to GET_CONSUMER_LIST_BY_GROUP (38).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerList {
    /// Client ids; clients sort them themselves.
    pub consumer_ids: Vec<String>,
}

impl Body for ConsumerList {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumerList { consumer_ids: texts(value, "consumerIdList")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_strs("consumerIdList", &self.consumer_ids);
        w.end_object();
    }
}

/// CHECK_CLIENT_CONFIG (46): would this subscription work?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckClientConfig {
    /// Client id.
    pub client_id: String,
    /// Group.
    pub group: String,
    /// What to check; nothing to check is fine.
    pub subscription: Option<SubscriptionData>,
}

impl Body for CheckClientConfig {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let subscription = value.get("subscriptionData").map(SubscriptionData::read);
        Ok(CheckClientConfig {
            client_id: text(value, "clientId")?,
            group: text(value, "group")?,
            subscription: subscription.transpose()?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("clientId", &self.client_id);
        w.field_str("group", &self.group);
        if let Some(subscription) = &self.subscription {
            w.key("subscriptionData");
            subscription.write(w);
        }
        w.end_object();
    }
}

/// One client's connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Client id.
    pub client_id: String,
    /// `ip:port`.
    pub client_addr: String,
    /// Its language.
    pub language: Language,
    /// Its version.
    pub version: i32,
}

fn language(value: &Value<'_>) -> Language {
    let text = value.get("language").and_then(Value::to_text);
    text.map_or(Language::UNKNOWN, |text| Language::from_text(&text))
}

impl Body for Connection {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(Connection {
            client_id: text(value, "clientId")?,
            client_addr: text(value, "clientAddr")?,
            language: language(value),
            version: int(value, "version", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("clientAddr", &self.client_addr);
        w.field_str("clientId", &self.client_id);
        w.field_str("language", self.language.name().unwrap_or("OTHER"));
        w.field_i64("version", self.version);
        w.end_object();
    }
}

/// The answer to GET_CONSUMER_CONNECTION_LIST (203).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerConnection {
    /// Connections of the group.
    pub connections: Vec<Connection>,
    /// Its subscriptions by topic.
    pub subscriptions: BTreeMap<String, SubscriptionData>,
    /// As of the last heartbeat.
    pub consume_type: Option<ConsumeType>,
    /// As of the last heartbeat.
    pub message_model: Option<MessageModel>,
    /// As of the last heartbeat.
    pub consume_from: Option<ConsumeFrom>,
}

impl Body for ConsumerConnection {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut subscriptions = BTreeMap::new();
        for (topic, data) in pairs(value, "subscriptionTable")? {
            let topic = key_text(topic, "subscriptionTable")?;
            subscriptions.insert(topic, SubscriptionData::read(data)?);
        }
        Ok(ConsumerConnection {
            connections: bodies(value, "connectionSet")?,
            subscriptions,
            consume_type: ConsumeType::field(value, "consumeType"),
            message_model: MessageModel::field(value, "messageModel"),
            consume_from: ConsumeFrom::field(value, "consumeFromWhere"),
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        write_bodies(w, "connectionSet", &self.connections);
        w.field_opt_str("consumeFromWhere", self.consume_from.map(ConsumeFrom::name));
        w.field_opt_str("consumeType", self.consume_type.map(ConsumeType::name));
        w.field_opt_str("messageModel", self.message_model.map(MessageModel::name));
        w.key("subscriptionTable");
        w.begin_object();
        for (topic, data) in &self.subscriptions {
            w.key(topic);
            data.write(w);
        }
        w.end_object();
        w.end_object();
    }
}

/// The answer to GET_PRODUCER_CONNECTION_LIST (204).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerConnection {
    /// Connections of the group.
    pub connections: Vec<Connection>,
}

impl Body for ProducerConnection {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ProducerConnection { connections: bodies(value, "connectionSet")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        write_bodies(w, "connectionSet", &self.connections);
        w.end_object();
    }
}

/// One producer of [`ProducerTable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerInfo {
    /// Client id.
    pub client_id: String,
    /// `/ip:port`, with the slash, unlike elsewhere.
    pub remote_ip: String,
    /// Its language.
    pub language: Language,
    /// Its version.
    pub version: i32,
    /// Milliseconds of its last heartbeat.
    pub last_update_timestamp: i64,
}

impl Body for ProducerInfo {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ProducerInfo {
            client_id: text(value, "clientId")?,
            remote_ip: text(value, "remoteIP")?,
            language: language(value),
            version: int(value, "version", 0)?,
            last_update_timestamp: long(value, "lastUpdateTimestamp", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("clientId", &self.client_id);
        w.field_str("language", self.language.name().unwrap_or("OTHER"));
        w.field_i64("lastUpdateTimestamp", self.last_update_timestamp);
        w.field_str("remoteIP", &self.remote_ip);
        w.field_i64("version", self.version);
        w.end_object();
    }
}

/// The answer to GET_ALL_PRODUCER_INFO (328).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    /// Producers by group.
    pub groups: BTreeMap<String, Vec<ProducerInfo>>,
}

impl Body for ProducerTable {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut groups = BTreeMap::new();
        for (group, list) in pairs(value, "data")? {
            let Value::Array(list) = list else {
                return Err(BodyError::Shape { field: "data", wanted: "lists by group" });
            };
            let list = list.iter().map(ProducerInfo::read).collect::<Result<_, _>>()?;
            groups.insert(key_text(group, "data")?, list);
        }
        Ok(ProducerTable { groups })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("data");
        w.begin_object();
        for (group, list) in &self.groups {
            w.key(group);
            w.begin_array();
            list.iter().for_each(|info| info.write(w));
            w.end_array();
        }
        w.end_object();
        w.end_object();
    }
}
