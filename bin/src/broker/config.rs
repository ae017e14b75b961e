//! What one shard's broker is told: the settings it needs, in its own units.

use std::net::SocketAddr;
use std::path::PathBuf;

use ringmq_engine::log::LogConfig;
use ringmq_engine::retention::RetentionRules;
use ringmq_engine::shard::{DERIVED_UNWRITTEN_BYTES_MAX, ShardConfig};
use ringmq_engine::state::delay::DelayLevels;

use super::ack::Level;
use crate::config::{Durability, HaSection, Machine, Role, Settings, ShardPlan};

/// Share of the machine's memory that stock takes as "in memory" (`accessMessageInMemoryMaxRatio`), percent.
const IN_MEMORY_PERCENT: u64 = 40;
/// Longest time that a pull may ask to wait, milliseconds. Stock clients ask for 15 to 20 s and give up after 30 s.
const SUSPEND_MS_MAX: i64 = 600_000;

/// The settings of one shard. Fixed while it runs, except what [`super::tunables`] holds.
#[derive(Debug, Clone)]
pub(super) struct BrokerConfig {
    pub(super) cluster: String,
    pub(super) name: String,
    pub(super) broker_id: u64,
    pub(super) role: Role,
    pub(super) ha: HaSection,
    /// Shards of this process.
    pub(super) shards: usize,
    /// Where slaves connect to.
    pub(super) ha_listen: SocketAddr,
    /// The configured HA address of this shard's master.
    pub(super) ha_master: Option<String>,
    pub(super) store_host: SocketAddr,
    /// Under which address it registers.
    pub(super) told: String,
    /// The address that slaves are told, `HOST:PORT`.
    pub(super) told_ha: String,
    pub(super) listen: SocketAddr,
    pub(super) vip: SocketAddr,
    pub(super) store_dir: PathBuf,
    pub(super) namesrv_addrs: Vec<String>,
    pub(super) region: String,
    pub(super) trace_on: bool,
    pub(super) level: Level,
    pub(super) ack_timeout_ms: i64,
    pub(super) message_bytes_max: usize,
    /// Unwritten bytes from which on only connections without any of them may add some.
    pub(super) unwritten_shared: u64,
    pub(super) pull_messages_max: usize,
    pub(super) pull_bytes_max: usize,
    pub(super) suspend_ms_max: i64,
    /// Bytes behind the log's end that stock would hold in memory.
    pub(super) in_memory_bytes: u64,
    pub(super) auto_create_topics: bool,
    pub(super) auto_create_groups: bool,
    pub(super) new_groups_at_start: bool,
    pub(super) trace_topic: bool,
    pub(super) topic_queues: i32,
    pub(super) delay_levels: DelayLevels,
    /// The same as the configuration spells them.
    pub(super) delay_levels_text: String,
    pub(super) waiting_pulls_max: usize,
    /// What may be used: for recent blocks, blocks read back, unwritten bytes.
    pub(super) block_budget_bytes: u64,
    pub(super) cache_budget_bytes: u64,
    pub(super) unwritten_budget_bytes: u64,
    /// A send that is answered later than this after it was received is logged.
    pub(super) slow_send_us: i64,
    /// Topics that have metrics of their own.
    pub(super) metered_topics_max: usize,
    /// Pairs of a group and a topic whose lag is told.
    pub(super) metered_groups_max: usize,
    pub(super) retention: RetentionRules,
}

