//! How bytes travel: frames, commands, headers, bodies and records of the RocketMQ protocol.

pub mod body;
#[cfg(feature = "glommio")]
pub mod client;
pub mod code;
pub mod command;
pub mod frame;
pub mod ha_frame;
pub mod header;
pub mod headers;
pub mod json;
pub mod language;
pub mod record;
pub mod reply;
#[cfg(feature = "glommio")]
pub mod server;
