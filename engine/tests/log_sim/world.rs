//! One seed, one world: a log, its disk, its senders and readers, and everything that goes wrong.

use std::{io, rc::Rc};

use ringmq_engine::log::{
    Action, AppendError, BlockBuf, CoreConfig, LogCore, Recovered, Recovery, RecoveryAction,
    RecoveryInput, SegmentFile, Switches,
};

use crate::{
    disk::{Crash, Disk},
    message::{LEN_MIN, Message, encode},
    oracle::{Oracle, Violation, hold},
    rng::Rng,
};

/// Block memory of the simulator.
#[derive(Debug)]
pub(crate) struct VecBuf(Vec<u8>);

impl AsRef<[u8]> for VecBuf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BlockBuf for VecBuf {
    fn alloc(size: usize) -> Self {
        // Memory from an allocator isn't zero.
        Self(vec![0xA5; size])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn trim(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

/// What happened, so that a run of many seeds can show that it went everywhere.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) kills: u64,
    pub(crate) kernel_crashes: u64,
    pub(crate) power_cuts: u64,
    pub(crate) crashes_in_recovery: u64,
    pub(crate) closes: u64,
    pub(crate) failures: u64,
    pub(crate) rolls: u64,
    pub(crate) torn_cuts: u64,
    pub(crate) zeroed: u64,
    pub(crate) removed_segments: u64,
    pub(crate) retention: u64,
    pub(crate) refused: u64,
    pub(crate) hot_reads: u64,
    pub(crate) seen_lost_at_write: u64,
    pub(crate) states_lost: u64,
    pub(crate) settled: u64,
    /// Moments at which something was on the device and did not count as written yet.
    pub(crate) loose: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.kills += other.kills;
        self.kernel_crashes += other.kernel_crashes;
        self.power_cuts += other.power_cuts;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.closes += other.closes;
        self.failures += other.failures;
        self.rolls += other.rolls;
        self.torn_cuts += other.torn_cuts;
        self.zeroed += other.zeroed;
        self.removed_segments += other.removed_segments;
        self.retention += other.retention;
        self.refused += other.refused;
        self.hot_reads += other.hot_reads;
        self.seen_lost_at_write += other.seen_lost_at_write;
        self.states_lost += other.states_lost;
        self.settled += other.settled;
        self.loose += other.loose;
    }
}

enum Op {
    Write { id: u64, start: u64, position: u64, buf: Rc<VecBuf> },
    Flush { id: u64, segments: Vec<u64>, begun: u64 },
    Zero { id: u64, start: u64, from: u64, to: u64 },
    Prepare { start: u64 },
    Save { id: u64, state: ringmq_engine::log::LogState },
}

/// How a life of the process ended.
enum End {
    Crash(Crash),
    Closed,
}

pub(crate) struct World {
    rng: Rng,
    config: CoreConfig,
    read_bytes: usize,
    switches: Switches,
    disk: Disk,
    oracle: Oracle,
    in_flight: Vec<Op>,
    /// Queues used, and the record lengths that senders choose from.
    queues: u64,
    lengths: Vec<usize>,
    /// In some worlds much comes at once now and then, by dice of their own: it changes nothing in the others.
    bulk: Option<Rng>,
    /// Percent of operations that fail in this life.
    fault_percent: u64,
    trace: u64,
    verbose: bool,
    pub(crate) counts: Counts,
}

impl World {
    pub(crate) fn new(seed: u64, switches: Switches, settled: bool, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let granule = rng.pick(&[512, 4096]);
        let segment_size = rng.pick(&[32, 64, 96, 128]) << 10;
        let block_bytes_min = rng.pick(&[4096, 8192]);
        let config = CoreConfig {
            segment_size,
            unwritten_bytes_max: rng.between(8, 128) << 10,
            hot_bytes_max: rng.pick(&[0, 16 << 10, 256 << 10]),
            block_bytes_min,
            block_bytes_max: block_bytes_min << rng.below(4),
            sync: rng.chance(50),
            zero_ahead: rng.chance(80),
            zero_ahead_bytes: rng.pick(&[0, 16 << 10, 256 << 10]),
            zero_step_bytes_min: rng.pick(&[4096, 8192]),
            zero_step_bytes_max: rng.pick(&[16 << 10, 64 << 10]),
            write_bound_step: rng.pick(&[4096, 16 << 10, 64 << 10]),
        };
        let largest = rng.pick(&[600, 3000, 20_000, 40_000]).min(segment_size as usize - 8);
        // Equal lengths bring a stale record exactly behind a new one.
        let distinct = rng.pick(&[1, 2, 50]);
        let lengths =
            (0..distinct).map(|_| rng.between(LEN_MIN as u64, largest as u64) as usize).collect();
        Self {
            disk: Disk::new(granule, segment_size as usize),
            oracle: Oracle::new(segment_size, config.sync, config.zero_ahead, settled),
            read_bytes: rng.pick(&[4096, 16 << 10, 64 << 10]),
            queues: rng.between(1, 3),
            switches,
            config,
            lengths,
            in_flight: Vec::new(),
            bulk: (seed % 4 == 3).then(|| Rng::new(!seed)),
            fault_percent: 0,
            trace: 0,
            verbose,
            counts: Counts::default(),
            rng,
        }
    }

