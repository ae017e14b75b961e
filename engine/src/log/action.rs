//! What the core asks the shell to do. Each action is answered by exactly one event.

use std::{fmt, rc::Rc};

use smallvec::SmallVec;

use super::state::LogState;

/// An order to the shell.
#[derive(Debug)]
pub enum Action<B> {
    /// Write a sealed block. Answer: `write_done`. At most one at a time.
    Write(WriteAction<B>),
    /// Make completed writes durable. Answer: `flush_done`. At most one at a time, beside a write.
    Flush(FlushAction),
    /// Write zeros ahead of the tail and make them durable. Answer: `zero_done`. At most one at a time.
    Zero(ZeroAction),
    /// Make the segment that starts at this physical offset: full length, durable with its directory, named in
    /// place. Answer: `segment_ready` or `segment_failed`. At most one at a time.
    Prepare {
        /// Start of the segment.
        start: u64,
    },
    /// Make this state durable in `<store>/ringmq/`, replacing the former one at once or not at all. Answer:
    /// `state_saved`. At most one at a time.
    Save {
        /// Names the action in its answer.
        id: u64,
        /// What to save.
        state: LogState,
    },
}

/// A write of one sealed block.
pub struct WriteAction<B> {
    /// Names the action in its answer.
    pub id: u64,
    /// Physical offset at which the segment starts.
    pub segment_start: u64,
    /// Byte position in the segment, a multiple of the unit.
    pub position: u64,
    /// All of it goes to the device; its length is a multiple of the unit. It never changes again.
    pub buf: Rc<B>,
}

impl<B> fmt::Debug for WriteAction<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteAction")
            .field("id", &self.id)
            .field("segment_start", &self.segment_start)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// A flush (fdatasync) of every segment that was written since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlushAction {
    /// Names the action in its answer.
    pub id: u64,
    /// What is durable when it succeeds: the end of what was written before it began.
    pub upto: u64,
    /// Starts of the segments to flush. The answer is a success only if all of them were.
    pub segments: SmallVec<[u64; 2]>,
}

/// Zeros for `[from, to)` of a segment, written directly and then flushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZeroAction {
    /// Names the action in its answer.
    pub id: u64,
    /// Physical offset at which the segment starts.
    pub segment_start: u64,
    /// First byte position in the segment, a multiple of the unit.
    pub from: u64,
    /// Byte position behind the last, a multiple of the unit.
    pub to: u64,
    /// Log writes wait for it or soon will: no pacing. Ask `LogCore::zero_is_urgent` again between the pieces of a
    /// long one.
    pub urgent: bool,
}
