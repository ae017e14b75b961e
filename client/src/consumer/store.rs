//! Where progress is kept: at the brokers for a group, in a file for a broadcasting consumer.

use std::sync::{Arc, Mutex, PoisonError};

use ringmq_net::body::MessageQueue;

use super::local_offsets::LocalOffsets;
use super::settings::Model;
use crate::broker::Broker;
use crate::error::{Error, Result};
use crate::instance::Instance;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Remote,
    Local(Arc<Mutex<LocalOffsets>>),
}

impl Store {
    /// # Errors
    /// [`Error::Offsets`] for a directory that cannot be used.
    pub(crate) async fn open(model: &Model, group: &str) -> Result<Store> {
        let Model::Broadcasting(dir) = model else { return Ok(Store::Remote) };
        let dir = dir.join(group);
        let opened = tokio::task::spawn_blocking(move || LocalOffsets::open(&dir)).await;
        let offsets = opened.map_err(|_| Error::Closed("the runtime"))??;
        Ok(Store::Local(Arc::new(Mutex::new(offsets))))
    }

    /// The group's progress in a queue; `None` when it has none, and only then.
    ///
    /// # Errors
    /// Those of the broker.
    pub(crate) async fn read(
        &self,
        instance: &Instance,
        group: &str,
        queue: &MessageQueue,
    ) -> Result<Option<i64>> {
        match self {
            Store::Local(offsets) => {
                Ok(offsets.lock().unwrap_or_else(PoisonError::into_inner).get(queue))
            }
            Store::Remote => {
                let stored = home(instance, queue).await?.consumer_offset(group, queue).await?;
                Ok(stored.filter(|stored| *stored >= 0))
            }
        }
    }

    /// Stores it; it is stored when this is done.
    ///
    /// # Errors
    /// Those of the broker, or [`Error::Offsets`].
    pub(crate) async fn write(
        &self,
        instance: &Instance,
        group: &str,
        queue: &MessageQueue,
        offset: i64,
    ) -> Result<()> {
        match self {
            Store::Remote => {
                let broker = home(instance, queue).await?;
                broker.update_consumer_offset(group, queue, offset).await
            }
            Store::Local(_) => self.write_locally(vec![(queue.clone(), offset)]).await,
        }
    }

    /// Lets another consumer have the file, if there is one.
    pub(crate) async fn close(&self) {
        let Store::Local(offsets) = self else { return };
        let offsets = offsets.clone();
        let close = move || offsets.lock().unwrap_or_else(PoisonError::into_inner).close();
        // It fails at the end of the runtime only, which closes it.
        let _ = tokio::task::spawn_blocking(close).await;
    }

    /// Writes the file, if there is one and something differs.
    ///
    /// # Errors
    /// [`Error::Offsets`].
    pub(crate) async fn write_locally(&self, rows: Vec<(MessageQueue, i64)>) -> Result<()> {
        let Store::Local(offsets) = self else { return Ok(()) };
        let offsets = offsets.clone();
        let write = move || offsets.lock().unwrap_or_else(PoisonError::into_inner).save(&rows);
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(|_| Error::Closed("the runtime"))?
    }
}

/// The broker that keeps a queue's progress: the master of its group, or else another one.
pub(crate) async fn home(instance: &Instance, queue: &MessageQueue) -> Result<Broker> {
    instance.queue_broker(queue, 0).await.map(|(broker, _)| broker)
}
