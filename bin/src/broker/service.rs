//! Which handler serves which request code.

use std::rc::Rc;

use ringmq_net::code::{request, response};
use ringmq_net::header::HeaderView;
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply};
use ringmq_net::server::{Conn, PortKind, Service};

use super::{Broker, Refusal};

/// The broker as the server's service: a handle that the server can keep.
pub(super) struct BrokerService(pub(super) Rc<Broker>);

impl Service for BrokerService {
    fn on_frame(&self, conn: &Rc<Conn>, header: &HeaderView<'_>, body: &[u8]) {
        let broker = &self.0;
        if header.is_response() {
            broker.on_answer(conn, header, body);
            return;
        }
        let outcome = broker.handle(conn, header, body);
        let meters = &broker.stats.meters;
        let unknown = |refusal: &Refusal| refusal.code() == response::REQUEST_CODE_NOT_SUPPORTED;
        meters.request(header.code(), !outcome.as_ref().is_err_and(unknown));
        if let Err(refusal) = outcome {
            meters.refusal(refusal.code());
            if !header.is_oneway() {
                broker.refuse(conn, header, &refusal);
            }
        }
    }

    fn on_turn_end(&self) {
        let broker = &self.0;
        if broker.turn_pulls.take() > 0 {
            // Of pulls that are served from memory only the turn's whole time is known: none took longer.
            let took_us = broker.clock.monotonic_us() - broker.clock.turn().monotonic_us;
            broker.stats.store.get_took_us(u64::try_from(took_us).unwrap_or(0));
        }
        broker.clock.end_turn();
        broker.shard.kick();
        broker.end_turn_of_late();
        broker.run_released();
    }

    fn on_look(&self) {
        let broker = &self.0;
        broker.late.borrow_mut().look();
        if broker.answer_late() {
            broker.flush_replies();
        }
    }

    fn work_done(&self) -> Option<u64> {
        let counters = self.0.stats.store.counters();
        Some(counters.puts + counters.transferred)
    }

    fn on_close(&self, conn: &Rc<Conn>) {
        self.0.on_close(conn);
    }
}

impl Broker {
    fn handle(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        match view.code() {
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
                self.send(conn, view, true, body)
            }
            request::SEND_MESSAGE => self.send(conn, view, false, body),
            // The VIP port serves everything but pulls, as stock's does.
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE if conn.port() == PortKind::Main => {
                self.pull(conn, view)
            }
            request::CONSUMER_SEND_MSG_BACK => self.send_back(conn, view),
            request::UPDATE_CONSUMER_OFFSET => self.update_consumer_offset(conn, view),
            request::QUERY_CONSUMER_OFFSET => self.query_consumer_offset(conn, view),
            request::GET_MAX_OFFSET => self.max_offset(conn, view),
            request::GET_MIN_OFFSET => self.min_offset(conn, view),
            request::SEARCH_OFFSET_BY_TIMESTAMP => self.search_offset(conn, view),
            request::GET_EARLIEST_MSG_STORETIME => self.earliest_store_time(conn, view),
            request::HEART_BEAT => self.heart_beat(conn, view, body),
            request::UNREGISTER_CLIENT => self.unregister_client(conn, view),
            request::CHECK_CLIENT_CONFIG => self.check_client_config(conn, view, body),
            request::GET_CONSUMER_LIST_BY_GROUP => self.consumer_list(conn, view),
            request::LOCK_BATCH_MQ => self.lock_batch(conn, view, body),
            request::UNLOCK_BATCH_MQ => self.unlock_batch(conn, view, body),
            request::VIEW_MESSAGE_BY_ID => self.view_message(conn, view),
            request::QUERY_MESSAGE => self.query_message(conn, view),
            _ => self.handle_admin(conn, view, body),
        }
    }

    /// Answers a refusal. Refused sends carry the two fields that Go and C++ clients read from every answer to a send.
    fn refuse(&self, conn: &Rc<Conn>, view: &HeaderView<'_>, refusal: &Refusal) {
        let send = matches!(
            view.code(),
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE
        );
        let ext = self.acks.replies().refusal_fields();
        let ext: &[_] = if send { &ext } else { &[] };
        refusal.reply_with(conn, view.serialize(), view.opaque(), Some(ext));
    }

    /// Answers with a code and a body, unless the request is one-way.
    pub(super) fn reply_body(&self, conn: &Rc<Conn>, view: &HeaderView<'_>, body: &[u8]) {
        if view.is_oneway() {
            return;
        }
        let head = ReplyHead::to(view, response::SUCCESS).ext(&[]);
        conn.push(|out| {
            encode_reply(out, &head, body.len());
            out.extend_from_slice(body);
        });
    }

    /// Answers success with ext fields, unless the request is one-way.
    pub(super) fn reply_ext(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        ext: &[(&str, ExtValue<'_>)],
    ) {
        if view.is_oneway() {
            return;
        }
        let head = ReplyHead::to(view, response::SUCCESS).ext(ext);
        conn.push(|out| encode_reply(out, &head, 0));
    }

    /// Answers success with nothing else, unless the request is one-way.
    pub(super) fn reply_done(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) {
        self.reply_ext(conn, view, &[]);
    }
}

/// The answer to a code that nobody serves.
pub(super) fn not_supported(code: i32) -> Refusal {
    let remark = format!(" request type {code} not supported");
    Refusal::new(response::REQUEST_CODE_NOT_SUPPORTED, remark)
}
