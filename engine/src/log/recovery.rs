//! The recovery planner: makes a log out of what a crash left. It does no I/O; it says what to do next.
//!
//! ```text
//!   check shapes -> find the start of the scan -> scan: the cut is where no whole record follows
//!     -> anything but zeros behind the cut, up to the write bound? zero it
//!     -> flush -> remove later segments -> save the state -> serve
//! ```
//!
//! Why this order. A crash may come after any step, and the next recovery starts over with the old state:
//! - Until the state is saved the old write bound stands, so whatever might lie behind the cut is looked at again.
//! - Zeros are flushed before anything is written at the cut: a stale record that came back after the next power
//!   cut would follow the new ones without a seam.
//! - The flush comes even if there was nothing to zero: what was read, records and zeros alike, may so far be only in the
//!   device's cache, and readers are about to see it.
//! - Segments go from the last one down, so that no crash leaves a gap.
//!
//! What the planner takes for granted: nobody else writes. A direct write that a killed process left in the kernel can
//! outlive it (and its lock) for as long as the device takes, so before the first read the shell must wait for such writes
//! on the segments from the durable offset on; on ext4 a `fallocate` of what is already allocated does.

use ringmq_net::record::{CheckResult, CheckRule, MAGIC_MESSAGE, check};

use super::{
    block::{UNIT, UNIT_U64, unit_ceil, unit_floor},
    recovery_input::{RecoveryError, RecoveryInput},
    state::LogState,
    switches::Switches,
};

/// Largest record that recovery believes in: what the largest frame (16 MiB) can bring, twice over.
pub(super) const RECORD_BYTES_MAX: usize = 32 << 20;

/// An order to the shell. Each is answered by [`Recovery::read_done`] (reads) or [`Recovery::action_done`], or given up:
/// then recovery ends with the shell's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Read `len` bytes at byte `position` of a segment, both multiples of the unit.
    Read {
        /// Start of the segment.
        segment_start: u64,
        /// Byte in it.
        position: u64,
        /// Bytes.
        len: usize,
    },
    /// Write `head`, then zeros, so that `[position, to)` of the segment is covered. Both are multiples of the unit.
    Zero {
        /// Start of the segment.
        segment_start: u64,
        /// First byte.
        position: u64,
        /// Behind the last byte.
        to: u64,
        /// What stays of the first unit.
        head: Vec<u8>,
    },
    /// Flush these segments.
    Flush {
        /// Their starts.
        segments: Vec<u64>,
    },
    /// Unlink the segment and make that durable in its directory.
    Remove {
        /// Its start.
        start: u64,
    },
    /// Make this state durable, replacing the former one at once or not at all.
    Save {
        /// The state.
        state: LogState,
    },
    /// The log can be served.
    Done(Recovered),
}

/// A log ready to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Where the log goes on.
    pub end: u64,
    /// Start of the first segment, or `end` if there is none.
    pub min_offset: u64,
    /// The bytes of the last partial unit, up to `end`.
    pub partial_unit: Vec<u8>,
    /// End of the last segment that is there.
    pub ready_end: u64,
    /// The state as saved.
    pub state: LogState,
    /// Where to start to redo derived data: `None` after a clean stop of a store whose derived data is not known to
    /// us: then stock's rule holds (the largest end over all queues).
    pub redo_from: Option<u64>,
    /// The log was closed clean.
    pub clean: bool,
    /// Records found whole, and bytes of them.
    pub scanned_records: u64,
    /// See `scanned_records`.
    pub scanned_bytes: u64,
    /// Why the log ends here, if not simply because zeros follow.
    pub cut_reason: Option<String>,
    /// Bytes from `end` on that were zeroed.
    pub zeroed_bytes: u64,
    /// Segments removed behind the end.
    pub removed_segments: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Looking at first records from the last segment down; index into `segments`.
    FindStart {
        index: usize,
    },
    Scan,
    /// Reading behind the cut.
    Inspect {
        at: u64,
    },
    Zero,
    Flush,
    Remove,
    Save,
    /// Reading the last partial unit.
    Partial,
    Done,
}

