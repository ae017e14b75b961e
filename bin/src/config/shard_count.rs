//! How many shards a store has: decided once, when the store is created, and kept in `<data_dir>/ringmq/shards.json`.
//!
//! A queue lives on the shard that was told to clients when it was made. A count that followed the number of cores would strand
//! queues on the first smaller machine, so the count never changes by itself.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ConfigError, Machine};

/// Version of the file; a higher one is refused, there is no lower one yet.
const VERSION: u32 = 1;

/// Shards of one process at most.
pub(super) const SHARDS_MAX: u32 = 256;

/// Where a shard count comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountSource {
    /// The store exists and says so.
    Recorded,
    /// The store exists and a stock broker made it.
    StockStore,
    /// A new store, with the count that was configured.
    Configured,
    /// A new store, with the default for this machine.
    Machine,
}

/// The number of shards and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardCount {
    /// At least 1.
    pub count: u32,
    /// Where it comes from.
    pub source: CountSource,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    shards: u32,
}

fn record_path(data_dir: &Path) -> PathBuf {
    data_dir.join("ringmq").join("shards.json")
}

impl ShardCount {
    /// Decides the count for the store in `data_dir`, which need not exist. Reads only.
    pub fn decide(
        data_dir: &Path,
        configured: Option<u32>,
        machine: &Machine,
    ) -> Result<ShardCount, ConfigError> {
        if let Some(wanted) = configured.filter(|wanted| *wanted > SHARDS_MAX) {
            return Err(ConfigError::OutOfRange {
                key: "shards.count",
                value: wanted.into(),
                min: 1,
                max: SHARDS_MAX.into(),
            });
        }
        let existing = match read_record(data_dir)? {
            Some(count) => Some(ShardCount { count, source: CountSource::Recorded }),
            None if has_shard_dirs(data_dir) => {
                let path = record_path(data_dir);
                let why = "the file is missing although <data_dir>/shards exists: restore it from a backup of the store".to_owned();
                return Err(ConfigError::ShardRecord { path, why });
            }
            None if data_dir.join("commitlog").is_dir() => {
                Some(ShardCount { count: 1, source: CountSource::StockStore })
            }
            None => None,
        };
        match (existing, configured) {
            (Some(existing), Some(wanted)) if wanted != existing.count => {
                Err(ConfigError::ShardCount {
                    data_dir: data_dir.to_owned(),
                    stored: existing.count,
                    wanted,
                })
            }
            (Some(existing), _) => Ok(existing),
            (None, Some(wanted)) => {
                Ok(ShardCount { count: wanted, source: CountSource::Configured })
            }
            (None, None) => {
                Ok(ShardCount { count: machine.default_shards(), source: CountSource::Machine })
            }
        }
    }

    /// Writes the count into the store, durably, unless it is there. Call it before the first shard writes: a crash before it
    /// leaves a store without shards, which decides anew. Of two processes that race for a new directory one fails here.
    pub fn record(&self, data_dir: &Path) -> Result<(), ConfigError> {
        if self.source == CountSource::Recorded {
            return Ok(());
        }
        let path = record_path(data_dir);
        self.write_new(data_dir, &path)
            .map_err(|error| ConfigError::ShardRecord { path, why: error.to_string() })
    }

    fn write_new(&self, data_dir: &Path, path: &Path) -> io::Result<()> {
        let dir = data_dir.join("ringmq");
        fs::create_dir_all(&dir)?;
        let temporary = dir.join(format!("shards.json.{}.tmp", std::process::id()));
        let mut file = File::create(&temporary)?;
        let text = serde_json::to_string_pretty(&Record { version: VERSION, shards: self.count })?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // A link, unlike a rename, never replaces a count that another process has just written.
        let linked = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary)?;
        linked?;
        File::open(&dir)?.sync_all()?;
        File::open(data_dir)?.sync_all()
    }
}

