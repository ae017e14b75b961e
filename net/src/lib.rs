//! How bytes travel: frames, commands, headers, bodies and records of the RocketMQ protocol.
//!
//! # One message on its way in and out
//!
//! 1. A connection receives into its buffer. [`frame::peek`] says whether a whole frame is there, without
//!    copying, or how many bytes it needs.
//! 2. The reactor's [`header::HeaderDecoder`] reads the header, JSON or binary, into scratch that it owns and
//!    lends out a [`header::HeaderView`]. [`headers`] turns its ext fields into a typed request that borrows
//!    from the frame, such as [`headers::SendHeader`].
//! 3. The broker encodes a [`record`] straight into its log's tail: the one copy of the body.
//! 4. [`reply::encode_reply`] writes the answer into the connection's output buffer, in the form of the
//!    request.
//!
//! Nothing of this allocates after warm-up, which `tests/no_allocation.rs` holds. What does not happen once
//! per message is owned and comfortable instead: [`command::Command`] for requests that a broker or client
//! sends, [`body`] for everything that travels as a JSON body, [`json`] beneath it.
//!
//! # What is promised
//!
//! * Bytes from a peer give a value or a typed error: no panic, and no memory out of proportion
//!   (`tests/no_input_panics.rs`). A frame or header error means that the stream is lost and is closed; a
//!   field or body error is answered with code 1.
//! * What is written is byte for byte what stock 4.9.8 writes, since foreign clients cut texts with simple
//!   means. What is read is as lenient as stock, and a little more.
//! * The codec does no I/O and knows no clock. Sockets live behind the feature `glommio`.

pub mod body;
#[cfg(feature = "glommio")]
pub mod client;
pub mod code;
pub mod command;
pub mod frame;
pub mod ha_frame;
pub mod ha_term_frame;
pub mod header;
pub mod headers;
pub mod json;
pub mod language;
pub mod map;
pub mod prefetch;
pub mod record;
pub mod reply;
mod scan;
#[cfg(feature = "glommio")]
pub mod server;
