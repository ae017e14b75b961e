//! How far slaves are behind their masters: asked of both once a second, by a thread of its own, as a broker that hangs must not hold up the
//! run's clock.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringmq_net::body::{Body, KvTable};
use ringmq_net::code::request;
use ringmq_net::command::Command;

use crate::call::call;
use crate::error::LoadError;
use crate::target::{Target, ok, resolve};

const EVERY: Duration = Duration::from_secs(1);
/// How soon the thread notices that it is to end.
const NAP: Duration = Duration::from_millis(50);

/// The watch over replication. Ends its thread when it is dropped.
#[derive(Debug)]
pub struct LagWatch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    latest: Mutex<Option<u64>>,
    ends: AtomicBool,
}

impl LagWatch {
    /// Begins to watch; `None` if there are no slaves.
    ///
    /// # Errors
    /// An address doesn't resolve, or the system refuses a thread.
    pub fn start(masters: &[Target], slaves: &[String]) -> Result<Option<Self>, LoadError> {
        if slaves.is_empty() {
            return Ok(None);
        }
        let masters: Vec<_> = masters.iter().map(|target| target.address).collect();
        let slaves = slaves.iter().map(|slave| resolve(slave)).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared::default());
        let watching = Arc::clone(&shared);
        let watch = move || {
            while !watching.ends.load(Relaxed) {
                // The slaves first: what is added meanwhile is behind, not ahead.
                let slaves = log_ends(&slaves);
                let lag = log_ends(&masters).zip(slaves).map(|(of, at)| of.saturating_sub(at));
                *watching.latest.lock().unwrap_or_else(PoisonError::into_inner) = lag;
                for _ in 0..EVERY.as_millis() / NAP.as_millis() {
                    if !watching.ends.load(Relaxed) {
                        std::thread::sleep(NAP);
                    }
                }
            }
        };
        let spawned = std::thread::Builder::new().name("load-lag".into()).spawn(watch);
        spawned.map_err(|source| LoadError::System { what: "starting a thread", source })?;
        Ok(Some(LagWatch { shared }))
    }

    /// Bytes that the slaves were behind when they were last asked; `None` if one of them or of the masters did not tell.
    #[must_use]
    pub fn latest(&self) -> Option<u64> {
        *self.shared.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LagWatch {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
    }
}

/// The ends of the brokers' logs, added up.
fn log_ends(brokers: &[SocketAddr]) -> Option<u64> {
    brokers.iter().map(|broker| log_end(*broker).ok().flatten()).sum()
}

/// Where a broker's log ends: `commitLogMaxOffset` of its runtime information, as stock 4.9.8 and 5.x have it.
pub(crate) fn log_end(broker: SocketAddr) -> Result<Option<u64>, LoadError> {
    const WHAT: &str = "runtime information";
    let request = Command::request(request::GET_BROKER_RUNTIME_INFO);
    let reply = ok(WHAT, broker, call(broker, WHAT, &request)?)?;
    let table = KvTable::from_json(&reply.body).map_err(|source| LoadError::Call {
        what: WHAT,
        address: broker,
        source: source.into(),
    })?;
    Ok(table.table.get("commitLogMaxOffset").and_then(|text| text.parse().ok()))
}
