//! The client itself, and how one is made.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::admin::Admin;
use crate::broker::Broker;
use crate::consumer::ConsumerBuilder;
use crate::endpoint::{ConsumerEndpoint, Registration};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::producer::ProducerBuilder;
use crate::remoting::Limits;
use crate::route::{Missing, TopicRoute};

/// Names the name servers of a program whose builder names none.
const NAME_SERVERS_VARIABLE: &str = "NAMESRV_ADDR";

/// Settings of a client, with stock's defaults unless said.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) name_servers: Vec<String>,
    pub(crate) instance_name: String,
    pub(crate) ip: IpAddr,
    pub(crate) limits: Limits,
    pub(crate) call_timeout: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) route_interval: Duration,
    pub(crate) default_queues: i32,
    pub(crate) credentials: Option<crate::Credentials>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::Tls>,
}

impl Config {
    pub(crate) fn client_id(&self) -> String {
        format!("{}@{}", self.ip, self.instance_name)
    }
}

/// Makes a [`Client`]. Begin with [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    config: Config,
    ip: Option<IpAddr>,
}

impl ClientBuilder {
    /// One or more name servers, `host:port` joined by `;`. May be called again for more. A host name is resolved at each connect. Without any, the
    /// environment's `NAMESRV_ADDR` names them, as for stock clients.
    pub fn name_server(mut self, addrs: impl AsRef<str>) -> Self {
        self.config.name_servers.extend(split_addrs(addrs.as_ref()));
        self
    }

    /// The part of the client id behind the address. The default is different for every client. Give a name only when a client has to have the
    /// same id after a restart: two running clients with one id are one to a broker, and members of a group then divide its
    /// queues wrongly.
    pub fn instance_name(mut self, name: impl Into<String>) -> Self {
        self.config.instance_name = name.into();
        self
    }

    /// The address in the client id and in message ids. The default is that of the interface towards the first name server.
    pub fn client_ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Longest wait for a connection; 1.5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.limits.connect = timeout;
        self
    }

    /// A connection that was not used for this long is closed; 120 s.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.config.limits.idle = timeout;
        self
    }

    /// Most requests on one connection that wait for their answers; 8192. Further ones wait for their turn within their time limit.
    pub fn requests_in_flight_max(mut self, requests: usize) -> Self {
        self.config.limits.window = requests.max(1);
        self
    }

    /// Longest wait for the answer to a route request, a heartbeat or an administrator's request; 3 s.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.config.call_timeout = timeout;
        self
    }

    /// How long [`Client::shutdown`] waits for messages on their way; 10 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config.drain_timeout = timeout;
        self
    }

    /// Time between heartbeats; 30 s. Brokers forget a client after 120 s.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.config.heartbeat_interval = interval;
        self
    }

    /// Time between renewals of routes; 30 s.
    pub fn route_interval(mut self, interval: Duration) -> Self {
        self.config.route_interval = interval;
        self
    }

    /// Queues per broker group of a topic that is created by its first message; 4.
    pub fn default_topic_queues(mut self, queues: u16) -> Self {
        self.config.default_queues = i32::from(queues.max(1));
        self
    }

    /// Signs every request, for 4.9 brokers with `aclEnable`; none is unless set. A broker that does not take a signature, or whose account lacks a
    /// permission, answers [`Error::Refused`] with code 1 and the reason. A signature does not hide anything: that takes TLS.
    pub fn credentials(mut self, credentials: crate::Credentials) -> Self {
        self.config.credentials = Some(credentials);
        self
    }

    /// Encrypts every connection, to name servers and brokers alike; none is unless set.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// The client. Nothing is sent yet; it connects with the first request.
    ///
    /// # Errors
    /// [`Error::NoNameServer`]; [`Error::NoRuntime`] outside a tokio runtime; [`Error::Invalid`] for an address without a port, or TLS
    /// settings that do not go together.
    pub fn build(mut self) -> Result<Client> {
        if self.config.name_servers.is_empty()
            && let Ok(addrs) = std::env::var(NAME_SERVERS_VARIABLE)
        {
            self.config.name_servers = split_addrs(&addrs);
        }
        check_addrs(&self.config.name_servers)?;
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.config.ip = self.ip.unwrap_or_else(|| local_ip(&self.config.name_servers));
        let instance = Instance::start(self.config, runtime)?;
        Ok(Client { owner: Arc::new(Owner { instance }) })
    }
}

/// A client of one RocketMQ cluster: connections, routes and heartbeats, shared by all that is made from it.
///
/// Cheap to clone; all clones are the same client. Producers and the like keep it alive. When the last of them all is dropped, tasks and
/// connections end at once, and brokers notice by the connections; [`Client::shutdown`] ends it in order.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// What every handle holds: when the last one goes, so do the tasks, although connections in use hold the instance.
struct Owner {
    instance: Arc<Instance>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.instance.stop();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Client {
    /// Settings for a new client.
    pub fn builder() -> ClientBuilder {
        let unique = format!("{}#{:016x}", std::process::id(), fastrand::u64(..));
        let config = Config {
            name_servers: Vec::new(),
            instance_name: unique,
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            limits: Limits {
                connect: Duration::from_millis(1500),
                idle: Duration::from_secs(120),
                window: 8192,
            },
            call_timeout: Duration::from_secs(3),
            drain_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(30),
            route_interval: Duration::from_secs(30),
            default_queues: 4,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        ClientBuilder { config, ip: None }
    }

    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.owner.instance
    }

    /// The client id, by which brokers and administrators know it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.instance().client_id
    }

