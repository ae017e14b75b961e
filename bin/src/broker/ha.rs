//! High availability of one shard: the HA port of a master, the connection of a slave, and what both mean to requests.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use glommio::{Task, TaskQueueHandle};
use ringmq_net::body::{Body, DataVersion, KvTable};
use ringmq_net::code::{request, response};
use ringmq_net::ha_term_frame::Capabilities;
use ringmq_replication::gate::SyncGate;
use ringmq_replication::shell::master::{Downstream, Master, MasterConfig, Peer, PeerState};
use ringmq_replication::shell::slave::{
    AckLevel, MasterKind, Slave, SlaveConfig, SlaveState, Start, Upstream,
};
use ringmq_replication::stock::Timing;
use ringmq_replication::term_store::TermStore;
use ringmq_replication::terms::Term;

use super::Broker;
use super::cut::CutNote;
use super::masters_groups::MastersGroups;
use super::metadata::{Unasked, ask, port_below};
use super::signal::Signal;
use super::stream_metadata::Touched;
use super::untold::Untold;
use crate::config::{HaSection, Role, SlaveAck, SlaveStart};
use crate::metrics::{FollowerCounts, ShardSnapshot, SlaveCounts};

/// The key of GET_BROKER_RUNTIME_INFO that tells that a broker's HA port answers the hello: the hello's version.
const HELLO_KEY: &str = "ringmqHaHello";
/// The same for the random id of its log's last term.
const TERM_ID_KEY: &str = "ringmqHaTermId";
/// The same for how many shards its process has.
const SHARDS_KEY: &str = "ringmqShards";

/// The parts of a shard that know other brokers of its group.
pub(super) struct Ha {
    /// Who wrote which part of the log.
    pub(super) terms: Rc<TermStore>,
    /// What consumers have committed since slaves were last told.
    pub(super) touched: Touched,
    /// Raised when the master says that its tables have changed.
    pub(super) tables_due: Signal,
    /// What consumers have committed at this slave and its master has not been told of.
    pub(super) untold: Untold,
    /// This start began with a cut.
    cut: Option<CutNote>,
    master: OnceCell<Rc<Master>>,
    slave: OnceCell<Rc<Slave>>,
    /// Where this slave's master is, as the name server told last.
    heard: RefCell<Heard>,
    /// The version of the master's topics that this slave has taken over.
    pub(super) topics_taken: Cell<Option<DataVersion>>,
    /// The groups of the master that it has taken over.
    pub(super) masters_groups: MastersGroups,
}

/// What a name server tells a slave of its master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Heard {
    addr: Option<String>,
    ha_addr: Option<String>,
}

/// Whose log comes in: as long as it is equal, it is of the same master over the same connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followed {
    /// The HA port, as it was configured or heard of.
    ha_addr: String,
    peer: Option<SocketAddr>,
    connections: u64,
    heard: Heard,
}

impl Followed {
    /// The address for requests of the master that is followed, if the name server tells of that one.
    fn told_addr(&self) -> Option<&str> {
        let told = self.heard.ha_addr.as_deref()?;
        let same = told == self.ha_addr
            || self.peer.is_some_and(|peer| told.parse::<SocketAddr>() == Ok(peer));
        self.heard.addr.as_deref().filter(|_| same)
    }
}

impl Ha {
    pub(super) fn new(
        terms: Rc<TermStore>,
        cut: Option<CutNote>,
        untold: Untold,
        masters_groups: MastersGroups,
    ) -> Self {
        Ha {
            terms,
            touched: Touched::default(),
            tables_due: Signal::default(),
            untold,
            cut,
            master: OnceCell::new(),
            slave: OnceCell::new(),
            heard: RefCell::default(),
            topics_taken: Cell::new(None),
            masters_groups,
        }
    }

