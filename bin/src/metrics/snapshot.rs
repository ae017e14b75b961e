//! A shard's numbers at one moment, as its reactor hands them to the metrics thread.

use ringmq_engine::log::LogTimes;
use ringmq_engine::times::TimesSnapshot;
use ringmq_net::server::ServerStats;

/// Messages of a topic. Counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// Its name; `None` for all that have no series of their own.
    pub topic: Option<String>,
    /// Messages stored, and their bytes as stored.
    pub messages_in: u64,
    /// See `messages_in`.
    pub bytes_in: u64,
    /// Messages handed to consumers, and their bytes as stored.
    pub messages_out: u64,
    /// See `messages_out`.
    pub bytes_out: u64,
}

/// How far a consumer group is behind on a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lag {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Messages that are stored and not committed, over all queues.
    pub messages: u64,
    /// Store time of the oldest of them, milliseconds since 1970; `None` if it is not known (yet).
    pub oldest_ms: Option<i64>,
}

/// Messages that wait on one delay level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelayBacklog {
    /// The level.
    pub level: i32,
    /// How many.
    pub messages: u64,
}

/// What is connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// The server's own counters.
    pub server: ServerStats,
    /// Consumer groups with a client.
    pub consumer_groups: u64,
    /// Producer groups with a client.
    pub producer_groups: u64,
}

/// A slave that is connected to a master.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlaveCounts {
    /// Its address and port.
    pub addr: String,
    /// Whether it gets the log.
    pub streaming: bool,
    /// Bytes of the visible log that it has not reported to hold.
    pub lag_bytes: u64,
    /// How long it has not held all of it; 0 while it does.
    pub lag_seconds: f64,
    /// Another slave has its id, and counts in its place.
    pub second: bool,
}

/// How a slave follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FollowerCounts {
    /// Whether its log agrees with its master's.
    pub following: bool,
    /// Bytes of its master's log, as far as it has heard of, that it does not have.
    pub lag_bytes: u64,
    /// Bytes received. A counter.
    pub received_bytes: u64,
}

/// All numbers of one shard. Counters count since the start.
#[derive(Debug, Clone, Default)]
pub struct ShardSnapshot {
    /// The wall clock, milliseconds since 1970.
    pub now_ms: i64,
    /// Messages by topic.
    pub topics: Vec<TopicCounts>,
    /// Topics that exist.
    pub topics_known: u64,
    /// Pulls that found something, and that did not.
    pub pulls_found: u64,
    /// See `pulls_found`.
    pub pulls_empty: u64,
    /// Answers to stored sends: level, code, count.
    pub send_answers: Vec<(&'static str, i32, u64)>,
    /// From the receive to the answer of a send that waited for its level.
    pub send_times: TimesSnapshot,
    /// Sends that took longer than `log.slow_send_ms`.
    pub slow_sends: u64,
    /// Sends that wait for their level.
    pub waiting_sends: u64,
    /// Pulls that wait for a message.
    pub waiting_pulls: u64,
    /// Requests that wait for the device or a tool.
    pub slow_requests: u64,
    /// Reads of pulls that memory did not serve.
    pub cold_pull_times: TimesSnapshot,
    /// Requests by code, and those whose code nobody serves.
    pub requests: Vec<(i32, u64)>,
    /// See `requests`.
    pub requests_other: u64,
    /// Answers that were no success, by response code.
    pub refusals: Vec<(i32, u64)>,
    /// What was refused for the broker's own sake, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Device operations of the log.
    pub log_times: LogTimes,
    /// Bytes of its writes, padding included.
    pub log_written_bytes: u64,
    /// Appended and not yet written.
    pub unwritten_bytes: u64,
    /// Written and not yet flushed.
    pub unflushed_bytes: u64,
    /// Zeros that lie ready ahead of the log's end; `None` if zeroing is off.
    pub frontier_bytes: Option<u64>,
    /// First and last visible physical offset.
    pub log_min_offset: u64,
    /// See `log_min_offset`.
    pub log_max_offset: u64,
    /// Visible and not yet in consume queues and index.
    pub dispatch_behind_bytes: u64,
    /// Files of the log.
    pub segments: u64,
    /// The log takes no writes any more.
    pub log_failed: bool,
    /// Free and total bytes of the disk, as last looked at; `None` before the first look.
    pub disk: Option<(u64, u64)>,
    /// The disk is too full for messages.
    pub disk_full: bool,
    /// Memory of recent blocks.
    pub hot_bytes: u64,
    /// Memory of blocks read back.
    pub cache_bytes: u64,
    /// Look-ups there that were served.
    pub cache_hits: u64,
    /// Look-ups that went to the device.
    pub cache_misses: u64,
    /// Budgets: recent blocks, blocks read back, unwritten bytes.
    pub block_budget_bytes: u64,
    /// See `block_budget_bytes`.
    pub cache_budget_bytes: u64,
    /// See `block_budget_bytes`.
    pub unwritten_budget_bytes: u64,
    /// Connections and clients.
    pub connections: ConnectionCounts,
    /// Each name server and whether this shard is registered there.
    pub namesrvs: Vec<(String, bool)>,
    /// Lags that are told.
    pub lags: Vec<Lag>,
    /// Pairs of a group and a topic that are not told.
    pub lags_left_out: u64,
    /// Delayed messages by level.
    pub delays: Vec<DelayBacklog>,
    /// How long opening the store took, and how much of the log was read for it.
    pub open_seconds: f64,
    /// See `open_seconds`.
    pub scanned_bytes: u64,
    /// Whether the store had not been closed.
    pub unclean: bool,
    /// The slaves that are connected.
    pub slaves: Vec<SlaveCounts>,
    /// Physical offset up to which as many slaves as a synchronous send waits for hold the log.
    pub replicated_offset: u64,
    /// What it is as a slave; `None` for a master.
    pub follower: Option<FollowerCounts>,
}
