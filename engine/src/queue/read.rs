//! Reading units that are no longer in memory, on the reactor and without blocking it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use glommio::io::BufferedFile;
use rustc_hash::FxHashMap;

use super::QueueError;
use super::core::QueueRef;
use super::store::QueueStore;
use super::unit::{UNIT_BYTES, Unit};
use super::writer::queue_dir;
use crate::store::numbered_name;

/// Open files for reading; the longest unused one is closed when there are too many.
pub(super) struct Readers {
    max: usize,
    clock: Cell<u64>,
    open: RefCell<FxHashMap<(u32, u64), Reader>>,
}

struct Reader {
    file: Rc<BufferedFile>,
    used: u64,
}

impl Readers {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), clock: Cell::new(0), open: RefCell::default() }
    }

    fn get(&self, key: (u32, u64)) -> Option<Rc<BufferedFile>> {
        self.clock.set(self.clock.get() + 1);
        let mut open = self.open.borrow_mut();
        let reader = open.get_mut(&key)?;
        reader.used = self.clock.get();
        Some(Rc::clone(&reader.file))
    }

    fn keep(&self, key: (u32, u64), file: Rc<BufferedFile>) {
        let mut open = self.open.borrow_mut();
        if open.len() >= self.max
            && let Some(oldest) =
                open.iter().min_by_key(|(_, reader)| reader.used).map(|(key, _)| *key)
        {
            open.remove(&oldest);
        }
        open.insert(key, Reader { file, used: self.clock.get() });
    }

    /// Closes the files of a queue, all or those that start below `below`.
    pub(super) fn forget(&self, uid: u32, below: Option<u64>) {
        let mut open = self.open.borrow_mut();
        open.retain(|key, _| key.0 != uid || below.is_some_and(|below| key.1 >= below));
    }
}

pub(super) async fn read(
    store: &QueueStore,
    queue: &QueueRef,
    from: i64,
    limit: usize,
) -> Result<Vec<Unit>, QueueError> {
    let mut units = Vec::new();
    if from < queue.min_offset() || from >= queue.max_offset() {
        return Ok(units);
    }
    let in_memory = queue.visit(from, limit, |unit| {
        units.push(unit);
        true
    });
    if in_memory {
        return Ok(units);
    }
    read_file(store, queue, from, limit).await
}

async fn read_file(
    store: &QueueStore,
    queue: &QueueRef,
    from: i64,
    limit: usize,
) -> Result<Vec<Unit>, QueueError> {
    let inner = &*store.inner;
    let file_units = inner.file_units;
    let first_in_memory = queue.memory.borrow().first;
    let file_first = from - from % file_units;
    let end = first_in_memory.min(file_first + file_units);
    let count = usize::try_from(end - from).unwrap_or(0).min(limit);
    let file_start = file_first.max(0) as u64 * UNIT_BYTES as u64;
    let key = (queue.uid, file_start);
    let path = queue_dir(&inner.config.dir, queue.topic(), queue.queue_id())
        .join(numbered_name(file_start));
    let file = match inner.readers.get(key) {
        Some(file) => file,
        None => match BufferedFile::open(&path).await {
            Ok(file) => {
                let file = Rc::new(file);
                if !queue.removed.get() {
                    inner.readers.keep(key, Rc::clone(&file));
                }
                file
            }
            // Trimmed or removed in the meantime.
            Err(_) if from < queue.min_offset() || queue.removed.get() => return Ok(Vec::new()),
            Err(error) => return Err(QueueError::io("open", &path, &error.into())),
        },
    };
    let position = (from - file_first).max(0) as u64 * UNIT_BYTES as u64;
    let bytes = file
        .read_at(position, count * UNIT_BYTES)
        .await
        .map_err(|error| QueueError::io("read", &path, &error.into()))?;
    let (units, _) = bytes.as_chunks::<UNIT_BYTES>();
    Ok(units.iter().map(Unit::decode).collect())
}
