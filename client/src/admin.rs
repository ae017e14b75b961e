//! What administrators ask of name servers and of whole clusters. Requests to one broker are [`crate::Broker`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ringmq_net::body::{
    Body, ClusterInfo, ConsumeStats, ConsumerConnection, KvTable, SubscriptionGroupConfig,
    TopicConfig, TopicList, TopicRouteData, TopicStats, properties,
};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::{
    BrokerNameHeader, ClusterHeader, DeleteRouteHeader, KvHeader, NamespaceHeader,
};
use ringmq_net::record::OffsetMessageId;
use tokio::time::sleep;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::ReceivedMessage;
use crate::{Broker, validate};

/// Namespace of the configurations of ordered topics.
pub const ORDER_NAMESPACE: &str = "ORDER_TOPIC_CONFIG";
/// Pause between two looks at a route that is expected to change.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What the topic of a group's retries begins with.
const RETRY_PREFIX: &str = "%RETRY%";

/// Requests of administrators. Cheap to clone.
///
/// Every request fails with [`Error::Refused`] when the peer answers a code that says so, and with the network's errors; the methods name
/// further errors only. What concerns several brokers is asked of one after the other, and ends at the first that fails.
#[derive(Clone)]
pub struct Admin {
    client: Client,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl Admin {
    pub(crate) fn new(client: Client) -> Admin {
        Admin { client }
    }

    fn timeout(&self) -> Duration {
        self.client.instance().config.call_timeout
    }

    async fn ask(&self, command: &Command) -> Result<Command> {
        let servers = &self.client.instance().routes.servers;
        let (addr, reply) = servers.call(command, self.timeout()).await?;
        if reply.code == response::SUCCESS {
            return Ok(reply);
        }
        let remark = reply.remark.unwrap_or_default();
        Err(Error::Refused { addr, request: command.code, code: reply.code, remark })
    }

    async fn ask_body<B: Body>(&self, command: &Command) -> Result<B> {
        let reply = self.ask(command).await?;
        let server = self.client.instance().routes.servers.addrs().join(";");
        B::from_json(&reply.body).map_err(|e| Error::Malformed {
            addr: server.into(),
            request: command.code,
            what: e.to_string(),
        })
    }

    /// A request to every name server: each keeps its own settings.
    async fn tell_all(&self, command: &Command) -> Result<()> {
        let instance = self.client.instance();
        for addr in instance.routes.servers.addrs().iter() {
            let reply = instance.remoting.call(addr, command, self.timeout()).await?;
            if reply.code != response::SUCCESS {
                let (addr, remark) = (addr.as_str().into(), reply.remark.unwrap_or_default());
                return Err(Error::Refused {
                    addr,
                    request: command.code,
                    code: reply.code,
                    remark,
                });
            }
        }
        Ok(())
    }

    // Name servers.

    /// All brokers, by cluster.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn cluster_info(&self) -> Result<ClusterInfo> {
        self.ask_body(&Command::request(request::GET_BROKER_CLUSTER_INFO)).await
    }