    /// The answer to a registration: of several name servers, the last one that knows a master counts. One that knows none, because it
    /// was started later or because the master is gone, changes nothing: where the master was is where it comes back.
    pub(super) fn hear_of_master(&self, addr: Option<&str>, ha_addr: Option<&str>) {
        let known = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let told = Heard { addr: known(addr), ha_addr: known(ha_addr) };
        if told.addr.is_none() {
            return;
        }
        let mut heard = self.heard.borrow_mut();
        if *heard != told {
            tracing::info!(
                master = told.addr,
                ha = told.ha_addr,
                "what the name server tells of the master has changed"
            );
            *heard = told;
        }
    }

    /// The master's address for requests.
    pub(super) fn master_addr(&self) -> Option<String> {
        self.heard.borrow().addr.clone()
    }

    /// Whether as many slaves as wanted are there, and near enough to wait for.
    pub(super) fn slaves_reach(&self, end: u64) -> bool {
        self.master.get().is_some_and(|master| master.gate().borrow().reachable(end))
    }

    /// How far as many slaves as wanted are.
    pub(super) fn replicated(&self) -> u64 {
        self.master.get().map_or(0, |master| master.gate().borrow().replicated())
    }

    /// The master's side of the HA port.
    pub(super) fn master(&self) -> Option<&Rc<Master>> {
        self.master.get()
    }

    /// Whether this slave's master sends metadata with its log.
    pub(super) fn metadata_comes(&self) -> bool {
        let granted = self.slave.get().and_then(|slave| slave.granted());
        granted.is_some_and(|granted| granted.has(Capabilities::METADATA))
    }

    /// Whether all is here that the master has told to have.
    pub(super) fn has_masters_end(&self, dispatched: u64) -> bool {
        self.slave.get().is_some_and(|slave| dispatched >= slave.master_end())
    }

    /// Whether this slave's log agrees with its master's, as far as the master sends it something.
    pub(super) fn is_following(&self) -> bool {
        self.slave.get().is_some_and(|slave| slave.state() == SlaveState::Following)
    }

    /// Whose log comes in, while it does.
    pub(super) fn followed(&self) -> Option<Followed> {
        self.connected().filter(|_| self.is_following())
    }

    /// Whom this slave is connected to, if he is followed or not.
    fn connected(&self) -> Option<Followed> {
        let slave = self.slave.get()?;
        Some(Followed {
            ha_addr: slave.followed()?,
            peer: slave.master(),
            connections: slave.connections(),
            heard: self.heard.borrow().clone(),
        })
    }

    pub(super) fn stop(&self) {
        if let Some(master) = self.master.get() {
            master.stop();
        }
    }
}

fn timing(config: &HaSection) -> Timing {
    Timing {
        heartbeat: Duration::from_millis(config.heartbeat_ms),
        housekeeping: Duration::from_millis(config.housekeeping_ms),
    }
}

impl Broker {
    /// Whether this broker is a slave: it takes no messages and no changes, and serves reads.
    pub(super) fn is_slave(&self) -> bool {
        self.config.role == Role::Slave
    }

    /// Where the tables of the master whose log is followed are asked for, which need not be the one that a name server tells of. `None`
    /// if that is not known.
    pub(super) async fn tables_addr(&self, of: &Followed) -> Option<String> {
        let addr = self.requests_addr(of).await?;
        if of.told_addr() == Some(&addr) {
            return Some(addr);
        }
        match self.is_of_followed(&addr).await {
            Ok(()) => Some(addr),
            Err(why) => {
                let why = format!("{addr} is not asked for the tables of {}: {why}", of.ha_addr);
                self.rare_log.warn("taking over the master's tables, trying on", &why);
                None
            }
        }
    }

