//! Who is connected: the producers and consumers that heartbeats register, by connection and group.
//!
//! A registration belongs to a connection: its close ends all of them, and 120 s without a heartbeat end
//! one. What must be told to whom (NOTIFY_CONSUMER_IDS_CHANGED, 40) comes back as [`Notify`] values; this
//! module sends nothing.

use std::net::SocketAddr;
use std::rc::Rc;

use ringmq_net::body::{
    Connection, ConsumeFrom, ConsumeType, ConsumerConnection, ConsumerData, MessageModel,
    ProducerConnection, ProducerInfo, SubscriptionData,
};
use ringmq_net::code::response;
use ringmq_net::language::Language;
use ringmq_net::map::{SeededMap, SeededSet};
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use super::ConnId;
use super::filter::{FilterError, Subscription, split_tags};
use super::topic_name::FAQ;

/// How long a registration lives without a heartbeat, in ms (stock 4.9.8).
pub const LIFE_MS: i64 = 120_000;

/// How often [`Clients::expire`] should run, in ms (stock 4.9.8).
pub const SCAN_INTERVAL_MS: i64 = 10_000;

/// Members up to which a group's members are listed for each change.
pub const CROWD: usize = 64;

/// Members up to which one that comes is compared with all others for its client id.
const SAME_ID_MEMBERS_MAX: usize = 1_000;

/// Most bytes of names and subscriptions that all clients of a shard register; stock has no bound. A usual client registers a few
/// hundred.
pub const REGISTERED_BYTES_MAX: usize = 128 << 20;

/// Longest client id or group name of a registration, in bytes. Stock takes any length, and its clients refuse 256 themselves.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Most groups that one connection may register; stock has no bound.
pub const CONN_GROUPS_MAX: usize = 10_000;

/// The connection behind a heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct ClientConn<'a> {
    /// The connection.
    pub conn: ConnId,
    /// `clientID` of the heartbeat.
    pub client_id: &'a str,
    /// Of the heartbeat's header.
    pub language: Language,
    /// Of the heartbeat's header.
    pub version: i32,
    /// The peer.
    pub addr: SocketAddr,
}

/// One client's registration in one group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The connection.
    pub conn: ConnId,
    /// The client's id; two connections may have the same.
    pub client_id: Rc<str>,
    /// Language of the client.
    pub language: Language,
    /// Version of the client.
    pub version: i32,
    /// The peer.
    pub addr: SocketAddr,
    /// When it last sent a heartbeat, ms of a clock that is never set.
    pub last_heartbeat_ms: i64,
}

/// Tell these connections that the members of `group` changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    /// The consumer group.
    pub group: Rc<str>,
    /// Its members.
    pub conns: Told,
}

/// Whom a change is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// All members, in order of their connection ids.
    These(Vec<ConnId>),
    /// All of more than [`CROWD`] members, which are not listed: a list for each of ten thousand that come would cost more than
    /// all else that they do.
    Crowd,
}

/// What [`Clients::expire`] decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Connections whose client is silent: close them.
    pub close: Vec<ConnId>,
    /// Groups that lost a member.
    pub notify: Vec<Notify>,
}

/// What two members of a group cannot both mean. The registration stands, as in stock; an operator should hear of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    /// Their subscriptions differ: each gets messages by the newer one, and skips what it alone wanted.
    #[error(
        "consumer group {group}: {client_id} subscribes otherwise than other members ({what}); messages are filtered by one of the \
         subscriptions, so give all members of a group the same"
    )]
    Subscription {
        /// The group.
        group: Rc<str>,
        /// Whose heartbeat showed it.
        client_id: String,
        /// Where they differ.
        what: String,
    },
    /// Their client ids are the same: both take the same share of the queues, and nobody the rest.
    #[error(
        "consumer group {group}: client id {client_id} on two connections, {addr} and {other}; give each process an instance name of its \
         own, unless this is one that just reconnected"
    )]
    ClientId {
        /// The group.
        group: Rc<str>,
        /// The id.
        client_id: String,
        /// The new connection's peer.
        addr: SocketAddr,
        /// The other's.
        other: SocketAddr,
    },
}

/// A registration that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TooManyGroups {
    /// The connection registered as many groups as it may.
    #[error("a connection may register {CONN_GROUPS_MAX} groups: use more connections")]
    Groups,
    /// All clients together registered as much as they may.
    #[error(
        "clients have registered {REGISTERED_BYTES_MAX} bytes of groups and subscriptions already: use fewer or shorter ones"
    )]
    Bytes,
    /// A name that no stock client would start with.
    #[error("a client id or group name is longer than {NAME_BYTES_MAX} bytes: use a shorter one")]
    Name,
}