    /// Runs the world to its end. The hash is that of everything that happened.
    pub(crate) fn run(&mut self) -> Result<u64, Violation> {
        let lives = self.rng.between(2, 5);
        let mut clean = false;
        for life in 0..=lives {
            let recovered = self.recover(clean)?;
            if life == lives {
                break;
            }
            match self.live(&recovered)? {
                End::Closed => {
                    clean = true;
                    self.oracle.closed();
                    // Whatever happens to a closed log, it is whole.
                    let kind = self.rng.pick(&[Crash::Kill, Crash::Kernel, Crash::Power]);
                    self.crash(kind);
                    if self.rng.chance(20) {
                        // A stock broker was here, or somebody removed what is ours: stock's rules find the end.
                        self.note(format_args!("state lost"));
                        self.counts.states_lost += 1;
                        self.disk.state = None;
                    }
                }
                End::Crash(kind) => {
                    clean = false;
                    self.crash(kind);
                }
            }
        }
        Ok(self.trace)
    }

    // ---- recovery ----

    fn recover(&mut self, clean: bool) -> Result<Recovered, Violation> {
        let crash_percent = self.rng.pick(&[0, 5, 20]);
        let mut crashes_left = 5;
        loop {
            let mut recovery = Recovery::new(self.recovery_input(clean))
                .map_err(|error| format!("recovery refuses: {error}"))?;
            recovery.set_switches(self.switches);
            match self.carry_out(&mut recovery, crash_percent * u64::from(crashes_left > 0))? {
                Some(recovered) => {
                    self.check_recovered(&recovered, clean)?;
                    return Ok(recovered);
                }
                None => {
                    crashes_left -= 1;
                    self.counts.crashes_in_recovery += 1;
                }
            }
        }
    }

    /// `None` if it crashed on the way.
    fn carry_out(
        &mut self,
        recovery: &mut Recovery,
        crash_percent: u64,
    ) -> Result<Option<Recovered>, Violation> {
        loop {
            let action = recovery.next_action();
            if let RecoveryAction::Done(recovered) = action {
                return Ok(Some(recovered));
            }
            let crash = self.rng.chance(crash_percent);
            // A crash comes before, inside or after.
            let reach = if crash { self.rng.below(3) } else { 2 };
            self.note(format_args!("recovery {action:?} reach {reach} crash {crash}"));
            if reach > 0 {
                let percent = if reach == 2 { 100 } else { 50 };
                self.apply_recovery(recovery, &action, percent)?;
            }
            if crash {
                let kind = self.rng.pick(&[Crash::Kill, Crash::Kernel, Crash::Power]);
                self.crash(kind);
                return Ok(None);
            }
        }
    }

    /// Does the action, each part of it with a probability of `percent`.
    fn apply_recovery(
        &mut self,
        recovery: &mut Recovery,
        action: &RecoveryAction,
        percent: u64,
    ) -> Result<(), Violation> {
        let World { disk, rng, .. } = self;
        let full = percent == 100;
        match action {
            RecoveryAction::Read { segment_start, position, len } => {
                let file = disk.segments.get(segment_start);
                let Some(file) = file else { return Err(format!("no segment {segment_start}")) };
                let bytes = &file.cache[*position as usize..*position as usize + len];
                return recovery
                    .read_done(bytes)
                    .map_err(|error| format!("recovery stops: {error}"));
            }
            RecoveryAction::Zero { segment_start, position, to, head } => {
                let mut bytes = head.clone();
                bytes.resize((to - position) as usize, 0);
                disk.write(*segment_start, *position, &bytes, || full || rng.chance(percent));
            }
            RecoveryAction::Flush { segments } => {
                for segment in segments {
                    if full || rng.chance(percent) {
                        disk.flush(*segment, disk.now());
                    }
                }
            }
            RecoveryAction::Remove { start } => {
                if full || rng.chance(percent) {
                    disk.segments.remove(start);
                }
            }
            RecoveryAction::Save { state } => {
                if full || rng.chance(percent) {
                    disk.state = Some(*state);
                }
            }
            RecoveryAction::Done(_) => {}
        }
        if full {
            recovery.action_done();
        }
        Ok(())
    }

