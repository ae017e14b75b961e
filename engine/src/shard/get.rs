//! Reading a queue: which records a pull gets, by the stock rules, without copying them.

use std::rc::Rc;

use ringmq_net::prefetch::prefetch;
use ringmq_net::record::{CheckResult, CheckRule, check, name};
use smallvec::SmallVec;

use super::{Queue, Shard, ShardError};
use crate::log::{LogError, ReadRun, Slice};
use crate::queue::Unit;

/// How many messages ahead a record is fetched into the processor's caches while another is checked: memory takes as long as one check.
const FETCH_AHEAD_UNITS: usize = 2;

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

    /// The record of the unit looked at last cannot be read: the next pull begins with it.
    fn put_back(&mut self) {
        self.looked_at -= 1;
        self.result.next_offset -= 1;
    }

    fn removed(&mut self) {
        if self.result.messages == 0 {
            self.result.status = GetStatus::MessageWasRemoving;
        }
    }
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

    /// Reads whatever it takes: units and records from memory, cache or device. Every record is checked: that it is whole, that its
    /// body has its CRC, and that it is the one the unit stands for. What comes before one that fails is returned, so that
    /// the next pull begins with it.
    ///
    /// # Errors
    /// [`ShardError`] when units or records cannot be read; [`ShardError::DamagedMessage`] if the first wanted one is damaged.
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
            let units = match self.queues.read(queue.units(), at, limits.messages.max(32)).await {
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
            at += units.len() as i64;
            for (index, unit) in units.iter().enumerate() {
                let queue_offset = scan.result.next_offset;
                match scan.next(unit.size.max(0) as usize, matches(unit.tags_code)) {
                    Step::Stop => break 'scan,
                    Step::Skip => continue,
                    Step::Take => {}
                }
                let later = units.get(index + FETCH_AHEAD_UNITS);
                match self.record_of(queue, queue_offset, unit, &mut run, later).await {
                    Ok(Some(slice)) => scan.take(slice),
                    Ok(None) => scan.removed(),
                    Err(error) if scan.result.messages == 0 => return Err(error),
                    Err(_) => {
                        scan.put_back();
                        break 'scan;
                    }
                }
            }
            glommio::yield_if_needed().await;
        }
        queue.set_read_run(run);
        Ok(scan.result)
    }

    /// The record that a unit stands for; `None` if retention has deleted it. `later` is a unit that is asked for soon.
    async fn record_of(
        &self,
        queue: &Queue,
        queue_offset: i64,
        unit: &Unit,
        run: &mut ReadRun,
        later: Option<&Unit>,
    ) -> Result<Option<Slice>, ShardError> {
        let damaged = |why: String| ShardError::DamagedMessage {
            topic: queue.topic().to_string(),
            queue_id: queue.id(),
            queue_offset,
            next: queue_offset + 1,
            why,
        };
        let outside = || {
            let (at, size) = (unit.physical_offset, unit.size);
            damaged(format!("its consume queue unit points to {at}+{size}, where it cannot be"))
        };
        if !unit.is_valid() || unit.is_blank() {
            return Err(outside());
        }
        let (physical, size) = (unit.physical_offset as u64, unit.size as usize);
        if physical < self.log.min_offset() {
            return if self.follows_a_kept_one(queue, queue_offset).await {
                Err(outside())
            } else {
                Ok(None)
            };
        }
        let read = match self.log.hot(physical, size) {
            Some(slice) => Ok(slice),
            None => {
                let hint = run.hint(physical, size);
                self.log.read_ahead(run);
                self.log.read(physical, size, hint).await
            }
        };
        let slice = match read {
            Ok(slice) => slice,
            Err(LogError::OutOfRange { .. }) if physical < self.log.min_offset() => {
                return Ok(None);
            }
            Err(LogError::OutOfRange { .. }) => return Err(outside()),
            Err(error) => return Err(error.into()),
        };
        if let Some(later) = later {
            prefetch_record(&slice, physical, later);
        }
        let ahead = look(slice.bytes(), queue, queue_offset, physical).map_err(damaged)?;
        if ahead > 0 && !self.neighbour_is_ahead(queue, queue_offset).await {
            let says = queue_offset + ahead;
            return Err(damaged(format!(
                "the record at physical offset {physical} says it is message {says}"
            )));
        }
        Ok(Some(slice))
    }

    /// Where a stock broker had lost units, all later records of the queue stand before the place that they name. A single one that
    /// does is damaged.
    async fn neighbour_is_ahead(&self, queue: &Queue, queue_offset: i64) -> bool {
        let other =
            if queue_offset + 1 < queue.max_offset() { queue_offset + 1 } else { queue_offset - 1 };
        let Ok(Some(unit)) = self.unit(queue, other).await else { return false };
        let Ok(physical) = u64::try_from(unit.physical_offset) else { return false };
        let Ok(Some(slice)) = self.record_at(physical).await else { return false };
        look(slice.bytes(), queue, other, physical).is_ok_and(|ahead| ahead > 0)
    }

    /// Whether the record before is still in the log: then the one at `queue_offset` must be too, for units ascend.
    async fn follows_a_kept_one(&self, queue: &Queue, queue_offset: i64) -> bool {
        let before = self.unit(queue, queue_offset - 1).await;
        let log_min = self.log.min_offset() as i64;
        before.is_ok_and(|unit| {
            unit.is_some_and(|unit| !unit.is_blank() && unit.physical_offset >= log_min)
        })
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

/// Has the processor fetch the record of another unit, if it lies in the same piece of memory as the one at `physical`: what the device has
/// just brought is in no cache, and a record is too short for the processor to see by itself where the reading goes on.
fn prefetch_record(slice: &Slice, physical: u64, unit: &Unit) {
    let away = unit.physical_offset.checked_sub_unsigned(physical);
    let start = away.and_then(|away| slice.range.start.checked_add_signed(away as isize));
    let Some(start) = start else { return };
    let size = usize::try_from(unit.size).unwrap_or_default();
    if let Some(bytes) = (*slice.owner).as_ref().get(start..) {
        prefetch(&bytes[..bytes.len().min(size)]);
    }
}

/// What the unit of a queue offset leads to: how far ahead of that offset the record says it is, 0 as a rule, or what is wrong.
fn look(bytes: &[u8], queue: &Queue, queue_offset: i64, physical: u64) -> Result<i64, String> {
    let record = match check(bytes, physical, CheckRule::Stock) {
        CheckResult::Good(record) => record,
        CheckResult::Bad { why, .. } => {
            return Err(format!("at physical offset {physical}: {why}"));
        }
        CheckResult::Need { .. } | CheckResult::Blank { .. } | CheckResult::End => {
            let bytes = bytes.len();
            return Err(format!("no record of {bytes} bytes is at physical offset {physical}"));
        }
    };
    if record.total_size() != bytes.len() {
        return Err(format!(
            "the record at physical offset {physical} has {} bytes, its consume queue unit says {}",
            record.total_size(),
            bytes.len()
        ));
    }
    // One that a stock broker put into several queues has the place of one of them.
    if record.properties_text().contains(name::INNER_MULTI_DISPATCH) {
        return Ok(0);
    }
    let ahead = record.queue_offset().saturating_sub(queue_offset);
    if record.queue_id() != queue.id() || record.topic() != &**queue.topic() || ahead < 0 {
        return Err(format!(
            "its consume queue unit points to physical offset {physical}, where message {} of {}/{} is",
            record.queue_offset(),
            record.topic(),
            record.queue_id()
        ));
    }
    Ok(ahead)
}
