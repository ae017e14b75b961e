//! What a consumer wants of a topic.

use std::collections::BTreeSet;

use ringmq_net::body::SubscriptionData;
use ringmq_net::record::java_hash;

use crate::error::{Error, Result};
use crate::id::now_ms;
use crate::message::ReceivedMessage;
use crate::validate;

/// Which messages of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// Those with one of the tags of an expression `TagA || TagB`; all for `*` or nothing.
    Tags(String),
    /// Those whose properties fulfil an SQL92 expression, such as `amount > 5 AND region = 'EU'`. The broker has to allow it.
    Sql(String),
}

impl From<&str> for Filter {
    fn from(tags: &str) -> Filter {
        Filter::Tags(tags.to_owned())
    }
}

impl From<String> for Filter {
    fn from(tags: String) -> Filter {
        Filter::Tags(tags)
    }
}

/// A subscription, ready for heartbeats and for the check of what comes.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) data: SubscriptionData,
    tags: BTreeSet<String>,
}

impl Subscription {
    pub(crate) fn new(topic: &str, filter: &Filter) -> Result<Subscription> {
        validate::topic(topic)?;
        let mut data = SubscriptionData::all(topic, now_ms());
        match filter {
            Filter::Sql(expression) => {
                if expression.trim().is_empty() {
                    return Err(Error::invalid(
                        "an empty SQL92 expression: write one, or use tags",
                    ));
                }
                data.expression_type = "SQL92".to_owned();
                data.sub_string.clone_from(expression);
            }
            Filter::Tags(expression) if matches!(expression.trim(), "" | "*") => {}
            Filter::Tags(expression) => {
                let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
                data.tags = tags.map(str::to_owned).collect();
                if data.tags.is_empty() {
                    return Err(Error::invalid(format!(
                        "no tag in expression \"{expression}\": write TagA || TagB, or *"
                    )));
                }
                data.codes = data.tags.iter().map(|tag| java_hash(tag)).collect();
                data.sub_string.clone_from(expression);
            }
        }
        Ok(Subscription { tags: data.tags.iter().cloned().collect(), data })
    }

    /// Brokers compare hashes of tags: another tag may have the same.
    pub(crate) fn wants(&self, message: &ReceivedMessage) -> bool {
        self.tags.is_empty() || message.tag().is_some_and(|tag| self.tags.contains(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::fixture::message;

    fn tags(expression: &str) -> Result<Subscription> {
        Subscription::new("T", &expression.into())
    }

    #[test]
    fn tag_expressions_are_read_as_stock_reads_them() {
        for all in ["", "*", " * "] {
            let subscription = tags(all).unwrap();
            assert_eq!(subscription.data.sub_string, "*");
            assert!(subscription.data.codes.is_empty());
        }
        let some = tags(" TagA ||TagB|| ").unwrap().data;
        assert_eq!(some.tags, ["TagA", "TagB"]);
        assert_eq!(some.codes, [2_598_919, 2_598_920]);
        assert_eq!(
            (some.sub_string.as_str(), some.expression_type.as_str()),
            (" TagA ||TagB|| ", "TAG")
        );
        for bad in ["||", " || || "] {
            assert!(tags(bad).unwrap_err().to_string().contains("TagA || TagB"));
        }
        assert!(Subscription::new("a b", &"*".into()).is_err());
        assert!(Subscription::new("T", &Filter::Sql(" ".into())).is_err());
        let sql = Subscription::new("T", &Filter::Sql("a > 5".into())).unwrap();
        assert_eq!(sql.data.expression_type, "SQL92");
        assert!(sql.wants(&message("T", 0, "")));
    }

    #[test]
    fn a_tag_with_the_same_hash_is_not_taken_for_the_wanted_one() {
        assert_eq!(java_hash("Aa"), java_hash("BB"));
        let subscription = tags("Aa").unwrap();
        assert!(subscription.wants(&message("T", 0, "TAGS\u{1}Aa")));
        assert!(!subscription.wants(&message("T", 0, "TAGS\u{1}BB")));
        assert!(!subscription.wants(&message("T", 0, "")));
        assert!(tags("*").unwrap().wants(&message("T", 0, "")));
    }
}
