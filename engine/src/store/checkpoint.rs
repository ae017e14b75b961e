//! The `checkpoint` file: up to which store time things are durable.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{StoreError, write_replacing};
use crate::log::{FileOp, guard};

/// Length of the file.
pub const CHECKPOINT_BYTES: usize = 4096;

/// How much earlier than the stored times recovery starts (stock 4.9.8), in milliseconds.
const MARGIN_MS: i64 = 3000;

/// Store timestamps in milliseconds since 1970; 0 = nothing known. The file is 4096 bytes: three big endian
/// 64-bit integers, then zeros (stock 4.9.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Records stored up to then are durable in the commit log.
    pub physic: i64,
    /// Their consume queue units are durable.
    pub logics: i64,
    /// Index files that end up to then are complete and durable. Moves only when an index file is full.
    pub index: i64,
}

impl Checkpoint {
    /// Reads the first bytes of the file; what is missing counts as 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let field = |at: usize| {
            let bytes = bytes.get(at..).and_then(|tail| tail.first_chunk::<8>());
            bytes.map_or(0, |bytes| i64::from_be_bytes(*bytes))
        };
        Self { physic: field(0), logics: field(8), index: field(16) }
    }

    /// The whole file.
    pub fn encode(&self) -> [u8; CHECKPOINT_BYTES] {
        let mut bytes = [0; CHECKPOINT_BYTES];
        bytes[..8].copy_from_slice(&self.physic.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.logics.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Records stored before this time need no redo: the lesser of log and queues, less stock's margin of 3 s.
    pub fn recovery_timestamp(&self) -> i64 {
        (self.physic.min(self.logics) - MARGIN_MS).max(0)
    }

    /// The file's content; `None` if there is no file.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn load(path: &Path) -> Result<Option<Self>, StoreError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(Self::decode(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", path, error)),
        }
    }

    /// Writes and syncs the file. In place when it has its full length already: the fields lie in one sector, so a crash
    /// leaves the old or the new ones.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), StoreError> {
        let whole = |len: u64| len == CHECKPOINT_BYTES as u64;
        if !std::fs::metadata(path).is_ok_and(|meta| whole(meta.len())) {
            return write_replacing(path, &self.encode());
        }
        let write = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(path)?;
            guard(FileOp::Write, path, || file.write_all_at(&self.encode(), 0))?;
            guard(FileOp::Sync, path, || file.sync_data())
        };
        write().map_err(|error| StoreError::io("write", path, error))
    }
}
