//! An answer that is not a success.

use std::borrow::Cow;
use std::rc::Rc;

use ringmq_engine::state::clients::{PullRefused, TooManyGroups};
use ringmq_engine::state::filter::FilterError;
use ringmq_engine::state::groups::GroupRefused;
use ringmq_engine::state::topic_name::TopicRefused;
use ringmq_net::body::BodyError;
use ringmq_net::code::response;
use ringmq_net::frame::SerializeType;
use ringmq_net::headers::FieldError;
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply};
use ringmq_net::server::Conn;

/// Why a request is not served: the response code and the text a client sees.
#[derive(Debug)]
pub struct Refusal {
    code: i32,
    remark: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with one of the codes of [`response`].
    pub fn new(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Refusal { code, remark: remark.into() }
    }

    /// Its response code.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The text a client sees.
    pub fn remark(&self) -> &str {
        &self.remark
    }

    /// Answers with no ext fields.
    pub fn reply(&self, conn: &Rc<Conn>, serialize: SerializeType, opaque: i32) {
        self.reply_with(conn, serialize, opaque, Some(&[]));
    }

    /// Answers with ext fields.
    pub fn reply_with(
        &self,
        conn: &Rc<Conn>,
        serialize: SerializeType,
        opaque: i32,
        ext: Option<&[(&str, ExtValue<'_>)]>,
    ) {
        let head =
            ReplyHead { serialize, opaque, code: self.code, remark: Some(&self.remark), ext };
        conn.push(|out| encode_reply(out, &head, 0));
    }

    /// The stock name of the store status behind this answer: the remark of a send-back that was not stored.
    pub fn status_name(self) -> Cow<'static, str> {
        match self.code {
            response::MESSAGE_ILLEGAL => "MESSAGE_ILLEGAL".into(),
            response::SERVICE_NOT_AVAILABLE => "SERVICE_NOT_AVAILABLE".into(),
            _ => self.remark,
        }
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Refusal::new(response::SYSTEM_ERROR, error.to_string())
    }
}

impl From<TopicRefused> for Refusal {
    fn from(error: TopicRefused) -> Self {
        Refusal::new(error.code(), error.to_string())
    }
}

impl From<GroupRefused> for Refusal {
    fn from(error: GroupRefused) -> Self {
        Refusal::new(error.code(), error.to_string())
    }
}

impl From<PullRefused> for Refusal {
    fn from(error: PullRefused) -> Self {
        Refusal::new(error.code(), error.to_string())
    }
}

impl From<TooManyGroups> for Refusal {
    fn from(error: TooManyGroups) -> Self {
        Refusal::new(response::SYSTEM_ERROR, error.to_string())
    }
}

impl From<FilterError> for Refusal {
    fn from(error: FilterError) -> Self {
        PullRefused::from(error).into()
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Refusal::new(response::SYSTEM_ERROR, error.to_string())
    }
}
