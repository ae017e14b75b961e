//! A client of RingMQ and of any RocketMQ 4.9 or 5.x broker on the remoting port, for ordinary tokio programs.
//!
//! ```no_run
//! use ringmq_client::{Client, Message};
//!
//! #[tokio::main]
//! async fn main() -> ringmq_client::Result<()> {
//!     let client = Client::builder().name_server("127.0.0.1:9876").build()?;
//!     let producer = client.producer("greeters").start().await?;
//!     let receipt = producer.send(Message::new("greetings", "hello")).await?;
//!     println!("stored as {} in {:?}", receipt.message_id, receipt.queue);
//!     client.shutdown().await
//! }
//! ```
//!
//! # What there is
//!
//! * [`Client`]: connections, routes and heartbeats of one cluster, shared by all that is made from it. There is no global state: two
//!   clients know nothing of each other.
//! * [`Producer`]: [`send`](Producer::send), [`send_ordered`](Producer::send_ordered), [`send_batch`](Producer::send_batch),
//!   [`send_oneway`](Producer::send_oneway), [`request`](Producer::request) and the reply to it ([`Message::reply_to`]);
//!   [`TransactionProducer`] for messages that become visible when a local transaction commits.
//! * [`PushConsumer`]: brings messages to an async function, many at once or in the order of each queue; [`PullConsumer`]: gives them when they
//!   are asked for, with [`PullConsumer::poll`] or as a [`MessageStream`]. Both begin with [`Client::consumer`].
//! * [`Admin`] and [`Broker`]: typed requests of administrators, and of consumers: pulls, progress, locks.
//! * [`endpoint`]: taking part in heartbeats as a consumer, and serving what brokers ask of one.
//!
//! The crate's `examples` directory has a program for each of these.
//!
//! # One message on its way
//!
//! 1. [`Message`] is given away with the send. It is checked with stock's bounds ([`Error::Invalid`]), gets its unique id, and is
//!    compressed from 4 KiB on.
//! 2. The send waits for room among those on their way: by number and by bytes ([`Error::Busy`]). Nothing here has a queue without bound.
//! 3. The topic's route is known, or one name server after the other is asked. A topic that does not exist goes where the brokers' template
//!    says.
//! 4. The next queue in turn is chosen, on another broker than the one that just failed, and with [`LatencyFault`] on one that is well.
//! 5. The request waits for its answer on the one connection to that broker. The answer is a [`SendReceipt`], or the next try begins with an
//!    equal share of the time that is left.
//! 6. When no try is left, [`Error::Send`] tells each with its broker, code, time and cause.
//!
//! # And to a consumer
//!
//! ```no_run
//! use ringmq_client::Client;
//!
//! #[tokio::main]
//! async fn main() -> ringmq_client::Result<()> {
//!     let client = Client::builder().name_server("127.0.0.1:9876").build()?;
//!     let consumer = client.consumer("readers").subscribe("greetings", "*");
//!     let consumer = consumer
//!         .start(|message| async move { println!("{}", String::from_utf8_lossy(&message.body)) })
//!         .await?;
//!     tokio::time::sleep(std::time::Duration::from_secs(60)).await;
//!     consumer.shutdown().await
//! }
//! ```
//!
//! 1. Heartbeats tell every broker that this client is a member of the group. The queues are divided among the members, by the same rule in
//!    each of them ([`Allocate`]), whenever one comes or goes.
//! 2. Each queue is pulled by a task of its own, one pull after the other; the broker holds a pull until there is a message. Pulls wait while too much
//!    is in memory.
//! 3. The listener is called with the message. When it is done with it and all before it in the queue, the group's progress moves on; it is
//!    stored with the next pull, each 5 s, and at the end.
//! 4. A message whose listener failed goes back to the broker, which delivers it again later, and at last keeps it as a dead letter
//!    ([`Outcome`]). An orderly consumer tries it again before it goes on.
//!
//! Every message is consumed at least once, and more than once when a member ends without a shutdown, or a queue changes hands in the
//! wrong moment.
//!
//! # Futures, drops and ends
//!
//! Every future here may be dropped at any point: it leaves all tables and bounds. A request that was written by then may be carried out.
//!
//! A retried send may be stored twice, with the same unique id. [`SendFailure::may_be_stored`] says when a failed send may have been
//! stored.
//!
//! Handles are `Send`, `Sync` and cheap to clone. [`Client::shutdown`] ends in order: consumers and producers finish, brokers are told,
//! connections are closed. Dropping the last handle ends at once.
//!
//! # Features
//!
//! `lz4` and `zstd` (both on): compression of bodies, both ways. zlib is always there. Consumers written in Go and C++ read zlib only.
//!
//! `tls` (off): `ClientBuilder::tls` with a `Tls`, by rustls. Stock brokers and name servers take TLS on their ordinary port; RingMQ's
//! do not yet.
//!
//! Requests are signed for brokers that ask who sends them with [`ClientBuilder::credentials`].
//!
//! What happens is told to [`tracing`]: a span `send` with topic and id around each send, events at `debug` for what mends
//! itself and at `warn` for what does not. Bodies are never logged.

#![deny(missing_docs)]

mod admin;
mod broker;
mod client;
mod compress;
mod consumer;
mod deadline;
pub mod endpoint;
mod error;
#[cfg(test)]
#[allow(dead_code, reason = "a kit: not every test needs all of it")]
mod fake;
mod id;
mod instance;
mod message;
mod producer;
mod remoting;
mod route;
mod serve;
mod signing;
mod validate;

pub use ringmq_net as protocol;
pub use ringmq_net::body::MessageQueue;

pub use admin::{Admin, ORDER_NAMESPACE};
pub use broker::{
    Broker, Lock, PullReply, PullRequest, PullStatus, QueryMessages, ResetOffsets, SendBack,
};
pub use client::{Client, ClientBuilder};
pub use compress::{Compression, DECOMPRESSED_BYTES_MAX};
pub use consumer::{
    Allocate, BatchOutcome, ConsumeFrom, ConsumerBuilder, Divide, Filter, IntoBatchOutcome,
    IntoOutcome, MessageStream, Outcome, PullConsumer, PushConsumer, RoomOf, VIRTUAL_NODES,
};
pub use error::{Attempt, BatchFailure, Error, Result, SendFailure, client_code};
pub use id::unique_id_time_ms;
pub use message::{Message, ReceivedMessage, names};
pub use producer::{
    LatencyFault, Producer, ProducerBuilder, SendReceipt, SendStatus, TransactionProducer,
    TransactionProducerBuilder, TransactionReceipt, TransactionState,
};
#[cfg(feature = "tls")]
pub use remoting::tls::Tls;
pub use route::TopicRoute;
pub use signing::Credentials;
pub use validate::{GROUP_CHARS_MAX, PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX};
