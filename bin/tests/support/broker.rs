//! Brokers and name servers of both kinds, started on free loopback ports, ready when they serve and are registered.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use super::wire::{Conn, Reply, code, eventually};
use super::{peers, ports, process::Process};

/// Which broker the tests look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    RingMq,
    /// The stock broker, to prove the tests themselves: it has one shard, no levels and what else a test says of it.
    Stock497,
    /// The newest stock broker, which has a store of the same form and more beside it.
    Stock550,
}

impl Target {
    /// `RINGMQ_TEST_TARGET`: `ringmq` (default) or `stock`.
    pub fn from_env() -> Target {
        match std::env::var("RINGMQ_TEST_TARGET").as_deref() {
            Err(_) | Ok("ringmq" | "") => Target::RingMq,
            Ok("stock") => Target::Stock497,
            Ok(other) => panic!("RINGMQ_TEST_TARGET is ringmq or stock, not {other}"),
        }
    }

    pub fn is_stock(self) -> bool {
        self.version().is_some()
    }

    /// Which release, if it is stock.
    pub fn version(self) -> Option<&'static str> {
        match self {
            Target::RingMq => None,
            Target::Stock497 => Some("4.9.7"),
            Target::Stock550 => Some("5.5.0"),
        }
    }
}

/// How a broker is started.
#[derive(Debug, Clone)]
pub struct Options {
    pub name: String,
    /// Number of shards; a stock broker has one whatever this says.
    pub shards: u16,
    /// `memory`, `write` or `sync`; a stock broker flushes asynchronously, or synchronously at `sync`.
    pub durability: &'static str,
    /// Small segments let a short test roll many of them.
    pub segment_bytes: u64,
    /// More keys of the configuration file's section `store`; for RingMQ alone.
    pub store_keys: String,
    /// More of the configuration file, sections other than `broker` and `store`; for RingMQ alone.
    pub config: String,
    /// File operations that fail, in the words of `RINGMQ_TEST_FAULTS`; for RingMQ alone.
    pub faults: String,
    /// More of the process's environment; for RingMQ alone.
    pub env: Vec<(String, String)>,
    /// Name servers to register at before its own; for RingMQ alone.
    pub more_namesrvs: Vec<String>,
    /// More of the command line; for RingMQ alone.
    pub args: Vec<String>,
    /// Begins the command line: what is to start the program, where it is to run; for RingMQ alone.
    pub enter: Vec<String>,
    /// More keys of `broker.conf`; for stock alone.
    pub stock: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "broker-a".to_owned(),
            shards: 1,
            durability: "write",
            segment_bytes: 64 << 20,
            store_keys: String::new(),
            config: String::new(),
            faults: String::new(),
            env: Vec::new(),
            more_namesrvs: Vec::new(),
            args: Vec::new(),
            enter: Vec::new(),
            stock: Vec::new(),
        }
    }
}

const READY_MAX: Duration = Duration::from_secs(60);

/// A name server of its own process.
pub struct NameServer {
    pub address: SocketAddr,
    pub process: Process,
}

impl NameServer {
    pub fn start(target: Target, dir: &Path) -> NameServer {
        NameServer::start_at(target, dir, ports::single())
    }

    pub fn start_at(target: Target, dir: &Path, port: u16) -> NameServer {
        NameServer::start_on(target, dir, loopback(port))
    }

    /// The same at an address other than loopback, for RingMQ alone.
    pub fn start_on(target: Target, dir: &Path, address: SocketAddr) -> NameServer {
        std::fs::create_dir_all(dir).expect("a directory for the name server");
        let port = address.port();
        let command = match target.version() {
            Some(version) => peers::script(&["namesrv", version, &text(dir), &port.to_string()]),
            None => {
                let mut c = ringmq();
                c.args(["namesrv", "--listen", &address.to_string(), "--data-dir", &text(dir)]);
                c
            }
        };
        let mut process = Process::spawn("name server", command, &dir.join("process.log"));
        wait_for_port(&mut process, address);
        NameServer { address, process }
    }
}

/// A broker, with a name server of its own or at another one. It can be ended and started again at the same place.
pub struct Broker {
    pub target: Target,
    pub options: Options,
    /// Home of the process: logs, configuration; the store is below it.
    pub dir: PathBuf,
    /// Port of shard 0.
    pub port: u16,
    /// Where its ports are.
    pub host: IpAddr,
    /// Where it listens, if not there alone.
    pub listen: Option<IpAddr>,
    pub namesrv: SocketAddr,
    with_namesrv: bool,
    /// The name server beside a stock broker.
    stock_namesrv: Option<NameServer>,
    process: Option<Process>,
}

impl Broker {
    /// A broker with a name server: `ringmq standalone`, or the two stock programs. Ready when this returns.
    pub fn standalone(target: Target, dir: &Path, options: Options) -> Broker {
        let mut broker = Broker::new(target, dir, options, None);
        broker.start();
        broker
    }

    /// A broker at somebody else's name server: `ringmq broker`. Ready when this returns.
    pub fn joined(target: Target, dir: &Path, options: Options, namesrv: SocketAddr) -> Broker {
        let mut broker = Broker::new(target, dir, options, Some(namesrv));
        broker.start();
        broker
    }

