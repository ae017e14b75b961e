//! The binary header.
//!
//! ```text
//!  2 code | 1 language | 2 version | 4 opaque | 4 flag
//!  4 remark length | remark | 4 bytes of all entries | entries: 2 key length | key | 4 value length | value
//! ```

use super::{EXT_FIELDS_MAX, Fixed, HeaderError, Span};
use crate::language::Language;

pub(super) fn decode(
    header: &[u8],
    ext: &mut Vec<(Span, Span)>,
    scratch: &mut String,
) -> Result<Fixed, HeaderError> {
    let mut read = Read { rest: header, scratch };
    let mut fixed = Fixed {
        code: i32::from(i16::from_be_bytes(read.array("code")?)),
        language: Language(u8::from_be_bytes(read.array("language")?)),
        version: i32::from(i16::from_be_bytes(read.array("version")?)),
        opaque: i32::from_be_bytes(read.array("opaque")?),
        flag: i32::from_be_bytes(read.array("flag")?),
        remark: Span::EMPTY,
    };
    if fixed.language.name().is_none() {
        fixed.language = Language::UNKNOWN;
    }
    let len = read.int_len("remark")?;
    fixed.remark = read.text("remark", len)?;
    let len = read.int_len("ext fields")?;
    read.rest = read.take("ext fields", len)?;
    while !read.rest.is_empty() {
        let len = i16::from_be_bytes(read.array("ext key")?);
        let len = usize::try_from(len).map_err(|_| HeaderError::Truncated { what: "ext key" })?;
        let key = read.text("ext key", len)?;
        let len = read.int_len("ext value")?;
        let value = read.text("ext value", len)?;
        if ext.len() == EXT_FIELDS_MAX {
            return Err(HeaderError::TooManyFields);
        }
        ext.push((key, value));
    }
    Ok(fixed)
}

struct Read<'h, 's> {
    rest: &'h [u8],
    scratch: &'s mut String,
}

impl<'h> Read<'h, '_> {
    fn take(&mut self, what: &'static str, len: usize) -> Result<&'h [u8], HeaderError> {
        let (head, rest) =
            self.rest.split_at_checked(len).ok_or(HeaderError::Truncated { what })?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderError> {
        let (head, rest) =
            self.rest.split_first_chunk::<N>().ok_or(HeaderError::Truncated { what })?;
        self.rest = rest;
        Ok(*head)
    }

    fn int_len(&mut self, what: &'static str) -> Result<usize, HeaderError> {
        let len = i32::from_be_bytes(self.array(what)?);
        usize::try_from(len).map_err(|_| HeaderError::Truncated { what })
    }

    /// Copies a text into the scratch: between length words the header as a whole is not UTF-8. Bytes
    /// that are not UTF-8 become replacement characters, as in Java.
    fn text(&mut self, what: &'static str, len: usize) -> Result<Span, HeaderError> {
        let bytes = self.take(what, len)?;
        let start = self.scratch.len();
        match std::str::from_utf8(bytes) {
            Ok(text) => self.scratch.push_str(text),
            Err(_) => self.scratch.push_str(&String::from_utf8_lossy(bytes)),
        }
        Ok(Span::scratch(start, self.scratch.len() - start))
    }
}