    /// Settings for a producer of that group.
    pub fn producer(&self, group: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), group.into())
    }

    /// Settings for a consumer of that group.
    pub fn consumer(&self, group: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), group.into())
    }

    /// Requests of administrators.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Requests to one broker by its address.
    #[must_use]
    pub fn broker(&self, addr: &str) -> Broker {
        self.instance().broker(addr)
    }

    /// A topic's route: the one that is known, or the name servers'. It is renewed from then on.
    ///
    /// # Errors
    /// [`Error::NoRoute`] when the topic does not exist; [`Error::NameServers`].
    pub async fn route(&self, topic: &str) -> Result<Arc<TopicRoute>> {
        let instance = self.instance();
        let timeout = instance.config.call_timeout;
        let found = instance.routes.find(topic, Missing::IsError, timeout).await?;
        Ok(found.route)
    }

    /// A topic's route, asked of the name servers now.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub async fn renew_route(&self, topic: &str) -> Result<Arc<TopicRoute>> {
        let instance = self.instance();
        let timeout = instance.config.call_timeout;
        let (found, _) = instance.routes.renew(topic, Missing::IsError, timeout).await?;
        Ok(found.route)
    }

    /// Addresses by broker id of a broker group, from the routes that are known; id 0 is the master.
    #[must_use]
    pub fn broker_group(&self, broker: &str) -> std::collections::BTreeMap<i64, String> {
        self.instance().routes.group(broker)
    }

    /// Takes a consumer into heartbeats and routes; it stays until the registration is dropped. Call
    /// [`Client::heartbeat`] afterwards so that brokers hear of it now.
    ///
    /// # Errors
    /// [`Error::GroupTaken`], [`Error::Invalid`] for the group's name.
    pub fn register_consumer(&self, consumer: Arc<dyn ConsumerEndpoint>) -> Result<Registration> {
        self.instance().register_consumer(consumer)
    }

    /// Sends heartbeats to every broker that is known, now. `changed` says that subscriptions did, so that brokers are told again before
    /// whatever needs it.
    pub async fn heartbeat(&self, changed: bool) {
        if changed {
            self.instance().changed();
        }
        self.instance().heartbeat_all().await;
    }

    /// Takes other name servers from now on, `host:port` joined by `;`. Connections to those that are no longer listed are closed.
    ///
    /// # Errors
    /// [`Error::NoNameServer`] for an empty list, [`Error::Invalid`] for an address without a port.
    pub fn set_name_servers(&self, addrs: &str) -> Result<()> {
        let addrs = split_addrs(addrs);
        check_addrs(&addrs)?;
        let instance = self.instance();
        let before = instance.routes.servers.addrs();
        instance.routes.servers.replace(addrs.clone());
        before
            .iter()
            .filter(|addr| !addrs.contains(addr))
            .for_each(|a| instance.remoting.forget(a));
        Ok(())
    }

    /// Ends the client in order: consumers finish and commit, producers wait for messages on their way (both within the drain timeout), groups
    /// are unregistered, connections closed. Every later call fails with [`Error::Closed`]. May be called from anywhere, and
    /// again.
    ///
    /// # Errors
    /// None so far; what cannot be told to a broker is logged.
    pub async fn shutdown(&self) -> Result<()> {
        let instance = self.instance();
        let deadline = crate::deadline::deadline(instance.config.drain_timeout);
        instance.shut_down(deadline).await;
        Ok(())
    }
}

/// Addresses of a list joined by `;`. Of an HTTP address what follows its last `/` counts, as in stock.
fn split_addrs(text: &str) -> Vec<String> {
    let one = |addr: &str| {
        let addr = addr.trim();
        let bare = addr.strip_prefix("http://").map(|rest| rest.rsplit('/').next().unwrap_or(rest));
        bare.unwrap_or(addr).to_owned()
    };
    text.split(';').map(one).filter(|addr| !addr.is_empty()).collect()
}

fn check_addrs(addrs: &[String]) -> Result<()> {
    if addrs.is_empty() {
        return Err(Error::NoNameServer);
    }
    for addr in addrs {
        let port = addr.rsplit_once(':').and_then(|(host, port)| {
            (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten()
        });
        if port.is_none() {
            return Err(Error::invalid(format!("name server \"{addr}\" is no host:port")));
        }
    }
    Ok(())
}

/// The address of the interface that leads to the first name server given as an address, else to anywhere. Nothing is sent.
fn local_ip(name_servers: &[String]) -> IpAddr {
    let server = name_servers.iter().find_map(|addr| addr.parse::<SocketAddr>().ok());
    // An address for documentation, which no host has; only the route towards it matters.
    let target = server.unwrap_or_else(|| SocketAddr::from(([203, 0, 113, 1], 9)));
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    found.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |addr| addr.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_given_as_stock_clients_take_them() {
        assert_eq!(split_addrs("a:1; b:2;;http://x/y/c:3"), ["a:1", "b:2", "c:3"]);
        assert!(check_addrs(&["[::1]:9876".to_owned()]).is_ok());
        for bad in ["host", "host:", ":1", "host:99999"] {
            assert!(check_addrs(&[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(matches!(check_addrs(&[]), Err(Error::NoNameServer)));
    }

    #[test]
    fn two_clients_never_have_the_same_id_by_default() {
        let (a, b) = (Client::builder(), Client::builder());
        assert_ne!(a.config.client_id(), b.config.client_id());
    }

    #[test]
    fn a_client_outside_a_runtime_is_an_error_and_no_panic() {
        let built = Client::builder().name_server("127.0.0.1:9876").build();
        assert!(matches!(built, Err(Error::NoRuntime)));
    }
}
