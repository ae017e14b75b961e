//! Frames, commands, headers, bodies and records of the RocketMQ protocol.
pub mod record;
