//! The gate of synchronous replication: how far which slaves are, and what a send may be told.

/// Which slave, while it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId(u64);

/// One connection.
#[derive(Debug)]
struct Peer {
    id: PeerId,
    /// The slave's own id in its group; a stock slave does not tell it.
    slave: Option<i64>,
    /// It was admitted as that slave.
    admitted: bool,
    /// It is waited for: of the connections of one slave, one is.
    counts: bool,
    /// What it reported, since another connection of the slave took its place if one did.
    held: u64,
}

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
    peers: Vec<Peer>,
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

    /// Somebody has connected. He counts as a slave that holds nothing yet, as in stock, until he is [withheld](Self::withhold).
    pub fn join(&mut self) -> PeerId {
        let id = PeerId(self.next_id);
        self.next_id += 1;
        self.peers.push(Peer { id, slave: None, admitted: false, counts: true, held: 0 });
        self.count();
        id
    }

    /// What he is must be seen first: he does not count until he is admitted.
    pub fn withhold(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == id) {
            (peer.admitted, peer.counts, peer.held) = (false, false, 0);
            let slave = peer.slave;
            self.let_another_count(slave);
        }
        self.count();
    }

    /// He is the slave `slave` and counts. Another connection of the same slave counts no more, while this one does: one slave is never
    /// two.
    pub fn admit(&mut self, id: PeerId, slave: i64) {
        for peer in &mut self.peers {
            if peer.id == id {
                (peer.slave, peer.admitted, peer.counts) = (Some(slave), true, true);
            } else if peer.slave == Some(slave) {
                (peer.counts, peer.held) = (false, 0);
            }
        }
        self.count();
    }

    /// Its connection has ended. If the slave has another one, that counts again.
    pub fn leave(&mut self, id: PeerId) {
        let gone = self.peers.iter().find(|peer| peer.id == id).and_then(|peer| peer.slave);
        self.peers.retain(|peer| peer.id != id);
        self.let_another_count(gone);
        self.count();
    }

    /// The newest connection that was admitted as this slave counts, if none does.
    fn let_another_count(&mut self, slave: Option<i64>) {
        let same = |peer: &&mut Peer| peer.slave == slave && peer.admitted;
        if slave.is_some()
            && !self.peers.iter().any(|peer| peer.slave == slave && peer.counts)
            && let Some(newest) = self.peers.iter_mut().rev().find(same)
        {
            newest.counts = true;
        }
    }

    /// It holds the log up to `offset`; the caller has checked that it can. Never goes back. Whether more is replicated than before.
    pub fn acked(&mut self, id: PeerId, offset: u64) -> bool {
        // A report of one whose place was taken shows that it lives, and counts once that place is free.
        let found =
            self.peers.iter_mut().find(|peer| peer.id == id && (peer.counts || peer.admitted));
        let Some(peer) = found.filter(|peer| peer.held < offset) else { return false };
        peer.held = offset;
        let before = self.replicated;
        self.count();
        self.replicated > before
    }

    /// Whether another connection of the same slave is counted in its place.
    pub fn is_replaced(&self, id: PeerId) -> bool {
        self.peers.iter().any(|peer| peer.id == id && peer.admitted && !peer.counts)
    }

    fn count(&mut self) {
        let counting = self.peers.iter().filter(|peer| peer.counts);
        let mut held: Vec<u64> = counting.map(|peer| peer.held).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        self.replicated = held.get(self.wanted - 1).copied().unwrap_or(0);
    }

    /// As many slaves as wanted hold the log up to here. Goes back when a slave leaves.
    pub fn replicated(&self) -> u64 {
        self.replicated
    }

    /// How many slaves hold the log up to `end`.
    pub fn holders(&self, end: u64) -> usize {
        self.peers.iter().filter(|peer| peer.counts && peer.held >= end).count()
    }

    /// Whether it makes sense to wait for a message that ends at `end` (stock 4.9.8: `isSlaveOK`).
    pub fn reachable(&self, end: u64) -> bool {
        self.connected() >= self.wanted
            && end.saturating_sub(self.replicated) < self.behind_bytes_max
    }

    /// Slaves that are connected and count.
    pub fn connected(&self) -> usize {
        self.peers.iter().filter(|peer| peer.counts).count()
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

    #[test]
    fn one_slave_on_two_connections_is_one_and_who_is_not_admitted_is_none() {
        let mut gate = SyncGate::new(1, 1_000);
        let a = gate.join();
        gate.withhold(a);
        assert!(!gate.reachable(1) && !gate.acked(a, 100));
        assert_eq!((gate.holders(0), gate.replicated()), (0, 0));
        gate.admit(a, 7);
        assert!(gate.acked(a, 100));
        let b = gate.join();
        gate.withhold(b);
        gate.admit(b, 7);
        assert_eq!((gate.connected(), gate.replicated()), (1, 0), "the new one has not reported");
        assert!(!gate.acked(a, 900), "the old one counts no more");
        assert!(gate.is_replaced(a) && !gate.is_replaced(b));
        assert!(gate.acked(b, 120));
        let c = gate.join();
        gate.withhold(c);
        gate.admit(c, 8);
        assert!(!gate.acked(c, 120));
        assert_eq!(gate.holders(120), 2);
    }

    #[test]
    fn a_connection_whose_place_was_taken_counts_again_when_the_later_one_is_gone() {
        let mut gate = SyncGate::new(1, 1_000);
        let [a, b, c] = [gate.join(), gate.join(), gate.join()];
        [a, b, c].into_iter().for_each(|id| gate.withhold(id));
        gate.admit(a, 7);
        assert!(gate.acked(a, 100));
        gate.admit(b, 7);
        gate.admit(c, 7);
        gate.leave(c);
        assert_eq!((gate.connected(), gate.replicated()), (1, 0), "it has not reported since");
        assert!(gate.acked(b, 110), "the newest one");
        assert!(!gate.acked(a, 120));
        gate.withhold(b);
        assert_eq!((gate.connected(), gate.replicated()), (1, 120), "nor is b, which was refused");
        gate.leave(a);
        gate.leave(b);
        assert_eq!((gate.connected(), gate.replicated()), (0, 0));
    }
}
