//! Faults on purpose: the running program is killed, frozen, starved and fed with nonsense, and what it acknowledged is counted afterwards
//! by a checker that shares no code with it.

#[path = "../support/mod.rs"]
mod support;

mod checker;
mod crash_image;
mod delivery;
mod disk;
mod malformed;
mod power_cut;
mod recorded_disk;
mod shutdown;
mod sigkill;
mod starvation;
mod stock_store;
mod surgery;
