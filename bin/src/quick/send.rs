//! `ringmq send`: messages from the command line, or one a line from standard input.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::SendHeader;

use super::QuickError;
use super::link::Link;
use super::route::{For, QueueAt, TEMPLATE_TOPIC, connect_namesrv, queues};

/// Flags of `ringmq send`.
#[derive(Debug, Clone, Args)]
pub struct SendArgs {
    /// Name servers, joined by `;`.
    #[arg(long, value_name = "HOST:PORT", env = "NAMESRV_ADDR", default_value = "127.0.0.1:9876")]
    pub namesrv: String,
    /// Topic; made by the broker if it is new and the broker allows it.
    pub topic: String,
    /// Tag, for consumers that filter.
    #[arg(long)]
    pub tag: Option<String>,
    /// Key under which the message can be queried.
    #[arg(long)]
    pub key: Option<String>,
    /// Delay level, 1 to 18: 1s 5s 10s 30s 1m …
    #[arg(long, value_name = "LEVEL")]
    pub delay: Option<u32>,
    /// Bodies to send; without any, each line of standard input is one.
    #[arg(value_name = "BODY")]
    pub bodies: Vec<String>,
}

/// Sends, and prints where each message went.
///
/// # Errors
/// [`QuickError`]; messages before the failing one have been sent and printed.
pub fn send(args: &SendArgs) -> Result<(), QuickError> {
    let mut sender = Sender::new(args)?;
    if args.bodies.is_empty() {
        for line in std::io::stdin().lock().lines() {
            sender.send(&line.map_err(QuickError::Terminal)?)?;
        }
        return Ok(());
    }
    args.bodies.iter().try_for_each(|body| sender.send(body))
}

struct Sender<'a> {
    args: &'a SendArgs,
    queues: Vec<QueueAt>,
    links: HashMap<String, Link>,
    sent: usize,
    unique: u64,
}

impl<'a> Sender<'a> {
    fn new(args: &'a SendArgs) -> Result<Self, QuickError> {
        for text in [args.tag.as_deref(), args.key.as_deref()].into_iter().flatten() {
            if text.is_empty() || text.chars().any(char::is_control) {
                let why = format!("{text:?} cannot be a tag or key: use visible characters");
                return Err(QuickError::Argument(why));
            }
        }
        let mut namesrv = connect_namesrv(&args.namesrv)?;
        let found = match queues(&mut namesrv, &args.topic, For::Writing)? {
            Some(found) => found,
            None => queues(&mut namesrv, TEMPLATE_TOPIC, For::Writing)?.unwrap_or_default(),
        };
        if found.is_empty() {
            return Err(QuickError::NoQueue(args.topic.clone()));
        }
        let unique = u64::from(std::process::id()) << 32;
        Ok(Sender { args, queues: found, links: HashMap::new(), sent: 0, unique })
    }

    fn send(&mut self, body: &str) -> Result<(), QuickError> {
        let at = self.queues.get(self.sent % self.queues.len()).cloned();
        let Some(at) = at else { return Err(QuickError::NoQueue(self.args.topic.clone())) };
        self.sent += 1;
        let born = now_ms();
        let id = format!("{born:016X}{:016X}", self.unique + self.sent as u64);
        let mut properties = vec![("UNIQ_KEY", id.clone()), ("WAIT", "true".to_owned())];
        properties.extend(self.args.tag.clone().map(|tag| ("TAGS", tag)));
        properties.extend(self.args.key.clone().map(|key| ("KEYS", key)));
        properties.extend(self.args.delay.map(|level| ("DELAY", level.to_string())));
        let text: Vec<String> =
            properties.iter().map(|(name, value)| format!("{name}\u{1}{value}")).collect();
        let text = text.join("\u{2}");
        let header = SendHeader {
            producer_group: "ringmq-send",
            topic: &self.args.topic,
            default_topic: TEMPLATE_TOPIC,
            default_topic_queue_nums: 4,
            queue_id: at.queue_id,
            born_timestamp: born,
            properties: &text,
            ..SendHeader::default()
        };
        let command = Command::request(request::SEND_MESSAGE_V2)
            .with_header(&header.ext_v2())
            .with_body(body.as_bytes().to_vec());
        if !self.links.contains_key(&at.addr) {
            self.links.insert(at.addr.clone(), Link::connect(&at.addr)?);
        }
        let Some(link) = self.links.get_mut(&at.addr) else { return Ok(()) };
        let answer = link.call(command, std::time::Duration::from_secs(3))?;
        let stored = [
            response::SUCCESS,
            response::FLUSH_DISK_TIMEOUT,
            response::SLAVE_NOT_AVAILABLE,
            response::FLUSH_SLAVE_TIMEOUT,
        ];
        if !stored.contains(&answer.code) {
            return Err(link.refused(&answer));
        }
        let field = |name| answer.ext(name).unwrap_or("-");
        let line = format!(
            "sent {id} to {} queue {} offset {} ackLevel {} msgId {}",
            at.broker,
            field("queueId"),
            field("queueOffset"),
            field("ackLevel"),
            field("msgId"),
        );
        writeln!(std::io::stdout(), "{line}").map_err(QuickError::Terminal)
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
