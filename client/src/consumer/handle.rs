//! Starting a member, and ending it: in order, or when its last handle is dropped.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ringmq_net::body::CheckClientConfig;
use tokio::sync::Notify;

use super::listener::Listener;
use super::member::{Kind, Member, Mode};
use super::settings::Settings;
use super::store::Store;
use crate::client::Client;
use crate::deadline::deadline;
use crate::endpoint::Registration;
use crate::error::{Error, Result};

/// The group under which consumers send failed messages on; the name is stock's.
const SENDER_GROUP: &str = "CLIENT_INNER_PRODUCER";

/// What all handles of a consumer share.
pub(crate) struct Handle {
    pub(crate) member: Arc<Member>,
    // Before the client, so that leaving can still be told.
    registration: Mutex<Option<Registration>>,
    pub(crate) client: Client,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("group", &self.member.group()).finish_non_exhaustive()
    }
}

impl Handle {
    /// A running member: brokers know it, and it is about to get its queues.
    pub(crate) async fn start(
        client: Client,
        settings: Settings,
        kind: Kind,
        mode: Mode,
    ) -> Result<Arc<Handle>> {
        settings.check()?;
        let store = Store::open(&settings.model, &settings.group).await?;
        let instance = client.instance().clone();
        let listens = !matches!(kind, Kind::Pull);
        let sender = (listens && !settings.is_broadcasting())
            .then(|| client.producer(SENDER_GROUP).unregistered());
        let member = Member::new(settings, kind, mode, instance, store, sender)?;
        let registration = client.register_consumer(member.clone())?;
        let handle =
            Arc::new(Handle { member, registration: Mutex::new(Some(registration)), client });
        let member = &handle.member;
        member.find_routes(member.topics()).await;
        if let Err(error) = handle.check_filters().await {
            handle.shutdown().await;
            return Err(error);
        }
        member.instance.heartbeat_all().await;
        member.begin();
        Ok(handle)
    }

    /// Lets a broker of each topic look at expressions that are none of tags: one that does not compile is an error now and not silence
    /// for ever.
    async fn check_filters(&self) -> Result<()> {
        let member = &self.member;
        let data: Vec<_> = {
            let all = member.subscriptions();
            all.values().map(|one| one.data.clone()).filter(|data| !data.is_tag()).collect()
        };
        for subscription in data {
            let Ok(route) = member.instance.consuming(&subscription.topic).await else { continue };
            let addr = route.brokers().find_map(|(_, addrs)| addrs.values().next());
            let Some(addr) = addr else { continue };
            let topic = subscription.topic.clone();
            let check = CheckClientConfig {
                client_id: member.instance.client_id.clone(),
                group: member.group().to_owned(),
                subscription: Some(subscription),
            };
            match member.instance.broker(addr).check_subscription(&check).await {
                Ok(()) => {}
                Err(error @ Error::Refused { .. }) => return Err(error),
                Err(error) => tracing::warn!(topic, %error, "an expression could not be checked"),
            }
        }
        Ok(())
    }

    fn take_registration(&self) -> Option<Registration> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stops pulling, waits for listeners, stores progress, leaves the group. Once begun it goes on to its end, whether or not somebody waits
    /// for it: a listener may call it, and is waited for no longer than others.
    pub(crate) async fn shutdown(&self) {
        let (end, ended) = (self.end(), Arc::new(Notify::new()));
        let done = ended.clone();
        self.client.instance().spawn(async move {
            end.await;
            done.notify_one();
        });
        ended.notified().await;
    }

    fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let (member, client) = (self.member.clone(), self.client.clone());
        let registration = self.take_registration();
        async move {
            member.finish(deadline(client.instance().config.drain_timeout)).await;
            if let Some(registration) = registration {
                // A broker that cannot be told is logged there.
                let _ = registration.leave().await;
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The same as a shutdown, which nobody waits for. The client lives until it is done.
        if self.registration.get_mut().is_ok_and(|registration| registration.is_some()) {
            let end = self.end();
            self.client.instance().spawn(end);
        }
    }
}

/// A concurrent or an orderly member.
pub(crate) fn kind(listener: Listener, orderly: bool) -> Kind {
    if orderly { Kind::Orderly(listener) } else { Kind::Concurrent(listener) }
}
