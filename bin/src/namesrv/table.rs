//! Which broker has which queues: the route table, without clock, socket or JSON.
//!
//! ```text
//!   clusters: cluster -> broker names          groups: broker name -> cluster, id -> address
//!   topics:   topic -> broker name -> queues   live:   address -> who registered it, when, over which connection
//! ```
//!
//! Everything is in memory and rebuilt by the brokers' registrations. A registration merges and never removes a
//! topic; queues go by [`RouteTable::delete_topic`] and with the last address of their broker group. Times are
//! milliseconds of one clock, connections are numbers that are never reused. Rules are those of stock 4.9.8; where
//! this departs from it, a comment says so.

use std::collections::{BTreeMap, BTreeSet};

use ringmq_net::body::DataVersion;
use ringmq_net::map::SeededMap;

/// `brokerId` of a master.
pub const MASTER_ID: i64 = 0;
/// A broker that did not register for this long is gone (stock 4.9.8).
pub const EXPIRY_MS: i64 = 120_000;
/// Permission bit: may be written.
pub const PERM_WRITE: i32 = 2;
/// Permission that ADD_WRITE_PERM_OF_BROKER sets: read and write.
pub const PERM_READ_WRITE: i32 = 6;
/// Most topics and broker addresses, and wiped names: what a runaway peer may cost.
pub const TOPICS_MAX: usize = 1_000_000;
/// See [`TOPICS_MAX`].
pub const BROKERS_MAX: usize = 20_000;

/// The queues of one topic on one broker group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Queues that may be read.
    pub read: i32,
    /// Queues that may be written.
    pub write: i32,
    /// Permission bits.
    pub perm: i32,
    /// Bit 0: unit topic, bit 1: has unit subscription.
    pub sys_flag: i32,
}

/// The brokers of one name: a master and its slaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Cluster of the first registration.
    pub cluster: String,
    /// Addresses by broker id, ascending: the master first.
    pub addrs: BTreeMap<i64, String>,
}

/// One broker that registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// When it last registered or asked with an equal version.
    pub seen_ms: i64,
    /// Of the last registration.
    pub version: DataVersion,
    /// The connection of the last registration: the only one whose end removes the broker.
    pub conn: u64,
    /// Where slaves replicate from.
    pub ha_addr: Option<String>,
    /// Addresses of filter servers.
    pub filter_servers: Vec<String>,
    /// What the caller noted about the last registration's body.
    pub mark: u64,
}

/// One registration, without its topics.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// Cluster.
    pub cluster: &'a str,
    /// Name of the broker group.
    pub name: &'a str,
    /// `ip:port` that clients use.
    pub addr: &'a str,
    /// 0 is the master.
    pub id: i64,
    /// `ip:port` that slaves use.
    pub ha_addr: Option<&'a str>,
    /// Version of the broker's topic table. Two are equal or not; a broker that lost its store starts again at 0.
    pub version: DataVersion,
    /// The connection it came over.
    pub conn: u64,
    /// Kept as [`Live::mark`].
    pub mark: u64,
}

/// Answer to a slave's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterOf {
    /// The master's address, when there is one that registers.
    pub master_addr: Option<String>,
    /// Where it is replicated from.
    pub ha_addr: Option<String>,
}

