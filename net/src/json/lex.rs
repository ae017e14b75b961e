//! The parts of JSON reading and writing that headers and bodies share: finding a string's end,
//! undoing and doing escapes.

use bytes::BufMut;

use crate::scan::{self, BLOCK};

/// Why a string cannot be read; the caller knows where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StringFault {
    /// No closing quote.
    Open,
    /// A backslash followed by something that is no escape.
    Escape,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Marks the high bit of each zero byte; exact up to and including the first one.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// Position of the first `quote` or backslash at or after `from`. Eight bytes a step: property texts are
/// long, and this is the inner loop of every header.
#[inline]
pub(crate) fn find_quote_or_backslash(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    let mut at = from;
    let quotes = ONES * u64::from(quote);
    let slashes = ONES * u64::from(b'\\');
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let hits = zero_bytes(word ^ quotes) | zero_bytes(word ^ slashes);
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|b| *b == quote || *b == b'\\').map(|found| at + found)
}

/// Finds the end of the string whose opening `quote` stands just before `from`.
///
/// Returns the position of the closing quote and whether there are escapes inside.
#[inline]
pub(crate) fn string_end(
    bytes: &[u8],
    from: usize,
    quote: u8,
) -> Result<(usize, bool), StringFault> {
    let mut at = from;
    let mut escaped = false;
    loop {
        let hit = find_quote_or_backslash(bytes, at, quote).ok_or(StringFault::Open)?;
        if bytes[hit] == quote {
            return Ok((hit, escaped));
        }
        escaped = true;
        at = hit + 2;
    }
}

/// Positions of double quotes and backslashes, a word of bits for 64 bytes, found when the reader gets there: see [`scan`].
pub(crate) struct Marks {
    block: usize,
    bits: u64,
}

impl Marks {
    pub(crate) const fn new() -> Self {
        Marks { block: usize::MAX, bits: 0 }
    }

    /// As [`string_end`] of a double quote.
    #[inline]
    pub(crate) fn string_end(
        &mut self,
        bytes: &[u8],
        from: usize,
    ) -> Result<(usize, bool), StringFault> {
        let mut at = from;
        let mut escaped = false;
        loop {
            let hit = self.next(bytes, at).ok_or(StringFault::Open)?;
            if bytes[hit] == b'"' {
                return Ok((hit, escaped));
            }
            escaped = true;
            at = hit + 2;
        }
    }

    #[inline]
    fn next(&mut self, bytes: &[u8], from: usize) -> Option<usize> {
        if from / BLOCK != self.block {
            self.load(bytes, from / BLOCK);
        }
        let ahead = self.bits >> (from % BLOCK);
        if ahead != 0 {
            return Some(from + ahead.trailing_zeros() as usize);
        }
        while (self.block + 1) * BLOCK < bytes.len() {
            self.load(bytes, self.block + 1);
            if self.bits != 0 {
                return Some(self.block * BLOCK + self.bits.trailing_zeros() as usize);
            }
        }
        None
    }

    fn load(&mut self, bytes: &[u8], block: usize) {
        self.block = block;
        self.bits =
            scan::with_block(bytes, block * BLOCK, 0, |block| scan::either(block, b'"', b'\\'));
    }
}

/// Appends `raw`, the text between the quotes, to `out` with its escapes undone.
///
/// Accepts what fastjson accepts: the JSON escapes, `\'`, `\v`, `\0` to `\7` and `\xHH`. A lone surrogate
/// becomes `?`, as it does when Java encodes such a string.
pub(crate) fn unescape_into(raw: &str, out: &mut String) -> Result<(), StringFault> {
    // What comes out is never longer than what went in: one growth at most.
    out.reserve(raw.len());
    let mut rest = raw;
    while let Some(slash) = find_quote_or_backslash(rest.as_bytes(), 0, b'\\') {
        let (plain, tail) = rest.split_at(slash);
        out.push_str(plain);
        if let Some((separator, after)) = separator(tail) {
            out.push(separator);
            rest = after;
            continue;
        }
        let mut chars = tail[1..].chars();
        let kind = chars.next().ok_or(StringFault::Escape)?;
        rest = chars.as_str();
        match kind {
            'u' => {
                let (ch, after) = unicode(rest).ok_or(StringFault::Escape)?;
                out.push(ch);
                rest = after;
            }
            'x' => {
                let (unit, after) = hex(rest, 2).ok_or(StringFault::Escape)?;
                out.push(char::from(unit as u8));
                rest = after;
            }
            _ => out.push(simple(kind).ok_or(StringFault::Escape)?),
        }
    }
    out.push_str(rest);
    Ok(())
}

/// The escapes that every message has: the separators of its properties.
#[inline]
fn separator(tail: &str) -> Option<(char, &str)> {
    let unit = tail.as_bytes().first_chunk::<6>()?;
    let ch = match unit {
        br"\u0001" => '\u{1}',
        br"\u0002" => '\u{2}',
        _ => return None,
    };
    Some((ch, tail.get(6..)?))
}

fn simple(kind: char) -> Option<char> {
    Some(match kind {
        '"' | '\\' | '/' | '\'' => kind,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' | 'F' => '\u{c}',
        'v' => '\u{b}',
        '0'..='7' => char::from(kind as u8 - b'0'),
        _ => return None,
    })
}

fn hex(text: &str, digits: usize) -> Option<(u32, &str)> {
    let (head, rest) = text.split_at_checked(digits)?;
    let mut unit = 0;
    for byte in head.bytes() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        unit = unit << 4 | u32::from(digit);
    }
    Some((unit, rest))
}

