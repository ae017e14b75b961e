//! Encoding replies without allocating.

use bytes::BytesMut;

use crate::code::response;
use crate::frame::SerializeType;
pub use crate::header::ExtValue;
use crate::header::encode::{Head, put_frame};
use crate::header::{FLAG_RESPONSE, HeaderView};
use crate::language::{Language, VERSION};

/// The head of a reply: what a response header says.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead<'a> {
    /// The form of the request, which the reply repeats.
    pub serialize: SerializeType,
    /// The request's correlation id.
    pub opaque: i32,
    /// Response code, see [`crate::code::response`].
    pub code: i32,
    /// Error text, or the status text of a pull.
    pub remark: Option<&'a str>,
    /// `None` leaves the ext fields out, `Some(&[])` writes `{}`. Successful sends and pulls must have
    /// them: Java and C++ clients dereference them unasked.
    pub ext: Option<&'a [(&'a str, ExtValue<'a>)]>,
}

impl<'a> ReplyHead<'a> {
    /// The reply to `request` with `code`, nothing else set.
    #[must_use]
    pub fn to(request: &HeaderView<'_>, code: i32) -> Self {
        ReplyHead {
            serialize: request.serialize(),
            opaque: request.opaque(),
            code,
            remark: None,
            ext: None,
        }
    }

    /// With a remark.
    #[must_use]
    pub fn remark(self, remark: &'a str) -> Self {
        ReplyHead { remark: Some(remark), ..self }
    }

    /// With ext fields.
    #[must_use]
    pub fn ext(self, ext: &'a [(&'a str, ExtValue<'a>)]) -> Self {
        ReplyHead { ext: Some(ext), ..self }
    }
}

/// Appends the frame up to its body; the caller then appends exactly `body_len` bytes.
///
/// Language is JAVA and version [`VERSION`]. Allocates only if `out` has to grow. Frames are not held to
/// the receiver's frame limit here, as in stock: bound the body where it is gathered. A header that cannot
/// be framed (over 16 MiB) is replaced by a SYSTEM_ERROR that says so.
pub fn encode_reply(out: &mut BytesMut, reply: &ReplyHead<'_>, body_len: usize) {
    let head = Head {
        serialize: reply.serialize,
        code: reply.code,
        language: Language::JAVA,
        version: VERSION,
        opaque: reply.opaque,
        flag: FLAG_RESPONSE,
        remark: reply.remark,
    };
    if !put_frame(out, &head, reply.ext.map(|ext| ext.iter().copied()), body_len) {
        let remark = Some("the reply's header is longer than 16 MiB");
        let head = Head { code: response::SYSTEM_ERROR, remark, ..head };
        put_frame(out, &head, NO_EXT, body_len);
    }
}

/// "No ext fields", with a type.
const NO_EXT: Option<std::iter::Empty<(&str, ExtValue<'_>)>> = None;

/// Appends a whole reply with a body that is already at hand.
pub fn encode_reply_with_body(out: &mut BytesMut, reply: &ReplyHead<'_>, body: &[u8]) {
    encode_reply(out, reply, body.len());
    out.extend_from_slice(body);
}
