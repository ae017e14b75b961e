//! How the log of one shard turns: the core's actions go out, their outcomes come back.
//!
//! Two tasks live as long as the log, one for the write and one for the flush in flight: nothing is spawned per append or
//! per write. Everything here runs on the reactor and holds no borrow of the core across an await or a callback.

use std::{
    io,
    rc::Rc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    Action, FlushAction, WriteAction,
    device::into_io,
    error::LogError,
    housekeeper::{Job, Report},
    pool::PooledBuf,
    segments::SegmentInfo,
    shell::{Progress, Shell},
};

/// Zeroing goes at full speed while it leads the tail by less than this many bytes.
const ZERO_LEAD_BYTES_MIN: u64 = 8 << 20;

/// Block CRCs are handed to the housekeeper in batches of at least this many.
const CRC_BATCH_BLOCKS: u64 = 16;

impl Shell {
    /// Hands out whatever the core wants done.
    pub(crate) fn pump(&self) {
        loop {
            let action = self.core.borrow_mut().poll_action();
            match action {
                None => break,
                Some(Action::Write(write)) => self.writes.put(write),
                Some(Action::Flush(flush)) => self.flushes.put(flush),
                Some(Action::Zero(zero)) => {
                    self.zeroing.set(true);
                    let at = zero.segment_start + zero.from;
                    let lead = at.saturating_sub(self.core.borrow().offsets().appended);
                    self.order(Job::Zero {
                        id: zero.id,
                        start: zero.segment_start,
                        from: zero.from,
                        to: zero.to,
                        rest: zero_rest(lead),
                    });
                }
                Some(Action::Prepare { start }) => self.order(Job::Prepare { start }),
                Some(Action::Save { id, state }) => {
                    self.saving.set(Some(state));
                    let bytes = self.config.state_file(state).encode();
                    self.order(Job::Save { id, bytes });
                }
            }
        }
        if self.zeroing.get() {
            let urgent = {
                let core = self.core.borrow();
                core.zeroed_to() < core.offsets().appended + ZERO_LEAD_BYTES_MIN
            };
            self.calls.house.set_zero_urgent(urgent);
        }
    }

    /// A job of the core. The channel has room for one of each kind, always.
    fn order(&self, job: Job) {
        if let Err(e) = self.calls.house.send(job) {
            panic!("the housekeeping thread is gone: {e}");
        }
    }

    // ---- the two tasks ----

    pub(crate) async fn write_task(self: Rc<Self>) {
        while let Some(write) = self.writes.take().await {
            let open = self.table.opened(write.segment_start);
            let end = write.segment_start + write.position + (*write.buf).as_ref().len() as u64;
            self.trace.write_begins(end);
            let result = match open.zip(write.buf.shared()) {
                Some((segment, buf)) => self.device.write(&segment, write.position, buf).await,
                None => Err(io::Error::other("the segment being written isn't open")),
            };
            self.wrote(&write, result);
        }
    }

    fn wrote(&self, write: &WriteAction<PooledBuf>, result: io::Result<()>) {
        let ok = result.is_ok();
        let (offsets, on_device) = {
            let mut core = self.core.borrow_mut();
            core.write_done(write.id, result);
            let offsets = core.offsets();
            if offsets.written - offsets.durable >= self.config.flush_bytes {
                core.request_flush();
            }
            (offsets, core.on_device())
        };
        self.trace.write_ends(ok.then_some(offsets.written));
        if ok {
            let mut stats = self.stats.get();
            stats.writes += 1;
            stats.written_bytes += (*write.buf).as_ref().len() as u64;
            self.stats.set(stats);
        }
        // The next write is under way before acknowledgements are made.
        self.pump();
        self.progress();
        if ok && self.config.block_crcs {
            self.fold(write, on_device);
        }
    }

    pub(crate) async fn flush_task(self: Rc<Self>) {
        while let Some(flush) = self.flushes.take().await {
            self.trace.flush_begins(flush.upto);
            let result = self.flush_segments(&flush).await;
            self.trace.flush_ends(result.is_ok().then_some(flush.upto));
            if result.is_ok() {
                let mut stats = self.stats.get();
                stats.flushes += 1;
                self.stats.set(stats);
            }
            let durable = {
                let mut core = self.core.borrow_mut();
                core.flush_done(flush.id, result);
                core.offsets().durable
            };
            self.table.flushed_to(durable);
            self.pump();
            self.progress();
            self.give_crcs(false);
        }
    }

    async fn flush_segments(&self, flush: &FlushAction) -> io::Result<()> {
        for &start in &flush.segments {
            match self.table.opened(start) {
                Some(segment) => self.device.flush(&segment).await?,
                None => return Err(io::Error::other("the segment being flushed isn't open")),
            }
            if start + self.config.core.segment_size <= flush.upto {
                self.table.touch(start, now_ms());
                if self.config.block_crcs {
                    // Whatever the folder could not know of it.
                    self.order(Job::RebuildCrcs { starts: vec![start] });
                }
            }
        }
        Ok(())
    }

