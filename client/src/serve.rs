//! The requests that brokers send to clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ringmq_net::body::{Body, ConsumerStatus, MessageQueue, ResetOffset};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;

use crate::endpoint::TransactionCheck;
use crate::id::now_ms;
use crate::instance::Instance;
use crate::message::{ReceivedMessage, names, open_body, parse_properties};

/// Serves one request; `None` when it has no answer.
pub(crate) async fn serve(
    instance: Arc<Instance>,
    addr: Arc<str>,
    command: Command,
) -> Option<Command> {
    tracing::debug!(%addr, code = command.code, "a broker asks");
    match command.code {
        request::CHECK_TRANSACTION_STATE => {
            check_transaction(&instance, addr, &command);
            None
        }
        request::NOTIFY_CONSUMER_IDS_CHANGED => {
            let consumer = command.ext("consumerGroup").and_then(|group| instance.consumer(group));
            if let Some(consumer) = consumer {
                consumer.rebalance();
            }
            None
        }
        request::RESET_CONSUMER_CLIENT_OFFSET => {
            reset_offsets(&instance, &command);
            None
        }
        request::GET_CONSUMER_STATUS_FROM_CLIENT => Some(status(&instance, &command)),
        request::GET_CONSUMER_RUNNING_INFO => Some(running_info(&instance, &command).await),
        request::CONSUME_MESSAGE_DIRECTLY => Some(consume_directly(&instance, &command).await),
        request::PUSH_REPLY_MESSAGE_TO_CLIENT => Some(reply_arrived(&instance, &command)),
        code => Some(failure(
            response::REQUEST_CODE_NOT_SUPPORTED,
            format!(" request type {code} not supported"),
        )),
    }
}

fn failure(code: i32, remark: String) -> Command {
    let mut reply = Command::request(code);
    reply.remark = Some(remark);
    reply
}

fn success(body: Vec<u8>) -> Command {
    Command::request(response::SUCCESS).with_body(body)
}

fn number(command: &Command, field: &str) -> Option<i64> {
    command.ext(field)?.parse().ok()
}

fn check_transaction(instance: &Instance, addr: Arc<str>, command: &Command) {
    let read = || {
        let mut messages = ReceivedMessage::decode_all(&command.body, "").ok()?;
        Some(TransactionCheck {
            addr,
            tran_state_table_offset: number(command, "tranStateTableOffset")?,
            commit_log_offset: number(command, "commitLogOffset")?,
            transaction_id: command.ext("transactionId").map(str::to_owned),
            message: messages.pop()?,
        })
    };
    let Some(check) = read() else {
        tracing::warn!("the check of a transaction is not readable");
        return;
    };
    let group = check.message.property(names::PGROUP).unwrap_or_default();
    match instance.producer(group) {
        Some(producer) => producer.check_transaction(check),
        None => {
            tracing::debug!(group, "a transaction of a group that is not here is to be checked")
        }
    }
}

fn reset_offsets(instance: &Instance, command: &Command) {
    let consumer = command.ext("group").and_then(|group| instance.consumer(group));
    let (Some(consumer), Some(topic)) = (consumer, command.ext("topic")) else { return };
    match ResetOffset::from_json(&command.body) {
        Ok(table) => consumer.reset_offsets(topic, table.offsets),
        Err(error) => tracing::warn!(%error, "a reset of offsets is not readable"),
    }
}

fn status(instance: &Instance, command: &Command) -> Command {
    let consumer = command.ext("group").and_then(|group| instance.consumer(group));
    let topic = command.ext("topic").unwrap_or_default();
    let queues = consumer.map(|consumer| consumer.offsets(topic)).unwrap_or_default();
    success(ConsumerStatus { clients: BTreeMap::new(), queues }.to_json())
}

fn no_consumer(group: &str) -> Command {
    let remark = format!("The Consumer Group <{group}> not exist in this consumer");
    failure(response::SYSTEM_ERROR, remark)
}

async fn running_info(instance: &Instance, command: &Command) -> Command {
    let group = command.ext("consumerGroup").unwrap_or_default();
    match instance.consumer(group) {
        Some(consumer) => success(consumer.running_info().await.to_json()),
        None => no_consumer(group),
    }
}

async fn consume_directly(instance: &Instance, command: &Command) -> Command {
    let group = command.ext("consumerGroup").unwrap_or_default();
    let Some(consumer) = instance.consumer(group) else { return no_consumer(group) };
    let broker = command.ext("brokerName").unwrap_or_default();
    let message = ReceivedMessage::decode_all(&command.body, broker);
    match message.map(|mut messages| messages.pop()) {
        Ok(Some(message)) => success(consumer.consume_directly(message).await.to_json()),
        Ok(None) => failure(response::SYSTEM_ERROR, "no message in the request".to_owned()),
        Err(what) => failure(response::SYSTEM_ERROR, what),
    }
}

fn reply_arrived(instance: &Instance, command: &Command) -> Command {
    let reply = read_reply(command);
    let Some(id) = reply.property(names::CORRELATION_ID).map(str::to_owned) else {
        return failure(response::SYSTEM_ERROR, "process reply message fail".to_owned());
    };
    if !instance.replies.deliver(&id, reply) {
        tracing::debug!(id, "a reply came for which nobody waits any more");
    }
    success(Vec::new())
}

/// A pushed reply is not a record: header and body make the message.
fn read_reply(command: &Command) -> ReceivedMessage {
    let flags = number(command, "sysFlag").unwrap_or(0) as i32;
    let int = |field| number(command, field).unwrap_or(0);
    let host = |field| {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        command.ext(field).and_then(|text| text.parse().ok()).unwrap_or(nowhere)
    };
    let mut properties = parse_properties(command.ext("properties").unwrap_or_default());
    properties.insert(names::ARRIVE_TIME.to_owned(), now_ms().to_string());
    ReceivedMessage {
        queue: MessageQueue::new(
            command.ext("topic").unwrap_or_default(),
            "",
            int("queueId") as i32,
        ),
        queue_offset: 0,
        physical_offset: 0,
        flag: int("flag") as i32,
        sys_flag: flags,
        born_timestamp: int("bornTimestamp"),
        born_host: host("bornHost"),
        store_timestamp: int("storeTimestamp"),
        store_host: host("storeHost"),
        reconsume_times: int("reconsumeTimes") as i32,
        prepared_transaction_offset: 0,
        body: open_body(flags, command.body.clone()),
        properties,
    }
}
