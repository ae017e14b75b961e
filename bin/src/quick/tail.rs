//! `ringmq tail`: prints a topic's messages as they come. Stores no progress and disturbs no consumer.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::{PullHeader, pull_flag};
use ringmq_net::record::{Properties, RecordView, decode};

use super::QuickError;
use super::link::Link;
use super::route::{For, QueueAt, connect_namesrv, queues};

/// How long one pull waits for a message.
const WAIT: Duration = Duration::from_secs(15);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// The first message that is still there.
    First,
    /// Only messages from now on.
    Now,
}

/// Flags of `ringmq tail`.
#[derive(Debug, Clone, Args)]
pub struct TailArgs {
    /// Name servers, joined by `;`.
    #[arg(long, value_name = "HOST:PORT", env = "NAMESRV_ADDR", default_value = "127.0.0.1:9876")]
    pub namesrv: String,
    /// Topic.
    pub topic: String,
    /// Tags to print, joined by `||`.
    #[arg(long, default_value = "*")]
    pub tags: String,
    /// Where to begin.
    #[arg(long, default_value = "now")]
    pub from: From,
    /// End after so many messages.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// Prints messages, one a line, until `--count` is reached or the process is ended.
///
/// # Errors
/// [`QuickError`], also when a broker goes away.
pub fn tail(args: &TailArgs) -> Result<(), QuickError> {
    let mut namesrv = connect_namesrv(&args.namesrv)?;
    let found = queues(&mut namesrv, &args.topic, For::Reading)?.unwrap_or_default();
    if found.is_empty() {
        return Err(QuickError::NoQueue(args.topic.clone()));
    }
    let (lines, received) = channel();
    for at in found {
        let (args, lines) = (args.clone(), lines.clone());
        std::thread::Builder::new()
            .name(format!("tail-{}-{}", at.broker, at.queue_id))
            .stack_size(512 << 10)
            .spawn(move || {
                if let Err(error) = follow(&args, &at, &lines) {
                    // The receiver is gone once enough was printed: then nobody wants to know.
                    let _ = lines.send(Err(error));
                }
            })
            .map_err(QuickError::Terminal)?;
    }
    drop(lines);
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let Ok(line) = received.recv() else { break };
        let mut out = std::io::stdout();
        writeln!(out, "{}", line?).and_then(|()| out.flush()).map_err(QuickError::Terminal)?;
        left -= 1;
    }
    Ok(())
}

type Lines = Sender<Result<String, QuickError>>;

/// Follows one queue until nobody listens any more.
fn follow(args: &TailArgs, at: &QueueAt, lines: &Lines) -> Result<(), QuickError> {
    let mut link = Link::connect(&at.addr)?;
    let bound = match args.from {
        From::First => request::GET_MIN_OFFSET,
        From::Now => request::GET_MAX_OFFSET,
    };
    let ask =
        Command::request(bound).with_ext("topic", &args.topic).with_ext("queueId", at.queue_id);
    let mut offset = number(&link.call_ok(ask)?, "offset");
    loop {
        let header = PullHeader {
            consumer_group: "TOOLS_CONSUMER",
            topic: &args.topic,
            queue_id: at.queue_id,
            queue_offset: offset,
            max_msg_nums: 32,
            sys_flag: pull_flag::SUSPEND | pull_flag::SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_millis: WAIT.as_millis() as i64,
            subscription: Some(&args.tags),
            sub_version: 0,
            expression_type: Some("TAG"),
        };
        let command = Command::request(request::PULL_MESSAGE).with_header(&header.ext());
        let answer = link.call(command, WAIT)?;
        match answer.code {
            response::SUCCESS => {
                let mut rest: &[u8] = &answer.body;
                while !rest.is_empty() {
                    let record = decode(rest).map_err(|error| QuickError::Protocol {
                        addr: at.addr.clone(),
                        why: error.to_string(),
                    })?;
                    if lines.send(Ok(describe(at, &record))).is_err() {
                        return Ok(());
                    }
                    rest = rest.get(record.total_size()..).unwrap_or_default();
                }
            }
            response::PULL_NOT_FOUND
            | response::PULL_RETRY_IMMEDIATELY
            | response::PULL_OFFSET_MOVED => {}
            _ => return Err(link.refused(&answer)),
        }
        offset = number(&answer, "nextBeginOffset");
    }
}

fn number(answer: &Command, name: &str) -> i64 {
    answer.ext(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn describe(at: &QueueAt, record: &RecordView<'_>) -> String {
    let text = std::str::from_utf8(record.properties()).unwrap_or_default();
    let known = Properties::new(text).known();
    let body = String::from_utf8_lossy(record.body());
    format!(
        "{} queue {} offset {} tag {} key {} {body}",
        at.broker,
        at.queue_id,
        record.queue_offset(),
        known.tags.unwrap_or("-"),
        known.keys.unwrap_or("-"),
    )
}
