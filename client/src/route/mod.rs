//! Routes: which broker has which queue of a topic, asked of the name servers, kept and renewed.
//!
//! A route that was once known is kept while the name servers cannot be reached, and dropped when they say several times in
//! a row that the topic does not exist. Topics that nobody used for half an hour are forgotten.

mod name_servers;
mod topic;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringmq_net::body::{Body, TopicRouteData};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::RouteHeader;
use tokio::time::Instant;

use crate::deadline::{deadline, left};
use crate::error::{Error, Result};
pub(crate) use name_servers::NameServers;
pub use topic::TopicRoute;

/// The topic whose queues a new topic gets, where brokers create topics by sends.
pub(crate) const TEMPLATE_TOPIC: &str = "TBW102";
/// Answers "no such topic" in a row after which a route is dropped.
const MISSES_MAX: u32 = 3;
/// A topic that was not used for this long is no longer renewed.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 60);

/// The routes that a client uses.
pub(crate) struct Routes {
    pub(crate) servers: NameServers,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    topics: HashMap<String, Entry>,
    /// Addresses by id, by name of the broker group: what all routes say together.
    brokers: HashMap<String, BTreeMap<i64, String>>,
}

struct Entry {
    route: Option<Arc<TopicRoute>>,
    misses: u32,
    fetched: Instant,
    used: Instant,
    /// Shared by all who send to the topic, so that they do not all begin at the same queue.
    cursor: Arc<AtomicU32>,
    /// Held while the route is asked for: who waits gets the same answer.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn new(now: Instant) -> Entry {
        Entry {
            route: None,
            misses: 0,
            fetched: now,
            used: now,
            cursor: Arc::new(AtomicU32::new(fastrand::u32(..))),
            asking: Arc::default(),
        }
    }
}

/// A topic's route and the place in its queues.
#[derive(Clone)]
pub(crate) struct Publishing {
    pub(crate) route: Arc<TopicRoute>,
    pub(crate) cursor: Arc<AtomicU32>,
}

/// May a route be taken from the template when the topic does not exist?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No.
    IsError,
    /// Yes, with at most so many queues per broker group.
    TakesTemplate(i32),
}

impl Missing {
    /// Is this route an answer? One that a send took from the template is none to who asks for a topic that exists.
    fn is_met_by(self, route: &TopicRoute) -> bool {
        self != Missing::IsError || !route.assumed
    }
}