impl BrokerConfig {
    /// The settings of the shard `plan`.
    ///
    /// # Errors
    /// One line, when the delay levels do not parse.
    pub(super) fn new(settings: &Settings, plan: &ShardPlan) -> Result<Self, String> {
        let config = &settings.config;
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let delay_levels = DelayLevels::parse(&config.topics.delay_levels)
            .map_err(|error| format!("topics.delay_levels: {error}"))?;
        Ok(BrokerConfig {
            cluster: config.broker.cluster.clone(),
            name: plan.name.clone(),
            broker_id: config.broker.id,
            role: config.ha.role,
            ha: config.ha.clone(),
            ha_listen: plan.ha,
            ha_master: plan.ha_master.clone(),
            store_host: plan.advertise,
            told: plan.told.clone(),
            shards: settings.shards.len(),
            told_ha: plan.told_ha.clone(),
            listen: plan.listen,
            vip: plan.vip,
            store_dir: plan.store_dir.clone(),
            namesrv_addrs: settings.namesrv_addrs.clone(),
            region: config.topics.region.clone(),
            trace_on: true,
            level: match config.durability.level {
                Durability::Memory => Level::Memory,
                Durability::Write => Level::Write,
                Durability::Sync => Level::Sync,
            },
            ack_timeout_ms: config.durability.ack_timeout_ms as i64,
            message_bytes_max: bytes(config.limits.message_bytes),
            unwritten_shared: config.limits.unwritten_bytes / 4 * 3,
            pull_messages_max: bytes(config.limits.pull_messages),
            pull_bytes_max: bytes(config.limits.pull_bytes),
            suspend_ms_max: SUSPEND_MS_MAX,
            in_memory_bytes: memory_bytes(&settings.machine) / 100 * IN_MEMORY_PERCENT,
            auto_create_topics: config.topics.auto_create,
            auto_create_groups: config.topics.auto_create_groups,
            new_groups_at_start: config.topics.new_groups_at_start,
            trace_topic: config.topics.trace,
            topic_queues: config.topics.auto_create_queues as i32,
            delay_levels,
            delay_levels_text: config.topics.delay_levels.clone(),
            waiting_pulls_max: bytes(config.limits.waiting_pulls),
            block_budget_bytes: config.limits.block_budget_bytes,
            cache_budget_bytes: config.limits.cache_budget_bytes,
            unwritten_budget_bytes: config.limits.unwritten_bytes,
            slow_send_us: match config.log.slow_send_ms {
                0 => i64::MAX,
                ms => ms as i64 * 1_000,
            },
            metered_topics_max: bytes(config.metrics.topics_max),
            metered_groups_max: bytes(config.metrics.groups_max),
            retention: RetentionRules {
                hours: config.retention.hours,
                delete_when: config.retention.delete_when.clone(),
                aged_percent: percent(config.retention.disk_aged_percent),
                forced_percent: percent(config.retention.disk_forced_percent),
                full_percent: percent(config.retention.disk_full_percent),
                ..RetentionRules::default()
            },
        })
    }

    /// What the store is told.
    pub(super) fn shard(&self, settings: &Settings) -> ShardConfig {
        let config = &settings.config;
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let mut log = LogConfig::new(&self.store_dir);
        log.cache_bytes = config.limits.cache_budget_bytes;
        log.core.unwritten_bytes_max = config.limits.unwritten_bytes;
        log.core.hot_bytes_max = bytes(config.limits.block_budget_bytes);
        log.core.sync = self.level == Level::Sync;
        log.core.zero_ahead = config.durability.zero_ahead;
        ShardConfig {
            store: self.store_dir.clone(),
            shards: u32::try_from(settings.shards.len()).unwrap_or(u32::MAX),
            log,
            segment_bytes: config.store.segment_bytes,
            queue_file_bytes: config.store.consume_queue_file_bytes,
            index: config.store.index,
            index_slots: u32::try_from(config.store.index_slots).unwrap_or(u32::MAX),
            index_entries: u32::try_from(config.store.index_entries).unwrap_or(u32::MAX),
            message_bytes_max: self.message_bytes_max,
            derived_unwritten_bytes_max: DERIVED_UNWRITTEN_BYTES_MAX,
            delay_levels: self.delay_levels.clone(),
        }
    }
}

fn percent(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(100)
}

fn memory_bytes(machine: &Machine) -> u64 {
    machine.memory_bytes
}
