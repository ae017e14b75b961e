//! The same rows at several brokers, in turn, round after round.
//!
//! In each round every endpoint in turn goes through all phases; who begins changes from round to round, and only one runs at a time. What a row
//! tells is compared between runs of the same round, so that a machine that is slower for an hour is so for both. A row that fails at an
//! endpoint is noted, and the others go on.

pub mod endpoint;
pub mod figures;
pub mod markdown;
pub mod process;
pub mod scenario;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::CompareOptions;
use crate::compare::endpoint::{CaughtUp, Running, parse, set_up, tell};
use crate::compare::figures::{
    CAUGHT_UP, Figures, GREW, Kind, PROCESSORS, RESIDENT, Row, SECONDS, number, of_run,
};
use crate::compare::scenario::{Endpoint, Measure, Phase, Scenario, Step, step};
use crate::error::LoadError;
use crate::html;
use crate::report::Report;

/// A comparison so far.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is compared.
    pub title: String,
    /// Program and version.
    pub tool: String,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Who is compared; the others with the first.
    pub endpoints: Vec<String>,
    /// Those whose best the first one is held against.
    pub rivals: Vec<String>,
    /// Rounds that are complete.
    pub rounds: usize,
    /// What makes the same again.
    pub command: String,
    /// Where it was measured.
    pub machine: String,
    /// What the scenario has told of the machine.
    pub facts: Vec<Told>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What makes the result less than it seems.
    pub notes: Vec<String>,
}

/// Something about the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// What it is.
    pub name: String,
    /// What the scenario's command printed.
    pub text: String,
}

impl Comparison {
    /// The table, in Markdown.
    #[must_use]
    pub fn table(&self) -> String {
        markdown::table(self)
    }

    /// The table with what it was measured by and where, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        markdown::document(self)
    }

    /// JSON, with a newline at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.map_or_else(|error| format!("{{\"error\":\"{error}\"}}\n"), |text| text + "\n")
    }

    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(&self.title, "compare", &self.json())
    }

    /// Whether all rows were measured, without errors.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.unclean.is_empty() && row.failed.is_empty())
    }
}

/// Compares. Files that the options name are written after every round.
///
/// # Errors
/// The scenario is none, what it sets up fails, or no row of a round told anything.
pub fn compare(options: &CompareOptions) -> Result<Comparison, LoadError> {
    let mut scenario = Scenario::read(&options.scenario)?;
    if let Some(dir) = &options.dir {
        scenario.dir = dir.display().to_string();
    }
    let plan = Plan::new(&scenario, options)?;
    let mut comparison = plan.begin();
    let told = plan.lines()?;
    if options.dry_run {
        told.iter().for_each(|line| println!("{line}"));
        return Ok(comparison);
    }
    for endpoint in &plan.endpoints {
        for command in &endpoint.setup {
            let command = scenario.fill(command, endpoint, None, &plan.given);
            let command = command.map_err(|why| plan.error(why))?;
            set_up(&endpoint.name, &command)?;
        }
    }
    comparison.facts = plan.facts()?;
    let mut work = Work {
        plan: &plan,
        figures: Figures::default(),
        notes: BTreeMap::new(),
        first_failure: None,
    };
    for round in 0..plan.rounds {
        let turn = round % plan.endpoints.len();
        let (first, last) = plan.endpoints.split_at(turn);
        for endpoint in last.iter().chain(first) {
            work.endpoint(round, endpoint)?;
        }
        if let (true, Some(error)) = (work.figures.is_empty(), work.first_failure.take()) {
            return Err(error);
        }
        comparison.rounds = round + 1;
        comparison.rows = work.figures.compare(&comparison.endpoints, &comparison.rivals);
        comparison.notes =
            work.notes.iter().map(|(note, count)| format!("{note} ({count} runs)")).collect();
        for (path, text) in [
            (&options.json, Comparison::json as fn(&_) -> _),
            (&options.html, Comparison::html),
            (&options.markdown, Comparison::markdown),
        ] {
            if let Some(path) = path {
                write(path, text(&comparison))?;
            }
        }
    }
    Ok(comparison)
}

