//! Reading: a document as a tree that borrows from its text.

use std::borrow::Cow;

use thiserror::Error;

use super::Writer;
use super::lex::{self, StringFault};

/// A JSON value in fastjson's wider sense: the keys of an object may be numbers or objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`; as a field the same as an absent one.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string, borrowed unless it had escapes.
    Str(Cow<'a, str>),
    /// An array.
    Array(Vec<Value<'a>>),
    /// An object's pairs in the order they came; keys are strings, numbers or objects.
    Object(Vec<(Value<'a>, Value<'a>)>),
}

/// Why a text is not a JSON document.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("JSON is malformed at byte {at}: {what}")]
pub struct JsonError {
    /// Position in the text.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// How much a document may cost. In the worst shape (objects of one pair) a value takes about 150 bytes, so
/// `values` bounds the memory that a peer can make us spend on a frame full of brackets.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deepest nesting.
    pub depth: u32,
    /// Most values, keys counted only when they are objects.
    pub values: usize,
}

impl Limits {
    /// For what any client may send: heartbeats of 5,000 subscriptions, locks of 10,000 queues. At most
    /// about 10 MiB.
    pub const SMALL: Limits = Limits { depth: 64, values: 64 * 1024 };
    /// For tables between brokers, name servers and tools: 100,000 topics. At most about 160 MiB.
    pub const LARGE: Limits = Limits { depth: 64, values: 1024 * 1024 };
    /// For our own files.
    pub const TRUSTED: Limits = Limits { depth: 64, values: usize::MAX };
}

impl<'a> Value<'a> {
    /// Reads a document within [`Limits::SMALL`].
    ///
    /// # Errors
    /// Malformed text, or a limit.
    pub fn parse(text: &'a str) -> Result<Value<'a>, JsonError> {
        Self::parse_within(text, Limits::SMALL)
    }

    /// Reads a document. Beyond JSON it takes what fastjson takes: single quotes, bare keys, numbers and
    /// objects as keys, a comma before a closing bracket.
    ///
    /// # Errors
    /// Malformed text, or a limit.
    pub fn parse_within(text: &'a str, limits: Limits) -> Result<Value<'a>, JsonError> {
        let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, limits };
        let value = parser.value(0)?;
        match parser.peek() {
            0 if parser.at >= parser.bytes.len() => Ok(value),
            _ => Err(parser.fault("text after the document's end")),
        }
    }

    /// The field `name` of an object: the last of that name, `None` when it is null or this is no object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        let found =
            self.pairs().iter().rev().find(|(key, _)| matches!(key, Value::Str(k) if k == name));
        found.map(|(_, value)| value).filter(|value| **value != Value::Null)
    }

    /// The pairs of an object, none of anything else.
    #[must_use]
    pub fn pairs(&self) -> &[(Value<'a>, Value<'a>)] {
        if let Value::Object(pairs) = self { pairs } else { &[] }
    }

    /// The elements of an array, none of anything else.
    #[must_use]
    pub fn items(&self) -> &[Value<'a>] {
        if let Value::Array(items) = self { items } else { &[] }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(text) = self { Some(text) } else { None }
    }

    /// A scalar as text, as fastjson converts it into a String field.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        match self {
            Value::Str(text) => Some(text.clone().into_owned()),
            Value::Int(number) => Some(number.to_string()),
            Value::Float(number) => Some(super::java_double(*number)),
            Value::Bool(yes) => Some(yes.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// A whole number: also one written as a string (C++ clients), or a float without a fraction.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Str(text) => text.trim().parse().ok(),
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => {
                Some(*number as i64)
            }
            _ => None,
        }
    }

    /// As [`Value::as_i64`], within 32 bits.
    #[must_use]
    pub fn as_i32(&self) -> Option<i32> {
        self.as_i64().and_then(|number| number.try_into().ok())
    }

    /// A number as a double.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            Value::Str(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// A boolean: also `"true"` and `"false"` in any case, and 1 and 0.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(yes) => Some(*yes),
            Value::Int(number) => Some(*number == 1),
            Value::Str(text) if text.eq_ignore_ascii_case("true") => Some(true),
            Value::Str(text) if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }
    }

    /// Writes the value.
    pub fn write(&self, w: &mut Writer) {
        match self {
            Value::Null => w.null(),
            Value::Bool(yes) => w.bool(*yes),
            Value::Int(number) => w.i64(*number),
            Value::Float(number) => w.f64(*number),
            Value::Str(text) => w.str(text),
            Value::Array(items) => {
                w.begin_array();
                items.iter().for_each(|item| item.write(w));
                w.end_array();
            }
            Value::Object(pairs) => {
                w.begin_object();
                for (key, value) in pairs {
                    match key {
                        Value::Str(name) => w.key(name),
                        Value::Int(number) => w.key_i64(*number),
                        other => w.key_with(|w| other.write(w)),
                    }
                    value.write(w);
                }
                w.end_object();
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    limits: Limits,
}

impl<'a> Parser<'a> {
    fn fault(&self, what: &'static str) -> JsonError {
        JsonError { at: self.at, what }
    }

    /// The next byte that is not space; 0 at the end, which no rule accepts.
    fn peek(&mut self) -> u8 {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn value(&mut self, depth: u32) -> Result<Value<'a>, JsonError> {
        if self.limits.values == 0 {
            return Err(self.fault("too many values"));
        }
        self.limits.values -= 1;
        match self.peek() {
            quote @ (b'"' | b'\'') => self.string(quote).map(Value::Str),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            _ => match self.word()? {
                "null" => Ok(Value::Null),
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                word => number(word).ok_or_else(|| self.fault("expected a value")),
            },
        }
    }

    fn open(&mut self, depth: u32) -> Result<(), JsonError> {
        if depth == self.limits.depth {
            return Err(self.fault("nested too deeply"));
        }
        self.at += 1;
        Ok(())
    }

    fn object(&mut self, depth: u32) -> Result<Value<'a>, JsonError> {
        self.open(depth)?;
        let mut pairs = Vec::new();
        loop {
            let key = match self.peek() {
                b'}' => break,
                quote @ (b'"' | b'\'') => Value::Str(self.string(quote)?),
                b'{' | b'[' => self.value(depth + 1)?,
                _ => {
                    let word = self.word()?;
                    number(word).unwrap_or(Value::Str(Cow::Borrowed(word)))
                }
            };
            if self.peek() != b':' {
                return Err(self.fault("expected a colon after a key"));
            }
            self.at += 1;
            pairs.push((key, self.value(depth + 1)?));
            self.comma_or(b'}')?;
        }
        self.at += 1;
        Ok(Value::Object(pairs))
    }

    fn array(&mut self, depth: u32) -> Result<Value<'a>, JsonError> {
        self.open(depth)?;
        let mut items = Vec::new();
        while self.peek() != b']' {
            items.push(self.value(depth + 1)?);
            self.comma_or(b']')?;
        }
        self.at += 1;
        Ok(Value::Array(items))
    }

    fn comma_or(&mut self, close: u8) -> Result<(), JsonError> {
        match self.peek() {
            b',' => self.at += 1,
            byte if byte == close => {}
            _ => return Err(self.fault("expected a comma or a closing bracket")),
        }
        Ok(())
    }

    fn string(&mut self, quote: u8) -> Result<Cow<'a, str>, JsonError> {
        let fault = |at, fault| JsonError {
            at,
            what: match fault {
                StringFault::Open => "string without a closing quote",
                StringFault::Escape => "string with an unknown escape",
            },
        };
        let from = self.at + 1;
        let (end, escaped) =
            lex::string_end(self.bytes, from, quote).map_err(|f| fault(from, f))?;
        // Both ends are ASCII quotes, so the cut is at character boundaries.
        let raw = self.text.get(from..end).unwrap_or_default();
        self.at = end + 1;
        if !escaped {
            return Ok(Cow::Borrowed(raw));
        }
        let mut text = String::with_capacity(raw.len());
        lex::unescape_into(raw, &mut text).map_err(|f| fault(from, f))?;
        Ok(Cow::Owned(text))
    }

    /// A run of what numbers, words and bare keys are made of.
    fn word(&mut self) -> Result<&'a str, JsonError> {
        let from = self.at;
        let is_part = |b: &u8| b.is_ascii_alphanumeric() || b"+-._$".contains(b);
        while self.bytes.get(self.at).is_some_and(is_part) {
            self.at += 1;
        }
        let word = self.text.get(from..self.at).unwrap_or_default();
        if word.is_empty() { Err(self.fault("expected a value or a key")) } else { Ok(word) }
    }
}

/// A number; letters other than an exponent (`inf`, `nan`) are none.
fn number<'a>(word: &str) -> Option<Value<'a>> {
    if let Ok(number) = word.parse() {
        return Some(Value::Int(number));
    }
    let plain = word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    word.parse().ok().filter(|_| plain).map(Value::Float)
}
