//! The name server: brokers register, clients ask where topics live.
//!
//! ```text
//!   broker --103 every 30 s--> service ─> table: topics, groups, clusters, live brokers   (memory only)
//!   client --105 every 30 s-->    │
//!   admin  --100, 205, 318 -->    └────> saver thread: kvConfig.json, wipedBrokers.json, namesrv.properties
//! ```
//!
//! Name servers know nothing of one another: every broker registers with each. [`table`] is the route table as a pure
//! data structure, [`service`] dispatches requests to [`brokers`], [`routes`] and [`settings`], [`saver`] writes files off
//! the reactor. It behaves like stock 4.9.8 except where a comment says otherwise:
//! - a wiped write permission outlives registrations and restarts (stock forgets it);
//! - a broker that unregisters takes only its own address along (stock: whoever has its id);
//! - an unknown request is answered with code 3 (stock: silence);
//! - a configuration key that can't be changed is refused (stock: ignored until a restart).

pub mod answer;
pub mod brokers;
pub mod kv;
pub mod routes;
pub mod saver;
pub mod service;
pub mod settings;
pub mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
pub mod wiped;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_lite::future::or;
use glommio::timer::sleep;
use ringmq_engine::state::json_file::{self, ConfigFileError};
use ringmq_net::body::properties;
use ringmq_net::client::off_reactor;
use ringmq_net::server::{PortKind, Server, ServerConfig, ServerError};
use thiserror::Error;

use kv::KvTable;
use saver::Saver;
use service::NameService;
use table::RouteTable;

/// The key-value configuration, in stock's format.
const KV_FILE: &str = "kvConfig.json";
/// Broker names without write permission.
const WIPED_FILE: &str = "wipedBrokers.json";
/// What UPDATE_NAMESRV_CONFIG changed.
const PROPERTIES_FILE: &str = "namesrv.properties";

/// A connection without traffic is closed after this long; brokers register every 30 s, clients poll every 30 s.
const IDLE: Duration = Duration::from_secs(120);
/// Between two looks for brokers that stopped registering.
const EXPIRY_SCAN: Duration = Duration::from_secs(5);

/// What a name server is told when it starts.
#[derive(Clone, Debug)]
pub struct NamesrvConfig {
    /// Where to listen; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Where its files are; made if it is missing.
    pub data_dir: PathBuf,
    /// Connections open at once.
    pub conns_max: usize,
    /// Memory of what connections have buffered, over all of them.
    pub held_bytes_max: usize,
}

impl NamesrvConfig {
    /// With 20,000 connections, and 128 MiB for their buffers.
    pub fn new(listen: SocketAddr, data_dir: &Path) -> NamesrvConfig {
        NamesrvConfig {
            listen,
            data_dir: data_dir.to_owned(),
            conns_max: 20_000,
            held_bytes_max: 128 << 20,
        }
    }
}

/// Why a name server did not start.
#[derive(Debug, Error)]
pub enum NamesrvError {
    /// A file is there and can't be used.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// The port can't be opened.
    #[error(transparent)]
    Listen(#[from] ServerError),
    /// A helper thread could not be started.
    #[error("cannot start a thread to read the name server's files: {0}; check the thread limit")]
    Thread(std::io::Error),
}

/// A running name server. It belongs to the reactor that started it.
pub struct Namesrv {
    server: Rc<Server>,
    saver: Rc<Saver>,
    tasks: Vec<glommio::Task<()>>,
}

impl Namesrv {
    /// Reads the files, opens the port and serves, in the task queue of the caller (best one with
    /// `Latency::Matters`). It listens when this returns.
    ///
    /// # Errors
    /// [`NamesrvError`]; nothing runs then.
    pub async fn start(config: NamesrvConfig) -> Result<Namesrv, NamesrvError> {
        let dir = config.data_dir.clone();
        let loaded = off_reactor("ringmq-ns-load", move || Files::load(&dir));
        let files = loaded.await.map_err(NamesrvError::Thread)??;
        let saver = Saver::new(&config.data_dir);
        let mut server_config = ServerConfig::new(config.listen);
        server_config.idle = IDLE;
        server_config.conns_max = config.conns_max;
        server_config.held_bytes_max = config.held_bytes_max;
        let table = RouteTable::new(files.wiped);
        let service =
            Rc::new(NameService::new(config, table, files.kv, files.order, saver.clone()));
        let server = Server::bind(server_config, service.clone())?;
        let tasks = vec![
            glommio::spawn_local(saver.clone().run()),
            glommio::spawn_local(expire(service, Rc::downgrade(&server))),
        ];
        if let Some(addr) = server.local_addr(PortKind::Main) {
            tracing::info!(%addr, "the name server listens");
        }
        Ok(Namesrv { server, saver, tasks })
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.server.local_addr(PortKind::Main)
    }

    /// The server, for its counters.
    pub fn server(&self) -> &Rc<Server> {
        &self.server
    }

    /// Stops: takes no more connections, finishes what has begun, saves, closes. Takes `deadline` plus a moment at
    /// most; a file write that hangs longer is abandoned.
    pub async fn drain(self, deadline: Duration) {
        self.server.stop_accepting();
        or(self.saver.idle(), async {
            sleep(deadline).await;
            tracing::error!("saving the name server's configuration hangs; stopping without it");
        })
        .await;
        self.server.drain(deadline).await;
        for task in self.tasks {
            task.cancel().await;
        }
    }
}

/// Runs a name server until `stop` completes, and drains it.
///
/// # Errors
/// As [`Namesrv::start`].
pub async fn run(
    config: NamesrvConfig,
    stop: impl Future<Output = ()>,
    deadline: Duration,
) -> Result<(), NamesrvError> {
    let namesrv = Namesrv::start(config).await?;
    stop.await;
    namesrv.drain(deadline).await;
    Ok(())
}

/// What the data directory holds.
struct Files {
    kv: KvTable,
    wiped: BTreeSet<String>,
    order: bool,
}

impl Files {
    /// Reads all files; one that is missing is empty, one that can't be used is an error. Blocks.
    fn load(dir: &Path) -> Result<Files, ConfigFileError> {
        let kv = json_file::load_to_serve(&dir.join(KV_FILE), KvTable::from_json)?;
        let wiped = json_file::load_to_serve(&dir.join(WIPED_FILE), wiped::from_json)?;
        let order = json_file::load_to_serve(&dir.join(PROPERTIES_FILE), |text| {
            let pairs = properties::parse(&String::from_utf8_lossy(text));
            let order = pairs.iter().rev().find(|(key, _)| key == settings::ORDER_MESSAGE_ENABLE);
            Ok::<_, String>(order.is_some_and(|(_, value)| value.eq_ignore_ascii_case("true")))
        })?;
        Ok(Files {
            kv: kv.into_value().unwrap_or_default(),
            wiped: wiped.into_value().unwrap_or_default(),
            order: order.into_value().unwrap_or_default(),
        })
    }
}

/// Removes brokers that stopped registering and closes their connections.
async fn expire(service: Rc<NameService>, server: Weak<Server>) {
    loop {
        sleep(EXPIRY_SCAN).await;
        let gone = service.table.borrow_mut().expire(service.now_ms());
        let Some(server) = server.upgrade() else { return };
        for (addr, conn) in gone {
            tracing::warn!(broker = addr, "a broker did not register for 120 s: removed");
            if let Some(conn) = server.conn(conn) {
                conn.close("its broker stopped registering");
            }
        }
    }
}
