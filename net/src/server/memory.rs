//! What happens when the connections of one server hold more memory than they may.

use std::cmp::Reverse;
use std::rc::Rc;

use super::Server;
use super::conn::Conn;
use super::stats::CloseReason;

/// A connection that holds less than this is never closed for its memory: too little would be gained.
const CLOSE_BYTES_MIN: usize = 16 * 1024;

impl Server {
    /// Takes memory back if connections hold more than they may together.
    pub(super) fn reclaim_if_over(&self) {
        if self.hub.held() > self.hub.config.held_bytes_max {
            self.reclaim();
        }
    }

    /// First takes empty buffers, then closes connections until a quarter of the budget is free: those that hold the most for
    /// the longest. A client that sends and receives at its pace holds little and not for long; one that never finishes a
    /// request, or never takes a reply, comes first. The quarter makes the next walk over all connections rare.
    fn reclaim(&self) {
        let budget = self.hub.config.held_bytes_max;
        let conns = self.conns();
        for conn in &conns {
            conn.rx.borrow_mut().shrink();
            conn.account();
        }
        if self.hub.held() <= budget {
            return;
        }
        let now_ms = self.hub.now_ms();
        let mut holders: Vec<&Rc<Conn>> =
            conns.iter().filter(|conn| conn.held() >= CLOSE_BYTES_MIN).collect();
        holders.sort_unstable_by_key(|conn| {
            let age_ms = now_ms.saturating_sub(conn.held_since_ms.get()) + 1;
            Reverse((conn.held() as u64).saturating_mul(age_ms))
        });
        for conn in holders {
            if self.hub.held() <= budget - budget / 4 {
                return;
            }
            if let Some(left_out) = self.hub.memory_lines.allow(now_ms) {
                tracing::warn!(conn = conn.id(), peer = %conn.peer(), held = conn.held(), budget, left_out,
                    "closing a connection: all together hold too much memory, and this one takes no replies or finishes no request");
            }
            conn.end(CloseReason::Memory);
            conn.drop_buffers();
        }
    }
}
