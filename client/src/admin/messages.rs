//! Finding messages in a whole cluster.

use ringmq_net::record::OffsetMessageId;

use super::Admin;
use crate::QueryMessages;
use crate::error::{Error, Result};
use crate::message::ReceivedMessage;

/// Messages with one unique id that are looked for: retries of a send may have stored it more than once.
const COPIES_MAX: i32 = 32;

impl Admin {
    /// The message of an offset message id, asked of the broker that the id names.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::Invalid`] for a text that is no such id.
    pub async fn view_message(&self, offset_message_id: &str) -> Result<Option<ReceivedMessage>> {
        let id =
            OffsetMessageId::parse(offset_message_id).map_err(|e| Error::invalid(e.to_string()))?;
        let place = i64::try_from(id.physical_offset)
            .map_err(|_| Error::invalid("the message id names a place behind all logs"))?;
        self.client.broker(&id.store_host.to_string()).view_message(place).await
    }

    /// Messages by key or unique id from every master of the topic, in the order of their store times, `query.max` at most.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`]. Nothing found is an empty list.
    pub async fn query_messages(&self, query: &QueryMessages<'_>) -> Result<Vec<ReceivedMessage>> {
        let mut all = Vec::new();
        for master in self.masters_of_topic(query.topic).await? {
            all.extend(master.query_messages(query).await?);
        }
        all.sort_by_key(|message: &ReceivedMessage| message.store_timestamp);
        all.truncate(usize::try_from(query.max).unwrap_or(0));
        Ok(all)
    }

    /// The message of that unique id; if a retry stored it more than once, the copy that was stored first.
    ///
    /// # Errors
    /// See [`Admin`]; [`Error::NoRoute`].
    pub async fn find_message(
        &self,
        topic: &str,
        message_id: &str,
    ) -> Result<Option<ReceivedMessage>> {
        let query = QueryMessages {
            topic,
            key: message_id,
            unique: true,
            max: COPIES_MAX,
            begin_ms: 0,
            end_ms: i64::MAX,
        };
        Ok(self.query_messages(&query).await?.into_iter().next())
    }
}