/// Plans one recovery. See the module.
pub struct Recovery {
    input: RecoveryInput,
    phase: Phase,
    /// The action that was handed out and isn't answered; bytes wanted, if it is a read.
    pending: Option<usize>,
    clean: bool,
    /// Start of the segment that stock's checkpoint rule chose.
    checkpoint_start: Option<u64>,
    /// Next byte to check, then the cut.
    at: u64,
    scan_started_at: u64,
    /// Bytes that the record at `at` needs, if more than a read.
    need: usize,
    /// Start of the last whole record.
    last_record: Option<u64>,
    /// Its store timestamp, in milliseconds.
    last_stored_ms: i64,
    /// End of the last byte behind the cut that isn't zero.
    dirty_to: u64,
    head: Vec<u8>,
    records: u64,
    cut_reason: Option<String>,
    zeroed_bytes: u64,
    removed: u64,
    state: Option<LogState>,
    switches: Switches,
}

impl Recovery {
    /// Checks the shapes and where to start.
    pub fn new(input: RecoveryInput) -> Result<Self, RecoveryError> {
        check_shapes(&input)?;
        let clean = match &input.state {
            Some(state) => state.clean,
            None => !input.abort,
        };
        let mut recovery = Self {
            phase: Phase::Scan,
            pending: None,
            clean,
            checkpoint_start: None,
            at: 0,
            scan_started_at: 0,
            need: 0,
            last_record: None,
            last_stored_ms: 0,
            dirty_to: 0,
            head: Vec::new(),
            records: 0,
            cut_reason: None,
            zeroed_bytes: 0,
            removed: 0,
            state: None,
            switches: Switches::default(),
            input,
        };
        let wants_checkpoint = recovery.input.abort
            && (recovery.input.state.is_none() || recovery.input.dispatched.is_none());
        match recovery.input.segments.len() {
            0 => recovery.begin_scan(),
            count if wants_checkpoint => recovery.phase = Phase::FindStart { index: count - 1 },
            _ => recovery.begin_scan(),
        }
        Ok(recovery)
    }

    /// Breaks the planner on purpose.
    #[cfg(any(test, feature = "sim-switches"))]
    pub fn set_switches(&mut self, switches: Switches) {
        self.switches = switches;
    }

    /// The next action. The former one must have been answered.
    pub fn next_action(&mut self) -> RecoveryAction {
        assert!(self.pending.is_none(), "one recovery action at a time");
        loop {
            if let Some(action) = self.step() {
                self.pending = match action {
                    RecoveryAction::Done(_) => None,
                    RecoveryAction::Read { len, .. } => Some(len),
                    _ => Some(0),
                };
                return action;
            }
        }
    }

    /// The bytes that a read brought.
    pub fn read_done(&mut self, bytes: &[u8]) -> Result<(), RecoveryError> {
        let want = self.pending.take();
        assert!(want.is_some_and(|want| want > 0), "a read was asked for");
        self.check_read(bytes, want.unwrap_or(0))?;
        match self.phase {
            Phase::FindStart { index } => self.first_record_read(index, bytes),
            Phase::Scan => self.scan(bytes)?,
            Phase::Inspect { at } => self.inspect(at, bytes),
            Phase::Partial => {
                self.head = bytes[..(self.at % UNIT_U64) as usize].to_vec();
                self.phase = Phase::Done;
            }
            _ => panic!("no read was asked for"),
        }
        Ok(())
    }

    /// The action (not a read) is done and durable as it says.
    pub fn action_done(&mut self) {
        assert!(self.pending.take() == Some(0), "an action that isn't a read was handed out");
        self.phase = match self.phase {
            Phase::Zero => Phase::Flush,
            Phase::Flush => Phase::Remove,
            Phase::Remove => {
                self.input.segments.pop();
                self.removed += 1;
                Phase::Remove
            }
            Phase::Save => Phase::Partial,
            _ => panic!("no such action was handed out"),
        };
    }

