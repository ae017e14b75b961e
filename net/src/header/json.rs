//! The JSON header: one pass over the text, nothing copied but strings with escapes.
//!
//! Forms that only fastjson takes are taken too, since stock brokers take them: single quotes, bare
//! keys, a comma before the closing brace, numbers and booleans as ext values, numbers as text, the
//! language by its ordinal. Unknown fields of any shape are skipped.

use super::{EXT_FIELDS_MAX, Fixed, HeaderError, Span};
use crate::json::lex::{self, Marks, StringFault};
use crate::language::Language;

/// Deepest nesting of a value that is skipped.
const DEPTH_MAX: u32 = 64;

pub(super) fn decode(
    text: &str,
    ext: &mut Vec<(Span, Span)>,
    scratch: &mut String,
) -> Result<Fixed, HeaderError> {
    let mut scan =
        Scan { text, bytes: text.as_bytes(), at: 0, scratch, marks: Marks::new(), error: None };
    scan.header(ext).ok_or_else(|| {
        // A fault is always recorded before `None` is returned; the fallback is for the type only.
        scan.error.take().unwrap_or(HeaderError::Json { at: scan.at, what: "unreadable" })
    })
}

/// Walks the text. Methods return `None` after a fault, which waits in `error`: so the values fit into
/// registers, and this is the hottest code of the crate.
struct Scan<'s> {
    text: &'s str,
    bytes: &'s [u8],
    at: usize,
    scratch: &'s mut String,
    marks: Marks,
    error: Option<HeaderError>,
}

/// "No key, the object ends": longer than any text.
const END: Span = Span(u64::MAX);

