//! The command line: what each subcommand accepts. Nothing here opens a file or a socket.
//!
//! Every flag that changes a setting is an `Option`, so that "not given" stays distinguishable: the order of precedence is
//! command line, then environment, then the configuration file, then the default (see [`crate::config`]).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::admin::AdminArgs;
use crate::config::{Durability, LogFormat, Role};
use crate::log_tail::TailFrom;
use crate::quick::{SendArgs, TailArgs};

/// A message broker that stock RocketMQ clients use unmodified.
#[derive(Debug, Parser)]
#[command(
    name = "ringmq",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `ringmq`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A name server and a broker in one process, on the loopback address unless told otherwise.
    Standalone(StandaloneArgs),
    /// A broker: one reactor per shard, registered at the given name servers.
    Broker(BrokerArgs),
    /// A name server alone.
    Namesrv(NamesrvArgs),
    /// Send messages to a topic: each argument, or each line of standard input, is one.
    Send(SendArgs),
    /// Print a topic's messages as they come.
    Tail(TailArgs),
    /// Run every start-up check and measure the disk, then exit.
    Check(CheckArgs),
    /// Look at the log of a store, also of a stock broker's, or follow that of a running broker.
    Log(LogArgs),
    /// Ask running brokers how they are.
    Admin(AdminArgs),
}

/// Flags of every subcommand that reads the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML); see ringmq.example.toml for every key.
    #[arg(long, value_name = "FILE", env = "RINGMQ_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the configuration that would be used, as TOML, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Log lines as `text` or `json`.
    #[arg(long, value_name = "FORMAT", env = "RINGMQ_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Log level, or directives such as `info,ringmq_net=debug`.
    #[arg(long, value_name = "LEVEL", env = "RINGMQ_LOG")]
    pub log_level: Option<String>,
    /// Address and port of /metrics, /healthz and /readyz, such as 127.0.0.1:5557 (default: not served).
    #[arg(long, value_name = "HOST:PORT", env = "RINGMQ_METRICS_LISTEN")]
    pub metrics_listen: Option<String>,
}

/// Flags of a process that holds shards.
#[derive(Debug, Clone, Default, Args)]
pub struct ShardArgs {
    /// Directory of the store (default ./ringmq-data).
    #[arg(long, value_name = "DIR", env = "RINGMQ_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address and port of shard 0; PORT-2 and PORT+1 are used too, and the same again for every further shard.
    #[arg(long, value_name = "HOST:PORT", env = "RINGMQ_LISTEN")]
    pub listen: Option<String>,
    /// Address that clients are told to connect to.
    #[arg(long, value_name = "HOST[:PORT]", env = "RINGMQ_ADVERTISE")]
    pub advertise: Option<String>,
    /// Shards of a store that does not exist yet; an existing store keeps its own count.
    #[arg(long, value_name = "N", env = "RINGMQ_SHARDS")]
    pub shards: Option<u32>,
    /// What an acknowledgement promises by default.
    #[arg(long, value_name = "LEVEL", env = "RINGMQ_DURABILITY")]
    pub durability: Option<Durability>,
}

/// Flags of `ringmq standalone`.
#[derive(Debug, Clone, Default, Args)]
pub struct StandaloneArgs {
    /// Flags about the configuration itself.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Flags about the shards.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Address and port of the name server (default 127.0.0.1:9876).
    #[arg(long, value_name = "HOST:PORT", env = "RINGMQ_NAMESRV_LISTEN")]
    pub namesrv_listen: Option<String>,
    /// Broker name (default: the host name).
    #[arg(long, value_name = "NAME", env = "RINGMQ_NAME")]
    pub name: Option<String>,
    /// Cluster name (default DefaultCluster).
    #[arg(long, value_name = "NAME", env = "RINGMQ_CLUSTER")]
    pub cluster: Option<String>,
}

