//! The files of `config/`: how one is written and read so that a crash never loses it, and the thread
//! that does it off the reactor.
//!
//! ```text
//!   write X.tmp, fsync    X: old   X.bak: older      a crash here changes nothing
//!   X.bak := link to X    X: old   X.bak: old
//!   rename X.tmp to X     X: new   X.bak: old
//!   fsync the directory                              now it is durable
//! ```
//!
//! Unlike stock 4.9.8's sequence there is no moment without an `X`; what a stock broker finds is the
//! same. Reading takes `X`, else `X.bak`. Files that exist and can't be used are an error: an empty table
//! in place of an unreadable one would be saved over what could still be repaired.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::log::{FileOp, guard, guarded_sync};
use crate::store::sync_directory;

/// The largest configuration file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// What went wrong with a configuration file.
#[derive(Debug, Error)]
pub enum ConfigFileError {
    /// An operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Neither the file nor its backup can be used.
    #[error(
        "{} cannot be used ({why}), nor its .bak ({backup_why}): repair one of them, or move both away \
         to start with an empty table",
        path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What is wrong with its backup.
        backup_why: String,
    },
}

/// What [`load`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded<T> {
    /// Neither the file nor a backup exists.
    Absent,
    /// The file.
    File(T),
    /// The file is missing or unusable, as `why` says; this is the backup's content. Log it.
    Backup {
        /// The backup's content.
        value: T,
        /// What is wrong with the file itself.
        why: String,
    },
}

impl<T> Loaded<T> {
    /// The content, wherever it came from.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::File(value) | Self::Backup { value, .. } => Some(value),
        }
    }
}

/// Reads `path`, or its `.bak` if it is missing, empty or `parse` refuses it. Changes nothing.
pub fn load<T, E: Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<Loaded<T>, ConfigFileError> {
    let why = match read(path, &parse)? {
        Ok(value) => return Ok(Loaded::File(value)),
        Err(why) => why,
    };
    match (read(&with_suffix(path, ".bak"), &parse)?, why) {
        (Ok(value), why) => {
            Ok(Loaded::Backup { value, why: why.unwrap_or_else(|| "it is missing".to_owned()) })
        }
        (Err(None), None) => Ok(Loaded::Absent),
        (Err(backup_why), why) => {
            let text = |why: Option<String>| why.unwrap_or_else(|| "it is missing".to_owned());
            let (why, backup_why) = (text(why), text(backup_why));
            Err(ConfigFileError::Unusable { path: path.to_owned(), why, backup_why })
        }
    }
}

/// As [`load`], for a broker about to serve: if the backup had to be used, an unusable `path` is moved
/// to `<path>.unusable` first, so that the next write doesn't make it the backup.
pub fn load_to_serve<T, E: Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<Loaded<T>, ConfigFileError> {
    let loaded = load(path, parse)?;
    if let Loaded::Backup { why, .. } = &loaded {
        tracing::warn!(file = %path.display(), %why, "configuration read from its .bak");
        let aside = with_suffix(path, ".unusable");
        match fs::rename(path, &aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("move aside", path)(e));
            }
            _ => {}
        }
    }
    Ok(loaded)
}

/// `Err(None)`: the file is missing. `Err(Some(why))`: it is there and unusable.
fn read<T, E: Display>(
    path: &Path,
    parse: &impl Fn(&[u8]) -> Result<T, E>,
) -> Result<Result<T, Option<String>>, ConfigFileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Err(None)),
        Err(e) => return Err(io_error("open", path)(e)),
    };
    let mut text = Vec::new();
    let limit = FILE_BYTES_MAX + 1;
    let bytes = file.take(limit).read_to_end(&mut text).map_err(io_error("read", path))?;
    Ok(match bytes as u64 {
        0 => Err(Some("it is empty".to_owned())),
        n if n == limit => Err(Some(format!("it is larger than {FILE_BYTES_MAX} bytes"))),
        _ => parse(&text).map_err(|e| Some(e.to_string())),
    })
}

/// Writes `path` by the sequence above; when it returns, the content is durable.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), ConfigFileError> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if !dir.is_dir() {
        fs::create_dir_all(dir).map_err(io_error("create the directory", dir))?;
    }
    let tmp = with_suffix(path, ".tmp");
    let mut file = File::create(&tmp).map_err(io_error("create", &tmp))?;
    guard(FileOp::Write, &tmp, || file.write_all(bytes)).map_err(io_error("write", &tmp))?;
    guarded_sync(&file, &tmp).map_err(io_error("fsync", &tmp))?;
    drop(file);
    keep_backup(path)?;
    guard(FileOp::Rename, &tmp, || fs::rename(&tmp, path)).map_err(io_error("rename", &tmp))?;
    sync_directory(dir).map_err(io_error("fsync the directory", dir))
}

