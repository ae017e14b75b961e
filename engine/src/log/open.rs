//! Opening a log: directories, the stock broker's visit, recovery with real I/O, and the first segment.

use super::{
    CoreConfig, LogCore, Recovered, Recovery, RecoveryAction, RecoveryInput, SegmentFile,
    block::UNIT,
    calls::Calls,
    device::Device,
    error::LogError,
    faults::FaultSeam,
    files::Files,
    housekeeper::{Housekeeper, Job, Outcome, Settings},
    scan_reads::ScanReads,
    segments::{Found, Layout},
    shell::{Log, Parts},
    state::LogState,
    state_file::StateFile,
    table::Table,
};
use crate::store::LockStamp;
use glommio::TaskQueueHandle;
use std::{path::PathBuf, rc::Rc};

/// Bytes of one read of the recovery scan.
const SCAN_READ_BYTES: usize = 1 << 20;

/// The store's lock file around the moment this process took the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockStamps {
    /// Read before the lock was taken ([`LockStamp::read`]).
    pub before: Option<LockStamp>,
    /// As this process left it ([`crate::store::StoreLock::stamp`]).
    pub now: LockStamp,
}

/// What a log needs to be opened. All sizes in bytes.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The store directory: `commitlog/` and `ringmq/` lie in it. It must be locked by the caller.
    pub store: PathBuf,
    /// Shards of the broker: fixed when the store is created.
    pub shards: u32,
    /// Segment size, budgets, level.
    pub core: CoreConfig,
    /// Budget of the cache of cold reads.
    pub cache_bytes: u64,
    /// Flush by itself when this much was written since the last flush: bounds what a recovery must scan.
    pub flush_bytes: u64,
    /// Keep CRC-32C of whole blocks under `ringmq/crc/`.
    pub block_crcs: bool,
    /// Open even where there is no direct I/O (tmpfs). No durability level means anything there.
    pub allow_buffered: bool,
    /// The store's lock file before and after the caller took it: tells whether a stock broker was here. `None`: not judged.
    pub lock: Option<LockStamps>,
    /// Derived data is durable up to this physical offset ([`crate::store::DerivedMark`]). `None` if unknown.
    pub dispatched: Option<u64>,
    /// Task queue for the log's tasks; `None`: the one that opens it.
    pub task_queue: Option<TaskQueueHandle>,
    /// Lets tests make the disk fail.
    pub seam: FaultSeam,
}

impl LogConfig {
    /// Defaults for a store directory: one shard, 1 GiB segments, 64 MiB of cache.
    pub fn new(store: impl Into<PathBuf>) -> Self {
        LogConfig {
            store: store.into(),
            shards: 1,
            core: CoreConfig::default(),
            cache_bytes: 64 << 20,
            flush_bytes: 32 << 20,
            block_crcs: true,
            allow_buffered: false,
            lock: None,
            dispatched: None,
            task_queue: None,
            seam: FaultSeam::default(),
        }
    }
}

/// What opening found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The planner's result: end of the log, where to redo derived data from, clean or not, what was cut.
    pub recovered: Recovered,
    /// A stock broker ran on this store since RingMQ last did, or since [`Log::settle_visit`] was called for the last time.
    pub stock_was_here: bool,
    /// No direct I/O here: no level but `memory` may be claimed.
    pub buffered: bool,
    /// The store had no segments.
    pub fresh: bool,
    /// Our own state of the log was there and believed.
    pub own_state: bool,
    /// What was repaired before recovery, one line each.
    pub repairs: Vec<String>,
}

impl Log {
    /// Opens the log of a store directory: makes what is missing, recovers, and prepares the first segment.
    ///
    /// Returns when appends are taken, or when only a full disk keeps them from being taken (reads work then, and
    /// appends by themselves as soon as there is space).
    ///
    /// # Errors
    /// Any [`LogError`]: nothing is served then. Nothing below the durable offset is ever changed.
    pub async fn open(config: LogConfig) -> Result<(Log, Opened), LogError> {
        config.core.check()?;
        let layout = Layout::new(&config.store);
        let files = Files { seam: config.seam.clone() };
        let house = Housekeeper::start(Settings {
            layout: layout.clone(),
            files,
            segment_bytes: config.core.segment_size,
            allow_buffered: config.allow_buffered,
            zero_ahead: config.core.zero_ahead,
        })?;
        let calls = Calls::new(house);
        let mailbox = spawn(config.task_queue, calls.clone().run());
        let opened = Opening { config, layout, calls: calls.clone() }.run().await;
        match opened {
            Ok((log, opened)) => {
                log.adopt(mailbox);
                Ok((log, opened))
            }
            Err(e) => {
                calls.stop();
                mailbox.await;
                calls.house.stop();
                Err(e)
            }
        }
    }
}

/// Starts a task in the log's queue.
pub(crate) fn spawn(
    queue: Option<TaskQueueHandle>,
    future: impl Future<Output = ()> + 'static,
) -> glommio::task::JoinHandle<()> {
    match queue {
        None => glommio::spawn_local(future).detach(),
        Some(queue) => match glommio::spawn_local_into(future, queue) {
            Ok(task) => task.detach(),
            // The queue was removed by its owner: a bug there.
            Err(e) => panic!("the log's task queue is gone: {e}"),
        },
    }
}

struct Opening {
    config: LogConfig,
    layout: Layout,
    calls: Rc<Calls>,
}