fn read_record(data_dir: &Path) -> Result<Option<u32>, ConfigError> {
    let path = record_path(data_dir);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(ConfigError::ShardRecord { path, why: error.to_string() }),
    };
    let record: Record = match serde_json::from_str(&text) {
        Ok(record) => record,
        Err(error) => {
            let why = format!("{error}: restore the file from a backup of the store");
            return Err(ConfigError::ShardRecord { path, why });
        }
    };
    if record.version > VERSION {
        let why = format!(
            "version {} was written by a newer RingMQ: run that release on this store",
            record.version
        );
        return Err(ConfigError::ShardRecord { path, why });
    }
    if record.shards == 0 || record.shards > SHARDS_MAX {
        let why = format!(
            "{} shards are not possible: restore the file from a backup of the store",
            record.shards
        );
        return Err(ConfigError::ShardRecord { path, why });
    }
    Ok(Some(record.shards))
}

fn has_shard_dirs(data_dir: &Path) -> bool {
    fs::read_dir(data_dir.join("shards")).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { cpus: vec![0, 1, 2, 3], cpu_quota: None, memory_bytes: 8 << 30 }
    }

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("temporary directory")
    }

    #[test]
    fn a_new_store_takes_the_machine_and_then_keeps_its_count() {
        let dir = dir();
        let first = ShardCount::decide(dir.path(), None, &machine()).expect("decide");
        assert_eq!(first, ShardCount { count: 4, source: CountSource::Machine });
        first.record(dir.path()).expect("record");
        let smaller = Machine { cpus: vec![0], ..machine() };
        let again = ShardCount::decide(dir.path(), None, &smaller).expect("decide");
        assert_eq!(again, ShardCount { count: 4, source: CountSource::Recorded });
    }

    #[test]
    fn a_count_written_meanwhile_is_never_replaced() {
        let dir = dir();
        let ours = ShardCount::decide(dir.path(), Some(2), &machine()).expect("decide");
        ShardCount::decide(dir.path(), Some(3), &machine())
            .expect("decide")
            .record(dir.path())
            .expect("record");
        assert!(ours.record(dir.path()).is_err());
        assert_eq!(ShardCount::decide(dir.path(), None, &machine()).expect("decide").count, 3);
    }

    #[test]
    fn another_count_for_an_existing_store_is_refused_by_number() {
        let dir = dir();
        ShardCount::decide(dir.path(), Some(2), &machine())
            .expect("decide")
            .record(dir.path())
            .expect("record");
        assert!(ShardCount::decide(dir.path(), Some(2), &machine()).is_ok());
        let error =
            ShardCount::decide(dir.path(), Some(3), &machine()).expect_err("refused").to_string();
        assert!(error.contains("2 shard") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_stock_brokers_store_has_one_shard() {
        let dir = dir();
        fs::create_dir(dir.path().join("commitlog")).expect("create");
        let count = ShardCount::decide(dir.path(), None, &machine()).expect("decide");
        assert_eq!(count, ShardCount { count: 1, source: CountSource::StockStore });
        assert!(ShardCount::decide(dir.path(), Some(4), &machine()).is_err());
    }

    #[test]
    fn a_lost_newer_or_damaged_record_is_named_and_never_replaced() {
        let dir = dir();
        fs::create_dir_all(dir.path().join("shards/1")).expect("create");
        let message =
            || ShardCount::decide(dir.path(), None, &machine()).expect_err("refused").to_string();
        assert!(message().contains("missing"), "{}", message());
        fs::create_dir_all(dir.path().join("ringmq")).expect("create");
        for (text, part) in [
            (r#"{"version":2,"shards":2}"#, "newer"),
            (r#"{"version":1,"shards":0}"#, "not possible"),
            ("{", "backup"),
            ("", "backup"),
        ] {
            fs::write(record_path(dir.path()), text).expect("write");
            assert!(message().contains(part) && message().contains("shards.json"), "{}", message());
        }
    }
}
