//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ringmq_net::frame::SerializeType;
use serde::Serialize;

use crate::error::LoadError;
use crate::stamp::STAMP_BYTES;
use crate::window::WINDOW_MAX;

/// Largest queue number that a send has digits for.
const QUEUES_MAX: usize = 99_999;
/// Largest topic number that a send has digits for.
const TOPICS_MAX: usize = 100_000;
/// Most connections of a run: they are told apart by 16 bits of each key.
const CONNECTIONS_MAX: usize = 1 << 16;

/// Load for RingMQ and for any RocketMQ 4.x broker, and what it does to it.
#[derive(Debug, Parser)]
#[command(name = "ringmq-loadtest", version, max_term_width = 110)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub mode: Mode,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Send messages: as fast as answers come (closed loop) or at a rate (open loop).
    Produce(ProduceOptions),
    /// Pull what is in the queues.
    Consume(ConsumeOptions),
    /// Send at a rate and receive with any number of groups: how old is a message when it arrives?
    E2e(EndToEndOptions),
    /// Be a broker that stores nothing, until killed: measured against it, harness and sockets show their own limit.
    Echo(EchoOptions),
}

/// Form of request headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Serialization {
    /// What stock clients send unless told otherwise.
    Json,
    /// The ROCKETMQ form.
    Binary,
}

impl From<Serialization> for SerializeType {
    fn from(form: Serialization) -> Self {
        match form {
            Serialization::Json => SerializeType::Json,
            Serialization::Binary => SerializeType::Binary,
        }
    }
}

/// What all modes need.
#[derive(Clone, Debug, Args, Serialize)]
pub struct CommonOptions {
    /// A broker's address (of one shard); may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub addr: Vec<String>,
    /// Name servers that know the topic's brokers; not asked when --addr is given.
    #[arg(long, value_name = "HOST:PORT[;HOST:PORT]", env = "NAMESRV_ADDR")]
    pub namesrv: Option<String>,
    /// Topic.
    #[arg(long, default_value = "loadtest")]
    pub topic: String,
    /// Queues of each broker to use; with a name server, all that the topic has.
    #[arg(long, value_name = "N")]
    pub queues: Option<usize>,
    /// Threads of the harness (end to end: for each side).
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Form of request headers.
    #[arg(long, value_enum, default_value_t = Serialization::Json)]
    pub serialize: Serialization,
    /// How long to measure, after the warm-up.
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Stop after so many messages.
    #[arg(long, value_name = "MESSAGES")]
    pub count: Option<u64>,
    /// How long to run before it is measured; 2 seconds if a time ends the run, 0 if a count does.
    #[arg(long, value_name = "S")]
    pub warmup: Option<f64>,
    /// Process id of the broker: its CPU time and memory are measured.
    #[arg(long, value_name = "PID")]
    pub pid: Option<i32>,
    /// Write the report as JSON; `-` is the standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No progress lines.
    #[arg(long)]
    pub quiet: bool,
}

/// What senders need.
#[derive(Clone, Debug, Args, Serialize)]
pub struct SendOptions {
    /// Connections in all, spread over the brokers.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub connections: usize,
    /// Requests under way on a connection, at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub window: usize,
    /// Bytes of a message's body.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    pub size: usize,
    /// Messages in a request; above 1 they travel as one batch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Messages a second in all, at intended times (open loop); latency counts from the intended time.
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Tag of the messages; empty for none.
    #[arg(long, default_value = "TagA")]
    pub tag: String,
}

/// `produce`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct ProduceOptions {
    /// What all modes need.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonOptions,
    /// What senders need.
    #[command(flatten)]
    #[serde(flatten)]
    pub send: SendOptions,
    /// Topics in turn, named after the topic with a dash and a number of five digits; for --addr only.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub topics: usize,
    /// Closed loop: send a whole window, wait for all answers, send the next.
    #[arg(long, conflicts_with = "rate")]
    pub burst: bool,
    /// Producer group.
    #[arg(long, default_value = "loadtest-producer")]
    pub group: String,
}