fn write(path: &Path, text: String) -> Result<(), LoadError> {
    std::fs::write(path, text).map_err(|source| LoadError::Report { path: path.to_owned(), source })
}

/// A scenario with what the command line makes of it.
struct Plan<'a> {
    scenario: &'a Scenario,
    options: &'a CompareOptions,
    endpoints: Vec<Endpoint>,
    given: BTreeMap<String, String>,
    rounds: usize,
}

impl<'a> Plan<'a> {
    fn new(scenario: &'a Scenario, options: &'a CompareOptions) -> Result<Self, LoadError> {
        let mut given = BTreeMap::new();
        for set in &options.set {
            let (name, value) = set
                .split_once('=')
                .ok_or_else(|| LoadError::Options(format!("--set {set}: it is NAME=VALUE")))?;
            given.insert(name.to_owned(), value.to_owned());
        }
        let find = |name: &String| {
            let found = scenario.endpoint.iter().find(|endpoint| endpoint.name == *name).cloned();
            found.ok_or_else(|| {
                LoadError::Options(format!("--endpoint {name}: the scenario has none of that name"))
            })
        };
        let endpoints = match &options.endpoint[..] {
            [] => scenario.endpoint.clone(),
            names => names.iter().map(find).collect::<Result<_, _>>()?,
        };
        let rounds = options.rounds.unwrap_or(scenario.rounds);
        if !(1..=1000).contains(&rounds) {
            return Err(LoadError::Options(format!("--rounds is {rounds}: it must be 1 to 1000")));
        }
        let plan = Plan { scenario, options, endpoints, given, rounds };
        if plan.rows().next().is_none() {
            return Err(LoadError::Options("--row: the scenario has no such row".into()));
        }
        Ok(plan)
    }

    fn error(&self, why: String) -> LoadError {
        LoadError::Scenario { path: self.options.scenario.clone(), why }
    }

    fn wants(&self, row: &scenario::Row) -> bool {
        wanted(&self.options.row, row)
    }