fn keep_backup(path: &Path) -> Result<(), ConfigFileError> {
    let bak = with_suffix(path, ".bak");
    if !path.exists() {
        return Ok(());
    }
    match fs::remove_file(&bak) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &bak)(e)),
        _ => {}
    }
    if fs::hard_link(path, &bak).is_ok() {
        return Ok(());
    }
    // No hard links on this file system: for a moment only the backup exists, which load() can take.
    fs::rename(path, &bak).map_err(io_error("rename", path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConfigFileError {
    let path = path.to_owned();
    move |source| ConfigFileError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Result<String, String> {
        let text = String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string())?;
        if text.starts_with('{') { Ok(text) } else { Err("it is no object".to_owned()) }
    }

    #[test]
    fn a_write_keeps_the_content_before_as_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/topics.json");
        assert_eq!(load(&path, text).unwrap(), Loaded::Absent);
        write(&path, b"{1}").unwrap();
        assert!(!with_suffix(&path, ".bak").exists());
        write(&path, b"{2}").unwrap();
        write(&path, b"{3}").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{3}");
        assert_eq!(fs::read(with_suffix(&path, ".bak")).unwrap(), b"{2}");
        assert_eq!(load(&path, text).unwrap(), Loaded::File("{3}".to_owned()));
        assert!(!with_suffix(&path, ".tmp").exists());
    }

    #[test]
    fn a_missing_empty_or_broken_file_is_read_from_its_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        fs::write(with_suffix(&path, ".bak"), b"{old}").unwrap();
        for broken in [None, Some(&b""[..]), Some(b"<xml>"), Some(b"{\xff")] {
            match broken {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => assert!(!path.exists()),
            }
            assert_eq!(load(&path, text).unwrap().into_value().as_deref(), Some("{old}"));
        }
    }

    #[test]
    fn an_unusable_file_never_loads_as_an_empty_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let bak = with_suffix(&path, ".bak");
        for (file, backup) in [
            (Some(""), None),
            (Some("<"), None),
            (Some("<"), Some("")),
            (None, Some("")),
            (None, Some("<")),
        ] {
            for (path, content) in [(&path, file), (&bak, backup)] {
                let _ = fs::remove_file(path);
                if let Some(content) = content {
                    fs::write(path, content).unwrap();
                }
            }
            let error = load(&path, text).unwrap_err().to_string();
            assert!(error.contains("x.json cannot be used"), "{error}");
        }
    }

    #[test]
    fn the_good_backup_is_not_replaced_by_the_broken_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        fs::write(&path, b"<broken").unwrap();
        fs::write(with_suffix(&path, ".bak"), b"{good}").unwrap();
        let loaded = load_to_serve(&path, text).unwrap();
        assert_eq!(loaded.into_value().as_deref(), Some("{good}"));
        write(&path, b"{new}").unwrap();
        assert_eq!(fs::read(with_suffix(&path, ".bak")).unwrap(), b"{good}");
        assert_eq!(fs::read(with_suffix(&path, ".unusable")).unwrap(), b"<broken");
    }

    #[test]
    fn every_stop_inside_a_write_leaves_a_readable_table() {
        // The states of the directory between any two steps of the sequence, and of stock's.
        for (file, backup, tmp, expected) in [
            (Some("{1}"), Some("{0}"), Some("{2"), "{1}"),
            (Some("{1}"), None, Some("{2}"), "{1}"),
            (Some("{1}"), Some("{1}"), Some("{2}"), "{1}"),
            (None, Some("{1}"), Some("{2}"), "{1}"),
            (Some("{2}"), Some("{1}"), None, "{2}"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.json");
            for (suffix, content) in [("", file), (".bak", backup), (".tmp", tmp)] {
                if let Some(content) = content {
                    fs::write(with_suffix(&path, suffix), content).unwrap();
                }
            }
            let loaded = load_to_serve(&path, text).unwrap();
            assert_eq!(loaded.into_value().as_deref(), Some(expected));
            write(&path, b"{9}").unwrap();
            assert_eq!(load(&path, text).unwrap(), Loaded::File("{9}".to_owned()));
        }
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        write(&path, b"{1}").unwrap();
        fs::create_dir(with_suffix(&path, ".tmp")).unwrap();
        let error = write(&path, b"{2}").unwrap_err().to_string();
        assert!(error.contains("x.json.tmp"), "{error}");
        assert_eq!(load(&path, text).unwrap(), Loaded::File("{1}".to_owned()));
    }
}