    /// Where the master that is connected to is asked for other things than its log.
    async fn requests_addr(&self, of: &Followed) -> Option<String> {
        let told = of.told_addr();
        let host = |addr: &str| addr.rsplit_once(':').map(|(host, _)| host.to_owned());
        if let Some(told) = told.filter(|told| host(told) == host(&of.ha_addr)) {
            return Some(told.to_owned());
        }
        let configured = self.config.ha_master.as_ref() == Some(&of.ha_addr);
        if told.is_none() && !configured {
            return None;
        }
        match kind(&of.ha_addr).await {
            // Something between both passes the log on: the operator says that it is the log of the group's master.
            MasterKind::Unknown => of.heard.addr.clone(),
            // Clients may be told of an address that brokers do not reach each other by (stock: brokerIP1 and brokerIP2).
            _ => port_below(&of.ha_addr, 1),
        }
    }

    /// Whether the broker at an address that nobody told together with the HA port is the one behind it: a RingMQ node by the id of its
    /// term, a stock one by how far its log goes.
    async fn is_of_followed(&self, addr: &str) -> Result<(), String> {
        // Before it is asked: what comes meanwhile is in no answer that was given earlier.
        let end = self.shard.log().appended();
        let table = runtime_of(addr).await?;
        let term = self.ha.slave.get().and_then(|slave| slave.master_term());
        if let Some(term) = term {
            let id = term_id(term);
            return match table.get(TERM_ID_KEY) {
                Some(theirs) if *theirs == id => Ok(()),
                _ => Err(format!("its log is not of the term {} that is followed", term.number)),
            };
        }
        let (min, max) = range_of(addr, &table)?;
        match (min..=max).contains(&end) {
            true => Ok(()),
            false => {
                Err(format!("its log [{min}, {max}) does not reach {end}, where this one ends"))
            }
        }
    }

    /// Opens the HA port. A slave has one too, as stock's, so that further slaves can follow it.
    ///
    /// # Errors
    /// One line.
    pub(super) fn listen_to_slaves(self: &Rc<Self>) -> Result<(), String> {
        let config = &self.config.ha;
        let listen = self.config.ha_listen;
        let master = MasterConfig {
            listen,
            timing: timing(config),
            batch_bytes: u32::try_from(config.batch_bytes).unwrap_or(u32::MAX),
            // A slave tells of no changes: its own slaves ask, again and again.
            metadata: !self.is_slave(),
        };
        let wanted = usize::try_from(config.in_sync_replicas).unwrap_or(usize::MAX);
        let gate = SyncGate::new(wanted, config.fall_behind_bytes);
        let broker = BrokerOfSlaves(Rc::downgrade(self));
        let log = self.shard.log().clone();
        let terms = Rc::clone(&self.ha.terms);
        let bound = Master::bind(master, log, self.shard.segment_bytes(), gate, terms, broker);
        let master = bound.map_err(|error| {
            format!(
                "cannot listen for slaves at {listen}: {error}; free the port or set broker.listen"
            )
        })?;
        self.acks.set_slaves(Rc::clone(&master));
        if self.ha.master.set(master).is_err() {
            return Err("a shard listens for slaves once".to_owned());
        }
        Ok(())
    }

    /// The tasks of a slave.
    pub(super) fn start_following(
        self: &Rc<Self>,
        serving: TaskQueueHandle,
    ) -> Result<Vec<Task<()>>, glommio::GlommioError<()>> {
        let config = &self.config.ha;
        let slave = Slave::new(
            SlaveConfig {
                timing: timing(config),
                slave_id: i64::try_from(self.config.broker_id).unwrap_or(i64::MAX),
                start: match config.start {
                    SlaveStart::Oldest => Start::Oldest,
                    SlaveStart::Newest => Start::Newest,
                },
                ack: match config.ack {
                    SlaveAck::Write => AckLevel::Write,
                    SlaveAck::Sync => AckLevel::Sync,
                },
                retry_max: Duration::from_millis(config.retry_max_ms),
            },
            Rc::clone(&self.shard),
            Rc::clone(&self.ha.terms),
        );
        // A second one would be a broker that is started twice.
        let _ = self.ha.slave.set(Rc::clone(&slave));
        let upstream = MasterOfBroker(Rc::clone(self));
        Ok(vec![
            glommio::spawn_local_into(Rc::clone(&slave).run(upstream), serving)?,
            glommio::spawn_local_into(slave.dispatch(), serving)?,
            glommio::spawn_local(Rc::clone(self).follow_metadata()),
        ])
    }

