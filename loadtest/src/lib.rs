//! Load for any RocketMQ broker, and an honest measure of what it does to it.
//!
//! `produce` sends, `consume` pulls, `e2e` does both and tells how old messages are when they arrive, `replay` sends what was recorded,
//! `compare` runs a scenario against several brokers in turn; `echo` is a broker without a store.
//!
//! The life of a run:
//! - [`cli`] says what is wanted, [`target`] finds the brokers, and [`run`] puts a run together;
//! - a [`driver`] sends and receives: through the [`client`] crate, or [`raw`] by pre-encoded frames;
//! - what is sent when is in [`schedule`] (evenly, or as in a [`trace`]), how long it is in [`sizes`], what it says of itself in [`stamp`];
//! - workers count in a [`tally`]; a thread that watches them ([`crew`]) shows and keeps each second ([`progress`], [`hdr_log`]), with what the
//!   processes use ([`usage`]) and how far slaves are behind ([`lag`]);
//! - what was acknowledged and what arrived is put together in [`ledger`], or kept for later in a [`journal`];
//! - [`report`] says what came of it, for people, programs and browsers ([`html`]), and warns when the harness itself was the limit;
//! - [`knee`] repeats a run at one rate after the other, [`mod@compare`] at one broker after the other.

pub mod arrivals;
pub mod call;
pub mod cli;
pub mod client;
pub mod clock;
pub mod compare;
pub mod crew;
pub mod driver;
pub mod echo;
pub mod error;
pub mod floor;
pub mod hdr_log;
pub mod html;
pub mod journal;
pub mod kind;
pub mod knee;
pub mod lag;
pub mod ledger;
pub mod progress;
pub mod raw;
pub mod report;
pub mod run;
pub mod schedule;
pub mod sizes;
pub mod stamp;
pub mod tally;
pub mod target;
pub mod trace;
pub mod usage;

pub use cli::Cli;
pub use error::LoadError;
pub use report::Report;
