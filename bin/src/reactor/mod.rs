//! Reactors: one glommio executor on one thread per shard, and what watches over them.
//!
//! ```text
//!   signals thread ──► Stop (one flag for the process)
//!                        │ read by each reactor's heartbeat task
//!   metronome thread ──SIGUSR2 every 20 ms──► reactor 0, reactor 1, ...
//!        └─ reads each reactor's beat ◄────── heartbeat task, `doing` labels
//! ```
//!
//! glommio 0.9.0 can park a thread that still has runnable tasks, for ever, when the kernel takes the processor away at the wrong
//! moment. A signal makes the parked system call return, so the metronome cures it without a patched crate. While it is there
//! it reads each reactor's heartbeat: one that has not turned for a while is logged with what it was doing, and whether that was its own
//! work or a processor that others had.

mod account;
mod beat;
mod inbox;
mod metronome;
mod spawn;
mod stop;

pub use beat::{Doing, Label, doing};
pub use inbox::Inbox;
pub use metronome::{METRONOME_PERIOD, ReactorState, ReactorWatch, Stall, StallCounters};
pub use spawn::{
    IO_MEMORY_BYTES, LOCKED_BYTES_PER_REACTOR, Reactor, ReactorError, ReactorOptions, Reactors,
    Seat, spawn_reactors,
};
pub use stop::{Stop, Stopping};
