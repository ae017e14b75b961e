//! The configuration as the file spells it: sections, keys, types and defaults.
//!
//! `ringmq.example.toml` documents every key; a test holds the two together. A key whose default depends on the machine or on
//! the subcommand is an `Option` here and is filled in by [`super::Settings`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The whole configuration: one field per section of the file. Sizes are bytes, times milliseconds unless the key says hours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Who this broker is and where it listens.
    pub broker: BrokerSection,
    /// Where and in what units data is kept.
    pub store: StoreSection,
    /// What an acknowledgement promises.
    pub durability: DurabilitySection,
    /// Topics and consumer groups.
    pub topics: TopicsSection,
    /// Every bound and budget.
    pub limits: LimitsSection,
    /// When old segments are deleted.
    pub retention: RetentionSection,
    /// How many shards, and how their ports are laid out.
    pub shards: ShardsSection,
    /// The name server.
    pub namesrv: NamesrvSection,
    /// Master and slaves.
    pub ha: HaSection,
    /// Log lines.
    pub log: LogSection,
    /// What can be watched over HTTP.
    pub metrics: MetricsSection,
    /// How the process stops.
    pub drain: DrainSection,
    /// The executors.
    pub reactor: ReactorSection,
}

/// `[broker]`: identity and addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerSection {
    /// Broker name of shard 0; the host name if absent, as stock does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Cluster name.
    pub cluster: String,
    /// Broker id: 0 is a master.
    pub id: u64,
    /// Address and port of shard 0; `0.0.0.0:10911` if absent, `127.0.0.1:10911` for `standalone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// `HOST[:PORT]` that clients are told; derived from `listen` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Name servers to register at.
    pub namesrv: Vec<String>,
}

impl Default for BrokerSection {
    fn default() -> Self {
        BrokerSection {
            name: None,
            cluster: "DefaultCluster".to_owned(),
            id: 0,
            listen: None,
            advertise: None,
            namesrv: Vec::new(),
        }
    }
}

/// `[store]`: the files of each shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreSection {
    /// Store of shard 0; the others live below it.
    pub data_dir: PathBuf,
    /// Bytes of one commit log segment.
    pub segment_bytes: u64,
    /// Bytes of one consume queue file; rounded up to a multiple of the 20-byte unit.
    pub consume_queue_file_bytes: u64,
    /// Whether messages are indexed by key.
    pub index: bool,
    /// Hash slots of one index file.
    pub index_slots: u64,
    /// Entries of one index file.
    pub index_entries: u64,
}

impl Default for StoreSection {
    fn default() -> Self {
        StoreSection {
            data_dir: PathBuf::from("./ringmq-data"),
            segment_bytes: 1 << 30,
            consume_queue_file_bytes: 6_000_000,
            index: true,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
        }
    }
}

/// What an acknowledgement of a send promises.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In this process's buffers: lost when the process is killed.
    Memory,
    /// Written into blocks that exist on the device: survives SIGKILL and a kernel crash.
    Write,
    /// The device's cache is flushed too: survives a power loss.
    Sync,
}

impl Durability {
    /// As the file and the answers to sends spell it.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Write => "write",
            Durability::Sync => "sync",
        }
    }
}

/// `[durability]`: acknowledgement levels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DurabilitySection {
    /// Level of an ordinary send.
    pub level: Durability,
    /// How long a send waits for its level before it is answered with the level reached.
    pub ack_timeout_ms: u64,
    /// Whether space is zeroed ahead of the log, which the `write` level needs to survive a kernel crash.
    pub zero_ahead: bool,
}

impl Default for DurabilitySection {
    fn default() -> Self {
        DurabilitySection { level: Durability::Write, ack_timeout_ms: 2_500, zero_ahead: true }
    }
}

/// `[topics]`: topics, groups and delays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicsSection {
    /// Whether a send to an unknown topic creates it.
    pub auto_create: bool,
    /// Queues of the template topic, and so of a created topic at most.
    pub auto_create_queues: u32,
    /// Whether an unknown consumer group is created.
    pub auto_create_groups: bool,
    /// Whether a group without progress begins at a queue's first message while that is recent.
    pub new_groups_at_start: bool,
    /// Whether the topic of message traces exists from the start.
    pub trace: bool,
    /// The delay levels, in RocketMQ's notation.
    pub delay_levels: String,
    /// Region told to clients with each send.
    pub region: String,
}

