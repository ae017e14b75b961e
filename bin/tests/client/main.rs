//! The client crate at work on running brokers: RingMQ's and stock ones, undisturbed and under faults. What a broker holds in the end is read with
//! the tests' own codec, and each message is held against what the client said of it.

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod audit;
mod consumers;
mod examples;
mod faults;
mod link;
mod meet;
mod readme;
mod scenes;

/// Where clients run: beside the test's own thread, which may block and owns the processes.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}