/// Flags of `ringmq broker`.
#[derive(Debug, Clone, Default, Args)]
pub struct BrokerArgs {
    /// Flags about the configuration itself.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Flags about the shards.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Broker name (default: the host name).
    #[arg(long, value_name = "NAME", env = "RINGMQ_NAME")]
    pub name: Option<String>,
    /// Cluster name (default DefaultCluster).
    #[arg(long, value_name = "NAME", env = "RINGMQ_CLUSTER")]
    pub cluster: Option<String>,
    /// Name servers to register at, joined by `;`.
    #[arg(long, value_name = "HOST:PORT[;HOST:PORT]", env = "NAMESRV_ADDR")]
    pub namesrv: Option<String>,
    /// Broker id: 0 for a master.
    #[arg(long, value_name = "ID", env = "RINGMQ_BROKER_ID")]
    pub broker_id: Option<u64>,
    /// Role of this broker in its group.
    #[arg(long, value_name = "ROLE", env = "RINGMQ_ROLE")]
    pub role: Option<Role>,
}

/// Flags of `ringmq namesrv`.
#[derive(Debug, Clone, Default, Args)]
pub struct NamesrvArgs {
    /// Flags about the configuration itself.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Address and port to listen on (default 0.0.0.0:9876).
    #[arg(long, value_name = "HOST:PORT", env = "RINGMQ_NAMESRV_LISTEN")]
    pub listen: Option<String>,
    /// Directory of the persisted key-value configuration (default ./ringmq-data/namesrv).
    #[arg(long, value_name = "DIR", env = "RINGMQ_NAMESRV_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `ringmq check`.
#[derive(Debug, Clone, Default, Args)]
pub struct CheckArgs {
    /// Flags about the configuration itself.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Flags about the shards.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Do not measure the disk, only check.
    #[arg(long)]
    pub no_measure: bool,
}

/// Flags of `ringmq log`.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LogCommand,
}

/// The subcommands of `ringmq log`. None changes anything.
#[derive(Debug, Clone, Subcommand)]
pub enum LogCommand {
    /// Print the records of one store, one a line; other findings begin with `#`.
    Dump(LogDumpArgs),
    /// Check every record, block, queue unit and index entry of a store and of the shards below it; exit status 1 if something is wrong.
    Verify(LogVerifyArgs),
    /// Print the records of a running RingMQ broker's shard as they are stored, over its HA port; no replica, and nobody waits for it.
    Tail(LogTailArgs),
}

/// Flags of `ringmq log tail`.
#[derive(Debug, Clone, Args)]
pub struct LogTailArgs {
    /// The shard's HA port: the broker's port + 1.
    #[arg(value_name = "HOST:PORT")]
    pub addr: String,
    /// Where to begin: `oldest`, `now`, or the physical offset of a record.
    #[arg(long, value_name = "WHERE", default_value = "now")]
    pub from: TailFrom,
    /// Stop after this many records.
    #[arg(long, value_name = "N", conflicts_with = "raw")]
    pub count: Option<u64>,
    /// Only records of this topic.
    #[arg(long, value_name = "NAME", conflicts_with = "raw")]
    pub topic: Option<String>,
    /// Print bodies too, as text.
    #[arg(long, conflicts_with = "raw")]
    pub body: bool,
    /// Write the log's bytes as they are stored instead: a copy of the log from there on.
    #[arg(long)]
    pub raw: bool,
}

/// Flags of `ringmq log dump`.
#[derive(Debug, Clone, Default, Args)]
pub struct LogDumpArgs {
    /// Directory of the store: --data-dir of the broker, or DATA_DIR/shards/K.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Begin at this physical offset.
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: u64,
    /// Stop after this many records.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Only records of this topic.
    #[arg(long, value_name = "NAME")]
    pub topic: Option<String>,
    /// Print bodies too, as text.
    #[arg(long)]
    pub body: bool,
}

/// Flags of `ringmq log verify`.
#[derive(Debug, Clone, Default, Args)]
pub struct LogVerifyArgs {
    /// Directory of the store.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
