//! The log's deciding part: what is appended, in flight, written, durable; and what the device does next.
//!
//! ```text
//!   durable <= written <= appended        frontier, write bound
//!      |          |          |                    |
//!   ---+----------+----------+--------------------+------------->  physical offset
//!    flushed   completed   in memory        writes stop here until zeros and state are durable
//! ```
//!
//! The shell calls [`LogCore::append`] for each record, takes actions from [`LogCore::poll_action`] until there is none,
//! carries them out, and tells each outcome by the event the action names. Order of the rules that guard data:
//!
//! - One write is in flight at a time, in log order: `written` is a prefix without holes.
//! - One flush is in flight at a time; it covers only what was written before it began.
//! - A write never crosses the zeroed frontier (unless zeroing is off) nor the saved write bound.
//! - After a failed write or flush nothing is ever reported written or durable again.

use std::io;

use smallvec::SmallVec;

use super::{
    action::{Action, FlushAction, WriteAction, ZeroAction},
    block::{BlockBuf, Slice, Tail, UNIT, unit_ceil, unit_floor},
    core_config::{CoreConfig, CoreConfigError},
    failure::{AppendError, FailedOperation, Failure},
    follow::{FollowError, Walk},
    frontier::Frontier,
    hot::HotBlocks,
    recovery::Recovered,
    state::LogState,
    switches::Switches,
};

/// Bytes of a BLANK record that matter: room and magic.
const BLANK_BYTES: usize = 8;
/// Magic of the BLANK record (stock 4.x).
const BLANK_MAGIC: u32 = 0xCBD4_3194;

/// How far the log is. Physical offsets, each the end of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// End of what was appended.
    pub appended: u64,
    /// End of the last record that lies wholly inside completed writes which a crash of the kernel leaves where they are.
    pub written: u64,
    /// End of what a flush covered.
    pub durable: u64,
    /// End of what readers may see: written, or durable at level `sync`.
    pub visible: u64,
}

struct WriteInFlight {
    id: u64,
    segment_start: u64,
    end: u64,
    padded_end: u64,
    /// It goes where no zeros are.
    beyond: bool,
    append_start: u64,
    payload: u64,
}

struct FlushInFlight {
    id: u64,
    upto: u64,
    append_start: u64,
    segment_start: u64,
    padded_end: u64,
}

#[derive(PartialEq, Eq)]
enum Prepare {
    Idle,
    InFlight,
    /// The shell could not; nothing is tried before `retry`.
    Failed,
}

/// One shard's log, without its files. Lives on the reactor that owns the shard. See the module.
pub struct LogCore<B> {
    config: CoreConfig,
    tail: Option<Tail<B>>,
    blocks: HotBlocks<B>,
    /// Size of the next block: doubles when one fills before it can be written, halves when one goes mostly empty.
    block_bytes: usize,
    appended: u64,
    written: u64,
    durable: u64,
    /// Start of the newest append that ends at `written`, and at `durable`.
    written_append_start: u64,
    durable_append_start: u64,
    unwritten_bytes: u64,
    /// What of `written` a crash of the kernel leaves: all of it, unless writes went beyond the zeros and were not flushed since.
    firm: u64,
    firm_append_start: u64,
    /// End of the newest such write.
    loose_to: Option<u64>,
    /// End of what completed writes brought, at a unit.
    padded_to: u64,
    /// Writes go where no zeros are, and are made up for by flushes.
    bulk: bool,
    frontier: Frontier,
    /// End of the last segment that is ready.
    ready_end: u64,
    saved: LogState,
    next_id: u64,
    write: Option<WriteInFlight>,
    flush: Option<FlushInFlight>,
    zero: Option<ZeroAction>,
    save: Option<(u64, LogState)>,
    prepare: Prepare,
    /// Segments written since the last flush began.
    unflushed_segments: SmallVec<[u64; 2]>,
    flush_requested: bool,
    save_requested: bool,
    /// Zeroing or saving failed in a way that may pass; nothing is tried before `retry`.
    zero_suspended: bool,
    save_suspended: bool,
    closing: bool,
    failure: Option<Failure>,
    /// The walk along the records of the log that this one follows, once it has taken bytes of it.
    follow: Option<Walk>,
    /// No action is handed out: somebody is changing what lies below.
    paused: bool,
    /// The segment of the log's beginning is not made yet.
    unbacked: bool,
    switches: Switches,
}

