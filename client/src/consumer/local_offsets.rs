//! Progress in a file, for broadcasting consumers: the file of the Java client, `offsets.json` with `offsets.json.bak` beside it.
//!
//! ```text
//!  <dir>/<group>/offsets.json       now
//!                offsets.json.bak   before
//!                offsets.json.tmp   being written
//!                lock               held by the process that uses it
//! ```
//! A file is written beside the present one, flushed, and renamed over it: at any moment there is a whole one.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringmq_net::body::{Body, MessageQueue, ResetOffset};

use crate::error::{Error, Result};

/// A table of offsets in a directory of its own.
#[derive(Debug)]
pub(crate) struct LocalOffsets {
    dir: PathBuf,
    table: BTreeMap<MessageQueue, i64>,
    /// `None` when the directory was given back.
    lock: Option<File>,
}

impl LocalOffsets {
    /// Makes the directory if needed, takes it for this process, reads what is there.
    ///
    /// # Errors
    /// [`Error::Offsets`] when the directory cannot be written, when somebody else has it, or when both files are broken.
    pub(crate) fn open(dir: &Path) -> Result<LocalOffsets> {
        let failed = |cause: io::Error| offsets_error(dir, cause);
        fs::create_dir_all(dir).map_err(failed)?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"));
        let lock = lock.map_err(failed)?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => failed(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another consumer has it: give each its own directory",
            )),
            TryLockError::Error(e) => failed(e),
        })?;
        Ok(LocalOffsets { table: load(dir)?, dir: dir.to_owned(), lock: Some(lock) })
    }

    /// Gives the directory back. Nothing is written any more.
    pub(crate) fn close(&mut self) {
        self.lock = None;
    }

    pub(crate) fn get(&self, queue: &MessageQueue) -> Option<i64> {
        self.table.get(queue).copied()
    }

    /// Puts these offsets over the others and writes all, if any is new.
    ///
    /// # Errors
    /// [`Error::Offsets`]; the file is then the one before. [`Error::Closed`] when the directory was given back.
    pub(crate) fn save(&mut self, offsets: &[(MessageQueue, i64)]) -> Result<()> {
        let mut table = self.table.clone();
        table.extend(offsets.iter().cloned());
        if table == self.table {
            return Ok(());
        }
        if self.lock.is_none() {
            return Err(Error::Closed("the consumer"));
        }
        replace(&self.dir, &table).map_err(|cause| offsets_error(&self.dir, cause))?;
        self.table = table;
        Ok(())
    }
}

fn offsets_error(dir: &Path, cause: io::Error) -> Error {
    Error::Offsets { path: dir.display().to_string(), cause: Arc::new(cause) }
}

fn path(dir: &Path, suffix: &str) -> PathBuf {
    dir.join(format!("offsets.json{suffix}"))
}

fn load(dir: &Path) -> Result<BTreeMap<MessageQueue, i64>> {
    match read(&path(dir, "")) {
        Ok(Some(table)) => return Ok(table),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "offsets.json is not readable, the one before it is taken");
        }
    }
    match read(&path(dir, ".bak")) {
        Ok(table) => Ok(table.unwrap_or_default()),
        Err(cause) => Err(offsets_error(dir, cause)),
    }
}

/// `None` for a file that is missing or empty.
fn read(path: &Path) -> io::Result<Option<BTreeMap<MessageQueue, i64>>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    let table = ResetOffset::from_json(&bytes).map_err(|e| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
    })?;
    Ok(Some(table.offsets.into_iter().collect()))
}

fn replace(dir: &Path, table: &BTreeMap<MessageQueue, i64>) -> io::Result<()> {
    let rows = table.iter().map(|(queue, offset)| (queue.clone(), *offset)).collect();
    let body = ResetOffset { offsets: rows }.to_json();
    let (now, tmp) = (path(dir, ""), path(dir, ".tmp"));
    let mut file = File::create(&tmp)?;
    file.write_all(&body)?;
    file.sync_all()?;
    // A second name for the present file; then the rename gives its first name to the new one.
    if now.exists() {
        let bak = path(dir, ".bak");
        match fs::remove_file(&bak) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        if fs::hard_link(&now, &bak).is_err() {
            // Some file systems have no hard links.
            fs::copy(&now, &bak)?;
        }
    }
    fs::rename(&tmp, &now)?;
    // The names last only when the directory does; systems without such a flush say so, and that is all right.
    if let Ok(dir) = File::open(dir) {
        let _ = dir.sync_all();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(id: i32) -> MessageQueue {
        MessageQueue::new("T", "broker-a", id)
    }

    /// As the Java client's JSON library prints it.
    const JAVA: &str = "{\n\t\"offsetTable\":{{\n\t\t\t\"brokerName\":\"broker-a\",\n\t\t\t\"queueId\":0,\n\t\t\t\"topic\":\"T\"\n\t\t}:12,{\n\t\t\t\"brokerName\":\"broker-a\",\n\t\t\t\"queueId\":1,\n\t\t\t\"topic\":\"T\"\n\t\t}:7\n\t}\n}";

    #[test]
    fn the_file_of_a_java_client_is_read_and_written_in_its_form() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path(), ""), JAVA).unwrap();
        let mut offsets = LocalOffsets::open(dir.path()).unwrap();
        assert_eq!([offsets.get(&queue(0)), offsets.get(&queue(1))], [Some(12), Some(7)]);
        offsets.save(&[(queue(1), 9)]).unwrap();
        let text = fs::read_to_string(path(dir.path(), "")).unwrap();
        assert_eq!(
            text,
            r#"{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12,{"brokerName":"broker-a","queueId":1,"topic":"T"}:9}}"#
        );
        assert_eq!(fs::read_to_string(path(dir.path(), ".bak")).unwrap(), JAVA);
    }

    #[test]
    fn a_broken_or_missing_file_gives_way_to_the_one_before() {
        for broken in [Some(""), Some("{\"offsetTable\":{{"), None] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(path(dir.path(), ".bak"), JAVA).unwrap();
            if let Some(text) = broken {
                fs::write(path(dir.path(), ""), text).unwrap();
            }
            assert_eq!(LocalOffsets::open(dir.path()).unwrap().get(&queue(0)), Some(12));
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path(), ".bak"), "nonsense").unwrap();
        assert!(matches!(LocalOffsets::open(dir.path()), Err(Error::Offsets { .. })));
    }

    #[test]
    fn progress_survives_and_an_interrupted_write_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut offsets = LocalOffsets::open(dir.path()).unwrap();
        offsets.save(&[(queue(0), 1)]).unwrap();
        offsets.save(&[(queue(0), 2), (queue(3), 5)]).unwrap();
        drop(offsets);
        fs::write(path(dir.path(), ".tmp"), "half of a fi").unwrap();
        let offsets = LocalOffsets::open(dir.path()).unwrap();
        assert_eq!([offsets.get(&queue(0)), offsets.get(&queue(3))], [Some(2), Some(5)]);
    }

    #[test]
    fn a_directory_that_is_taken_or_cannot_be_made_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let _first = LocalOffsets::open(dir.path()).unwrap();
        let error = LocalOffsets::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another consumer"), "{error}");
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(LocalOffsets::open(&file.join("sub")), Err(Error::Offsets { .. })));
    }
}
