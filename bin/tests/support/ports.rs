//! Ports on loopback that are free as a block: a shard listens at its port, at two below (VIP) and one above (HA), and the next shard of
//! the process 20 further on.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use super::random::Random;

/// Distance between the ports of neighbouring shards, as the broker has it by default.
pub const STRIDE: u16 = 20;

static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok()
}

fn take(wanted: &[u16]) -> bool {
    let mut guard = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = guard.get_or_insert_default();
    if wanted.iter().any(|p| taken.contains(p) || !is_free(*p)) {
        return false;
    }
    taken.extend(wanted);
    true
}

fn find(wanted: impl Fn(u16) -> Vec<u16>) -> u16 {
    let mut random = Random::new(u64::from(std::process::id()) << 32 | u64::from(thread_tag()));
    for _ in 0..1000 {
        // Below the range from which the kernel gives ports to outgoing connections.
        let base = 11_000 + random.below(20_000) as u16;
        if take(&wanted(base)) {
            return base;
        }
    }
    panic!("no free block of ports found in 1000 tries");
}

fn thread_tag() -> u32 {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    std::thread::current().id().hash(&mut hasher);
    std::time::Instant::now().hash(&mut hasher);
    hasher.finish() as u32
}

/// The port of shard 0 of a broker whose `shards` shards all find their ports free.
pub fn broker_block(shards: u16) -> u16 {
    find(|base| {
        (0..shards)
            .flat_map(|k| [base + k * STRIDE - 2, base + k * STRIDE, base + k * STRIDE + 1])
            .collect()
    })
}

/// One free port.
pub fn single() -> u16 {
    find(|base| vec![base])
}