/// What a registration of one connection in one group costs besides its names, and what one subscription costs besides its texts.
const ENTRY_BYTES: usize = 256;

fn member_bytes(group: &str, client_id: &str) -> usize {
    ENTRY_BYTES + 2 * group.len() + 2 * client_id.len()
}

/// What a subscription costs once it is kept: texts as they are, tags once more with their codes. Where a client sends no tags, they
/// are taken out of the expression, so that it costs the same before and after.
fn subscription_bytes(data: &SubscriptionData) -> usize {
    let tag_bytes = |tag: &str| tag.len() + 40;
    let tags: usize = match data.tags.is_empty() {
        true => split_tags(&data.sub_string).map(tag_bytes).sum(),
        false => data.tags.iter().map(|tag| tag_bytes(tag)).sum(),
    };
    let codes = if tags == 0 { data.codes.len() * 8 } else { 0 };
    let texts = 2 * data.topic.len() + data.sub_string.len() + data.expression_type.len();
    ENTRY_BYTES + texts + tags + codes
}

/// Why a pull that relies on its group's registration was refused. Displayed, it is stock 4.9.8's remark;
/// [`PullRefused::code`] is the response code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PullRefused {
    /// Nobody is registered in the group.
    #[error("the consumer's group info not exist{FAQ}")]
    NoGroup,
    /// The group consumes by broadcast and may not.
    #[error("the consumer group[{0}] can not consume by broadcast way")]
    Broadcast(String),
    /// The group doesn't subscribe to the topic.
    #[error("the consumer's subscription not exist{FAQ}")]
    NotSubscribed,
    /// The client has a newer subscription than the group's heartbeats brought: it comes soon.
    #[error("the consumer's subscription not latest")]
    NotLatest,
    /// The expression can't be evaluated here.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl PullRefused {
    /// The response code that goes with the remark.
    pub fn code(&self) -> i32 {
        match self {
            Self::NoGroup | Self::NotSubscribed => response::SUBSCRIPTION_NOT_EXIST,
            Self::Broadcast(_) => response::NO_PERMISSION,
            Self::NotLatest => response::SUBSCRIPTION_NOT_LATEST,
            Self::Filter(FilterError::Malformed) => response::SUBSCRIPTION_PARSE_FAILED,
            Self::Filter(FilterError::Unsupported(_)) => response::SYSTEM_ERROR,
        }
    }
}

/// The members of a group, by connection.
#[derive(Debug, Default)]
pub struct Members(FxHashMap<ConnId, Member>);

impl Members {
    /// All, in order of their connection ids.
    pub fn sorted(&self) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.0.values().collect();
        members.sort_unstable_by_key(|m| m.conn);
        members
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: such a group doesn't stay in the registry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The registration of a connection.
    pub fn get(&self, conn: ConnId) -> Option<&Member> {
        self.0.get(&conn)
    }

    /// The member with this client id; of several the one that was heard last.
    pub fn by_client_id(&self, client_id: &str) -> Option<&Member> {
        let same = self.0.values().filter(|m| *m.client_id == *client_id);
        same.max_by_key(|m| (m.last_heartbeat_ms, m.conn))
    }

    /// The answer of request 204.
    pub fn producer_body(&self) -> ProducerConnection {
        ProducerConnection { connections: self.connections() }
    }

    /// This group's part of the answer of request 328. `epoch_ms` is when the clock of the registrations began, in ms since 1970.
    pub fn producer_infos(&self, epoch_ms: i64) -> Vec<ProducerInfo> {
        let info = |m: &Member| ProducerInfo {
            client_id: m.client_id.to_string(),
            remote_ip: format!("/{}", m.addr),
            language: m.language,
            version: m.version,
            last_update_timestamp: epoch_ms.saturating_add(m.last_heartbeat_ms),
        };
        self.sorted().into_iter().map(info).collect()
    }

    fn connections(&self) -> Vec<Connection> {
        let connection = |m: &Member| Connection {
            client_id: m.client_id.to_string(),
            client_addr: m.addr.to_string(),
            language: m.language,
            version: m.version,
        };
        self.sorted().into_iter().map(connection).collect()
    }