    /// The rows of a phase that an endpoint goes through.
    fn rows_at(&self, endpoint: &Endpoint, phase: &'a Phase) -> Vec<&'a scenario::Row> {
        phase.row.iter().filter(|row| self.wants(row) && wanted(&endpoint.rows, row)).collect()
    }

    /// Has the scenario's commands tell of the machine. One that fails is no reason not to compare.
    fn facts(&self) -> Result<Vec<Told>, LoadError> {
        let told = |fact: &scenario::Fact| {
            let command = self.scenario.fill_fact(&fact.command, &self.given);
            let command = command.map_err(|why| self.error(why))?;
            Ok(Told { name: fact.name.clone(), text: tell(&command) })
        };
        self.scenario.fact.iter().map(told).collect()
    }

    fn rows(&self) -> impl Iterator<Item = (&'a Phase, &'a scenario::Row)> {
        let all = self
            .scenario
            .phase
            .iter()
            .flat_map(|phase| phase.row.iter().map(move |row| (phase, row)));
        all.filter(|(_, row)| self.wants(row))
    }

    fn begin(&self) -> Comparison {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let words: Vec<_> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
        let words = words.join(" ");
        let names = |of: &dyn Fn(usize, &Endpoint) -> bool| -> Vec<String> {
            let numbered = self.endpoints.iter().enumerate();
            let wanted = numbered.filter(|(at, endpoint)| of(*at, endpoint));
            wanted.map(|(_, endpoint)| endpoint.name.clone()).collect()
        };
        Comparison {
            title: self.scenario.title.clone(),
            tool: concat!("ringmq-loadtest ", env!("CARGO_PKG_VERSION")).to_owned(),
            started_unix_ms: now.as_millis() as u64,
            endpoints: names(&|_, _| true),
            rivals: names(&|at, endpoint| at > 0 && endpoint.rival),
            rounds: 0,
            command: format!("ringmq-loadtest {words}"),
            machine: machine(),
            facts: Vec::new(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// What would be run, after a look at whether it could be.
    fn lines(&self) -> Result<Vec<String>, LoadError> {
        let mut lines = Vec::new();
        for fact in &self.scenario.fact {
            let command = self.scenario.fill_fact(&fact.command, &self.given);
            lines.push(format!("once: {}", command.map_err(|why| self.error(why))?));
        }
        for endpoint in &self.endpoints {
            lines.push(endpoint.name.clone());
            let fill = |text: &str, phase| {
                self.scenario
                    .fill(text, endpoint, phase, &self.given)
                    .map_err(|why| self.error(why))
            };
            for command in &endpoint.setup {
                lines.push(format!("  once: {}", fill(command, None)?));
            }
            for phase in &self.scenario.phase {
                let rows = self.rows_at(endpoint, phase);
                if rows.is_empty() {
                    continue;
                }
                let others = endpoint.beside.iter().map(|beside| &beside.start);
                for start in endpoint.start.iter().chain(others) {
                    lines.push(format!("  start: {}", fill(start, Some(phase))?));
                }
                for row in rows {
                    for text in &row.prepare {
                        let text = fill(text, Some(phase))?;
                        match step(&text).map_err(|why| self.error(why))? {
                            Step::Run(line) | Step::KillUnder(line) => parse(&line),
                            Step::Start(Some(name))
                            | Step::Stop(Some(name))
                            | Step::Kill(Some(name))
                            | Step::Freeze(name)
                            | Step::Thaw(name)
                            | Step::Level(name) => endpoint.has(&name),
                            _ => Ok(()),
                        }
                        .map_err(|why| self.error(why))?;
                        lines.push(format!("    before: {text}"));
                    }
                    let what = match row.measure().map_err(|why| self.error(why))? {
                        Measure::Run(line) => {
                            let line = fill(&line, Some(phase))?;
                            parse(&line).map_err(|why| self.error(why))?;
                            line
                        }
                        Measure::Start => "the last start's time".into(),
                        Measure::Stop => "a stop's time".into(),
                        Measure::Idle(seconds) => format!("{seconds} s without load"),
                        Measure::CatchUp(name) => {
                            endpoint.has(&name).map_err(|why| self.error(why))?;
                            format!("{name} is started and comes level")
                        }
                        Measure::Growth(line, name) => {
                            endpoint.has(&name).map_err(|why| self.error(why))?;
                            let line = fill(&line, Some(phase))?;
                            parse(&line).map_err(|why| self.error(why))?;
                            format!("the growth of {name} by {line}")
                        }
                    };
                    lines.push(format!("    {}: {what}", row.title()));
                }
            }
        }
        Ok(lines)
    }
}

/// Whether a row's name has one of these parts, or there are none.
fn wanted(parts: &[String], row: &scenario::Row) -> bool {
    let title = row.title();
    parts.is_empty() || parts.iter().any(|part| title.contains(part.as_str()))
}

/// A word of a command line as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    match word {
        "" => "''".to_owned(),
        _ if word.chars().all(plain) => word.to_owned(),
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// What is known of this machine without asking.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{processors} processors, {} GiB, Linux {}",
        (kib.unwrap_or(0) + (1 << 19)) >> 20,
        kernel.trim()
    )
}

struct Work<'a> {
    plan: &'a Plan<'a>,
    figures: Figures,
    /// Warnings of runs, and in how many of them.
    notes: BTreeMap<String, usize>,
    /// Why nothing was told, if nothing was.
    first_failure: Option<LoadError>,
}

impl Work<'_> {
    fn endpoint(&mut self, round: usize, endpoint: &Endpoint) -> Result<(), LoadError> {
        let plan = self.plan;
        eprintln!("round {} of {}: {}", round + 1, plan.rounds, endpoint.name);
        for phase in &plan.scenario.phase {
            let rows = plan.rows_at(endpoint, phase);
            if rows.is_empty() {
                continue;
            }
            let quiet = plan.options.quiet;
            let mut running =
                match Running::begin(plan.scenario, endpoint, phase, &plan.given, quiet) {
                    Ok(running) => running,
                    Err(error) => {
                        rows.iter().for_each(|row| self.failed(round, endpoint, row, &error));
                        self.first_failure.get_or_insert(error);
                        continue;
                    }
                };
            for (at, row) in rows.iter().enumerate() {
                let Err(error) = self.row(round, endpoint, row, &mut running) else { continue };
                self.failed(round, endpoint, row, &error);
                self.first_failure.get_or_insert(error);
                // What has ended is there again for the rows to come, or they fail too.
                if let Err(error) = running.revive() {
                    rows[at + 1..].iter().for_each(|row| self.failed(round, endpoint, row, &error));
                    break;
                }
            }
        }
        Ok(())
    }

