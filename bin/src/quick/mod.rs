//! `ringmq send` and `ringmq tail`: enough of a client to see a message go in and come out.
//!
//! Plain blocking sockets: these commands run for a moment, for one person. Programs use a real client.

mod error;
mod link;
mod route;
mod send;
mod tail;

pub use error::QuickError;
pub(crate) use link::Link;
pub(crate) use route::connect_namesrv;
pub use send::{SendArgs, send};
pub use tail::{TailArgs, tail};
