//! A scenario: the endpoints that are compared and the rows that they go through. TOML; `loadtest/scenarios` has some, with all keys explained.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::LoadError;

/// Most names that may stand for one another before it is taken for a circle.
const DEPTH_MAX: usize = 8;

/// A scenario as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What is compared.
    pub title: String,
    /// How often.
    #[serde(default = "rounds_default")]
    pub rounds: usize,
    /// Where endpoints have their directories.
    #[serde(default = "dir_default")]
    pub dir: String,
    /// What `{NAME}` stands for in commands, options and files.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// What is told of the machine, once.
    #[serde(default)]
    pub fact: Vec<Fact>,
    /// What is compared; the first is what the others are compared with.
    pub endpoint: Vec<Endpoint>,
    /// What they go through.
    pub phase: Vec<Phase>,
}

/// Something about the machine that the figures should be read beside.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// A command that prints it. `{dir}` is the scenario's.
    pub command: String,
}

/// A broker, or several that are one cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Its name, and that of its directory.
    pub name: String,
    /// Addresses that are loaded, and that take connections once it is ready.
    pub addr: Vec<String>,
    /// Commands that are run once before everything.
    #[serde(default)]
    pub setup: Vec<String>,
    /// The command that becomes the broker; without it, the broker runs already and is left alone.
    pub start: Option<String>,
    /// The broker's process, if it runs already.
    pub pid: Option<i32>,
    /// More of its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Files that are written into its directory before it starts.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// What `{NAME}` stands for here.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// More processes of it, such as a slave. They start after the first one, in this order, and what all use is added up.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// Only the rows whose names contain one of these; all rows, if there is none.
    #[serde(default)]
    pub rows: Vec<String>,
    /// Whether the first endpoint is held against it, where it is held against the best of the others. `false`: it is a variant, or a limit.
    #[serde(default = "rival_default")]
    pub rival: bool,
}

/// A process of an endpoint beside the first one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// What steps call it.
    pub name: String,
    /// Addresses that take connections once it is ready.
    pub addr: Vec<String>,
    /// The command that becomes it.
    pub start: String,
    /// More of its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Files that are written into the endpoint's directory before it starts.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// Rows that follow each other on one store, which is empty at first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What `{NAME}` stands for here.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// Its rows.
    pub row: Vec<Row>,
}

/// One thing that is measured: exactly one of `run`, `time`, `idle` and `catch_up` says what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: Option<String>,
    /// What is done before it, see [`Step`].
    #[serde(default)]
    pub prepare: Vec<String>,
    /// A command of the harness with its options, without addresses and process id.
    pub run: Option<String>,
    /// `start` tells how long the last start took, `stop` stops (and starts again) and tells how long that took.
    pub time: Option<String>,
    /// Seconds without any load.
    pub idle: Option<f64>,
    /// A process that is started, and how it comes level with the first one's log.
    pub catch_up: Option<String>,
    /// With `run`: what is told is how much the memory of this process grows by it, and nothing else, not even refusals.
    pub growth: Option<String>,
}

/// A step before a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// `start`: all processes, or the named one.
    Start(Option<String>),
    /// `stop`: SIGTERM to all processes, or to the named one.
    Stop(Option<String>),
    /// `kill`: SIGKILL.
    Kill(Option<String>),
    /// `freeze NAME`: SIGSTOP.
    Freeze(String),
    /// `thaw NAME`: SIGCONT.
    Thaw(String),
    /// `level NAME`: waits until this process's log is as long as the first one's.
    Level(String),
    /// `kill under COMMAND`: SIGKILL to all while this command of the harness is under way.
    KillUnder(String),
    /// `drop caches`: what the page cache holds is written and forgotten; needs root.
    DropCaches,
    /// `wait SECONDS`.
    Wait(f64),
    /// A command of the harness whose result is not told.
    Run(String),
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// A command of the harness.
    Run(String),
    /// How long the last start took.
    Start,
    /// How long a stop takes.
    Stop,
    /// Seconds without any load.
    Idle(f64),
    /// How a process that was away comes level.
    CatchUp(String),
    /// How much more memory a process has after a command of the harness.
    Growth(String, String),
}

/// What steps call an endpoint's first process.
pub const FIRST: &str = "main";

fn rival_default() -> bool {
    true
}

fn rounds_default() -> usize {
    3
}

