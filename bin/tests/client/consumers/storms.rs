//! Members that come and go, brokers that die: nothing is lost, and in order stays in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringmq_client::{Client, ConsumeFrom, Message, MessageQueue, PushConsumer, ReceivedMessage};

use super::member;
use super::seen::{Seen, until_assigned};
use crate::runtime;
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, rounds, tempdir};

const QUEUES: u32 = 8;
const MEMBERS: usize = 20;

/// Holds every call of an orderly group against what order means.
#[derive(Clone, Default)]
struct Referee {
    queues: Arc<Mutex<BTreeMap<MessageQueue, State>>>,
    foul: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    /// The member that is at it.
    busy: Option<usize>,
    /// Who began what last.
    last: Option<(usize, i64)>,
    next: i64,
}

/// A call of a listener; it ends when this is dropped, whichever way.
struct Call {
    referee: Referee,
    queue: MessageQueue,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut queues = self.referee.queues.lock().unwrap();
        queues.get_mut(&self.queue).expect("it was begun").busy = None;
    }
}

impl Referee {
    fn begin(&self, member: usize, message: &ReceivedMessage) -> Call {
        let mut queues = self.queues.lock().unwrap();
        let state = queues.entry(message.queue.clone()).or_default();
        let offset = message.queue_offset;
        if let Some(other) = state.busy.replace(member) {
            self.foul(&format!("{member} and {other} at once in {:?} at {offset}", message.queue));
        }
        // It may go back, but leave nothing out.
        if offset > state.next {
            self.foul(&format!("{offset} before {} in {:?}", state.next, message.queue));
        }
        // One member leaves nothing out either, unless another one was there meanwhile.
        if state.last.is_some_and(|(who, last)| who == member && offset > last + 1) {
            self.foul(&format!("{member}: {offset} after {:?} in {:?}", state.last, message.queue));
        }
        state.last = Some((member, offset));
        Call { referee: self.clone(), queue: message.queue.clone() }
    }

    fn done(&self, message: &ReceivedMessage) {
        let mut queues = self.queues.lock().unwrap();
        let state = queues.get_mut(&message.queue).expect("it was begun");
        state.next = state.next.max(message.queue_offset + 1);
    }

    fn foul(&self, what: &str) {
        eprintln!("FOUL: {what}");
        self.foul.store(true, Ordering::SeqCst);
    }
}

async fn orderly_member(
    client: &Client,
    at: usize,
    referee: &Referee,
    seen: &Seen,
) -> PushConsumer {
    let (referee, seen) = (referee.clone(), seen.clone());
    let consumer = client.consumer("in_order").subscribe("load", "*");
    consumer
        .consume_from(ConsumeFrom::First)
        .start_orderly(move |message| {
            let (referee, seen) = (referee.clone(), seen.clone());
            async move {
                let call = referee.begin(at, &message);
                tokio::time::sleep(Duration::from_millis(1)).await;
                referee.done(&message);
                drop(call);
                seen.add(message);
            }
        })
        .await
        .unwrap()
}

async fn concurrent_member(client: &Client, seen: &Seen) -> PushConsumer {
    let seen = seen.clone();
    let consumer = client.consumer("at_once").subscribe("load", "*");
    consumer
        .consume_from(ConsumeFrom::First)
        .start(move |message| {
            seen.add(message);
            async {}
        })
        .await
        .unwrap()
}