    /// The action of the present phase; `None` moves on to the next one.
    fn step(&mut self) -> Option<RecoveryAction> {
        match self.phase {
            Phase::FindStart { index } => {
                let start = self.input.segments.get(index)?.start;
                Some(RecoveryAction::Read { segment_start: start, position: 0, len: UNIT })
            }
            Phase::Scan => self.step_scan(),
            Phase::Inspect { at } => self.step_inspect(at),
            Phase::Zero => self.step_zero(),
            Phase::Flush => self.step_flush(),
            Phase::Remove => self.step_remove(),
            Phase::Save => Some(RecoveryAction::Save { state: self.new_state() }),
            Phase::Partial => self.step_partial(),
            Phase::Done => Some(RecoveryAction::Done(self.recovered())),
        }
    }

    // ---- where to start ----

    /// Stock's rule: the last segment whose first record was stored at or before the checkpoint's time.
    fn first_record_read(&mut self, index: usize, bytes: &[u8]) {
        let stored = store_timestamp(bytes);
        let chosen = stored.is_some_and(|time| time != 0 && time <= self.input.checkpoint.min_ms());
        match index.checked_sub(1) {
            _ if chosen => self.choose_start(index),
            Some(index) => self.phase = Phase::FindStart { index },
            None => self.choose_start(0),
        }
    }

    fn choose_start(&mut self, index: usize) {
        self.checkpoint_start = self.input.segments.get(index).map(|segment| segment.start);
        self.begin_scan();
    }

    fn begin_scan(&mut self) {
        let segments = &self.input.segments;
        let first = segments.first().map_or(0, |segment| segment.start);
        self.at = match (&self.input.state, self.checkpoint_start) {
            (Some(state), _) => state.scan_from.max(first),
            (None, Some(start)) => start,
            // Stock after a clean stop: the last three segments.
            (None, None) => segments
                .len()
                .checked_sub(3)
                .and_then(|i| segments.get(i))
                .map_or(first, |s| s.start),
        };
        self.scan_started_at = self.at;
        self.phase = Phase::Scan;
    }

    // ---- the scan ----

    fn step_scan(&mut self) -> Option<RecoveryAction> {
        if self.at >= self.ready_end() {
            self.cut(None);
            return None;
        }
        let segment_start = self.segment_start(self.at);
        let position = unit_floor(self.at - segment_start);
        let in_unit = (self.at - segment_start - position) as usize;
        let want = self.input.read_bytes.max((in_unit + self.need).next_multiple_of(UNIT));
        let rest = usize::try_from(self.input.segment_size - position).unwrap_or(usize::MAX);
        Some(RecoveryAction::Read { segment_start, position, len: want.min(rest) })
    }

    /// Checks the records in `bytes`, which start at the unit that holds `self.at`.
    fn scan(&mut self, bytes: &[u8]) -> Result<(), RecoveryError> {
        let base = unit_floor(self.at);
        let segment_start = self.segment_start(base);
        let segment_end = segment_start + self.input.segment_size;
        let reaches_segment_end = base + bytes.len() as u64 >= segment_end;
        self.need = 0;
        while self.at < base + bytes.len() as u64 {
            let rest = &bytes[(self.at - base) as usize..];
            let room = segment_end - self.at;
            let why = match check(rest, self.at, self.rule()) {
                CheckResult::Good(record) => {
                    let size = record.total_size() as u64;
                    if size + 8 <= room {
                        self.last_record = Some(self.at);
                        self.last_stored_ms = record.store_timestamp();
                        self.records += 1;
                        self.at += size;
                        continue;
                    }
                    Some(format!(
                        "a record of {size} bytes leaves no room for the end of segment mark"
                    ))
                }
                // A torn mark may have its magic and not its size; stock readers ignore the size.
                CheckResult::Blank { size }
                    if u64::from(size) == room || self.rule() == CheckRule::Stock =>
                {
                    self.last_record = Some(self.at);
                    self.at = segment_end;
                    if self.at >= self.ready_end() {
                        self.refuse_lost_records("the next segment is missing")?;
                    }
                    return Ok(());
                }
                CheckResult::Blank { size } => {
                    Some(format!("an end of segment mark of {size} bytes where {room} are left"))
                }
                CheckResult::Need { len }
                    if len as u64 + 8 <= room
                        && len <= RECORD_BYTES_MAX
                        && !reaches_segment_end =>
                {
                    self.need = len;
                    return Ok(());
                }
                CheckResult::Need { len } => {
                    Some(format!("a record of {len} bytes where {room} are left in the segment"))
                }
                CheckResult::End => None,
                CheckResult::Bad { why, .. } => Some(why.to_string()),
            };
            return self.bad(why);
        }
        Ok(())
    }

