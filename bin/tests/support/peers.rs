//! The script beside the foreign programs: fetching them, and the stock brokers.

use std::path::PathBuf;
use std::process::Command;

/// `bin/tests/foreign`.
pub fn foreign_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign"))
}

/// Where the script keeps what it fetched.
pub fn cache_dir() -> PathBuf {
    match std::env::var_os("RINGMQ_FOREIGN_DIR") {
        Some(dir) => dir.into(),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/foreign")),
    }
}

/// The script with these arguments.
pub fn script(args: &[&str]) -> Command {
    let mut c = Command::new(foreign_dir().join("peers.sh"));
    c.args(args).env_remove("NAMESRV_ADDR");
    c
}

/// Fetches and builds what `peers.sh fetch` calls `what`.
pub fn fetch(what: &str) {
    let output = script(&["fetch", what]).output().expect("the script runs");
    assert!(
        output.status.success(),
        "peers.sh fetch {what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
