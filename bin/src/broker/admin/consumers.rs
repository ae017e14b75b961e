//! What administrators ask of running consumers, through the broker: their state (307), to consume one message (309), to go to
//! other offsets (222), where they are (223).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringmq_engine::shard::Queue;
use ringmq_engine::state::clients::Member;
use ringmq_net::body::{Body, ConsumerStatus, MessageQueue, ResetOffset};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{
    ConsumeDirectlyHeader, ConsumerStatusHeader, ResetOffsetHeader, RunningInfoHeader,
};
use ringmq_net::language::{Language, VERSION_RESET_OFFSET, VERSION_RUNNING_INFO};
use ringmq_net::record::OffsetMessageId;
use ringmq_net::server::Conn;

use crate::broker::relay::NoAnswer;
use crate::broker::{Broker, Refusal, TopicHandle};

/// How long a client may take to answer what is relayed to it (stock 4.9.8); tools wait 15 s.
const RELAY: Duration = Duration::from_secs(10);
/// How long clients may take to say where they are (stock 4.9.8).
const STATUS: Duration = Duration::from_secs(5);
/// `timestamp` of a reset to the end of each queue.
const TO_THE_END: i64 = -1;

impl Broker {
    /// GET_CONSUMER_RUNNING_INFO: the client's answer is passed on as it is.
    pub(super) fn running_info(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = RunningInfoHeader::decode(view)?;
        let (group, client) = (header.consumer_group.to_owned(), header.client_id.to_owned());
        let consumer = self.consumer_to_ask(&group, Some(&client))?;
        let command = relayed(view);
        self.relay(conn, view, consumer, command, group, client)
    }