    fn recovery_input(&mut self, clean: bool) -> RecoveryInput {
        let durable = self.oracle.told.durable;
        let count = self.oracle.messages.partition_point(|message| message.end() <= durable);
        let dispatched = match self.rng.below(count as u64 + 1) as usize {
            0 => None,
            n => self.oracle.messages.get(n - 1).map(Message::end),
        };
        let len = self.config.segment_size;
        RecoveryInput {
            segment_size: len,
            segments: self
                .disk
                .segments
                .keys()
                .map(|start| SegmentFile { start: *start, len })
                .collect(),
            state: self.disk.state,
            abort: !clean,
            checkpoint: Default::default(),
            dispatched,
            write_bound_step: self.config.write_bound_step,
            read_bytes: self.read_bytes,
        }
    }

    fn check_recovered(&mut self, recovered: &Recovered, clean: bool) -> Result<(), Violation> {
        let end = recovered.end;
        self.note(format_args!("recovered to {end}"));
        if end < self.oracle.told.visible {
            self.counts.seen_lost_at_write += 1;
        }
        self.oracle.recovered(&self.disk, end)?;
        self.oracle.rebuild_queues();
        self.counts.torn_cuts += u64::from(recovered.cut_reason.is_some());
        self.counts.zeroed += u64::from(recovered.zeroed_bytes > 0);
        self.counts.removed_segments += recovered.removed_segments;
        hold!(!clean || recovered.zeroed_bytes == 0, "a clean log had bytes behind its end");
        hold!(recovered.min_offset == self.oracle.min_offset.min(end), "the log's start moved");
        if let Some(redo_from) = recovered.redo_from {
            hold!(
                redo_from <= end,
                "derived data would be redone from {redo_from}, behind the end"
            );
        }
        Ok(())
    }

    // ---- a life ----

    fn live(&mut self, recovered: &Recovered) -> Result<End, Violation> {
        let mut core = LogCore::<VecBuf>::new(self.config.clone(), recovered)
            .map_err(|error| format!("configuration: {error}"))?;
        core.set_switches(self.switches);
        let born_at = recovered.end;
        self.fault_percent = if self.rng.chance(15) { self.rng.between(1, 10) } else { 0 };
        let append_percent = self.rng.between(20, 70);
        let steps = self.rng.between(20, 250);
        for _ in 0..steps {
            if self.rng.chance(append_percent) {
                self.append(&mut core)?;
            }
            self.poll(&mut core);
            if !self.in_flight.is_empty() && self.rng.chance(60) {
                self.complete_one(&mut core)?;
            }
            self.sometimes(&mut core, born_at)?;
            self.oracle.told(core.offsets())?;
        }
        if self.rng.chance(25) && self.close(&mut core)? {
            self.counts.closes += 1;
            return Ok(End::Closed);
        }
        let kind = self.rng.pick(&[Crash::Kill, Crash::Kernel, Crash::Power]);
        Ok(End::Crash(kind))
    }

    fn append(&mut self, core: &mut LogCore<VecBuf>) -> Result<(), Violation> {
        let count = if self.rng.chance(20) { self.rng.between(2, 8) } else { 1 };
        let lengths: Vec<usize> = (0..count).map(|_| self.rng.pick(&self.lengths)).collect();
        let total: usize = lengths.iter().sum();
        let queue = self.rng.below(self.queues) as u32;
        let first = self.oracle.next_queue_offset.get(&queue).copied().unwrap_or(0);
        let mut messages = Vec::new();
        let World { rng, .. } = self;
        let taken = core.append(total, |out, at| {
            let mut from = 0;
            for (n, len) in lengths.iter().enumerate() {
                let (offset, queue_offset) = (at + from as u64, first + n as u64);
                let bytes = encode(queue, queue_offset, offset, *len, rng);
                out[from..from + len].copy_from_slice(&bytes);
                messages.push(Message { offset, queue, queue_offset, bytes });
                from += len;
            }
        });
        match taken {
            Ok(offset) => {
                self.note(format_args!("append {count} in {total} at {offset}"));
                let size = self.config.segment_size;
                let before = self.oracle.messages.last().map_or(offset, Message::end);
                self.counts.rolls += offset / size - before / size;
                self.counts.messages += count;
                self.oracle.next_queue_offset.insert(queue, first + count);
                for message in messages {
                    self.oracle.appended(message)?;
                }
            }
            Err(error) => {
                self.counts.refused += 1;
                let failed = matches!(error, AppendError::Failed(_));
                hold!(failed == core.failure().is_some(), "refused wrongly: {error}");
                hold!(!matches!(error, AppendError::Closed | AppendError::Empty), "{error}");
            }
        }
        Ok(())
    }

