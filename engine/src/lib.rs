//! The storage engine of RingMQ.

pub mod state;

pub mod log;