    /// All topics.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn topics(&self) -> Result<Vec<String>> {
        let command = Command::request(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER);
        self.ask_body::<TopicList>(&command).await.map(|list| list.topics)
    }

    /// Topics of a cluster.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn topics_of_cluster(&self, cluster: &str) -> Result<Vec<String>> {
        let header = ClusterHeader { cluster };
        let command = Command::request(request::GET_TOPICS_BY_CLUSTER).with_header(&header.ext());
        self.ask_body::<TopicList>(&command).await.map(|list| list.topics)
    }

    /// A topic's route, not kept; `None` when it does not exist.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn topic_route(&self, topic: &str) -> Result<Option<TopicRouteData>> {
        self.client.instance().routes.fetch(topic, self.timeout()).await
    }

    /// A value of the name servers' table; `None` when there is none.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn kv_get(&self, namespace: &str, key: &str) -> Result<Option<String>> {
        let command = kv(request::GET_KV_CONFIG, namespace, key, None);
        match self.ask(&command).await {
            Ok(reply) => Ok(reply.ext("value").map(str::to_owned)),
            Err(error) if error.is_refusal(response::QUERY_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a value in every name server.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn kv_put(&self, namespace: &str, key: &str, value: &str) -> Result<()> {
        self.tell_all(&kv(request::PUT_KV_CONFIG, namespace, key, Some(value))).await
    }

    /// Deletes a value in every name server.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn kv_delete(&self, namespace: &str, key: &str) -> Result<()> {
        self.tell_all(&kv(request::DELETE_KV_CONFIG, namespace, key, None)).await
    }

    /// All values of a namespace.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn kv_list(&self, namespace: &str) -> Result<BTreeMap<String, String>> {
        let header = NamespaceHeader { namespace };
        let command = Command::request(request::GET_KVLIST_BY_NAMESPACE).with_header(&header.ext());
        self.ask_body::<KvTable>(&command).await.map(|list| list.table)
    }

    /// Takes a broker group's topics out of writing in every name server. Gives how many topics that were, by the last one.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn wipe_write_permission(&self, broker: &str) -> Result<u64> {
        self.permission(request::WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount", broker).await
    }

    /// Gives writing back, see [`Admin::wipe_write_permission`].
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn add_write_permission(&self, broker: &str) -> Result<u64> {
        self.permission(request::ADD_WRITE_PERM_OF_BROKER, "addTopicCount", broker).await
    }

    async fn permission(&self, code: i32, field: &str, broker_name: &str) -> Result<u64> {
        let instance = self.client.instance();
        let command = Command::request(code).with_header(&BrokerNameHeader { broker_name }.ext());
        let mut count = 0;
        for addr in instance.routes.servers.addrs().iter() {
            let reply = instance.remoting.call(addr, &command, self.timeout()).await?;
            if reply.code != response::SUCCESS {
                let (addr, remark) = (addr.as_str().into(), reply.remark.unwrap_or_default());
                return Err(Error::Refused { addr, request: code, code: reply.code, remark });
            }
            count = reply.ext(field).and_then(|text| text.parse().ok()).unwrap_or(0);
        }
        Ok(count)
    }

    /// Settings of the name server that answers.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn name_server_config(&self) -> Result<Vec<(String, String)>> {
        let reply = self.ask(&Command::request(request::GET_NAMESRV_CONFIG)).await?;
        Ok(properties::parse(&String::from_utf8_lossy(&reply.body)))
    }

    /// Changes settings of every name server.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn update_name_server_config(&self, changes: &[(&str, &str)]) -> Result<()> {
        let text = properties::print(changes.iter().copied());
        let command = Command::request(request::UPDATE_NAMESRV_CONFIG).with_body(text.into_bytes());
        self.tell_all(&command).await
    }

    // Clusters.

    /// The masters of a cluster, in the order of their names.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::Invalid`] when there is no such cluster, or no master in it.
    pub async fn masters(&self, cluster: &str) -> Result<Vec<Broker>> {
        let info = self.cluster_info().await?;
        let mut names = info.clusters.get(cluster).cloned().unwrap_or_default();
        names.sort();
        let addr = |name: &String| info.brokers.get(name)?.broker_addrs.get(&0).cloned();
        let masters: Vec<Broker> =
            names.iter().filter_map(addr).map(|addr| self.client.broker(&addr)).collect();
        if masters.is_empty() {
            let known: Vec<&str> = info.clusters.keys().map(String::as_str).collect();
            return Err(Error::invalid(format!(
                "cluster \"{cluster}\" has no master; there are: {}",
                known.join(", ")
            )));
        }
        Ok(masters)
    }

    /// The masters that a topic lives on.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn masters_of_topic(&self, topic: &str) -> Result<Vec<Broker>> {
        let none = || Error::NoRoute { topic: topic.to_owned(), why: "it does not exist" };
        let route = self.topic_route(topic).await?.ok_or_else(none)?;
        let addrs = route.brokers.iter().filter_map(|broker| broker.broker_addrs.get(&0));
        Ok(addrs.map(|addr| self.client.broker(addr)).collect())
    }

    /// Creates a topic on every master of a cluster, or changes it, and waits until the name servers know it there.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::Invalid`] for a name that no topic can have; [`Error::NoRoute`] when the name servers do not
    /// know it after the call timeout.
    pub async fn create_topic(&self, cluster: &str, topic: &TopicConfig) -> Result<()> {
        validate::new_topic(&topic.topic_name)?;
        let masters = self.masters(cluster).await?;
        for master in &masters {
            master.create_topic(topic).await?;
        }
        let deadline = crate::deadline::deadline(self.timeout());
        let wanted: BTreeSet<&str> = masters.iter().map(Broker::addr).collect();
        loop {
            let route = self.topic_route(&topic.topic_name).await?.unwrap_or_default();
            let known: BTreeSet<&str> = route
                .brokers
                .iter()
                .flat_map(|b| b.broker_addrs.values())
                .map(String::as_str)
                .collect();
            if wanted.is_subset(&known) {
                return Ok(());
            }
            if crate::deadline::left(deadline).is_zero() {
                let why = "its brokers made it but did not register it in time; look at their name servers";
                return Err(Error::NoRoute { topic: topic.topic_name.clone(), why });
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Deletes a topic with its messages on every master of a cluster, and in every name server.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn delete_topic(&self, cluster: &str, topic: &str) -> Result<()> {
        for master in self.masters(cluster).await? {
            master.delete_topic(topic).await?;
        }
        let header = DeleteRouteHeader { topic, cluster_name: None };
        let command = Command::request(request::DELETE_TOPIC_IN_NAMESRV).with_header(&header.ext());
        self.tell_all(&command).await
    }

    /// Creates a consumer group on every master of a cluster, or changes it.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::Invalid`] for a name that no group can have.
    pub async fn create_group(&self, cluster: &str, group: &SubscriptionGroupConfig) -> Result<()> {
        validate::group(&group.group_name)?;
        for master in self.masters(cluster).await? {
            master.create_group(group).await?;
        }
        Ok(())
    }

    /// Deletes a consumer group on every master of a cluster, with its progress if asked.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn delete_group(&self, cluster: &str, group: &str, with_offsets: bool) -> Result<()> {
        for master in self.masters(cluster).await? {
            master.delete_group(group, with_offsets).await?;
        }
        Ok(())
    }

    // Topics and groups as a whole.

    /// First and last offset of every queue of a topic.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn topic_stats(&self, topic: &str) -> Result<TopicStats> {
        let mut all = TopicStats::default();
        for master in self.masters_of_topic(topic).await? {
            all.queues.extend(master.topic_stats(topic).await?.queues);
        }
        Ok(all)
    }

    /// Progress of a group in every queue, of one topic or of all that it has progress in. Brokers that do not know the group are passed over.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`] when neither the topic nor the group's retry topic exists.
    pub async fn consume_stats(&self, group: &str, topic: Option<&str>) -> Result<ConsumeStats> {
        let retry = format!("{RETRY_PREFIX}{group}");
        let mut all = ConsumeStats::default();
        for master in self.masters_of_topic(topic.unwrap_or(&retry)).await? {
            match master.consume_stats(group, topic).await {
                Ok(part) => {
                    all.consume_tps += part.consume_tps;
                    all.queues.extend(part.queues);
                }
                Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Connected members of a group over all brokers that it is on, each client once.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`] when the group has no retry topic yet.
    pub async fn consumer_connections(&self, group: &str) -> Result<ConsumerConnection> {
        let mut all = ConsumerConnection::default();
        let mut seen = BTreeSet::new();
        for master in self.masters_of_topic(&format!("{RETRY_PREFIX}{group}")).await? {
            let part = match master.consumer_connections(group).await {
                Ok(part) => part,
                Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => continue,
                Err(error) => return Err(error),
            };
            let new = part.connections.into_iter().filter(|c| seen.insert(c.client_id.clone()));
            all.connections.extend(new);
            all.subscriptions.extend(part.subscriptions);
            all.consume_type = all.consume_type.or(part.consume_type);
            all.message_model = all.message_model.or(part.message_model);
            all.consume_from = all.consume_from.or(part.consume_from);
        }
        Ok(all)
    }

    /// Groups that consume a topic, over all its brokers.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn groups_of_topic(&self, topic: &str) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for master in self.masters_of_topic(topic).await? {
            all.extend(master.groups_of_topic(topic).await?);
        }
        Ok(all)
    }

    /// The message of an offset message id, asked of the broker that the id names.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::Invalid`] for a text that is no such id.
    pub async fn view_message(&self, offset_message_id: &str) -> Result<Option<ReceivedMessage>> {
        let id =
            OffsetMessageId::parse(offset_message_id).map_err(|e| Error::invalid(e.to_string()))?;
        let place = i64::try_from(id.physical_offset)
            .map_err(|_| Error::invalid("the message id names a place behind all logs"))?;
        self.client.broker(&id.store_host.to_string()).view_message(place).await
    }
}

fn kv(code: i32, namespace: &str, key: &str, value: Option<&str>) -> Command {
    let header = KvHeader { namespace: Some(namespace), key: Some(key), value };
    Command::request(code).with_header(&header.ext())
}
