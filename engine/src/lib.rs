//! The storage engine of RingMQ.

pub mod state;

pub mod log;

pub mod index;
pub mod queue;
pub mod retention;
pub mod shard;
pub mod store;
pub mod times;