/// `consume`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct ConsumeOptions {
    /// What all modes need.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonOptions,
    /// Connections in all; one for each queue unless given.
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Where to begin: `min`, `max`, or a queue offset.
    #[arg(long, value_name = "OFFSET", default_value = "min")]
    pub from: StartAt,
    /// Messages of a pull, at most. Brokers have limits of their own.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub batch: usize,
    /// Wait for more at the end of a queue (long polling), instead of being done with it.
    #[arg(long)]
    pub follow: bool,
    /// Tag expression.
    #[arg(long, default_value = "*")]
    pub expression: String,
    /// Consumer group.
    #[arg(long, default_value = "loadtest-consumer")]
    pub group: String,
}

/// `e2e`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct EndToEndOptions {
    /// What all modes need.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonOptions,
    /// What senders need.
    #[command(flatten)]
    #[serde(flatten)]
    pub send: SendOptions,
    /// Consumer groups, each of which receives everything.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub groups: usize,
    /// Messages of a pull, at most.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub pull_batch: usize,
    /// How long messages are waited for after the last was acknowledged.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub grace: f64,
    /// Producer group, and the first part of the consumer groups' names.
    #[arg(long, default_value = "loadtest-e2e")]
    pub group: String,
}

/// `echo`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct EchoOptions {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10811")]
    pub listen: std::net::SocketAddr,
}

/// Where a consumer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// The first message there is.
    Min,
    /// What comes from now on.
    Max,
    /// A queue offset.
    Offset(u64),
}

impl std::str::FromStr for StartAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "min" => Ok(StartAt::Min),
            "max" => Ok(StartAt::Max),
            _ => text
                .parse()
                .map(StartAt::Offset)
                .map_err(|_| format!("{text} is neither min nor max nor a queue offset")),
        }
    }
}

fn bound(name: &str, value: usize, least: usize, most: usize) -> Result<(), LoadError> {
    let fits = (least..=most).contains(&value);
    let error = || LoadError::Options(format!("{name} is {value}: it must be {least} to {most}"));
    fits.then_some(()).ok_or_else(error)
}

impl CommonOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.addr.is_empty() && self.namesrv.is_none() {
            return Err(LoadError::Options("say where to: --addr or --namesrv".into()));
        }
        bound("--threads", self.threads, 1, 1024)?;
        if let Some(queues) = self.queues {
            bound("--queues", queues, 1, QUEUES_MAX)?;
        }
        for (name, value) in [("--seconds", self.seconds), ("--warmup", self.warmup)] {
            let fits = value.is_none_or(|value| (0.0..=1e6).contains(&value));
            if !fits {
                return Err(LoadError::Options(format!("{name} must be 0 to 1000000")));
            }
        }
        Ok(())
    }
}

impl SendOptions {
    /// Checks what clap can't. `stamped` bodies have a least size.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self, stamped: bool) -> Result<(), LoadError> {
        bound("--connections", self.connections, 1, CONNECTIONS_MAX)?;
        bound("--window", self.window, 1, WINDOW_MAX)?;
        bound("--batch", self.batch, 1, 1 << 20)?;
        bound("--size", self.size, if stamped { STAMP_BYTES } else { 1 }, 16 << 20)?;
        match self.rate {
            Some(rate) if !(rate > 0.0 && rate <= 1e9) => {
                Err(LoadError::Options("--rate must be above 0 and at most 1e9".into()))
            }
            _ => Ok(()),
        }
    }
}

impl ProduceOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        self.send.check(false)?;
        bound("--topics", self.topics, 1, TOPICS_MAX)?;
        if self.topics > 1 && self.common.addr.is_empty() {
            return Err(LoadError::Options(
                "--topics needs --addr: each topic could have a route of its own".into(),
            ));
        }
        Ok(())
    }
}

impl ConsumeOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        bound("--batch", self.batch, 1, 1 << 20)?;
        bound("--connections", self.connections.unwrap_or(1), 1, CONNECTIONS_MAX)
    }
}

impl EndToEndOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        self.send.check(true)?;
        if !(0.0..=1e6).contains(&self.grace) {
            return Err(LoadError::Options("--grace must be 0 to 1000000".into()));
        }
        bound("--pull-batch", self.pull_batch, 1, 1 << 20)?;
        bound("--groups", self.groups, 1, 10_000)
    }
}