impl Opening {
    async fn run(self) -> Result<(Log, Opened), LogError> {
        let found = match self.calls.call(|id| Job::SetUp { id }).await? {
            Outcome::Found(found) => *found,
            _ => return Err(LogError::Closed),
        };
        let device = Device::open(&self.layout, self.config.seam.clone()).await?;
        self.check_fixed(&found)?;
        let stock_was_here = self.stock_was_here(&found);
        if stock_was_here && !found.visited {
            // Before the store is marked as ours: from then on nothing else tells of it, and others have files that are worthless now.
            self.calls.call(|id| Job::NoteVisit { id }).await?;
        }
        let state = found.state.filter(|_| !stock_was_here);
        let table =
            Table::new(self.layout.clone(), self.config.core.segment_size, found.segments.clone());
        self.keep_ours(state.as_ref()).await?;
        let recovered = self.recover(&found, state.as_ref(), &device, &table).await?;
        if self.config.block_crcs {
            // Entries of what was cut, or may have been rewritten by somebody else, must never be compared.
            let ours = state.filter(|_| !found.visited);
            let from = ours.map_or(0, |s| s.log.durable.min(recovered.end));
            self.calls.call(|id| Job::CutCrc { id, from }).await?;
        }
        let opened = Opened {
            stock_was_here: stock_was_here || found.visited,
            buffered: found.buffered,
            fresh: found.segments.is_empty(),
            own_state: state.is_some(),
            repairs: found.repairs,
            recovered,
        };
        let core = LogCore::new(self.config.core.clone(), &opened.recovered)?;
        let log = Log::new(Parts {
            config: self.config,
            layout: self.layout,
            calls: self.calls,
            device,
            table,
            core,
            saved: opened.recovered.state,
        });
        log.start().await?;
        Ok((log, opened))
    }

    /// What never changes once a store exists.
    fn check_fixed(&self, found: &Found) -> Result<(), LogError> {
        let Some(state) = &found.state else {
            return Ok(());
        };
        if state.shards != self.config.shards {
            return Err(LogError::StateMismatch {
                path: self.layout.state.clone(),
                key: "shards",
                found: u64::from(state.shards),
                configured: u64::from(self.config.shards),
            });
        }
        Ok(())
    }

    fn stock_was_here(&self, found: &Found) -> bool {
        match (&found.state, self.config.lock) {
            (Some(StateFile { lock: Some(left), .. }), Some(stamps)) => {
                stamps.before != Some(*left)
            }
            _ => false,
        }
    }

    /// The store is still ours: says so under the lock file's stamp at once if it is another one than before, so that a crash during
    /// this recovery is not taken for a stock broker's visit.
    async fn keep_ours(&self, state: Option<&StateFile>) -> Result<(), LogError> {
        let Some(state) = state else { return Ok(()) };
        if state.lock == self.config.lock.map(|stamps| stamps.now) {
            return Ok(());
        }
        let bytes = self.state_file(state.log).encode();
        self.calls.call(|id| Job::SaveNow { id, bytes }).await?;
        Ok(())
    }

    /// Runs the planner with real I/O.
    async fn recover(
        &self,
        found: &Found,
        state: Option<&StateFile>,
        device: &Device,
        table: &Table,
    ) -> Result<Recovered, LogError> {
        let segments =
            found.segments.iter().map(|s| SegmentFile { start: s.start, len: s.bytes }).collect();
        let mut planner = Recovery::new(RecoveryInput {
            segment_size: self.config.core.segment_size,
            segments,
            state: state.map(|s| s.log),
            abort: found.abort,
            checkpoint: found.checkpoint,
            dispatched: self.config.dispatched.filter(|_| !self.stock_was_here(found)),
            write_bound_step: self.config.core.write_bound_step,
            read_bytes: SCAN_READ_BYTES,
        })?;
        let mut reads = ScanReads::new(device, table, self.config.core.segment_size);
        loop {
            match planner.next_action() {
                RecoveryAction::Read { segment_start, position, len } => {
                    let missing = || LogError::Gap {
                        path: self.layout.commitlog.clone(),
                        missing: segment_start,
                    };
                    let bytes = reads.read(segment_start, position, len).await?;
                    planner.read_done(bytes.ok_or_else(missing)?)?;
                    // Parsing a megabyte of records takes a while: let others turn.
                    glommio::executor().yield_if_needed().await;
                }
                RecoveryAction::Done(recovered) => return Ok(recovered),
                action => {
                    reads.forget();
                    self.carry_out(action, table).await?;
                    planner.action_done();
                }
            }
        }
    }

    /// An action that changes something, durable when it returns.
    async fn carry_out(&self, action: RecoveryAction, table: &Table) -> Result<(), LogError> {
        match action {
            RecoveryAction::Zero { segment_start: start, position: from, to, head } => {
                debug_assert!(head.len() < UNIT);
                self.calls.call(|id| Job::ZeroNow { id, start, from, to, head }).await?;
            }
            RecoveryAction::Flush { segments: starts } => {
                self.calls.call(|id| Job::SyncSegments { id, starts }).await?;
            }
            RecoveryAction::Remove { start } => {
                table.pop_last(start);
                self.calls.call(|id| Job::Delete { id, start }).await?;
            }
            RecoveryAction::Save { state } => {
                let bytes = self.state_file(state).encode();
                self.calls.call(|id| Job::SaveNow { id, bytes }).await?;
            }
            RecoveryAction::Read { .. } | RecoveryAction::Done(_) => {}
        }
        Ok(())
    }

    fn state_file(&self, log: LogState) -> StateFile {
        self.config.state_file(log)
    }
}

impl LogConfig {
    /// The state file that says `log`.
    pub(crate) fn state_file(&self, log: LogState) -> StateFile {
        StateFile { shards: self.shards, log, lock: self.lock.map(|stamps| stamps.now) }
    }
}