    fn sometimes(&mut self, core: &mut LogCore<VecBuf>, born_at: u64) -> Result<(), Violation> {
        if self.rng.chance(5) {
            core.request_flush();
        }
        if self.rng.chance(2) {
            core.request_save();
        }
        if self.rng.chance(10) {
            core.retry();
        }
        if let Some(rng) = &mut self.bulk
            && rng.chance(4)
        {
            core.set_bulk(rng.chance(50));
        }
        self.counts.loose += u64::from(core.offsets().written < core.on_device());
        if self.rng.chance(20) {
            self.read(core, born_at)?;
        }
        if self.rng.chance(1) {
            self.delete_oldest(core);
        }
        if self.rng.chance(1) {
            self.settle(core)?;
        }
        Ok(())
    }

    /// Completes what is in flight until nothing is, in at most `rounds` rounds.
    fn run_down(&mut self, core: &mut LogCore<VecBuf>, rounds: usize) -> Result<(), Violation> {
        for _ in 0..rounds {
            core.retry();
            self.poll(core);
            if self.in_flight.is_empty() {
                break;
            }
            self.complete_one(core)?;
            self.oracle.told(core.offsets())?;
        }
        Ok(())
    }

    /// Lets everything come to rest: then nothing may be left to do.
    fn settle(&mut self, core: &mut LogCore<VecBuf>) -> Result<(), Violation> {
        core.request_flush();
        self.run_down(core, 1000)?;
        let offsets = core.offsets();
        hold!(core.is_idle(), "the log does not come to rest");
        hold!(
            core.failure().is_some() || offsets.written == offsets.appended,
            "the log rests and has not written everything: {offsets:?}"
        );
        hold!(
            core.failure().is_some() || core.unwritten_bytes() == 0,
            "{} bytes count as unwritten in a log at rest",
            core.unwritten_bytes()
        );
        if self.config.sync {
            hold!(
                core.failure().is_some() || offsets.durable == offsets.appended,
                "the log rests and has not flushed everything: {offsets:?}"
            );
        }
        self.counts.settled += 1;
        Ok(())
    }

    fn delete_oldest(&mut self, core: &LogCore<VecBuf>) {
        let offsets = core.offsets();
        let first = self.disk.segments.keys().next().copied();
        if let Some(start) = first {
            let end = start + self.config.segment_size;
            if end <= core.deletable_to() && end < core.ready_end() {
                self.note(format_args!("delete segment {start}"));
                self.disk.segments.remove(&start);
                self.oracle.told(offsets).expect("told before");
                self.oracle.dropped_before(end);
                self.counts.retention += 1;
            }
        }
    }

    /// Reads a visible message, from memory if it is there.
    fn read(&mut self, core: &LogCore<VecBuf>, born_at: u64) -> Result<(), Violation> {
        let visible = core.visible();
        let count = self.oracle.messages.partition_point(|message| message.end() <= visible);
        if count == 0 {
            return Ok(());
        }
        let recent = count.min(20) as u64;
        let message = &self.oracle.messages[count - 1 - self.rng.below(recent) as usize];
        let (offset, len) = (message.offset, message.bytes.len());
        if let Some(slice) = core.hot(offset, len) {
            self.counts.hot_reads += 1;
            hold!(slice.bytes() == message.bytes, "memory has other bytes at {offset}");
            let part = core.hot_from_offset(offset + 7, 50);
            let part = part.ok_or("a part of a record in memory is not in memory")?;
            hold!(part.bytes() == &message.bytes[7..57], "memory has other bytes in {offset}");
        } else if core.offsets().written >= message.end() {
            hold!(
                offset < born_at || offset < core.hot_from(),
                "the message at {offset} should be in memory"
            );
            let start = offset - offset % self.config.segment_size;
            let position = (offset - start) as usize;
            let file = self.disk.segments.get(&start).ok_or("segment is gone")?;
            hold!(
                file.cache[position..position + len] == message.bytes,
                "the device has other bytes at {offset}"
            );
        }
        Ok(())
    }

    /// True if it could be closed clean.
    fn close(&mut self, core: &mut LogCore<VecBuf>) -> Result<bool, Violation> {
        core.close();
        self.run_down(core, 10_000)?;
        hold!(core.is_idle(), "a closing log doesn't come to rest");
        hold!(
            core.failure().is_some() || core.is_closed(),
            "a closing log stops before it is closed"
        );
        self.note(format_args!("closed {}", core.is_closed()));
        Ok(core.is_closed())
    }

