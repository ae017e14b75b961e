//! Numbers about topics, groups and brokers, for administrators.

use super::{
    Body, BodyError, MessageQueue, SubscriptionData, bodies, boolean, double, int, items, key_text,
    long, opt_text, pairs, text, write_bodies,
};
use crate::json::{Limits, Value, Writer};

/// Offsets of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicOffset {
    /// First queue offset.
    pub min_offset: i64,
    /// Next queue offset.
    pub max_offset: i64,
    /// Store time of the last message, milliseconds; 0 when empty.
    pub last_update_timestamp: i64,
}

/// The answer to GET_TOPIC_STATS_INFO (202).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicStats {
    /// By queue.
    pub queues: Vec<(MessageQueue, TopicOffset)>,
}

impl Body for TopicStats {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut queues = Vec::new();
        for (queue, row) in pairs(value, "offsetTable")? {
            let row = TopicOffset {
                min_offset: long(row, "minOffset", 0)?,
                max_offset: long(row, "maxOffset", 0)?,
                last_update_timestamp: long(row, "lastUpdateTimestamp", 0)?,
            };
            queues.push((MessageQueue::from_key(queue)?, row));
        }
        Ok(TopicStats { queues })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("offsetTable");
        w.begin_object();
        for (queue, row) in &self.queues {
            queue.write_key(w);
            w.begin_object();
            w.field_i64("lastUpdateTimestamp", row.last_update_timestamp);
            w.field_i64("maxOffset", row.max_offset);
            w.field_i64("minOffset", row.min_offset);
            w.end_object();
        }
        w.end_object();
        w.end_object();
    }
}

/// A group's progress in one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffsetPair {
    /// Next queue offset.
    pub broker_offset: i64,
    /// The group's progress.
    pub consumer_offset: i64,
    /// Store time of the last consumed message, milliseconds; 0 when there is none.
    pub last_timestamp: i64,
}

/// The answer to GET_CONSUME_STATS (208).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumeStats {
    /// Messages a second over the last minute.
    pub consume_tps: f64,
    /// By queue.
    pub queues: Vec<(MessageQueue, OffsetPair)>,
}

impl Body for ConsumeStats {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut queues = Vec::new();
        for (queue, row) in pairs(value, "offsetTable")? {
            let row = OffsetPair {
                broker_offset: long(row, "brokerOffset", 0)?,
                consumer_offset: long(row, "consumerOffset", 0)?,
                last_timestamp: long(row, "lastTimestamp", 0)?,
            };
            queues.push((MessageQueue::from_key(queue)?, row));
        }
        Ok(ConsumeStats { consume_tps: double(value, "consumeTps")?, queues })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_f64("consumeTps", self.consume_tps);
        w.key("offsetTable");
        w.begin_object();
        for (queue, row) in &self.queues {
            queue.write_key(w);
            w.begin_object();
            w.field_i64("brokerOffset", row.broker_offset);
            w.field_i64("consumerOffset", row.consumer_offset);
            w.field_i64("lastTimestamp", row.last_timestamp);
            w.end_object();
        }
        w.end_object();
        w.end_object();
    }
}

/// The answer to GET_BROKER_CONSUME_STATS (317).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumeStatsList {
    /// The broker's address.
    pub broker_addr: String,
    /// For each group one entry per topic; groups without offsets have none.
    pub groups: Vec<(String, Vec<ConsumeStats>)>,
    /// Sum of all lags.
    pub total_diff: i64,
}

impl Body for ConsumeStatsList {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut groups = Vec::new();
        for element in items(value, "consumeStatsList")? {
            for (group, list) in element.pairs() {
                let list = list.items().iter().map(ConsumeStats::read).collect::<Result<_, _>>()?;
                groups.push((key_text(group, "consumeStatsList")?, list));
            }
        }
        let broker_addr = text(value, "brokerAddr")?;
        Ok(ConsumeStatsList { broker_addr, groups, total_diff: long(value, "totalDiff", 0)? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("brokerAddr", &self.broker_addr);
        w.key("consumeStatsList");
        w.begin_array();
        for (group, list) in &self.groups {
            w.begin_object();
            w.key(group);
            w.begin_array();
            list.iter().for_each(|stats| stats.write(w));
            w.end_array();
            w.end_object();
        }
        w.end_array();
        w.field_i64("totalDiff", self.total_diff);
        w.end_object();
    }
}

/// One statistic over one span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BrokerStatsItem {
    /// Sum.
    pub sum: i64,
    /// Per second.
    pub tps: f64,
    /// Per call.
    pub avgpt: f64,
}

