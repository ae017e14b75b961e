//! Sends and send-backs that wait for their durability level, and the answers they get.
//!
//! One queue per shard, in log order, so that a completed write answers everything it covers from the front: no
//! task, no timer and no allocation per send.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use ringmq_engine::state::saver::{SaveStatus, SaveTicket};
use ringmq_net::code::response;
use ringmq_net::frame::SerializeType;
use ringmq_net::record::{MESSAGE_ID_CHARS_MAX, OffsetMessageId};
use ringmq_net::reply::{ExtValue, ReplyHead, StoredReplies, StoredReply, encode_reply};
use ringmq_net::server::Conn;

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
    /// When to give up waiting, milliseconds of the reactor's clock.
    pub(super) deadline_ms: i64,
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
}

/// The sends that wait, and what every answer repeats.
pub(super) struct Acks {
    waiting: RefCell<VecDeque<Ack>>,
    /// Sends that have the level beside them and wait for their topic to be saved: see [`Acks::answer_unsaved`].
    unsaved: RefCell<Vec<(Ack, Level)>>,
    store_host: SocketAddr,
    replies: StoredReplies,
}

impl Acks {
    /// Nothing waits. `store_host` is the address inside message ids.
    pub(super) fn new(store_host: SocketAddr, region: &str, trace_on: bool) -> Self {
        let (waiting, unsaved) = (RefCell::default(), RefCell::default());
        Acks { waiting, unsaved, store_host, replies: StoredReplies::new(region, trace_on) }
    }

    /// What all answers to sends repeat.
    pub(super) fn replies(&self) -> &StoredReplies {
        &self.replies
    }

    /// How many sends wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len() + self.unsaved.borrow().len()
    }

    /// Waits until the log has come to `ack.end`.
    pub(super) fn wait(&self, ack: Ack) {
        self.waiting.borrow_mut().push_back(ack);
    }

    /// Answers success to all that end at or before `reached`, but to those whose topic is still to be saved; returns how many.
    pub(super) fn release(&self, reached: u64, level: Level) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let mut released = 0;
        while waiting.front().is_some_and(|ack| ack.end <= reached) {
            let Some(ack) = waiting.pop_front() else { break };
            if ack.unsaved.is_some() {
                self.unsaved.borrow_mut().push((ack, level));
                continue;
            }
            self.answer(&ack, response::SUCCESS, None, level);
            released += 1;
        }
        released
    }

    /// Answers those that waited for their topic to be saved: success when it is; FLUSH_DISK_TIMEOUT when saving fails or takes
    /// too long, for a crash would make the message unreadable until somebody makes the topic again. Returns how many.
    pub(super) fn answer_unsaved(
        &self,
        now_ms: i64,
        status: impl Fn(SaveTicket) -> SaveStatus,
    ) -> usize {
        let mut unsaved = self.unsaved.borrow_mut();
        let before = unsaved.len();
        unsaved.retain(|(ack, level)| {
            match ack.unsaved.map(&status) {
                Some(SaveStatus::Pending) if ack.deadline_ms > now_ms => return true,
                None | Some(SaveStatus::Saved) => self.answer(ack, response::SUCCESS, None, *level),
                Some(SaveStatus::Pending) => {
                    self.answer(ack, response::FLUSH_DISK_TIMEOUT, None, *level);
                }
                Some(SaveStatus::Failing(why)) => {
                    let why = format!("the message is stored, its new topic not saved yet: {why}");
                    self.answer(ack, response::FLUSH_DISK_TIMEOUT, Some(&why), *level);
                }
            }
            false
        });
        before - unsaved.len()
    }

    /// Answers FLUSH_DISK_TIMEOUT to all that have waited too long, with the level that was reached: the messages are
    /// in the log, as far as that level goes.
    pub(super) fn expire(&self, now_ms: i64, written: u64) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let mut expired = 0;
        while waiting.front().is_some_and(|ack| ack.deadline_ms <= now_ms) {
            let Some(ack) = waiting.pop_front() else { break };
            let level = if ack.end <= written { Level::Write } else { Level::Memory };
            self.answer(&ack, response::FLUSH_DISK_TIMEOUT, None, level);
            expired += 1;
        }
        expired
    }

    /// The log has failed: what waits is answered now. A message that was written but not flushed is stored at level
    /// `write` (10); one that was not written is refused (14), so that a producer tries another broker.
    pub(super) fn fail(&self, written: u64, why: &str) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(ack) = waiting.pop_front() {
            if ack.end <= written {
                self.answer(&ack, response::FLUSH_DISK_TIMEOUT, Some(why), Level::Write);
            } else {
                let ext = self.replies.refusal_fields();
                let (code, ext) = match ack.stored {
                    AckOf::Send(_) => (response::SERVICE_NOT_AVAILABLE, &ext[..]),
                    AckOf::SendBack => (response::SYSTEM_ERROR, &[][..]),
                };
                reply(&ack, code, Some(why), ext);
            }
        }
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
            ack_replicas: 0,
        };
        if code == response::SUCCESS && remark.is_none() {
            ack.conn.push(|out| self.replies.encode(out, &stored));
            return;
        }
        reply(ack, code, remark, &self.replies.fields(&stored));
    }
}

fn reply(ack: &Ack, code: i32, remark: Option<&str>, ext: &[(&str, ExtValue<'_>)]) {
    let head =
        ReplyHead { serialize: ack.serialize, opaque: ack.opaque, code, remark, ext: Some(ext) };
    ack.conn.push(|out| encode_reply(out, &head, 0));
}
