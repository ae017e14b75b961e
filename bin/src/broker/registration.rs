//! Registration at name servers: one task and one connection for each, so that a slow or dead one delays nothing.
//!
//! A task registers at once, every 30 s, whenever topics change, and again as soon as a lost connection can be made anew: the
//! name server forgets a broker when its connection closes. The first registration of a connection and those of every
//! 30 s carry the whole topic table; one for a change carries the topics that changed since the last, as stock's own for an
//! administrator's change does: name servers merge. So making thousands of topics does not send the table thousands of times.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt;
use glommio::Task;
use ringmq_engine::state::topics::TopicSnapshot;
use ringmq_net::body::{Body, KvTable, RegisterBroker, body_crc32};
use ringmq_net::client::{Client, ClientError, off_reactor};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::frame::FRAME_BYTES_MAX;
use ringmq_net::headers::{RegisterBrokerHeader, UnregisterBrokerHeader};

use super::signal::Signal;
use super::{Broker, PERM_READ_WRITE};

/// Between registrations when nothing changes (stock 4.9.8).
const PERIOD: Duration = Duration::from_secs(30);
/// The same for a slave that knows no master yet: the answer to a registration tells it.
const PERIOD_WITHOUT_MASTER: Duration = Duration::from_secs(1);
/// One registration may take this long (stock 4.9.8).
const TIMEOUT: Duration = Duration::from_secs(6);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// After a failure: doubled each time, up to the second.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// On the way out, for each name server, all at once.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Up to so many topics are rendered on the reactor, in well under a millisecond; more on a thread of their own.
const INLINE_TOPICS_MAX: usize = 256;
/// A plain body longer than this goes compressed: the frame has a limit, and the compressed form loses two fields.
const PLAIN_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// All name servers of one shard.
pub(super) struct Registrations {
    servers: Vec<Rc<NameServer>>,
    /// Counts changes that name servers must hear of.
    wanted: Cell<u64>,
}

struct NameServer {
    addr: String,
    wake: Signal,
    client: RefCell<Option<Rc<Client>>>,
    /// The count of topic changes that it has taken over this connection; `None`: not even the table.
    has: Cell<Option<u64>>,
    /// It was told of changes alone since it was last sent the whole table.
    told_changes: Cell<bool>,
    /// The count of [`Registrations::wanted`] that this one has heard of.
    told: Cell<u64>,
    healthy: Cell<bool>,
    /// Requests that wait for this one to have heard of a change.
    waiting: RefCell<Vec<Waker>>,
}

impl Registrations {
    pub(super) fn new(addrs: &[String]) -> Self {
        let servers = addrs.iter().map(|addr| {
            Rc::new(NameServer {
                addr: addr.clone(),
                wake: Signal::default(),
                client: RefCell::new(None),
                has: Cell::new(None),
                told_changes: Cell::new(false),
                told: Cell::new(0),
                healthy: Cell::new(false),
                waiting: RefCell::default(),
            })
        });
        Registrations { servers: servers.collect(), wanted: Cell::new(1) }
    }

    /// Topics changed: every name server is told as soon as its task runs.
    pub(super) fn register_soon(&self) {
        self.wanted.set(self.wanted.get() + 1);
        self.servers.iter().for_each(|server| server.wake.raise());
    }

    /// Waits until every name server that answers has heard of all changes so far, at most this long.
    pub(super) async fn told(&self, timeout: Duration) {
        let wanted = self.wanted.get();
        for server in self.servers.iter().filter(|server| server.healthy.get()) {
            let heard = poll_fn(|context| {
                if server.told.get() >= wanted || !server.healthy.get() {
                    return Poll::Ready(());
                }
                server.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            });
            let late = async {
                glommio::timer::sleep(timeout).await;
            };
            heard.or(late).await;
        }
    }

    /// Each name server and whether the last registration there succeeded.
    pub(super) fn registered(&self) -> Vec<(String, bool)> {
        let servers = self.servers.iter();
        servers.map(|server| (server.addr.clone(), server.healthy.get())).collect()
    }

    pub(super) fn wake_all(&self) {
        self.servers.iter().for_each(|server| server.wake.raise());
    }
}

impl Broker {
    pub(super) fn start_registrations(self: &Rc<Self>) -> Vec<Task<()>> {
        let servers = self.registrations.servers.iter();
        servers
            .map(|server| {
                let (broker, server) = (Rc::clone(self), Rc::clone(server));
                glommio::spawn_local(async move { broker.keep_registered(&server).await })
            })
            .collect()
    }

