//! Subscriptions and the tag filter that a broker evaluates against a consume queue unit.
//!
//! The filter sees only the 32-bit Java hash of the whole TAGS text. A collision passes it, and the
//! client filters again by the exact text, so a false match costs bytes and never correctness.

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

fn split_tags(expression: &str) -> impl Iterator<Item = &str> {
    expression.split("||").map(str::trim).filter(|tag| !tag.is_empty())
}

/// What a consumer group wants of one topic, as its last accepted heartbeat said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    topic: Box<str>,
    expression: Box<str>,
    expression_type: Box<str>,
    version: i64,
    tags: Vec<Box<str>>,
    class_filter: bool,
    filter: TagFilter,
}

/// The fields of a heartbeat's subscription; see [`Subscription::new`].
#[derive(Clone, Debug, Default)]
pub struct SubscriptionParts<'a> {
    /// Topic.
    pub topic: &'a str,
    /// `subString`; absent and "" count as `*` when there are no tags either.
    pub expression: &'a str,
    /// `expressionType`; absent and "" mean TAG.
    pub expression_type: Option<&'a str>,
    /// `subVersion`: ms from Java, ns from Go.
    pub version: i64,
    /// `tagsSet`.
    pub tags: Vec<&'a str>,
    /// `codeSet`: only used if there is no tag text.
    pub codes: Vec<i32>,
    /// `classFilterMode`: true switches the broker's filter off.
    pub class_filter: bool,
}

impl Subscription {
    /// Takes a subscription over from a heartbeat. Never fails: a type that this broker can't
    /// evaluate is kept as it is, and the pull that needs it is refused.
    ///
    /// The codes are computed anew from the tags' text, because Go hashes UTF-8 bytes, and its codes of
    /// non-ASCII tags match nothing at a stock broker.
    pub fn new(parts: &SubscriptionParts<'_>) -> Self {
        let is_tag = is_tag_type(parts.expression_type);
        let named: Vec<&str> = match parts.tags.is_empty() && parts.expression != ALL && is_tag {
            true => split_tags(parts.expression).collect(),
            false => parts.tags.clone(),
        };
        let filter = if !is_tag || parts.class_filter || parts.expression == ALL {
            TagFilter::All
        } else if !named.is_empty() {
            TagFilter::of_tags(named.iter().copied())
        } else if !parts.codes.is_empty() {
            TagFilter::Codes(parts.codes.iter().copied().collect())
        } else {
            TagFilter::All
        };
        Self {
            topic: parts.topic.into(),
            expression: if parts.expression.is_empty() { ALL } else { parts.expression }.into(),
            expression_type: parts
                .expression_type
                .filter(|t| !t.is_empty())
                .unwrap_or("TAG")
                .into(),
            version: parts.version,
            tags: named.into_iter().map(Into::into).collect(),
            class_filter: parts.class_filter,
            filter,
        }
    }

    /// Topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The expression's text; `*` for everything.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// `TAG`, `SQL92` or what else the client sent.
    pub fn expression_type(&self) -> &str {
        &self.expression_type
    }

    /// Whether [`Subscription::filter`] says all there is to say.
    pub fn is_tag(&self) -> bool {
        &*self.expression_type == "TAG"
    }

    /// The version that the client gave it; a greater one replaces it.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The tags' texts.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.tags.iter().map(|tag| &**tag)
    }

    /// The tags' hash codes; none for `*`.
    pub fn codes(&self) -> &[i32] {
        match &self.filter {
            TagFilter::All => &[],
            TagFilter::Codes(codes) => codes,
        }
    }

    /// The obsolete class filter flag.
    pub fn class_filter(&self) -> bool {
        self.class_filter
    }

    /// The filter to evaluate; meaningful if [`Subscription::is_tag`].
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

    #[test]
    fn gos_wrong_codes_of_non_ascii_tags_are_replaced() {
        let sub = Subscription::new(&SubscriptionParts {
            topic: "T",
            expression: "标签",
            tags: vec!["标签"],
            codes: vec![12345],
            ..Default::default()
        });
        assert_eq!(sub.codes(), [857_175]);
        assert!(sub.is_tag());
    }

    #[test]
    fn the_sparse_subscription_of_a_cpp_client_is_understood() {
        let all = Subscription::new(&SubscriptionParts { expression: "*", ..Default::default() });
        assert_eq!(all.filter(), &TagFilter::All);
        let one =
            Subscription::new(&SubscriptionParts { expression: "A || B", ..Default::default() });
        assert_eq!(one.codes(), [java_hash("A"), java_hash("B")]);
        assert_eq!(one.tags().collect::<Vec<_>>(), ["A", "B"]);
    }

    #[test]
    fn another_expression_type_is_kept_and_named() {
        let sub = Subscription::new(&SubscriptionParts {
            expression: "a > 5",
            expression_type: Some("SQL92"),
            ..Default::default()
        });
        assert!(!sub.is_tag());
        assert_eq!((sub.expression(), sub.expression_type()), ("a > 5", "SQL92"));
    }
}