    /// Our own bytes are checked for every tear; what a stock broker wrote may hold NULs, and so may what is durable.
    fn rule(&self) -> CheckRule {
        match &self.input.state {
            Some(state) if self.at >= state.durable => CheckRule::Exact,
            _ => CheckRule::Stock,
        }
    }

    /// No whole record stands at `self.at`: cut there, unless it was durable.
    fn bad(&mut self, why: Option<String>) -> Result<(), RecoveryError> {
        if let Some(state) = &self.input.state
            && self.at < state.durable
        {
            let segment = self.segment_start(self.at);
            return Err(RecoveryError::Damaged {
                segment,
                position: self.at - segment,
                offset: self.at,
                durable: state.durable,
                why: why.unwrap_or_else(|| "zeros where a record must be".to_owned()),
            });
        }
        self.refuse_lost_records(why.as_deref().unwrap_or("zeros where a record must be"))?;
        self.cut(why);
        Ok(())
    }

    /// A broker that stopped clean had flushed all up to the time that its checkpoint tells: if the last whole record is older,
    /// records behind it are lost, and a cut would make that final.
    fn refuse_lost_records(&self, why: &str) -> Result<(), RecoveryError> {
        let flushed_ms = self.input.checkpoint.physic;
        if self.input.state.is_some() || self.input.abort || self.last_stored_ms >= flushed_ms {
            return Ok(());
        }
        let segment = self.segment_start(self.at);
        Err(RecoveryError::Lost {
            segment,
            position: self.at - segment,
            offset: self.at,
            stored_ms: self.last_stored_ms,
            flushed_ms,
            why: why.to_owned(),
        })
    }

    fn cut(&mut self, why: Option<String>) {
        self.cut_reason = why;
        self.dirty_to = self.at;
        self.phase = Phase::Inspect { at: unit_floor(self.at) };
    }

    // ---- behind the cut ----

    /// End of what may hold something but zeros, inside the segment of the cut.
    fn suspect_to(&self) -> u64 {
        let segment_end = self.segment_start(self.at) + self.input.segment_size;
        let bound = match &self.input.state {
            Some(state) => unit_ceil(state.write_bound.max(self.at)),
            None => u64::MAX,
        };
        bound.min(segment_end).min(self.ready_end().max(self.at))
    }

    fn step_inspect(&mut self, at: u64) -> Option<RecoveryAction> {
        let to = self.suspect_to();
        if at >= to {
            self.phase = Phase::Zero;
            return None;
        }
        let segment_start = self.segment_start(at);
        let len = self.input.read_bytes.min(usize::try_from(to - at).unwrap_or(usize::MAX));
        Some(RecoveryAction::Read { segment_start, position: at - segment_start, len })
    }