impl Default for TopicsSection {
    fn default() -> Self {
        TopicsSection {
            auto_create: true,
            auto_create_queues: 8,
            auto_create_groups: true,
            new_groups_at_start: true,
            trace: false,
            delay_levels: "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".to_owned(),
            region: "DefaultRegion".to_owned(),
        }
    }
}

/// `[limits]`: every bound and budget. Each is per shard; [`super::BOUNDS`] states ranges and what happens when one is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsSection {
    /// Bytes of one message: body plus properties.
    pub message_bytes: u64,
    /// Bytes of one frame, length word included.
    pub frame_bytes: u64,
    /// Bytes appended and not yet written.
    pub unwritten_bytes: u64,
    /// Memory for recent blocks of the log.
    pub block_budget_bytes: u64,
    /// Memory for older blocks read back from disk.
    pub cache_budget_bytes: u64,
    /// Open client connections.
    pub connections: u64,
    /// Reply bytes queued for one connection.
    pub connection_out_bytes: u64,
    /// Memory of what all connections have buffered.
    pub connections_bytes: u64,
    /// Silence after which a connection is closed.
    pub connection_idle_ms: u64,
    /// Time that requests of a busy shard wait at most to be handled together.
    pub gather_us: u64,
    /// Pull requests that wait for a message.
    pub waiting_pulls: u64,
    /// Messages of one pull.
    pub pull_messages: u64,
    /// Bytes of one pull (a single larger message is still returned).
    pub pull_bytes: u64,
}

impl Default for LimitsSection {
    fn default() -> Self {
        LimitsSection {
            message_bytes: 4 << 20,
            frame_bytes: 16 << 20,
            unwritten_bytes: 64 << 20,
            block_budget_bytes: 64 << 20,
            cache_budget_bytes: 64 << 20,
            connections: 20_000,
            connection_out_bytes: 4 << 20,
            connections_bytes: 128 << 20,
            connection_idle_ms: 120_000,
            gather_us: 1_000,
            waiting_pulls: 100_000,
            pull_messages: 32,
            pull_bytes: 256 << 10,
        }
    }
}

/// `[retention]`: deletion of old segments, by the stock rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetentionSection {
    /// Age after which a segment may be deleted.
    pub hours: u64,
    /// Local hours of the day at which aged segments are deleted.
    pub delete_when: Vec<u8>,
    /// Disk use above which aged segments are deleted at any hour.
    pub disk_aged_percent: u64,
    /// Disk use above which segments are deleted whatever their age.
    pub disk_forced_percent: u64,
    /// Disk use above which sends are refused.
    pub disk_full_percent: u64,
}

impl Default for RetentionSection {
    fn default() -> Self {
        RetentionSection {
            hours: 72,
            delete_when: vec![4],
            disk_aged_percent: 75,
            disk_forced_percent: 85,
            disk_full_percent: 90,
        }
    }
}

/// `[shards]`: how many, and their ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardsSection {
    /// Shards of a new store; one per core with 512 MiB each if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Distance between the ports of neighbouring shards.
    pub port_stride: u16,
}

impl Default for ShardsSection {
    fn default() -> Self {
        ShardsSection { count: None, port_stride: 20 }
    }
}

/// `[namesrv]`: the name server of `standalone` and `namesrv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamesrvSection {
    /// Address and port; `0.0.0.0:9876` if absent, `127.0.0.1:9876` for `standalone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Directory of the key-value configuration; `<store.data_dir>/namesrv` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`: the program's own log lines (not the commit log).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSection {
    /// Shape of a line.
    pub format: LogFormat,
    /// Level, or directives such as `info,ringmq_net=debug`.
    pub level: String,
    /// Lines that may wait for the writer thread; more are dropped and counted.
    pub queue_lines: u64,
    /// A send that is answered later than this is logged with where the time went; 0 is never.
    pub slow_send_ms: u64,
}

