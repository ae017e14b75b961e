//! Where things are below a store's root (stock 4.9.8, and our own folder beside it).

use std::path::{Path, PathBuf};

use super::{StoreError, create_dir_durable};

/// The paths of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLayout {
    root: PathBuf,
    commit_log: PathBuf,
}

impl StoreLayout {
    /// With the commit log below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { commit_log: root.join("commitlog"), root }
    }

    /// With the commit log elsewhere (stock's `storePathCommitLog`).
    pub fn with_commit_log(mut self, commit_log: impl Into<PathBuf>) -> Self {
        self.commit_log = commit_log.into();
        self
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Commit log segments, and nothing else: any other entry keeps a stock broker from starting.
    pub fn commit_log(&self) -> &Path {
        &self.commit_log
    }

    /// `consumequeue/<topic>/<queueId>/` below it.
    pub fn consume_queues(&self) -> PathBuf {
        self.root.join("consumequeue")
    }

    /// Index files.
    pub fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    /// The JSON files of the broker's state.
    pub fn config(&self) -> PathBuf {
        self.root.join("config")
    }

    /// See [`super::Checkpoint`].
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// See [`super::AbortMarker`].
    pub fn abort(&self) -> PathBuf {
        self.root.join("abort")
    }

    /// See [`super::StoreLock`].
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Everything that stock does not know.
    pub fn ringmq(&self) -> PathBuf {
        self.root.join("ringmq")
    }

    /// Consume queue and index files before they are renamed into place; emptied at load.
    pub fn prepare_derived(&self) -> PathBuf {
        self.ringmq().join("prepare-derived")
    }

    /// See [`super::DerivedMark`].
    pub fn derived_mark(&self) -> PathBuf {
        self.ringmq().join("derived")
    }

    /// Makes all directories, durably. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn create(&self) -> Result<(), StoreError> {
        let directories = [
            self.commit_log.clone(),
            self.consume_queues(),
            self.index(),
            self.config(),
            self.prepare_derived(),
        ];
        for dir in directories {
            create_dir_durable(&dir).map_err(|error| StoreError::io("create", &dir, error))?;
        }
        Ok(())
    }
}
