//! A shard on a real disk: what is put is what is got, across reopening, crashes, lost derived data and deletion.

// Shared with the tests of the log: each uses its part.
#[allow(dead_code)]
#[path = "../log_io/support.rs"]
mod support;

mod cutting;
mod deletion;
mod following;
mod model;
mod reading;
mod rebuilding;
mod shards;
