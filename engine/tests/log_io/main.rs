//! The commit log on real files: a real disk, real direct I/O, real crashes of the process.

mod allocations;
mod basics;
mod crash;
mod disk_full;
mod faults;
mod scan;
mod store;
mod support;
mod throughput;