/// The table is full: more brokers or topics than any real cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name server holds {0} already and takes no more")]
pub struct TableFull(&'static str);

/// See the module.
#[derive(Debug, Default)]
pub struct RouteTable {
    topics: SeededMap<String, BTreeMap<String, Queues>>,
    groups: BTreeMap<String, Group>,
    clusters: BTreeMap<String, BTreeSet<String>>,
    live: SeededMap<String, Live>,
    wiped: BTreeSet<String>,
}

impl RouteTable {
    /// An empty table in which the named brokers are not writable.
    pub fn new(wiped: BTreeSet<String>) -> Self {
        RouteTable { wiped, ..Self::default() }
    }

    /// Takes a registration. `topics` are stored if it comes from a master and tells anything new: its address is
    /// new, or its version is not the one stored. `filter_servers` of `None` leaves those as they are.
    ///
    /// # Errors
    /// [`TableFull`]. With too many topics the broker is registered all the same, with those that fit and no version,
    /// so that its next registration tries again.
    pub fn register<'t>(
        &mut self,
        reg: &Registration<'_>,
        topics: impl IntoIterator<Item = (&'t str, Queues)>,
        filter_servers: Option<Vec<String>>,
        now_ms: i64,
    ) -> Result<MasterOf, TableFull> {
        if !self.live.contains_key(reg.addr) && self.live.len() >= BROKERS_MAX {
            return Err(TableFull("20,000 brokers"));
        }
        let first = self.place(reg);
        let known = self.live.get(reg.addr).map(|live| live.version);
        let stored = if reg.id == MASTER_ID && (first || known != Some(reg.version)) {
            self.store_topics(reg.name, topics)
        } else {
            Ok(())
        };
        let (version, mark) =
            if stored.is_ok() { (reg.version, reg.mark) } else { (DataVersion::default(), 0) };
        let kept = self.live.get_mut(reg.addr).map(|live| std::mem::take(&mut live.filter_servers));
        let live = Live {
            seen_ms: now_ms,
            version,
            conn: reg.conn,
            ha_addr: reg.ha_addr.map(str::to_owned),
            filter_servers: filter_servers.or(kept).unwrap_or_default(),
            mark,
        };
        self.live.insert(reg.addr.to_owned(), live);
        stored?;
        Ok(if reg.id == MASTER_ID { MasterOf::default() } else { self.master_of(reg.name) })
    }

    /// The cluster in which other brokers of the name live, if that is not the registration's: stock would put this one among them, and
    /// clients of one cluster would send to the other.
    pub fn other_cluster(&self, reg: &Registration<'_>) -> Option<&str> {
        let group = self.groups.get(reg.name).filter(|group| group.cluster != reg.cluster)?;
        group.addrs.values().any(|addr| addr != reg.addr).then_some(group.cluster.as_str())
    }

    /// The address that loses its place in the group to the registration's.
    pub fn displaced(&self, reg: &Registration<'_>) -> Option<&str> {
        let addr = self.groups.get(reg.name)?.addrs.get(&reg.id)?;
        (addr != reg.addr).then_some(addr.as_str())
    }

    /// Whether a registration with this mark would change nothing but times: same address under the same id, same
    /// body. Then [`touch`](Self::touch) does, and the body needn't be read.
    pub fn is_repeated(&self, reg: &Registration<'_>) -> bool {
        let placed = self
            .groups
            .get(reg.name)
            .is_some_and(|group| group.addrs.get(&reg.id).map(String::as_str) == Some(reg.addr));
        let clustered = self.clusters.get(reg.cluster).is_some_and(|c| c.contains(reg.name));
        placed && clustered && self.live.get(reg.addr).is_some_and(|live| live.mark == reg.mark)
    }

    /// Takes a repeated registration.
    pub fn touch(&mut self, reg: &Registration<'_>, now_ms: i64) -> MasterOf {
        if let Some(live) = self.live.get_mut(reg.addr) {
            live.seen_ms = now_ms;
            live.conn = reg.conn;
            live.ha_addr = reg.ha_addr.map(str::to_owned);
        }
        if reg.id == MASTER_ID { MasterOf::default() } else { self.master_of(reg.name) }
    }

    /// Puts the address into its group and the group into its cluster. True if the id had no address.
    fn place(&mut self, reg: &Registration<'_>) -> bool {
        self.clusters.entry(reg.cluster.to_owned()).or_default().insert(reg.name.to_owned());
        let group = self
            .groups
            .entry(reg.name.to_owned())
            .or_insert_with(|| Group { cluster: reg.cluster.to_owned(), addrs: BTreeMap::new() });
        // A slave that became master, or the reverse, leaves its old id.
        group.addrs.retain(|id, addr| *id == reg.id || addr != reg.addr);
        group.addrs.insert(reg.id, reg.addr.to_owned()).is_none()
    }

    fn store_topics<'t>(
        &mut self,
        name: &str,
        topics: impl IntoIterator<Item = (&'t str, Queues)>,
    ) -> Result<(), TableFull> {
        // Stock forgets a wiped permission at the next changed registration; here it holds until it is given back.
        let keep = if self.wiped.contains(name) { !PERM_WRITE } else { !0 };
        for (topic, mut queues) in topics {
            queues.perm &= keep;
            if let Some(brokers) = self.topics.get_mut(topic) {
                brokers.insert(name.to_owned(), queues);
            } else if self.topics.len() < TOPICS_MAX {
                self.topics.insert(topic.to_owned(), BTreeMap::from([(name.to_owned(), queues)]));
            } else {
                return Err(TableFull("1,000,000 topics"));
            }
        }
        Ok(())
    }

    fn master_of(&self, name: &str) -> MasterOf {
        let master = self.groups.get(name).and_then(|group| group.addrs.get(&MASTER_ID));
        match master.and_then(|addr| self.live.get(addr).map(|live| (addr, live))) {
            Some((addr, live)) => {
                MasterOf { master_addr: Some(addr.clone()), ha_addr: live.ha_addr.clone() }
            }
            None => MasterOf::default(),
        }
    }

    /// A broker says goodbye. Stock removes whatever address holds the id, and so a successor that registered under
    /// the same name and id; here only the broker's own address goes. If it is registered under another name too, it
    /// was renamed, and this is a late word of its former self.
    pub fn unregister(&mut self, name: &str, addr: &str) {
        if let Some(group) = self.groups.get_mut(name) {
            group.addrs.retain(|_, other| other != addr);
            if group.addrs.is_empty() {
                self.remove_group(name);
            }
        }
        if !self.groups.values().any(|group| group.addrs.values().any(|other| other == addr)) {
            self.live.remove(addr);
        }
    }

    /// A connection ended: the brokers whose last registration came over it are gone. Returns their addresses.
    pub fn connection_closed(&mut self, conn: u64) -> Vec<String> {
        let gone: Vec<String> =
            self.live.iter().filter(|(_, l)| l.conn == conn).map(|(a, _)| a.clone()).collect();
        for addr in &gone {
            self.remove_addr(addr);
        }
        gone
    }

    /// Removes brokers that have been silent too long. Returns their addresses and connections, which should be
    /// closed: a broker that only hung registers again over a new one.
    pub fn expire(&mut self, now_ms: i64) -> Vec<(String, u64)> {
        let silent = self.live.iter().filter(|(_, live)| live.seen_ms + EXPIRY_MS < now_ms);
        let gone: Vec<(String, u64)> = silent.map(|(a, l)| (a.clone(), l.conn)).collect();
        for (addr, _) in &gone {
            self.remove_addr(addr);
        }
        gone
    }

    /// Removes an address wherever it stands. Stock removes it from the first group that holds it, and a broker
    /// that was renamed in between would leave a dead route behind.
    fn remove_addr(&mut self, addr: &str) {
        self.live.remove(addr);
        let mut empty = Vec::new();
        for (name, group) in &mut self.groups {
            group.addrs.retain(|_, other| other != addr);
            if group.addrs.is_empty() {
                empty.push(name.clone());
            }
        }
        for name in empty {
            self.remove_group(&name);
        }
    }

    fn remove_group(&mut self, name: &str) {
        self.groups.remove(name);
        self.clusters.retain(|_, names| {
            names.remove(name);
            !names.is_empty()
        });
        self.topics.retain(|_, brokers| {
            brokers.remove(name);
            !brokers.is_empty()
        });
    }

    /// Whether a broker's topic table differs from the one stored, and the version stored. An equal version counts as
    /// a sign of life: brokers that register only on change live by it.
    pub fn query_version(
        &mut self,
        addr: &str,
        sent: DataVersion,
        now_ms: i64,
    ) -> (bool, Option<DataVersion>) {
        match self.live.get_mut(addr) {
            Some(live) if live.version == sent => {
                live.seen_ms = now_ms;
                (false, Some(live.version))
            }
            Some(live) => (true, Some(live.version)),
            None => (true, None),
        }
    }

    /// The queues of a topic by broker name, ascending; `None` if there are none, or no broker of them is known.
    pub fn route(&self, topic: &str) -> Option<&BTreeMap<String, Queues>> {
        let brokers = self.topics.get(topic)?;
        brokers.keys().any(|name| self.groups.contains_key(name)).then_some(brokers)
    }

    /// The brokers of one name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(name)
    }

    /// All broker groups by name.
    pub fn groups(&self) -> &BTreeMap<String, Group> {
        &self.groups
    }

    /// Broker names by cluster.
    pub fn clusters(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.clusters
    }

    /// A broker that registers, by its address.
    pub fn live(&self, addr: &str) -> Option<&Live> {
        self.live.get(addr)
    }

    /// Number of topics, and of registered broker addresses.
    pub fn counts(&self) -> (usize, usize) {
        (self.topics.len(), self.live.len())
    }

    /// All topics, in no order.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// Topics with a queue on a broker of the cluster.
    pub fn topics_of_cluster<'a>(&'a self, cluster: &str) -> impl Iterator<Item = &'a str> {
        let names = self.clusters.get(cluster);
        let on = move |brokers: &BTreeMap<String, Queues>| {
            names.is_some_and(|names| brokers.keys().any(|name| names.contains(name)))
        };
        self.topics.iter().filter(move |(_, brokers)| on(brokers)).map(|(topic, _)| topic.as_str())
    }

    /// Topics whose flags on their first broker satisfy `wanted`.
    pub fn topics_by_flag(&self, wanted: impl Fn(i32) -> bool) -> impl Iterator<Item = &str> {
        let flag = |brokers: &BTreeMap<String, Queues>| brokers.values().next().map(|q| q.sys_flag);
        self.topics
            .iter()
            .filter(move |(_, brokers)| flag(brokers).is_some_and(&wanted))
            .map(|(topic, _)| topic.as_str())
    }

    /// Removes a topic; with a cluster only from that cluster's brokers.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(cluster) = cluster else {
            self.topics.remove(topic);
            return;
        };
        let (Some(names), Some(brokers)) = (self.clusters.get(cluster), self.topics.get_mut(topic))
        else {
            return;
        };
        brokers.retain(|name, _| !names.contains(name));
        if brokers.is_empty() {
            self.topics.remove(topic);
        }
    }

    /// Takes write permission from all queues of a broker name, now and in later registrations. Returns the number
    /// of its topics.
    ///
    /// # Errors
    /// [`TableFull`] when very many names are wiped already.
    pub fn wipe_write(&mut self, name: &str) -> Result<usize, TableFull> {
        if !self.wiped.contains(name) {
            if self.wiped.len() >= BROKERS_MAX {
                return Err(TableFull("20,000 wiped broker names"));
            }
            self.wiped.insert(name.to_owned());
        }
        Ok(self.each_perm(name, |perm| perm & !PERM_WRITE))
    }

    /// Gives write permission back: all queues of the broker name become readable and writable (stock 4.9.8 sets, it does
    /// not add). Returns the number of its topics.
    pub fn add_write(&mut self, name: &str) -> usize {
        self.wiped.remove(name);
        self.each_perm(name, |_| PERM_READ_WRITE)
    }

    /// Broker names without write permission.
    pub fn wiped(&self) -> &BTreeSet<String> {
        &self.wiped
    }

    fn each_perm(&mut self, name: &str, change: impl Fn(i32) -> i32) -> usize {
        let mut touched = 0;
        for queues in self.topics.values_mut().filter_map(|brokers| brokers.get_mut(name)) {
            queues.perm = change(queues.perm);
            touched += 1;
        }
        touched
    }
}
