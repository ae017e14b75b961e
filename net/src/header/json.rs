//! The JSON header: one pass over the text, nothing copied but strings with escapes.
//!
//! Forms that only fastjson takes are taken too, since stock brokers take them: single quotes, bare
//! keys, a comma before the closing brace, numbers and booleans as ext values, numbers as text, the
//! language by its ordinal. Unknown fields of any shape are skipped.

use super::{EXT_FIELDS_MAX, Fixed, HeaderError, Span};
use crate::json::lex::{self, StringFault};
use crate::language::Language;

/// Deepest nesting of a value that is skipped.
const DEPTH_MAX: u32 = 64;

pub(super) fn decode(
    text: &str,
    ext: &mut Vec<(Span, Span)>,
    scratch: &mut String,
) -> Result<Fixed, HeaderError> {
    let mut scan = Scan { text, bytes: text.as_bytes(), at: 0, scratch };
    let mut fixed = Fixed::default();
    scan.open_object()?;
    while let Some(key) = scan.next_key()? {
        match scan.resolve(key) {
            "code" => fixed.code = scan.int("code")?,
            "opaque" => fixed.opaque = scan.int("opaque")?,
            "flag" => fixed.flag = scan.int("flag")?,
            "version" => fixed.version = scan.int("version")?,
            "language" => {
                let value = scan.scalar()?;
                fixed.language = Language::from_text(scan.resolve(value));
            }
            "remark" => fixed.remark = scan.scalar()?,
            "extFields" => scan.ext_fields(ext)?,
            _ => {
                scan.scalar()?;
            }
        }
        scan.end_of_value()?;
    }
    scan.skip_space();
    if scan.at < scan.bytes.len() {
        return Err(scan.fault("text after the header's closing brace"));
    }
    Ok(fixed)
}

struct Scan<'s> {
    text: &'s str,
    bytes: &'s [u8],
    at: usize,
    scratch: &'s mut String,
}

impl Scan<'_> {
    fn fault(&self, what: &'static str) -> HeaderError {
        HeaderError::Json { at: self.at, what }
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
        self.skip_space();
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn open_object(&mut self) -> Result<(), HeaderError> {
        if self.peek() != b'{' {
            return Err(self.fault("expected an opening brace"));
        }
        self.at += 1;
        Ok(())
    }

    /// The next key with its colon consumed, or `None` with the closing brace consumed.
    #[inline]
    fn next_key(&mut self) -> Result<Option<Span>, HeaderError> {
        let key = match self.peek() {
            b'}' => {
                self.at += 1;
                return Ok(None);
            }
            quote @ (b'"' | b'\'') => self.string(quote)?,
            _ => self.bare(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$')?,
        };
        if self.peek() != b':' {
            return Err(self.fault("expected a colon after a key"));
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// A comma, or a closing brace that is left for [`Scan::next_key`].
    #[inline]
    fn end_of_value(&mut self) -> Result<(), HeaderError> {
        match self.peek() {
            b',' => self.at += 1,
            b'}' => {}
            _ => return Err(self.fault("expected a comma or a closing brace")),
        }
        Ok(())
    }

    /// Any value as its text: strings unescaped, null empty, objects and arrays as they stand.
    #[inline]
    fn scalar(&mut self) -> Result<Span, HeaderError> {
        match self.peek() {
            quote @ (b'"' | b'\'') => self.string(quote),
            b'{' | b'[' => self.nested(),
            _ => {
                let span =
                    self.bare(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))?;
                match self.resolve(span) {
                    "null" => Ok(Span::EMPTY),
                    "true" | "false" => Ok(span),
                    number if number.parse::<f64>().is_ok() => Ok(span),
                    _ => Err(self.fault("expected a value")),
                }
            }
        }
    }

    fn int(&mut self, name: &'static str) -> Result<i32, HeaderError> {
        let span = self.scalar()?;
        match self.resolve(span) {
            "" => Ok(0),
            text => text.parse().map_err(|_| HeaderError::Number { name }),
        }
    }

    #[inline]
    fn string(&mut self, quote: u8) -> Result<Span, HeaderError> {
        let from = self.at + 1;
        let end = lex::string_end(self.bytes, from, quote);
        let (end, escaped) = end.map_err(|fault| self.string_fault(fault))?;
        self.at = end + 1;
        if !escaped {
            return Ok(Span::input(from, end - from));
        }
        let start = self.scratch.len();
        // Both ends are ASCII quotes, so the cut is at character boundaries.
        let raw = self.text.get(from..end).unwrap_or_default();
        lex::unescape_into(raw, self.scratch).map_err(|fault| self.string_fault(fault))?;
        Ok(Span::scratch(start, self.scratch.len() - start))
    }

    fn string_fault(&self, fault: StringFault) -> HeaderError {
        self.fault(match fault {
            StringFault::Open => "string without a closing quote",
            StringFault::Escape => "string with an unknown escape",
        })
    }

    fn bare(&mut self, is_part: impl Fn(u8) -> bool) -> Result<Span, HeaderError> {
        let from = self.at;
        while self.bytes.get(self.at).is_some_and(|b| is_part(*b)) {
            self.at += 1;
        }
        if self.at == from {
            return Err(self.fault("expected a key or a value"));
        }
        Ok(Span::input(from, self.at - from))
    }

    /// Skips an object or array by its brackets alone: the kinds are kept as bits, one per level.
    fn nested(&mut self) -> Result<Span, HeaderError> {
        let from = self.at;
        let (mut kinds, mut depth) = (0u64, 0u32);
        loop {
            let byte =
                *self.bytes.get(self.at).ok_or_else(|| self.fault("value without an end"))?;
            match byte {
                b'{' | b'[' => {
                    if depth == DEPTH_MAX {
                        return Err(self.fault("value nested too deeply"));
                    }
                    kinds = kinds << 1 | u64::from(byte == b'{');
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    if kinds & 1 != u64::from(byte == b'}') {
                        return Err(self.fault("brackets that do not match"));
                    }
                    kinds >>= 1;
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        return Ok(Span::input(from, self.at - from));
                    }
                }
                b'"' | b'\'' => {
                    let end = lex::string_end(self.bytes, self.at + 1, byte);
                    self.at = end.map_err(|fault| self.string_fault(fault))?.0 + 1;
                }
                _ => self.at += 1,
            }
        }
    }

    fn ext_fields(&mut self, ext: &mut Vec<(Span, Span)>) -> Result<(), HeaderError> {
        // A key twice: the last one wins, as a whole.
        ext.clear();
        if self.peek() != b'{' {
            return match self.scalar()? {
                Span::EMPTY => Ok(()),
                _ => Err(self.fault("extFields is not an object")),
            };
        }
        self.at += 1;
        while let Some(key) = self.next_key()? {
            let value = self.scalar()?;
            if ext.len() == EXT_FIELDS_MAX {
                return Err(HeaderError::TooManyFields);
            }
            ext.push((key, value));
            self.end_of_value()?;
        }
        Ok(())
    }
}
