//! Redoing derived data after a start: every record of the log from a given offset on enters its queue and the index
//! again. What is there already is skipped by the rules of queue and index, so redoing too much is harmless.

use ringmq_net::record::{
    BLANK_BYTES_MIN, CheckResult, CheckRule, Properties, RECORD_FIXED_BYTES, RecordView, check,
    index_hash, sys_flag, tags_code,
};

use super::{QUEUE_ID_MAX, Shard, ShardError};
use crate::log::{ReadHint, ReadRun};
use crate::state::delay::SCHEDULE_TOPIC;

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Records between two chances for other tasks.
const RECORDS_A_TURN: u64 = 2_000;
/// Records between two looks at whether something urgent waits: some ten microseconds.
const RECORDS_A_LOOK: u64 = 32;

/// What redoing found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Redone {
    pub(super) records: u64,
    /// Store time of the last record; 0 if there was none.
    pub(super) last_timestamp: i64,
}

impl Shard {
    /// Redoes `[from, to)`; `from` is the start of a record or of a segment.
    pub(super) async fn redo(&self, from: u64, to: u64) -> Result<Redone, ShardError> {
        let mut redone = Redone::default();
        let mut at = from;
        let mut run = ReadRun::steady(from);
        while at < to {
            let segment_end = self.segment_end(at);
            let len = (to.min(segment_end) - at).min(READ_BYTES as u64) as usize;
            let chunk = match self.log.hot_from(at, len) {
                Some(recent) => recent,
                None => {
                    let chunk = self.bytes_at(at, len, run.hint(at, len)).await?;
                    self.log.read_ahead(&mut run);
                    // Those reads are to be under way while this chunk is redone.
                    glommio::executor().yield_task_queue_now().await;
                    chunk
                }
            };
            let used = self.redo_chunk(chunk.bytes(), at, &mut redone).await?;
            at = match used {
                Used::Bytes(0) => self.redo_long(at, to.min(segment_end), &mut redone).await?,
                Used::Bytes(bytes) => at + bytes as u64,
                Used::Blank => segment_end,
            };
        }
        Ok(redone)
    }

