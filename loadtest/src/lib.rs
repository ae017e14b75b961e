//! Load for any RocketMQ 4.x broker, and an honest measure of what it does to it.
//!
//! `produce` sends, `consume` pulls, `e2e` does both and tells how old messages are when they arrive; `echo` is a broker without a store.
//!
//! The life of one send:
//! - [`template`] encodes a request once, with placeholders of fixed width where requests differ;
//! - [`window`] keeps a copy of it for each request that a connection may have under way, patches the next free one
//!   (correlation id, queue, born time, unique key) and hands neighbours to the socket in one piece;
//! - [`produce`] decides when: as soon as an answer makes room (closed loop), or when the [`schedule`] says so (open loop:
//!   timed from when it was meant to leave, so that a stall of the broker shows in every request that it held up);
//! - [`link`] reads what comes back, [`answer`] finds correlation id and code in it without decoding the rest;
//! - [`tally`] records the latency in a histogram and shows it to the thread that prints progress ([`crew`], [`progress`]);
//! - [`report`] says what came of it, and warns when the harness itself was the limit.
//!
//! Each worker is one thread with its own sockets ([`poller`] waits for them) and its own counters; nothing is shared on the way but
//! a few counters that are brought up to date once a turn. Pulls are simpler: [`consume`] has one under way for each queue,
//! [`records`] checks what comes. What bodies carry end to end is in [`stamp`].

pub mod answer;
pub mod arrivals;
pub mod call;
pub mod cli;
pub mod clock;
pub mod consume;
pub mod crew;
pub mod digits;
pub mod echo;
pub mod error;
pub mod link;
pub mod poller;
pub mod produce;
pub mod progress;
pub mod records;
pub mod report;
pub mod run;
pub mod schedule;
pub mod stamp;
pub mod tally;
pub mod target;
pub mod template;
pub mod usage;
pub mod window;

pub use cli::Cli;
pub use error::LoadError;
pub use report::Report;
