//! Looking keys up. The walk over files runs on the worker, behind the entries that were put before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::IndexError;
use super::header::{ENTRY_BYTES, Entry, Header, SLOT_BYTES, Shape};

/// What a query found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexQuery {
    /// Physical offsets of candidate records, newest first. Other keys with the same hash are among them.
    pub offsets: Vec<i64>,
    /// Store timestamp of the newest indexed record.
    pub last_timestamp: i64,
    /// Physical offset of the newest indexed record.
    pub last_physical: i64,
}

/// What is asked of one file.
#[derive(Debug)]
pub(super) struct FileQuery {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// The newest entry of the hash's chain where the slots are in memory; `None` = read the slot.
    pub(super) head: Option<u32>,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) hash: i32,
    pub(super) max: usize,
    pub(super) begin: i64,
    pub(super) end: i64,
}

/// Goes through `files`, newest first, by stock's rules (4.9.8).
pub(super) fn query_files(
    files: &[FileQuery],
    shape: Shape,
    wanted: Wanted,
) -> Result<Vec<i64>, IndexError> {
    let mut found = Vec::new();
    for file in files {
        let header = &file.header;
        let overlaps = header.begin_timestamp <= wanted.end && header.end_timestamp >= wanted.begin;
        if overlaps {
            match query_file(file, shape, wanted, &mut found) {
                // Trimmed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|error| IndexError::io("read", &file.path, &error))?,
            }
        }
        if found.len() >= wanted.max || header.begin_timestamp < wanted.begin {
            break;
        }
    }
    Ok(found)
}

fn query_file(
    query: &FileQuery,
    shape: Shape,
    wanted: Wanted,
    found: &mut Vec<i64>,
) -> io::Result<()> {
    let file = File::open(&query.path)?;
    let mut at = match query.head {
        Some(head) => head,
        None => {
            let mut slot = [0; SLOT_BYTES];
            file.read_exact_at(&mut slot, shape.slot_at(shape.slot_of(wanted.hash)))?;
            u32::from_be_bytes(slot)
        }
    };
    let mut limit = query.header.next_entry;
    while at > 0 && at < limit && found.len() < wanted.max {
        let mut entry = [0; ENTRY_BYTES];
        file.read_exact_at(&mut entry, shape.entry_at(at))?;
        let entry = Entry::decode(&entry);
        let time = query.header.begin_timestamp + i64::from(entry.seconds) * 1000;
        if entry.hash == wanted.hash && (wanted.begin..=wanted.end).contains(&time) {
            found.push(entry.physical);
        }
        if time < wanted.begin {
            break;
        }
        // A chain only goes down: a damaged one ends instead of turning in circles.
        limit = at;
        at = entry.previous;
    }
    Ok(())
}
