//! What clients ask: where a topic lives, what the cluster looks like, which topics there are.

use std::collections::BTreeMap;

use ringmq_net::body::{Body, BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData};
use ringmq_net::code::{request, response};
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{ClusterHeader, DeleteRouteHeader, RouteHeader};
use ringmq_net::language::VERSION_STRICT_ROUTE;

use super::answer::{Answer, Reply};
use super::kv::ORDER_TOPIC_CONFIG;
use super::service::NameService;
use super::table::{Group, RouteTable};

/// Ends the remark of a route that is not known (stock 4.9.8).
const FAQ: &str = "\nSee http://rocketmq.apache.org/docs/faq/ for further details.";

/// `topicSysFlag`: a unit topic.
const FLAG_UNIT: i32 = 1;
/// `topicSysFlag`: has a unit subscription.
const FLAG_UNIT_SUB: i32 = 2;

impl NameService {
    /// GET_ROUTEINFO_BY_TOPIC (105). Strict JSON only where the peer says so or is known to want it: foreign clients
    /// below that version read quoted ids as 0.
    pub(super) fn route(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = RouteHeader::decode(header)?;
        let Some(mut data) = route_data(&self.table.borrow(), fields.topic) else {
            let topic = fields.topic;
            let remark = format!("No topic route info in name server for the topic: {topic}{FAQ}");
            return Err(Answer::error(response::TOPIC_NOT_EXIST, remark));
        };
        if self.order_enabled.get() {
            data.order_topic_conf =
                self.kv.borrow().get(ORDER_TOPIC_CONFIG, fields.topic).map(str::to_owned);
        }
        let strict = header.version() >= VERSION_STRICT_ROUTE || fields.accept_standard_json_only;
        let body = if strict { data.to_strict_json() } else { data.to_json() };
        Ok(Answer::body(body).into())
    }

    /// GET_BROKER_CLUSTER_INFO (106): the plain dialect for everybody.
    pub(super) fn cluster_info(&self) -> Answer {
        let table = self.table.borrow();
        let groups = table.groups().iter();
        let clusters = table.clusters().iter();
        let info = ClusterInfo {
            brokers: groups.map(|(name, group)| (name.clone(), broker_data(name, group))).collect(),
            clusters: clusters
                .map(|(cluster, names)| (cluster.clone(), names.iter().cloned().collect()))
                .collect(),
        };
        Answer::body(info.to_json())
    }

    /// GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206).
    pub(super) fn all_topics(&self) -> Answer {
        topic_list(None, self.table.borrow().topics())
    }

    /// GET_TOPICS_BY_CLUSTER (224): an unknown cluster has no topics.
    pub(super) fn topics_by_cluster(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = ClusterHeader::decode(header)?;
        Ok(topic_list(None, self.table.borrow().topics_of_cluster(fields.cluster)).into())
    }

    /// GET_SYSTEM_TOPIC_LIST_FROM_NS (304): each cluster and broker name is a topic, and a broker to ask for more.
    pub(super) fn system_topics(&self) -> Answer {
        let table = self.table.borrow();
        let some_addr = table.groups().values().find_map(|group| group.addrs.values().next());
        let clusters = table.clusters();
        let names = clusters.keys().chain(clusters.values().flatten()).map(String::as_str);
        topic_list(some_addr.cloned(), names)
    }

    /// GET_UNIT_TOPIC_LIST (311), GET_HAS_UNIT_SUB_TOPIC_LIST (312), GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313).
    pub(super) fn unit_topics(&self, code: i32) -> Answer {
        let table = self.table.borrow();
        let wanted = |flag: i32| match code {
            request::GET_UNIT_TOPIC_LIST => flag & FLAG_UNIT != 0,
            request::GET_HAS_UNIT_SUB_TOPIC_LIST => flag & FLAG_UNIT_SUB != 0,
            _ => flag & (FLAG_UNIT | FLAG_UNIT_SUB) == FLAG_UNIT_SUB,
        };
        topic_list(None, table.topics_by_flag(wanted))
    }

    /// DELETE_TOPIC_IN_NAMESRV (216).
    pub(super) fn delete_topic(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = DeleteRouteHeader::decode(header)?;
        self.table.borrow_mut().delete_topic(fields.topic, fields.cluster_name);
        Ok(Answer::ok().into())
    }
}

fn topic_list<'a>(broker_addr: Option<String>, topics: impl Iterator<Item = &'a str>) -> Answer {
    let topics = topics.map(str::to_owned).collect();
    Answer::body(TopicList { broker_addr, topics }.to_json())
}

fn broker_data(name: &str, group: &Group) -> BrokerData {
    BrokerData {
        cluster: group.cluster.clone(),
        broker_name: name.to_owned(),
        broker_addrs: group.addrs.clone(),
    }
}

fn route_data(table: &RouteTable, topic: &str) -> Option<TopicRouteData> {
    let queues = table.route(topic)?;
    let mut data = TopicRouteData {
        order_topic_conf: None,
        queues: Vec::with_capacity(queues.len()),
        brokers: Vec::with_capacity(queues.len()),
        filter_servers: BTreeMap::new(),
    };
    for (name, queues) in queues {
        data.queues.push(QueueData {
            broker_name: name.clone(),
            read_queue_nums: queues.read,
            write_queue_nums: queues.write,
            perm: queues.perm,
            topic_sys_flag: queues.sys_flag,
        });
        let Some(group) = table.group(name) else { continue };
        data.brokers.push(broker_data(name, group));
        for addr in group.addrs.values() {
            let servers = table.live(addr).map(|live| &live.filter_servers);
            if let Some(servers) = servers.filter(|servers| !servers.is_empty()) {
                data.filter_servers.insert(addr.clone(), servers.clone());
            }
        }
    }
    Some(data)
}