    /// Their connections, in order.
    pub fn conns(&self) -> Vec<ConnId> {
        let mut conns: Vec<ConnId> = self.0.keys().copied().collect();
        conns.sort_unstable();
        conns
    }

    /// Notes a heartbeat; whether the connection is new here.
    fn heard(&mut self, client: &ClientConn<'_>, now_ms: i64) -> bool {
        let known = self.0.get_mut(&client.conn);
        let is_new = known.is_none();
        match known {
            Some(member) if *member.client_id == *client.client_id => {
                member.last_heartbeat_ms = now_ms;
                member.language = client.language;
                member.version = client.version;
            }
            _ => {
                let member = Member {
                    conn: client.conn,
                    client_id: client.client_id.into(),
                    language: client.language,
                    version: client.version,
                    addr: client.addr,
                    last_heartbeat_ms: now_ms,
                };
                self.0.insert(client.conn, member);
            }
        }
        is_new
    }

    /// The connections that were silent for too long.
    fn silent(&self, now_ms: i64) -> impl Iterator<Item = ConnId> {
        let silent = self.0.values().filter(move |m| now_ms - m.last_heartbeat_ms > LIFE_MS);
        silent.map(|m| m.conn)
    }
}

/// How a group consumes, as its last heartbeat said; `None` is what stock reads as null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerMode {
    /// Pull or push.
    pub consume_type: Option<ConsumeType>,
    /// Clustering or broadcasting.
    pub model: Option<MessageModel>,
    /// Where a new group begins.
    pub from_where: Option<ConsumeFrom>,
}

/// A consumer group with at least one member.
#[derive(Debug)]
pub struct ConsumerGroup {
    name: Rc<str>,
    members: Members,
    mode: ConsumerMode,
    subscriptions: SeededMap<Box<str>, Rc<Subscription>>,
    /// What the subscriptions cost.
    subscribed_bytes: usize,
}

impl ConsumerGroup {
    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who is registered.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// How it consumes.
    pub fn mode(&self) -> ConsumerMode {
        self.mode
    }

    /// What it wants of a topic.
    #[inline]
    pub fn subscription(&self, topic: &str) -> Option<&Rc<Subscription>> {
        self.subscriptions.get(topic)
    }

    /// All subscriptions, in no order.
    pub fn subscriptions(&self) -> impl Iterator<Item = &Rc<Subscription>> {
        self.subscriptions.values()
    }

    /// The answer of request 38. A client id on two connections comes twice, as in stock.
    pub fn client_ids(&self) -> Vec<&str> {
        self.members.sorted().into_iter().map(|m| &*m.client_id).collect()
    }

    /// The answer of request 203.
    pub fn connection_body(&self) -> ConsumerConnection {
        ConsumerConnection {
            connections: self.members.connections(),
            subscriptions: self
                .subscriptions()
                .map(|s| (s.data().topic.clone(), s.data().clone()))
                .collect(),
            consume_type: self.mode.consume_type,
            message_model: self.mode.model,
            consume_from: self.mode.from_where,
        }
    }

    fn notify(&self) -> Notify {
        let conns = match self.members.len() {
            0..=CROWD => Told::These(self.members.conns()),
            _ => Told::Crowd,
        };
        Notify { group: self.name.clone(), conns }
    }

    fn subscribed_bytes(&self) -> usize {
        self.subscriptions
            .values()
            .map(|subscription| subscription_bytes(subscription.data()))
            .sum()
    }

    /// Where a heartbeat's subscriptions differ from what other members want.
    fn difference(&self, subscriptions: &[SubscriptionData]) -> Option<String> {
        if self.members.len() < 2 {
            return None;
        }
        for data in subscriptions {
            let Some(known) = self.subscriptions.get(&*data.topic) else {
                return Some(format!("{} is new in the group", short(&data.topic)));
            };
            let (text, wanted) = (&known.data().sub_string, &data.sub_string);
            // Two texts may say the same.
            if text != wanted && Subscription::new(data).filter() != known.filter() {
                let (topic, wanted, text) = (short(&data.topic), short(wanted), short(text));
                return Some(format!("{topic}: {wanted:?}, not {text:?}"));
            }
        }
        let named: SeededSet<&str> = subscriptions.iter().map(|data| &*data.topic).collect();
        let missing = self.subscriptions.keys().find(|topic| !named.contains(&***topic))?;
        Some(format!("{} is not among its topics", short(missing)))
    }

