//! Listening sockets and the task that accepts from one.
//!
//! Two defects of glommio 0.9 shape this. A cancelled accept loses a connection and leaks its descriptor, so the
//! task is never cancelled: `shutdown` on the listening descriptor ends it. An accepted stream is a plain
//! number until it is bound, so it is bound at once and exactly once, also when it is then refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use glommio::GlommioError;
use glommio::net::TcpListener;
use glommio::timer::sleep;
use socket2::{Domain, Protocol, Socket, Type};

use super::config::{Listen, PortKind};
use super::conn::Conn;
use super::stats::add;
use super::{Server, ServerError, turn};

/// Pause after a failed accept: without one, a process out of descriptors would spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listening socket. The accept task owns the descriptor.
pub(super) struct Bound {
    pub(super) listener: TcpListener,
    pub(super) fd: RawFd,
    pub(super) addr: SocketAddr,
    pub(super) port: PortKind,
}

/// Opens one listening socket. Not with glommio's own `bind`, which sets SO_REUSEPORT: two shards (or two
/// processes) that were given the same port must be refused, not served in turns.
pub(super) fn bind(listen: &Listen, backlog: i32) -> Result<Bound, ServerError> {
    let open = || -> io::Result<Socket> {
        let domain = if listen.addr.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if listen.addr.is_ipv6() && listen.addr.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&listen.addr.into())?;
        socket.listen(backlog)?;
        Ok(socket)
    };
    let socket = open().map_err(|source| ServerError::Bind { addr: listen.addr, source })?;
    let addr = socket.local_addr().ok().and_then(|a| a.as_socket()).unwrap_or(listen.addr);
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is open and ownership passes to the listener.
    let listener = unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) };
    Ok(Bound { listener, fd, addr, port: listen.port })
}

/// Accepts until the listener is shut down.
pub(super) async fn accept(server: Rc<Server>, bound: Bound) {
    while server.is_accepting() {
        match bound.listener.accept().await {
            Ok(stream) => open(&server, stream, bound.port),
            Err(_) if !server.is_accepting() => break,
            Err(error) => {
                if lost_peer(&error) {
                    continue;
                }
                add(&server.hub.count.accept_errors, 1);
                if let Some(left_out) = server.hub.accept_lines.allow(server.hub.now_ms()) {
                    tracing::warn!(addr = %bound.addr, %error, left_out,
                        "accepting a connection failed; raise the open file limit if descriptors ran out");
                }
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    server.listener_ended(bound.fd);
}

/// The peer gave up before it was accepted: nothing is wrong here.
fn lost_peer(error: &GlommioError<()>) -> bool {
    matches!(error, GlommioError::IoError(e)
        if matches!(e.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO)))
}

fn open(server: &Rc<Server>, stream: glommio::net::TcpStream, port: PortKind) {
    let hub = &server.hub;
    add(&hub.count.accepted, 1);
    let Ok(peer) = stream.peer_addr() else {
        // Reset between the handshake and the accept.
        return;
    };
    if hub.count.connections.get() >= hub.config.conns_max as u64 {
        add(&hub.count.refused, 1);
        if let Some(left_out) = hub.refused_lines.allow(hub.now_ms()) {
            tracing::warn!(%peer, conns_max = hub.config.conns_max, left_out,
                "refused a connection over the limit");
        }
        return;
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY could not be set");
    }
    reset_when_closed(stream.as_raw_fd(), true);
    let conn = Conn::new(hub.clone(), stream.as_raw_fd(), peer, port);
    server.opened(&conn);
    glommio::spawn_local(turn::serve(server.clone(), conn, stream)).detach();
}

/// Whether closing the socket resets the connection (SO_LINGER with no time) or ends it in order.
///
/// An open connection is set to reset, so that its peer sees one when this process is killed: on the mere end of a
/// stream, a Java 4.9.8 client leaves its pending calls to their timeout of 3 s, and then has no time left for
/// another broker; on a reset it goes there at once. Closing in order turns it off first.
pub(super) fn reset_when_closed(fd: RawFd, reset: bool) {
    let linger = libc::linger { l_onoff: i32::from(reset), l_linger: 0 };
    // SAFETY: the pointer and the length are those of a `linger` that outlives the call; a bad descriptor is an error.
    let failed = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if failed != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "SO_LINGER could not be set");
    }
}