    fn inspect(&mut self, at: u64, bytes: &[u8]) {
        let skip = self.at.saturating_sub(at).min(bytes.len() as u64) as usize;
        if at == unit_floor(self.at) {
            self.head = bytes[..skip].to_vec();
        }
        if let Some(dirty) = dirty_len(&bytes[skip..]) {
            self.dirty_to = at + (skip + dirty) as u64;
        }
        self.phase = Phase::Inspect { at: at + bytes.len() as u64 };
    }

    fn step_zero(&mut self) -> Option<RecoveryAction> {
        if self.dirty_to <= self.at || self.switches.skip_zero_after_cut {
            self.phase = Phase::Flush;
            return None;
        }
        self.zeroed_bytes = self.dirty_to - self.at;
        let segment_start = self.segment_start(self.at);
        Some(RecoveryAction::Zero {
            segment_start,
            position: unit_floor(self.at) - segment_start,
            to: unit_ceil(self.dirty_to) - segment_start,
            head: self.head.clone(),
        })
    }

    /// Everything that may be only in the device's cache: all that was scanned, unless it was durable.
    fn step_flush(&mut self) -> Option<RecoveryAction> {
        let volatile_from = match &self.input.state {
            Some(state) => state.durable.max(self.scan_started_at),
            None => self.scan_started_at,
        };
        let from = self.segment_start(volatile_from.min(self.at));
        let segments: Vec<u64> = self
            .input
            .segments
            .iter()
            .map(|segment| segment.start)
            .filter(|start| *start >= from && *start <= self.at)
            .collect();
        let unneeded = self.clean && self.input.state.is_some() && self.zeroed_bytes == 0;
        if segments.is_empty() || unneeded || self.switches.skip_recovery_flush {
            self.phase = Phase::Remove;
            return None;
        }
        Some(RecoveryAction::Flush { segments })
    }

    /// Later segments hold what was dropped, or nothing: the former kind goes, and everything behind it.
    fn step_remove(&mut self) -> Option<RecoveryAction> {
        let cut_segment = self.segment_start(self.at);
        let next = cut_segment + self.input.segment_size;
        let untouched = self.input.state.is_some_and(|state| state.write_bound <= next);
        let last = self.input.segments.last().map(|segment| segment.start);
        match last {
            Some(start) if start > self.at && !untouched => Some(RecoveryAction::Remove { start }),
            _ => {
                self.phase = Phase::Save;
                None
            }
        }
    }

    // ---- the end ----

    fn new_state(&mut self) -> LogState {
        let (zeroed_from, zeroed_to) = self.zeroed();
        let state = LogState {
            segment_size: self.input.segment_size,
            scan_from: self.last_record.unwrap_or(self.scan_started_at).min(self.at),
            durable: self.at,
            write_bound: unit_ceil(self.at) + self.input.write_bound_step,
            zeroed_from,
            zeroed_to,
            clean: false,
        };
        *self.state.insert(state)
    }

    /// What is known to be written at and behind the cut: at least the units that held something.
    fn zeroed(&self) -> (u64, u64) {
        let at = unit_floor(self.at);
        let known = unit_ceil(self.at.max(if self.zeroed_bytes > 0 { self.dirty_to } else { 0 }));
        match &self.input.state {
            Some(state) if state.zeroed_from <= self.at && self.at <= state.zeroed_to => {
                let to = state.zeroed_to.min(self.ready_end()).max(known);
                (state.zeroed_from, to)
            }
            _ => (at, known),
        }
    }

    fn step_partial(&mut self) -> Option<RecoveryAction> {
        let position = unit_floor(self.at);
        if position == self.at || self.head.len() as u64 == self.at - position {
            self.phase = Phase::Done;
            return None;
        }
        let segment_start = self.segment_start(self.at);
        Some(RecoveryAction::Read { segment_start, position: position - segment_start, len: UNIT })
    }

