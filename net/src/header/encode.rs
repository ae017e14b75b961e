//! Writing a frame up to its body, straight into an output buffer.

use bytes::{BufMut, BytesMut};

use crate::frame::{FRAME_PREFIX_BYTES, HEADER_BYTES_MAX, SerializeType};
use crate::json::lex;
use crate::language::Language;

/// A value of the ext fields. It leaves as text in both header forms: stock Go and C++ clients read
/// nothing but strings there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtValue<'a> {
    /// Text.
    Str(&'a str),
    /// A whole number, of any Java integer type.
    I64(i64),
    /// `true` or `false`.
    Bool(bool),
}

/// The fixed fields of a header.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) serialize: SerializeType,
    pub(crate) code: i32,
    pub(crate) language: Language,
    pub(crate) version: i32,
    pub(crate) opaque: i32,
    pub(crate) flag: i32,
    pub(crate) remark: Option<&'a str>,
}

/// Appends prefix and header of a frame whose body has `body_len` bytes.
///
/// Returns false, with `out` as before, when the header is over 24 bits or the frame over 31.
pub(crate) fn put_frame<'k>(
    out: &mut BytesMut,
    head: &Head<'_>,
    ext: Option<impl Iterator<Item = (&'k str, ExtValue<'k>)>>,
    body_len: usize,
) -> bool {
    let start = out.len();
    out.put_bytes(0, FRAME_PREFIX_BYTES);
    match head.serialize {
        SerializeType::Json => put_json(out, head, ext),
        SerializeType::Binary => put_binary(out, head, ext),
    }
    let header = out.len() - start - FRAME_PREFIX_BYTES;
    let total = i32::try_from(body_len.saturating_add(header + 4));
    let (true, Ok(total)) = (header <= HEADER_BYTES_MAX, total) else {
        out.truncate(start);
        return false;
    };
    out[start..start + 4].copy_from_slice(&total.to_be_bytes());
    let word = (head.serialize as u32) << 24 | header as u32;
    out[start + 4..start + 8].copy_from_slice(&word.to_be_bytes());
    true
}

fn put_json<'k>(
    out: &mut BytesMut,
    head: &Head<'_>,
    ext: Option<impl Iterator<Item = (&'k str, ExtValue<'k>)>>,
) {
    let mut digits = itoa::Buffer::new();
    out.put_slice(b"{\"code\":");
    out.put_slice(digits.format(head.code).as_bytes());
    if let Some(ext) = ext {
        out.put_slice(b",\"extFields\":{");
        let mut first = true;
        for (name, value) in ext {
            if !first {
                out.put_u8(b',');
            }
            first = false;
            lex::put_string(out, name);
            out.put_u8(b':');
            match value {
                ExtValue::Str(text) => lex::put_string(out, text),
                ExtValue::I64(number) => {
                    out.put_u8(b'"');
                    out.put_slice(digits.format(number).as_bytes());
                    out.put_u8(b'"');
                }
                ExtValue::Bool(true) => out.put_slice(b"\"true\""),
                ExtValue::Bool(false) => out.put_slice(b"\"false\""),
            }
        }
        out.put_u8(b'}');
    }
    out.put_slice(b",\"flag\":");
    out.put_slice(digits.format(head.flag).as_bytes());
    if let Some(language) = head.language.name() {
        out.put_slice(b",\"language\":\"");
        out.put_slice(language.as_bytes());
        out.put_u8(b'"');
    }
    out.put_slice(b",\"opaque\":");
    out.put_slice(digits.format(head.opaque).as_bytes());
    if let Some(remark) = head.remark {
        out.put_slice(b",\"remark\":");
        lex::put_string(out, remark);
    }
    out.put_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    out.put_slice(digits.format(head.version).as_bytes());
    out.put_u8(b'}');
}

/// Code and version are 16 bits wide in this form: a command that does not fit leaves truncated, as in
/// stock; no known code or version comes near.
fn put_binary<'k>(
    out: &mut BytesMut,
    head: &Head<'_>,
    ext: Option<impl Iterator<Item = (&'k str, ExtValue<'k>)>>,
) {
    let mut digits = itoa::Buffer::new();
    out.put_i16(head.code as i16);
    out.put_u8(head.language.0);
    out.put_i16(head.version as i16);
    out.put_i32(head.opaque);
    out.put_i32(head.flag);
    let remark = head.remark.unwrap_or_default();
    out.put_u32(remark.len() as u32);
    out.put_slice(remark.as_bytes());
    let len_at = out.len();
    out.put_u32(0);
    for (name, value) in ext.into_iter().flatten() {
        let value = match value {
            ExtValue::Str(text) => text,
            ExtValue::I64(number) => digits.format(number),
            ExtValue::Bool(true) => "true",
            ExtValue::Bool(false) => "false",
        };
        // A name that its length word cannot hold could not be read back: leave it out.
        let Ok(name_len) = i16::try_from(name.len()) else { continue };
        out.put_i16(name_len);
        out.put_slice(name.as_bytes());
        out.put_u32(value.len() as u32);
        out.put_slice(value.as_bytes());
    }
    let len = (out.len() - len_at - 4) as u32;
    out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
}
