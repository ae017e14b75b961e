//! The properties text: `name 0x01 value` entries joined by `0x02`.
//!
//! Reading follows stock 4.9.8: split at 0x02; in an entry the first 0x01 separates; an entry without a name or without a
//! value does not count; a name seen again replaces the earlier value. A 0x02 at the end is allowed (older Java, Go and C++
//! clients write one), the broker writes none.

use super::PROPERTIES_BYTES_MAX;
use crate::scan::{self, BLOCK};

/// Stands between a name and its value.
pub const NAME_SEPARATOR: u8 = 1;
/// Stands between two entries.
pub const PROPERTY_SEPARATOR: u8 = 2;

/// Property names that a broker reads or writes.
pub mod name {
    #![allow(missing_docs)]
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    pub const CLUSTER: &str = "CLUSTER";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QID: &str = "REAL_QID";
    pub const TRAN_MSG: &str = "TRAN_MSG";
    pub const PGROUP: &str = "PGROUP";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const MSG_TYPE: &str = "MSG_TYPE";
    pub const MAX_OFFSET: &str = "MAX_OFFSET";
    pub const MIN_OFFSET: &str = "MIN_OFFSET";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const INNER_MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";
}

/// A properties text, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties<'a> {
    text: &'a str,
}

impl<'a> Properties<'a> {
    /// Over a text as a client sends it or a record stores it. Never fails: what does not parse does not count.
    pub fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// All entries that count, in order; a repeated name comes again, and then the last one holds.
    pub fn iter(&self) -> PropertiesIter<'a> {
        PropertiesIter { rest: Some(self.text) }
    }

    /// The value of `name`. Does not allocate; reads from the end, as the last entry of a name holds.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.text
            .rsplit(PROPERTY_SEPARATOR as char)
            .filter_map(split_entry)
            .find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The values that a broker acts on, in one pass.
    pub fn known(&self) -> KnownProperties<'a> {
        let mut known = KnownProperties::default();
        walk(self.text, |entry| known.note(entry.name, entry.value));
        known
    }
}

/// One entry that counts.
struct Entry<'a> {
    /// Name, separator and value as they stand.
    whole: &'a str,
    name: &'a str,
    value: &'a str,
}

/// Hands the entries that count to `each`, as [`Properties::iter`] does, in one pass over the separators. Returns where the first NUL is;
/// behind it nothing is promised.
fn walk<'a>(text: &'a str, mut each: impl FnMut(Entry<'a>)) -> Option<usize> {
    let bytes = text.as_bytes();
    // Start of the entry, and where its name ends once that is known.
    let (mut start, mut name_end) = (0, None);
    let mut entry = |start: usize, name_end: Option<usize>, end: usize| {
        // The cuts are at ASCII characters, and a text's end is a boundary.
        if let Some(name_end) = name_end
            && start < name_end
            && name_end + 1 < end
            && let (Some(whole), Some(name), Some(value)) =
                (text.get(start..end), text.get(start..name_end), text.get(name_end + 1..end))
        {
            each(Entry { whole, name, value });
        }
    };
    let mut block = 0;
    while block < bytes.len() {
        let mut cuts =
            scan::with_block(bytes, block, 0xFF, |b| scan::at_most(b, PROPERTY_SEPARATOR));
        while cuts != 0 {
            let at = block + cuts.trailing_zeros() as usize;
            cuts &= cuts - 1;
            match bytes.get(at) {
                Some(&PROPERTY_SEPARATOR) => {
                    entry(start, name_end, at);
                    (start, name_end) = (at + 1, None);
                }
                Some(&NAME_SEPARATOR) => name_end = name_end.or(Some(at)),
                _ => return Some(at),
            }
        }
        block += BLOCK;
    }
    entry(start, name_end, bytes.len());
    None
}

/// Iterator over the entries of a properties text.
#[derive(Debug, Clone)]
pub struct PropertiesIter<'a> {
    rest: Option<&'a str>,
}

impl<'a> Iterator for PropertiesIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest?;
            let entry = match rest.split_once(PROPERTY_SEPARATOR as char) {
                Some((entry, tail)) => {
                    self.rest = Some(tail);
                    entry
                }
                None => {
                    self.rest = None;
                    rest
                }
            };
            if let Some(found) = split_entry(entry) {
                return Some(found);
            }
        }
    }
}

/// Name and value of one entry, if it counts.
fn split_entry(entry: &str) -> Option<(&str, &str)> {
    let (name, value) = entry.split_once(NAME_SEPARATOR as char)?;
    (!name.is_empty() && !value.is_empty()).then_some((name, value))
}

