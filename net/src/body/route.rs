//! Where topics live: routes and the cluster, as name servers tell.

use std::collections::BTreeMap;

use super::{
    Body, BodyError, bodies, int, key_long, key_text, opt_text, pairs, required_text, text,
    write_bodies,
};
use crate::json::{Limits, Value, Writer};

/// A topic's queues on one broker group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueData {
    /// Name of the broker group.
    pub broker_name: String,
    /// Queues that consumers see.
    pub read_queue_nums: i32,
    /// Queues that producers see.
    pub write_queue_nums: i32,
    /// Bits: 8 priority, 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Bits: 1 unit topic, 2 has a unit subscription.
    pub topic_sys_flag: i32,
}

impl Body for QueueData {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(QueueData {
            broker_name: required_text(value, "brokerName")?,
            read_queue_nums: int(value, "readQueueNums", 0)?,
            write_queue_nums: int(value, "writeQueueNums", 0)?,
            perm: int(value, "perm", 0)?,
            topic_sys_flag: int(value, "topicSysFlag", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("brokerName", &self.broker_name);
        w.field_i64("perm", self.perm);
        w.field_i64("readQueueNums", self.read_queue_nums);
        w.field_i64("topicSysFlag", self.topic_sys_flag);
        w.field_i64("writeQueueNums", self.write_queue_nums);
        w.end_object();
    }
}

/// A broker group's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BrokerData {
    /// Cluster of the first registration.
    pub cluster: String,
    /// Name of the broker group.
    pub broker_name: String,
    /// `ip:port` by broker id; 0 is the master.
    pub broker_addrs: BTreeMap<i64, String>,
}

impl Body for BrokerData {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut broker_addrs = BTreeMap::new();
        for (id, addr) in pairs(value, "brokerAddrs")? {
            let wanted = "addresses by broker id";
            let addr = addr.to_text().ok_or(BodyError::Shape { field: "brokerAddrs", wanted })?;
            broker_addrs.insert(key_long(id, "brokerAddrs")?, addr);
        }
        Ok(BrokerData {
            cluster: text(value, "cluster")?,
            broker_name: required_text(value, "brokerName")?,
            broker_addrs,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("brokerAddrs");
        w.begin_object();
        for (id, addr) in &self.broker_addrs {
            w.key_i64(*id);
            w.str(addr);
        }
        w.end_object();
        w.field_str("brokerName", &self.broker_name);
        w.field_str("cluster", &self.cluster);
        w.end_object();
    }
}

/// The answer to GET_ROUTEINFO_BY_TOPIC (105).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicRouteData {
    /// Queues of an ordered topic, `broker:count` joined by `;`.
    pub order_topic_conf: Option<String>,
    /// The topic's queues.
    pub queues: Vec<QueueData>,
    /// The broker groups that hold them.
    pub brokers: Vec<BrokerData>,
    /// Filter servers by broker address; empty since there are none any more.
    pub filter_servers: BTreeMap<String, Vec<String>>,
}

impl TopicRouteData {
    /// The strict JSON form, for requests of version 401 and up and for those that ask for it. Go clients
    /// below that would take every broker id in it for 0: never send it to them.
    #[must_use]
    pub fn to_strict_json(&self) -> Vec<u8> {
        let mut w = Writer::browser();
        self.write(&mut w);
        w.finish()
    }
}

impl Body for TopicRouteData {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(TopicRouteData {
            order_topic_conf: opt_text(value, "orderTopicConf")?,
            queues: bodies(value, "queueDatas")?,
            brokers: bodies(value, "brokerDatas")?,
            filter_servers: read_lists(value, "filterServerTable")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        write_bodies(w, "brokerDatas", &self.brokers);
        write_lists(w, "filterServerTable", &self.filter_servers);
        w.field_opt_str("orderTopicConf", self.order_topic_conf.as_deref());
        write_bodies(w, "queueDatas", &self.queues);
        w.end_object();
    }
}

/// The answer to GET_BROKER_CLUSTER_INFO (106), in the plain dialect whatever the version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Broker groups by name.
    pub brokers: BTreeMap<String, BrokerData>,
    /// Names of broker groups by cluster.
    pub clusters: BTreeMap<String, Vec<String>>,
}

impl Body for ClusterInfo {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut brokers = BTreeMap::new();
        for (name, data) in pairs(value, "brokerAddrTable")? {
            brokers.insert(key_text(name, "brokerAddrTable")?, BrokerData::read(data)?);
        }
        Ok(ClusterInfo { brokers, clusters: read_lists(value, "clusterAddrTable")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("brokerAddrTable");
        w.begin_object();
        for (name, data) in &self.brokers {
            w.key(name);
            data.write(w);
        }
        w.end_object();
        write_lists(w, "clusterAddrTable", &self.clusters);
        w.end_object();
    }
}

fn read_lists(
    value: &Value<'_>,
    field: &'static str,
) -> Result<BTreeMap<String, Vec<String>>, BodyError> {
    let mut lists = BTreeMap::new();
    for (key, list) in pairs(value, field)? {
        let Value::Array(list) = list else {
            return Err(BodyError::Shape { field, wanted: "lists by name" });
        };
        let list = list.iter().filter_map(Value::to_text).collect();
        lists.insert(key_text(key, field)?, list);
    }
    Ok(lists)
}

fn write_lists(w: &mut Writer, field: &'static str, lists: &BTreeMap<String, Vec<String>>) {
    w.key(field);
    w.begin_object();
    for (key, list) in lists {
        w.field_strs(key, list);
    }
    w.end_object();
}
