//! What administrators ask of name servers and of whole clusters. Requests to one broker are [`crate::Broker`]'s.

mod groups;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ringmq_net::body::{
    Body, ClusterInfo, KvTable, TopicConfig, TopicList, TopicRouteData, TopicStats, properties,
};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::{
    BrokerNameHeader, ClusterHeader, DeleteRouteHeader, KvHeader, NamespaceHeader,
};
use tokio::time::sleep;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::{Broker, validate};

/// Namespace of the configurations of ordered topics.
pub const ORDER_NAMESPACE: &str = "ORDER_TOPIC_CONFIG";
/// Pause between two looks at a route that is expected to change.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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

    async fn route_of(&self, topic: &str) -> Result<TopicRouteData> {
        let none = || Error::NoRoute { topic: topic.to_owned(), why: "it does not exist" };
        self.topic_route(topic).await?.ok_or_else(none)
    }

    /// The masters that a topic lives on.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn masters_of_topic(&self, topic: &str) -> Result<Vec<Broker>> {
        let route = self.route_of(topic).await?;
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

    /// Changes what a topic's queues allow (bits: 4 read, 2 write) on every master that it lives on.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`]; [`Error::Invalid`] for other bits.
    pub async fn set_topic_permission(&self, topic: &str, perm: i32) -> Result<()> {
        if !(0..=7).contains(&perm) {
            return Err(Error::invalid(format!(
                "permission {perm} is none: 4 is reading, 2 is writing, 6 is both"
            )));
        }
        for master in self.masters_of_topic(topic).await? {
            let known = master.topics().await?.topics;
            if let Some(config) = known.into_iter().find(|config| config.topic_name == topic) {
                master.create_topic(&TopicConfig { perm, ..config }).await?;
            }
        }
        Ok(())
    }

    /// The clusters that a topic lives in.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn clusters_of_topic(&self, topic: &str) -> Result<BTreeSet<String>> {
        let route = self.route_of(topic).await?;
        Ok(route.brokers.into_iter().map(|broker| broker.cluster).collect())
    }
}

fn kv(code: i32, namespace: &str, key: &str, value: Option<&str>) -> Command {
    let header = KvHeader { namespace: Some(namespace), key: Some(key), value };
    Command::request(code).with_header(&header.ext())
}

#[cfg(test)]
mod tests;
