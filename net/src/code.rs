//! Request and response codes of 4.9.8, and those of 5.x that its clients send unasked.

/// Request codes.
pub mod request {
    /// Send one message, or a batch by its `batch` field; header names in full.
    pub const SEND_MESSAGE: i32 = 10;
    /// Pull messages of one queue; main port only.
    pub const PULL_MESSAGE: i32 = 11;
    /// Find messages by key or client unique id.
    pub const QUERY_MESSAGE: i32 = 12;
    /// Read a group's progress.
    pub const QUERY_CONSUMER_OFFSET: i32 = 14;
    /// Store a group's progress.
    pub const UPDATE_CONSUMER_OFFSET: i32 = 15;
    /// Create a topic or change it.
    pub const UPDATE_AND_CREATE_TOPIC: i32 = 17;
    /// The whole topic table; stock slaves ask on the VIP port.
    pub const GET_ALL_TOPIC_CONFIG: i32 = 21;
    /// Change broker properties; the body is properties text.
    pub const UPDATE_BROKER_CONFIG: i32 = 25;
    /// All broker properties as text.
    pub const GET_BROKER_CONFIG: i32 = 26;
    /// Numbers about a running broker.
    pub const GET_BROKER_RUNTIME_INFO: i32 = 28;
    /// Queue offset by store time.
    pub const SEARCH_OFFSET_BY_TIMESTAMP: i32 = 29;
    /// Next offset of a queue.
    pub const GET_MAX_OFFSET: i32 = 30;
    /// First offset of a queue.
    pub const GET_MIN_OFFSET: i32 = 31;
    /// Store time of a queue's first message.
    pub const GET_EARLIEST_MSG_STORETIME: i32 = 32;
    /// One record by physical offset.
    pub const VIEW_MESSAGE_BY_ID: i32 = 33;
    /// Register a client's groups.
    pub const HEART_BEAT: i32 = 34;
    /// Remove a client from its groups.
    pub const UNREGISTER_CLIENT: i32 = 35;
    /// Put a consumed message back for a retry.
    pub const CONSUMER_SEND_MSG_BACK: i32 = 36;
    /// Commit or roll back a half message.
    pub const END_TRANSACTION: i32 = 37;
    /// Client ids of a consumer group.
    pub const GET_CONSUMER_LIST_BY_GROUP: i32 = 38;
    /// Broker to producer: what became of this half message?
    pub const CHECK_TRANSACTION_STATE: i32 = 39;
    /// Broker to consumers: rebalance.
    pub const NOTIFY_CONSUMER_IDS_CHANGED: i32 = 40;
    /// Lock queues for orderly consumption.
    pub const LOCK_BATCH_MQ: i32 = 41;
    /// Release such locks.
    pub const UNLOCK_BATCH_MQ: i32 = 42;
    /// All consumer offsets, for slaves.
    pub const GET_ALL_CONSUMER_OFFSET: i32 = 43;
    /// All delay level offsets, for slaves.
    pub const GET_ALL_DELAY_OFFSET: i32 = 45;
    /// Does this filter expression compile?
    pub const CHECK_CLIENT_CONFIG: i32 = 46;
    /// Change an access key.
    pub const UPDATE_AND_CREATE_ACL_CONFIG: i32 = 50;
    /// Delete an access key.
    pub const DELETE_ACL_CONFIG: i32 = 51;
    /// Version of the ACL file.
    pub const GET_BROKER_CLUSTER_ACL_INFO: i32 = 52;
    /// Change the global white list.
    pub const UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: i32 = 53;
    /// Name server: put a value.
    pub const PUT_KV_CONFIG: i32 = 100;
    /// Name server: get a value.
    pub const GET_KV_CONFIG: i32 = 101;
    /// Name server: delete a value.
    pub const DELETE_KV_CONFIG: i32 = 102;
    /// Broker to name server: here I am, with these topics.
    pub const REGISTER_BROKER: i32 = 103;
    /// Broker to name server: I leave.
    pub const UNREGISTER_BROKER: i32 = 104;
    /// Name server: where a topic lives.
    pub const GET_ROUTEINFO_BY_TOPIC: i32 = 105;
    /// Name server: all brokers.
    pub const GET_BROKER_CLUSTER_INFO: i32 = 106;
    /// Create a subscription group or change it.
    pub const UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: i32 = 200;
    /// The whole subscription group table.
    pub const GET_ALL_SUBSCRIPTIONGROUP_CONFIG: i32 = 201;
    /// Offsets of a topic's queues.
    pub const GET_TOPIC_STATS_INFO: i32 = 202;
    /// Connections of a consumer group.
    pub const GET_CONSUMER_CONNECTION_LIST: i32 = 203;
    /// Connections of a producer group.
    pub const GET_PRODUCER_CONNECTION_LIST: i32 = 204;
    /// Name server: take write permission from a broker's topics.
    pub const WIPE_WRITE_PERM_OF_BROKER: i32 = 205;
    /// Name server: all topics.
    pub const GET_ALL_TOPIC_LIST_FROM_NAMESERVER: i32 = 206;
    /// Delete a subscription group.
    pub const DELETE_SUBSCRIPTIONGROUP: i32 = 207;
    /// Progress of a group over its queues.
    pub const GET_CONSUME_STATS: i32 = 208;
    /// Delete a topic on this broker.
    pub const DELETE_TOPIC_IN_BROKER: i32 = 215;
    /// Name server: forget a topic.
    pub const DELETE_TOPIC_IN_NAMESRV: i32 = 216;
    /// Name server: all values of a namespace.
    pub const GET_KVLIST_BY_NAMESPACE: i32 = 219;
    /// Broker to consumer: take these offsets.
    pub const RESET_CONSUMER_CLIENT_OFFSET: i32 = 220;
    /// Broker to consumer: where are you?
    pub const GET_CONSUMER_STATUS_FROM_CLIENT: i32 = 221;
    /// Reset a group's offsets by time.
    pub const INVOKE_BROKER_TO_RESET_OFFSET: i32 = 222;
    /// Ask a group's clients for their offsets.
    pub const INVOKE_BROKER_TO_GET_CONSUMER_STATUS: i32 = 223;
    /// Name server: topics of a cluster.
    pub const GET_TOPICS_BY_CLUSTER: i32 = 224;
    /// Groups that consume a topic.
    pub const QUERY_TOPIC_CONSUME_BY_WHO: i32 = 300;
    /// Times of the first, last and consumed message.
    pub const QUERY_CONSUME_TIME_SPAN: i32 = 303;
    /// Name server: topics named after clusters and brokers.
    pub const GET_SYSTEM_TOPIC_LIST_FROM_NS: i32 = 304;
    /// A broker's own topics.
    pub const GET_SYSTEM_TOPIC_LIST_FROM_BROKER: i32 = 305;
    /// Delete queues whose data is gone.
    pub const CLEAN_EXPIRED_CONSUMEQUEUE: i32 = 306;
    /// State of a running consumer, relayed to it.
    pub const GET_CONSUMER_RUNNING_INFO: i32 = 307;
    /// Lowest progress over groups.
    pub const QUERY_CORRECTION_OFFSET: i32 = 308;
    /// Make a consumer consume one message, relayed to it.
    pub const CONSUME_MESSAGE_DIRECTLY: i32 = 309;
    /// Send with one-letter header names; batches too, by the field `m`.
    pub const SEND_MESSAGE_V2: i32 = 310;
    /// Name server: unit topics.
    pub const GET_UNIT_TOPIC_LIST: i32 = 311;
    /// Name server: topics with unit subscriptions.
    pub const GET_HAS_UNIT_SUB_TOPIC_LIST: i32 = 312;
    /// Name server: of these, those that are not unit topics.
    pub const GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: i32 = 313;
    /// Copy a group's offsets to another.
    pub const CLONE_GROUP_OFFSET: i32 = 314;
    /// One statistic of a broker.
    pub const VIEW_BROKER_STATS_DATA: i32 = 315;
    /// Delete queues of topics that are gone.
    pub const CLEAN_UNUSED_TOPIC: i32 = 316;
    /// Progress of all groups.
    pub const GET_BROKER_CONSUME_STATS: i32 = 317;
    /// Name server: change properties.
    pub const UPDATE_NAMESRV_CONFIG: i32 = 318;
    /// Name server: all properties as text.
    pub const GET_NAMESRV_CONFIG: i32 = 319;
    /// Send a batch; header as SEND_MESSAGE_V2.
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    /// Look into a consume queue.
    pub const QUERY_CONSUME_QUEUE: i32 = 321;
    /// Broker to name server: do you know my topics?
    pub const QUERY_DATA_VERSION: i32 = 322;
    /// Take up checks of a half message again.
    pub const RESUME_CHECK_HALF_MESSAGE: i32 = 323;
    /// Reply of a request-reply call; names in full.
    pub const SEND_REPLY_MESSAGE: i32 = 324;
    /// Reply of a request-reply call; one-letter names.
    pub const SEND_REPLY_MESSAGE_V2: i32 = 325;
    /// Broker to requester: here is the reply.
    pub const PUSH_REPLY_MESSAGE_TO_CLIENT: i32 = 326;
    /// Name server: give write permission back.
    pub const ADD_WRITE_PERM_OF_BROKER: i32 = 327;
    /// All producer connections.
    pub const GET_ALL_PRODUCER_INFO: i32 = 328;
    /// Delete expired segments now.
    pub const DELETE_EXPIRED_COMMITLOG: i32 = 329;
    /// 5.x tools: the configuration of one topic.
    pub const GET_TOPIC_CONFIG: i32 = 351;
    /// 5.x lite pull consumers: an alias of PULL_MESSAGE.
    pub const LITE_PULL_MESSAGE: i32 = 361;
    /// 5.x name server: addresses of one broker name.
    pub const GET_BROKER_MEMBER_GROUP: i32 = 901;
    /// 5.x broker to name server: still alive.
    pub const BROKER_HEARTBEAT: i32 = 904;
}

