//! What administrators and their tools ask: topics, groups, statistics, configuration.

use std::rc::Rc;

use ringmq_net::code::{request, response};
use ringmq_net::header::HeaderView;
use ringmq_net::server::Conn;

use super::service::not_supported;
use super::{Broker, Refusal};

mod config;
mod consumers;
mod groups;
mod inspect;
mod progress;
mod runtime;
mod topics;

impl Broker {
    /// Serves the requests that are not part of sending and consuming.
    pub(super) fn handle_admin(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let changes = matches!(
            view.code(),
            request::UPDATE_AND_CREATE_TOPIC
                | request::DELETE_TOPIC_IN_BROKER
                | request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                | request::DELETE_SUBSCRIPTIONGROUP
        );
        if changes && self.is_slave() {
            let remark = "Can't modify topic or subscription group from slave broker, please execute it from master broker.";
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        match view.code() {
            request::UPDATE_AND_CREATE_TOPIC => self.update_topic(conn, view),
            request::DELETE_TOPIC_IN_BROKER => self.delete_topic(conn, view),
            request::GET_ALL_TOPIC_CONFIG => self.all_topics(conn, view),
            request::GET_TOPIC_CONFIG => self.topic_config(conn, view),
            request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => self.system_topics(conn, view),
            request::QUERY_TOPIC_CONSUME_BY_WHO => self.topic_consumers(conn, view),
            request::GET_TOPIC_STATS_INFO => self.topic_stats(conn, view),
            request::CLEAN_UNUSED_TOPIC => self.clean_unused_topics(conn, view),
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => self.update_group(conn, view, body),
            request::DELETE_SUBSCRIPTIONGROUP => self.delete_group(conn, view),
            request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => self.all_groups(conn, view),
            request::GET_CONSUMER_CONNECTION_LIST => self.consumer_connections(conn, view),
            request::GET_PRODUCER_CONNECTION_LIST => self.producer_connections(conn, view),
            request::GET_ALL_PRODUCER_INFO => self.all_producers(conn, view),
            request::GET_CONSUME_STATS => self.consume_stats(conn, view),
            request::GET_ALL_CONSUMER_OFFSET => self.all_consumer_offsets(conn, view),
            request::GET_ALL_DELAY_OFFSET => self.all_delay_offsets(conn, view),
            request::VIEW_BROKER_STATS_DATA => self.stats_data(conn, view),
            request::GET_BROKER_RUNTIME_INFO => self.runtime_info(conn, view),
            request::GET_BROKER_CONFIG => self.get_config(conn, view),
            request::UPDATE_BROKER_CONFIG => self.update_config(conn, view, body),
            request::DELETE_EXPIRED_COMMITLOG => self.delete_expired(conn, view),
            request::GET_CONSUMER_RUNNING_INFO => self.running_info(conn, view),
            request::CONSUME_MESSAGE_DIRECTLY => self.consume_directly(conn, view),
            request::INVOKE_BROKER_TO_RESET_OFFSET => self.reset_offsets(conn, view),
            request::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => self.consumer_status(conn, view),
            request::QUERY_CONSUME_TIME_SPAN => self.time_spans(conn, view),
            request::QUERY_CORRECTION_OFFSET => self.correction_offsets(conn, view),
            request::CLONE_GROUP_OFFSET => self.clone_offsets(conn, view),
            request::GET_BROKER_CONSUME_STATS => self.all_consume_stats(conn, view),
            request::CLEAN_EXPIRED_CONSUMEQUEUE => self.clean_queues(conn, view),
            request::QUERY_CONSUME_QUEUE => self.queue_units(conn, view),
            code => Err(not_supported(code)),
        }
    }
}