impl<B: BlockBuf> LogCore<B> {
    /// The log as recovery left it.
    pub fn new(config: CoreConfig, recovered: &Recovered) -> Result<Self, CoreConfigError> {
        config.check()?;
        let end = recovered.end;
        let mut frontier = Frontier::new(
            config.segment_size,
            config.zero_step_bytes_min..=config.zero_step_bytes_max,
            recovered.state.zeroed_from,
            recovered.state.zeroed_to,
        );
        frontier.move_to(end);
        let mut blocks = HotBlocks::new(config.hot_bytes_max);
        if !recovered.partial_unit.is_empty() {
            // The first block begins with a copy of the last partial unit, as every other one.
            let partial = Tail::open(end, &recovered.partial_unit, UNIT).seal(end);
            blocks.push(partial);
            blocks.first_queued_written();
        }
        let scan_from = recovered.state.scan_from;
        Ok(Self {
            block_bytes: config.block_bytes_min,
            tail: None,
            blocks,
            appended: end,
            written: end,
            durable: end,
            written_append_start: scan_from,
            durable_append_start: scan_from,
            unwritten_bytes: 0,
            firm: end,
            firm_append_start: scan_from,
            loose_to: None,
            padded_to: unit_ceil(end),
            bulk: false,
            frontier,
            ready_end: recovered.ready_end,
            saved: recovered.state,
            next_id: 1,
            write: None,
            flush: None,
            zero: None,
            save: None,
            prepare: Prepare::Idle,
            unflushed_segments: SmallVec::new(),
            flush_requested: false,
            save_requested: false,
            zero_suspended: false,
            save_suspended: false,
            closing: false,
            failure: None,
            follow: None,
            paused: false,
            unbacked: false,
            switches: Switches::default(),
            config,
        })
    }

    /// Breaks the core on purpose.
    #[cfg(any(test, feature = "sim-switches"))]
    pub fn set_switches(&mut self, switches: Switches) {
        self.switches = switches;
    }

    // ---- appending ----

