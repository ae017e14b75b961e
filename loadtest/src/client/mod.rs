//! The driver that does what a program with the client crate does: routes, compression off, retries, heartbeats, prefetching consumers.
//!
//! Every worker is a thread with a tokio runtime of its own, on which its clients live with all their tasks; nothing crosses threads. A
//! "connection" of the options is a client: it has one connection to each broker. Bodies are not compressed, so that sizes are those that
//! were asked for.

mod receive;
mod send;
mod timer;

use ringmq_client::Client;
use tokio::runtime::Runtime;

use crate::cli::CommonOptions;
use crate::driver::{Driver, Prepared, ReceiveLoad, SendLoad};
use crate::error::LoadError;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct ThroughClient {
    name_servers: String,
}

impl ThroughClient {
    /// Finds brokers at these name servers, `HOST:PORT` with `;` between them.
    #[must_use]
    pub fn new(name_servers: &str) -> Self {
        ThroughClient { name_servers: name_servers.to_owned() }
    }

    /// A client; only inside of a runtime.
    fn client(&self, common: &CommonOptions) -> Result<Client, LoadError> {
        let mut builder = Client::builder().name_server(&self.name_servers);
        if let Some(queues) = common.queues {
            builder = builder.default_topic_queues(u16::try_from(queues).unwrap_or(u16::MAX));
        }
        builder.build().map_err(failed("cannot make a client"))
    }
}

impl Driver for ThroughClient {
    fn senders(&self, load: &SendLoad<'_>) -> Result<Prepared, LoadError> {
        let crew = send::SendCrew::new(self, load)?;
        Ok(Box::new(move |start| Ok(crew.jobs(start))))
    }

    fn receivers(&self, load: &ReceiveLoad<'_>) -> Result<Prepared, LoadError> {
        let crew = receive::ReceiveCrew::new(self, load)?;
        Ok(Box::new(move |start| Ok(crew.jobs(start))))
    }
}

fn failed(what: &'static str) -> impl FnOnce(ringmq_client::Error) -> LoadError {
    move |source| LoadError::Client { what, source }
}

fn runtime() -> Result<Runtime, LoadError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|source| LoadError::System { what: "starting a runtime", source })
}
