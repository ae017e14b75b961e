//! Every port that this process is going to bind, tried once.

use std::io;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::Finding;
use crate::config::Settings;

/// How long ports that are in use are tried again, all together. A process that was killed is gone before the kernel has taken down its
/// io_uring, and its listening sockets with that: whoever starts it again at once would find them in use.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(20);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let mut wanted: Vec<(String, SocketAddr, &str)> = Vec::new();
    if let Some(namesrv) = &settings.namesrv {
        wanted.push(("name server".to_owned(), namesrv.listen, "namesrv.listen"));
    }
    if let Some(metrics) = settings.metrics {
        wanted.push(("metrics".to_owned(), metrics, "metrics.listen"));
    }
    for shard in &settings.shards {
        for (what, address) in shard.ports() {
            wanted.push((
                format!("{what} port of shard {}", shard.index),
                address,
                "broker.listen",
            ));
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let mut failures: Vec<Finding> = wanted
        .iter()
        .filter_map(|(what, address, key)| {
            let error = bind_by(address, deadline).err()?;
            Some(Finding::failure("ports", format!("{address} ({what}): {}", remedy(&error, key))))
        })
        .collect();
    if failures.is_empty() {
        let list: Vec<String> =
            wanted.iter().map(|(_, address, _)| address.port().to_string()).collect();
        failures.push(Finding::good("ports", list.join(", ")));
    }
    failures
}

/// Tries the address, again and again while it is in use and there is time.
fn bind_by(address: &SocketAddr, deadline: Instant) -> io::Result<Socket> {
    loop {
        match try_bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
}

/// A socket that has the address and does not listen: a client that comes meanwhile is refused, not taken and then reset.
fn try_bind(address: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    // What the listeners set, too: connections of a former process that linger are no obstacle, a socket that listens is one.
    socket.set_reuse_address(true)?;
    socket.bind(&(*address).into())?;
    Ok(socket)
}

fn remedy(error: &io::Error, key: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("in use by another process: stop it (`ss -ltnp` shows it) or change {key}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address: change {key}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("not permitted: choose a port above 1023 in {key}")
        }
        _ => format!("{error}: change {key}"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_that_is_listened_on_is_in_use_and_one_that_was_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(try_bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // One end of a connection stays on the port, closed by this side first.
        let peer = TcpStream::connect(address).unwrap();
        drop(listener.accept().unwrap());
        drop(listener);
        try_bind(&address).unwrap();
        drop(peer);
    }

    #[test]
    fn a_client_that_comes_while_a_port_is_tried_is_refused() {
        let tried = try_bind(&SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = tried.local_addr().unwrap().as_socket().unwrap();
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
