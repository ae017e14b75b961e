//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ringmq_net::frame::SerializeType;
use serde::Serialize;

use crate::error::LoadError;
use crate::raw::window::WINDOW_MAX;
use crate::sizes::Sizes;
use crate::stamp::STAMP_BYTES;

/// Largest queue number that a send has digits for.
const QUEUES_MAX: usize = 99_999;
/// Largest topic number that a send has digits for.
const TOPICS_MAX: usize = 100_000;
/// Most tags to draw from.
const TAGS_MAX: usize = 1_000;
/// Most keys: they have ten digits.
const KEYS_MAX: u64 = 10_000_000_000;
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
    /// Send and receive with any number of groups: how old is a message when it arrives?
    E2e(EndToEndOptions),
    /// Send what was recorded, when it was recorded, or faster or slower.
    Replay(ReplayOptions),
    /// Run one scenario against several brokers in turn, several times, and tell how they compare.
    Compare(CompareOptions),
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
    /// Drive by pre-encoded frames over plain sockets, which costs least, instead of through the client crate.
    #[arg(long)]
    pub raw: bool,
    /// A broker's address (of one shard) with --raw; may be repeated.
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
    /// Form of request headers with --raw; clients send JSON.
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
    /// Process id of the broker: its CPU time and memory are measured. May be repeated: what all of them use is added up.
    #[arg(long, value_name = "PID")]
    pub pid: Vec<i32>,
    /// A slave of the brokers: how far it is behind is measured, by asking both for the end of their logs. May be repeated; all masters together
    /// are put beside all slaves together.
    #[arg(long, value_name = "HOST:PORT")]
    pub slave: Vec<String>,
    /// Write the report as JSON; `-` is the standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page with plots, which needs nothing but a browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the latencies of each second as an HdrHistogram log (V2), which its tools read.
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,
    /// No progress.
    #[arg(long)]
    pub quiet: bool,
}

/// What senders need.
#[derive(Clone, Debug, Args, Serialize)]
pub struct SendOptions {
    /// Connections in all, spread over the brokers; without --raw, clients, each with a connection to every broker.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub connections: usize,
    /// Requests under way on a connection (or of a client), at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub window: usize,
    /// Bytes of a message's body: `1024`, `16k`, `100..4k` (evenly), `200:70,1k:25,64k:5` (weights), or `lognormal:MEDIAN:P99`.
    #[arg(long, value_name = "SIZES", default_value = "1024")]
    pub size: Sizes,
    /// Messages in a request; above 1 they travel as one batch, all of one size.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Messages a second in all, at intended times (open loop); latency counts from the intended time.
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Tag of the messages, or several with commas between them, drawn for each message; empty for none.
    #[arg(long, default_value = "TagA")]
    pub tag: String,
    /// Give each message one of so many keys.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keys: u64,
    /// Delay level of the messages.
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    pub delay_level: u32,
    /// Close so many connections a second and make them anew, each in its turn: producers that come and go.
    #[arg(long, value_name = "PER_SECOND")]
    pub churn: Option<f64>,
}

/// How the knee is looked for.
#[derive(Clone, Debug, Args, Serialize)]
pub struct KneeOptions {
    /// Find the highest rate whose 99th percentile stays under this; begins at --rate (1000 unless given) and doubles it.
    #[arg(long, value_name = "MS")]
    pub knee_p99: Option<f64>,
    /// How near the rates must be between which the knee is, as a part.
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    pub knee_precision: f64,
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
    /// Read everything back and account for every message: lost, duplicated, reordered, corrupt.
    #[arg(long)]
    pub verify: bool,
    /// Keep which messages were acknowledged, for `consume --journal`.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// How the knee is looked for.
    #[command(flatten)]
    #[serde(flatten)]
    pub knee: KneeOptions,
}

