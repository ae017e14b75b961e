//! What a run had acknowledged, in a file: so that another run, after a restart or days later, can tell whether it is still there.
//!
//! JSON: the run's number (which is in every stamp and key), the topic, the longest body, and for each connection the numbers of its
//! acknowledged messages, as stretches of a first number and a length.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::ledger::{Bits, ByConnection};

/// Version of the format.
const VERSION: u32 = 1;
/// Longest body.
const SIZE_MAX: usize = 16 << 20;

/// A run's acknowledged messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Names the run.
    pub run_id: u64,
    /// Where its messages are.
    pub topic: String,
    /// Its longest body.
    pub size_max: usize,
    /// Whether its order can be judged.
    pub order: bool,
    /// What was acknowledged.
    pub acknowledged: ByConnection,
}

#[derive(Serialize, Deserialize)]
struct File {
    ringmq_journal: u32,
    run: String,
    topic: String,
    size_max: usize,
    order: bool,
    connections: Vec<Vec<(u64, u64)>>,
}

impl Journal {
    /// Writes it.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), LoadError> {
        let file = File {
            ringmq_journal: VERSION,
            run: format!("{:016X}", self.run_id),
            topic: self.topic.clone(),
            size_max: self.size_max,
            order: self.order,
            connections: self.acknowledged.all().iter().map(Bits::ranges).collect(),
        };
        let written = serde_json::to_vec(&file)
            .map_err(std::io::Error::from)
            .and_then(|bytes| std::fs::write(path, bytes));
        written.map_err(|source| LoadError::File {
            what: "write the journal",
            path: path.to_owned(),
            source,
        })
    }

    /// Reads one.
    ///
    /// # Errors
    /// The file can't be read or is none.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = std::fs::read(path).map_err(|source| LoadError::File {
            what: "read the journal",
            path: path.to_owned(),
            source,
        })?;
        let wrong = |why: String| LoadError::Journal { path: path.to_owned(), why };
        let file: File =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if file.ringmq_journal != VERSION || file.size_max > SIZE_MAX {
            return Err(wrong(format!(
                "version {} or its longest body is not known",
                file.ringmq_journal
            )));
        }
        let run_id = u64::from_str_radix(&file.run, 16)
            .map_err(|error| wrong(format!("run {}: {error}", file.run)))?;
        let mut acknowledged = ByConnection::default();
        for (connection, ranges) in file.connections.iter().enumerate().take(1 << 16) {
            let bits = Bits::from_ranges(ranges)
                .ok_or_else(|| wrong(format!("connection {connection} has too high a number")))?;
            *acknowledged.of(connection) = bits;
        }
        Ok(Journal {
            run_id,
            topic: file.topic,
            size_max: file.size_max,
            order: file.order,
            acknowledged,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_reads_back_and_what_is_none_is_refused() {
        let mut acknowledged = ByConnection::default();
        for number in [0, 1, 2, 70, 71, 500] {
            acknowledged.of(3).insert(number);
        }
        let journal = Journal {
            run_id: u64::MAX - 1,
            topic: "T".into(),
            size_max: 100,
            order: true,
            acknowledged,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        journal.write(file.path()).unwrap();
        let read = Journal::read(file.path()).unwrap();
        assert_eq!(read.acknowledged.all()[3].ranges(), [(0, 3), (70, 2), (500, 1)]);
        assert_eq!((read.run_id, read.topic.as_str(), read.size_max), (u64::MAX - 1, "T", 100));
        for text in [
            "",
            "{}",
            r#"{"ringmq_journal":1,"run":"x","topic":"t","size_max":1,"order":true,"connections":[]}"#,
            r#"{"ringmq_journal":1,"run":"1","topic":"t","size_max":1,"order":true,"connections":[[[9999999999,1]]]}"#,
        ] {
            std::fs::write(file.path(), text).unwrap();
            assert!(Journal::read(file.path()).is_err(), "{text}");
        }
    }
}