/// The properties that a broker acts on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownProperties<'a> {
    /// `KEYS`: index keys, separated by single spaces.
    pub keys: Option<&'a str>,
    /// `TAGS`: one tag, hashed for filtering.
    pub tags: Option<&'a str>,
    /// `UNIQ_KEY`: the client's unique message id, an index key too.
    pub uniq_key: Option<&'a str>,
    /// `WAIT`: `false` = do not wait for flush and replication.
    pub wait: Option<&'a str>,
    /// `DELAY`: delay level.
    pub delay: Option<&'a str>,
    /// `TRAN_MSG`: `true` = half message.
    pub tran_msg: Option<&'a str>,
    /// `RETRY_TOPIC`: original topic of a retried message.
    pub retry_topic: Option<&'a str>,
    /// `REAL_TOPIC`: where a delayed or half message belongs.
    pub real_topic: Option<&'a str>,
    /// `REAL_QID`: which queue of it.
    pub real_queue_id: Option<&'a str>,
    /// `ORIGIN_MESSAGE_ID`: the first offset message id of a sent-back message.
    pub origin_message_id: Option<&'a str>,
    /// `MSG_TYPE`: `reply` selects the reply codes.
    pub msg_type: Option<&'a str>,
}

impl<'a> KnownProperties<'a> {
    fn note(&mut self, name: &str, value: &'a str) {
        let slot = match name {
            name::KEYS => &mut self.keys,
            name::TAGS => &mut self.tags,
            name::UNIQ_KEY => &mut self.uniq_key,
            name::WAIT => &mut self.wait,
            name::DELAY => &mut self.delay,
            name::TRAN_MSG => &mut self.tran_msg,
            name::RETRY_TOPIC => &mut self.retry_topic,
            name::REAL_TOPIC => &mut self.real_topic,
            name::REAL_QID => &mut self.real_queue_id,
            name::ORIGIN_MESSAGE_ID => &mut self.origin_message_id,
            name::MSG_TYPE => &mut self.msg_type,
            _ => return,
        };
        *slot = Some(value);
    }

    /// The keys under which a message is indexed, in stock's order: the unique key, then each non-empty piece of KEYS.
    pub fn index_keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let keys = self.keys.unwrap_or_default().split(' ').filter(|key| !key.is_empty());
        self.uniq_key.into_iter().chain(keys)
    }

    /// Whether the sender waits for the configured level: absent means yes, only `false` means no.
    pub fn waits(&self) -> bool {
        self.wait.is_none_or(|wait| wait.eq_ignore_ascii_case("true"))
    }

    /// Whether this is a half message.
    pub fn is_half_message(&self) -> bool {
        self.tran_msg.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The delay level asked for; 0 when absent, no number, or not above 0.
    pub fn delay_level(&self) -> u32 {
        self.delay.and_then(|level| level.parse().ok()).unwrap_or(0)
    }
}

/// Why a properties text is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// A NUL: it would make a whole record look torn after a crash.
    #[error("message properties hold a NUL character at byte {0}: remove it")]
    Nul(usize),
    /// Longer than a record takes, with what the broker adds.
    #[error("message properties are {0} bytes with what the broker adds: at most 32767 are stored")]
    TooLong(usize),
    /// A value that is to be added holds one of the separators.
    #[error("property {0} cannot hold the characters 0x01 and 0x02")]
    Separator(&'static str),
}

/// Makes the texts that a broker stores, in a buffer that is used again and again: one per reactor.
#[derive(Debug, Default)]
pub struct PropertiesRewriter {
    out: Vec<u8>,
}

impl PropertiesRewriter {
    /// A rewriter with room for an ordinary text.
    pub fn new() -> Self {
        Self { out: Vec::with_capacity(1024) }
    }

    /// Makes the text of a single ordinary send: the client's entries without WAIT and CLUSTER, then `CLUSTER=cluster`. Entries
    /// that do not count are dropped. A repeated name stays repeated: every reader takes the last. What the client's
    /// text says (WAIT included) is returned; the new text is [`PropertiesRewriter::text`].
    ///
    /// # Errors
    /// [`PropertiesError`] for a NUL or a result above 32767 bytes.
    pub fn for_send<'t>(
        &mut self,
        text: &'t str,
        cluster: &str,
    ) -> Result<KnownProperties<'t>, PropertiesError> {
        self.rewrite(text, &[name::WAIT], &[(name::CLUSTER, cluster)])
    }

    /// The general form: entries named in `drop` or `set` go, then those of `set` are appended (an empty value is left out,
    /// as no reader would count it).
    ///
    /// # Errors
    /// [`PropertiesError`] for a NUL, a separator in a value of `set`, or a result above 32767 bytes.
    pub fn rewrite<'t>(
        &mut self,
        text: &'t str,
        drop: &[&str],
        set: &[(&'static str, &str)],
    ) -> Result<KnownProperties<'t>, PropertiesError> {
        self.out.clear();
        let mut known = KnownProperties::default();
        let out = &mut self.out;
        let nul = walk(text, |entry| {
            known.note(entry.name, entry.value);
            let dropped =
                drop.contains(&entry.name) || set.iter().any(|(set, _)| *set == entry.name);
            if !dropped {
                separate(out);
                out.extend_from_slice(entry.whole.as_bytes());
            }
        });
        if let Some(at) = nul {
            return Err(PropertiesError::Nul(at));
        }
        for (name, value) in set.iter().filter(|(_, value)| !value.is_empty()) {
            if value.bytes().any(|byte| byte <= PROPERTY_SEPARATOR) {
                return Err(PropertiesError::Separator(name));
            }
            separate(&mut self.out);
            self.out.extend_from_slice(name.as_bytes());
            self.out.push(NAME_SEPARATOR);
            self.out.extend_from_slice(value.as_bytes());
        }
        within_bounds(self.out.len())?;
        Ok(known)
    }

    /// The text made last.
    pub fn text(&self) -> &[u8] {
        &self.out
    }
}

