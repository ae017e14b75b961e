//! Reading a queue: which records a pull gets, by the stock rules, without copying them.

use std::rc::Rc;

use smallvec::SmallVec;

use super::{Queue, Shard, ShardError};
use crate::log::Slice;

/// Where these fields stand in a record.
const QUEUE_ID_AT: usize = 12;
const PHYSICAL_OFFSET_AT: usize = 28;

/// Why a read ended as it did. The names are RocketMQ's: they are the remark of a pull's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetStatus {
    /// At least one record is returned.
    Found,
    /// Records were looked at and none matched the filter.
    NoMatchedMessage,
    /// The queue points at log data that was deleted.
    MessageWasRemoving,
    /// The queue has no unit at that offset although it lies between its minimum and maximum.
    OffsetFoundNull,
    /// The offset lies beyond the queue's end.
    OffsetOverflowBadly,
    /// The offset is the queue's end: nothing new.
    OffsetOverflowOne,
    /// The offset lies below the queue's beginning.
    OffsetTooSmall,
    /// The queue never had a message.
    NoMessageInQueue,
}

impl GetStatus {
    /// The stock name of the status.
    pub fn name(self) -> &'static str {
        match self {
            GetStatus::Found => "FOUND",
            GetStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            GetStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            GetStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
            GetStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            GetStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            GetStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
            GetStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
        }
    }
}

/// Bounds of one read.
#[derive(Debug, Clone, Copy)]
pub struct GetLimits {
    /// Most records to return; at least 1.
    pub messages: usize,
    /// Most bytes to return; the first matching record is returned whatever its size.
    pub bytes: usize,
    /// Most queue units to look at, so that a selective filter cannot hold the reactor.
    pub units: usize,
}

/// What a read found.
pub struct GetResult {
    /// How it ended.
    pub status: GetStatus,
    /// The offset to ask for next.
    pub next_offset: i64,
    /// The queue's first readable offset.
    pub min_offset: i64,
    /// One past the queue's last visible offset.
    pub max_offset: i64,
    /// The records, in queue order; neighbours in one block are one slice.
    pub slices: SmallVec<[Slice; 8]>,
    /// Number of records in `slices`.
    pub messages: usize,
    /// Number of bytes in `slices`.
    pub bytes: usize,
}

/// How a scan over units goes on after one unit.
enum Step {
    Stop,
    Skip,
    Take,
}

/// The rules of one scan: pure, shared by the hot and the cold path.
struct Scan {
    limits: GetLimits,
    result: GetResult,
    looked_at: usize,
}

impl Scan {
    fn new(limits: GetLimits, offset: i64, min_offset: i64, max_offset: i64) -> Self {
        Scan {
            limits,
            looked_at: 0,
            result: GetResult {
                status: GetStatus::NoMatchedMessage,
                next_offset: offset,
                min_offset,
                max_offset,
                slices: SmallVec::new(),
                messages: 0,
                bytes: 0,
            },
        }
    }

    fn next(&mut self, size: usize, matches: bool) -> Step {
        let full = self.result.messages > 0
            && (self.result.messages >= self.limits.messages
                || self.result.bytes + size > self.limits.bytes);
        if full || self.looked_at >= self.limits.units {
            return Step::Stop;
        }
        self.looked_at += 1;
        self.result.next_offset += 1;
        if matches { Step::Take } else { Step::Skip }
    }

    fn take(&mut self, slice: Slice) {
        self.result.status = GetStatus::Found;
        self.result.messages += 1;
        self.result.bytes += slice.range.len();
        if let Some(last) = self.result.slices.last_mut()
            && last.range.end == slice.range.start
            && Rc::ptr_eq(&last.owner, &slice.owner)
        {
            last.range.end = slice.range.end;
            return;
        }
        self.result.slices.push(slice);
    }

    /// The last unit that was looked at is for the next read.
    fn put_back(&mut self) {
        self.result.next_offset -= 1;
    }

    fn removed(&mut self) {
        if self.result.messages == 0 {
            self.result.status = GetStatus::MessageWasRemoving;
        }
    }
}

/// Whether bytes of the log are a record of that length and place, of the queue that a unit of it led to. Units come from files
/// that a failing disk may have lost parts of: whatever else they lead to is not served.
fn is_record_of(queue: &Queue, bytes: &[u8], physical_offset: u64) -> bool {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    word(0).map(u32::from_be_bytes) == u32::try_from(bytes.len()).ok()
        && word(QUEUE_ID_AT).map(i32::from_be_bytes) == Some(queue.id())
        && long(PHYSICAL_OFFSET_AT).map(u64::from_be_bytes) == Some(physical_offset)
}

