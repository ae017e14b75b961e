//! What brokers, clients and administrators ask of a name server.

use super::headers;

headers! {
    /// REGISTER_BROKER (103).
    RegisterBrokerHeader {
        /// Name of the broker group.
        broker_name: &'a str = "brokerName",
        /// `ip:port` that clients use.
        broker_addr: &'a str = "brokerAddr",
        /// Cluster.
        cluster_name: &'a str = "clusterName",
        /// `ip:port` that slaves use.
        ha_server_addr: Option<&'a str> = "haServerAddr",
        /// 0 is the master.
        broker_id: i64 = "brokerId",
        /// The body is compressed. 5.x brokers say false even then.
        compressed: bool = "compressed",
        /// CRC-32 of the body as sent, 31 bits; 0 is not checked.
        body_crc32: i32 = "bodyCrc32" or 0,
        /// 5.x: this broker's expiry, milliseconds.
        heartbeat_timeout_millis: Option<i64> = "heartbeatTimeoutMillis",
    }

    /// The reply to it, for brokers: both only for a slave whose master is registered.
    RegisterBrokerReplyHeader {
        /// The master's HA address.
        ha_server_addr: Option<&'a str> = "haServerAddr",
        /// The master's address.
        master_addr: Option<&'a str> = "masterAddr",
    }

    /// UNREGISTER_BROKER (104).
    UnregisterBrokerHeader {
        /// Name of the broker group.
        broker_name: &'a str = "brokerName",
        /// `ip:port` that clients use.
        broker_addr: &'a str = "brokerAddr",
        /// Cluster.
        cluster_name: &'a str = "clusterName",
        /// 0 is the master.
        broker_id: i64 = "brokerId",
    }

    /// QUERY_DATA_VERSION (322).
    QueryDataVersionHeader {
        /// `ip:port` that clients use: the key of the answer.
        broker_addr: &'a str = "brokerAddr",
        /// Not used.
        broker_name: Option<&'a str> = "brokerName",
        /// Not used.
        cluster_name: Option<&'a str> = "clusterName",
        /// Not used.
        broker_id: Option<i64> = "brokerId",
    }

    /// GET_ROUTEINFO_BY_TOPIC (105).
    RouteHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Strict JSON, whatever the version.
        accept_standard_json_only: bool = "acceptStandardJsonOnly",
    }

    /// DELETE_TOPIC_IN_NAMESRV (216).
    DeleteRouteHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Only on the brokers of this cluster.
        cluster_name: Option<&'a str> = "clusterName",
    }

    /// PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102). The name server has its own check
    /// and text for absent names.
    KvHeader {
        /// Namespace.
        namespace: Option<&'a str> = "namespace",
        /// Key.
        key: Option<&'a str> = "key",
        /// Value, of a put.
        value: Option<&'a str> = "value",
    }

    /// GET_KVLIST_BY_NAMESPACE (219).
    NamespaceHeader {
        /// Namespace.
        namespace: &'a str = "namespace",
    }

    /// WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327).
    BrokerNameHeader {
        /// Name of the broker group.
        broker_name: &'a str = "brokerName",
    }

    /// GET_TOPICS_BY_CLUSTER (224).
    ClusterHeader {
        /// Cluster.
        cluster: &'a str = "cluster",
    }
}
