//! The commit log: where bytes live, and what an acknowledgement may say about them.
//!
//! What decides is apart from what does I/O. [`LogCore`] knows what is appended, in flight, written and durable and says
//! what the device should do next; [`Recovery`] plans how a log that a crash left behind becomes a log again. Both take
//! bytes and events and return actions: they know no file, no executor and no clock, so that the simulator in
//! `tests/log_sim` drives the very code that serves.

mod action;
mod block;
mod core;
mod failure;
mod frontier;
mod hot;
mod recovery;
mod recovery_input;
mod state;
mod switches;

pub use action::{Action, FlushAction, WriteAction, ZeroAction};
pub use block::{BlockBuf, Slice, UNIT};
pub use core::{CoreConfig, CoreConfigError, LogCore, Offsets};
pub use failure::{AppendError, FailedOperation, Failure};
pub use recovery::{Recovered, Recovery, RecoveryAction};
pub use recovery_input::{CheckpointTimes, RecoveryError, RecoveryInput, SegmentFile};
pub use state::LogState;
#[doc(hidden)]
pub use switches::Switches;
