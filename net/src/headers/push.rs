//! What a broker sends to clients, and what administrators make it relay to them. These requests always
//! leave in JSON: stock C++ clients read nothing else.

use super::headers;

headers! {
    /// CHECK_TRANSACTION_STATE (39), oneway to a producer; the body is the half message's record.
    CheckTransactionHeader {
        /// Queue offset to answer with.
        tran_state_table_offset: i64 = "tranStateTableOffset",
        /// Physical offset to answer with.
        commit_log_offset: i64 = "commitLogOffset",
        /// Client unique id.
        msg_id: Option<&'a str> = "msgId",
        /// The same.
        transaction_id: Option<&'a str> = "transactionId",
        /// Offset message id.
        offset_msg_id: Option<&'a str> = "offsetMsgId",
    }

    /// RESET_CONSUMER_CLIENT_OFFSET (220) to consumers, INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker.
    ResetOffsetHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Group.
        group: &'a str = "group",
        /// Milliseconds; -1 means the end of the queue.
        timestamp: i64 = "timestamp",
        /// Also forwards. Stock always says false to clients.
        is_force: bool = "isForce",
    }

    /// GET_CONSUMER_STATUS_FROM_CLIENT (221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
    ConsumerStatusHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Group.
        group: &'a str = "group",
        /// Client id to ask; absent asks all.
        client_addr: Option<&'a str> = "clientAddr",
    }

    /// GET_CONSUMER_RUNNING_INFO (307), relayed unchanged.
    RunningInfoHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// Client id.
        client_id: &'a str = "clientId",
        /// With stacks.
        jstack_enable: bool = "jstackEnable",
    }

    /// CONSUME_MESSAGE_DIRECTLY (309), relayed with the broker's name and the record as body.
    ConsumeDirectlyHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// Client id; absent lets the first client of the group do it.
        client_id: Option<&'a str> = "clientId",
        /// Offset message id.
        msg_id: &'a str = "msgId",
        /// Set by the broker.
        broker_name: Option<&'a str> = "brokerName",
    }

    /// PUSH_REPLY_MESSAGE_TO_CLIENT (326).
    PushReplyHeader {
        /// From the reply.
        producer_group: &'a str = "producerGroup",
        /// From the reply.
        topic: &'a str = "topic",
        /// From the reply.
        default_topic: Option<&'a str> = "defaultTopic",
        /// From the reply.
        default_topic_queue_nums: i32 = "defaultTopicQueueNums" or 0,
        /// From the reply.
        queue_id: i32 = "queueId",
        /// From the reply; tells compression.
        sys_flag: i32 = "sysFlag",
        /// From the reply, milliseconds.
        born_timestamp: i64 = "bornTimestamp",
        /// From the reply.
        flag: i32 = "flag",
        /// Those of the reply with PUSH_REPLY_TIME added.
        properties: Option<&'a str> = "properties",
        /// From the reply.
        reconsume_times: i32 = "reconsumeTimes" or 0,
        /// From the reply.
        unit_mode: bool = "unitMode",
        /// `ip:port` of who replied.
        born_host: Option<&'a str> = "bornHost",
        /// `ip:port` of the broker.
        store_host: Option<&'a str> = "storeHost",
        /// Now, milliseconds.
        store_timestamp: i64 = "storeTimestamp" or 0,
    }
}
