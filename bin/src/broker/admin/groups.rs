//! Consumer groups and connections: 200, 201, 203, 204, 207, 328.

use std::rc::Rc;

use ringmq_net::body::{Body, ProducerTable, SubscriptionGroupConfig};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{ConsumerGroupHeader, DeleteGroupHeader, ProducerGroupHeader};
use ringmq_net::server::Conn;

use crate::broker::{Broker, Refusal};

impl Broker {
    pub(super) fn update_group(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let config = SubscriptionGroupConfig::from_json(body)?;
        self.groups.borrow_mut().update(config.clone(), self.clock.now_ms())?;
        tracing::info!(group = config.group_name, broker = %self.config.name, "consumer group set on this shard");
        let saved = self.save_groups();
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            answer.outcome(broker.durable_or_refuse(saved, "the group is set").await);
        })
    }

    pub(super) fn delete_group(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = DeleteGroupHeader::decode(view)?;
        self.groups.borrow_mut().delete(header.group_name, self.clock.now_ms());
        if header.remove_offset || header.clean_offset {
            self.offsets.borrow_mut().remove_group(header.group_name);
        }
        tracing::info!(group = header.group_name, broker = %self.config.name, "consumer group deleted on this shard");
        let saved = self.save_groups();
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            answer.outcome(broker.durable_or_refuse(saved, "the group is deleted").await);
        })
    }

    pub(super) fn all_groups(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Result<(), Refusal> {
        self.reply_body(conn, view, &self.groups.borrow().to_json());
        Ok(())
    }

    pub(super) fn consumer_connections(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let group = ConsumerGroupHeader::decode(view)?.consumer_group;
        let clients = self.clients.borrow();
        let Some(consumers) = clients.consumer(group) else {
            let remark = format!("the consumer group[{group}] not online");
            return Err(Refusal::new(response::CONSUMER_NOT_ONLINE, remark));
        };
        let body = consumers.connection_body();
        self.reply_body(conn, view, &body.to_json());
        Ok(())
    }

    pub(super) fn producer_connections(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let group = ProducerGroupHeader::decode(view)?.producer_group;
        let clients = self.clients.borrow();
        let Some(members) = clients.producer(group) else {
            let remark = format!("the producer group[{group}] not exist");
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        };
        self.reply_body(conn, view, &members.producer_body().to_json());
        Ok(())
    }

    pub(super) fn all_producers(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let clients = self.clients.borrow();
        let epoch_ms = self.clock.now_ms() - self.clock.monotonic_ms();
        let groups = clients
            .producers()
            .map(|(group, members)| (group.to_owned(), members.producer_infos(epoch_ms)));
        let body = ProducerTable { groups: groups.collect() };
        self.reply_body(conn, view, &body.to_json());
        Ok(())
    }
}