    /// CONSUME_MESSAGE_DIRECTLY: the client gets the message's record, and its answer is passed on as it is.
    pub(super) fn consume_directly(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = ConsumeDirectlyHeader::decode(view)?;
        let id = OffsetMessageId::parse(header.msg_id)
            .map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
        let group = header.consumer_group.to_owned();
        let consumer = self.consumer_to_ask(&group, header.client_id)?;
        let client = header.client_id.unwrap_or_default().to_owned();
        let command = relayed(view).with_ext("brokerName", &self.config.name);
        let offset = i64::try_from(id.physical_offset).unwrap_or(-1);
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let record = match broker.read_record(offset).await {
                Ok(Some(record)) => record,
                Ok(None) => {
                    return answer.refuse(&Refusal::new(
                        response::SYSTEM_ERROR,
                        format!("can not find message by the offset, {offset}"),
                    ));
                }
                Err(error) => return answer.refuse(&broker.read_refusal(&error)),
            };
            let command = command.with_body(Bytes::copy_from_slice(record.bytes()));
            match broker.ask(&consumer, command).answer(RELAY).await {
                Ok(reply) => answer.relayed(&reply),
                Err(why) => answer.refuse(&unanswered(&group, &client, &why)),
            }
        })
    }

    fn relay(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        consumer: Rc<Conn>,
        command: Command,
        group: String,
        client: String,
    ) -> Result<(), Refusal> {
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            match broker.ask(&consumer, command).answer(RELAY).await {
                Ok(reply) => answer.relayed(&reply),
                Err(why) => answer.refuse(&unanswered(&group, &client, &why)),
            }
        })
    }

    /// The connection of a member of a group; without a client id of any.
    fn consumer_to_ask(&self, group: &str, client: Option<&str>) -> Result<Rc<Conn>, Refusal> {
        let refuse = |remark: String| Refusal::new(response::SYSTEM_ERROR, remark);
        let shown = client.unwrap_or_default();
        let offline = || refuse(format!("The Consumer <{group}> <{shown}> not online"));
        let clients = self.clients.borrow();
        let members = clients.consumer(group).ok_or_else(offline)?.members();
        let member: &Member = match client {
            Some(id) => members.by_client_id(id),
            None => members.sorted().first().copied(),
        }
        .ok_or_else(offline)?;
        if member.version < VERSION_RUNNING_INFO {
            return Err(refuse(format!(
                "The Consumer <{group}> Version <{}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
                member.version
            )));
        }
        let server = self.server();
        server.and_then(|server| server.conn(member.conn)).ok_or_else(offline)
    }

    /// INVOKE_BROKER_TO_RESET_OFFSET: tells all members of a group where to go on. They commit that themselves, some 10 s later.
    pub(super) fn reset_offsets(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = ResetOffsetHeader::decode(view)?;
        let name = header.topic;
        let Some(topic) = self.topics.borrow().get(name).cloned() else {
            let remark = format!(
                "[reset-offset] reset offset failed, no topic in this broker. topic={name}"
            );
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        };
        let group = header.group.to_owned();
        let (timestamp, force) = (header.timestamp, header.is_force);
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let reset = broker.offsets_after_reset(&topic, &group, timestamp, force).await;
            let outcome = match reset {
                Ok(reset) => {
                    broker.push_reset(topic.name(), &group, timestamp, &reset).map(|()| reset)
                }
                Err(refusal) => Err(refusal),
            };
            match outcome {
                Ok(reset) => answer.body(&reset.to_json()),
                Err(refusal) => answer.refuse(&refusal),
            }
        })
    }

    async fn offsets_after_reset(
        &self,
        topic: &TopicHandle,
        group: &str,
        timestamp: i64,
        force: bool,
    ) -> Result<ResetOffset, Refusal> {
        let mut reset = ResetOffset::default();
        for id in 0..topic.settings().write_queues {
            let committed = self.offsets.borrow().get(group, topic.name(), id);
            let Some(committed) = committed else {
                // One pair of brackets is stock's.
                let remark = format!("THe consumer group <{group}> not exist");
                return Err(Refusal::new(response::SYSTEM_ERROR, remark));
            };
            let wanted = match self.shard.existing_queue(topic.name(), id) {
                None => 0,
                Some(queue) if timestamp == TO_THE_END => queue.max_offset(),
                Some(queue) => self.first_since(&queue, timestamp).await,
            };
            let offset = if force { wanted } else { wanted.min(committed) };
            let queue = MessageQueue::new(topic.name(), self.config.name.as_str(), id);
            reset.offsets.push((queue, offset));
        }
        Ok(reset)
    }

    /// The first message of a queue that was not stored before `timestamp`; the queue's end if all were. Stock takes the nearest, and of
    /// several of one time any.
    async fn first_since(&self, queue: &Rc<Queue>, timestamp: i64) -> i64 {
        let (mut low, mut high) = (queue.min_offset(), queue.max_offset());
        while low < high {
            let middle = low + (high - low) / 2;
            // What cannot be read any more was before.
            let stored = self.shard.store_time(queue, middle).await;
            if stored.is_none_or(|stored| stored < timestamp) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn push_reset(
        &self,
        topic: &str,
        group: &str,
        timestamp: i64,
        reset: &ResetOffset,
    ) -> Result<(), Refusal> {
        let clients = self.clients.borrow();
        let Some(consumers) = clients.consumer(group) else {
            let remark = format!(
                "Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {timestamp}"
            );
            return Err(Refusal::new(response::CONSUMER_NOT_ONLINE, remark));
        };
        let members = consumers.members().sorted();
        if let Some(old) = members.iter().find(|member| member.version < VERSION_RESET_OFFSET) {
            let remark =
                format!("the client does not support this feature. version={}", old.version);
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        let Some(server) = self.server() else { return Ok(()) };
        let header = ResetOffsetHeader { topic, group, timestamp, is_force: false };
        let request =
            Command::oneway(request::RESET_CONSUMER_CLIENT_OFFSET).with_header(&header.ext());
        let (by_queue, list) = (Bytes::from(reset.to_json()), Bytes::from(reset.to_list_json()));
        for member in members {
            let Some(conn) = server.conn(member.conn) else { continue };
            // Stock gives all of them the form for C++ if the administrator's tool says that it is C++.
            let cpp = [Language::CPP, Language::PYTHON].contains(&member.language);
            let body = if cpp { &list } else { &by_queue };
            let mut command = request.clone().with_body(body.clone());
            command.opaque = self.next_opaque();
            conn.push(|out| command.encode(out));
        }
        tracing::info!(group, topic, timestamp, "consumers are told to go to other offsets");
        Ok(())
    }

    /// INVOKE_BROKER_TO_GET_CONSUMER_STATUS: all at once, and who does not answer is left out.
    pub(super) fn consumer_status(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = ConsumerStatusHeader::decode(view)?;
        let group = header.group;
        let mut asked: Vec<(String, Rc<Conn>)> = Vec::new();
        if let Some(consumers) = self.clients.borrow().consumer(group)
            && let Some(server) = self.server()
        {
            let wanted = |member: &&Member| {
                header.client_addr.is_none_or(|client| *member.client_id == *client)
            };
            for member in consumers.members().sorted().into_iter().filter(wanted) {
                asked.extend(server.conn(member.conn).map(|c| (member.client_id.to_string(), c)));
            }
        }
        if asked.is_empty() {
            let remark = format!("No Any Consumer online in the consumer group: [{group}]");
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        let (topic, group) = (header.topic.to_owned(), group.to_owned());
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let header = ConsumerStatusHeader { topic: &topic, group: &group, client_addr: None };
            let request = Command::request(request::GET_CONSUMER_STATUS_FROM_CLIENT)
                .with_header(&header.ext());
            let asked: Vec<_> = asked
                .into_iter()
                .map(|(client, conn)| (client, broker.ask(&conn, request.clone())))
                .collect();
            let mut clients = BTreeMap::new();
            for (client, asked) in asked {
                match asked.answer(STATUS).await {
                    Ok(reply) if reply.code == response::SUCCESS => {
                        match ConsumerStatus::from_json(&reply.body) {
                            Ok(status) => drop(clients.insert(client, status.queues)),
                            Err(error) => broker.rare_log.warn("a consumer's status", &error),
                        }
                    }
                    Ok(reply) => {
                        broker
                            .rare_log
                            .warn("a consumer's status", &format!("code {}", reply.code));
                    }
                    Err(why) => broker.rare_log.warn("a consumer's status", &why),
                }
            }
            answer.body(&ConsumerStatus { clients, queues: Vec::new() }.to_json());
        })
    }
}

/// A request with the fields of the one that came, for a client.
fn relayed(view: &HeaderView<'_>) -> Command {
    let mut command = Command::request(view.code());
    for (name, value) in view.ext_iter() {
        command = command.with_ext(name.to_owned(), value);
    }
    command
}

fn unanswered(group: &str, client: &str, why: &NoAnswer) -> Refusal {
    match why {
        NoAnswer::Late { .. } => Refusal::new(
            response::CONSUME_MSG_TIMEOUT,
            format!("consumer <{group}> <{client}> Timeout: {why}"),
        ),
        NoAnswer::Gone { .. } => Refusal::new(
            response::SYSTEM_ERROR,
            format!("invoke consumer <{group}> <{client}> Exception: {why}"),
        ),
    }
}
