//! Sends and send-backs that wait for their durability level, and the answers they get.
//!
//! One queue per shard, in log order, so that a completed write answers everything it covers from the front: no
//! task, no timer and no allocation per send.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use ringmq_engine::shard::Queue;
use ringmq_engine::state::saver::{SaveStatus, SaveTicket};
use ringmq_net::code::response;
use ringmq_net::frame::SerializeType;
use ringmq_net::record::{MESSAGE_ID_CHARS_MAX, OffsetMessageId};
use ringmq_net::reply::{ExtValue, ReplyHead, StoredReplies, StoredReply, encode_reply};
use ringmq_net::server::Conn;
use ringmq_replication::shell::master::Master;

use super::slow::SlowSend;

/// How far a send has come. Told to every producer as ext field `ackLevel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// In this process's memory: lost when it dies.
    Memory,
    /// Completed write into blocks that exist on the device: survives the process and the kernel.
    Write,
    /// The device's cache was flushed: survives power loss.
    Sync,
}

impl Level {
    /// All of them, the weakest first.
    pub const ALL: [Level; 3] = [Level::Memory, Level::Write, Level::Sync];

    /// The text of `ackLevel`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Write => "write",
            Level::Sync => "sync",
        }
    }
}

/// What an answer needs besides the level.
pub(super) struct Ack {
    /// Physical offset behind the last record of the send.
    pub(super) end: u64,
    /// Who asked.
    pub(super) conn: Rc<Conn>,
    /// The request's opaque.
    pub(super) opaque: i32,
    /// The request's serialization.
    pub(super) serialize: SerializeType,
    /// When it was received, microseconds of the reactor's clock.
    pub(super) received_us: i64,
    /// The topic is new, and this save of it is still to become durable.
    pub(super) unsaved: Option<SaveTicket>,
    /// What is told on success.
    pub(super) stored: AckOf,
}

/// What was stored.
pub(super) enum AckOf {
    /// A send.
    Send(Sent),
    /// A message that a consumer sent back: its answer has no fields.
    SendBack,
}

/// What the answer to a send tells.
pub(super) struct Sent {
    /// The queue id that was asked for or chosen.
    pub(super) queue_id: i32,
    /// The first message's queue offset.
    pub(super) queue_offset: i64,
    /// The first message's physical offset.
    pub(super) physical_offset: u64,
    /// The joined message ids of a batch; `None` for one message.
    pub(super) batch_ids: Option<Box<str>>,
    /// Where it was sent to.
    pub(super) queue: Rc<Queue>,
}

/// The codes of answers that tell a level.
const CODES: [i32; 4] = [
    response::SUCCESS,
    response::FLUSH_DISK_TIMEOUT,
    response::SLAVE_NOT_AVAILABLE,
    response::FLUSH_SLAVE_TIMEOUT,
];

/// The sends that wait, and what every answer repeats.
pub(super) struct Acks {
    waiting: RefCell<VecDeque<Ack>>,
    /// On a synchronous master: those that wait for the log alone, with the code that they are answered then.
    local: RefCell<VecDeque<(Ack, i32)>>,
    /// Knows the slaves, if there can be some.
    slaves: OnceCell<Rc<Master>>,
    /// Sends that have the level beside them and wait for their topic to be saved: see [`Acks::answer_unsaved`].
    unsaved: RefCell<Vec<(Ack, Level)>>,
    /// Answers by level and code, for metrics.
    answers: [[Cell<u64>; CODES.len()]; Level::ALL.len()],
    /// A send that took longer than this is slow, microseconds.
    slow_us: i64,
    slow_count: Cell<u64>,
    /// The slowest of those that were answered since somebody asked.
    slow: RefCell<Option<SlowSend>>,
    store_host: SocketAddr,
    replies: StoredReplies,
}

impl Acks {
    /// Nothing waits. `store_host` is the address inside message ids; a send that takes longer than `slow_us` is slow.
    pub(super) fn new(store_host: SocketAddr, region: &str, trace_on: bool, slow_us: i64) -> Self {
        Acks {
            waiting: RefCell::default(),
            local: RefCell::default(),
            slaves: OnceCell::new(),
            unsaved: RefCell::default(),
            answers: Default::default(),
            slow_us,
            slow_count: Cell::new(0),
            slow: RefCell::default(),
            store_host,
            replies: StoredReplies::new(region, trace_on),
        }
    }

    /// How often each level was told, with which code.
    pub(super) fn answers(&self) -> impl Iterator<Item = (Level, i32, u64)> {
        Level::ALL.into_iter().zip(&self.answers).flat_map(|(level, counts)| {
            CODES.into_iter().zip(counts).map(move |(code, count)| (level, code, count.get()))
        })
    }

    /// Slow sends so far.
    pub(super) fn slow_count(&self) -> u64 {
        self.slow_count.get()
    }

    /// The slowest send that was answered since the last call, if one was slow.
    pub(super) fn take_slow(&self) -> Option<SlowSend> {
        self.slow.borrow_mut().take()
    }