    fn recovered(&mut self) -> Recovered {
        let state = match self.state {
            Some(state) => state,
            None => self.new_state(),
        };
        let min_offset = self.input.segments.first().map_or(self.at, |segment| segment.start);
        let redo_from = self.input.dispatched.or(self.checkpoint_start);
        Recovered {
            end: self.at,
            min_offset,
            partial_unit: std::mem::take(&mut self.head),
            ready_end: self.ready_end().max(self.segment_start(self.at)),
            state,
            redo_from: redo_from.map(|from| from.clamp(min_offset, self.at)),
            clean: self.clean,
            scanned_records: self.records,
            scanned_bytes: self.at - self.scan_started_at,
            cut_reason: self.cut_reason.take(),
            zeroed_bytes: self.zeroed_bytes,
            removed_segments: self.removed,
        }
    }

    fn segment_start(&self, offset: u64) -> u64 {
        offset - offset % self.input.segment_size
    }

    /// End of the last segment.
    fn ready_end(&self) -> u64 {
        self.input.segments.last().map_or(0, |segment| segment.start + self.input.segment_size)
    }

    fn check_read(&self, bytes: &[u8], want: usize) -> Result<(), RecoveryError> {
        if bytes.len() == want {
            return Ok(());
        }
        let at = match self.phase {
            Phase::FindStart { index } => self.input.segments.get(index).map_or(0, |s| s.start),
            Phase::Inspect { at } => at,
            _ => unit_floor(self.at),
        };
        let segment = self.segment_start(at);
        Err(RecoveryError::ShortRead { segment, position: at - segment, want, got: bytes.len() })
    }
}

/// Bytes up to the last one that isn't zero, if any; compared a unit at a time, for there may be a GiB of zeros.
fn dirty_len(bytes: &[u8]) -> Option<usize> {
    const ZEROS: [u8; UNIT] = [0; UNIT];
    let mut end = bytes.len();
    while end > 0 {
        let start = (end - 1) / UNIT * UNIT;
        let piece = &bytes[start..end];
        if *piece != ZEROS[..piece.len()] {
            return piece.iter().rposition(|byte| *byte != 0).map(|last| start + last + 1);
        }
        end = start;
    }
    None
}

fn check_shapes(input: &RecoveryInput) -> Result<(), RecoveryError> {
    let segment_size = input.segment_size;
    if segment_size < 2 * UNIT_U64 || !segment_size.is_multiple_of(UNIT_U64) {
        return Err(RecoveryError::SegmentSize(segment_size));
    }
    if let Some(state) = &input.state
        && state.segment_size != segment_size
    {
        let (store, configured) = (state.segment_size, segment_size);
        return Err(RecoveryError::SegmentSizeChanged { store, configured });
    }
    let mut expected = None;
    for segment in &input.segments {
        let (start, len) = (segment.start, segment.len);
        if len != segment_size || start % segment_size != 0 {
            return Err(RecoveryError::SegmentShape { start, len, segment_size });
        }
        if let Some(missing) = expected.filter(|missing| *missing != start) {
            return Err(RecoveryError::Gap { missing });
        }
        expected = Some(start + segment_size);
    }
    let first = input.segments.first().map_or(0, |segment| segment.start);
    let end = expected.unwrap_or(0);
    if input.segments.is_empty()
        && input.state.is_none()
        && !input.abort
        && input.checkpoint.physic > 0
    {
        return Err(RecoveryError::NoSegments { flushed_ms: input.checkpoint.physic });
    }
    match &input.state {
        // A durable offset before the first segment is only old: retention went on without saving it.
        Some(state) if state.durable > end => {
            Err(RecoveryError::Missing { durable: state.durable, first, end })
        }
        _ => Ok(()),
    }
}

/// The store timestamp of the V1 record at the start of `bytes`, in milliseconds; `None` if there is no such record.
fn store_timestamp(bytes: &[u8]) -> Option<i64> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    if word(4)? != MAGIC_MESSAGE {
        return None;
    }
    let born_host_bytes = if word(36)? & 0x10 != 0 { 20 } else { 8 };
    let at = 48 + born_host_bytes;
    bytes.get(at..at + 8)?.try_into().ok().map(i64::from_be_bytes)
}