    // ---- operations ----

    fn poll(&mut self, core: &mut LogCore<VecBuf>) {
        while let Some(action) = core.poll_action() {
            self.note(format_args!("{action:?}"));
            let op = match action {
                Action::Write(write) => Op::Write {
                    id: write.id,
                    start: write.segment_start,
                    position: write.position,
                    buf: write.buf,
                },
                Action::Flush(flush) => Op::Flush {
                    id: flush.id,
                    segments: flush.segments.to_vec(),
                    begun: self.disk.now(),
                },
                Action::Zero(zero) => Op::Zero {
                    id: zero.id,
                    start: zero.segment_start,
                    from: zero.from,
                    to: zero.to,
                },
                Action::Prepare { start } => Op::Prepare { start },
                Action::Save { id, state } => Op::Save { id, state },
            };
            self.in_flight.push(op);
        }
    }

    fn complete_one(&mut self, core: &mut LogCore<VecBuf>) -> Result<(), Violation> {
        let index = self.rng.below(self.in_flight.len() as u64) as usize;
        let op = self.in_flight.swap_remove(index);
        let fails = self.rng.chance(self.fault_percent);
        let full_disk = self.rng.chance(50);
        if fails {
            self.apply_some(&op);
        } else {
            self.apply(&op);
        }
        let result = || match fails {
            false => Ok(()),
            true if full_disk => Err(io::Error::from(io::ErrorKind::StorageFull)),
            true => Err(io::Error::other("simulated")),
        };
        let failed_before = core.failure().is_some();
        match op {
            Op::Write { id, .. } => core.write_done(id, result()),
            Op::Flush { id, .. } => core.flush_done(id, result()),
            Op::Zero { id, .. } => core.zero_done(id, result()),
            Op::Save { id, .. } => core.state_saved(id, result()),
            Op::Prepare { start } if self.disk.segments.contains_key(&start) => {
                core.segment_ready(start, 4096);
            }
            Op::Prepare { start } => core.segment_failed(start),
        }
        if failed_before {
            hold!(core.offsets().visible == self.oracle.told.visible, "a failed log goes on");
        } else if core.failure().is_some() {
            self.counts.failures += 1;
        }
        self.note(format_args!("done, {:?}", core.offsets()));
        Ok(())
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { start, position, buf, .. } => {
                self.disk.write(*start, *position, (**buf).as_ref(), || true);
            }
            Op::Flush { segments, begun, .. } => {
                for segment in segments {
                    self.disk.flush(*segment, *begun);
                }
            }
            Op::Zero { start, from, to, .. } => self.disk.zero_durably(*start, *from, *to),
            Op::Prepare { start } => self.disk.create(*start, 4096),
            Op::Save { state, .. } => self.disk.state = Some(*state),
        }
    }

    /// The operation failed or was cut off: any part of it may have happened.
    fn apply_some(&mut self, op: &Op) {
        let percent = self.rng.pick(&[0, 20, 50, 80, 100]);
        let World { disk, rng, .. } = self;
        match op {
            Op::Write { start, position, buf, .. } => {
                disk.write(*start, *position, (**buf).as_ref(), || rng.chance(percent));
            }
            Op::Flush { segments, begun, .. } => {
                for segment in segments {
                    if rng.chance(percent) {
                        disk.flush(*segment, *begun);
                    }
                }
            }
            Op::Zero { start, from, to, .. } => {
                let zeros = vec![0; (to - from) as usize];
                disk.write(*start, *from, &zeros, || rng.chance(percent));
            }
            Op::Prepare { start } => {
                if rng.chance(percent) {
                    disk.create(*start, 4096);
                }
            }
            Op::Save { state, .. } => {
                if rng.chance(percent) {
                    disk.state = Some(*state);
                }
            }
        }
    }

    fn crash(&mut self, kind: Crash) {
        self.note(format_args!("crash {kind:?}"));
        match kind {
            Crash::Kill => self.counts.kills += 1,
            Crash::Kernel => self.counts.kernel_crashes += 1,
            Crash::Power => self.counts.power_cuts += 1,
        }
        for op in std::mem::take(&mut self.in_flight) {
            self.apply_some(&op);
        }
        self.disk.crash(kind, &mut self.rng);
        self.oracle.crashed(kind);
    }

    fn note(&mut self, event: std::fmt::Arguments<'_>) {
        let text = event.to_string();
        if self.verbose {
            println!("{text}");
        }
        for byte in text.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
}