/// What the records of one batch have in common, and the texts made for them, back to back. One per reactor.
#[derive(Debug, Default)]
pub struct BatchTexts {
    /// The batch-level text.
    level: Vec<u8>,
    /// The same without its UNIQ_KEY, if it has one.
    keyless: Option<Vec<u8>>,
    out: Vec<u8>,
}

impl BatchTexts {
    /// Begins a batch. `level` is its own properties text, already rewritten with CLUSTER.
    pub fn begin(&mut self, level: &[u8]) {
        self.out.clear();
        self.level.clear();
        self.level.extend_from_slice(level);
        let text = std::str::from_utf8(level).unwrap_or_default();
        self.keyless = Properties::new(text).get(name::UNIQ_KEY).map(|_| {
            let mut keyless = Vec::with_capacity(level.len());
            walk(text, |entry| {
                if entry.name != name::UNIQ_KEY {
                    separate(&mut keyless);
                    keyless.extend_from_slice(entry.whole.as_bytes());
                }
            });
            keyless
        });
    }

    /// Makes the text of one record: the inner text as it is, then a separator where one is needed, then the
    /// batch-level text. One deviation from stock: a batch-level UNIQ_KEY (5.x producers
    /// send one) is left out when the inner message has its own; stock lets it hide the individual keys.
    ///
    /// Returns what the inner text says; the texts so far are [`BatchTexts::all`].
    ///
    /// # Errors
    /// [`PropertiesError`] for a NUL or a sum above 32767 bytes (which stock does not check).
    pub fn push<'t>(&mut self, inner: &'t str) -> Result<KnownProperties<'t>, PropertiesError> {
        let mut known = KnownProperties::default();
        if let Some(at) = walk(inner, |entry| known.note(entry.name, entry.value)) {
            return Err(PropertiesError::Nul(at));
        }
        let start = self.out.len();
        self.out.extend_from_slice(inner.as_bytes());
        let level = match &self.keyless {
            Some(keyless) if known.uniq_key.is_some() => keyless,
            _ => &self.level,
        };
        if !level.is_empty() {
            if !inner.is_empty() {
                separate(&mut self.out);
            }
            self.out.extend_from_slice(level);
        }
        within_bounds(self.out.len() - start)?;
        Ok(known)
    }

    /// All texts made since [`BatchTexts::begin`], back to back.
    pub fn all(&self) -> &[u8] {
        &self.out
    }
}

fn separate(out: &mut Vec<u8>) {
    if out.last().is_some_and(|last| *last != PROPERTY_SEPARATOR) {
        out.push(PROPERTY_SEPARATOR);
    }
}

fn within_bounds(len: usize) -> Result<(), PropertiesError> {
    if len > PROPERTIES_BYTES_MAX { Err(PropertiesError::TooLong(len)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The walk over separators sees what the iterator, which follows stock's rules one by one, sees.
        #[test]
        fn a_walk_sees_the_entries_that_count(parts in proptest::collection::vec("[a-cé\u{1}\u{2}]{0,40}", 0..12)) {
            let text = parts.join("\u{2}");
            let mut seen = Vec::new();
            let nul = walk(&text, |entry| {
                assert_eq!(entry.whole, format!("{}\u{1}{}", entry.name, entry.value));
                seen.push((entry.name, entry.value));
            });
            prop_assert_eq!(nul, None);
            prop_assert_eq!(seen, Properties::new(&text).iter().collect::<Vec<_>>());
        }

        #[test]
        fn the_first_nul_is_found(before in "[a\u{1}\u{2}]{0,150}", after in "[a\u{1}\u{2}\u{0}]{0,150}") {
            prop_assert_eq!(walk(&format!("{before}\0{after}"), |_| {}), Some(before.len()));
        }
    }
}
