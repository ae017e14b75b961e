//! Subscriptions and the tag filter that a broker evaluates against a consume queue unit.
//!
//! The filter sees only the 32-bit Java hash of the whole TAGS text. A collision passes it, and the
//! client filters again by the exact text, so a false match costs bytes and never correctness.

use ringmq_net::body::SubscriptionData;
use ringmq_net::record::java_hash;
use smallvec::SmallVec;
use thiserror::Error;

/// The expression that matches every message.
pub const ALL: &str = "*";

/// Why an expression was refused. Displayed, it is the remark of the reply.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// Answer 23 (SUBSCRIPTION_PARSE_FAILED), with stock 4.9.8's remark of a pull.
    #[error("parse the consumer's subscription failed")]
    Malformed,
    /// A type other than TAG. Answer 1, with the remark of a stock 4.9.8 broker that has property
    /// filters switched off, which is its default.
    #[error("The broker does not support consumer to filter message by {0}")]
    Unsupported(String),
}

/// Which messages of a queue a consumer wants, by tag. Up to 8 tags are kept inline, so building one
/// from a pull request allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagFilter {
    /// Every message.
    All,
    /// Messages whose tags hash is one of these.
    Codes(SmallVec<[i32; 8]>),
}

impl TagFilter {
    /// Whether a unit with this tagsCode passes: its low 32 bits are compared (stock 4.9.8).
    #[inline]
    pub fn matches(&self, tags_code: i64) -> bool {
        match self {
            Self::All => true,
            Self::Codes(codes) => codes.contains(&(tags_code as i32)),
        }
    }

    /// The filter of a pull request that brings its own subscription (sysFlag bit 2).
    ///
    /// `None`, "" and `*` mean all; otherwise tags separated by `||`. A text without any tag is
    /// refused: stock 4.9.8 refuses bare separators, and for blanks makes a filter that matches nothing.
    pub fn from_expression(
        expression: Option<&str>,
        expression_type: Option<&str>,
    ) -> Result<Self, FilterError> {
        let expression = expression.unwrap_or("");
        if !is_tag_type(expression_type) {
            return Err(match expression {
                "" => FilterError::Malformed,
                _ => FilterError::Unsupported(expression_type.unwrap_or("").to_owned()),
            });
        }
        if expression.is_empty() || expression == ALL {
            return Ok(Self::All);
        }
        match Self::of_tags(split_tags(expression)) {
            Self::Codes(codes) if codes.is_empty() => Err(FilterError::Malformed),
            filter => Ok(filter),
        }
    }

    fn codes(&self) -> &[i32] {
        match self {
            Self::All => &[],
            Self::Codes(codes) => codes,
        }
    }

    fn of_tags<'a>(tags: impl Iterator<Item = &'a str>) -> Self {
        let mut codes = SmallVec::new();
        for tag in tags {
            let code = java_hash(tag);
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        Self::Codes(codes)
    }
}

/// Whether an expression type means tags: absent, "" and TAG do.
pub fn is_tag_type(expression_type: Option<&str>) -> bool {
    matches!(expression_type, None | Some("" | "TAG"))
}

pub(super) fn split_tags(expression: &str) -> impl Iterator<Item = &str> {
    expression.split("||").map(str::trim).filter(|tag| !tag.is_empty())
}

/// What a consumer group wants of one topic, as its last accepted heartbeat said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    data: SubscriptionData,
    filter: TagFilter,
}

impl Subscription {
    /// Takes a subscription over from a heartbeat. Never fails: a type that this broker can't
    /// evaluate is kept as it is, and the pull that needs it is refused.
    ///
    /// The codes are computed anew from the tags' text, because Go hashes UTF-8 bytes, and its codes of
    /// non-ASCII tags match nothing at a stock broker. A client that sends no tags (C++) has them taken
    /// out of its expression.
    pub fn new(data: &SubscriptionData) -> Self {
        let mut data = data.clone();
        if data.sub_string.is_empty() && data.tags.is_empty() && data.codes.is_empty() {
            data.sub_string = ALL.to_owned();
        }
        if !is_tag_type(Some(&data.expression_type)) {
            return Self { data, filter: TagFilter::All };
        }
        let is_all = data.sub_string == ALL;
        if data.tags.is_empty() && !is_all {
            data.tags = split_tags(&data.sub_string).map(str::to_owned).collect();
        }
        if !data.tags.is_empty() {
            let codes = TagFilter::of_tags(data.tags.iter().map(String::as_str));
            data.codes = codes.codes().to_vec();
        }
        let filter = match is_all || data.class_filter_mode {
            true => TagFilter::All,
            false => TagFilter::Codes(data.codes.iter().copied().collect()),
        };
        Self { data, filter }
    }

