//! Every port that this process is going to bind, tried once.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

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

/// Binds the address, trying again while it is in use and there is time.
fn bind_by(address: &SocketAddr, deadline: Instant) -> io::Result<TcpListener> {
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
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