    async fn keep_registered(&self, server: &NameServer) {
        let mut retry = RETRY_MIN;
        let mut whole = true;
        while !self.leaving() {
            let outcome = self.register_at(server, whole).await;
            server.note(&outcome);
            if outcome.is_ok() {
                retry = RETRY_MIN;
                let client = server.client.borrow().clone();
                let lost = async {
                    match &client {
                        Some(client) => client.closed().await,
                        None => std::future::pending().await,
                    }
                    true
                };
                let lonely = self.is_slave() && self.ha.master_addr().is_none();
                let period = if lonely { PERIOD_WITHOUT_MASTER } else { PERIOD };
                let in_time = async { !server.wake.wait_at_most(period).await };
                // Who only asks for the master has said it all; a new connection gets the table in any case.
                whole = lost.or(in_time).await && !lonely;
            } else {
                server.client.borrow_mut().take();
                server.wake.wait_at_most(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }

    /// Registers at one name server: the whole table if `whole` or if it has none over this connection, else what changed.
    async fn register_at(&self, server: &NameServer, whole: bool) -> Result<(), String> {
        let text = |error: ClientError| error.to_string();
        let open = server.client.borrow().clone().filter(|client| !client.is_closed());
        let client = match open {
            Some(client) => client,
            None => {
                let made =
                    Rc::new(Client::connect(&server.addr, CONNECT_TIMEOUT).await.map_err(text)?);
                *server.client.borrow_mut() = Some(Rc::clone(&made));
                server.has.set(None);
                made
            }
        };
        let wanted = self.registrations.wanted.get();
        let known = server.has.get().filter(|_| !whole);
        if known.is_none() && server.told_changes.take() {
            // Name servers take a table only under a version that they have not seen: what one has lost meanwhile comes back.
            self.topics.borrow_mut().touch(self.clock.now_ms());
        }
        let (changes, topics) = {
            let table = self.topics.borrow();
            (
                table.changes(),
                known.map_or_else(|| table.snapshot(), |has| table.changed_since(has)),
            )
        };
        let request = self.registration(topics).await?;
        let answer = client.call(request, TIMEOUT).await.map_err(text)?;
        if answer.code != response::SUCCESS {
            let remark = answer.remark.unwrap_or_default();
            return Err(format!("{} answered {}: {remark}", server.addr, answer.code));
        }
        server.told.set(wanted);
        server.has.set(Some(changes));
        server.told_changes.set(known.is_some() || server.told_changes.get());
        if self.is_slave() {
            self.ha.hear_of_master(answer.ext("masterAddr"), answer.ext("haServerAddr"));
        }
        self.apply_order_table(&answer.body);
        Ok(())
    }

    /// The request: who we are, and these topics.
    async fn registration(&self, topics: TopicSnapshot) -> Result<Command, String> {
        let permission = self.tunables.borrow().permission;
        let body = if topics.len() <= INLINE_TOPICS_MAX {
            RenderedBody::new(topics, permission)
        } else {
            let rendered =
                off_reactor("registration", move || RenderedBody::new(topics, permission));
            rendered.await.map_err(|error| format!("the topics could not be rendered: {error}"))?
        };
        let header = RegisterBrokerHeader {
            broker_name: &self.config.name,
            broker_addr: &self.config.told,
            cluster_name: &self.config.cluster,
            ha_server_addr: Some(&self.config.told_ha),
            broker_id: self.config.broker_id as i64,
            compressed: body.compressed,
            body_crc32: body.crc32,
            heartbeat_timeout_millis: None,
        };
        let command = Command::request(request::REGISTER_BROKER).with_header(&header.ext());
        Ok(command.with_body(body.bytes))
    }

    /// The name server's list of ordered topics, if it has one: an empty list means that none is.
    fn apply_order_table(&self, body: &[u8]) {
        if body.is_empty() {
            return;
        }
        match KvTable::from_json(body) {
            Ok(list) => {
                let ordered = list.table.keys().map(String::as_str);
                let changed = self.topics.borrow_mut().apply_order(ordered, self.clock.now_ms());
                if changed {
                    self.registrations.register_soon();
                }
            }
            Err(error) => self.rare_log.warn("the name server's order table", &error),
        }
    }

    /// Takes this broker out of every name server, so that clients stop coming.
    pub(super) async fn unregister(self: &Rc<Self>) {
        self.leaving.set(true);
        self.registrations.wake_all();
        let mut tasks = Vec::new();
        for server in &self.registrations.servers {
            let Some(client) = server.client.borrow().clone() else { continue };
            let broker = Rc::clone(self);
            tasks.push(glommio::spawn_local(async move {
                if let Err(error) = client.call(broker.leave_request(), LEAVE_TIMEOUT).await {
                    tracing::warn!("leaving a name server: {error}");
                }
            }));
        }
        for task in tasks {
            task.await;
        }
    }

    fn leave_request(&self) -> Command {
        let header = UnregisterBrokerHeader {
            broker_name: &self.config.name,
            broker_addr: &self.config.told,
            cluster_name: &self.config.cluster,
            broker_id: self.config.broker_id as i64,
        };
        Command::request(request::UNREGISTER_BROKER).with_header(&header.ext())
    }

    fn leaving(&self) -> bool {
        self.leaving.get() || self.stopped()
    }
}

/// The body of a registration.
struct RenderedBody {
    bytes: Vec<u8>,
    compressed: bool,
    crc32: i32,
}

impl RenderedBody {
    fn new(topics: TopicSnapshot, permission: i32) -> Self {
        let mut topics = topics.body();
        if permission != PERM_READ_WRITE {
            topics.topics.iter_mut().for_each(|topic| topic.perm = permission);
        }
        let body = RegisterBroker { filter_servers: Some(Vec::new()), topics };
        let plain = body.to_json();
        let compressed = plain.len() > PLAIN_BYTES_MAX;
        let bytes = if compressed { body.to_compressed() } else { plain };
        RenderedBody { crc32: body_crc32(&bytes), compressed, bytes }
    }
}

impl NameServer {
    /// Says once per change whether registering works.
    fn note(&self, outcome: &Result<(), String>) {
        let was_healthy = self.healthy.replace(outcome.is_ok());
        self.waiting.take().into_iter().for_each(Waker::wake);
        match outcome {
            Ok(()) if !was_healthy => tracing::info!(namesrv = %self.addr, "registered"),
            Err(why) if was_healthy => {
                tracing::warn!(namesrv = %self.addr, "registration failed, trying on: {why}");
            }
            _ => {}
        }
    }
}
