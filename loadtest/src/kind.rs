//! What messages of one kind have in common.

/// Where a message goes and what it is filtered by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Topic.
    pub topic: String,
    /// Value of the TAGS property; empty means none.
    pub tag: String,
}