    /// A broker that is not started yet.
    pub fn new(
        target: Target,
        dir: &Path,
        mut options: Options,
        namesrv: Option<SocketAddr>,
    ) -> Broker {
        if target.is_stock() {
            options.shards = 1;
        }
        let port = ports::broker_block(options.shards);
        std::fs::create_dir_all(dir).expect("a directory for the broker");
        Broker {
            target,
            port,
            host: Ipv4Addr::LOCALHOST.into(),
            listen: None,
            dir: dir.to_owned(),
            namesrv: namesrv.unwrap_or_else(|| loopback(ports::single())),
            with_namesrv: namesrv.is_none(),
            stock_namesrv: None,
            process: None,
            options,
        }
    }

    /// The directory of shard 0's store: what `--data-dir` or `storePathRootDir` names.
    pub fn store_dir(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The directory of a shard's store.
    pub fn shard_dir(&self, shard: u16) -> PathBuf {
        match shard {
            0 => self.store_dir(),
            k => self.store_dir().join("shards").join(k.to_string()),
        }
    }

    pub fn shards(&self) -> u16 {
        self.options.shards
    }

    pub fn address(&self, shard: u16) -> SocketAddr {
        SocketAddr::new(self.host, self.port + shard * ports::STRIDE)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.shards()).map(|k| self.address(k)).collect()
    }

    /// Under which name a shard is registered.
    pub fn shard_name(&self, shard: u16) -> String {
        match shard {
            0 => self.options.name.clone(),
            k => format!("shard{k:02}-{}", self.options.name),
        }
    }

    /// Which shard has that name.
    pub fn shard_of(&self, name: &str) -> Option<u16> {
        (0..self.shards()).find(|k| self.shard_name(*k) == name)
    }

    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the broker is running")
    }

    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|p| !p.has_ended())
    }

    /// Where its output goes.
    pub fn log(&self) -> PathBuf {
        self.dir.join("process.log")
    }

    /// Starts the program, without waiting for anything.
    pub fn spawn(&mut self) {
        assert!(!self.is_running(), "{} runs already", self.options.name);
        let command = match self.target.version() {
            Some(version) => {
                if self.with_namesrv && self.stock_namesrv.is_none() {
                    let dir = self.dir.join("namesrv");
                    self.stock_namesrv =
                        Some(NameServer::start_at(self.target, &dir, self.namesrv.port()));
                }
                self.stock_command(version)
            }
            None => self.ringmq_command(),
        };
        for address in self.addresses() {
            wait_for_no_listener(address);
        }
        self.process = Some(Process::spawn(&self.options.name, command, &self.log()));
    }

    fn stock_command(&self, version: &str) -> Command {
        let flush = if self.options.durability == "sync" { "SYNC_FLUSH" } else { "ASYNC_FLUSH" };
        let mut command = peers::script(&[
            "broker",
            version,
            &text(&self.dir),
            &self.port.to_string(),
            &self.namesrv.to_string(),
            &format!("brokerName={}", self.options.name),
            &format!("mappedFileSizeCommitLog={}", self.options.segment_bytes),
            &format!("flushDiskType={flush}"),
            // A test's directory is no disk of its own: how full that one is shall not matter.
            "diskMaxUsedSpaceRatio=95",
        ]);
        command.args(&self.options.stock);
        command
    }

    fn ringmq_command(&self) -> Command {
        let config = self.dir.join("ringmq.toml");
        let body = format!(
            "[broker]\nname = \"{}\"\nnamesrv = {:?}\n\n[store]\nsegment_bytes = {}\n{}\n\n{}\n\n{}",
            self.options.name,
            self.options.more_namesrvs,
            self.options.segment_bytes,
            self.options.store_keys,
            self.options.config,
            self.retention()
        );
        std::fs::write(&config, body).expect("the configuration file");
        let mut c = entered(&self.options.enter, ringmq());
        c.arg(if self.with_namesrv { "standalone" } else { "broker" });
        c.args(["--config", &text(&config)]);
        c.args(["--data-dir", &text(&self.store_dir())]);
        let listen = SocketAddr::new(self.listen.unwrap_or(self.host), self.port);
        c.args(["--listen", &listen.to_string()]);
        if self.listen.is_some() {
            c.args(["--advertise", &self.address(0).to_string()]);
        }
        c.args(["--shards", &self.shards().to_string()]);
        c.args(["--durability", self.options.durability]);
        c.env("RINGMQ_TEST_FAULTS", &self.options.faults);
        c.envs(self.options.env.iter().cloned());
        c.args(&self.options.args);
        if self.with_namesrv {
            c.args(["--namesrv-listen", &self.namesrv.to_string()]);
        } else {
            let mut namesrvs = self.options.more_namesrvs.clone();
            namesrvs.push(self.namesrv.to_string());
            c.args(["--namesrv", &namesrvs.join(";")]);
        }
        c
    }

    /// A test's directory is no disk of its own, unless it made one: how full that one is shall not matter.
    fn retention(&self) -> &'static str {
        let device = |path: &Path| std::fs::metadata(path).expect("a test's directory").dev();
        let shared = device(&self.dir) == device(Path::new(env!("CARGO_TARGET_TMPDIR")));
        if !shared || self.options.config.contains("[retention]") {
            return "";
        }
        "[retention]\ndisk_aged_percent = 95\ndisk_forced_percent = 98\ndisk_full_percent = 99\n"
    }

    /// Starts the program and waits until every shard serves and is registered. Returns how long that took.
    pub fn start(&mut self) -> Duration {
        let began = Instant::now();
        self.spawn();
        let addresses = self.addresses();
        let process = self.process.as_mut().expect("just started");
        wait_for_port(process, self.namesrv);
        for address in addresses {
            wait_for_port(process, address);
        }
        let took = began.elapsed();
        let names: Vec<String> =
            (0..self.shards()).map(|k| format!("\"{}\"", self.shard_name(k))).collect();
        let registered = eventually(READY_MAX, || {
            assert!(self.is_running(), "{} ended while it started", self.options.name);
            let mut conn = Conn::open(self.namesrv).ok()?;
            let reply = conn.call(code::GET_BROKER_CLUSTER_INFO, &[], &[]).ok()?;
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            names.iter().all(|n| body.contains(n)).then_some(())
        });
        assert!(
            registered.is_some(),
            "{names:?} not registered at {} in {READY_MAX:?}",
            self.namesrv
        );
        took
    }

    /// From the next start on, the other kind of program works on this store.
    pub fn switch(&mut self, target: Target) {
        assert!(!self.is_running(), "switching a running broker");
        self.target = target;
        self.stock_namesrv = None;
    }

    /// SIGKILL.
    pub fn sigkill(&mut self) {
        self.process().kill();
        self.process = None;
    }

    /// SIGTERM; gives how the process ended and after how long.
    pub fn terminate(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let process = self.process();
        process.signal(libc::SIGTERM);
        let status = process.wait(limit);
        let status = status.unwrap_or_else(|| panic!("still running {limit:?} after SIGTERM"));
        let took = began.elapsed();
        self.process = None;
        (status, took)
    }

    /// Makes a topic with `queues` queues on each shard and waits until the name server's route has it there.
    pub fn create_topic(&self, topic: &str, queues: u32) {
        for address in self.addresses() {
            create_topic_at(address, topic, queues);
        }
        let names: Vec<String> =
            (0..self.shards()).map(|k| format!("\"{}\"", self.shard_name(k))).collect();
        let routed = eventually(READY_MAX, || {
            let mut conn = Conn::open(self.namesrv).ok()?;
            let reply = conn.call(code::GET_ROUTE_BY_TOPIC, &[("topic", topic)], &[]).ok()?;
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            (reply.code == 0 && names.iter().all(|n| body.contains(n))).then_some(())
        });
        assert!(routed.is_some(), "the route of {topic} does not have {names:?}");
    }
}

