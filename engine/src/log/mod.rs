//! The commit log: where bytes live, and what an acknowledgement may say about them.
//!
//! What decides is apart from what does I/O. [`LogCore`] knows what is appended, in flight, written and durable and says
//! what the device should do next; [`Recovery`] plans how a log that a crash left behind becomes a log again. Both take
//! bytes and events and return actions: they know no file, no executor and no clock, so that the simulator in
//! `tests/log_sim` drives the very code that serves.

mod action;
mod block;
mod cache;
mod calls;
mod core;
mod core_config;
#[cfg(test)]
mod core_test;
mod device;
mod driver;
#[cfg(feature = "test-faults")]
mod env_faults;
mod error;
mod failure;
mod faults;
mod files;
mod follow;
mod frontier;
mod hot;
mod housekeeper;
mod open;
mod pool;
mod reader;
mod recovery;
mod recovery_input;
#[cfg(test)]
mod recovery_test;
mod scan_reads;
mod segments;
mod shell;
mod sidecar;
mod signal;
mod state;
mod state_file;
mod switches;
mod table;
#[cfg(test)]
mod testing;
mod trace;
mod verify;
mod verify_queues;
mod worker;

pub use action::{Action, FlushAction, WriteAction, ZeroAction};
pub use block::{BlockBuf, Slice, UNIT};
pub use cache::{CACHE_BLOCK_BYTES, CACHE_READ_BYTES_MAX, CacheStats, ReadHint, ReadRun};
pub use core::{LogCore, Offsets};
pub use core_config::{CoreConfig, CoreConfigError};
pub use error::LogError;
pub use failure::{AppendError, FailedOperation, Failure};
pub use faults::{DiskFaults, Fault, FaultSeam, FileOp};
pub(crate) use faults::{guard, guarded_sync};
pub use files::DiskSpace;
pub use follow::FollowError;
pub use open::{LockStamps, LogConfig, Opened};
pub use reader::READ_BYTES_MAX;
pub use recovery::{Recovered, Recovery, RecoveryAction};
pub use recovery_input::{CheckpointTimes, RecoveryError, RecoveryInput, SegmentFile};
pub use segments::SegmentInfo;
pub use shell::{Log, LogStats, Progress};
pub use sidecar::{CRC_BLOCK_BYTES, Sidecar};
pub use state::LogState;
pub use state_file::StateFile;
#[doc(hidden)]
pub use switches::Switches;
pub use trace::{LogTimes, Stages};
pub use verify::{Item, Problem, WalkError, WalkSummary, walk_log};
pub use verify_queues::{QueueCheck, QueueFinding, QueueProblem, QueueSummary};
