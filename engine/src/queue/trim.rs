//! Following the log's beginning: files of which every record is gone are deleted, first offsets raised.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::QueueError;
use super::core::QueueRef;
use super::scan::UnitFiles;
use super::store::{QueueStore, lock_writer};
use super::unit::{UNIT_BYTES, Unit};
use super::writer::QueueWriter;
use crate::store::list_numbered;

/// Queues looked at by one job of the worker, so that batches get their turn in between.
const QUEUES_A_JOB: usize = 256;

/// What a trim did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrimReport {
    /// Queues whose first offset was raised.
    pub raised_queues: usize,
    /// Files deleted.
    pub deleted_files: usize,
}

/// What the worker has to know of one queue.
struct Request {
    uid: u32,
    topic: Arc<str>,
    queue_id: i32,
    /// First and end queue offset to look at in files.
    from: i64,
    to: i64,
}

/// What it found.
struct Answer {
    /// First queue offset in the files whose record is in the log; `to` if none.
    min: i64,
    /// Its physical offset, -1 if none.
    physical: i64,
    deleted: usize,
    /// Byte offset of the first file that is left.
    first_file: u64,
}

pub(super) async fn trim(store: &QueueStore, log_min: i64) -> Result<TrimReport, QueueError> {
    let mut report = TrimReport::default();
    let mut queues = store.all();
    queues.retain(|queue| {
        queue.min_offset() < queue.max_offset()
            && (queue.min_physical.get() < 0 || queue.min_physical.get() < log_min)
    });
    for some in queues.chunks(QUEUES_A_JOB) {
        let requests: Vec<Request> = some.iter().map(request).collect();
        let writer = Arc::clone(&store.inner.writer);
        let job = move || -> Result<Vec<Answer>, QueueError> {
            let mut writer = lock_writer(&writer);
            requests.iter().map(|request| trim_files(&mut writer, request, log_min)).collect()
        };
        let answers = store.inner.worker.run(job).await??;
        for (queue, answer) in some.iter().zip(answers) {
            if queue.removed.get() {
                continue;
            }
            report.deleted_files += answer.deleted;
            if answer.deleted > 0 {
                store.inner.readers.forget(queue.uid, Some(answer.first_file));
            }
            let before = queue.digest();
            report.raised_queues += usize::from(raise(queue, &answer, log_min));
            store.digest_changed(queue, before);
        }
    }
    Ok(report)
}

fn request(queue: &QueueRef) -> Request {
    let written = queue.memory.borrow().written;
    Request {
        uid: queue.uid,
        topic: Arc::clone(queue.topic()),
        queue_id: queue.queue_id(),
        from: queue.min_offset(),
        to: written.max(queue.min_offset()),
    }
}

fn raise(queue: &QueueRef, answer: &Answer, log_min: i64) -> bool {
    let before = queue.min_offset();
    let (mut min, mut physical) = (answer.min, answer.physical);
    if physical < 0 {
        // None in the files: go on in memory, which reaches at least to where the files ended.
        queue.visit(min, usize::MAX, |unit| {
            if unit.physical_offset >= log_min {
                physical = unit.physical_offset;
                return false;
            }
            min += 1;
            true
        });
    }
    queue.raise_min(min, physical);
    queue.min_offset() > before
}

fn trim_files(
    writer: &mut QueueWriter,
    request: &Request,
    log_min: i64,
) -> Result<Answer, QueueError> {
    let dir = writer.queue_dir(&request.topic, request.queue_id);
    let file_bytes = writer.file_bytes();
    let file_units = (file_bytes / UNIT_BYTES as u64) as i64;
    let list = list_numbered(&dir)
        .map_err(|error| QueueError::io("list the directory of", &dir, &error))?;
    let mut starts: Vec<u64> = list.iter().filter_map(|file| file.start).collect();
    let mut files = UnitFiles::new(dir, file_units);
    let failed = |path: PathBuf, error: io::Error| QueueError::io("trim", &path, &error);
    let mut deleted = 0;
    while starts.len() > 1 {
        let first = (starts.first().copied().unwrap_or(0) / UNIT_BYTES as u64) as i64;
        let path = files.path(first);
        let last = first + file_units - 1;
        if last >= request.to {
            break;
        }
        let unit = files.unit(last).map_err(|error| failed(path.clone(), error))?;
        if unit.physical_offset >= log_min {
            break;
        }
        fs::remove_file(&path).map_err(|error| failed(path, error))?;
        starts.remove(0);
        deleted += 1;
    }
    let Some(first_file) = starts.first().copied() else {
        return Ok(Answer { min: request.to, physical: -1, deleted, first_file: 0 });
    };
    writer.forget(request.uid, Some(first_file));
    let from = request.from.max((first_file / UNIT_BYTES as u64) as i64);
    let gone = |unit: &Unit| unit.is_blank() || unit.physical_offset < log_min;
    let path = files.path(from);
    let to = request.to.max(from);
    let min = files.partition(from, to, gone).map_err(|error| failed(path.clone(), error))?;
    let physical = if min < to {
        files.unit(min).map_err(|error| failed(path, error))?.physical_offset
    } else {
        -1
    };
    Ok(Answer { min, physical, deleted, first_file })
}
