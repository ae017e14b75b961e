//! The `ringmq` program as modules, so that tests can use its parts; `main.rs` only calls [`process::main`].
//!
//! The order of a start: [`cli`] reads flags, [`config`] turns them and the file into read-only settings and one plan per shard,
//! [`logging`] takes log lines off the reactors, [`preflight`] checks what the machine offers, [`reactor`] starts one executor per
//! shard with the metronome and the stall recorder beside them, and [`signals`] asks them to stop. [`process`] is that order in code.

pub mod admin;
pub mod broker;
pub mod check;
pub mod cli;
pub mod config;
pub mod log_tail;
pub mod log_tool;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod namesrv;
pub mod preflight;
pub mod process;
pub mod quick;
pub mod reactor;
pub mod signals;