fn dir_default() -> String {
    "target/compare".into()
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// The file can't be read or is no scenario; what is wrong is named.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::File {
            what: "read the scenario",
            path: path.to_owned(),
            source,
        })?;
        Scenario::parse(&text).map_err(|why| LoadError::Scenario { path: path.to_owned(), why })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=1000).contains(&self.rounds) {
            return Err(format!("rounds is {}: it must be 1 to 1000", self.rounds));
        }
        for (at, endpoint) in self.endpoint.iter().enumerate() {
            let name = &endpoint.name;
            let plain = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            if !plain || name.starts_with('.') {
                return Err(format!(
                    "endpoint `{name}`: a name is made of letters, digits, `-`, `_` and `.`, and begins with none of these marks"
                ));
            }
            if endpoint.addr.is_empty() {
                return Err(format!("endpoint `{name}` has no addr"));
            }
            if self.endpoint[..at].iter().any(|other| other.name == *name) {
                return Err(format!("two endpoints are called `{name}`"));
            }
            let beside = endpoint.beside.iter().flat_map(|beside| beside.files.keys());
            if let Some(file) = endpoint
                .files
                .keys()
                .chain(beside)
                .find(|file| file.contains(['/', '\0']) || file.starts_with('.'))
            {
                return Err(format!("endpoint `{name}`: file `{file}` must be a plain name"));
            }
            endpoint.check_processes()?;
        }
        if self.endpoint.is_empty() || self.phase.is_empty() {
            return Err("a scenario has at least one [[endpoint]] and one [[phase]]".into());
        }
        self.phase.iter().flat_map(|phase| &phase.row).try_for_each(|row| row.measure().map(drop))
    }

    /// What `{NAME}` in `text` stands for at an endpoint in a phase: its own names first, then the phase's, the scenario's, and those given on
    /// the command line before all. `{dir}` and `{name}` are the endpoint's.
    ///
    /// # Errors
    /// A name stands for nothing.
    pub fn fill(
        &self,
        text: &str,
        endpoint: &Endpoint,
        phase: Option<&Phase>,
        given: &BTreeMap<String, String>,
    ) -> Result<String, String> {
        let dir = self.dir_of(endpoint);
        let own: BTreeMap<String, String> =
            [("dir".into(), dir), ("name".into(), endpoint.name.clone())].into();
        let none = BTreeMap::new();
        let phase_vars = phase.map_or(&none, |phase| &phase.vars);
        fill_by(text, &[&own, given, phase_vars, &endpoint.vars, &self.vars])
    }

    /// The same without an endpoint: `{dir}` is the scenario's.
    ///
    /// # Errors
    /// A name stands for nothing.
    pub fn fill_fact(
        &self,
        text: &str,
        given: &BTreeMap<String, String>,
    ) -> Result<String, String> {
        let own = [("dir".to_owned(), self.dir.clone())].into();
        fill_by(text, &[&own, given, &self.vars])
    }

    /// An endpoint's directory.
    #[must_use]
    pub fn dir_of(&self, endpoint: &Endpoint) -> String {
        format!("{}/{}", self.dir, endpoint.name)
    }
}

/// A text with everything that it names, by the first table that has it.
fn fill_by(text: &str, tables: &[&BTreeMap<String, String>]) -> Result<String, String> {
    let find = |name: &str| tables.iter().find_map(|table| table.get(name)).cloned();
    let mut text = text.to_owned();
    for _ in 0..DEPTH_MAX {
        let Some((from, to)) = placeholder(&text) else { return Ok(text) };
        let name = &text[from + 1..to];
        let value = find(name).ok_or_else(|| {
            format!("`{{{name}}}` stands for nothing: set it in [vars] or by --set")
        })?;
        text = replace_all(&text, name, &value);
    }
    match placeholder(&text) {
        None => Ok(text),
        Some((from, to)) => {
            Err(format!("`{}` stands for itself, or for too much", &text[from..=to]))
        }
    }
}

/// The first `{name}`: letters, digits and underscores between braces. Other braces, as in TOML or shell, are left alone.
fn placeholder(text: &str) -> Option<(usize, usize)> {
    let opens = text.match_indices('{').map(|(at, _)| at);
    for from in opens {
        let length = text[from..].find('}')?;
        let name = &text[from + 1..from + length];
        if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Some((from, from + length));
        }
    }
    None
}

fn replace_all(text: &str, name: &str, value: &str) -> String {
    text.replace(&format!("{{{name}}}"), value)
}