    /// The subscription as administrators see it (request 203).
    pub fn data(&self) -> &SubscriptionData {
        &self.data
    }

    /// Whether [`Subscription::filter`] says all there is to say.
    pub fn is_tag(&self) -> bool {
        is_tag_type(Some(&self.data.expression_type))
    }

    /// The version that the client gave it; a greater one replaces it.
    #[inline]
    pub fn version(&self) -> i64 {
        self.data.sub_version
    }

    /// The filter to evaluate; meaningful if [`Subscription::is_tag`].
    #[inline]
    pub fn filter(&self) -> &TagFilter {
        &self.filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(expression: &str) -> Vec<i32> {
        match TagFilter::from_expression(Some(expression), None).unwrap() {
            TagFilter::All => vec![],
            TagFilter::Codes(codes) => codes.to_vec(),
        }
    }

    #[test]
    fn expressions_are_split_trimmed_and_deduplicated() {
        assert_eq!(codes(" TagA ||TagB||  || TagA"), [2_598_919, 2_598_920]);
        for all in [None, Some(""), Some("*")] {
            assert_eq!(TagFilter::from_expression(all, Some("TAG")), Ok(TagFilter::All));
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_refused_with_the_stock_remark() {
        let refuse = |e: &str, t| TagFilter::from_expression(Some(e), Some(t)).unwrap_err();
        assert_eq!(refuse("||", "TAG"), FilterError::Malformed);
        assert_eq!(refuse("  ", ""), FilterError::Malformed);
        assert_eq!(refuse("", "SQL92"), FilterError::Malformed);
        assert_eq!(
            refuse("a > 5", "SQL92").to_string(),
            "The broker does not support consumer to filter message by SQL92"
        );
    }

    #[test]
    fn only_the_low_32_bits_of_the_units_code_count() {
        let filter = TagFilter::from_expression(Some("TagA"), None).unwrap();
        assert!(filter.matches(2_598_919));
        assert!(filter.matches(2_598_919 | 7 << 32));
        assert!(!filter.matches(0));
        assert!(TagFilter::All.matches(-1));
    }

    fn data(expression: &str, tags: &[&str]) -> SubscriptionData {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        SubscriptionData {
            sub_string: expression.to_owned(),
            tags,
            ..SubscriptionData::all("T", 1)
        }
    }

    #[test]
    fn gos_wrong_codes_of_non_ascii_tags_are_replaced() {
        let sent = SubscriptionData { codes: vec![12345], ..data("标签", &["标签"]) };
        let sub = Subscription::new(&sent);
        assert_eq!(sub.data().codes, [857_175]);
        assert!(sub.filter().matches(857_175) && !sub.filter().matches(12345));
    }

    #[test]
    fn the_sparse_subscription_of_a_cpp_client_is_understood() {
        for all in ["*", ""] {
            assert_eq!(Subscription::new(&data(all, &[])).filter(), &TagFilter::All);
        }
        let one = Subscription::new(&data("A || B", &[]));
        assert_eq!(one.data().codes, [java_hash("A"), java_hash("B")]);
        assert_eq!(one.data().tags, ["A", "B"]);
        assert!(!one.filter().matches(0));
    }

    #[test]
    fn the_class_filter_flag_switches_the_brokers_filter_off() {
        let sent = SubscriptionData { class_filter_mode: true, ..data("A", &["A"]) };
        assert_eq!(Subscription::new(&sent).filter(), &TagFilter::All);
    }

    #[test]
    fn another_expression_type_is_kept_and_named() {
        let sent = SubscriptionData { expression_type: "SQL92".to_owned(), ..data("a > 5", &[]) };
        let sub = Subscription::new(&sent);
        assert!(!sub.is_tag());
        assert_eq!(sub.data(), &sent);
    }
}
