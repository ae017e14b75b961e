//! What a request is answered with, and how it gets onto the wire.

use std::rc::Rc;

use ringmq_net::body::BodyError;
use ringmq_net::code::response;
use ringmq_net::frame::{FRAME_BYTES_MAX, SerializeType};
use ringmq_net::header::{ExtValue, HeaderView};
use ringmq_net::headers::FieldError;
use ringmq_net::reply::{ReplyHead, encode_reply};
use ringmq_net::server::Conn;
use smallvec::SmallVec;

use super::table::TableFull;

/// A response's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Response code.
    pub code: i32,
    /// Error text.
    pub remark: Option<String>,
    /// Ext fields.
    pub ext: Vec<(&'static str, String)>,
    /// Body; empty means none.
    pub body: Vec<u8>,
}

impl Answer {
    /// Success with nothing to tell.
    pub fn ok() -> Answer {
        Answer::default()
    }

    /// Success with a body.
    pub fn body(body: Vec<u8>) -> Answer {
        Answer { body, ..Answer::default() }
    }

    /// A failure.
    pub fn error(code: i32, remark: impl Into<String>) -> Answer {
        Answer { code, remark: Some(remark.into()), ..Answer::default() }
    }

    /// With an ext field.
    pub fn with_ext(mut self, name: &'static str, value: impl ToString) -> Answer {
        self.ext.push((name, value.to_string()));
        self
    }
}

/// How a request is answered.
#[derive(Debug)]
pub enum Reply {
    /// At once.
    Now(Answer),
    /// When the file `name` holds `content` durably; code 1 if that fails.
    Saved {
        /// File name in the data directory.
        name: &'static str,
        /// Its new content.
        content: Vec<u8>,
        /// The answer on success.
        answer: Answer,
    },
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Reply {
        Reply::Now(answer)
    }
}

impl From<FieldError> for Answer {
    fn from(error: FieldError) -> Answer {
        Answer::error(response::SYSTEM_ERROR, error.to_string())
    }
}

impl From<BodyError> for Answer {
    fn from(error: BodyError) -> Answer {
        Answer::error(response::SYSTEM_ERROR, error.to_string())
    }
}

impl From<TableFull> for Answer {
    fn from(error: TableFull) -> Answer {
        Answer::error(response::SYSTEM_ERROR, error.to_string())
    }
}

/// Where an answer goes: enough of a request to answer it later.
pub struct ReturnPath {
    conn: Rc<Conn>,
    serialize: SerializeType,
    opaque: i32,
    oneway: bool,
}

impl ReturnPath {
    /// Of a request on a connection.
    pub fn of(conn: &Rc<Conn>, header: &HeaderView<'_>) -> ReturnPath {
        ReturnPath {
            conn: conn.clone(),
            serialize: header.serialize(),
            opaque: header.opaque(),
            oneway: header.is_oneway(),
        }
    }

    /// Answers, unless the request was oneway.
    pub fn send(&self, answer: &Answer) {
        if self.oneway {
            return;
        }
        let mut ext: SmallVec<[(&str, ExtValue<'_>); 4]> = SmallVec::new();
        ext.extend(answer.ext.iter().map(|(name, value)| (*name, ExtValue::Str(value))));
        let mut head = ReplyHead {
            serialize: self.serialize,
            opaque: self.opaque,
            code: answer.code,
            remark: answer.remark.as_deref(),
            ext: (!ext.is_empty()).then_some(&ext),
        };
        let mut body = &answer.body[..];
        let too_long;
        // Room for the largest head that we write; peers close a connection at a frame over the limit.
        if body.len() > FRAME_BYTES_MAX - 64 * 1024 {
            too_long = format!("the answer of {} bytes is longer than a frame may be", body.len());
            head = ReplyHead {
                code: response::SYSTEM_ERROR,
                remark: Some(&too_long),
                ext: None,
                ..head
            };
            body = &[];
        }
        self.conn.push(|out| {
            encode_reply(out, &head, body.len());
            out.extend_from_slice(body);
        });
    }
}
