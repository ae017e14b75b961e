//! Frames, commands, headers, bodies and records of the RocketMQ protocol.
