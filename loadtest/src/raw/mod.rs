//! The raw driver: requests that are encoded once and patched in place, over plain sockets, on threads of their own. It costs a fraction of a
//! microsecond a message, so that what is measured is the broker.
//!
//! The life of one send:
//! - [`template`] encodes a request once, with placeholders of fixed width where requests differ;
//! - [`window`] keeps a copy of it for each request that a connection may have under way, patches the next free one
//!   (correlation id, queue, born time, unique key, size) and hands neighbours to the socket in one piece;
//! - [`produce`] decides when: as soon as an answer makes room (closed loop), or when the [schedule](crate::schedule) says so (open loop:
//!   timed from when it was meant to leave, so that a stall of the broker shows in every request that it held up);
//! - [`link`] reads what comes back, [`answer`] finds correlation id and code in it without decoding the rest;
//! - the [tally](crate::tally) records the latency in a histogram and shows it to the thread that prints progress.
//!
//! Each worker is one thread with its own sockets ([`poller`] waits for them) and its own counters; nothing is shared on the way but
//! a few counters that are brought up to date once a turn. Pulls are simpler: [`consume`] has one under way for each queue,
//! [`records`] checks what comes.

pub mod answer;
pub mod consume;
pub mod crew;
pub mod digits;
pub mod link;
pub mod poller;
pub mod produce;
pub mod records;
pub mod template;
pub mod window;
