//! Asking the name servers: one at a time, the next one within the same call when it fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringmq_net::command::Command;
use tokio::time::sleep;

use crate::deadline::{deadline, left};
use crate::error::{Error, Result};
use crate::remoting::Remoting;

/// Pause before all of them are asked again within one call.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// What one of several gets of a call's time, at least.
const SHARE_MIN: Duration = Duration::from_millis(300);
/// Longest wait for each further name server's view of what one does not know.
const SECOND_VIEW_MAX: Duration = Duration::from_millis(500);

/// The name servers that a client knows. They do not know each other, and each knows every broker.
pub(crate) struct NameServers {
    remoting: Arc<Remoting>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    addrs: Arc<[String]>,
    /// Which one answered last.
    chosen: usize,
}

impl NameServers {
    /// Begins at any of them, so that clients spread over all.
    pub(crate) fn new(remoting: Arc<Remoting>, addrs: Vec<String>) -> NameServers {
        let servers = NameServers { remoting, list: Mutex::default() };
        servers.replace(addrs);
        servers
    }

    pub(crate) fn replace(&self, addrs: Vec<String>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let current = list.addrs.get(list.chosen).cloned();
        let kept = current.and_then(|current| addrs.iter().position(|addr| *addr == current));
        list.chosen = kept.unwrap_or_else(|| fastrand::usize(..addrs.len().max(1)));
        list.addrs = addrs.into();
    }

    pub(crate) fn addrs(&self) -> Arc<[String]> {
        self.snapshot().0
    }

    fn snapshot(&self) -> (Arc<[String]>, usize) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        (list.addrs.clone(), list.chosen)
    }

    fn choose(&self, addr: &str) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = list.addrs.iter().position(|known| known == addr) {
            list.chosen = at;
        }
    }

    /// The error of who waited in vain for another's question to them.
    pub(crate) fn silent(&self, waited: Duration) -> Error {
        let one = |addr: &String| Error::Timeout { addr: addr.as_str().into(), waited };
        Error::NameServers(self.addrs().iter().map(one).collect())
    }

    /// The first answer of any of them, with who gave it. Those that fail are passed over, and asked again as long as there is time.
    ///
    /// # Errors
    /// [`Error::NoNameServer`], or [`Error::NameServers`] with the last cause of each.
    pub(crate) async fn call(
        &self,
        command: &Command,
        timeout: Duration,
    ) -> Result<(Arc<str>, Command)> {
        self.call_knowing(command, timeout, |_| true).await
    }

    /// [`NameServers::call`], where an answer that does not know counts only if no other name server does: one that just started
    /// has not heard of all brokers yet.
    pub(crate) async fn call_knowing(
        &self,
        command: &Command,
        timeout: Duration,
        knows: impl Fn(&Command) -> bool,
    ) -> Result<(Arc<str>, Command)> {
        let deadline = deadline(timeout);
        loop {
            let (addrs, chosen) = self.snapshot();
            if addrs.is_empty() {
                return Err(Error::NoNameServer);
            }
            let mut failures = Vec::new();
            let mut unknown: Option<(Arc<str>, Command)> = None;
            for at in 0..addrs.len() {
                let addr = &addrs[(chosen + at) % addrs.len()];
                let left = left(deadline);
                // A server that swallows packets must leave time for the next.
                let mut share = (left / (addrs.len() - at) as u32).max(SHARE_MIN).min(left);
                if unknown.is_some() {
                    share = share.min(SECOND_VIEW_MAX);
                }
                match self.remoting.call(addr, command, share).await {
                    Ok(reply) if knows(&reply) => {
                        self.choose(addr);
                        return Ok((addr.as_str().into(), reply));
                    }
                    Ok(reply) => unknown = unknown.or(Some((addr.as_str().into(), reply))),
                    Err(closed @ Error::Closed(_)) => return Err(closed),
                    Err(error) => {
                        tracing::debug!(addr, %error, "a name server did not answer");
                        failures.push(error);
                    }
                }
            }
            if let Some((addr, reply)) = unknown {
                self.choose(&addr);
                return Ok((addr, reply));
            }
            if left(deadline) <= AGAIN_AFTER {
                return Err(Error::NameServers(failures));
            }
            sleep(AGAIN_AFTER).await;
        }
    }
}
