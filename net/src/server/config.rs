//! What a [`Server`](super::Server) is told when it starts, with every bound and its default.

use std::net::SocketAddr;
use std::time::Duration;

use crate::frame::FRAME_BYTES_MAX;

/// Which of a broker's two client ports a connection came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// The configured listen port.
    Main,
    /// The "fast" port, listen port - 2: the same requests except PULL_MESSAGE (stock 4.9.8).
    Vip,
}

/// One address to listen on.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Port 0 lets the kernel choose; see [`Server::local_addr`](super::Server::local_addr).
    pub addr: SocketAddr,
    /// What connections accepted here report as [`Conn::port`](super::Conn::port).
    pub port: PortKind,
}

/// Whether requests wait for others, to be handled together. The time is that between two looks at all connections: a request waits no longer to
/// be looked at, unless looking at all of them takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathering {
    /// Each is handled when it comes.
    Never,
    /// While a busy server saves a quarter of the processor time or more by it and does nine tenths of the work or more, which is tried out.
    WhenItPays(Duration),
    /// Also when it does not pay.
    Always(Duration),
}

/// Limits of one server. Each reactor has its own server, so every bound is per reactor.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen. An unspecified IPv6 address accepts IPv4 peers too.
    pub listen: Vec<Listen>,
    /// Connections open at once; one more is closed right after its accept. Default 20,000.
    pub conns_max: usize,
    /// A connection with more unsent reply bytes than this is not read until some have left. Default 4 MiB.
    pub out_bytes_max: usize,
    /// A connection with more unsent reply bytes than this is closed: its peer takes nothing while others
    /// keep answering it (woken pulls, notifications). Default 64 MiB.
    pub out_bytes_cap: usize,
    /// Memory for what all connections have buffered: unfinished requests, and replies that have not left with the blocks that
    /// they keep alive. From half of it on, a connection is not read with more than 64 KiB of unsent replies, and
    /// replies keep no blocks; beyond it the connections that hold the most for the longest are closed. Default 128 MiB.
    pub held_bytes_max: usize,
    /// Close after this long without a byte in either direction. Default 120 s (stock
    /// `serverChannelMaxIdleTimeSeconds`); clients send a heartbeat each 30 s.
    pub idle: Duration,
    /// Whole frame, length word included; a longer claim closes the connection. Default 16 MiB (stock).
    pub frame_bytes_max: usize,
    /// Whether requests are gathered. Default: never.
    pub gather: Gathering,
    /// Length of the kernel's accept queue. Default 1,024 (stock).
    pub backlog: i32,
}

impl ServerConfig {
    /// One main port at `addr`, no VIP port, defaults elsewhere.
    pub fn new(addr: SocketAddr) -> Self {
        ServerConfig {
            listen: vec![Listen { addr, port: PortKind::Main }],
            conns_max: 20_000,
            out_bytes_max: 4 << 20,
            out_bytes_cap: 64 << 20,
            held_bytes_max: 128 << 20,
            idle: Duration::from_secs(120),
            frame_bytes_max: FRAME_BYTES_MAX,
            gather: Gathering::Never,
            backlog: 1024,
        }
    }

    /// Adds a VIP port. Stock clients compute it as main port - 2, so nothing else works for them.
    pub fn with_vip(mut self, addr: SocketAddr) -> Self {
        self.listen.push(Listen { addr, port: PortKind::Vip });
        self
    }
}