    /// Merges a heartbeat's subscriptions; whether a topic came or went. One that is known is replaced
    /// only by a greater version, and that alone tells nobody.
    fn merge(&mut self, subscriptions: &[SubscriptionData]) -> bool {
        let mut changed = false;
        for data in subscriptions {
            match self.subscriptions.get_mut(&*data.topic) {
                Some(known) if data.sub_version <= known.version() => {}
                Some(known) => *known = Rc::new(Subscription::new(data)),
                None => {
                    let new = Rc::new(Subscription::new(data));
                    self.subscriptions.insert(data.topic.as_str().into(), new);
                    changed = true;
                }
            }
        }
        let named: SeededSet<&str> = subscriptions.iter().map(|data| &*data.topic).collect();
        let before = self.subscriptions.len();
        self.subscriptions.retain(|topic, _| named.contains(&**topic));
        changed || self.subscriptions.len() != before
    }
}

/// As much of a client's text as a log line shall have.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

/// The groups of one connection.
#[derive(Debug, Default)]
struct ConnGroups {
    consumers: SeededSet<Rc<str>>,
    producers: SeededSet<Rc<str>>,
}

impl ConnGroups {
    fn len(&self) -> usize {
        self.consumers.len() + self.producers.len()
    }
}

/// The clients of one shard. Owned by its reactor; bounded by its connections and [`CONN_GROUPS_MAX`].
#[derive(Debug, Default)]
pub struct Clients {
    consumers: SeededMap<Rc<str>, ConsumerGroup>,
    producers: SeededMap<Rc<str>, Members>,
    conns: FxHashMap<ConnId, ConnGroups>,
    /// Which connection a producing client's replies go to.
    reply_conns: SeededMap<Rc<str>, ConnId>,
    /// What all registrations cost, at most [`REGISTERED_BYTES_MAX`].
    bytes: usize,
    conflicts: Vec<Conflict>,
    subscription_conflicts: u64,
}

impl Clients {
    /// Nobody is connected.
    pub fn new() -> Self {
        Self::default()
    }

    /// One consumer group of a heartbeat. `notify` is false if the group's settings or the broker's forbid
    /// to tell its members. Tell them if the connection is new in the group, or a topic came or went.
    pub fn register_consumer(
        &mut self,
        client: &ClientConn<'_>,
        data: &ConsumerData,
        notify: bool,
        now_ms: i64,
    ) -> Result<Option<Notify>, TooManyGroups> {
        let subscribed: usize = data.subscriptions.iter().map(subscription_bytes).sum();
        let known = self.consumers.get(&*data.group_name);
        let replaced = known.map_or(0, |group| group.subscribed_bytes);
        let members = known.map(|group| &group.members);
        let (had, has) = Self::member_cost(members, &data.group_name, client)?;
        self.check_room(had + replaced, has + subscribed)?;
        let name = match self.consumers.get(&*data.group_name) {
            Some(known) => known.name.clone(),
            None => data.group_name.as_str().into(),
        };
        let conn = self.conns.entry(client.conn).or_default();
        if conn.len() >= CONN_GROUPS_MAX && !conn.consumers.contains(&name) {
            return Err(TooManyGroups::Groups);
        }
        conn.consumers.insert(name.clone());
        let group = self.consumers.entry(name.clone()).or_insert_with(|| ConsumerGroup {
            name,
            members: Members::default(),
            mode: ConsumerMode::default(),
            subscriptions: SeededMap::default(),
            subscribed_bytes: 0,
        });
        group.mode = ConsumerMode {
            consume_type: data.consume_type,
            model: data.message_model,
            from_where: data.consume_from,
        };
        // A look at all members: only when one comes, and not in a crowd.
        let looks =
            group.members.len() <= SAME_ID_MEMBERS_MAX && group.members.get(client.conn).is_none();
        let same_id = if looks { group.members.by_client_id(client.client_id) } else { None };
        let same_id = same_id.filter(|other| other.conn != client.conn).map(|other| other.addr);
        let is_new = group.members.heard(client, now_ms);
        let difference = group.difference(&data.subscriptions);
        let changed = group.merge(&data.subscriptions);
        group.subscribed_bytes = group.subscribed_bytes();
        self.bytes = (self.bytes + has + group.subscribed_bytes).saturating_sub(had + replaced);
        let group_name = &group.name;
        if let Some(what) = difference {
            self.subscription_conflicts += 1;
            let (group, client_id) = (group_name.clone(), client.client_id.to_owned());
            self.conflicts.push(Conflict::Subscription { group, client_id, what });
        }
        if let Some(other) = same_id.filter(|_| is_new) {
            let (group, client_id) = (group_name.clone(), client.client_id.to_owned());
            self.conflicts.push(Conflict::ClientId { group, client_id, addr: client.addr, other });
        }
        Ok((notify && (is_new || changed)).then(|| group.notify()))
    }

