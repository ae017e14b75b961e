//! What producers and consumers of one client share: connections, routes, the client id, heartbeats, and the requests of brokers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ringmq_net::body::{Heartbeat, MessageQueue};
use ringmq_net::command::Command;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::client::Config;
use crate::endpoint::{ConsumerEndpoint, Kind, ProducerEndpoint, Registration};
use crate::error::{Error, Result};
use crate::id::UniqueIds;
use crate::producer::Replies;
use crate::remoting::{Answer, Handler, Remoting};
use crate::route::{Missing, NameServers, Publishing, Routes, TopicRoute};
use crate::serve;

/// Routes that are renewed at once.
const RENEWALS_AT_ONCE: usize = 8;

/// See the module. Lives as long as a client, a producer or a consumer does.
pub(crate) struct Instance {
    pub(crate) client_id: String,
    pub(crate) config: Config,
    pub(crate) remoting: Arc<Remoting>,
    pub(crate) routes: Routes,
    pub(crate) ids: UniqueIds,
    pub(crate) replies: Replies,
    groups: Mutex<Groups>,
    told: Mutex<Told>,
    /// Grows with each change of the groups.
    generation: AtomicU64,
    /// No more groups: the end has begun.
    closing: AtomicBool,
    stop: watch::Sender<bool>,
    runtime: Handle,
    me: Weak<Instance>,
}

/// What brokers know of this client, by address.
#[derive(Default)]
struct Told {
    /// Which generation of the groups each has been told.
    generations: HashMap<String, u64>,
    /// Whom a task is telling.
    underway: HashSet<String>,
    /// Held while one is being told: a heartbeat must not arrive behind the news that one of its groups has left.
    turns: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Default)]
struct Groups {
    producers: BTreeMap<String, Weak<dyn ProducerEndpoint>>,
    consumers: BTreeMap<String, Arc<dyn ConsumerEndpoint>>,
    /// Topics that somebody declared to need.
    declared: Vec<String>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

impl Instance {
    /// Makes the shared part of a client and starts its tasks, which end with it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings of TLS that do not go together.
    pub(crate) fn start(config: Config, runtime: Handle) -> Result<Arc<Instance>> {
        #[cfg(feature = "tls")]
        let tls = config.tls.as_ref().map(crate::Tls::connector).transpose()?;
        let instance = Arc::new_cyclic(|me: &Weak<Instance>| {
            let handler: Weak<dyn Handler> = me.clone();
            let remoting =
                Remoting::new(config.limits, handler).with_credentials(config.credentials.clone());
            #[cfg(feature = "tls")]
            let remoting = remoting.with_tls(tls);
            let remoting = Arc::new(remoting);
            let servers = NameServers::new(remoting.clone(), config.name_servers.clone());
            Instance {
                client_id: config.client_id(),
                ids: UniqueIds::new(config.ip, std::process::id(), fastrand::u32(..)),
                remoting,
                routes: Routes::new(servers),
                config,
                replies: Replies::default(),
                groups: Mutex::default(),
                told: Mutex::default(),
                generation: AtomicU64::new(0),
                closing: AtomicBool::new(false),
                stop: watch::Sender::new(false),
                runtime: runtime.clone(),
                me: me.clone(),
            }
        });
        let Config { route_interval, heartbeat_interval, .. } = instance.config;
        // Tasks of their own, so that a slow name server delays no heartbeat.
        instance.every(route_interval, |instance| async move { instance.renew_routes().await });
        instance.every(heartbeat_interval, |instance| async move { instance.heartbeats_later() });
        Ok(instance)
    }

    /// Runs `work` in each period until the client ends.
    fn every<F, W>(&self, period: Duration, work: W)
    where
        W: Fn(Arc<Instance>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let (me, mut stop) = (self.me.clone(), self.stop.subscribe());
        self.runtime.spawn(async move {
            loop {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(period) => {}
                }
                let Some(instance) = me.upgrade() else { return };
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = work(instance) => {}
                }
            }
        });
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    pub(crate) fn broker(&self, addr: &str) -> Broker {
        Broker::new(self.remoting.clone(), addr, self.config.call_timeout)
    }

    // Groups.

    pub(crate) fn register_producer(
        &self,
        group: &str,
        endpoint: Weak<dyn ProducerEndpoint>,
    ) -> Result<Registration> {
        let mut groups = self.open_groups()?;
        if groups.producers.contains_key(group) {
            return Err(Error::GroupTaken { kind: "producer", group: group.to_owned() });
        }
        groups.producers.insert(group.to_owned(), endpoint);
        drop(groups);
        Ok(self.registered(Kind::Producer, group))
    }

