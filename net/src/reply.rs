//! Encoding replies without allocating.

use bytes::{BufMut, BytesMut};

use crate::code::response;
use crate::frame::{FRAME_PREFIX_BYTES, SerializeType};
pub use crate::header::ExtValue;
use crate::header::encode::{Head, put_frame};
use crate::header::{FLAG_RESPONSE, HeaderView};
use crate::json::lex;
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

/// The answer to a stored message: the reply that a broker writes more often than all others together.
///
/// All answers of one broker differ in six values. In JSON, what stands between these is put together once and then copied; that is a third of
/// the work of [`encode_reply`], and byte for byte the same.
#[derive(Debug)]
pub struct StoredReplies {
    region: String,
    trace_on: bool,
    /// From the frame's prefix to the queue id, and so on: the text before each value, and behind the last.
    json: [Box<[u8]>; 7],
}

/// What one [`StoredReplies`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredReply<'a> {
    /// The form of the request.
    pub serialize: SerializeType,
    /// The request's correlation id.
    pub opaque: i32,
    /// The queue.
    pub queue_id: i32,
    /// The offset message id, or several joined by commas. Hexadecimal digits and commas: nothing that JSON would escape.
    pub msg_id: &'a str,
    /// Queue offset of the message, of a batch that of its first.
    pub queue_offset: i64,
    /// `memory`, `write` or `sync`.
    pub ack_level: &'static str,
    /// How many slaves hold it.
    pub ack_replicas: i32,
}

impl StoredReplies {
    /// The answers of a broker in `region` that lets clients trace or does not.
    #[must_use]
    pub fn new(region: &str, trace_on: bool) -> Self {
        let mut quoted = Vec::new();
        lex::put_string(&mut quoted, region);
        let mut head = vec![0; FRAME_PREFIX_BYTES];
        let code = response::SUCCESS;
        head.extend_from_slice(
            format!("{{\"code\":{code},\"extFields\":{{\"queueId\":\"").as_bytes(),
        );
        let mut id = format!("\",\"TRACE_ON\":\"{trace_on}\",\"MSG_REGION\":").into_bytes();
        id.extend_from_slice(&quoted);
        id.extend_from_slice(b",\"msgId\":\"");
        let opaque = format!("\"}},\"flag\":{FLAG_RESPONSE},\"language\":\"JAVA\",\"opaque\":");
        let tail = format!(",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{VERSION}}}");
        let json = [
            head,
            id,
            b"\",\"queueOffset\":\"".to_vec(),
            b"\",\"ackLevel\":\"".to_vec(),
            b"\",\"ackReplicas\":\"".to_vec(),
            opaque.into_bytes(),
            tail.into_bytes(),
        ];
        let json = json.map(Vec::into_boxed_slice);
        StoredReplies { region: region.to_owned(), trace_on, json }
    }

    /// Appends the whole frame. Allocates only if `out` has to grow.
    pub fn encode(&self, out: &mut BytesMut, reply: &StoredReply<'_>) {
        if reply.serialize != SerializeType::Json {
            return self.encode_fields(out, reply);
        }
        let start = out.len();
        let fixed: usize = self.json.iter().map(|part| part.len()).sum();
        // At most 20 digits for each of the four numbers.
        out.reserve(fixed + reply.msg_id.len() + reply.ack_level.len() + 80);
        let mut digits = itoa::Buffer::new();
        let [head, id, offset, level, replicas, opaque, tail] = &self.json;
        out.put_slice(head);
        out.put_slice(digits.format(reply.queue_id).as_bytes());
        out.put_slice(id);
        out.put_slice(reply.msg_id.as_bytes());
        out.put_slice(offset);
        out.put_slice(digits.format(reply.queue_offset).as_bytes());
        out.put_slice(level);
        out.put_slice(reply.ack_level.as_bytes());
        out.put_slice(replicas);
        out.put_slice(digits.format(reply.ack_replicas).as_bytes());
        out.put_slice(opaque);
        out.put_slice(digits.format(reply.opaque).as_bytes());
        out.put_slice(tail);
        // The ids of a batch that fits a frame are far below 24 bits.
        let header = out.len() - start - FRAME_PREFIX_BYTES;
        out[start..start + 4].copy_from_slice(&(header as u32 + 4).to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&(header as u32).to_be_bytes());
    }

    fn encode_fields(&self, out: &mut BytesMut, reply: &StoredReply<'_>) {
        let ext = self.fields(reply);
        let head = ReplyHead {
            serialize: reply.serialize,
            opaque: reply.opaque,
            code: response::SUCCESS,
            remark: None,
            ext: Some(&ext),
        };
        encode_reply(out, &head, 0);
    }

    /// The ext fields that Go and C++ clients read from every answer to a send, refusals too.
    #[must_use]
    pub fn refusal_fields(&self) -> [(&'static str, ExtValue<'_>); 2] {
        [("MSG_REGION", ExtValue::Str(&self.region)), ("TRACE_ON", ExtValue::Bool(self.trace_on))]
    }

    /// The ext fields, for a reply with another code or with a remark.
    #[must_use]
    pub fn fields<'a>(&'a self, reply: &StoredReply<'a>) -> [(&'static str, ExtValue<'a>); 7] {
        [
            ("queueId", ExtValue::I64(i64::from(reply.queue_id))),
            ("TRACE_ON", ExtValue::Bool(self.trace_on)),
            ("MSG_REGION", ExtValue::Str(&self.region)),
            ("msgId", ExtValue::Str(reply.msg_id)),
            ("queueOffset", ExtValue::I64(reply.queue_offset)),
            ("ackLevel", ExtValue::Str(reply.ack_level)),
            ("ackReplicas", ExtValue::I64(i64::from(reply.ack_replicas))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_stored_message_is_what_the_general_encoder_writes() {
        let ids = "7F00000100002A9F0000000000000400,7F00000100002A9F0000000000000500";
        let numbers = [(0, 0, 0), (7, -1, 1), (i32::MAX, i32::MIN, 3), (1, i32::MAX, 0)];
        for region in ["DefaultRegion", "", "a\"\\b\u{1}é"] {
            for (queue_id, opaque, ack_replicas) in numbers {
                for serialize in [SerializeType::Json, SerializeType::Binary] {
                    let replies = StoredReplies::new(region, queue_id == 7);
                    let (msg_id, ack_level) = (&ids[..32 + opaque as usize % 2 * 33], "write");
                    let queue_offset = i64::from(opaque) << 31;
                    let reply = StoredReply {
                        serialize,
                        opaque,
                        queue_id,
                        msg_id,
                        queue_offset,
                        ack_level,
                        ack_replicas,
                    };
                    let mut whole = BytesMut::from(&b"before"[..]);
                    replies.encode(&mut whole, &reply);
                    let mut general = BytesMut::from(&b"before"[..]);
                    replies.encode_fields(&mut general, &reply);
                    assert_eq!(whole, general);
                }
            }
        }
    }
}