/// The character of the escape whose digits start `text`, joined with a low surrogate that follows.
fn unicode(text: &str) -> Option<(char, &str)> {
    let (unit, rest) = hex(text, 4)?;
    if let Some(ch) = char::from_u32(unit) {
        return Some((ch, rest));
    }
    if (0xD800..0xDC00).contains(&unit)
        && let Some((low, after)) = rest.strip_prefix("\\u").and_then(|rest| hex(rest, 4))
        && (0xDC00..0xE000).contains(&low)
    {
        let ch = char::from_u32(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00))?;
        return Some((ch, after));
    }
    Some(('?', rest))
}

/// How a byte leaves in a string: 0 as it is, else the letter after the backslash (`u` = four digits).
const ESCAPES: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut at = 0;
    while at < 0x20 {
        table[at] = b'u';
        at += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0A] = b'n';
    table[0x0C] = b'f';
    table[0x0D] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Appends `text` as a quoted JSON string; non-ASCII leaves as raw UTF-8.
#[inline]
pub(crate) fn put_string(out: &mut impl BufMut, text: &str) {
    out.put_u8(b'"');
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(at) = find_escaped(bytes, from) {
        out.put_slice(&bytes[from..at]);
        put_escape(out, bytes[at], ESCAPES[usize::from(bytes[at])]);
        from = at + 1;
    }
    out.put_slice(&bytes[from..]);
    out.put_u8(b'"');
}

/// Position of the first byte at or after `from` that does not leave as it is. Eight bytes a step.
#[inline]
fn find_escaped(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quotes = zero_bytes(word ^ (ONES * u64::from(b'"')));
        let slashes = zero_bytes(word ^ (ONES * u64::from(b'\\')));
        // Below 0x20: no bit of the upper three set.
        let controls = zero_bytes(word & (ONES * 0xE0));
        let hits = quotes | slashes | controls;
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|b| ESCAPES[usize::from(*b)] != 0).map(|found| at + found)
}

fn put_escape(out: &mut impl BufMut, byte: u8, escape: u8) {
    if escape == b'u' {
        put_unit(out, u16::from(byte));
    } else {
        out.put_slice(&[b'\\', escape]);
    }
}

/// Appends one UTF-16 unit as an escape with upper-case digits.
pub(crate) fn put_unit(out: &mut impl BufMut, unit: u16) {
    let digit = |shift: u16| HEX[usize::from(unit >> shift & 0xF)];
    out.put_slice(&[b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescape(raw: &str) -> Result<String, StringFault> {
        let mut out = String::new();
        unescape_into(raw, &mut out).map(|()| out)
    }

    #[test]
    fn the_end_is_found_at_every_length_and_position() {
        for len in 0..40 {
            let mut text = vec![b'x'; len];
            text.push(b'"');
            text.extend_from_slice(b"tail\"");
            assert_eq!(string_end(&text, 0, b'"'), Ok((len, false)));
            assert_eq!(string_end(&text[..len], 0, b'"'), Err(StringFault::Open));
        }
        assert_eq!(string_end(br#"a\"b"c"#, 0, b'"'), Ok((4, true)));
        assert_eq!(string_end(br#"a\"#, 0, b'"'), Err(StringFault::Open));
        assert_eq!(string_end("é\u{80}ÿ\"".as_bytes(), 0, b'"'), Ok((6, false)));
    }

    #[test]
    fn marks_find_what_a_plain_search_finds() {
        // Every byte value next to every other, quotes and backslashes at all distances.
        let mut text = Vec::new();
        for n in 0u32..3000 {
            let byte = (n.wrapping_mul(2_654_435_761) >> 13) as u8;
            text.push(match n % 7 {
                0 => b'"',
                1 if n % 5 == 0 => b'\\',
                _ if byte == b'"' => b'#',
                _ => byte,
            });
            text.extend(std::iter::repeat_n(b'!', (n % 90) as usize / (1 + n as usize % 11)));
        }
        for len in [0, 1, 63, 64, 65, 127, 128, 1000, text.len()] {
            let mut marks = Marks::new();
            let mut from = 0;
            while from <= len + 2 {
                let want = string_end(&text[..len], from, b'"');
                assert_eq!(marks.string_end(&text[..len], from), want, "{len} {from}");
                from += 1 + from % 3;
            }
        }
    }

    #[test]
    fn escapes_of_fastjson_are_undone() {
        assert_eq!(unescape(r#"K\u0001v\u0002\n\t\\\"\/\'"#).unwrap(), "K\u{1}v\u{2}\n\t\\\"/'");
        assert_eq!(unescape(r"\x41\v\0\7").unwrap(), "A\u{b}\u{0}\u{7}");
        assert_eq!(unescape(r"\uD83D\uDE00!").unwrap(), "😀!");
        assert_eq!(unescape(r"\uD83Dx\uDE00").unwrap(), "?x?");
        for bad in [r"\u12", r"\u12G4", r"\q", r"\u+123", r"\xé9"] {
            assert_eq!(unescape(bad), Err(StringFault::Escape), "{bad}");
        }
    }

    #[test]
    fn what_is_escaped_comes_back() {
        let all: String =
            (0u32..0x300).filter_map(char::from_u32).chain("標籤😀".chars()).collect();
        let mut out = Vec::new();
        put_string(&mut out, &all);
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("\\u0001") && out.contains("\\u001F") && out.contains("標籤"));
        assert_eq!(unescape(&out[1..out.len() - 1]).unwrap(), all);
    }
}