impl Endpoint {
    /// Its processes are told apart, and the scenario starts either all of them or none.
    fn check_processes(&self) -> Result<(), String> {
        let name = &self.name;
        if self.start.is_none() && !self.beside.is_empty() {
            return Err(format!("endpoint `{name}`: with `beside` it needs a `start` of its own"));
        }
        for (at, beside) in self.beside.iter().enumerate() {
            let own = &beside.name;
            if own.is_empty() || !own.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            {
                return Err(format!(
                    "endpoint `{name}`: process `{own}`: a name is made of letters, digits, `-` and `_`"
                ));
            }
            let known = self.beside[..at].iter().any(|other| other.name == *own);
            if known || own == FIRST || own == "under" {
                return Err(format!(
                    "endpoint `{name}`: a process cannot be called `{own}`, which means something else"
                ));
            }
        }
        Ok(())
    }

    /// Whether it has such a process.
    ///
    /// # Errors
    /// It has none.
    pub fn has(&self, process: &str) -> Result<(), String> {
        if process == FIRST || self.beside.iter().any(|beside| beside.name == process) {
            return Ok(());
        }
        Err(format!("endpoint `{}` has no process `{process}`", self.name))
    }
}

impl Row {
    /// What it measures.
    ///
    /// # Errors
    /// It names nothing, or several things.
    pub fn measure(&self) -> Result<Measure, String> {
        let what = self.name.as_deref().unwrap_or("without a name");
        match (&self.run, self.time.as_deref(), self.idle, &self.catch_up) {
            (Some(line), None, None, None) => Ok(match &self.growth {
                Some(process) => Measure::Growth(line.clone(), process.clone()),
                None => Measure::Run(line.clone()),
            }),
            _ if self.growth.is_some() => {
                Err(format!("row {what}: growth is that of a process by a run, and there is none"))
            }
            (None, Some("start"), None, None) => Ok(Measure::Start),
            (None, Some("stop"), None, None) => Ok(Measure::Stop),
            (None, Some(other), None, None) => {
                Err(format!("row {what}: time is `{other}`, it must be `start` or `stop`"))
            }
            (None, None, Some(seconds), None) if (0.1..=1e5).contains(&seconds) => {
                Ok(Measure::Idle(seconds))
            }
            (None, None, Some(_), None) => {
                Err(format!("row {what}: idle must be 0.1 to 100000 seconds"))
            }
            (None, None, None, Some(process)) => Ok(Measure::CatchUp(process.clone())),
            _ => Err(format!(
                "row {what}: exactly one of run, time, idle and catch_up says what is measured"
            )),
        }
    }

    /// Its name in reports: its own, or its command.
    #[must_use]
    pub fn title(&self) -> String {
        let command = || {
            let started = self.catch_up.as_ref().map(|process| format!("{process} catches up"));
            self.run.clone().or(self.time.clone()).or(started).unwrap_or_else(|| "idle".into())
        };
        self.name.clone().unwrap_or_else(command)
    }
}