/// Response codes.
pub mod response {
    /// Done. Of a send: stored at the level asked for.
    pub const SUCCESS: i32 = 0;
    /// Generic failure; the remark says what.
    pub const SYSTEM_ERROR: i32 = 1;
    /// Overload. Stock 4.9.8 producers do not retry it.
    pub const SYSTEM_BUSY: i32 = 2;
    /// Unknown request code.
    pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    /// Not used by stock brokers.
    pub const TRANSACTION_FAILED: i32 = 4;
    /// Send: stored, not flushed in time.
    pub const FLUSH_DISK_TIMEOUT: i32 = 10;
    /// Send: stored, no usable slave.
    pub const SLAVE_NOT_AVAILABLE: i32 = 11;
    /// Send: stored, slave did not confirm in time.
    pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    /// Size limits; batch with delay or transaction.
    pub const MESSAGE_ILLEGAL: i32 = 13;
    /// Store not writable.
    pub const SERVICE_NOT_AVAILABLE: i32 = 14;
    /// Not used by stock brokers.
    pub const VERSION_NOT_SUPPORTED: i32 = 15;
    /// Permission lacking, or a key that may not be changed.
    pub const NO_PERMISSION: i32 = 16;
    /// No such topic, or no route to it.
    pub const TOPIC_NOT_EXIST: i32 = 17;
    /// Not used by stock brokers.
    pub const TOPIC_EXIST_ALREADY: i32 = 18;
    /// Pull: no new message.
    pub const PULL_NOT_FOUND: i32 = 19;
    /// Pull: nothing matched, go on at the next offset.
    pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
    /// Pull: offset out of range.
    pub const PULL_OFFSET_MOVED: i32 = 21;
    /// No such offset, key or value.
    pub const QUERY_NOT_FOUND: i32 = 22;
    /// Expression does not compile.
    pub const SUBSCRIPTION_PARSE_FAILED: i32 = 23;
    /// Group or subscription not registered.
    pub const SUBSCRIPTION_NOT_EXIST: i32 = 24;
    /// Registered subscription is older than the request's.
    pub const SUBSCRIPTION_NOT_LATEST: i32 = 25;
    /// No such subscription group.
    pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
    /// No compiled expression.
    pub const FILTER_DATA_NOT_EXIST: i32 = 27;
    /// Compiled expression is older than the request's.
    pub const FILTER_DATA_NOT_LATEST: i32 = 28;
    /// Not used by stock brokers; producers retry on it.
    pub const NOT_IN_CURRENT_UNIT: i32 = 205;
    /// No live client of that group.
    pub const CONSUMER_NOT_ONLINE: i32 = 206;
    /// A relayed call timed out.
    pub const CONSUME_MSG_TIMEOUT: i32 = 207;
    /// ACL change failed.
    pub const UPDATE_AND_CREATE_ACL_CONFIG_FAILED: i32 = 209;
    /// ACL deletion failed.
    pub const DELETE_ACL_CONFIG_FAILED: i32 = 210;
    /// White list change failed.
    pub const UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED: i32 = 211;
    /// Never sent by stock brokers; Java consumers pull again after 20 ms.
    pub const FLOW_CONTROL: i32 = 215;
}
