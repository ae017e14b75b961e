//! Reading command headers without allocating.
//!
//! A [`HeaderDecoder`] owns the scratch that a header needs (spans of its ext fields, strings whose
//! escapes had to be undone) and lends it to one [`HeaderView`] at a time. After warm-up a decode
//! allocates nothing, whichever of the two forms the header has. Own one per connection or per reactor.

use std::ops::Range;

use thiserror::Error;

use memo::Memos;

use crate::frame::SerializeType;
use crate::language::Language;

mod binary;
pub(crate) mod encode;
mod json;
mod memo;
#[cfg(test)]
pub(crate) mod tests;

pub use encode::ExtValue;

/// Most ext fields in one header. Stock has no bound and sends about 20 at most.
pub const EXT_FIELDS_MAX: usize = 512;

/// Scratch above this is given back before the next header: one giant must not stay for ever.
const SCRATCH_KEEP_BYTES: usize = 256 * 1024;

/// Flag bit: the command is a response.
pub const FLAG_RESPONSE: i32 = 1;
/// Flag bit: a request that must not be answered.
pub const FLAG_ONEWAY: i32 = 2;

/// Why a header cannot be read. Stock closes the connection; there is nobody to answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    /// Not the JSON that any stock peer would write or read.
    #[error("JSON header is malformed at byte {at}: {what}")]
    Json {
        /// Position in the header.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// One of the fixed fields is not a 32-bit number.
    #[error("header field {name} is not a 32-bit number")]
    Number {
        /// The field.
        name: &'static str,
    },
    /// A binary header ends early, or a length in it is negative or too large.
    #[error("binary header ends inside {what}, or its length is wrong")]
    Truncated {
        /// What could not be read whole.
        what: &'static str,
    },
    /// More than [`EXT_FIELDS_MAX`] ext fields.
    #[error("header has more than {EXT_FIELDS_MAX} ext fields; no stock peer sends that")]
    TooManyFields,
}

/// A piece of the header's text or of the scratch.
///
/// One word: the bit 63 for the scratch, 31 bits of start, 32 of length. Headers are below 2^24 bytes and
/// texts at most three times as long (replacement characters). Two halves would travel through memory and
/// cost a store-forwarding stall per field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(u64);

const IN_SCRATCH: u64 = 1 << 63;

impl Span {
    const EMPTY: Span = Span(0);

    #[inline]
    const fn input(start: usize, len: usize) -> Span {
        Span((start as u64) << 32 | len as u64)
    }

    #[inline]
    const fn scratch(start: usize, len: usize) -> Span {
        Span(IN_SCRATCH | (start as u64) << 32 | len as u64)
    }

    /// Where it stands in the header's text, if it does.
    const fn in_input(self) -> Option<Range<usize>> {
        let start = (self.0 >> 32 & 0x7FFF_FFFF) as usize;
        if self.0 & IN_SCRATCH == 0 { Some(start..start + self.0 as u32 as usize) } else { None }
    }

    #[inline]
    fn of<'a>(self, input: &'a str, scratch: &'a str) -> &'a str {
        let text = if self.0 & IN_SCRATCH == 0 { input } else { scratch };
        let start = (self.0 >> 32 & 0x7FFF_FFFF) as usize;
        text.get(start..start + self.0 as u32 as usize).unwrap_or_default()
    }
}

/// The fields that every header has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed {
    code: i32,
    language: Language,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Span,
}

impl Default for Fixed {
    fn default() -> Self {
        Fixed {
            code: 0,
            language: Language::JAVA,
            version: 0,
            opaque: 0,
            flag: 0,
            remark: Span::EMPTY,
        }
    }
}

/// Reusable room for reading headers; see the module.
#[derive(Debug, Default)]
pub struct HeaderDecoder {
    ext: Vec<(Span, Span)>,
    scratch: String,
    lossy: String,
    memos: Memos,
}

