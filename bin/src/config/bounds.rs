//! The ranges of all numeric keys, in one table, with what happens when a limit is reached. The README's table of limits is held
//! against it by a test.

use super::{Config, ConfigError};

/// One numeric key: its range and the answer it gives when reached.
pub struct Bound {
    /// `section.key`.
    pub key: &'static str,
    /// Smallest value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
    /// What a user meets when the limit is reached; empty for a key that is no limit.
    pub answer: &'static str,
    /// Reads the value out of a configuration.
    pub get: fn(&Config) -> u64,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HOUR_MS: u64 = 3_600_000;

macro_rules! bound {
    ($section:ident . $key:ident, $min:expr, $max:expr, $answer:expr) => {
        Bound {
            key: concat!(stringify!($section), ".", stringify!($key)),
            min: $min,
            max: $max,
            answer: $answer,
            get: |config| u64::from(config.$section.$key),
        }
    };
}

/// Every numeric key. Limits are per shard.
pub const BOUNDS: &[Bound] = &[
    bound!(limits.message_bytes, KIB, 14 * MIB, "the send is answered 13 (MESSAGE_ILLEGAL)"),
    bound!(limits.frame_bytes, 64 * KIB, 16 * MIB, "the connection is closed, with one log line"),
    bound!(
        limits.unwritten_bytes,
        MIB,
        4 * GIB,
        "the send is answered with a code on which a stock producer tries another broker"
    ),
    bound!(
        limits.block_budget_bytes,
        8 * MIB,
        64 * GIB,
        "older blocks leave memory and are read from disk"
    ),
    bound!(
        limits.cache_budget_bytes,
        4 * MIB,
        64 * GIB,
        "the least recently read blocks leave memory"
    ),
    bound!(
        limits.connections,
        16,
        1_000_000,
        "a further connection is closed at once, with one log line"
    ),
    bound!(
        limits.connection_out_bytes,
        64 * KIB,
        GIB,
        "the connection is not read until its client has received"
    ),
    bound!(
        limits.connections_bytes,
        MIB,
        64 * GIB,
        "the connections that hold the most for the longest are closed, with one log line"
    ),
    bound!(limits.connection_idle_ms, 1_000, 24 * HOUR_MS, "the connection is closed"),
    bound!(limits.gather_us, 0, 10_000, "what was gathered is handled; at 0 nothing is gathered"),
    bound!(
        limits.waiting_pulls,
        16,
        10_000_000,
        "the pull is answered at once, as if its wait had ended"
    ),
    bound!(limits.pull_messages, 1, 1_024, "the pull returns this many; the client asks again"),
    bound!(
        limits.pull_bytes,
        4 * KIB,
        14 * MIB,
        "the pull returns what fits (at least one message)"
    ),
    bound!(store.segment_bytes, MIB, 2 * GIB - 4 * KIB, ""),
    bound!(store.consume_queue_file_bytes, 20 * 200, GIB, ""),
    bound!(store.index_slots, 16, 50_000_000, ""),
    bound!(store.index_entries, 16, 100_000_000, ""),
    bound!(
        durability.ack_timeout_ms,
        10,
        60_000,
        "the send is answered 10 (FLUSH_DISK_TIMEOUT) with the level reached"
    ),
    bound!(topics.auto_create_queues, 1, 1_024, ""),
    bound!(retention.hours, 1, 24 * 3_650, ""),
    bound!(retention.disk_aged_percent, 10, 95, "aged segments are deleted at any hour"),
    bound!(
        retention.disk_forced_percent,
        10,
        99,
        "the oldest segments are deleted whatever their age"
    ),
    bound!(
        retention.disk_full_percent,
        10,
        99,
        "sends are answered 14 (SERVICE_NOT_AVAILABLE); reads go on"
    ),
    bound!(shards.port_stride, 4, 1_000, ""),
    bound!(ha.in_sync_replicas, 1, 16, "the send is answered 11 (SLAVE_NOT_AVAILABLE)"),
    bound!(ha.fall_behind_bytes, MIB, 1024 * GIB, "the send is answered 11 (SLAVE_NOT_AVAILABLE)"),
    bound!(ha.batch_bytes, 4 * KIB, 4 * MIB - 4 * KIB, ""),
    bound!(ha.heartbeat_ms, 100, 60_000, ""),
    bound!(ha.housekeeping_ms, 500, 600_000, "the connection to the master or slave is closed"),
    bound!(ha.metadata_ms, 100, 600_000, ""),
    bound!(ha.retry_max_ms, 100, 600_000, ""),
    bound!(log.queue_lines, 64, 1_000_000, "further lines are dropped and counted"),
    bound!(log.slow_send_ms, 0, 60_000, "one log line a second at most"),
    bound!(metrics.topics_max, 0, 100_000, "further topics are counted together as `(other)`"),
    bound!(metrics.groups_max, 0, 100_000, "further lags are not told, only how many there are"),
    bound!(metrics.unhealthy_ms, 200, 600_000, "/healthz answers 503"),
    bound!(drain.serve_ms, 0, 60_000, ""),
    bound!(drain.exit_ms, 500, 600_000, "the process exits with status 1"),
    bound!(reactor.stall_ms, 80, 60_000, "one warning in the log, with what the reactor was doing"),
];

/// Checks every number against its range, and the rules that involve several keys. The message names the key and the remedy.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    for bound in BOUNDS {
        let value = (bound.get)(config);
        if value < bound.min || value > bound.max {
            return Err(ConfigError::OutOfRange {
                key: bound.key,
                value,
                min: bound.min,
                max: bound.max,
            });
        }
    }
    let refuse = |key, remedy: String| Err(ConfigError::Refused { key, remedy });
    let limits = &config.limits;
    if limits.message_bytes + 64 * KIB > limits.frame_bytes {
        let least = limits.message_bytes + 64 * KIB;
        return refuse(
            "limits.frame_bytes",
            format!("a frame must hold a message and its header: set at least {least}"),
        );
    }
    if limits.frame_bytes.saturating_mul(2) > limits.connections_bytes {
        let least = limits.frame_bytes * 2;
        return refuse(
            "limits.connections_bytes",
            format!("it must hold two of limits.frame_bytes: set at least {least}"),
        );
    }
    if limits.message_bytes.saturating_mul(2) > config.store.segment_bytes {
        let least = limits.message_bytes * 2;
        return refuse(
            "store.segment_bytes",
            format!("a segment must hold two of limits.message_bytes: set at least {least}"),
        );
    }
    if !config.store.segment_bytes.is_multiple_of(4096) {
        let next = config.store.segment_bytes.next_multiple_of(4096);
        return refuse(
            "store.segment_bytes",
            format!("direct I/O needs a multiple of 4096: set {next}"),
        );
    }
    if limits.unwritten_bytes > limits.block_budget_bytes {
        return refuse(
            "limits.unwritten_bytes",
            format!(
                "unwritten bytes lie in blocks: set at most limits.block_budget_bytes ({})",
                limits.block_budget_bytes
            ),
        );
    }
    if let Some(hour) = config.retention.delete_when.iter().find(|hour| **hour > 23) {
        return refuse(
            "retention.delete_when",
            format!("{hour} is no hour of the day: give hours from 0 to 23"),
        );
    }
    let retention = &config.retention;
    if retention.disk_aged_percent > retention.disk_forced_percent
        || retention.disk_forced_percent > retention.disk_full_percent
    {
        return refuse(
            "retention.disk_forced_percent",
            "deletion must come before refusal: set disk_aged_percent <= disk_forced_percent <= disk_full_percent".to_owned(),
        );
    }
    if let Some(0) = config.shards.count {
        return refuse(
            "shards.count",
            "a broker has at least one shard: set 1 or more, or leave the key out".to_owned(),
        );
    }
    for (key, name) in [
        ("broker.name", config.broker.name.as_deref()),
        ("broker.cluster", Some(config.broker.cluster.as_str())),
    ] {
        if let Some(name) = name {
            check_name(key, name)?;
        }
    }
    Ok(())
}

/// A topic of the same name exists for each broker and cluster, and a topic's name has at most 127 characters.
fn check_name(key: &'static str, name: &str) -> Result<(), ConfigError> {
    let fits = (1..=100).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if fits {
        return Ok(());
    }
    let remedy = format!("{name:?} cannot be used: give 1 to 100 letters, digits, `_`, `-` or `.`");
    Err(ConfigError::Refused { key, remedy })
}
