//! What the tests of the running program share: processes that end with their owner, free ports, brokers of both kinds (RingMQ and stock),
//! a wire codec and a record decoder of their own, a load with an acknowledgement journal, and the checker that judges a store by it.
//!
//! Nothing here uses the broker's code: a mistake there must not be able to hide itself.
//!
//! `RINGMQ_TEST_TARGET=stock` points the tests at a stock 4.9.7 broker instead, which is how they were proven themselves.

// Each test program uses its part of this module.
#![allow(dead_code, unreachable_pub, unused_imports, missing_docs)]

pub mod broker;
pub mod checker;
pub mod client;
pub mod forged;
pub mod fuse;
pub mod ha;
pub mod image;
pub mod journal;
pub mod judge;
pub mod later;
pub mod link;
pub mod load;
pub mod mixed;
pub mod net;
pub mod peers;
pub mod ports;
pub mod process;
pub mod random;
pub mod record;
pub mod tables;
pub mod wire;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[allow(unused_imports)]
pub use broker::{Broker, Options, Target};

/// A directory of its own below `target/tmp`, which is on a disk; it goes away with the handle, unless `RINGMQ_TEST_KEEP` is set.
pub fn tempdir(what: &str) -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix(&format!("{what}-"))
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a temporary directory below target/tmp");
    let path = dir.path().to_owned();
    let owner = match std::env::var_os("RINGMQ_TEST_KEEP") {
        Some(_) => {
            println!("kept: {}", dir.keep().display());
            None
        }
        None => Some(dir),
    };
    TempDir { path, _owner: owner }
}

/// See [`tempdir`].
pub struct TempDir {
    path: PathBuf,
    _owner: Option<tempfile::TempDir>,
}

impl TempDir {
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// A directory in it.
    pub fn sub(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).expect("a directory in a temporary directory");
        path
    }
}

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// Held by a test that wants the machine for itself among the tests of its program: one that measures time, or loads both cores.
pub fn exclusive() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a fault is repeated: `RINGMQ_TEST_ROUNDS`, else `usual`.
pub fn rounds(usual: u32) -> u32 {
    std::env::var("RINGMQ_TEST_ROUNDS")
        .map_or(usual, |n| n.parse().expect("RINGMQ_TEST_ROUNDS is a number"))
}

/// Whether a tool that a test needs is there. In CI everything has to be.
pub fn have(tool: &str, what: &str) -> bool {
    let found = std::process::Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .output()
        .is_ok_and(|o| o.status.success());
    if !found {
        skip(&format!("{what}: no {tool} on this machine"));
    }
    found
}

/// Says why a test does nothing. In CI this is a failure: there, nothing may be left out in silence.
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("CI").is_none() || why.contains("root"),
        "in CI nothing is skipped, but {why}"
    );
    println!("SKIPPED: {why}");
}