/// Reads a step.
///
/// # Errors
/// A `wait` without a number, or a process that is not named.
pub fn step(text: &str) -> Result<Step, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["start"] => Ok(Step::Start(None)),
        ["stop"] => Ok(Step::Stop(None)),
        ["kill"] => Ok(Step::Kill(None)),
        ["start", name] => Ok(Step::Start(Some(name.into()))),
        ["stop", name] => Ok(Step::Stop(Some(name.into()))),
        ["kill", name] if name != "under" => Ok(Step::Kill(Some(name.into()))),
        ["freeze", name] => Ok(Step::Freeze(name.into())),
        ["thaw", name] => Ok(Step::Thaw(name.into())),
        ["level", name] => Ok(Step::Level(name.into())),
        ["freeze" | "thaw" | "level", ..] => Err(format!("`{text}`: say which process")),
        ["drop", "caches"] => Ok(Step::DropCaches),
        ["kill", "under", ..] => Ok(Step::KillUnder(words[2..].join(" "))),
        ["wait", seconds] => {
            let seconds = seconds.parse().ok().filter(|seconds| (0.0..=1e5).contains(seconds));
            seconds.map(Step::Wait).ok_or_else(|| format!("`{text}`: wait wants seconds"))
        }
        _ => Ok(Step::Run(words.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        title = "t"
        vars = { size = "1024", who = "{size} bytes" }
        [[endpoint]]
        name = "a"
        addr = ["127.0.0.1:1"]
        vars = { size = "7" }
        [[endpoint]]
        name = "b"
        addr = ["127.0.0.1:2"]
        [[phase]]
        vars = { level = "sync" }
        row = [
            { run = "produce --size {size}" }, { name = "x", time = "stop" }, { idle = 2 },
            { catch_up = "slave" }, { run = "produce", growth = "main" },
        ]
    "#;

    #[test]
    fn names_stand_for_what_is_nearest() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let [a, b] = &scenario.endpoint[..] else { panic!() };
        let phase = Some(&scenario.phase[0]);
        let none = BTreeMap::new();
        let given: BTreeMap<String, String> = [("size".to_owned(), "9".to_owned())].into();
        for (text, endpoint, given, expected) in [
            ("{size}", a, &none, "7"),
            ("{size}", b, &none, "1024"),
            ("{size} {size}", b, &given, "9 9"),
            ("{who} {level}", a, &none, "7 bytes sync"),
            ("{dir}/{name} { x } ${1x}", a, &given, "target/compare/a/a { x } ${1x}"),
        ] {
            let filled = scenario.fill(text, endpoint, phase, given);
            if text.contains("{1x}") {
                assert!(filled.is_err(), "a name that stands for nothing");
                continue;
            }
            assert_eq!(filled.unwrap(), expected);
        }
        assert!(scenario.fill("{level}", a, None, &none).unwrap_err().contains("{level}"));
        let mut circular = scenario.clone();
        circular.vars.insert("loop".into(), "{loop}".into());
        assert!(circular.fill("{loop}", a, None, &none).is_err());
    }

    #[test]
    fn rows_and_steps_mean_what_they_say() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let measures: Vec<_> =
            scenario.phase[0].row.iter().map(|row| row.measure().unwrap()).collect();
        assert_eq!(
            measures,
            [
                Measure::Run("produce --size {size}".into()),
                Measure::Stop,
                Measure::Idle(2.0),
                Measure::CatchUp("slave".into()),
                Measure::Growth("produce".into(), "main".into()),
            ]
        );
        for (text, expected) in [
            ("start", Step::Start(None)),
            ("start slave", Step::Start(Some("slave".into()))),
            ("stop slave", Step::Stop(Some("slave".into()))),
            ("freeze slave", Step::Freeze("slave".into())),
            ("thaw slave", Step::Thaw("slave".into())),
            ("level slave", Step::Level("slave".into())),
            (" drop  caches ", Step::DropCaches),
            ("kill", Step::Kill(None)),
            ("kill slave", Step::Kill(Some("slave".into()))),
            ("kill under produce --count 1", Step::KillUnder("produce --count 1".into())),
            ("wait 1.5", Step::Wait(1.5)),
            ("produce --count 5", Step::Run("produce --count 5".into())),
        ] {
            assert_eq!(step(text).unwrap(), expected);
        }
        assert!(step("wait long").is_err() && step("freeze").is_err());
    }

    #[test]
    fn what_is_no_scenario_is_refused_with_the_reason() {
        for (from, to, reason) in [
            ("title = \"t\"", "", "title"),
            ("name = \"b\"", "name = \"a\"", "two endpoints"),
            ("name = \"b\"", "name = \"../b\"", "a name is made of"),
            ("time = \"stop\"", "time = \"soon\"", "`soon`"),
            ("idle = 2", "idle = 2, time = \"stop\"", "exactly one"),
            ("idle = 2", "idle = -1", "idle"),
            ("run = \"produce\", growth", "time = \"stop\", growth", "growth"),
            ("catch_up = \"slave\"", "catch_up = \"slave\", idle = 2", "exactly one"),
            (
                "addr = [\"127.0.0.1:2\"]",
                "addr = [\"127.0.0.1:2\"]\nbeside = [ { name = \"slave\", addr = [], start = \"s\" } ]",
                "`start`",
            ),
            (
                "addr = [\"127.0.0.1:2\"]",
                "addr = [\"127.0.0.1:2\"]\nstart = \"s\"\nbeside = [ { name = \"main\", addr = [], start = \"s\" } ]",
                "called `main`",
            ),
            ("addr = [\"127.0.0.1:2\"]", "addr = []", "no addr"),
            ("addr = [\"127.0.0.1:2\"]", "addr = [\"127.0.0.1:2\"]\nports = 3", "ports"),
        ] {
            let error = Scenario::parse(&TEXT.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{to}: {error}");
        }
    }
}
