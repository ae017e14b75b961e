//! Consumers at running brokers.

mod ends;
mod interop;
pub(crate) mod scenes;
mod seen;
mod storms;

use std::net::SocketAddr;
use std::time::Duration;

use ringmq_client::{Client, ClientBuilder};

/// A limit that nothing reaches.
const LONG: Duration = Duration::from_secs(60);

/// A client of its own, which is another member of each group than every other client.
fn member(namesrv: SocketAddr) -> ClientBuilder {
    Client::builder().name_server(namesrv.to_string()).route_interval(Duration::from_millis(500))
}