    /// The records that lie whole in `bytes`.
    async fn redo_chunk(
        &self,
        bytes: &[u8],
        start: u64,
        redone: &mut Redone,
    ) -> Result<Used, ShardError> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= BLANK_BYTES_MIN) {
            let offset = start + at as u64;
            match check(rest, offset, CheckRule::Stock) {
                CheckResult::Good(view) => {
                    at += view.total_size();
                    self.redo_record(&view, redone).await?;
                    self.redone_to(start + at as u64, view.store_timestamp());
                }
                CheckResult::Blank { .. } => {
                    self.redone_to(self.segment_end(start), redone.last_timestamp);
                    return Ok(Used::Blank);
                }
                // Longer than what is here: it begins the next chunk.
                CheckResult::Need { .. } => break,
                CheckResult::End => return Err(damaged(offset, "zeros where a record must be")),
                CheckResult::Bad { why, .. } => return Err(damaged(offset, why)),
            }
            if redone.records.is_multiple_of(RECORDS_A_TURN) {
                self.queues.poll();
                glommio::executor().yield_task_queue_now().await;
            } else if redone.records.is_multiple_of(RECORDS_A_LOOK) {
                glommio::executor().yield_if_needed().await;
            }
        }
        Ok(Used::Bytes(at))
    }

    /// One record that no chunk holds whole; returns where it ends.
    async fn redo_long(&self, at: u64, end: u64, redone: &mut Redone) -> Result<u64, ShardError> {
        let head = self.bytes_at(at, BLANK_BYTES_MIN, ReadHint::EXACT).await?;
        if let CheckResult::Blank { .. } = check(head.bytes(), at, CheckRule::Stock) {
            let end = self.segment_end(at);
            self.redone_to(end, redone.last_timestamp);
            return Ok(end);
        }
        let size = head.bytes().first_chunk().map_or(0, |size| i32::from_be_bytes(*size));
        let fits = usize::try_from(size).ok().filter(|size| at + *size as u64 <= end);
        let Some(size) = fits else {
            return Err(damaged(at, format!("a record of {size} bytes does not fit there")));
        };
        let record = self.bytes_at(at, size, ReadHint::EXACT).await?;
        match check(record.bytes(), at, CheckRule::Stock) {
            CheckResult::Good(view) => {
                self.redo_record(&view, redone).await?;
                self.redone_to(at + size as u64, view.store_timestamp());
            }
            CheckResult::Bad { why, .. } => return Err(damaged(at, why)),
            _ => return Err(damaged(at, format!("no record of {size} bytes"))),
        }
        Ok(at + size as u64)
    }

    async fn redo_record(
        &self,
        view: &RecordView<'_>,
        redone: &mut Redone,
    ) -> Result<(), ShardError> {
        if let Some(why) = impossible(view) {
            return Err(damaged(view.physical_offset() as u64, why));
        }
        redone.records += 1;
        redone.last_timestamp = view.store_timestamp();
        let text = std::str::from_utf8(view.properties()).unwrap_or_default();
        let known = Properties::new(text).known();
        let kind = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        if let Some(index) = &self.index
            && kind != sys_flag::TRANSACTION_ROLLBACK
        {
            for key in known.index_keys() {
                let hash = index_hash(view.topic(), key);
                index.put(hash, view.physical_offset(), view.store_timestamp());
            }
        }
        if !matches!(kind, 0 | sys_flag::TRANSACTION_COMMIT) {
            return Ok(());
        }
        let delayed = view.topic() == SCHEDULE_TOPIC && known.delay_level() > 0;
        let code = if delayed {
            let level = i32::try_from(known.delay_level()).unwrap_or(i32::MAX);
            self.config.delay_levels.deliver_time_ms(level, view.store_timestamp())
        } else {
            tags_code(known.tags)
        };
        let mut units = self.queues.open(view.topic(), view.queue_id());
        let max = units.max_offset();
        if view.queue_offset() < max && view.physical_offset() >= units.end_physical() {
            if view.queue_offset() != 0 {
                let why = format!(
                    "a record with queue offset {} where {max} must follow in {}/{}",
                    view.queue_offset(),
                    view.topic(),
                    view.queue_id()
                );
                return Err(damaged(view.physical_offset() as u64, why));
            }
            // The topic was deleted and made again in between: what is before belongs to a queue that is gone.
            self.table.remove(view.topic());
            self.queues.remove_queue(view.topic(), view.queue_id()).await?;
            units = self.queues.open(view.topic(), view.queue_id());
        }
        self.queues.append(
            &units,
            view.queue_offset(),
            view.physical_offset(),
            view.total_size() as i32,
            code,
        );
        self.queue_grew(view.topic(), view.queue_id(), units.max_offset(), code);
        Ok(())
    }

    fn segment_end(&self, offset: u64) -> u64 {
        let size = self.config.segment_bytes;
        offset - offset % size + size
    }
}

fn damaged(offset: u64, why: impl ToString) -> ShardError {
    ShardError::Redo { offset, why: why.to_string() }
}

/// What no record can say: its header has no checksum, and what is made of it are directories and places in files.
fn impossible(view: &RecordView<'_>) -> Option<String> {
    let topic = view.topic();
    if topic.contains(['/', '\0']) || matches!(topic, "." | "..") {
        return Some(format!("a record of the topic {topic:?}"));
    }
    let id = view.queue_id();
    if !(0..=QUEUE_ID_MAX).contains(&id) {
        return Some(format!("a record of queue {id}"));
    }
    // Each message before it in its queue took some bytes of the log.
    let offset = view.queue_offset();
    if offset < 0 || offset > view.physical_offset() / RECORD_FIXED_BYTES as i64 {
        return Some(format!("a record with queue offset {offset}, higher than the log can hold"));
    }
    None
}

/// How far a chunk carried.
enum Used {
    Bytes(usize),
    /// The rest of the segment is a BLANK record.
    Blank,
}