    /// The same in numbers.
    pub(super) fn add_ha(&self, snapshot: &mut ShardSnapshot) {
        let log = self.shard.log();
        let visible = log.visible();
        snapshot.replicated_offset = self.ha.replicated();
        if let Some(master) = self.ha.master.get() {
            let counts = |peer: &Rc<Peer>| SlaveCounts {
                addr: peer.addr().to_string(),
                streaming: peer.state() == PeerState::Streaming,
                lag_bytes: visible.saturating_sub(peer.acked()),
                lag_seconds: peer.lag(visible).as_secs_f64(),
                second: peer.is_second(),
            };
            snapshot.slaves =
                master.peers().iter().filter(|peer| !peer.is_observer()).map(counts).collect();
        }
        snapshot.follower = self.ha.slave.get().map(|slave| FollowerCounts {
            following: slave.state() == SlaveState::Following,
            lag_bytes: slave.master_end().saturating_sub(log.appended()),
            received_bytes: slave.received(),
        });
    }

    /// What this shard's replication is doing, under keys of GET_BROKER_RUNTIME_INFO.
    pub(super) fn ha_table(&self) -> BTreeMap<String, String> {
        let mut table = BTreeMap::new();
        let mut put = |key: String, value: String| {
            table.insert(key, value);
        };
        put(HELLO_KEY.to_owned(), "1".to_owned());
        put(SHARDS_KEY.to_owned(), self.config.shards.to_string());
        put("ringmqHaRole".to_owned(), self.config.role.stock_name().to_owned());
        let term =
            self.ha.terms.list().last().map(|term| format!("{} from {}", term.number, term.start));
        put("ringmqHaTerm".to_owned(), term.unwrap_or_default());
        let id = self.ha.terms.list().last().map(|term| term_id(*term));
        put(TERM_ID_KEY.to_owned(), id.unwrap_or_default());
        put("ringmqHaAcknowledged".to_owned(), self.ha.terms.bound().to_string());
        if let Some(cut) = &self.ha.cut {
            put("ringmqHaCut".to_owned(), cut.to_string());
        }
        if let Some(slave) = self.ha.slave.get() {
            let ends_at = self.shard.log().appended();
            put("ringmqHaState".to_owned(), slave.state().to_string());
            let master = slave.master().map(|addr| addr.to_string());
            put("ringmqHaMaster".to_owned(), master.unwrap_or_default());
            let protocol = if slave.granted().is_some() { "terms" } else { "stock" };
            put("ringmqHaProtocol".to_owned(), protocol.to_owned());
            put("ringmqHaConnections".to_owned(), slave.connections().to_string());
            put("ringmqHaFailures".to_owned(), slave.failures().to_string());
            if let Some(why) = slave.last_error() {
                put("ringmqHaLastError".to_owned(), why);
            }
            put("ringmqHaUntold".to_owned(), self.ha.untold.len().to_string());
            put("ringmqHaReported".to_owned(), slave.reported().to_string());
            put("ringmqHaReceivedBytes".to_owned(), slave.received().to_string());
            let lag = slave.master_end().saturating_sub(ends_at);
            put("ringmqHaLagBytes".to_owned(), lag.to_string());
        }
        let Some(master) = self.ha.master.get() else { return table };
        let visible = self.shard.log().visible();
        if let Some(ended) = master.last_ended() {
            put("ringmqHaLastEnded".to_owned(), ended);
        }
        put("ringmqHaReplicated".to_owned(), self.ha.replicated().to_string());
        let peers = master.peers();
        let (observers, slaves): (Vec<_>, Vec<_>) =
            peers.into_iter().partition(|peer| peer.is_observer());
        put("ringmqHaSlaves".to_owned(), slaves.len().to_string());
        put("ringmqHaObservers".to_owned(), observers.len().to_string());
        for (at, peer) in slaves.iter().enumerate() {
            let id = peer.slave().map_or_else(|| "unknown".to_owned(), |id| id.to_string());
            let protocol = if peer.granted().is_some() { "terms" } else { "stock" };
            put(
                format!("ringmqHaSlave_{at}"),
                format!(
                    "{} state={} protocol={protocol} id={id} sent={} acked={} lagBytes={} lagMs={} reports={}{}",
                    peer.addr(),
                    peer.state(),
                    peer.sent(),
                    peer.acked(),
                    visible.saturating_sub(peer.acked()),
                    peer.lag(visible).as_millis(),
                    peer.reports(),
                    if peer.is_second() { " sameIdAsAnother=true" } else { "" },
                ),
            );
        }
        table
    }
}

