//! Clients and their groups: heartbeats (34, 35), membership (38, 40), queue locks (41, 42), configuration checks (46).

use std::rc::Rc;

use bytes::BytesMut;
use ringmq_engine::state::clients::{ClientConn, Conflict, Notify, Told};
use ringmq_engine::state::filter::FilterError;
use ringmq_engine::state::heartbeat::BeatTime;
use ringmq_net::body::{Body, CheckClientConfig, ConsumerList, Heartbeat, LockBatch};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{ConsumerGroupHeader, UnregisterClientHeader};
use ringmq_net::server::Conn;

use super::{Broker, Refusal};

impl Broker {
    pub(super) fn heart_beat(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let heartbeat = Heartbeat::from_json(body)?;
        let client = ClientConn {
            conn: conn.id(),
            client_id: &heartbeat.client_id,
            language: view.language(),
            version: view.version(),
            addr: conn.peer(),
        };
        let notify = self.tunables.borrow().notify_ids_changed;
        let outcome = ringmq_engine::state::heartbeat::heartbeat(
            (
                &mut self.clients.borrow_mut(),
                &mut self.groups.borrow_mut(),
                &mut self.topics.borrow_mut(),
            ),
            &client,
            &heartbeat,
            notify,
            BeatTime { wall_ms: self.clock.now_ms(), steady_ms: self.clock.monotonic_ms() },
        )?;
        if outcome.topic_created {
            self.topics_changed();
        }
        let conflicts = self.clients.borrow_mut().take_conflicts();
        for conflict in &conflicts {
            let what = match conflict {
                Conflict::Subscription { .. } => "subscriptions of one group differ",
                Conflict::ClientId { .. } => "one client id twice",
            };
            self.rare_log.warn(what, conflict);
        }
        self.notify_members(outcome.notify);
        // The version in this reply's header is what a Java consumer with an SQL filter looks at.
        self.reply_done(conn, view);
        Ok(())
    }

    pub(super) fn unregister_client(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = UnregisterClientHeader::decode(view)?;
        let names =
            (header.producer_group.unwrap_or_default(), header.consumer_group.unwrap_or_default());
        let told = ringmq_engine::state::heartbeat::unregister(
            &mut self.clients.borrow_mut(),
            &self.groups.borrow(),
            conn.id(),
            names,
            self.tunables.borrow().notify_ids_changed,
        );
        self.notify_members(told);
        self.reply_done(conn, view);
        Ok(())
    }

    pub(super) fn consumer_list(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let group = ConsumerGroupHeader::decode(view)?.consumer_group;
        let clients = self.clients.borrow();
        let ids = clients.consumer(group).map(|consumers| consumers.client_ids());
        match ids {
            Some(ids) if !ids.is_empty() => {
                let consumer_ids = ids.into_iter().map(str::to_owned).collect();
                self.reply_body(conn, view, &ConsumerList { consumer_ids }.to_json());
                Ok(())
            }
            _ => Err(Refusal::new(
                response::SYSTEM_ERROR,
                format!("no consumer for this group, {group}"),
            )),
        }
    }

    pub(super) fn check_client_config(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let check = CheckClientConfig::from_json(body)?;
        if let Some(subscription) = check.subscription.filter(|data| !data.is_tag()) {
            return Err(FilterError::Unsupported(subscription.expression_type).into());
        }
        self.reply_done(conn, view);
        Ok(())
    }

    pub(super) fn lock_batch(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let batch = LockBatch::from_json(body)?;
        let held = self.locks.borrow_mut().lock_batch(&batch, self.clock.monotonic_ms());
        self.reply_body(conn, view, &held.to_json());
        Ok(())
    }

    pub(super) fn unlock_batch(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        self.locks.borrow_mut().unlock_batch(&LockBatch::from_json(body)?);
        self.reply_done(conn, view);
        Ok(())
    }

    /// A connection went away: its clients leave their groups, its pulls stop waiting.
    pub(super) fn on_close(&self, conn: &Rc<Conn>) {
        self.waiters.borrow_mut().close_conn(conn.id());
        self.late.borrow_mut().close_conn(conn.id());
        self.end_calls(conn);
        let told = self.clients.borrow_mut().close_conn(conn.id());
        self.notify_members(told);
    }

    /// Drops registrations whose heartbeats stopped.
    pub(super) fn scan_clients(self: &Rc<Self>) {
        let expired = self.clients.borrow_mut().expire(self.clock.monotonic_ms());
        if let Some(server) = self.server() {
            for conn in expired.close.iter().filter_map(|id| server.conn(*id)) {
                conn.close("its client sent no heartbeat for 120 s");
            }
        }
        self.notify_members(expired.notify);
        self.locks.borrow_mut().purge(self.clock.monotonic_ms());
        self.flush_replies();
    }

    /// NOTIFY_CONSUMER_IDS_CHANGED to the members of groups that changed, unless that is switched off. A group's own switch has been
    /// looked at where a member came or said that it goes; it does not keep a connection's end from the rest (stock 4.9.8).
    fn notify_members(&self, groups: impl IntoIterator<Item = Notify>) {
        if !self.tunables.borrow().notify_ids_changed {
            return;
        }
        for changed in groups {
            match changed.conns {
                Told::These(conns) => self.notify(&changed.group, &conns),
                Told::Crowd => self.crowds.note(changed.group),
            }
        }
    }

    /// Tells these members of a group that its members changed.
    pub(super) fn notify(&self, group: &str, conns: &[u64]) {
        let Some(server) = self.server() else { return };
        let mut command =
            Command::oneway(request::NOTIFY_CONSUMER_IDS_CHANGED).with_ext("consumerGroup", group);
        for conn in conns.iter().filter_map(|id| server.conn(*id)) {
            command.opaque = self.next_opaque();
            conn.push(|out: &mut BytesMut| command.encode(out));
        }
    }
}
