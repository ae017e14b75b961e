//! What administrators ask of a broker.

use super::headers;

headers! {
    /// UPDATE_AND_CREATE_TOPIC (17).
    CreateTopicHeader {
        /// Topic; an empty one is for the broker's own check.
        topic: &'a str = "topic" or "",
        /// Template; not used.
        default_topic: Option<&'a str> = "defaultTopic",
        /// Queues to read from.
        read_queue_nums: i32 = "readQueueNums",
        /// Queues to write to.
        write_queue_nums: i32 = "writeQueueNums",
        /// Permission bits: 4 read, 2 write, 1 inherit.
        perm: i32 = "perm",
        /// `SINGLE_TAG` or `MULTI_TAG`; anything else is refused with code 1.
        topic_filter_type: &'a str = "topicFilterType",
        /// Bits: 1 unit, 2 unit subscription.
        topic_sys_flag: i32 = "topicSysFlag" or 0,
        /// Ignored by stock brokers: order comes from the name server.
        order: bool = "order",
    }

    /// A request about one topic: 202, 215, 300.
    TopicHeader {
        /// Topic; an empty one is for the broker's own check.
        topic: &'a str = "topic" or "",
    }

    /// A request about one consumer group: 38, 203; NOTIFY_CONSUMER_IDS_CHANGED (40) to its clients.
    ConsumerGroupHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
    }

    /// GET_PRODUCER_CONNECTION_LIST (204).
    ProducerGroupHeader {
        /// Group.
        producer_group: &'a str = "producerGroup",
    }

    /// DELETE_SUBSCRIPTIONGROUP (207).
    DeleteGroupHeader {
        /// Group.
        group_name: &'a str = "groupName",
        /// Delete its offsets too.
        remove_offset: bool = "removeOffset",
        /// The same in 5.x.
        clean_offset: bool = "cleanOffset",
    }

    /// GET_CONSUME_STATS (208).
    ConsumeStatsHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// One topic, or all that the group has offsets for.
        topic: Option<&'a str> = "topic",
    }

    /// QUERY_CONSUME_TIME_SPAN (303).
    GroupOnTopicHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Group.
        group: &'a str = "group",
    }

    /// QUERY_CORRECTION_OFFSET (308).
    CorrectionOffsetHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// The group to compare with.
        compare_group: &'a str = "compareGroup",
        /// Groups to leave out, joined by commas.
        filter_groups: Option<&'a str> = "filterGroups",
    }

    /// CLONE_GROUP_OFFSET (314).
    CloneOffsetHeader {
        /// Copy from this group.
        src_group: &'a str = "srcGroup",
        /// Copy to this group.
        dest_group: &'a str = "destGroup",
        /// One topic, or all of the source.
        topic: Option<&'a str> = "topic",
        /// Not used.
        offline: bool = "offline",
    }

    /// VIEW_BROKER_STATS_DATA (315).
    StatsDataHeader {
        /// Statistic.
        stats_name: &'a str = "statsName",
        /// Its key: a topic, or `topic@group`.
        stats_key: &'a str = "statsKey",
    }

    /// QUERY_CONSUME_QUEUE (321).
    ConsumeQueueHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// First queue offset.
        index: i64 = "index",
        /// How many units.
        count: i32 = "count",
        /// Group whose filter to evaluate.
        consumer_group: Option<&'a str> = "consumerGroup",
    }
}