    /// Keeps a send that was just answered if it was slow. Those that wait longest are answered first, so the first is the slowest.
    fn note_slow(&self, ack: Ack, now_us: i64, code: i32, level: Level) {
        if now_us - ack.received_us <= self.slow_us {
            return;
        }
        let AckOf::Send(sent) = ack.stored else { return };
        self.slow_count.set(self.slow_count.get() + 1);
        let slow = SlowSend {
            sent,
            end: ack.end,
            conn: ack.conn,
            received_us: ack.received_us,
            released_us: now_us,
            code,
            level,
        };
        self.slow.borrow_mut().get_or_insert(slow);
    }

    /// What all answers to sends repeat.
    pub(super) fn replies(&self) -> &StoredReplies {
        &self.replies
    }

    /// How many sends wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len() + self.local.borrow().len() + self.unsaved.borrow().len()
    }

    /// Whom to ask how many slaves hold a message. Once.
    pub(super) fn set_slaves(&self, master: Rc<Master>) {
        // A second one would be a broker that listens twice.
        let _ = self.slaves.set(master);
    }

    /// Waits for the log alone, and is answered `code` then.
    pub(super) fn wait_local(&self, ack: Ack, code: i32) {
        self.local.borrow_mut().push_back((ack, code));
    }

    /// Answers those of [`Acks::wait_local`] that end at or before `reached`. `took` is told as in [`Acks::release`].
    pub(super) fn release_local(
        &self,
        reached: u64,
        level: Level,
        now_us: i64,
        status: impl Fn(SaveTicket) -> SaveStatus,
        mut took: impl FnMut(u64, u32),
    ) {
        let mut local = self.local.borrow_mut();
        while local.front().is_some_and(|(ack, _)| ack.end <= reached) {
            let Some((ack, code)) = local.pop_front() else { break };
            if code == response::SUCCESS
                && ack.unsaved.is_some_and(|ticket| status(ticket) != SaveStatus::Saved)
            {
                self.unsaved.borrow_mut().push((ack, level));
                continue;
            }
            self.answer_alone(ack, code, None, level, now_us, &mut took);
        }
    }

    /// Waits until the log has come to `ack.end`.
    pub(super) fn wait(&self, ack: Ack) {
        self.waiting.borrow_mut().push_back(ack);
    }

    /// Answers success to all that end at or before `reached`, but to those whose topic is still to be saved. `took` is told how many
    /// microseconds how many of them took: those of one receive are told together. Gives where the last of them ends.
    pub(super) fn release(
        &self,
        reached: u64,
        level: Level,
        now_us: i64,
        status: impl Fn(SaveTicket) -> SaveStatus,
        mut took: impl FnMut(u64, u32),
    ) -> Option<u64> {
        let mut waiting = self.waiting.borrow_mut();
        let mut run = (now_us, 0);
        let mut end = None;
        while waiting.front().is_some_and(|ack| ack.end <= reached) {
            let Some(ack) = waiting.pop_front() else { break };
            end = Some(ack.end);
            if ack.unsaved.is_some_and(|ticket| status(ticket) != SaveStatus::Saved) {
                self.unsaved.borrow_mut().push((ack, level));
                continue;
            }
            self.answer(&ack, response::SUCCESS, None, level);
            if ack.received_us != run.0 && run.1 > 0 {
                took(us_between(run.0, now_us), run.1);
                run.1 = 0;
            }
            run = (ack.received_us, run.1 + 1);
            self.note_slow(ack, now_us, response::SUCCESS, level);
        }
        if run.1 > 0 {
            took(us_between(run.0, now_us), run.1);
        }
        end
    }

    /// Answers those that waited for their topic to be saved: success when it is; FLUSH_DISK_TIMEOUT when saving fails or they were
    /// received at or before `since_us`, for a crash would make the message unreadable until somebody makes the topic again. `took`
    /// is told as in [`Acks::release`]. Returns how many.
    pub(super) fn answer_unsaved(
        &self,
        since_us: i64,
        now_us: i64,
        status: impl Fn(SaveTicket) -> SaveStatus,
        mut took: impl FnMut(u64, u32),
    ) -> usize {
        let unsaved = self.unsaved.take();
        let before = unsaved.len();
        let mut pending = Vec::new();
        for (ack, level) in unsaved {
            let (code, why) = match ack.unsaved.map(&status) {
                Some(SaveStatus::Pending) if ack.received_us > since_us => {
                    pending.push((ack, level));
                    continue;
                }
                None | Some(SaveStatus::Saved) => (response::SUCCESS, None),
                Some(SaveStatus::Pending) => (response::FLUSH_DISK_TIMEOUT, None),
                Some(SaveStatus::Failing(why)) => (
                    response::FLUSH_DISK_TIMEOUT,
                    Some(format!("the message is stored, its new topic not saved yet: {why}")),
                ),
            };
            self.answer_alone(ack, code, why.as_deref(), level, now_us, &mut took);
        }
        let answered = before - pending.len();
        *self.unsaved.borrow_mut() = pending;
        answered
    }

    /// Answers all that were received at or before `since_us`, with the level that was reached: the messages are in the log, as far
    /// as that level goes. FLUSH_DISK_TIMEOUT if it is not `wanted`, else FLUSH_SLAVE_TIMEOUT. `took` is told as in [`Acks::release`].
    pub(super) fn expire(
        &self,
        since_us: i64,
        now_us: i64,
        wanted: Level,
        reached: impl Fn(u64) -> Level,
        mut took: impl FnMut(u64, u32),
    ) -> usize {
        let (mut waiting, mut local) = (self.waiting.borrow_mut(), self.local.borrow_mut());
        let mut expired = 0;
        let mut answer = |ack: Ack| {
            let level = reached(ack.end);
            let code = if level < wanted {
                response::FLUSH_DISK_TIMEOUT
            } else {
                response::FLUSH_SLAVE_TIMEOUT
            };
            self.answer_alone(ack, code, None, level, now_us, &mut took);
            expired += 1;
        };
        while waiting.front().is_some_and(|ack| ack.received_us <= since_us) {
            let Some(ack) = waiting.pop_front() else { break };
            answer(ack);
        }
        while local.front().is_some_and(|(ack, _)| ack.received_us <= since_us) {
            let Some((ack, _)) = local.pop_front() else { break };
            answer(ack);
        }
        expired
    }

    /// The log has failed: what waits is answered now. A message that was written but not flushed is stored at level
    /// `write` (10, with `why`); one that was not written is refused as later ones are (14, with `refusal`), so that a producer
    /// tries another broker. Returns how many were refused.
    pub(super) fn fail(&self, written: u64, why: &str, refusal: &str) -> u64 {
        let mut waiting = self.waiting.borrow_mut();
        waiting.extend(self.local.borrow_mut().drain(..).map(|(ack, _)| ack));
        let mut refused = 0;
        while let Some(ack) = waiting.pop_front() {
            if ack.end <= written {
                self.answer(&ack, response::FLUSH_DISK_TIMEOUT, Some(why), Level::Write);
            } else {
                let ext = self.replies.refusal_fields();
                let (code, remark, ext) = match ack.stored {
                    AckOf::Send(_) => (response::SERVICE_NOT_AVAILABLE, refusal, &ext[..]),
                    AckOf::SendBack => (response::SYSTEM_ERROR, why, &[][..]),
                };
                reply(&ack, code, Some(remark), ext);
                refused += 1;
            }
        }
        refused
    }

    /// Answers one that is not one of a run, with all that is counted about it.
    fn answer_alone(
        &self,
        ack: Ack,
        code: i32,
        remark: Option<&str>,
        level: Level,
        now_us: i64,
        took: &mut impl FnMut(u64, u32),
    ) {
        self.answer(&ack, code, remark, level);
        took(us_between(ack.received_us, now_us), 1);
        self.note_slow(ack, now_us, code, level);
    }

    /// How many slaves hold the log up to `end`.
    fn holders(&self, end: u64) -> i32 {
        let holders = self.slaves.get().map_or(0, |slaves| slaves.gate().borrow().holders(end));
        i32::try_from(holders).unwrap_or(i32::MAX)
    }

    /// Encodes one answer about something stored into the connection's gather buffer.
    pub(super) fn answer(&self, ack: &Ack, code: i32, remark: Option<&str>, level: Level) {
        let sent = match &ack.stored {
            AckOf::Send(sent) => sent,
            // Anything but success is code 1 with the store's status, as in stock: the consumer then sends it on by itself.
            AckOf::SendBack if code == response::SUCCESS => return reply(ack, code, remark, &[]),
            AckOf::SendBack => {
                let remark = remark.unwrap_or("FLUSH_DISK_TIMEOUT");
                return reply(ack, response::SYSTEM_ERROR, Some(remark), &[]);
            }
        };
        if let Some(code) = CODES.iter().position(|known| *known == code) {
            let count = &self.answers[level as usize][code];
            count.set(count.get() + 1);
        }
        let mut id = [0; MESSAGE_ID_CHARS_MAX];
        let id = match &sent.batch_ids {
            Some(ids) => ids,
            None => OffsetMessageId {
                store_host: self.store_host,
                physical_offset: sent.physical_offset,
            }
            .write(&mut id),
        };
        let stored = StoredReply {
            serialize: ack.serialize,
            opaque: ack.opaque,
            queue_id: sent.queue_id,
            msg_id: id,
            queue_offset: sent.queue_offset,
            ack_level: level.name(),
            ack_replicas: self.holders(ack.end),
        };
        if code == response::SUCCESS && remark.is_none() {
            ack.conn.push(|out| self.replies.encode(out, &stored));
            return;
        }
        reply(ack, code, remark, &self.replies.fields(&stored));
    }
}

/// Microseconds from one reading of the reactor's clock to a later one.
fn us_between(from_us: i64, to_us: i64) -> u64 {
    u64::try_from(to_us - from_us).unwrap_or(0)
}

fn reply(ack: &Ack, code: i32, remark: Option<&str>, ext: &[(&str, ExtValue<'_>)]) {
    let head =
        ReplyHead { serialize: ack.serialize, opaque: ack.opaque, code, remark, ext: Some(ext) };
    ack.conn.push(|out| encode_reply(out, &head, 0));
}