/// What this broker is to the slaves that follow it.
struct BrokerOfSlaves(Weak<Broker>);

impl Downstream for BrokerOfSlaves {
    fn acked(&self) {
        if let Some(broker) = self.0.upgrade()
            && broker.config.role == Role::SyncMaster
        {
            broker.release_acks();
            broker.flush_replies();
            broker.progressed.raise();
        }
    }

    fn metadata(&self) -> Vec<Vec<u8>> {
        self.0.upgrade().map(|broker| broker.all_metadata()).unwrap_or_default()
    }
}

/// What a broker tells of itself (request 28).
async fn runtime_of(addr: &str) -> Result<BTreeMap<String, String>, String> {
    let body = ask(addr, request::GET_BROKER_RUNTIME_INFO, &[]).await;
    let body = body.map_err(|why| format!("{addr}: {why}"))?;
    let table = KvTable::from_json(&body).map_err(|error| format!("{addr}: {error}"))?.table;
    Ok(table.into_iter().collect())
}

/// First and last physical offset of its log, of what it told.
fn range_of(addr: &str, table: &BTreeMap<String, String>) -> Result<(u64, u64), String> {
    let number = |key: &str| {
        let value = table.get(key).and_then(|value| value.parse::<i64>().ok());
        // A stock broker without a segment begins at -1.
        let value = value.map(|value| u64::try_from(value).unwrap_or(0));
        value.ok_or_else(|| format!("{addr} does not tell {key}"))
    };
    Ok((number("commitLogMinOffset")?, number("commitLogMaxOffset")?))
}

/// A term's id, as it is told.
fn term_id(term: Term) -> String {
    format!("{:032x}", term.id.0)
}

/// What the broker at an HA port tells of itself.
async fn runtime_at(ha_addr: &str) -> Result<BTreeMap<String, String>, String> {
    // A stock 4.x broker's HA port is its client port + 1, and so is ours.
    runtime_of(&port_below(ha_addr, 1).ok_or("its address has no port")?).await
}

fn kind_of(table: &BTreeMap<String, String>) -> MasterKind {
    if table.contains_key(HELLO_KEY) { MasterKind::RingMq } else { MasterKind::Stock }
}

/// What the broker at an HA port is.
async fn kind(ha_addr: &str) -> MasterKind {
    runtime_at(ha_addr).await.map_or(MasterKind::Unknown, |table| kind_of(&table))
}

/// How a slave asks for its master.
struct MasterOfBroker(Rc<Broker>);

impl MasterOfBroker {
    async fn connected_addr(&self) -> Option<String> {
        let master = self.0.ha.connected()?;
        self.0.requests_addr(&master).await
    }
}

impl Upstream for MasterOfBroker {
    fn ha_addr(&self) -> Option<String> {
        let broker = &self.0;
        broker.config.ha_master.clone().or_else(|| broker.ha.heard.borrow().ha_addr.clone())
    }

