//! Producers against scripted brokers.

mod ends;
mod forms;
mod requests;
mod transactions;
mod tries;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::record::Properties;
use tokio::sync::Semaphore;

use super::*;
use crate::fake::{Fake, React, nobody, ok, refusal};

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(20);

/// What a broker answers to a send that it stored.
fn stored(command: &Command, code: i32) -> Command {
    let mut reply = ok()
        .with_ext("msgId", "7F00000100002A9F0000000000001234")
        .with_ext("queueId", command.ext("e").unwrap_or("0"))
        .with_ext("queueOffset", 7);
    reply.code = code;
    reply
}

fn is_send(command: &Command) -> bool {
    matches!(
        command.code,
        request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE | request::SEND_REPLY_MESSAGE_V2
    )
}

/// A broker that reacts to sends as told, and answers everything else with 0.
async fn broker(on_send: impl Fn(&Command) -> React + Send + Sync + 'static) -> Fake {
    Fake::start(move |command| match is_send(command) {
        true => on_send(command),
        false => React::Answer(ok()),
    })
    .await
}

/// A broker that stores everything.
async fn good() -> Fake {
    broker(|command| React::Answer(stored(command, 0))).await
}

/// A broker that holds every send until the gate has a permit for it.
async fn gated() -> (Fake, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let fake = broker(move |command| {
        let (held, reply) = (held.clone(), stored(command, 0));
        React::AnswerWhen(Box::pin(async move {
            held.acquire().await.unwrap().forget();
            reply
        }))
    })
    .await;
    (fake, gate)
}

fn client(servers: &Fake) -> Client {
    Client::builder().name_server(servers.addr()).build().unwrap()
}

/// A client of a cluster with these brokers, each with two queues of every topic.
async fn cluster(brokers: Vec<(&'static str, String)>) -> (Fake, Client) {
    let servers = Fake::name_server(brokers, 2).await;
    let client = client(&servers);
    (servers, client)
}

fn message() -> Message {
    Message::new("t", "body")
}

fn property<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    Properties::new(command.ext("i")?).get(name)
}

fn sends(fake: &Fake) -> Vec<Command> {
    fake.asked(request::SEND_MESSAGE_V2)
}
