//! Counters of one server and the rate limit of its log lines.

use std::cell::Cell;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it.
    Peer,
    /// The socket failed (reset, broken pipe).
    Error,
    /// No byte in either direction for the idle time.
    Idle,
    /// A frame or header that does not decode, or a frame over the limit.
    Malformed,
    /// The first byte was that of a TLS handshake.
    Tls,
    /// More unsent bytes than `out_bytes_cap`.
    SlowReader,
    /// All connections together held more than `held_bytes_max`, and this one much of it.
    Memory,
    /// [`Conn::close`](super::Conn::close) was called.
    Service,
    /// The server drained or closed.
    Shutdown,
}

/// Number of [`CloseReason`]s.
pub const CLOSE_REASONS: usize = 9;

impl CloseReason {
    /// All reasons, in the order of [`ServerStats::closed`].
    pub const ALL: [CloseReason; CLOSE_REASONS] = [
        CloseReason::Peer,
        CloseReason::Error,
        CloseReason::Idle,
        CloseReason::Malformed,
        CloseReason::Tls,
        CloseReason::SlowReader,
        CloseReason::Memory,
        CloseReason::Service,
        CloseReason::Shutdown,
    ];

    /// A word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            CloseReason::Peer => "peer",
            CloseReason::Error => "error",
            CloseReason::Idle => "idle",
            CloseReason::Malformed => "malformed",
            CloseReason::Tls => "tls",
            CloseReason::SlowReader => "slow_reader",
            CloseReason::Memory => "memory",
            CloseReason::Service => "service",
            CloseReason::Shutdown => "shutdown",
        }
    }
}

/// A copy of a server's counters. All but `connections` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Open now.
    pub connections: u64,
    /// Accepted since the start, refused ones included.
    pub accepted: u64,
    /// Closed at once because `conns_max` were open.
    pub refused: u64,
    /// Failed accepts (most often: the process has no descriptor left).
    pub accept_errors: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes handed to the kernel.
    pub bytes_out: u64,
    /// Whole frames handed to the service.
    pub frames_in: u64,
    /// Receives that brought bytes.
    pub recv_calls: u64,
    /// `sendmsg`/`send` calls.
    pub send_calls: u64,
    /// Sends that the socket did not take whole.
    pub send_blocked: u64,
    /// Looks at all connections whose requests are gathered.
    pub gathers: u64,
    /// Turns in which reading stopped because too many bytes were unsent.
    pub read_pauses: u64,
    /// Ended connections by [`CloseReason::ALL`].
    pub closed: [u64; CLOSE_REASONS],
}

impl ServerStats {
    /// Connections that ended for `reason`.
    pub fn closed_for(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize]
    }
}

/// The live counters; plain cells, since a server lives on one reactor.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) connections: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    pub(crate) refused: Cell<u64>,
    pub(crate) accept_errors: Cell<u64>,
    pub(crate) bytes_in: Cell<u64>,
    pub(crate) bytes_out: Cell<u64>,
    pub(crate) frames_in: Cell<u64>,
    pub(crate) recv_calls: Cell<u64>,
    pub(crate) send_calls: Cell<u64>,
    pub(crate) send_blocked: Cell<u64>,
    pub(crate) gathers: Cell<u64>,
    pub(crate) read_pauses: Cell<u64>,
    pub(crate) closed: [Cell<u64>; CLOSE_REASONS],
}

/// Adds to a counter cell.
pub(crate) fn add(cell: &Cell<u64>, n: u64) {
    cell.set(cell.get().wrapping_add(n));
}

impl Counters {
    pub(crate) fn snapshot(&self) -> ServerStats {
        let mut closed = [0; CLOSE_REASONS];
        for (to, from) in closed.iter_mut().zip(&self.closed) {
            *to = from.get();
        }
        ServerStats {
            connections: self.connections.get(),
            accepted: self.accepted.get(),
            refused: self.refused.get(),
            accept_errors: self.accept_errors.get(),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
            frames_in: self.frames_in.get(),
            recv_calls: self.recv_calls.get(),
            send_calls: self.send_calls.get(),
            send_blocked: self.send_blocked.get(),
            gathers: self.gathers.get(),
            read_pauses: self.read_pauses.get(),
            closed,
        }
    }
}

/// Lines of one kind that may be logged in a window; the rest are counted.
const LINES_PER_WINDOW: u32 = 10;
const WINDOW_MS: u64 = 10_000;

/// Bounds the log lines that peers can cause: a flood of bad connections must not flood the log.
#[derive(Default)]
pub(crate) struct LineLimit {
    window_start_ms: Cell<u64>,
    lines: Cell<u32>,
    suppressed: Cell<u64>,
}

impl LineLimit {
    /// `Some(lines left out since the last one)` if a line may be written now.
    pub(crate) fn allow(&self, now_ms: u64) -> Option<u64> {
        if now_ms.saturating_sub(self.window_start_ms.get()) >= WINDOW_MS {
            self.window_start_ms.set(now_ms);
            self.lines.set(0);
        }
        if self.lines.get() < LINES_PER_WINDOW {
            self.lines.set(self.lines.get() + 1);
            return Some(self.suppressed.replace(0));
        }
        self.suppressed.set(self.suppressed.get() + 1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_and_counted() {
        let limit = LineLimit::default();
        let written = (0..1000).filter(|_| limit.allow(5).is_some()).count();
        assert_eq!(written, LINES_PER_WINDOW as usize);
        assert_eq!(limit.allow(5 + WINDOW_MS), Some(1000 - u64::from(LINES_PER_WINDOW)));
        assert_eq!(limit.allow(5 + WINDOW_MS), Some(0));
    }

    #[test]
    fn every_close_reason_has_its_own_counter() {
        for (i, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
        }
    }
}
