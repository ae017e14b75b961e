//! Too much, on purpose: floods, crowds, storms of pulls, clients that send and never read, clients that lie, and clocks that jump. Beside
//! each of them a good producer and a good consumer work, and what they were promised is judged by the journal and its checker.

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod crowd;
mod crowds;
mod flood;
mod hostile;
mod judge;
mod pair;