    async fn kind(&self, ha_addr: &str) -> MasterKind {
        let Ok(table) = runtime_at(ha_addr).await else { return MasterKind::Unknown };
        let own = self.0.config.shards;
        match table.get(SHARDS_KEY).and_then(|shards| shards.parse::<usize>().ok()) {
            Some(master) if master != own => MasterKind::OtherShards { own, master },
            _ => kind_of(&table),
        }
    }

    fn look_again(&self) {
        // Each answer to a registration tells of the master; otherwise there is one every half minute.
        self.0.registrations.wake_all();
    }

    fn metadata(&self, body: &[u8]) {
        self.0.take_metadata(body);
    }

    fn reopen(&self) {
        self.0.reopening.raise();
    }

    async fn log_range(&self) -> Result<Option<(u64, u64)>, String> {
        let Some(addr) = self.connected_addr().await else { return Ok(None) };
        let table = runtime_of(&addr).await?;
        range_of(&addr, &table).map(Some)
    }

    async fn record(&self, offset: u64) -> Result<Option<Vec<u8>>, String> {
        let addr = self.connected_addr().await.ok_or("where it can be asked is not known")?;
        let offset = offset.to_string();
        let ext = [("offset", offset.as_str())];
        match ask(&addr, request::VIEW_MESSAGE_BY_ID, &ext).await {
            Ok(record) => Ok(Some(record)),
            // What the master says where it finds no record (stock 4.9.8). One that is busy has said nothing of it.
            Err(Unasked::Answered { code: response::SYSTEM_ERROR, .. }) => Ok(None),
            Err(why) => Err(format!("{addr}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringmq_engine::store::StoreLayout;
    use ringmq_replication::term_store::LogFound;

    use super::*;

    #[test]
    fn a_name_server_that_knows_no_master_hides_none_that_another_one_knows() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = LogFound { min: 0, end: 0, stock_was_here: false };
        let terms = TermStore::load(&StoreLayout::new(dir.path()), found).expect("no files");
        let layout = StoreLayout::new(dir.path());
        let untold = Untold::load(&layout, false).expect("no file");
        let ha = Ha::new(Rc::new(terms.0), None, untold, MastersGroups::load(&layout));
        ha.hear_of_master(None, None);
        assert_eq!(ha.master_addr(), None);
        ha.hear_of_master(Some("10.0.0.1:10911"), Some("10.0.0.1:10912"));
        ha.hear_of_master(Some(""), None);
        assert_eq!(ha.master_addr().as_deref(), Some("10.0.0.1:10911"));
        ha.hear_of_master(Some("10.0.0.2:10911"), Some("10.0.0.2:10912"));
        assert_eq!(ha.master_addr().as_deref(), Some("10.0.0.2:10911"));
    }

    #[test]
    fn of_two_masters_only_the_followed_one_is_asked_for_tables() {
        let of = |ha_addr: &str, told: &str, told_ha: &str| Followed {
            ha_addr: ha_addr.to_owned(),
            peer: Some(SocketAddr::from(([10, 0, 0, 1], 10912))),
            connections: 1,
            heard: Heard { addr: Some(told.to_owned()), ha_addr: Some(told_ha.to_owned()) },
        };
        let followed = of("10.0.0.1:10912", "10.0.0.1:10911", "10.0.0.1:10912");
        assert_eq!(followed.told_addr(), Some("10.0.0.1:10911"));
        let by_name = of("a.example:10912", "10.0.0.1:10911", "10.0.0.1:10912");
        assert_eq!(by_name.told_addr(), Some("10.0.0.1:10911"), "configured by name");
        let other = of("10.0.0.1:10912", "10.0.0.2:10911", "10.0.0.2:10912");
        assert_eq!(other.told_addr(), None, "the log is still the old one's");
        assert_ne!(followed, other, "and what was asked meanwhile is not taken over");
    }
}
