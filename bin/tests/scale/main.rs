//! Much of everything: topics, queues, groups, gigabytes, segments to delete. The tests hold bounds that are a few times what a quiet machine
//! shows, and print what they saw; `docs/performance.md` has the numbers.

#[path = "../support/mod.rs"]
mod support;

mod burst;
mod deletion;
mod groups;
mod recovery;
mod sight;
mod topics;
