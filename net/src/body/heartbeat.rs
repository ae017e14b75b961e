//! HEART_BEAT (34): who a client is and what it consumes.

use super::{
    Body, BodyError, bodies, boolean, items, long, opt_text, required_text, text, texts,
    write_bodies,
};
use crate::json::{Value, Writer};

/// Defines an enumeration that travels by name, or as an ordinal (C++ clients).
macro_rules! java_enum {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $wire:literal ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )*
        }

        impl $name {
            const ALL: &[$name] = &[$( $name::$variant ),*];

            /// The enumeration name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $( $name::$variant => $wire, )* }
            }

            /// From a name or an ordinal; `None` when nobody knows it, as in stock.
            pub(super) fn field(value: &Value<'_>, field: &'static str) -> Option<Self> {
                let value = value.get(field)?;
                let named = value.as_str().and_then(|n| Self::ALL.iter().find(|v| v.name() == n));
                let nth = || Self::ALL.get(usize::try_from(value.as_i64()?).ok()?);
                named.or_else(nth).copied()
            }
        }
    };
}

java_enum! {
    /// Who moves the messages.
    ConsumeType {
        /// The application pulls.
        Actively = "CONSUME_ACTIVELY",
        /// The client pulls and pushes to the application.
        Passively = "CONSUME_PASSIVELY",
        /// 5.x pop consumers.
        Pop = "CONSUME_POP",
    }
}

java_enum! {
    /// How a group shares messages.
    MessageModel {
        /// Every member gets all.
        Broadcasting = "BROADCASTING",
        /// Members share.
        Clustering = "CLUSTERING",
    }
}

java_enum! {
    /// Where a group without progress starts.
    ConsumeFrom {
        /// At the end.
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        /// Obsolete.
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Obsolete.
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        /// Obsolete.
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        /// At the start.
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        /// At a time.
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

/// One subscription of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionData {
    /// Topic.
    pub topic: String,
    /// Expression; `*` is everything.
    pub sub_string: String,
    /// `TAG` or `SQL92`; `TAG` when absent or empty.
    pub expression_type: String,
    /// Trimmed tags of a TAG expression.
    pub tags: Vec<String>,
    /// Their hash codes as the client computed them (Go does so over UTF-8, not UTF-16).
    pub codes: Vec<i32>,
    /// Milliseconds (Go: nanoseconds); greater replaces smaller.
    pub sub_version: i64,
    /// Obsolete; true turns broker filtering off.
    pub class_filter_mode: bool,
}

/// The expression type of tags, which is the default.
const TAG: &str = "TAG";

impl SubscriptionData {
    /// A subscription to everything of a topic.
    #[must_use]
    pub fn all(topic: impl Into<String>, sub_version: i64) -> Self {
        SubscriptionData {
            topic: topic.into(),
            sub_string: "*".into(),
            expression_type: TAG.into(),
            sub_version,
            ..Self::default()
        }
    }

    /// Is the expression one of tags?
    #[must_use]
    pub fn is_tag(&self) -> bool {
        self.expression_type == TAG
    }
}

impl Body for SubscriptionData {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let expression_type = opt_text(value, "expressionType")?.filter(|kind| !kind.is_empty());
        Ok(SubscriptionData {
            topic: required_text(value, "topic")?,
            sub_string: text(value, "subString")?,
            expression_type: expression_type.unwrap_or_else(|| TAG.into()),
            tags: texts(value, "tagsSet")?,
            // Go writes them as strings; what is no number is of no use and harms nobody.
            codes: items(value, "codeSet")?.iter().filter_map(Value::as_i32).collect(),
            sub_version: long(value, "subVersion", 0)?,
            class_filter_mode: boolean(value, "classFilterMode", false)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_bool("classFilterMode", self.class_filter_mode);
        w.key("codeSet");
        w.begin_array();
        self.codes.iter().for_each(|code| w.i64(i64::from(*code)));
        w.end_array();
        w.field_str("expressionType", &self.expression_type);
        w.field_str("subString", &self.sub_string);
        w.field_i64("subVersion", self.sub_version);
        w.field_strs("tagsSet", &self.tags);
        w.field_str("topic", &self.topic);
        w.end_object();
    }
}

/// One consumer group of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerData {
    /// Group.
    pub group_name: String,
    /// `None` when the client named one that nobody knows.
    pub consume_type: Option<ConsumeType>,
    /// Likewise.
    pub message_model: Option<MessageModel>,
    /// Likewise.
    pub consume_from: Option<ConsumeFrom>,
    /// All its subscriptions.
    pub subscriptions: Vec<SubscriptionData>,
    /// Unit mode.
    pub unit_mode: bool,
}

impl Body for ConsumerData {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumerData {
            group_name: required_text(value, "groupName")?,
            consume_type: ConsumeType::field(value, "consumeType"),
            message_model: MessageModel::field(value, "messageModel"),
            consume_from: ConsumeFrom::field(value, "consumeFromWhere"),
            subscriptions: bodies(value, "subscriptionDataSet")?,
            unit_mode: boolean(value, "unitMode", false)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_opt_str("consumeFromWhere", self.consume_from.map(ConsumeFrom::name));
        w.field_opt_str("consumeType", self.consume_type.map(ConsumeType::name));
        w.field_str("groupName", &self.group_name);
        w.field_opt_str("messageModel", self.message_model.map(MessageModel::name));
        write_bodies(w, "subscriptionDataSet", &self.subscriptions);
        w.field_bool("unitMode", self.unit_mode);
        w.end_object();
    }
}

/// A heartbeat. Forms of Java 4.x and 5.x, Go and C++ are all read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The client instance.
    pub client_id: String,
    /// Its producer groups.
    pub producers: Vec<String>,
    /// Its consumer groups.
    pub consumers: Vec<ConsumerData>,
}

impl Body for Heartbeat {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let producers = items(value, "producerDataSet")?;
        Ok(Heartbeat {
            client_id: required_text(value, "clientID")?,
            producers: producers
                .iter()
                .map(|group| required_text(group, "groupName"))
                .collect::<Result<_, _>>()?,
            consumers: bodies(value, "consumerDataSet")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("clientID", &self.client_id);
        write_bodies(w, "consumerDataSet", &self.consumers);
        w.key("producerDataSet");
        w.begin_array();
        for group in &self.producers {
            w.begin_object();
            w.field_str("groupName", group);
            w.end_object();
        }
        w.end_array();
        w.end_object();
    }
}