impl Routes {
    pub(crate) fn new(servers: NameServers) -> Routes {
        Routes { servers, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The route that is known.
    pub(crate) fn known(&self, topic: &str) -> Option<Publishing> {
        let mut table = self.table();
        let entry = table.topics.get_mut(topic)?;
        entry.used = Instant::now();
        Some(Publishing { route: entry.route.clone()?, cursor: entry.cursor.clone() })
    }

    /// The route that is known, or else the name servers'.
    ///
    /// # Errors
    /// [`Error::NoRoute`] when the topic does not exist (and there is no template), [`Error::NameServers`].
    pub(crate) async fn find(
        &self,
        topic: &str,
        missing: Missing,
        timeout: Duration,
    ) -> Result<Publishing> {
        match self.known(topic).filter(|found| missing.is_met_by(&found.route)) {
            Some(found) => Ok(found),
            None => self.renew(topic, missing, timeout).await.map(|(found, _)| found),
        }
    }

    /// Asks the name servers, or takes what they answer to somebody who asks already. Also gives whether the route changed.
    ///
    /// # Errors
    /// As [`Routes::find`]. What was known stays known.
    pub(crate) async fn renew(
        &self,
        topic: &str,
        missing: Missing,
        timeout: Duration,
    ) -> Result<(Publishing, bool)> {
        let began = Instant::now();
        let asking = {
            let mut table = self.table();
            let entry = table.topics.entry(topic.to_owned()).or_insert_with(|| Entry::new(began));
            entry.asking.clone()
        };
        let deadline = deadline(timeout);
        let Ok(_turn) = tokio::time::timeout_at(deadline, asking.lock()).await else {
            return Err(self.servers.silent(began.elapsed()));
        };
        let fetched = self.fetched_since(topic, began);
        if let Some(found) = fetched.filter(|found| missing.is_met_by(&found.route)) {
            return Ok((found, false));
        }
        match self.ask(topic, missing, left(deadline)).await {
            Ok(route) => Ok(self.put(topic, route)),
            Err(error) => {
                if matches!(error, Error::NoRoute { .. }) {
                    self.missed(topic);
                }
                Err(error)
            }
        }
    }

    fn fetched_since(&self, topic: &str, began: Instant) -> Option<Publishing> {
        let table = self.table();
        let entry = table.topics.get(topic).filter(|entry| entry.fetched > began)?;
        Some(Publishing { route: entry.route.clone()?, cursor: entry.cursor.clone() })
    }

    async fn ask(&self, topic: &str, missing: Missing, timeout: Duration) -> Result<TopicRoute> {
        let deadline = deadline(timeout);
        if let Some(data) = self.fetch(topic, timeout).await? {
            return Ok(TopicRoute::new(topic, data, false));
        }
        let no_route = |why| Error::NoRoute { topic: topic.to_owned(), why };
        let Missing::TakesTemplate(queues) = missing else {
            return Err(no_route("it does not exist; create it"));
        };
        match self.fetch(TEMPLATE_TOPIC, left(deadline)).await? {
            Some(data) => Ok(TopicRoute::of_template(topic, data, queues)),
            None => {
                Err(no_route("it does not exist, and no broker creates topics by sends; create it"))
            }
        }
    }

    /// What the name servers say, without keeping it; `None` when they know no such topic.
    ///
    /// # Errors
    /// [`Error::NameServers`], [`Error::Refused`], [`Error::Malformed`].
    pub(crate) async fn fetch(
        &self,
        topic: &str,
        timeout: Duration,
    ) -> Result<Option<TopicRouteData>> {
        let code = request::GET_ROUTEINFO_BY_TOPIC;
        let header = RouteHeader { topic, accept_standard_json_only: true };
        let command = Command::request(code).with_header(&header.ext());
        let knows = |reply: &Command| reply.code != response::TOPIC_NOT_EXIST;
        let (addr, reply) = self.servers.call_knowing(&command, timeout, knows).await?;
        match reply.code {
            response::SUCCESS => TopicRouteData::from_json(&reply.body)
                .map(Some)
                .map_err(|e| Error::Malformed { addr, request: code, what: e.to_string() }),
            response::TOPIC_NOT_EXIST => Ok(None),
            other => Err(Error::Refused {
                addr,
                request: code,
                code: other,
                remark: reply.remark.unwrap_or_default(),
            }),
        }
    }

    fn put(&self, topic: &str, route: TopicRoute) -> (Publishing, bool) {
        let now = Instant::now();
        let mut table = self.table();
        let entry = table.topics.entry(topic.to_owned()).or_insert_with(|| Entry::new(now));
        let changed = entry.route.as_deref() != Some(&route);
        if changed {
            entry.route = Some(Arc::new(route));
        }
        (entry.misses, entry.fetched) = (0, now);
        let route = entry.route.clone().unwrap_or_default();
        let found = Publishing { route, cursor: entry.cursor.clone() };
        if changed {
            table.gather_brokers();
        }
        (found, changed)
    }

    fn missed(&self, topic: &str) {
        let mut table = self.table();
        let Some(entry) = table.topics.get_mut(topic) else { return };
        entry.misses += 1;
        if entry.route.is_none() || entry.misses >= MISSES_MAX {
            if entry.route.is_some() {
                tracing::info!(
                    topic,
                    "the name servers do not know this topic any more: its route is dropped"
                );
            }
            table.topics.remove(topic);
            table.gather_brokers();
        }
    }

    /// Topics to renew, after those that were not used for long were forgotten. `kept` are in use whatever the table says.
    pub(crate) fn topics(&self, kept: &[String]) -> Vec<String> {
        let now = Instant::now();
        let mut table = self.table();
        let before = table.topics.len();
        table.topics.retain(|topic, entry| {
            now.duration_since(entry.used) < UNUSED_MAX || kept.contains(topic)
        });
        if table.topics.len() < before {
            table.gather_brokers();
        }
        let mut topics: Vec<String> = table.topics.keys().cloned().collect();
        topics.extend(kept.iter().filter(|topic| !table.topics.contains_key(*topic)).cloned());
        topics
    }

    /// Was this topic's route taken from the template?
    pub(crate) fn is_assumed(&self, topic: &str) -> bool {
        let table = self.table();
        let route = table.topics.get(topic).and_then(|entry| entry.route.as_ref());
        route.is_some_and(|route| route.assumed)
    }

    /// The address of a broker group's master.
    pub(crate) fn master(&self, broker: &str) -> Option<String> {
        self.table().brokers.get(broker)?.get(&0).cloned()
    }

    /// Addresses by id of a broker group; empty when no route has it.
    pub(crate) fn group(&self, broker: &str) -> BTreeMap<i64, String> {
        self.table().brokers.get(broker).cloned().unwrap_or_default()
    }

    /// Every address in any route, or masters alone.
    pub(crate) fn addresses(&self, masters_only: bool) -> Vec<String> {
        let table = self.table();
        let all = table.brokers.values().flatten();
        all.filter(|(id, _)| !masters_only || **id == 0).map(|(_, addr)| addr.clone()).collect()
    }
}

impl Table {
    /// Where two routes differ about a group, the younger answer holds.
    fn gather_brokers(&mut self) {
        let mut entries: Vec<&Entry> = self.topics.values().collect();
        entries.sort_by_key(|entry| entry.fetched);
        let mut brokers = HashMap::new();
        for route in entries.iter().filter_map(|entry| entry.route.as_ref()) {
            for (name, addrs) in route.brokers() {
                brokers.insert(name.to_owned(), addrs.clone());
            }
        }
        self.brokers = brokers;
    }
}

#[cfg(test)]
mod tests;