    /// The conflicts that heartbeats showed since the last call.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts)
    }

    /// How many heartbeats differed in their subscriptions from other members of their group.
    pub fn subscription_conflicts(&self) -> u64 {
        self.subscription_conflicts
    }

    /// A producer's heartbeat.
    pub fn register_producer(
        &mut self,
        client: &ClientConn<'_>,
        group: &str,
        now_ms: i64,
    ) -> Result<(), TooManyGroups> {
        let (had, has) = Self::member_cost(self.producers.get(group), group, client)?;
        self.check_room(had, has)?;
        let name: Rc<str> = match self.producers.get_key_value(group) {
            Some((known, _)) => known.clone(),
            None => group.into(),
        };
        let conn = self.conns.entry(client.conn).or_default();
        if conn.len() >= CONN_GROUPS_MAX && !conn.producers.contains(&name) {
            return Err(TooManyGroups::Groups);
        }
        conn.producers.insert(name.clone());
        self.bytes = (self.bytes + has).saturating_sub(had);
        self.producers.entry(name).or_default().heard(client, now_ms);
        if self.reply_conns.get(client.client_id) != Some(&client.conn) {
            self.reply_conns.insert(client.client_id.into(), client.conn);
        }
        Ok(())
    }

    /// What the registration of this connection in this group costs so far, and with this heartbeat.
    fn member_cost(
        members: Option<&Members>,
        group: &str,
        client: &ClientConn<'_>,
    ) -> Result<(usize, usize), TooManyGroups> {
        if group.len().max(client.client_id.len()) > NAME_BYTES_MAX {
            return Err(TooManyGroups::Name);
        }
        let known = members.and_then(|members| members.get(client.conn));
        let had = known.map_or(0, |member| member_bytes(group, &member.client_id));
        Ok((had, member_bytes(group, client.client_id)))
    }

    /// Refuses what would cost more than before and than there is room for.
    fn check_room(&self, had: usize, has: usize) -> Result<(), TooManyGroups> {
        if has > had && self.bytes + (has - had) > REGISTERED_BYTES_MAX {
            return Err(TooManyGroups::Bytes);
        }
        Ok(())
    }

    /// Bytes that all registrations cost.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A connection leaves a consumer group (request 35); whom to tell, if `notify` allows it.
    pub fn unregister_consumer(
        &mut self,
        conn: ConnId,
        group: &str,
        notify: bool,
    ) -> Option<Notify> {
        let groups = self.conns.get_mut(&conn)?;
        groups.consumers.remove(group);
        if groups.len() == 0 {
            self.conns.remove(&conn);
        }
        let remain = self.leave_consumer(conn, group);
        self.consumers.get(group).filter(|_| remain && notify).map(ConsumerGroup::notify)
    }

    /// A connection leaves a producer group (request 35).
    pub fn unregister_producer(&mut self, conn: ConnId, group: &str) {
        let Some(groups) = self.conns.get_mut(&conn) else { return };
        groups.producers.remove(group);
        if groups.len() == 0 {
            self.conns.remove(&conn);
        }
        self.leave_producer(conn, group);
    }

    /// A connection closed: it leaves every group. Whom to tell, in order of group names.
    pub fn close_conn(&mut self, conn: ConnId) -> Vec<Notify> {
        let Some(groups) = self.conns.remove(&conn) else { return Vec::new() };
        for group in &groups.producers {
            self.leave_producer(conn, group);
        }
        let mut notify = Vec::new();
        for group in &groups.consumers {
            if self.leave_consumer(conn, group) {
                notify.extend(self.consumers.get(group).map(ConsumerGroup::notify));
            }
        }
        notify.sort_unstable_by(|a, b| a.group.cmp(&b.group));
        notify
    }

    /// Ends the registrations that had no heartbeat for [`LIFE_MS`]. Stock 4.9.8 closes those connections
    /// and tells nobody; here the remaining members are told, or they would not rebalance.
    pub fn expire(&mut self, now_ms: i64) -> Expired {
        let mut close = FxHashSet::default();
        let mut silent: Vec<(ConnId, Rc<str>)> = Vec::new();
        for (group, members) in &self.producers {
            silent.extend(members.silent(now_ms).map(|conn| (conn, group.clone())));
        }
        for (conn, group) in silent.drain(..) {
            close.insert(conn);
            self.unregister_producer(conn, &group);
        }
        for group in self.consumers.values() {
            silent.extend(group.members.silent(now_ms).map(|conn| (conn, group.name.clone())));
        }
        let mut shrunk = SeededSet::default();
        for (conn, group) in silent {
            close.insert(conn);
            self.unregister_consumer(conn, &group, false);
            shrunk.insert(group);
        }
        let left = shrunk.iter().filter_map(|group| self.consumers.get(group));
        let mut notify: Vec<Notify> = left.map(ConsumerGroup::notify).collect();
        notify.sort_unstable_by(|a, b| a.group.cmp(&b.group));
        let mut close: Vec<ConnId> = close.into_iter().collect();
        close.sort_unstable();
        Expired { close, notify }
    }

    /// A consumer group that has members.
    #[inline]
    pub fn consumer(&self, group: &str) -> Option<&ConsumerGroup> {
        self.consumers.get(group)
    }

    /// The members of a producer group.
    pub fn producer(&self, group: &str) -> Option<&Members> {
        self.producers.get(group)
    }

    /// All consumer groups that have members, in no order.
    pub fn consumers(&self) -> impl Iterator<Item = &ConsumerGroup> {
        self.consumers.values()
    }

    /// All producer groups that have members, in no order.
    pub fn producers(&self) -> impl Iterator<Item = (&str, &Members)> {
        self.producers.iter().map(|(group, members)| (&**group, members))
    }

    /// The connected consumer groups that subscribe to a topic, sorted.
    pub fn groups_of_topic(&self, topic: &str) -> Vec<&str> {
        let groups = self.consumers.values().filter(|g| g.subscriptions.contains_key(topic));
        let mut groups: Vec<&str> = groups.map(ConsumerGroup::name).collect();
        groups.sort_unstable();
        groups
    }

    /// The subscription that a pull without one of its own relies on, with stock's checks in order.
    /// `broadcast_enable` is the group's setting.
    #[inline]
    pub fn subscription_for_pull(
        &self,
        group: &str,
        topic: &str,
        version: i64,
        broadcast_enable: bool,
    ) -> Result<&Rc<Subscription>, PullRefused> {
        let Some(registered) = self.consumers.get(group) else { return Err(PullRefused::NoGroup) };
        if !broadcast_enable && registered.mode.model == Some(MessageModel::Broadcasting) {
            return Err(PullRefused::Broadcast(group.to_owned()));
        }
        let Some(subscription) = registered.subscriptions.get(topic) else {
            return Err(PullRefused::NotSubscribed);
        };
        if subscription.version() < version {
            return Err(PullRefused::NotLatest);
        }
        if !subscription.is_tag() {
            let named = subscription.data().expression_type.clone();
            return Err(PullRefused::Filter(FilterError::Unsupported(named)));
        }
        Ok(subscription)
    }

    /// The connection on which a producing client gets replies (request-reply messages).
    pub fn reply_conn(&self, client_id: &str) -> Option<ConnId> {
        self.reply_conns.get(client_id).copied()
    }

    /// Takes a connection out of a consumer group; whether it was there and others remain.
    fn leave_consumer(&mut self, conn: ConnId, group: &str) -> bool {
        let Some(left) = self.consumers.get_mut(group) else { return false };
        let gone = left.members.0.remove(&conn);
        let was_there = gone.is_some();
        let remain = !left.members.is_empty();
        let mut bytes = gone.map_or(0, |member| member_bytes(group, &member.client_id));
        if !remain {
            bytes += left.subscribed_bytes;
            self.consumers.remove(group);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        was_there && remain
    }

    /// Takes a connection out of a producer group, and with its last one out of the reply table.
    fn leave_producer(&mut self, conn: ConnId, group: &str) {
        let Some(members) = self.producers.get_mut(group) else { return };
        let left = members.0.remove(&conn);
        let bytes = left.as_ref().map_or(0, |member| member_bytes(group, &member.client_id));
        self.bytes = self.bytes.saturating_sub(bytes);
        if members.is_empty() {
            self.producers.remove(group);
        }
        let produces = self.conns.get(&conn).is_some_and(|groups| !groups.producers.is_empty());
        if let Some(member) = left.filter(|_| !produces)
            && self.reply_conns.get(&member.client_id) == Some(&conn)
        {
            self.reply_conns.remove(&member.client_id);
        }
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
