//! Putting messages: where queue offset, physical offset and store time are assigned.

use std::net::SocketAddr;
use std::rc::Rc;

use ringmq_net::prefetch::prefetch;
use ringmq_net::record::{KnownProperties, RecordFields, encoded_len, index_hash, sys_flag};

use super::dispatch::Pending;
use super::{Queue, Shard};
use crate::log::AppendError;

/// What all messages of one put have in common.
#[derive(Clone, Copy)]
pub struct NewRun<'a> {
    /// Where they go.
    pub queue: &'a Rc<Queue>,
    /// `sysFlag` as it is to be stored; the bits of the hosts' families are set here.
    pub sys_flag: i32,
    /// The client's clock, milliseconds since 1970.
    pub born_timestamp: i64,
    /// The client's address.
    pub born_host: SocketAddr,
    /// The address this broker advertises.
    pub store_host: SocketAddr,
    /// How often the message was consumed before.
    pub reconsume_times: i32,
    /// Physical offset of the half message, on a committed transaction only.
    pub prepared_transaction_offset: i64,
}

/// One message of a put.
#[derive(Clone, Copy)]
pub struct NewMessage<'a> {
    /// The application's flag.
    pub flag: i32,
    /// The body as received.
    pub body: &'a [u8],
    /// The properties text as it is to be stored.
    pub properties: &'a [u8],
    /// What the text says, as far as the store looks at it.
    pub known: &'a KnownProperties<'a>,
    /// What the consume queue's third field holds.
    pub code: UnitCode,
}

/// The third field of a consume queue unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitCode {
    /// The hash of the tags.
    Tags(i64),
    /// Delay topic: the time to deliver, this many milliseconds after the store time.
    DeliverAfterMs(i64),
}

/// Where a put went. It is in memory: what the log promises for it is told by its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Physical offset of the first record.
    pub physical_offset: u64,
    /// Queue offset of the first record.
    pub queue_offset: i64,
    /// Physical offset just behind the last record: written or durable once the log is.
    pub end: u64,
    /// The store time given to all of them, milliseconds since 1970.
    pub store_timestamp: i64,
}

/// Why a put was refused. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// A message breaks a size limit.
    #[error("message of {bytes} bytes is over the limit of {max} bytes")]
    TooLarge {
        /// Its size: body, or whole record.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The log does not take it now.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// Consume queues and index can't be written as fast as messages come, or not at all. Clears itself when they can.
    #[error("{bytes} bytes of queues and index wait to be written and at most {max} may{}", why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    DerivedBehind {
        /// Bytes that wait.
        bytes: usize,
        /// The limit.
        max: usize,
        /// What fails, if anything does.
        why: Option<String>,
    },
}

impl Shard {
    /// Appends messages to one queue, all or none, in one segment: consecutive queue offsets, one store time. `each` is
    /// called with the physical offset of every record, in order.
    ///
    /// The iterator is walked twice: for the lengths and to encode.
    ///
    /// # Errors
    /// [`PutError`]; nothing is stored then and no offset is used up.
    pub fn put<'a>(
        &self,
        now_ms: i64,
        run: &NewRun<'_>,
        messages: impl Iterator<Item = NewMessage<'a>> + Clone,
        mut each: impl FnMut(u64),
    ) -> Result<Stored, PutError> {
        self.check_derived()?;
        let len = self.run_len(run, messages.clone())?;
        // Never backwards: recovery's start and the search by time rely on it.
        let store_timestamp = now_ms.max(self.last_store_timestamp.get());
        let queue = run.queue;
        // Prepared and rollback types have no place in the queue.
        let queued =
            matches!(run.sys_flag & sys_flag::TRANSACTION_MASK, 0 | sys_flag::TRANSACTION_COMMIT);
        let first_offset = if queued { queue.next_offset() } else { 0 };
        let mut dispatch = self.dispatch.borrow_mut();
        let mut end = 0;
        let mut count = 0;
        let physical_offset = self.log.append(len, |buf, start| {
            let mut at = 0;
            for message in messages {
                let physical = start + at as u64;
                let queue_offset = if queued { first_offset + count } else { 0 };
                let record = RecordFields {
                    queue_id: queue.id(),
                    flag: message.flag,
                    queue_offset,
                    physical_offset: physical as i64,
                    sys_flag: run.sys_flag,
                    born_timestamp: run.born_timestamp,
                    born_host: run.born_host,
                    store_timestamp,
                    store_host: run.store_host,
                    reconsume_times: run.reconsume_times,
                    prepared_transaction_offset: run.prepared_transaction_offset,
                    body: message.body,
                    topic: queue.topic(),
                    properties: message.properties,
                };
                let size = record.encoded_len();
                let (room, ahead) = buf[at..].split_at_mut(size);
                // Of a batch: the log was asked for its beginning alone, and the next record is likely as long as this.
                prefetch(&ahead[..ahead.len().min(size)]);
                record.encode(room);
                at += size;
                let keys = self.note_keys(&mut dispatch.keys, queue.topic(), message.known);
                dispatch.pending.push_back(Pending {
                    queue: Rc::clone(queue),
                    queued,
                    physical_offset: physical,
                    size: size as u32,
                    keys,
                    queue_offset,
                    code: match message.code {
                        UnitCode::Tags(code) => code,
                        UnitCode::DeliverAfterMs(delay) => store_timestamp + delay,
                    },
                    store_timestamp,
                });
                each(physical);
                count += 1;
                end = start + at as u64;
            }
        })?;
        drop(dispatch);
        self.last_store_timestamp.set(store_timestamp);
        if queued {
            queue.advance(count);
        }
        Ok(Stored { physical_offset, queue_offset: first_offset, end, store_timestamp })
    }

    /// Length of all records together, each within its limits.
    fn run_len<'a>(
        &self,
        run: &NewRun<'_>,
        messages: impl Iterator<Item = NewMessage<'a>>,
    ) -> Result<usize, PutError> {
        let mut total = 0;
        for message in messages {
            if message.body.len() > self.config.message_bytes_max {
                return Err(PutError::TooLarge {
                    bytes: message.body.len(),
                    max: self.config.message_bytes_max,
                });
            }
            let len = encoded_len(
                &run.born_host,
                &run.store_host,
                message.body.len(),
                run.queue.topic().len(),
                message.properties.len(),
            );
            if len > self.config.record_bytes_max() {
                return Err(PutError::TooLarge { bytes: len, max: self.config.record_bytes_max() });
            }
            total += len;
        }
        Ok(total)
    }

    /// Notes the index hashes of one message; returns how many.
    fn note_keys(
        &self,
        keys: &mut std::collections::VecDeque<i32>,
        topic: &str,
        known: &KnownProperties<'_>,
    ) -> u32 {
        if !self.config.index {
            return 0;
        }
        let before = keys.len();
        // As `index_keys` has them, but without an iterator that is moved: to read back what was just stored waits for the record's stores.
        if let Some(key) = known.uniq_key {
            keys.push_back(index_hash(topic, key));
        }
        if let Some(text) = known.keys {
            let each = text.split(' ').filter(|key| !key.is_empty());
            keys.extend(each.map(|key| index_hash(topic, key)));
        }
        (keys.len() - before) as u32
    }
}