impl Shard {
    /// Reads from memory alone. `None` means that something needed is no longer in memory: use
    /// [`Shard::get_cold`]. `matches` is asked with each unit's tags code.
    pub fn get(
        &self,
        queue: &Queue,
        offset: i64,
        limits: GetLimits,
        matches: impl Fn(i64) -> bool,
    ) -> Option<GetResult> {
        if let Some(result) = Self::out_of_range(queue, offset) {
            return Some(result);
        }
        let mut scan = Scan::new(limits, offset, queue.min_offset(), queue.max_offset());
        let mut cold = false;
        let wanted = limits.units.max(1);
        let in_memory = self.queues.recent(queue.units(), offset, wanted, |unit| {
            let size = unit.size as usize;
            match scan.next(size, matches(unit.tags_code)) {
                Step::Stop => return false,
                Step::Skip => return true,
                Step::Take => {}
            }
            match self.log.hot(unit.physical_offset as u64, size) {
                Some(slice) => {
                    scan.take(slice);
                    true
                }
                None => {
                    cold = true;
                    false
                }
            }
        });
        if !in_memory || (cold && scan.result.messages == 0) {
            return None;
        }
        if cold {
            // The unit that was not in memory was counted as looked at; the next pull gets it.
            scan.put_back();
        }
        Some(scan.result)
    }

    /// Reads whatever it takes: units and records from memory, cache or device. What comes before a record that cannot be read
    /// is returned; the error comes when it is the first.
    ///
    /// # Errors
    /// [`ShardError`] when units or records cannot be read, or a unit leads to no record of its queue and offset.
    pub async fn get_cold(
        &self,
        queue: &Queue,
        offset: i64,
        limits: GetLimits,
        matches: impl Fn(i64) -> bool,
    ) -> Result<GetResult, ShardError> {
        if let Some(result) = Self::out_of_range(queue, offset) {
            return Ok(result);
        }
        let mut scan = Scan::new(limits, offset, queue.min_offset(), queue.max_offset());
        let mut run = queue.read_run();
        let mut at = offset;
        'scan: while at < scan.result.max_offset {
            let units = self.queues.read(queue.units(), at, limits.messages.max(32)).await;
            let units = match units {
                Ok(units) => units,
                Err(_) if scan.result.messages > 0 => break,
                Err(error) => return Err(error.into()),
            };
            if units.is_empty() {
                if at == offset {
                    scan.result.status = GetStatus::OffsetFoundNull;
                }
                break;
            }
            for (unit, queue_offset) in units.iter().zip(at..) {
                let size = unit.size.max(0) as usize;
                match scan.next(size, matches(unit.tags_code)) {
                    Step::Stop => break 'scan,
                    Step::Skip => continue,
                    Step::Take => {}
                }
                let physical = unit.physical_offset as u64;
                if unit.physical_offset < 0 || physical < self.log.min_offset() {
                    scan.removed();
                    continue;
                }
                let read = match self.log.hot(physical, size) {
                    Some(slice) => Ok(slice),
                    None => self.log.read(physical, size, run.hint(physical, size)).await,
                };
                match read {
                    Ok(record) if is_record_of(queue, record.bytes(), physical) => {
                        scan.take(record);
                    }
                    _ if scan.result.messages > 0 => {
                        scan.put_back();
                        break 'scan;
                    }
                    Err(error) => return Err(error.into()),
                    Ok(_) => {
                        return Err(ShardError::StrayUnit {
                            topic: queue.topic().to_string(),
                            queue_id: queue.id(),
                            queue_offset,
                            physical_offset: unit.physical_offset,
                        });
                    }
                }
            }
            at += units.len() as i64;
            glommio::yield_if_needed().await;
        }
        queue.set_read_run(run);
        Ok(scan.result)
    }

    /// The answers that need no look at the queue's units, in the stock order of tests.
    fn out_of_range(queue: &Queue, offset: i64) -> Option<GetResult> {
        let (min_offset, max_offset) = (queue.min_offset(), queue.max_offset());
        let (status, next_offset) = if max_offset == 0 {
            (GetStatus::NoMessageInQueue, 0)
        } else if offset < min_offset {
            (GetStatus::OffsetTooSmall, min_offset)
        } else if offset == max_offset {
            (GetStatus::OffsetOverflowOne, offset)
        } else if offset > max_offset {
            (GetStatus::OffsetOverflowBadly, max_offset)
        } else {
            return None;
        };
        Some(GetResult {
            status,
            next_offset,
            min_offset,
            max_offset,
            slices: SmallVec::new(),
            messages: 0,
            bytes: 0,
        })
    }
}