/// Twenty members of an orderly and of a concurrent group come, and go in every way, while messages are sent.
#[test]
fn a_storm_of_twenty_members_loses_nothing_and_keeps_every_queue_in_order() {
    let mut random = Random::from_env("client, storm");
    let dir = tempdir("client-storm");
    let options = Options { shards: 2, ..Options::default() };
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), options);
    broker.create_topic("load", QUEUES);
    let steps = rounds(40);
    runtime().block_on(async {
        let (referee, in_order, at_once) = (Referee::default(), Seen::new(), Seen::new());
        let sender = member(broker.namesrv).build().unwrap();
        let producer = sender.producer("load").start().await.unwrap();
        let mut members: Vec<Option<(Client, PushConsumer, PushConsumer)>> =
            (0..MEMBERS).map(|_| None).collect();
        let mut sent = 0;
        for _ in 0..steps {
            let at = random.below(MEMBERS as u64) as usize;
            match members[at].take() {
                None => {
                    let client = member(broker.namesrv).build().unwrap();
                    let orderly = orderly_member(&client, at, &referee, &in_order).await;
                    let concurrent = concurrent_member(&client, &at_once).await;
                    members[at] = Some((client, orderly, concurrent));
                }
                Some((client, orderly, concurrent)) => match random.below(3) {
                    0 => client.shutdown().await.unwrap(),
                    1 => {
                        orderly.shutdown().await.unwrap();
                        drop(concurrent);
                    }
                    _ => drop((client, orderly, concurrent)),
                },
            }
            for _ in 0..random.below(60) {
                let message = Message::new("load", sent.to_string());
                producer.send_ordered(message, &(sent % 40).to_string()).await.unwrap();
                sent += 1;
            }
        }
        // Whoever is left, and at least one, finishes.
        if members.iter().all(Option::is_none) {
            let client = member(broker.namesrv).build().unwrap();
            let orderly = orderly_member(&client, 0, &referee, &in_order).await;
            members[0] =
                Some((client.clone(), orderly, concurrent_member(&client, &at_once).await));
        }
        in_order.until(sent).await;
        at_once.until(sent).await;
        println!(
            "{sent} messages, {} and {} repeats, {} members at the end",
            in_order.repeats(),
            at_once.repeats(),
            members.iter().flatten().count()
        );
        for (client, ..) in members.iter().flatten() {
            client.shutdown().await.unwrap();
        }
        assert!(!referee.foul.load(Ordering::SeqCst), "see FOUL above");
    });
}

/// The broker is killed and started again while members of both kinds consume.
#[test]
fn a_broker_killed_while_it_is_consumed_from_costs_no_message_and_no_order() {
    let mut random = Random::from_env("client, broker killed under consumers");
    let dir = tempdir("client-consumed-kill");
    let options = Options { shards: 2, ..Options::default() };
    let mut broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), options);
    broker.create_topic("load", QUEUES);
    let runtime = runtime();
    let (referee, in_order, at_once) = (Referee::default(), Seen::new(), Seen::new());
    let (sender, members) = runtime.block_on(async {
        let sender = member(broker.namesrv).build().unwrap();
        let mut members = Vec::new();
        for at in 0..3 {
            let client = member(broker.namesrv).build().unwrap();
            let orderly = orderly_member(&client, at, &referee, &in_order).await;
            members.push((client.clone(), orderly, concurrent_member(&client, &at_once).await));
        }
        (sender, members)
    });
    let producer = runtime
        .block_on(sender.producer("load").retries(50).send_timeout(super::LONG).start())
        .unwrap();
    let mut sent = 0;
    for _ in 0..rounds(2) {
        for kill in [false, true] {
            let count = 100 + random.below(200) as usize;
            runtime.block_on(async {
                for _ in 0..count {
                    // By key in one try; a try that fails is the sender's to repeat, in order.
                    let text = sent.to_string();
                    while producer
                        .send_ordered(Message::new("load", text.clone()), &(sent % 40).to_string())
                        .await
                        .is_err()
                    {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    sent += 1;
                }
            });
            if kill {
                broker.sigkill();
                broker.start();
            }
        }
    }
    runtime.block_on(async {
        in_order.until(sent).await;
        at_once.until(sent).await;
        println!("{sent} messages, {} and {} repeats", in_order.repeats(), at_once.repeats());
        for (client, ..) in &members {
            client.shutdown().await.unwrap();
        }
        assert!(!referee.foul.load(Ordering::SeqCst), "see FOUL above");
    });
}

/// A queue moves to a new member as soon as that one is there, and back as soon as it is gone.
#[test]
fn queues_move_within_seconds_and_without_a_poll_of_twenty() {
    let dir = tempdir("client-moves");
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), Options::default());
    broker.create_topic("load", QUEUES);
    runtime().block_on(async {
        let (referee, seen) = (Referee::default(), Seen::new());
        let clients =
            [member(broker.namesrv).build().unwrap(), member(broker.namesrv).build().unwrap()];
        let first = orderly_member(&clients[0], 0, &referee, &seen).await;
        until_assigned(&first, "load", QUEUES as usize).await;
        for leave_in_order in [true, false] {
            let began = std::time::Instant::now();
            let second = orderly_member(&clients[1], 1, &referee, &seen).await;
            until_assigned(&first, "load", QUEUES as usize / 2).await;
            until_assigned(&second, "load", QUEUES as usize / 2).await;
            match leave_in_order {
                true => second.shutdown().await.unwrap(),
                false => drop(second),
            }
            until_assigned(&first, "load", QUEUES as usize).await;
            let took = began.elapsed();
            assert!(took < Duration::from_secs(15), "{took:?}: longer than events take");
        }
        first.shutdown().await.unwrap();
    });
}
