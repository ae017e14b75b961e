//! The gate of synchronous replication: how far which slaves are, and what a send may be told.

/// Which slave, while it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId(u64);

/// How far the connected slaves are. One per shard.
///
/// A slave counts with what it reported over its present connection: when that ends, it holds nothing any more until it reports
/// again. So an offset that was once reported by a slave that is gone acknowledges nothing (a stock master keeps one maximum over
/// all connections since its start).
#[derive(Debug)]
pub struct SyncGate {
    /// Slaves that must hold a message.
    wanted: usize,
    /// A message is not waited for while the slaves are this many bytes behind it.
    behind_bytes_max: u64,
    peers: Vec<(PeerId, u64)>,
    next_id: u64,
    /// The offset that `wanted` slaves hold.
    replicated: u64,
}

impl SyncGate {
    /// No slave is connected. `wanted` is at least 1.
    pub fn new(wanted: usize, behind_bytes_max: u64) -> Self {
        SyncGate {
            wanted: wanted.max(1),
            behind_bytes_max,
            peers: Vec::new(),
            next_id: 0,
            replicated: 0,
        }
    }

    /// A slave has connected; it holds nothing before it reports.
    pub fn join(&mut self) -> PeerId {
        let id = PeerId(self.next_id);
        self.next_id += 1;
        self.peers.push((id, 0));
        self.count();
        id
    }

    /// Its connection has ended.
    pub fn leave(&mut self, id: PeerId) {
        self.peers.retain(|(peer, _)| *peer != id);
        self.count();
    }

    /// It holds the log up to `offset`; the caller has checked that it can. Never goes back. Whether more is replicated than before.
    pub fn acked(&mut self, id: PeerId, offset: u64) -> bool {
        let Some((_, held)) = self.peers.iter_mut().find(|(peer, _)| *peer == id) else {
            return false;
        };
        if *held >= offset {
            return false;
        }
        *held = offset;
        let before = self.replicated;
        self.count();
        self.replicated > before
    }

    fn count(&mut self) {
        let mut held: Vec<u64> = self.peers.iter().map(|(_, held)| *held).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        self.replicated = held.get(self.wanted - 1).copied().unwrap_or(0);
    }

    /// As many slaves as wanted hold the log up to here. Goes back when a slave leaves.
    pub fn replicated(&self) -> u64 {
        self.replicated
    }

    /// How many slaves hold the log up to `end`.
    pub fn holders(&self, end: u64) -> usize {
        self.peers.iter().filter(|(_, held)| *held >= end).count()
    }

    /// Whether it makes sense to wait for a message that ends at `end` (stock 4.9.8: `isSlaveOK`).
    pub fn reachable(&self, end: u64) -> bool {
        self.peers.len() >= self.wanted
            && end.saturating_sub(self.replicated) < self.behind_bytes_max
    }

    /// Slaves that are connected.
    pub fn connected(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_replicated_when_as_many_slaves_as_wanted_hold_it() {
        let mut gate = SyncGate::new(2, 1_000);
        let a = gate.join();
        assert!(!gate.reachable(1), "one slave of two");
        let b = gate.join();
        assert!(gate.reachable(1));
        assert!(!gate.acked(a, 100));
        assert_eq!((gate.replicated(), gate.holders(100)), (0, 1));
        assert!(gate.acked(b, 60));
        assert_eq!((gate.replicated(), gate.holders(60)), (60, 2));
        assert!(!gate.acked(b, 50), "nothing is taken back");
        assert!(gate.acked(b, 200));
        assert_eq!((gate.replicated(), gate.holders(101)), (100, 1));
    }

    #[test]
    fn a_slave_that_is_gone_holds_nothing() {
        let mut gate = SyncGate::new(1, 1_000);
        let a = gate.join();
        assert!(gate.acked(a, 500));
        gate.leave(a);
        assert_eq!((gate.replicated(), gate.connected()), (0, 0));
        assert!(!gate.acked(a, 600), "a report that comes late");
        assert!(!gate.reachable(10));
        let again = gate.join();
        assert_eq!(gate.holders(1), 0);
        assert!(gate.acked(again, 1));
    }

    #[test]
    fn slaves_too_far_behind_are_not_waited_for() {
        let mut gate = SyncGate::new(1, 1_000);
        let a = gate.join();
        gate.acked(a, 5_000);
        assert!(gate.reachable(5_999));
        assert!(!gate.reachable(6_000), "at the limit, as stock has it");
    }
}