/// `consume`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct ConsumeOptions {
    /// What all modes need.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonOptions,
    /// Connections in all with --raw, one for each queue unless given; clients have one to each broker.
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
    /// Account for every message that this journal of `produce` names: lost, duplicated, reordered, corrupt.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Record what is received, for `replay`: when it was born, its size and its tag.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
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
    /// How long the next message is waited for after the last was acknowledged.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub grace: f64,
    /// So many of the groups are slow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slow_groups: usize,
    /// How long a slow group works on each message, as long as messages are sent; then it catches up.
    #[arg(long, value_name = "US", default_value_t = 1000)]
    pub slow_us: u64,
    /// Account for every message at every group: lost, duplicated, reordered, corrupt.
    #[arg(long)]
    pub verify: bool,
    /// Producer group, and the first part of the consumer groups' names.
    #[arg(long, default_value = "loadtest-e2e")]
    pub group: String,
    /// How the knee is looked for.
    #[command(flatten)]
    #[serde(flatten)]
    pub knee: KneeOptions,
}

/// `replay`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct ReplayOptions {
    /// What `consume --record` wrote, or any file of that form.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// What all modes need.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonOptions,
    /// Connections in all, spread over the brokers; without --raw, clients, each with a connection to every broker.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub connections: usize,
    /// Requests under way on a connection (or of a client), at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub window: usize,
    /// How many times as fast as it was recorded.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
    /// Send everything to --topic, whatever topics the trace names.
    #[arg(long)]
    pub redirect: bool,
    /// Producer group.
    #[arg(long, default_value = "loadtest-replay")]
    pub group: String,
}

/// `compare`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct CompareOptions {
    /// The scenario; `loadtest/scenarios` has some.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// Rounds; as many as the scenario says unless given.
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Only these endpoints; may be repeated. The first is what the others are compared with.
    #[arg(long, value_name = "NAME")]
    pub endpoint: Vec<String>,
    /// Only rows whose names contain this; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub row: Vec<String>,
    /// Sets a variable of the scenario; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Where the endpoints' stores are, in place of the scenario's `dir`: a directory on the disk that is to be measured.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tell what would be run, and run nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Write all figures of all rounds as JSON. This and the other files are brought up to date after each round.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the comparison as a page with plots, which needs nothing but a browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the table as Markdown, with what it was measured by and where, as it stands in documentation.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// No progress of the single runs.
    #[arg(long)]
    pub quiet: bool,
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

fn refuse<T>(why: impl Into<String>) -> Result<T, LoadError> {
    Err(LoadError::Options(why.into()))
}

fn bound(name: &str, value: usize, least: usize, most: usize) -> Result<(), LoadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(format!("{name} is {value}: it must be {least} to {most}"))
}

fn positive(name: &str, value: f64, most: f64) -> Result<(), LoadError> {
    if value > 0.0 && value <= most {
        return Ok(());
    }
    refuse(format!("{name} must be above 0 and at most {most}"))
}

impl CommonOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.addr.is_empty() && self.namesrv.is_none() {
            return refuse("say where to: --addr or --namesrv");
        }
        bound("--threads", self.threads, 1, 1024)?;
        if let Some(queues) = self.queues {
            bound("--queues", queues, 1, QUEUES_MAX)?;
        }
        for (name, value) in [("--seconds", self.seconds), ("--warmup", self.warmup)] {
            let fits = value.is_none_or(|value| (0.0..=1e6).contains(&value));
            if !fits {
                return refuse(format!("{name} must be 0 to 1000000"));
            }
        }
        Ok(())
    }
}