impl Body for BrokerStatsItem {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(BrokerStatsItem {
            sum: long(value, "sum", 0)?,
            tps: double(value, "tps")?,
            avgpt: double(value, "avgpt")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_f64("avgpt", self.avgpt);
        w.field_i64("sum", self.sum);
        w.field_f64("tps", self.tps);
        w.end_object();
    }
}

/// The answer to VIEW_BROKER_STATS_DATA (315).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BrokerStats {
    /// Over a minute.
    pub minute: BrokerStatsItem,
    /// Over an hour.
    pub hour: BrokerStatsItem,
    /// Over a day.
    pub day: BrokerStatsItem,
}

impl Body for BrokerStats {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let item = |name| value.get(name).map_or(Ok(Default::default()), BrokerStatsItem::read);
        Ok(BrokerStats {
            minute: item("statsMinute")?,
            hour: item("statsHour")?,
            day: item("statsDay")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        for (name, item) in
            [("statsDay", self.day), ("statsHour", self.hour), ("statsMinute", self.minute)]
        {
            w.key(name);
            item.write(w);
        }
        w.end_object();
    }
}

/// Times of one queue, milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumeTimeSpan {
    /// The queue.
    pub queue: MessageQueue,
    /// Store time of its first message.
    pub min_time_stamp: i64,
    /// Store time of its last message.
    pub max_time_stamp: i64,
    /// Store time of the group's last consumed message.
    pub consume_time_stamp: i64,
    /// Its distance from now, 0 when all is consumed.
    pub delay_time: i64,
}

/// The members that repeat these times as text are left out: they are computed again by the reader.
impl Body for ConsumeTimeSpan {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let queue = value.get("messageQueue").map(MessageQueue::read).transpose()?;
        Ok(ConsumeTimeSpan {
            queue: queue.unwrap_or_default(),
            min_time_stamp: long(value, "minTimeStamp", 0)?,
            max_time_stamp: long(value, "maxTimeStamp", 0)?,
            consume_time_stamp: long(value, "consumeTimeStamp", 0)?,
            delay_time: long(value, "delayTime", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_i64("consumeTimeStamp", self.consume_time_stamp);
        w.field_i64("delayTime", self.delay_time);
        w.field_i64("maxTimeStamp", self.max_time_stamp);
        w.key("messageQueue");
        self.queue.write(w);
        w.field_i64("minTimeStamp", self.min_time_stamp);
        w.end_object();
    }
}

/// The answer to QUERY_CONSUME_TIME_SPAN (303).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumeTimeSpans {
    /// By queue.
    pub spans: Vec<ConsumeTimeSpan>,
}

impl Body for ConsumeTimeSpans {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumeTimeSpans { spans: bodies(value, "consumeTimeSpanSet")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        write_bodies(w, "consumeTimeSpanSet", &self.spans);
        w.end_object();
    }
}

/// One unit of a consume queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumeQueueUnit {
    /// Physical offset of the record.
    pub physic_offset: i64,
    /// Bytes of the record.
    pub physic_size: i32,
    /// Hash of the tags, or a delivery time.
    pub tags_code: i64,
    /// Does the group's filter take it?
    pub eval: bool,
    /// Why it could not be looked at.
    pub msg: Option<String>,
}

impl Body for ConsumeQueueUnit {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumeQueueUnit {
            physic_offset: long(value, "physicOffset", 0)?,
            physic_size: int(value, "physicSize", 0)?,
            tags_code: long(value, "tagsCode", 0)?,
            eval: boolean(value, "eval", false)?,
            msg: opt_text(value, "msg")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_bool("eval", self.eval);
        w.field_opt_str("msg", self.msg.as_deref());
        w.field_i64("physicOffset", self.physic_offset);
        w.field_i64("physicSize", self.physic_size);
        w.field_i64("tagsCode", self.tags_code);
        w.end_object();
    }
}

/// The answer to QUERY_CONSUME_QUEUE (321).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumeQueueBody {
    /// The group's subscription.
    pub subscription: Option<SubscriptionData>,
    /// The group's compiled filter as text, `null` in letters when there is none.
    pub filter_data: Option<String>,
    /// The units asked for.
    pub units: Vec<ConsumeQueueUnit>,
    /// Next queue offset.
    pub max_queue_index: i64,
    /// First queue offset.
    pub min_queue_index: i64,
}

impl Body for ConsumeQueueBody {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let subscription = value.get("subscriptionData").map(SubscriptionData::read);
        Ok(ConsumeQueueBody {
            subscription: subscription.transpose()?,
            filter_data: opt_text(value, "filterData")?,
            units: bodies(value, "queueData")?,
            max_queue_index: long(value, "maxQueueIndex", 0)?,
            min_queue_index: long(value, "minQueueIndex", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_opt_str("filterData", self.filter_data.as_deref());
        w.field_i64("maxQueueIndex", self.max_queue_index);
        w.field_i64("minQueueIndex", self.min_queue_index);
        write_bodies(w, "queueData", &self.units);
        if let Some(subscription) = &self.subscription {
            w.key("subscriptionData");
            subscription.write(w);
        }
        w.end_object();
    }
}
