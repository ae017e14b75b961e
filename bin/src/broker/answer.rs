//! Answers given after the request's frame is gone: by tasks that had to read or wait.

use std::cell::Cell;
use std::rc::Rc;

use ringmq_engine::log::Slice;
use ringmq_engine::state::saver::SaveTicket;
use ringmq_net::code::response;
use ringmq_net::command::Command;
use ringmq_net::frame::SerializeType;
use ringmq_net::header::HeaderView;
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply};
use ringmq_net::server::Conn;

use super::ack::{Ack, AckOf};
use super::meters::Reason;
use super::{Broker, Refusal};

/// Slow tasks that may run at once on one shard; beyond it a client is told to try again.
const SLOW_TASKS_MAX: usize = 1024;
/// Commits that may wait for slaves at once on one shard; beyond it they are answered at once.
const COMMITS_WAITING_MAX: usize = 1024;

/// Whom a task answers. Gives exactly one answer, or none to a one-way request.
pub(super) struct Answer {
    conn: Rc<Conn>,
    serialize: SerializeType,
    opaque: i32,
    oneway: bool,
    /// Counts refusals.
    broker: Rc<Broker>,
}

impl Answer {
    fn to(broker: &Rc<Broker>, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Self {
        Answer {
            broker: Rc::clone(broker),
            conn: Rc::clone(conn),
            serialize: view.serialize(),
            opaque: view.opaque(),
            oneway: view.is_oneway(),
        }
    }

    /// Success without fields.
    pub(super) fn done(&self) {
        self.ext(&[]);
    }

    /// Success, or what stood in its way.
    pub(super) fn outcome(&self, outcome: Result<(), Refusal>) {
        match outcome {
            Ok(()) => self.done(),
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// Success with ext fields.
    pub(super) fn ext(&self, ext: &[(&str, ExtValue<'_>)]) {
        self.ext_and_body(ext, &[]);
    }

    /// Success with a body.
    pub(super) fn body(&self, body: &[u8]) {
        self.ext_and_body(&[], body);
    }

    /// Success with ext fields and a body.
    pub(super) fn ext_and_body(&self, ext: &[(&str, ExtValue<'_>)], body: &[u8]) {
        if self.oneway {
            return;
        }
        let head = self.head(response::SUCCESS, Some(ext));
        self.conn.push(|out| {
            encode_reply(out, &head, body.len());
            out.extend_from_slice(body);
        });
    }

    /// Success with one record as the body, not copied.
    pub(super) fn record(&self, record: &Slice) {
        if self.oneway {
            return;
        }
        let head = self.head(response::SUCCESS, Some(&[]));
        self.conn.push(|out| encode_reply(out, &head, record.bytes().len()));
        self.conn.push_shared(Rc::clone(&record.owner), record.range.clone());
    }

    /// The same answer for a message that was sent back, to be given when the log has come to `end` and the save
    /// `unsaved` is durable. Nobody waits for one to a one-way request.
    pub(super) fn ack(
        &self,
        end: u64,
        unsaved: Option<SaveTicket>,
        received_us: i64,
    ) -> Option<Ack> {
        (!self.oneway).then(|| Ack {
            end,
            conn: Rc::clone(&self.conn),
            opaque: self.opaque,
            serialize: self.serialize,
            received_us,
            unsaved,
            stored: AckOf::SendBack,
        })
    }

    /// What another peer answered: its code, remark, fields and body.
    pub(super) fn relayed(&self, reply: &Command) {
        if self.oneway {
            return;
        }
        let fields = reply.ext.iter();
        let ext: Vec<(&str, ExtValue<'_>)> =
            fields.map(|(name, value)| (name.as_ref(), ExtValue::Str(value))).collect();
        let remark = reply.remark.as_deref();
        let head = ReplyHead { remark, ..self.head(reply.code, Some(&ext)) };
        self.conn.push(|out| {
            encode_reply(out, &head, reply.body.len());
            out.extend_from_slice(&reply.body);
        });
    }

    /// Another code than success.
    pub(super) fn refuse(&self, refusal: &Refusal) {
        self.refuse_with(refusal, &[]);
    }

    /// Another code than success, with ext fields.
    pub(super) fn refuse_with(&self, refusal: &Refusal, ext: &[(&str, ExtValue<'_>)]) {
        self.broker.stats.meters.refusal(refusal.code());
        if !self.oneway {
            refusal.reply_with(&self.conn, self.serialize, self.opaque, Some(ext));
        }
    }

    fn head<'a>(&self, code: i32, ext: Option<&'a [(&'a str, ExtValue<'a>)]>) -> ReplyHead<'a> {
        ReplyHead { serialize: self.serialize, opaque: self.opaque, code, remark: None, ext }
    }
}

impl Broker {
    /// Runs `work` as a task of its own. It must answer the client itself.
    pub(super) fn spawn_slow(
        self: &Rc<Self>,
        work: impl AsyncFnOnce(Rc<Broker>) + 'static,
    ) -> Result<(), Refusal> {
        if self.slow_tasks.get() >= SLOW_TASKS_MAX {
            self.stats_busy();
            self.stats.meters.refused(Reason::SlowTasksFull);
            return Err(Refusal::new(
                response::SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while",
            ));
        }
        self.spawn_counted(|broker| &broker.slow_tasks, work);
        Ok(())
    }

    fn spawn_counted(
        self: &Rc<Self>,
        count: fn(&Broker) -> &Cell<usize>,
        work: impl AsyncFnOnce(Rc<Broker>) + 'static,
    ) {
        count(self).set(count(self).get() + 1);
        let broker = Rc::clone(self);
        glommio::spawn_local(async move {
            work(Rc::clone(&broker)).await;
            count(&broker).set(count(&broker).get() - 1);
            broker.run_released();
            broker.flush_replies();
        })
        .detach();
    }

    /// Answers a commit when slaves are told of it; whether it will. Not if too many wait already: it is stored, and being told.
    pub(super) fn answer_when_told(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> bool {
        if self.commits_waiting.get() >= COMMITS_WAITING_MAX {
            return false;
        }
        let answer = Answer::to(self, conn, view);
        self.spawn_counted(
            |broker| &broker.commits_waiting,
            async move |broker: Rc<Broker>| {
                broker.commits_are_told().await;
                answer.done();
            },
        );
        true
    }

    /// [`Broker::spawn_slow`] with the means to answer.
    pub(super) fn answer_slowly(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        work: impl AsyncFnOnce(Rc<Broker>, &Answer) + 'static,
    ) -> Result<(), Refusal> {
        let answer = Answer::to(self, conn, view);
        self.spawn_slow(async move |broker: Rc<Broker>| work(broker, &answer).await)
    }
}