    /// Reserves `len` bytes (one record, or the records of a batch back to back) and lets `fill` encode them in place;
    /// `fill` gets their physical offset and must write every byte. They are contiguous and in one segment. Returns the
    /// physical offset; what is promised about them is told by [`Self::offsets`].
    pub fn append(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8], u64),
    ) -> Result<u64, AppendError> {
        self.admit(len)?;
        self.leave_full_segment(len)?;
        let (bytes, offset) = self.tail_with_room(len).take(len);
        fill(bytes, offset);
        self.appended = offset + len as u64;
        self.unwritten_bytes += len as u64;
        Ok(offset)
    }

    /// Takes bytes of another log that this one follows, at their physical offset `from`, which must be this one's end. `fill` gets
    /// the place where they belong, at most `len_max` bytes and never across a segment's end, and says how many it put there.
    /// They may end inside a record. Returns how many were taken.
    ///
    /// # Errors
    /// [`FollowError`]; nothing was taken then, whatever `fill` did.
    pub fn follow(
        &mut self,
        from: u64,
        len_max: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<usize, FollowError> {
        let end = self.appended;
        if from != end {
            return Err(FollowError::Gap { from, end });
        }
        self.admit(1)?;
        if end >= self.ready_end {
            // Never true of a segment that has room: nothing is asked of it.
            self.room_for(1)?;
        }
        let segment_end = self.segment_end(end);
        let walk = *self.follow.get_or_insert_with(|| {
            // From here on these two are the last boundary between records.
            self.written_append_start = end;
            self.durable_append_start = end;
            self.firm_append_start = end;
            Walk::new(end)
        });
        let tail = self.tail_with_room(1);
        let room = usize::try_from(segment_end - end).unwrap_or(usize::MAX);
        let spare = tail.spare(len_max.min(room));
        let filled = fill(spare).and_then(|len| match spare.get(..len) {
            Some(bytes) => Ok(bytes),
            None => Err(io::Error::other("more bytes than there was room for")),
        });
        let mut walked = walk;
        let taken = filled.map_err(FollowError::from).and_then(|bytes| {
            walked.feed(bytes, segment_end)?;
            Ok(bytes.len())
        });
        if let Ok(len) = taken {
            tail.took(len, walked.boundary());
            self.follow = Some(walked);
            self.appended += len as u64;
            self.unwritten_bytes += len as u64;
        }
        if self.tail.as_ref().is_some_and(|tail| !tail.is_dirty()) {
            self.tail = None;
        } else if self.appended == segment_end {
            self.seal_tail();
        }
        taken
    }

    /// Starts an empty log at another place: the start of a segment that is still to be made. Nothing may be in flight.
    pub fn begin_at(&mut self, start: u64) {
        assert!(start.is_multiple_of(self.config.segment_size), "a log begins with a segment");
        assert!(self.is_idle() && self.tail.is_none(), "nothing is in flight");
        self.blocks = HotBlocks::new(self.config.hot_bytes_max);
        self.appended = start;
        self.written = start;
        self.durable = start;
        self.written_append_start = start;
        self.durable_append_start = start;
        (self.firm, self.firm_append_start) = (start, start);
        (self.loose_to, self.padded_to) = (None, start);
        let steps = self.config.zero_step_bytes_min..=self.config.zero_step_bytes_max;
        self.frontier = Frontier::new(self.config.segment_size, steps, start, start);
        self.ready_end = start;
        self.prepare = Prepare::Idle;
        self.follow = None;
        self.unbacked = true;
    }

    /// Stops or goes on handing out actions.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether writes go where no zeros are yet: for a log that takes much at once and is not waited for, byte by byte. Each byte is written
    /// once then instead of twice; what is written counts as that when a flush has covered it.
    pub fn set_bulk(&mut self, bulk: bool) {
        self.bulk = bulk && self.config.zero_ahead;
    }

    /// End of the last record that readers may see whole: [`Self::visible`], except while another log is followed.
    pub fn visible_whole(&self) -> u64 {
        match (&self.follow, self.config.sync) {
            (None, _) => self.visible(),
            (Some(_), true) => self.durable_append_start,
            (Some(_), false) => self.firm_append_start,
        }
    }

    /// Whether `append` would take `len` bytes now; nothing changes.
    pub fn admits(&self, len: usize) -> Result<(), AppendError> {
        self.admit(len)?;
        self.room_for(len).map(|_| ())
    }

    fn admit(&self, len: usize) -> Result<(), AppendError> {
        if let Some(failure) = &self.failure {
            return Err(AppendError::Failed(failure.clone()));
        }
        if self.closing {
            return Err(AppendError::Closed);
        }
        if len == 0 {
            return Err(AppendError::Empty);
        }
        let max = self.config.segment_size - BLANK_BYTES as u64;
        if len as u64 > max {
            return Err(AppendError::TooLarge { len, max });
        }
        // What is written and waits for its flush counts too: each of its records is held in memory until it is visible.
        let waiting =
            if self.config.sync { self.appended - self.durable } else { self.unwritten_bytes };
        let max = self.config.unwritten_bytes_max;
        if waiting > 0 && waiting + len as u64 > max {
            return Err(AppendError::Busy { unwritten: waiting, max });
        }
        Ok(())
    }

    /// Whether a record of `len` bytes fits into the open segment; if not, whether the next one is ready.
    fn room_for(&self, len: usize) -> Result<bool, AppendError> {
        let not_ready = |start| match self.prepare {
            Prepare::Failed => AppendError::NoSpace { start },
            Prepare::Idle | Prepare::InFlight => AppendError::NotReady { start },
        };
        if self.appended >= self.ready_end {
            return Err(not_ready(self.ready_end));
        }
        let segment_end = self.segment_end(self.appended);
        // Stock's rule: each record leaves room for a BLANK.
        if (len + BLANK_BYTES) as u64 <= segment_end - self.appended {
            return Ok(true);
        }
        if segment_end < self.ready_end { Ok(false) } else { Err(not_ready(segment_end)) }
    }

    /// Ends the open segment with a BLANK record if `len` bytes don't fit.
    fn leave_full_segment(&mut self, len: usize) -> Result<(), AppendError> {
        if self.room_for(len)? {
            return Ok(());
        }
        let segment_end = self.segment_end(self.appended);
        let room = segment_end - self.appended;
        let (bytes, _) = self.tail_with_room(BLANK_BYTES).take(BLANK_BYTES);
        bytes[..4].copy_from_slice(&(room as u32).to_be_bytes());
        bytes[4..].copy_from_slice(&BLANK_MAGIC.to_be_bytes());
        self.unwritten_bytes += BLANK_BYTES as u64;
        self.appended = segment_end;
        self.seal_tail();
        Ok(())
    }

    /// The open block, with at least `len` free bytes.
    fn tail_with_room(&mut self, len: usize) -> &mut Tail<B> {
        if self.tail.as_ref().is_some_and(|tail| tail.room() < len) {
            self.seal_tail();
            self.block_bytes = (self.block_bytes * 2).min(self.config.block_bytes_max);
        }
        let open = self.tail.take().unwrap_or_else(|| self.open_tail(len));
        self.tail.insert(open)
    }

    fn open_tail(&self, len: usize) -> Tail<B> {
        let copy = match self.blocks.last() {
            Some(block) if block.end == self.appended => block.partial_unit(),
            _ => &[],
        };
        let need = (copy.len() + len).next_multiple_of(UNIT);
        let in_segment = self.segment_end(self.appended) - unit_floor(self.appended);
        let size =
            self.block_bytes.max(need).min(usize::try_from(in_segment).unwrap_or(usize::MAX));
        Tail::open(self.appended, copy, size)
    }

    fn seal_tail(&mut self) {
        if let Some(tail) = self.tail.take() {
            assert!(tail.is_dirty(), "a block is opened for a record");
            self.blocks.push(tail.seal(self.appended));
        }
    }

    // ---- deciding ----

    /// The next thing to do, or `None` until an event or an append. The order is by urgency.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        if self.failure.is_some() || self.paused {
            return None;
        }
        if let Some(write) = self.poll_write() {
            return Some(Action::Write(write));
        }
        if let Some(flush) = self.poll_flush() {
            return Some(Action::Flush(flush));
        }
        if let Some((id, state)) = self.poll_save() {
            return Some(Action::Save { id, state });
        }
        if let Some(start) = self.poll_prepare() {
            return Some(Action::Prepare { start });
        }
        self.poll_zero().map(Action::Zero)
    }

    fn poll_write(&mut self) -> Option<WriteAction<B>> {
        if self.write.is_some() {
            return None;
        }
        let (base, end) = self.next_write()?;
        // Everything before `base` is written, so what is left of an earlier segment needs no zeros any more.
        self.frontier.move_to(base);
        let beyond = end > self.frontier_limit();
        // Zeros under way would overwrite it.
        let may_go_beyond = self.bulk && self.zero.is_none();
        if beyond && !may_go_beyond || end > self.bound_limit() {
            return None;
        }
        if self.blocks.first_queued().is_none() {
            if (end - base) * 4 <= self.block_bytes as u64 {
                self.block_bytes = (self.block_bytes / 2).max(self.config.block_bytes_min);
            }
            self.seal_tail();
        }
        let id = self.take_id();
        let block = self.blocks.first_queued()?;
        let segment_start = self.segment_start(block.base);
        self.write = Some(WriteInFlight {
            id,
            segment_start,
            end: block.end,
            padded_end: block.padded_end(),
            beyond,
            append_start: block.append_start,
            payload: block.base + block.used as u64 - block.fresh,
        });
        let position = block.base - segment_start;
        Some(WriteAction { id, segment_start, position, buf: std::rc::Rc::clone(&block.buf) })
    }

    /// What would be written next, sealed or not: first byte and end, both at units.
    fn next_write(&self) -> Option<(u64, u64)> {
        match (self.blocks.first_queued(), &self.tail) {
            (Some(block), _) => Some((block.base, block.padded_end())),
            (None, Some(tail)) => Some((tail.base(), unit_ceil(tail.end()))),
            (None, None) => None,
        }
    }

    fn poll_flush(&mut self) -> Option<FlushAction> {
        if self.flush.is_some() || self.written == self.durable {
            // A request made with nothing to flush is answered by what is durable already.
            self.flush_requested &= self.flush.is_some() || self.write.is_some();
            return None;
        }
        if !(self.config.sync || self.flush_requested || self.closing || self.loose_is_due()) {
            return None;
        }
        self.flush_requested = false;
        let id = self.take_id();
        let segments = std::mem::take(&mut self.unflushed_segments);
        self.flush = Some(FlushInFlight {
            id,
            upto: self.written,
            append_start: self.written_append_start,
            segment_start: segments.first().copied().unwrap_or(self.segment_start(self.written)),
            padded_end: self.padded_to,
        });
        Some(FlushAction { id, upto: self.written, segments })
    }

    /// Whether what was written beyond the zeros is to be flushed: as often as zeros would have been, and when nothing else is written.
    fn loose_is_due(&self) -> bool {
        let much = self.written - self.durable >= self.config.zero_step_bytes_min;
        self.loose_to.is_some() && (much || self.write.is_none())
    }

    fn poll_save(&mut self) -> Option<(u64, LogState)> {
        // A state that says durable what has no file would be refused by the next recovery.
        if self.save.is_some() || self.save_suspended || self.saved.clean || self.unbacked {
            return None;
        }
        let step = self.config.write_bound_step;
        let end = unit_ceil(self.appended);
        let state = if self.closing && self.is_quiet() {
            LogState { write_bound: self.appended, clean: true, ..self.state() }
        } else if end + step / 2 > self.saved.write_bound && !self.closing
            || self.next_write().is_some_and(|(_, end)| end > self.bound_limit())
        {
            LogState { write_bound: end + step, ..self.state() }
        } else if self.save_requested
            || self.saved.zeroed_to.saturating_add(step) <= self.frontier.reached()
        {
            self.state()
        } else {
            return None;
        };
        self.save_requested = false;
        let id = self.take_id();
        self.save = Some((id, state));
        Some((id, state))
    }

    fn poll_prepare(&mut self) -> Option<u64> {
        let wanted = self.appended + self.config.segment_size >= self.ready_end;
        if self.prepare != Prepare::Idle || !wanted || self.closing {
            return None;
        }
        self.prepare = Prepare::InFlight;
        Some(self.ready_end)
    }

    fn poll_zero(&mut self) -> Option<ZeroAction> {
        if !self.config.zero_ahead || self.zero_suspended {
            return None;
        }
        // Where writes go beyond the frontier, zeros would overwrite them.
        let going_beyond = self.write.as_ref().is_some_and(|write| write.beyond);
        if self.bulk || going_beyond || self.loose_to.is_some() {
            return None;
        }
        let waits = self.next_write().is_some_and(|(_, end)| end > self.frontier.reached());
        if self.closing && !waits {
            return None;
        }
        let ahead = unit_ceil(self.appended).saturating_add(self.config.zero_ahead_bytes);
        let piece = self.frontier.next_piece(ahead.min(self.ready_end), waits)?;
        let segment_start = self.segment_start(piece.from);
        let zero = ZeroAction {
            id: self.take_id(),
            segment_start,
            from: piece.from - segment_start,
            to: piece.to - segment_start,
            urgent: waits,
        };
        self.zero = Some(zero.clone());
        Some(zero)
    }

    /// Whether log writes wait for the zeroing in flight, or soon will: it leads them by less than the smallest step.
    pub fn zero_is_urgent(&self) -> bool {
        unit_ceil(self.appended) + self.config.zero_step_bytes_min > self.frontier.reached()
    }

    // ---- events ----

    /// The write ended. Its whole block is on the device, or the log has failed.
    pub fn write_done(&mut self, id: u64, result: io::Result<()>) {
        let write = self.write.take().filter(|write| write.id == id);
        let Some(write) = write else { panic!("write {id} ended but isn't in flight") };
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = result {
            self.fail(FailedOperation::Write, write.segment_start, write.end, &error);
            return;
        }
        self.blocks.first_queued_written();
        self.written = write.end;
        self.written_append_start = write.append_start;
        self.unwritten_bytes -= write.payload;
        self.padded_to = write.padded_end;
        if write.beyond {
            self.loose_to = Some(write.end);
        }
        if self.unflushed_segments.last() != Some(&write.segment_start) {
            self.unflushed_segments.push(write.segment_start);
        }
        if self.switches.skip_flush {
            self.durable = self.written;
            self.durable_append_start = self.written_append_start;
        }
        self.firm_up();
        self.check_order();
    }

    /// The flush ended: all its segments succeeded, or the log has failed.
    pub fn flush_done(&mut self, id: u64, result: io::Result<()>) {
        let flush = self.flush.take().filter(|flush| flush.id == id);
        let Some(flush) = flush else { panic!("flush {id} ended but isn't in flight") };
        if self.failure.is_some() {
            return;
        }
        match result {
            Ok(()) => {
                self.durable = flush.upto;
                self.durable_append_start = flush.append_start;
                if self.loose_to.is_some() {
                    self.frontier.flushed(flush.padded_end);
                }
                self.loose_to.take_if(|to| *to <= flush.upto);
                self.firm_up();
                self.check_order();
            }
            Err(error) => {
                self.fail(FailedOperation::Flush, flush.segment_start, flush.upto, &error);
            }
        }
    }

    /// The zeros are durable, or the log has failed. A full disk or quota only suspends zeroing until [`Self::retry`].
    pub fn zero_done(&mut self, id: u64, result: io::Result<()>) {
        let zero = self.zero.take().filter(|zero| zero.id == id);
        let Some(zero) = zero else { panic!("zeroing {id} ended but isn't in flight") };
        match result {
            Ok(()) => self.frontier.piece_done(),
            Err(error) => {
                self.frontier.piece_failed();
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
                {
                    self.zero_suspended = true;
                } else {
                    let upto = zero.segment_start + zero.to;
                    self.fail(FailedOperation::Zero, zero.segment_start, upto, &error);
                }
            }
        }
    }

    /// The segment is there; its first `zeroed` bytes are durable zeros (all of them where the file system can do that
    /// for free).
    pub fn segment_ready(&mut self, start: u64, zeroed: u64) {
        assert!(start == self.ready_end, "segments get ready in order");
        self.prepare = Prepare::Idle;
        self.ready_end = start + self.config.segment_size;
        self.unbacked = false;
        self.frontier.segment_ready(start, zeroed);
    }

    /// The segment could not be made. Appends that need it are refused until [`Self::retry`] and a success.
    pub fn segment_failed(&mut self, start: u64) {
        assert!(start == self.ready_end, "segments get ready in order");
        self.prepare = Prepare::Failed;
    }

    /// The state is durable, or still the former one; then nothing is tried before [`Self::retry`].
    pub fn state_saved(&mut self, id: u64, result: io::Result<()>) {
        let save = self.save.take().filter(|(saving, _)| *saving == id);
        let Some((_, state)) = save else { panic!("save {id} ended but isn't in flight") };
        match result {
            Ok(()) => self.saved = state,
            Err(_) => self.save_suspended = true,
        }
    }

    /// Tries again what a full disk stopped: preparing, zeroing, saving. Call it now and then.
    pub fn retry(&mut self) {
        if self.prepare == Prepare::Failed {
            self.prepare = Prepare::Idle;
        }
        self.zero_suspended = false;
        self.save_suspended = false;
    }

    // ---- requests ----

    /// Asks for a flush of what is written by then. One is in flight at a time; at level `sync` they come by themselves.
    pub fn request_flush(&mut self) {
        self.flush_requested = self.written > self.durable || self.write.is_some();
    }

    /// Asks to save the state, so that a recovery starts later in the log.
    pub fn request_save(&mut self) {
        self.save_requested = self.saved != self.state();
    }

    /// Refuses appends from now on; what was appended is written, flushed, and the state saved as clean.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Closed, and its state durable.
    pub fn is_closed(&self) -> bool {
        self.closing && (self.saved.clean || self.unbacked)
    }

    /// No write, flush, zeroing, save or preparation is in flight.
    pub fn is_idle(&self) -> bool {
        self.write.is_none()
            && self.flush.is_none()
            && self.zero.is_none()
            && self.save.is_none()
            && self.prepare != Prepare::InFlight
    }

    // ---- looking ----

    /// How far the log is.
    pub fn offsets(&self) -> Offsets {
        Offsets {
            appended: self.appended,
            written: self.firm,
            durable: self.durable,
            visible: self.visible(),
        }
    }

    /// End of what readers may see.
    pub fn visible(&self) -> u64 {
        if self.switches.skip_visibility_wait {
            self.appended
        } else if self.config.sync {
            self.durable
        } else {
            self.firm
        }
    }

    /// End of what completed writes brought, whether or not a crash of the kernel leaves it.
    pub fn on_device(&self) -> u64 {
        self.written
    }

    /// Bytes appended and not yet written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes
    }

    /// Bytes of memory that written blocks hold.
    pub fn hot_bytes(&self) -> usize {
        self.blocks.hot_bytes()
    }

    /// Physical offset from which on everything written is in memory.
    pub fn hot_from(&self) -> u64 {
        self.blocks.first_offset().unwrap_or(self.appended)
    }

    /// The zeroed frontier: log writes don't cross it.
    pub fn zeroed_to(&self) -> u64 {
        self.frontier.reached()
    }

    /// End of the last segment that is ready.
    pub fn ready_end(&self) -> u64 {
        self.ready_end
    }

    /// Segments that end at or before this may be deleted: they are durable, visible, and nothing in flight touches them.
    pub fn deletable_to(&self) -> u64 {
        let zeroing = self.zero.as_ref().map_or(u64::MAX, |zero| zero.segment_start);
        self.durable.min(self.visible()).min(zeroing)
    }

    /// What made the log stop, if anything did.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The state as it is now, with the saved write bound.
    pub fn state(&self) -> LogState {
        LogState {
            segment_size: self.config.segment_size,
            scan_from: self.durable_append_start,
            // A boundary between records: recovery takes anything less for damage.
            durable: if self.follow.is_some() { self.durable_append_start } else { self.durable },
            write_bound: self.saved.write_bound,
            zeroed_from: self.frontier.from(),
            zeroed_to: self.frontier.reached(),
            clean: false,
        }
    }

    /// `[offset, offset + len)`, one or more whole records as appended, if they are written and still in memory.
    pub fn hot(&self, offset: u64, len: usize) -> Option<Slice> {
        self.blocks.slice(offset, len)
    }

    /// Written bytes from `offset` on, at most `len_max`, whatever records they belong to; never empty.
    pub fn hot_from_offset(&self, offset: u64, len_max: usize) -> Option<Slice> {
        self.blocks.slice_from(offset, len_max)
    }

    // ---- inside ----

    fn segment_start(&self, offset: u64) -> u64 {
        offset - offset % self.config.segment_size
    }

    fn segment_end(&self, offset: u64) -> u64 {
        self.segment_start(offset) + self.config.segment_size
    }

    fn frontier_limit(&self) -> u64 {
        let unlimited = !self.config.zero_ahead || self.switches.skip_frontier;
        if unlimited { u64::MAX } else { self.frontier.reached() }
    }

    fn bound_limit(&self) -> u64 {
        if self.switches.skip_write_bound { u64::MAX } else { self.saved.write_bound }
    }

    /// Everything is flushed and nothing that touches log bytes is in flight.
    fn is_quiet(&self) -> bool {
        self.durable == self.appended
            && self.write.is_none()
            && self.flush.is_none()
            && self.zero.is_none()
    }

    /// What is written counts as that as far as a crash of the kernel leaves it.
    fn firm_up(&mut self) {
        if self.loose_to.is_none() || self.switches.skip_loose {
            (self.firm, self.firm_append_start) = (self.written, self.written_append_start);
        } else if self.firm < self.durable {
            (self.firm, self.firm_append_start) = (self.durable, self.durable_append_start);
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn fail(
        &mut self,
        operation: FailedOperation,
        segment_start: u64,
        upto: u64,
        error: &io::Error,
    ) {
        self.failure.get_or_insert_with(|| Failure {
            operation,
            segment_start,
            upto,
            reason: error.to_string(),
            kind: error.kind(),
        });
    }

    /// Checked at every step forward, in release builds too: it is cheap next to an I/O.
    fn check_order(&self) {
        assert!(
            self.durable <= self.firm && self.firm <= self.written && self.written <= self.appended,
            "durable {} <= firm {} <= written {} <= appended {}",
            self.durable,
            self.firm,
            self.written,
            self.appended
        );
    }
}
