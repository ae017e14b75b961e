//! Which groups the master has, as this slave has taken them over, in memory and on disk: one that the master had and has no more was
//! deleted there, and what consumers committed of it here is not told any more. The slave's own table has also those that consumers
//! made here while the master was away.
//!
//! `<store>/ringmq/masters-groups` is the master's table as it was taken over last.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use ringmq_engine::state::groups;
use ringmq_engine::state::json_file;
use ringmq_engine::state::saver::ConfigSaver;
use ringmq_engine::store::{StoreLayout, sync_directory};
use ringmq_net::body::{Body, SubscriptionGroupTable};

const FILE: &str = "masters-groups";

/// See the module. Lives on its shard's reactor.
pub(super) struct MastersGroups {
    path: PathBuf,
    /// Of the master that was followed last, maybe before this start; `None` if that is not known.
    names: RefCell<Option<HashSet<String>>>,
    /// They were taken over since the start.
    taken: Cell<bool>,
}

impl MastersGroups {
    /// Reads the file of a store. Blocks; nothing is served yet. A file that cannot be used counts as none: then no group is known to be
    /// gone, and its progress is told.
    pub(super) fn load(layout: &StoreLayout) -> Self {
        let path = layout.ringmq().join(FILE);
        let names = match json_file::load(&path, groups::parse_file) {
            Ok(loaded) => loaded.into_value().map(|table| names_of(&table)),
            Err(error) => {
                tracing::warn!("which groups the master had is not known: {error}");
                None
            }
        };
        MastersGroups { path, names: RefCell::new(names), taken: Cell::new(false) }
    }

    /// Whether they were taken over since the start.
    pub(super) fn are_taken(&self) -> bool {
        self.taken.get()
    }

    /// Groups that the master had and has no more, by the table that it tells now.
    pub(super) fn gone(&self, table: &SubscriptionGroupTable) -> Vec<String> {
        let now = names_of(table);
        let before = self.names.borrow();
        before.iter().flatten().filter(|name| !now.contains(*name)).cloned().collect()
    }

    /// The master's groups are these. What follows from [those that are gone](Self::gone) must be durable.
    pub(super) fn take(&self, table: &SubscriptionGroupTable, saver: &ConfigSaver) {
        let now = names_of(table);
        self.taken.set(true);
        if self.names.borrow().as_ref() != Some(&now) {
            saver.save(&self.path, table.to_json());
            *self.names.borrow_mut() = Some(now);
        }
    }

    /// What a master had is of no meaning any more: this store was a master itself, or another broker's. Blocks.
    ///
    /// # Errors
    /// One line.
    pub(super) fn forget(&self) -> Result<(), String> {
        *self.names.borrow_mut() = None;
        // The backup first: alone it would count.
        let (backup, path) = (self.path.with_extension("bak"), &self.path);
        let mut removed = false;
        for path in [&backup, path] {
            match std::fs::remove_file(path) {
                Ok(()) => removed = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot remove {}: {error}", path.display())),
            }
        }
        match path.parent().filter(|_| removed) {
            None => Ok(()),
            Some(dir) => sync_directory(dir)
                .map_err(|error| format!("cannot fsync {}: {error}", dir.display())),
        }
    }
}

fn names_of(table: &SubscriptionGroupTable) -> HashSet<String> {
    table.groups.iter().map(|group| group.group_name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringmq_net::body::{DataVersion, SubscriptionGroupConfig};

    use super::*;

    fn table(names: &[&str]) -> SubscriptionGroupTable {
        let groups = names.iter().map(|name| SubscriptionGroupConfig::new(*name)).collect();
        SubscriptionGroupTable { data_version: DataVersion { timestamp: 1, counter: 1 }, groups }
    }

    #[test]
    fn a_group_that_the_master_had_before_this_start_and_has_no_more_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = StoreLayout::new(dir.path());
        std::fs::create_dir_all(layout.ringmq()).expect("a directory");
        let saver = ConfigSaver::start().expect("a thread");
        let groups = MastersGroups::load(&layout);
        assert!(groups.gone(&table(&["a"])).is_empty() && !groups.are_taken(), "nothing is known");
        groups.take(&table(&["a", "b"]), &saver);
        assert!(groups.are_taken());
        assert_eq!(groups.gone(&table(&["b", "c"])), ["a"]);
        saver.flush(Duration::from_secs(10)).expect("saved");
        let later = MastersGroups::load(&layout);
        assert!(!later.are_taken());
        assert_eq!(later.gone(&table(&["b", "c"])), ["a"]);
        later.take(&table(&["b", "c"]), &saver);
        assert!(later.gone(&table(&["b", "c"])).is_empty());
        saver.flush(Duration::from_secs(10)).expect("saved");
        // A master's own groups are no other's.
        later.forget().expect("removed");
        assert!(later.gone(&table(&[])).is_empty());
        let again = MastersGroups::load(&layout);
        assert!(again.gone(&table(&[])).is_empty(), "nor by the backup");
        again.forget().expect("nothing is there");
        std::fs::write(layout.ringmq().join(FILE), b"damaged").expect("a file");
        assert!(MastersGroups::load(&layout).gone(&table(&[])).is_empty());
    }
}