/// Makes a topic on one shard, readable and writable.
pub fn create_topic_at(address: SocketAddr, topic: &str, queues: u32) {
    let mut conn = Conn::open(address).expect("a connection to the broker");
    let reply = ask_for_topic(&mut conn, topic, queues).expect("a reply to the topic's creation");
    assert_eq!(reply.code, 0, "creating {topic} at {address}: {:?}", reply.remark);
}

/// The request for it, and its answer.
pub fn ask_for_topic(conn: &mut Conn, topic: &str, queues: u32) -> std::io::Result<Reply> {
    let queues = queues.to_string();
    let ext = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", &queues),
        ("writeQueueNums", &queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    conn.call(code::UPDATE_AND_CREATE_TOPIC, &ext, &[])
}

/// The program of this build, or the one that `RINGMQ_TEST_PROGRAM` names: another build, for measuring before and after.
pub fn ringmq() -> Command {
    let other = std::env::var_os("RINGMQ_TEST_PROGRAM");
    let mut c = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_ringmq").into()));
    c.env_remove("NAMESRV_ADDR");
    c
}

/// A command, begun by another one that runs it elsewhere.
fn entered(enter: &[String], command: Command) -> Command {
    let Some((first, rest)) = enter.split_first() else { return command };
    let mut outer = Command::new(first);
    outer.args(rest).arg(command.get_program()).args(command.get_args());
    outer.env_remove("NAMESRV_ADDR");
    outer
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The kernel takes the listening sockets of a killed broker down some time after its process: who connects meanwhile is taken and then
/// reset, and would mistake it for the next one.
fn wait_for_no_listener(address: SocketAddr) {
    let timeout = Duration::from_secs(1);
    let gone = eventually(READY_MAX, || {
        std::net::TcpStream::connect_timeout(&address, timeout).is_err().then_some(())
    });
    assert!(gone.is_some(), "somebody listens on {address} before a broker is started there");
}

fn wait_for_port(process: &mut Process, address: SocketAddr) {
    let open = eventually(READY_MAX, || {
        if std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            return Some(());
        }
        assert!(!process.has_ended(), "{} ended before it served {address}", process.name());
        None
    });
    assert!(open.is_some(), "{} does not serve {address} after {READY_MAX:?}", process.name());
}
