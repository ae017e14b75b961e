//! Stock clients and tools at work on the running program. Each program sends and consumes by itself and reports as JSON lines; the judge
//! holds against it that each message was exactly where, and came exactly as often, as it should.

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod clients;
mod failover;
mod judge;