    pub(crate) fn register_consumer(
        &self,
        endpoint: Arc<dyn ConsumerEndpoint>,
    ) -> Result<Registration> {
        let group = endpoint.data().group_name;
        crate::validate::group(&group)?;
        let mut groups = self.open_groups()?;
        if groups.consumers.contains_key(&group) {
            return Err(Error::GroupTaken { kind: "consumer", group });
        }
        groups.consumers.insert(group.clone(), endpoint);
        drop(groups);
        Ok(self.registered(Kind::Consumer, &group))
    }

    /// The groups, as long as there may be new ones.
    fn open_groups(&self) -> Result<MutexGuard<'_, Groups>> {
        let groups = self.groups();
        // Looked at under the lock, behind which a shutdown lists them.
        if self.closing.load(Ordering::SeqCst) || self.is_stopped() {
            return Err(Error::Closed("the client"));
        }
        Ok(groups)
    }

    fn registered(&self, kind: Kind, group: &str) -> Registration {
        self.changed();
        Registration::new(self.me.clone(), kind, group.to_owned())
    }

    /// What heartbeats say has changed: brokers have to be told anew.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn declare(&self, topics: &[String]) {
        let mut groups = self.groups();
        for topic in topics {
            if !groups.declared.contains(topic) {
                groups.declared.push(topic.clone());
            }
        }
    }

    pub(crate) fn producer(&self, group: &str) -> Option<Arc<dyn ProducerEndpoint>> {
        self.groups().producers.get(group)?.upgrade()
    }

    pub(crate) fn consumer(&self, group: &str) -> Option<Arc<dyn ConsumerEndpoint>> {
        self.groups().consumers.get(group).cloned()
    }

    fn consumers(&self) -> Vec<Arc<dyn ConsumerEndpoint>> {
        self.groups().consumers.values().cloned().collect()
    }

    fn remove(&self, kind: Kind, group: &str) {
        {
            let mut groups = self.groups();
            match kind {
                Kind::Producer => drop(groups.producers.remove(group)),
                Kind::Consumer => drop(groups.consumers.remove(group)),
            }
        }
        self.changed();
    }

    /// Takes a group out and tells every broker that knows of it, or may: one may not have answered its heartbeat yet. One without a connection has
    /// forgotten it with the connection.
    pub(crate) async fn leave(&self, kind: Kind, group: &str) {
        self.remove(kind, group);
        let mut calls = JoinSet::new();
        let mut known: BTreeSet<String> = self.routes.addresses(false).into_iter().collect();
        {
            let told = self.told();
            known.extend(told.generations.keys().chain(told.turns.keys()).cloned());
        }
        for addr in known {
            let (broker, id, group) =
                (self.broker(&addr), self.client_id.clone(), group.to_owned());
            let (turn, remoting) = (self.turn(&addr), self.remoting.clone());
            calls.spawn(async move {
                let _turn = turn.lock().await;
                // Looked at in turn: a heartbeat may just have connected.
                if !remoting.is_connected(&addr) {
                    return;
                }
                let of = |wanted: Kind| (kind == wanted).then_some(group.as_str());
                let done = broker.unregister(&id, of(Kind::Producer), of(Kind::Consumer)).await;
                if let Err(error) = done {
                    tracing::debug!(%error, group, "a broker could not be told that a {} left", kind.name());
                }
            });
        }
        while calls.join_next().await.is_some() {}
    }

    /// [`Instance::leave`] on a task of its own.
    pub(crate) fn leave_later(&self, kind: Kind, group: String) {
        if self.is_stopped() {
            return self.remove(kind, &group);
        }
        if let Some(instance) = self.me.upgrade() {
            self.spawn(async move { instance.leave(kind, &group).await });
        }
    }

    // Routes.

    /// The route for a send, with the template's for a topic that does not exist.
    pub(crate) async fn publishing(&self, topic: &str, timeout: Duration) -> Result<Publishing> {
        let missing = Missing::TakesTemplate(self.config.default_queues);
        self.routes.find(topic, missing, timeout).await
    }

    /// The route of a topic to read from.
    pub(crate) async fn consuming(&self, topic: &str) -> Result<Arc<TopicRoute>> {
        let timeout = self.config.call_timeout;
        self.routes.find(topic, Missing::IsError, timeout).await.map(|found| found.route)
    }

    /// Asks for a topic's route after a broker of it was lost. What was known stays known if nobody answers.
    pub(crate) async fn renew_consuming(&self, topic: &str) {
        let timeout = self.config.call_timeout;
        if let Err(error) = self.routes.renew(topic, Missing::IsError, timeout).await {
            tracing::debug!(topic, %error, "the route was not renewed");
        }
    }

    /// The broker of a queue's group with that id, or else another one of the group; and its id.
    pub(crate) async fn queue_broker(
        &self,
        queue: &MessageQueue,
        id: i64,
    ) -> Result<(Broker, i64)> {
        let mut group = self.routes.group(&queue.broker_name);
        if group.is_empty() {
            self.renew_consuming(&queue.topic).await;
            group = self.routes.group(&queue.broker_name);
        }
        // A topic that is only consumed is in use.
        let _ = self.routes.known(&queue.topic);
        let wanted = [id, id + 1].into_iter().find(|wanted| group.contains_key(wanted));
        let found = wanted.or_else(|| group.keys().next().copied());
        match found.and_then(|id| Some((self.broker(group.get(&id)?), id))) {
            Some(found) => Ok(found),
            None => Err(Error::NoRoute {
                topic: queue.topic.clone(),
                why: "no broker of the queue's group is known; it is used again when one registers",
            }),
        }
    }

    /// Renews all routes in use.
    pub(crate) async fn renew_routes(&self) {
        self.remoting.prune();
        {
            let mut told = self.told();
            told.generations.retain(|addr, _| self.remoting.is_connected(addr));
            told.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        let mut kept: Vec<String> = self.groups().declared.clone();
        for consumer in self.consumers() {
            kept.extend(consumer.data().subscriptions.into_iter().map(|s| s.topic));
        }
        let mut topics = self.routes.topics(&kept).into_iter();
        let mut calls = JoinSet::new();
        loop {
            while calls.len() < RENEWALS_AT_ONCE
                && let Some(topic) = topics.next()
                && let Some(instance) = self.me.upgrade()
            {
                calls.spawn(async move { instance.renew_route(&topic).await });
            }
            if calls.join_next().await.is_none() {
                return;
            }
        }
    }

    async fn renew_route(&self, topic: &str) {
        // A topic that a first send will create is still looked up in the template's route.
        let missing = match self.routes.is_assumed(topic) {
            true => Missing::TakesTemplate(self.config.default_queues),
            false => Missing::IsError,
        };
        match self.routes.renew(topic, missing, self.config.call_timeout).await {
            Ok((_, true)) => {
                tracing::debug!(topic, "the route changed");
                self.rebalance();
            }
            Ok((_, false)) => {}
            Err(error) => tracing::debug!(topic, %error, "the route was not renewed"),
        }
    }

    fn rebalance(&self) {
        self.consumers().iter().for_each(|consumer| consumer.rebalance());
    }

    // Heartbeats.

    fn heartbeat_body(&self) -> (u64, Heartbeat) {
        let generation = self.generation.load(Ordering::SeqCst);
        let consumers = self.consumers();
        let body = Heartbeat {
            client_id: self.client_id.clone(),
            producers: self.groups().producers.keys().cloned().collect(),
            consumers: consumers.iter().map(|consumer| consumer.data()).collect(),
        };
        (generation, body)
    }

    /// Tells every broker of every route; masters alone when there is no consumer.
    pub(crate) async fn heartbeat_all(&self) {
        let masters_only = self.groups().consumers.is_empty();
        let mut calls = JoinSet::new();
        for addr in self.routes.addresses(masters_only) {
            let Some(instance) = self.me.upgrade() else { return };
            calls.spawn(async move {
                if let Err(error) = instance.heartbeat(&addr).await {
                    tracing::debug!(addr, %error, "heartbeat failed");
                }
            });
        }
        while calls.join_next().await.is_some() {}
    }

    /// [`Instance::heartbeat_all`] on tasks of their own: a broker that is slow to answer delays neither the others nor the next round.
    fn heartbeats_later(&self) {
        let masters_only = self.groups().consumers.is_empty();
        for addr in self.routes.addresses(masters_only) {
            self.tell_on_a_task(&addr, true);
        }
    }

    /// Tells a broker on a task of its own, unless one is at it already: in any case, or what it has not been told.
    fn tell_on_a_task(&self, addr: &str, always: bool) {
        {
            let mut told = self.told();
            if (!always && self.is_told(&told, addr)) || told.underway.contains(addr) {
                return;
            }
            told.underway.insert(addr.to_owned());
        }
        let Some(instance) = self.me.upgrade() else { return };
        let addr = addr.to_owned();
        self.spawn(async move {
            let done = match always {
                true => instance.heartbeat(&addr).await,
                false => instance.ensure_told(&addr).await,
            };
            if let Err(error) = done {
                tracing::debug!(%error, "a broker could not be told of this client");
            }
            instance.told().underway.remove(&addr);
        });
    }

    fn turn(&self, addr: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.told().turns.entry(addr.to_owned()).or_default().clone()
    }

    /// Tells one broker, unless there is nothing to tell.
    pub(crate) async fn heartbeat(&self, addr: &str) -> Result<()> {
        let turn = self.turn(addr);
        let _turn = turn.lock().await;
        self.heartbeat_in_turn(addr).await
    }

    async fn heartbeat_in_turn(&self, addr: &str) -> Result<()> {
        let (generation, body) = self.heartbeat_body();
        if body.producers.is_empty() && body.consumers.is_empty() {
            return Ok(());
        }
        self.broker(addr).heartbeat(&body).await?;
        self.told().generations.insert(addr.to_owned(), generation);
        Ok(())
    }

    fn is_told(&self, told: &Told, addr: &str) -> bool {
        let generation = self.generation.load(Ordering::SeqCst);
        told.generations.get(addr).is_some_and(|told| *told >= generation)
    }

    /// [`Instance::ensure_told`] on a task of its own.
    pub(crate) fn tell_later(&self, addr: &str) {
        self.tell_on_a_task(addr, false);
    }

    /// Tells a broker what it has not been told over its present connection.
    pub(crate) async fn ensure_told(&self, addr: &str) -> Result<()> {
        if self.is_told(&self.told(), addr) {
            return Ok(());
        }
        let turn = self.turn(addr);
        let _turn = turn.lock().await;
        // Many may have waited for the same.
        if self.is_told(&self.told(), addr) {
            return Ok(());
        }
        self.heartbeat_in_turn(addr).await
    }

    // The end.

    /// Lets everybody finish until `deadline`, leaves all groups, closes all connections.
    pub(crate) async fn shut_down(&self, deadline: Instant) {
        let (producers, consumers): (Vec<_>, Vec<_>) = {
            let groups = self.groups();
            self.closing.store(true, Ordering::SeqCst);
            let alive = |(group, endpoint): (&String, &Weak<dyn ProducerEndpoint>)| {
                Some((group.clone(), endpoint.upgrade()?))
            };
            let consumers = groups.consumers.iter().map(|(g, e)| (g.clone(), e.clone()));
            (groups.producers.iter().filter_map(alive).collect(), consumers.collect())
        };
        let mut drains = JoinSet::new();
        consumers
            .iter()
            .for_each(|(_, endpoint)| drop(drains.spawn(endpoint.clone().drain(deadline))));
        while drains.join_next().await.is_some() {}
        // Consumers may send until they are done: failed messages go back by sends.
        producers
            .iter()
            .for_each(|(_, endpoint)| drop(drains.spawn(endpoint.clone().drain(deadline))));
        while drains.join_next().await.is_some() {}
        let consumers = consumers.into_iter().map(|(group, _)| (Kind::Consumer, group));
        let producers = producers.into_iter().map(|(group, _)| (Kind::Producer, group));
        let mut leaves = JoinSet::new();
        for (kind, group) in consumers.chain(producers) {
            if let Some(instance) = self.me.upgrade() {
                leaves.spawn(async move { instance.leave(kind, &group).await });
            }
        }
        while leaves.join_next().await.is_some() {}
        self.stop();
    }

    /// Ends tasks and connections at once. Brokers see the connections end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        self.remoting.close();
    }
}

impl Handler for Instance {
    fn connected(&self, addr: &Arc<str>) {
        // A broker knows a client by its connection: over a new one it has to be told again, at once and not half a minute later.
        self.told().generations.remove(&**addr);
        let masters_only = self.groups().consumers.is_empty();
        if !self.routes.addresses(masters_only).iter().any(|known| **known == **addr) {
            return;
        }
        let Some(instance) = self.me.upgrade() else { return };
        let addr = addr.clone();
        self.spawn(async move {
            match instance.ensure_told(&addr).await {
                Ok(()) => instance.rebalance(),
                Err(error) => tracing::debug!(%error, "heartbeat over a new connection failed"),
            }
        });
    }

    fn handle(self: Arc<Self>, addr: Arc<str>, command: Command) -> Answer {
        Box::pin(serve::serve(self, addr, command))
    }
}