impl HeaderDecoder {
    /// An empty decoder; it allocates with the first header.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a header. The view borrows from both the decoder and the header's bytes.
    ///
    /// # Errors
    /// See [`HeaderError`]: close the connection. Header bytes that are not UTF-8 are no error, they read
    /// as replacement characters, as in stock (C++ clients send whatever encoding their user has).
    pub fn decode<'a>(
        &'a mut self,
        serialize: SerializeType,
        header: &'a [u8],
    ) -> Result<HeaderView<'a>, HeaderError> {
        self.reset();
        let (fixed, input) = match serialize {
            SerializeType::Json => {
                let text = match std::str::from_utf8(header) {
                    Ok(text) => text,
                    Err(_) => {
                        self.lossy = String::from_utf8_lossy(header).into_owned();
                        self.lossy.as_str()
                    }
                };
                (Self::decode_json(&mut self.memos, text, &mut self.ext, &mut self.scratch)?, text)
            }
            SerializeType::Binary => {
                (binary::decode(header, &mut self.ext, &mut self.scratch)?, "")
            }
        };
        Ok(HeaderView { fixed, serialize, ext: &self.ext, input, scratch: &self.scratch })
    }

    /// By the memory of a header that looked like it, or in full.
    fn decode_json(
        memos: &mut Memos,
        text: &str,
        ext: &mut Vec<(Span, Span)>,
        scratch: &mut String,
    ) -> Result<Fixed, HeaderError> {
        let Some(memo) = memos.of(text) else { return json::decode(text, ext, scratch) };
        if let Some(fixed) = memo.read(text, ext, scratch) {
            return Ok(fixed);
        }
        ext.clear();
        scratch.clear();
        let fixed = json::decode(text, ext, scratch)?;
        memo.learn(text, fixed, ext, scratch);
        Ok(fixed)
    }

    fn reset(&mut self) {
        self.ext.clear();
        self.scratch.clear();
        self.lossy = String::new();
        if self.scratch.capacity() > SCRATCH_KEEP_BYTES {
            self.scratch = String::new();
        }
    }
}

/// A decoded header, borrowed from its decoder and its frame.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    fixed: Fixed,
    serialize: SerializeType,
    ext: &'a [(Span, Span)],
    input: &'a str,
    scratch: &'a str,
}

impl<'a> HeaderView<'a> {
    /// Request code, or response code in a response.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.fixed.code
    }

    /// Correlation id: any number, repeated in the response.
    #[must_use]
    pub fn opaque(&self) -> i32 {
        self.fixed.opaque
    }

    /// The flag bits, see [`FLAG_RESPONSE`] and [`FLAG_ONEWAY`]; others mean nothing.
    #[must_use]
    pub fn flag(&self) -> i32 {
        self.fixed.flag
    }

    /// The sender's version number.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.fixed.version
    }

    /// The sender's language; JAVA when absent, UNKNOWN when nobody knows it.
    #[must_use]
    pub fn language(&self) -> Language {
        self.fixed.language
    }

    /// Remark; an empty one reads as none.
    #[must_use]
    pub fn remark(&self) -> Option<&'a str> {
        some_text(self.fixed.remark.of(self.input, self.scratch))
    }

    /// Is this the answer to a request of ours?
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.fixed.flag & FLAG_RESPONSE != 0
    }

    /// Must nothing be answered? Go never says so, even where it ignores the answer.
    #[must_use]
    pub fn is_oneway(&self) -> bool {
        self.fixed.flag & FLAG_ONEWAY != 0
    }

    /// The form the header came in; the reply takes the same.
    #[must_use]
    pub fn serialize(&self) -> SerializeType {
        self.serialize
    }

    /// An ext field by name. Of a repeated name the last counts; null and the empty string are `None`;
    /// numbers and booleans come as their text. Linear: to read many, iterate once over
    /// [`HeaderView::ext_iter`].
    #[must_use]
    pub fn ext(&self, name: &str) -> Option<&'a str> {
        let found = self.ext.iter().rev().find(|(key, _)| self.resolve(*key) == name);
        found.and_then(|(_, value)| some_text(self.resolve(*value)))
    }

    /// All ext fields in the order they came, repeated names and empty values included.
    pub fn ext_iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let view = *self;
        view.ext.iter().map(move |(key, value)| (view.resolve(*key), view.resolve(*value)))
    }

    #[inline]
    fn resolve(&self, span: Span) -> &'a str {
        span.of(self.input, self.scratch)
    }
}

#[inline]
fn some_text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