impl SendOptions {
    /// Checks what clap can't. A body that is `stamped` must have room for it.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self, stamped: bool) -> Result<(), LoadError> {
        bound("--connections", self.connections, 1, CONNECTIONS_MAX)?;
        bound("--window", self.window, 1, WINDOW_MAX)?;
        bound("--batch", self.batch, 1, 1 << 20)?;
        bound("--size", self.size.max(), if stamped { STAMP_BYTES } else { 1 }, 16 << 20)?;
        bound("the number of --tag", self.tags().len(), 1, TAGS_MAX)?;
        if self.keys > KEYS_MAX {
            return refuse(format!("--keys is {}: it must be at most {KEYS_MAX}", self.keys));
        }
        if self.batch > 1 && self.delay_level > 0 {
            return refuse("--delay-level: brokers refuse delays of messages in a batch");
        }
        for (name, value) in [("--rate", self.rate), ("--churn", self.churn)] {
            value.map_or(Ok(()), |value| positive(name, value, 1e9))?;
        }
        Ok(())
    }

    /// Sizes of bodies: none shorter than a stamp if they have one, and none empty.
    #[must_use]
    pub fn sizes(&self, stamped: bool) -> Sizes {
        self.size.at_least(if stamped { STAMP_BYTES } else { 1 })
    }

    /// What a replay sends with; sizes, tags and times come from the trace.
    #[must_use]
    pub fn of_replay(connections: usize, window: usize) -> Self {
        SendOptions {
            connections,
            window,
            size: Sizes::fixed(0),
            batch: 1,
            rate: None,
            tag: String::new(),
            keys: 0,
            delay_level: 0,
            churn: None,
        }
    }

    /// The tags that are drawn from.
    #[must_use]
    pub fn tags(&self) -> Vec<String> {
        self.tag.split(',').map(|tag| tag.trim().to_owned()).collect()
    }
}

impl KneeOptions {
    fn check(&self) -> Result<(), LoadError> {
        if let Some(bound) = self.knee_p99 {
            positive("--knee-p99", bound, 1e6)?;
            positive("--knee-precision", self.knee_precision, 1.0)?;
        }
        Ok(())
    }
}

impl ProduceOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        self.send.check(self.stamped())?;
        self.knee.check()?;
        bound("--topics", self.topics, 1, TOPICS_MAX)?;
        if self.topics > 1 && self.common.raw && self.common.addr.is_empty() {
            return refuse(
                "--topics needs --addr with --raw: each topic could have a route of its own",
            );
        }
        if self.verify && (self.topics > 1 || self.send.delay_level > 0) {
            return refuse(
                "--verify reads one topic back at once: it goes with neither --topics nor --delay-level",
            );
        }
        if self.knee.knee_p99.is_some()
            && (self.burst || self.stamped() || self.common.count.is_some())
        {
            return refuse("--knee-p99 goes with none of --burst, --count, --verify and --journal");
        }
        Ok(())
    }

    /// Whether bodies carry stamps.
    #[must_use]
    pub fn stamped(&self) -> bool {
        self.verify || self.journal.is_some()
    }
}

impl ConsumeOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        bound("--batch", self.batch, 1, 1 << 20)?;
        if self.journal.is_some() && (self.expression != "*" || self.common.count.is_some()) {
            return refuse(
                "--journal accounts for all messages: it goes with neither --expression nor --count",
            );
        }
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
        self.knee.check()?;
        if !(0.0..=1e6).contains(&self.grace) {
            return refuse("--grace must be 0 to 1000000");
        }
        bound("--pull-batch", self.pull_batch, 1, 1 << 20)?;
        if self.knee.knee_p99.is_some() && (self.verify || self.common.count.is_some()) {
            return refuse("--knee-p99 goes with neither --count nor --verify");
        }
        bound("--groups", self.groups, 1, 10_000)?;
        bound("--slow-groups", self.slow_groups, 0, self.groups)
    }
}

impl ReplayOptions {
    /// Checks what clap can't.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), LoadError> {
        bound("--connections", self.connections, 1, CONNECTIONS_MAX)?;
        bound("--window", self.window, 1, WINDOW_MAX)?;
        positive("--speed", self.speed, 1e6)?;
        if self.common.addr.is_empty() && !self.redirect {
            return refuse(
                "replay needs --addr or --redirect: each topic could have a route of its own",
            );
        }
        Ok(())
    }
}
