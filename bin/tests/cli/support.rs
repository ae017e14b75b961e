//! What the tests of the program share.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

/// The program, without any setting inherited from the environment of the test.
pub(crate) fn ringmq() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    for (name, _) in std::env::vars_os() {
        if name == "NAMESRV_ADDR" || name.to_string_lossy().starts_with("RINGMQ_") {
            command.env_remove(name);
        }
    }
    command
}

/// A client port whose VIP and HA ports are free too, with `shards` of them 20 apart. Below the range from which the kernel takes
/// ports for outgoing connections.
pub(crate) fn free_ports(shards: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 200) as u16 * 100;
    for _ in 0..500 {
        let base = 12_000 + (first + NEXT.fetch_add(shards * 20, Ordering::Relaxed)) % 20_000;
        let mut ports =
            (0..shards).flat_map(|shard| [0, 2, 3].map(|offset| base - 2 + shard * 20 + offset));
        if ports.all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return base;
        }
    }
    panic!("no free ports found");
}
