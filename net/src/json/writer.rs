//! Writing, byte for byte as fastjson does.

use super::java_double;
use super::lex;

/// Integers beyond this are written as strings in the browser style.
const SAFE_INT_MAX: u64 = 1 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Browser,
    Pretty,
}

/// Writes one document into memory.
///
/// Commas and colons come by themselves; the order of keys is the caller's (stock writes the fields of
/// beans sorted by name, without those that are null). Calls must nest properly: that is the caller's
/// part, and a test of each body holds it.
#[derive(Clone, Debug)]
pub struct Writer {
    out: Vec<u8>,
    style: Style,
    depth: usize,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// fastjson's plain dialect: no white space, number keys bare, non-ASCII raw.
    #[must_use]
    pub fn new() -> Self {
        Writer { out: Vec::with_capacity(256), style: Style::Plain, depth: 0 }
    }

    /// fastjson's `BrowserCompatible` dialect, strict JSON: keys quoted, non-ASCII as escapes, `/` as
    /// `\/`, integers beyond 2^53 as strings. Used by the strict form of route data alone.
    #[must_use]
    pub fn browser() -> Self {
        Writer { style: Style::Browser, ..Self::new() }
    }

    /// As files on disk: one tab per level, number keys bare and on the line of their brace.
    #[must_use]
    pub fn pretty() -> Self {
        Writer { style: Style::Pretty, ..Self::new() }
    }

    /// The document.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Opens an object.
    pub fn begin_object(&mut self) {
        self.open(b'{');
    }

    /// Closes an object.
    pub fn end_object(&mut self) {
        self.close(b'{', b'}');
    }

    /// Opens an array.
    pub fn begin_array(&mut self) {
        self.open(b'[');
    }

    /// Closes an array.
    pub fn end_array(&mut self) {
        self.close(b'[', b']');
    }

    /// The next pair's key.
    pub fn key(&mut self, name: &str) {
        self.separate(true);
        self.text(name);
        self.out.push(b':');
    }

    /// The next pair's key, a number: bare, but quoted in the browser style.
    pub fn key_i64(&mut self, number: i64) {
        self.separate(false);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        if self.style == Style::Browser {
            self.out.push(b'"');
        }
        self.out.extend_from_slice(digits);
        if self.style == Style::Browser {
            self.out.push(b'"');
        }
        self.out.push(b':');
    }

    /// The next pair's key, whatever `key` writes: the objects that stock uses as keys.
    pub fn key_with(&mut self, key: impl FnOnce(&mut Writer)) {
        key(self);
        self.out.push(b':');
    }

    /// A string.
    pub fn str(&mut self, text: &str) {
        self.separate(true);
        self.text(text);
    }

    /// A whole number.
    pub fn i64(&mut self, number: i64) {
        self.separate(true);
        let quoted = self.style == Style::Browser && number.unsigned_abs() > SAFE_INT_MAX;
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        if quoted {
            self.out.push(b'"');
        }
        self.out.extend_from_slice(digits);
        if quoted {
            self.out.push(b'"');
        }
    }

    /// A double in Java's text form; what is not finite becomes null.
    pub fn f64(&mut self, number: f64) {
        self.separate(true);
        if number.is_finite() {
            self.out.extend_from_slice(java_double(number).as_bytes());
        } else {
            self.out.extend_from_slice(b"null");
        }
    }

    /// A boolean.
    pub fn bool(&mut self, yes: bool) {
        self.separate(true);
        self.out.extend_from_slice(if yes { b"true" } else { b"false" });
    }

    /// `null`. Stock leaves such fields out.
    pub fn null(&mut self) {
        self.separate(true);
        self.out.extend_from_slice(b"null");
    }

    /// A pair with a string.
    pub fn field_str(&mut self, name: &str, text: &str) {
        self.key(name);
        self.str(text);
    }

    /// A pair with a string, left out when there is none.
    pub fn field_opt_str(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.field_str(name, text);
        }
    }

    /// A pair with a whole number.
    pub fn field_i64(&mut self, name: &str, number: impl Into<i64>) {
        self.key(name);
        self.i64(number.into());
    }

    /// A pair with a double.
    pub fn field_f64(&mut self, name: &str, number: f64) {
        self.key(name);
        self.f64(number);
    }

    /// A pair with a boolean.
    pub fn field_bool(&mut self, name: &str, yes: bool) {
        self.key(name);
        self.bool(yes);
    }

    /// A pair with an array of strings.
    pub fn field_strs<S: AsRef<str>>(&mut self, name: &str, texts: impl IntoIterator<Item = S>) {
        self.key(name);
        self.begin_array();
        for text in texts {
            self.str(text.as_ref());
        }
        self.end_array();
    }

    fn open(&mut self, bracket: u8) {
        self.separate(true);
        self.out.push(bracket);
        self.depth += 1;
    }

    fn close(&mut self, open: u8, bracket: u8) {
        self.depth = self.depth.saturating_sub(1);
        if self.style == Style::Pretty && self.out.last() != Some(&open) {
            self.new_line();
        }
        self.out.push(bracket);
    }

    /// A comma where one is due: strings end with a quote, so the last byte alone tells where we are.
    fn separate(&mut self, on_new_line: bool) {
        match self.out.last() {
            None | Some(b':') => return,
            Some(b'{' | b'[') => {}
            Some(_) => self.out.push(b','),
        }
        if self.style == Style::Pretty && on_new_line {
            self.new_line();
        }
    }

    fn new_line(&mut self) {
        self.out.push(b'\n');
        self.out.resize(self.out.len() + self.depth, b'\t');
    }

    fn text(&mut self, text: &str) {
        if self.style != Style::Browser {
            return lex::put_string(&mut self.out, text);
        }
        self.out.push(b'"');
        for unit in text.encode_utf16() {
            match u8::try_from(unit) {
                Ok(b'/') => self.out.extend_from_slice(b"\\/"),
                Ok(byte) if byte < 0x7F => {
                    // One ASCII character at a time through the common table: routes are short.
                    let mut one = [0; 4];
                    let mut quoted = Vec::with_capacity(8);
                    lex::put_string(&mut quoted, char::from(byte).encode_utf8(&mut one));
                    self.out.extend_from_slice(&quoted[1..quoted.len() - 1]);
                }
                _ => lex::put_unit(&mut self.out, unit),
            }
        }
        self.out.push(b'"');
    }
}