    fn failed(
        &mut self,
        round: usize,
        endpoint: &Endpoint,
        row: &scenario::Row,
        error: &LoadError,
    ) {
        let (title, why) = (row.title(), error.to_string());
        eprintln!("  {title}: FAILED: {why}");
        let command = row.run.clone().unwrap_or_default();
        self.figures.failed((&title, &command), &endpoint.name, round, &why);
    }

    /// Prepares and measures one row.
    fn row(
        &mut self,
        round: usize,
        endpoint: &Endpoint,
        row: &scenario::Row,
        running: &mut Running<'_>,
    ) -> Result<(), LoadError> {
        for text in &row.prepare {
            running.step(&step(text).map_err(|why| self.plan.error(why))?)?;
        }
        let title = row.title();
        let measure = row.measure().map_err(|why| self.plan.error(why))?;
        let (figures, clean, command) = match measure {
            Measure::Run(line) => {
                let report = running.run(&line)?;
                self.note(&report);
                let side = report.receive.as_ref().or(report.send.as_ref());
                if side.is_none_or(|side| side.messages == 0) {
                    let why = "no message in the measured time".to_owned();
                    return Err(LoadError::Endpoint { endpoint: endpoint.name.clone(), why });
                }
                (of_run(&report), report.clean, line)
            }
            Measure::Start => {
                let ready = running.ready.map(|ready| (SECONDS, ready.as_secs_f64()));
                let memory = running.usage().ok();
                let memory = memory.map(|usage| (RESIDENT, usage.own_bytes as f64 / 1e6));
                (ready.into_iter().chain(memory).collect(), true, String::new())
            }
            Measure::Stop => {
                let took = running.stop(libc::SIGTERM, None)?;
                running.step(&Step::Start(None))?;
                (vec![(SECONDS, took.as_secs_f64())], true, String::new())
            }
            Measure::Idle(seconds) => {
                let (cores, rss) = running.idle(seconds)?;
                (vec![(PROCESSORS, cores), (RESIDENT, rss as f64 / 1e6)], true, String::new())
            }
            Measure::CatchUp(name) => {
                let CaughtUp { took, bytes_per_second } = running.catch_up(&name)?;
                let rate = bytes_per_second.map(|rate| (CAUGHT_UP, rate / 1e6));
                let figures = rate.into_iter().chain([(SECONDS, took.as_secs_f64())]).collect();
                (figures, true, String::new())
            }
            Measure::Growth(line, name) => {
                let before = running.resident(&name)?;
                let report = running.run(&line)?;
                self.note(&report);
                running.check_stored(&report)?;
                let grew = running.resident(&name)? as f64 - before as f64;
                // Less than this is nothing, and of nothing there are no ratios.
                (vec![(GREW, (grew / 1e6).max(0.1))], true, line)
            }
        };
        let told: Vec<_> = figures
            .iter()
            .map(|(Kind { name, .. }, value)| format!("{} {name}", number(*value)))
            .collect();
        let mark = if clean { "" } else { "  WITH ERRORS" };
        eprintln!("  {title}: {}{mark}", told.join(", "));
        self.figures.add((&title, &command), &endpoint.name, round, &figures, clean);
        Ok(())
    }

    fn note(&mut self, report: &Report) {
        let kinds = [
            (report.saturated(), "the harness was saturated"),
            (
                report.harness.waited_for_processor > 0.5,
                "the harness waited for a processor more than half of the time",
            ),
        ];
        for (_, note) in kinds.iter().filter(|(is, _)| *is) {
            *self.notes.entry((*note).to_owned()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_command_line_is_told_as_a_shell_takes_it() {
        let shown = ["--row", "pull, warm", "a=b/c.toml", "", "it's"].map(quoted);
        assert_eq!(shown, ["--row", "'pull, warm'", "a=b/c.toml", "''", r"'it'\''s'"]);
    }
}
