//! A foreign client program: started with a list of scenarios, it reports as JSON lines what it sent and what it got.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::{Broker, peers, process::Process};

/// Which program, in which version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Stock Java client of this version.
    Java(&'static str),
    /// Stock Go client v2.
    Go,
    /// The C++ client by its Python wheel.
    Python,
}

impl Client {
    /// A word for topics and files.
    pub fn tag(self) -> String {
        match self {
            Client::Java(version) => format!("java{}", version.replace('.', "")),
            Client::Go => "go".to_owned(),
            Client::Python => "python".to_owned(),
        }
    }

    /// Fetches and builds it; `false` (after saying so) if the machine lacks the tools.
    pub fn fetch(self) -> bool {
        let (tools, what): (&[&str], _) = match self {
            Client::Java(_) => (&["java", "javac", "mvn"], "java"),
            Client::Go => (&["go"], "go"),
            Client::Python => (&["python3"], "python"),
        };
        if !tools.iter().all(|t| super::have(t, "foreign clients")) {
            return false;
        }
        peers::fetch(what);
        true
    }

    fn command(self, home: &Path) -> Command {
        let cache = peers::cache_dir();
        let mut c = match self {
            Client::Java(version) => {
                let mut c = Command::new("java");
                c.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
                c.arg(format!("-Duser.home={}", home.display()));
                c.arg(format!("-Drocketmq.client.logRoot={}", home.display()));
                c.arg("-cp");
                c.arg(format!(
                    "{0}/rocketmq-client-{version}/*:{0}/classes-{version}",
                    cache.display()
                ));
                c.arg("Scenarios");
                c
            }
            Client::Go => Command::new(cache.join("go-client")),
            Client::Python => {
                let mut c = Command::new(cache.join("python/bin/python"));
                c.arg(peers::foreign_dir().join("python/client.py"));
                c
            }
        };
        c.env("HOME", home).env_remove("NAMESRV_ADDR");
        c
    }

    /// Starts the program on `scenarios`, each with a topic `PREFIX_SCENARIO` of `queues` queues in all.
    pub fn start(
        self,
        broker: &Broker,
        dir: &Path,
        prefix: &str,
        queues: u32,
        scenarios: &[&str],
    ) -> Running {
        let home = dir.join(format!("home-{prefix}"));
        std::fs::create_dir_all(&home).expect("a home for the client");
        let mut c = self.command(&home);
        c.arg(broker.namesrv.to_string()).arg(prefix).arg(queues.to_string()).args(scenarios);
        let out = dir.join(format!("{prefix}.jsonl"));
        let process =
            Process::spawn_with_output(&self.tag(), c, &out, &dir.join(format!("{prefix}.err")));
        Running {
            client: self,
            process,
            out,
            scenarios: scenarios
                .iter()
                .map(|s| s.split('=').next().unwrap_or(s).to_owned())
                .collect(),
        }
    }
}

/// A client program at work.
pub struct Running {
    pub client: Client,
    pub process: Process,
    out: PathBuf,
    scenarios: Vec<String>,
}

impl Running {
    /// What it reported up to now.
    pub fn so_far(&self) -> Vec<Event> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            // A native library may write lines of its own.
            .filter(|l| l.starts_with('{'))
            .map(|l| {
                serde_json::from_str(l)
                    .unwrap_or_else(|e| panic!("{}: {e}: {l}", self.client.tag()))
            })
            .collect()
    }

    /// Waits for the end of the program and gives its report.
    pub fn finish(&mut self, limit: Duration) -> Vec<Event> {
        let status = self.process.wait(limit);
        let events = self.so_far();
        let done: Vec<&str> =
            events.iter().filter(|e| e.kind == "done").map(|e| e.scenario.as_str()).collect();
        let left: Vec<&String> =
            self.scenarios.iter().filter(|s| !done.contains(&s.as_str())).collect();
        assert!(
            status.is_some_and(|s| s.success()) && left.is_empty(),
            "{} did not come to its end in {limit:?} ({status:?}); unfinished: {left:?}",
            self.client.tag()
        );
        events
    }
}

/// One line of a report. Fields that a client does not know are absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    #[serde(rename = "s")]
    pub scenario: String,
    /// `sent`, `recv`, `value`, `fail`, `short` or `done`.
    #[serde(rename = "e")]
    pub kind: String,
    pub how: Option<String>,
    /// Which consumer.
    pub who: Option<String>,
    pub topic: Option<String>,
    pub broker: Option<String>,
    pub queue: Option<i32>,
    pub offset: Option<i64>,
    /// Number of the message in its scenario; absent from what the scenario did not send.
    pub seq: Option<i64>,
    #[serde(rename = "msgId")]
    pub unique_id: Option<String>,
    #[serde(rename = "offsetMsgId")]
    pub offset_id: Option<String>,
    pub status: Option<String>,
    pub reconsume: i32,
    pub crc: Option<String>,
    pub tags: Option<String>,
    pub keys: Option<String>,
    /// When, in milliseconds.
    pub at: i64,
    pub born: i64,
    /// When the broker stored it where it was received from; 0 from clients that do not tell.
    #[serde(default)]
    pub stored: i64,
    pub text: Option<String>,
    pub what: Option<String>,
    pub value: Option<i64>,
    pub want: Option<i64>,
    pub have: Option<i64>,
    pub origin: Option<String>,
}