impl Default for LogSection {
    fn default() -> Self {
        LogSection {
            format: LogFormat::Text,
            level: "info".to_owned(),
            queue_lines: 8_192,
            slow_send_ms: 500,
        }
    }
}

/// `[metrics]`: the HTTP port for those who watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricsSection {
    /// Address and port of `/metrics`, `/healthz` and `/readyz`; no port is opened if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Topics of each shard that have series of their own; all others together are `other`.
    pub topics_max: u64,
    /// Pairs of a consumer group and a topic on each shard whose lag is told.
    pub groups_max: u64,
    /// `/healthz` fails when a reactor has not turned for this long.
    pub unhealthy_ms: u64,
}

impl Default for MetricsSection {
    fn default() -> Self {
        MetricsSection { listen: None, topics_max: 500, groups_max: 500, unhealthy_ms: 5_000 }
    }
}

/// `[drain]`: how the process stops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainSection {
    /// How long a stopping broker serves on after it left the name servers.
    pub serve_ms: u64,
    /// After this long a stop that has not finished is ended by force.
    pub exit_ms: u64,
}

impl Default for DrainSection {
    fn default() -> Self {
        DrainSection { serve_ms: 1_000, exit_ms: 5_000 }
    }
}

/// The role of a broker within its group, by RocketMQ's names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A master that acknowledges without waiting for a slave.
    #[default]
    AsyncMaster,
    /// A master that waits for a slave.
    SyncMaster,
    /// A slave.
    Slave,
}

impl Role {
    /// As stock's `brokerRole` spells it.
    pub fn stock_name(self) -> &'static str {
        match self {
            Role::AsyncMaster => "ASYNC_MASTER",
            Role::SyncMaster => "SYNC_MASTER",
            Role::Slave => "SLAVE",
        }
    }
}

/// What a slave's report of its progress means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlaveAck {
    /// Written to its disk.
    Write,
    /// Flushed.
    Sync,
}

/// Where an empty slave begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlaveStart {
    /// With all that its master has.
    Oldest,
    /// With its master's last segment.
    Newest,
}

/// `[ha]`: master and slaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HaSection {
    /// The role of all shards.
    pub role: Role,
    /// HA address of the master of shard 0, if the name server is not to be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// `HOST[:PORT]` of shard 0's HA port that slaves are told, if it is not that of `broker.advertise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Slaves that a synchronous master waits for.
    pub in_sync_replicas: u32,
    /// Bytes behind from which on a synchronous master does not wait for its slaves.
    pub fall_behind_bytes: u64,
    /// What a slave reports.
    pub ack: SlaveAck,
    /// Where an empty slave begins.
    pub start: SlaveStart,
    /// Whether a master starts although it lost what was acknowledged because slaves held it.
    pub give_up_acknowledged: bool,
    /// Most bytes of a frame to a slave.
    pub batch_bytes: u64,
    /// Something is sent at least this often.
    pub heartbeat_ms: u64,
    /// A peer that is silent for longer is given up.
    pub housekeeping_ms: u64,
    /// How often a slave asks for topics, groups and offsets.
    pub metadata_ms: u64,
    /// Longest wait before a slave tries to reach its master again.
    pub retry_max_ms: u64,
}

impl Default for HaSection {
    fn default() -> Self {
        HaSection {
            role: Role::AsyncMaster,
            master: None,
            advertise: None,
            in_sync_replicas: 1,
            fall_behind_bytes: 256 << 20,
            ack: SlaveAck::Write,
            start: SlaveStart::Newest,
            give_up_acknowledged: false,
            batch_bytes: 32 << 10,
            heartbeat_ms: 5_000,
            housekeeping_ms: 20_000,
            metadata_ms: 10_000,
            retry_max_ms: 5_000,
        }
    }
}

/// `[reactor]`: the executors and their watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReactorSection {
    /// A reactor that has not turned for this long is logged with what it was doing.
    pub stall_ms: u64,
}

impl Default for ReactorSection {
    fn default() -> Self {
        ReactorSection { stall_ms: 100 }
    }
}
