//! The broker's configuration files: where they are, and reading them at the start.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use ringmq_engine::state::delay::DelayOffsets;
use ringmq_engine::state::groups::{self, GroupRules, GroupTable};
use ringmq_engine::state::json_file::{ConfigFileError, load_to_serve};
use ringmq_engine::state::offsets::{ENTRIES_MAX, OffsetTable};
use ringmq_engine::state::topics::{self, TopicRules, TopicTable};
use ringmq_engine::state::{DELAY_FILE, GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE};
use ringmq_engine::store::StoreLayout;

use super::{BrokerConfig, TopicSlot};

/// Where the files are.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) topics: PathBuf,
    pub(super) groups: PathBuf,
    pub(super) offsets: PathBuf,
    pub(super) delay: PathBuf,
}

impl Paths {
    pub(super) fn new(layout: &StoreLayout) -> Self {
        let dir = layout.config();
        Paths {
            topics: dir.join(TOPICS_FILE),
            groups: dir.join(GROUPS_FILE),
            offsets: dir.join(OFFSETS_FILE),
            delay: dir.join(DELAY_FILE),
        }
    }
}

/// What the files held.
pub(super) struct Tables {
    pub(super) topics: TopicTable<TopicSlot>,
    pub(super) groups: GroupTable,
    pub(super) offsets: OffsetTable,
    pub(super) delay: DelayOffsets,
    /// Files that are not there, nor their backups.
    pub(super) absent: Vec<PathBuf>,
}

impl Tables {
    /// Reads all files. Blocks; the broker does not serve yet.
    ///
    /// # Errors
    /// One line for a file that is there and cannot be used, nor its backup: an offset is never forgotten in silence.
    pub(super) fn load(paths: &Paths, config: &BrokerConfig, now_ms: i64) -> Result<Self, String> {
        let mut topics: TopicTable<TopicSlot> = TopicTable::new(
            TopicRules {
                auto_create: config.auto_create_topics,
                auto_create_queues: config.topic_queues,
                trace_topic: config.trace_topic,
                ..TopicRules::new(&config.cluster, &config.name)
            },
            now_ms,
        );
        let mut groups = GroupTable::new(
            GroupRules { auto_create: config.auto_create_groups, ..GroupRules::default() },
            now_ms,
        );
        let mut absent = Vec::new();
        if let Some(table) = load(&paths.topics, topics::parse_file, &mut absent)? {
            topics.load(&table);
        }
        if let Some(table) = load(&paths.groups, groups::parse_file, &mut absent)? {
            groups.load(table);
        }
        let parse_offsets = |bytes: &[u8]| OffsetTable::from_json(bytes, ENTRIES_MAX);
        let offsets = load(&paths.offsets, parse_offsets, &mut absent)?.unwrap_or_default();
        let delay = load(&paths.delay, DelayOffsets::from_json, &mut absent)?.unwrap_or_default();
        Ok(Tables { topics, groups, offsets, delay, absent })
    }
}

/// One file's content; notes it in `absent` if there is none.
fn load<T, E: Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
    absent: &mut Vec<PathBuf>,
) -> Result<Option<T>, String> {
    let loaded = load_to_serve(path, parse).map_err(|error: ConfigFileError| error.to_string())?;
    let value = loaded.into_value();
    if value.is_none() {
        absent.push(path.to_path_buf());
    }
    Ok(value)
}
