//! High availability: how a shard's log comes to its slaves.
//!
//! [`stock`] and [`gate`] decide: they take reports, offsets and a clock, and return what to do; they know no socket, no file and no
//! executor, nor does [`terms`], the list of who wrote which part of a log. [`shell`] moves bytes between them, the log and the connections.

pub mod gate;
pub mod pair;
pub mod shell;
pub mod stock;
pub mod term_store;
pub mod terms;