impl Scan<'_> {
    fn header(&mut self, ext: &mut Vec<(Span, Span)>) -> Option<Fixed> {
        let mut fixed = Fixed::default();
        if self.peek() != b'{' {
            return self.fault("expected an opening brace");
        }
        self.at += 1;
        loop {
            let key = self.next_key()?;
            if key == END {
                break;
            }
            match self.resolve(key) {
                "code" => fixed.code = self.int("code")?,
                "opaque" => fixed.opaque = self.int("opaque")?,
                "flag" => fixed.flag = self.int("flag")?,
                "version" => fixed.version = self.int("version")?,
                "language" => {
                    let value = self.scalar()?;
                    fixed.language = Language::from_text(self.resolve(value));
                }
                "remark" => fixed.remark = self.scalar()?,
                "extFields" => self.ext_fields(ext)?,
                _ => {
                    self.scalar()?;
                }
            }
            self.end_of_value()?;
        }
        self.skip_space();
        if self.at < self.bytes.len() {
            return self.fault("text after the header's closing brace");
        }
        Some(fixed)
    }

    #[cold]
    fn fault<T>(&mut self, what: &'static str) -> Option<T> {
        self.error = Some(HeaderError::Json { at: self.at, what });
        None
    }

    #[inline]
    fn resolve(&self, span: Span) -> &str {
        span.of(self.text, self.scratch)
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not space; 0 at the end, which no rule accepts.
    #[inline]
    fn peek(&mut self) -> u8 {
        match self.bytes.get(self.at) {
            Some(byte) if *byte > b' ' => *byte,
            _ => {
                self.skip_space();
                self.bytes.get(self.at).copied().unwrap_or(0)
            }
        }
    }

    /// The next key with its colon consumed, or [`END`] with the closing brace consumed.
    #[inline]
    fn next_key(&mut self) -> Option<Span> {
        let key = match self.peek() {
            b'}' => {
                self.at += 1;
                return Some(END);
            }
            quote @ (b'"' | b'\'') => self.string(quote)?,
            _ => self.bare(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$')?,
        };
        if self.peek() != b':' {
            return self.fault("expected a colon after a key");
        }
        self.at += 1;
        Some(key)
    }

    /// A comma, or a closing brace that is left for [`Scan::next_key`].
    #[inline]
    fn end_of_value(&mut self) -> Option<()> {
        match self.peek() {
            b',' => self.at += 1,
            b'}' => {}
            _ => return self.fault("expected a comma or a closing brace"),
        }
        Some(())
    }

    /// Any value as its text: strings unescaped, null empty, objects and arrays as they stand.
    #[inline]
    fn scalar(&mut self) -> Option<Span> {
        match self.peek() {
            quote @ (b'"' | b'\'') => self.string(quote),
            b'{' | b'[' => self.nested(),
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Option<Span> {
        let span = self.bare(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))?;
        match self.resolve(span) {
            "null" => Some(Span::EMPTY),
            "true" | "false" => Some(span),
            text if text.bytes().all(|b| b.is_ascii_digit()) => Some(span),
            text if text.parse::<f64>().is_ok() => Some(span),
            _ => self.fault("expected a value"),
        }
    }

    fn int(&mut self, name: &'static str) -> Option<i32> {
        let span = self.scalar()?;
        let text = self.resolve(span);
        if text.is_empty() {
            return Some(0);
        }
        match text.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                self.error = Some(HeaderError::Number { name });
                None
            }
        }
    }

    #[inline]
    fn string(&mut self, quote: u8) -> Option<Span> {
        let from = self.at + 1;
        let end = match quote {
            b'"' => self.marks.string_end(self.bytes, from),
            _ => lex::string_end(self.bytes, from, quote),
        };
        match end {
            Ok((end, false)) => {
                self.at = end + 1;
                Some(Span::input(from, end - from))
            }
            Ok((end, true)) => {
                self.at = end + 1;
                self.unescape(from, end)
            }
            Err(fault) => self.string_fault(fault),
        }
    }

    fn unescape(&mut self, from: usize, end: usize) -> Option<Span> {
        let start = self.scratch.len();
        // Both ends are ASCII quotes, so the cut is at character boundaries.
        let raw = self.text.get(from..end).unwrap_or_default();
        match lex::unescape_into(raw, self.scratch) {
            Ok(()) => Some(Span::scratch(start, self.scratch.len() - start)),
            Err(fault) => self.string_fault(fault),
        }
    }

    #[cold]
    fn string_fault<T>(&mut self, fault: StringFault) -> Option<T> {
        self.fault(match fault {
            StringFault::Open => "string without a closing quote",
            StringFault::Escape => "string with an unknown escape",
        })
    }

    fn bare(&mut self, is_part: impl Fn(u8) -> bool) -> Option<Span> {
        let from = self.at;
        while self.bytes.get(self.at).is_some_and(|b| is_part(*b)) {
            self.at += 1;
        }
        if self.at == from {
            return self.fault("expected a key or a value");
        }
        Some(Span::input(from, self.at - from))
    }

    /// Skips an object or array by its brackets alone: the kinds are kept as bits, one per level.
    fn nested(&mut self) -> Option<Span> {
        let from = self.at;
        let (mut kinds, mut depth) = (0u64, 0u32);
        loop {
            let Some(byte) = self.bytes.get(self.at).copied() else {
                return self.fault("value without an end");
            };
            match byte {
                b'{' | b'[' => {
                    if depth == DEPTH_MAX {
                        return self.fault("value nested too deeply");
                    }
                    kinds = kinds << 1 | u64::from(byte == b'{');
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    if kinds & 1 != u64::from(byte == b'}') {
                        return self.fault("brackets that do not match");
                    }
                    kinds >>= 1;
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        return Some(Span::input(from, self.at - from));
                    }
                }
                b'"' | b'\'' => match lex::string_end(self.bytes, self.at + 1, byte) {
                    Ok((end, _)) => self.at = end + 1,
                    Err(fault) => return self.string_fault(fault),
                },
                _ => self.at += 1,
            }
        }
    }

    fn ext_fields(&mut self, ext: &mut Vec<(Span, Span)>) -> Option<()> {
        // A key twice: the last one wins, as a whole.
        ext.clear();
        if self.peek() != b'{' {
            return match self.scalar()? {
                Span::EMPTY => Some(()),
                _ => self.fault("extFields is not an object"),
            };
        }
        self.at += 1;
        loop {
            self.plain_pairs(ext)?;
            let key = self.next_key()?;
            if key == END {
                return Some(());
            }
            let value = self.scalar()?;
            if ext.len() == EXT_FIELDS_MAX {
                self.error = Some(HeaderError::TooManyFields);
                return None;
            }
            ext.push((key, value));
            self.end_of_value()?;
        }
    }

    /// Takes the pairs that have the form which every stock encoder writes, `"name":"text",`, and stops before
    /// whatever looks different. The general path would do; here the position stays in a register.
    fn plain_pairs(&mut self, ext: &mut Vec<(Span, Span)>) -> Option<()> {
        while ext.len() < EXT_FIELDS_MAX && self.bytes.get(self.at) == Some(&b'"') {
            let key = self.at + 1;
            let Ok((key_end, false)) = self.marks.string_end(self.bytes, key) else { break };
            if self.bytes.get(key_end + 1..key_end + 3) != Some(b":\"") {
                break;
            }
            let from = key_end + 3;
            let Ok((end, escaped)) = self.marks.string_end(self.bytes, from) else { break };
            if self.bytes.get(end + 1) != Some(&b',') {
                break;
            }
            let value = match escaped {
                false => Span::input(from, end - from),
                true => self.unescape(from, end)?,
            };
            ext.push((Span::input(key, key_end - key), value));
            self.at = end + 2;
        }
        Some(())
    }
}
