//! A command that owns its parts: for clients, for requests that a broker sends, for slow paths.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::frame::{FrameRef, SerializeType};
use crate::header::encode::{Head, put_frame};
use crate::header::{ExtValue, FLAG_ONEWAY, FLAG_RESPONSE, HeaderDecoder, HeaderError, HeaderView};
use crate::language::{Language, VERSION};

/// A request or response with everything it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Request code, or response code in a response.
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's version.
    pub version: i32,
    /// Correlation id; a client sets it when it sends.
    pub opaque: i32,
    /// Flag bits, see [`crate::header::FLAG_RESPONSE`] and [`crate::header::FLAG_ONEWAY`].
    pub flag: i32,
    /// Error text or other text.
    pub remark: Option<String>,
    /// Ext fields in the order they are written; they are left out when there are none.
    pub ext: Vec<(Cow<'static, str>, String)>,
    /// The body; empty means none.
    pub body: Bytes,
    /// The form of the header.
    pub serialize: SerializeType,
}

impl Command {
    /// A request in JSON form, of language JAVA and this version.
    #[must_use]
    pub fn request(code: i32) -> Self {
        Command {
            code,
            language: Language::JAVA,
            version: VERSION,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: Vec::new(),
            body: Bytes::new(),
            serialize: SerializeType::Json,
        }
    }

    /// A request that must not be answered.
    #[must_use]
    pub fn oneway(code: i32) -> Self {
        Command { flag: FLAG_ONEWAY, ..Self::request(code) }
    }

    /// With one more ext field.
    #[must_use]
    pub fn with_ext(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        self.ext.push((name.into(), value.to_string()));
        self
    }

    /// With the ext fields of a typed header (see [`crate::headers`]).
    #[must_use]
    pub fn with_header(mut self, ext: &[(&'static str, ExtValue<'_>)]) -> Self {
        self.ext.extend(ext.iter().map(|(name, value)| {
            let value = match value {
                ExtValue::Str(text) => (*text).to_owned(),
                ExtValue::I64(number) => number.to_string(),
                ExtValue::Bool(yes) => yes.to_string(),
            };
            (Cow::Borrowed(*name), value)
        }));
        self
    }

    /// With a body.
    #[must_use]
    pub fn with_body(self, body: impl Into<Bytes>) -> Self {
        Command { body: body.into(), ..self }
    }

    /// An ext field by name: the last of that name, `None` when it is empty.
    #[must_use]
    pub fn ext(&self, name: &str) -> Option<&str> {
        let found = self.ext.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Is this a response?
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Must it not be answered?
    #[must_use]
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// Appends the whole frame. Returns false, with `out` as before, when the header is over 16 MiB or
    /// the frame over 2 GiB.
    #[must_use = "a command that cannot be framed has not been written"]
    pub fn try_encode(&self, out: &mut BytesMut) -> bool {
        let head = Head {
            serialize: self.serialize,
            code: self.code,
            language: self.language,
            version: self.version,
            opaque: self.opaque,
            flag: self.flag,
            remark: self.remark.as_deref(),
        };
        let fields = || self.ext.iter().map(|(k, v)| (k.as_ref(), ExtValue::Str(v)));
        let ext = (!self.ext.is_empty()).then(fields);
        let done = put_frame(out, &head, ext, self.body.len());
        if done {
            out.extend_from_slice(&self.body);
        }
        done
    }

    /// Appends the whole frame, or nothing when it is longer than any peer would take (see
    /// [`Command::try_encode`]).
    pub fn encode(&self, out: &mut BytesMut) {
        let _ = self.try_encode(out);
    }

    /// Reads a frame into an owned command; the body is copied.
    ///
    /// # Errors
    /// As [`HeaderDecoder::decode`].
    pub fn decode(frame: &FrameRef<'_>) -> Result<Command, HeaderError> {
        let mut decoder = HeaderDecoder::new();
        let view = decoder.decode(frame.serialize, frame.header)?;
        Ok(Self::from_view(&view, Bytes::copy_from_slice(frame.body)))
    }

    /// An owned copy of a header with its body.
    #[must_use]
    pub fn from_view(view: &HeaderView<'_>, body: Bytes) -> Command {
        Command {
            code: view.code(),
            language: view.language(),
            version: view.version(),
            opaque: view.opaque(),
            flag: view.flag(),
            remark: view.remark().map(str::to_owned),
            ext: view.ext_iter().map(|(k, v)| (Cow::Owned(k.to_owned()), v.to_owned())).collect(),
            body,
            serialize: view.serialize(),
        }
    }
}

/// The head of a request that is written straight into a buffer.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The form of the header.
    pub serialize: SerializeType,
    /// Request code.
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's version.
    pub version: i32,
    /// Correlation id.
    pub opaque: i32,
    /// Flag bits: 0, or [`crate::header::FLAG_ONEWAY`].
    pub flag: i32,
    /// Ext fields.
    pub ext: &'a [(&'a str, ExtValue<'a>)],
}

impl<'a> RequestHead<'a> {
    /// A JSON request of language JAVA and this version.
    #[must_use]
    pub fn new(code: i32, ext: &'a [(&'a str, ExtValue<'a>)]) -> Self {
        RequestHead {
            serialize: SerializeType::Json,
            code,
            language: Language::JAVA,
            version: VERSION,
            opaque: 0,
            flag: 0,
            ext,
        }
    }
}

/// Appends a request's frame up to its body; the caller then appends exactly `body_len` bytes. Allocates
/// only if `out` has to grow. Returns false, with `out` as before, when the header is over 16 MiB or the
/// frame over 2 GiB.
#[must_use = "a request that cannot be framed has not been written"]
pub fn encode_request(out: &mut BytesMut, request: &RequestHead<'_>, body_len: usize) -> bool {
    let head = Head {
        serialize: request.serialize,
        code: request.code,
        language: request.language,
        version: request.version,
        opaque: request.opaque,
        flag: request.flag,
        remark: None,
    };
    let ext = (!request.ext.is_empty()).then(|| request.ext.iter().copied());
    put_frame(out, &head, ext, body_len)
}