    fn progress(&self) {
        self.changed.notify();
        let on_visible = self.on_visible.borrow().clone();
        if let Some(on_visible) = on_visible {
            on_visible();
        }
        let on_progress = self.on_progress.borrow().clone();
        if let Some(on_progress) = on_progress {
            let progress = {
                let core = self.core.borrow();
                Progress { offsets: core.offsets(), failed: core.failure().is_some() }
            };
            on_progress(progress);
        }
    }

    // ---- block CRCs ----

    /// Folds what a write brought and was not folded when it was appended: bytes of another log that is followed. `written` is the end of
    /// whole records on the device.
    fn fold(&self, write: &WriteAction<PooledBuf>, written: u64) {
        let mut folder = self.folder.borrow_mut();
        let base = write.segment_start + write.position;
        let bytes = (*write.buf).as_ref();
        let padded_end = base + bytes.len() as u64;
        let end = written.min(padded_end);
        let Some(from) = folder.at().checked_sub(base) else {
            // Not reached: writes are contiguous. An unknown block is rebuilt.
            folder.skip_to(end);
            return;
        };
        if let Some(new) = bytes.get(from as usize..(end - base) as usize) {
            folder.feed(new);
        }
        if written > padded_end {
            // The segment ended with a BLANK record: nothing but zeros follows.
            folder.feed_zeros_to(write.segment_start + self.config.core.segment_size);
        }
    }

    pub(crate) fn give_crcs(&self, all: bool) {
        if !self.config.block_crcs {
            return;
        }
        let durable = self.core.borrow().offsets().durable;
        let mut folder = self.folder.borrow_mut();
        if !all && folder.waiting() < CRC_BATCH_BLOCKS {
            return;
        }
        for batch in folder.take_below(durable) {
            self.calls.house.send_crcs(batch);
        }
    }

    /// Has the absent CRCs of finished segments filled.
    pub(crate) fn rebuild_crcs(&self, end: u64) {
        let size = self.config.core.segment_size;
        let starts: Vec<u64> = self
            .table
            .infos()
            .iter()
            .map(|s| s.start)
            .filter(|start| start + size <= end)
            .collect();
        if self.config.block_crcs && !starts.is_empty() {
            self.order(Job::RebuildCrcs { starts });
        }
    }

    // ---- the thread's reports ----

    pub(crate) fn reported(shell: &Rc<Self>, report: Report) {
        match report {
            Report::Prepared { start, result } => match result {
                Ok(zeroed) => {
                    let shell = shell.clone();
                    // Once a segment; opening it needs the device.
                    let task = glommio::spawn_local(async move {
                        shell.segment_made(start, zeroed).await;
                    });
                    task.detach();
                }
                Err(e) => shell.segment_not_made(start, &e),
            },
            Report::Zeroed { id, result } => {
                shell.zeroing.set(false);
                shell.calls.house.set_zero_urgent(false);
                shell.core.borrow_mut().zero_done(id, result.map_err(into_io));
                shell.pump();
                if shell.core.borrow().failure().is_some() {
                    shell.progress();
                }
            }
            Report::Saved { id, result } => {
                let before = shell.save_error.replace(result.as_ref().err().cloned());
                match (&result, shell.saving.take()) {
                    (Ok(()), Some(state)) => shell.saved.set(state),
                    (Err(e), _) if before.is_none() => tracing::error!(
                        "the log's state is not saved, and once it has come to the end of what the last one allows, nothing is written: {e}: free space or check the disk; tried again every second"
                    ),
                    _ => {}
                }
                if before.is_some() && result.is_ok() {
                    tracing::info!("{} is saved again", shell.layout.state.display());
                }
                shell.core.borrow_mut().state_saved(id, result.map_err(into_io));
                shell.pump();
            }
            Report::Retry => {
                shell.core.borrow_mut().retry();
                shell.pump();
            }
            Report::Done { .. } => {}
        }
        shell.changed.notify();
    }

    async fn segment_made(&self, start: u64, zeroed: u64) {
        match self.device.open_segment(self.layout.segment(start)).await {
            Ok(open) => {
                let info = SegmentInfo {
                    start,
                    bytes: self.config.core.segment_size,
                    modified_ms: now_ms(),
                };
                self.table.push(info, Rc::new(open));
                if self.not_made.take().is_some() {
                    let path = self.layout.segment(start);
                    tracing::info!("{} is made: new messages are taken again", path.display());
                }
                self.core.borrow_mut().segment_ready(start, zeroed);
                self.pump();
            }
            Err(e) => {
                self.segment_not_made(start, &e);
                self.calls.house.retry_later();
            }
        }
        self.changed.notify();
    }

    fn segment_not_made(&self, start: u64, error: &LogError) {
        if self.not_made.replace(Some(error.clone())).is_none() {
            tracing::error!(
                "the next segment can't be made, new messages are refused until it is, reads go on: {error}: free space or check the disk; tried again every second"
            );
        }
        self.core.borrow_mut().segment_failed(start);
    }
}

/// How many times a step's duration zeroing rests after it. The lead is the measure of the append rate: a fast log eats it.
fn zero_rest(lead: u64) -> u32 {
    match lead >> 20 {
        0..16 => 0,
        16..64 => 1,
        64..128 => 3,
        _ => 8,
    }
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
