//! The same rows at several brokers, in turn, round after round.
//!
//! In each round every endpoint in turn goes through all phases; who begins changes from round to round, and only one runs at a time. What a row
//! tells is compared between runs of the same round, so that a machine that is slower for an hour is so for both.

pub mod endpoint;
pub mod figures;
pub mod scenario;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::CompareOptions;
use crate::compare::endpoint::{Running, parse, set_up};
use crate::compare::figures::{
    Figures, Kind, PROCESSORS, RESIDENT, Row, SECONDS, number, of_run, table,
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
    /// Rounds that are complete.
    pub rounds: usize,
    /// What makes the same again.
    pub command: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// What makes the result less than it seems.
    pub notes: Vec<String>,
}

impl Comparison {
    /// The table, in Markdown.
    #[must_use]
    pub fn table(&self) -> String {
        table(&self.rows, &self.endpoints)
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

    /// Whether no run had errors.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.unclean.is_empty())
    }
}

/// Compares. Files that the options name are written after every round.
///
/// # Errors
/// The scenario is none, or an endpoint can't be started or loaded.
pub fn compare(options: &CompareOptions) -> Result<Comparison, LoadError> {
    let scenario = Scenario::read(&options.scenario)?;
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
    let mut work = Work { plan: &plan, figures: Figures::default(), notes: BTreeMap::new() };
    for round in 0..plan.rounds {
        let turn = round % plan.endpoints.len();
        let (first, last) = plan.endpoints.split_at(turn);
        for endpoint in last.iter().chain(first) {
            work.endpoint(round, endpoint)?;
        }
        comparison.rounds = round + 1;
        comparison.rows = work.figures.compare(&comparison.endpoints);
        comparison.notes =
            work.notes.iter().map(|(note, count)| format!("{note} ({count} runs)")).collect();
        for (path, text) in
            [(&options.json, Comparison::json as fn(&_) -> _), (&options.html, Comparison::html)]
        {
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
        let title = row.title();
        self.options.row.is_empty()
            || self.options.row.iter().any(|part| title.contains(part.as_str()))
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
        let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Comparison {
            title: self.scenario.title.clone(),
            tool: concat!("ringmq-loadtest ", env!("CARGO_PKG_VERSION")).to_owned(),
            started_unix_ms: now.as_millis() as u64,
            endpoints: self.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
            rounds: 0,
            command: format!("ringmq-loadtest {words}"),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// What would be run, after a look at whether it could be.
    fn lines(&self) -> Result<Vec<String>, LoadError> {
        let mut lines = Vec::new();
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
                if let Some(start) = &endpoint.start {
                    lines.push(format!("  start: {}", fill(start, Some(phase))?));
                }
                for row in phase.row.iter().filter(|row| self.wants(row)) {
                    for text in &row.prepare {
                        let text = fill(text, Some(phase))?;
                        if let Step::Run(line) | Step::KillUnder(line) =
                            step(&text).map_err(|why| self.error(why))?
                        {
                            parse(&line).map_err(|why| self.error(why))?;
                        }
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
                    };
                    lines.push(format!("    {}: {what}", row.title()));
                }
            }
        }
        Ok(lines)
    }
}

struct Work<'a> {
    plan: &'a Plan<'a>,
    figures: Figures,
    /// Warnings of runs, and in how many of them.
    notes: BTreeMap<String, usize>,
}

impl Work<'_> {
    fn endpoint(&mut self, round: usize, endpoint: &Endpoint) -> Result<(), LoadError> {
        let plan = self.plan;
        eprintln!("round {} of {}: {}", round + 1, plan.rounds, endpoint.name);
        for phase in &plan.scenario.phase {
            if !phase.row.iter().any(|row| plan.wants(row)) {
                continue;
            }
            let quiet = plan.options.quiet;
            let mut running = Running::begin(plan.scenario, endpoint, phase, &plan.given, quiet)?;
            for row in phase.row.iter().filter(|row| plan.wants(row)) {
                for text in &row.prepare {
                    running.step(&step(text).map_err(|why| plan.error(why))?)?;
                }
                self.row(round, endpoint, row, &mut running)?;
            }
        }
        Ok(())
    }

    fn row(
        &mut self,
        round: usize,
        endpoint: &Endpoint,
        row: &scenario::Row,
        running: &mut Running<'_>,
    ) -> Result<(), LoadError> {
        let title = row.title();
        let measure = row.measure().map_err(|why| self.plan.error(why))?;
        let (figures, clean, command) = match measure {
            Measure::Run(line) => {
                let report = running.run(&line)?;
                self.note(&report);
                (of_run(&report), report.clean, line)
            }
            Measure::Start => {
                let ready = running.ready.map(|ready| (SECONDS, ready.as_secs_f64()));
                let memory = running.pid().and_then(|pid| crate::usage::process(pid).ok());
                let memory = memory.map(|usage| (RESIDENT, usage.rss_bytes as f64 / 1e6));
                (ready.into_iter().chain(memory).collect(), true, String::new())
            }
            Measure::Stop => {
                let took = running.stop(libc::SIGTERM)?;
                running.step(&Step::Start)?;
                (vec![(SECONDS, took.as_secs_f64())], true, String::new())
            }
            Measure::Idle(seconds) => {
                let (cores, rss) = running.idle(seconds)?;
                (vec![(PROCESSORS, cores), (RESIDENT, rss as f64 / 1e6)], true, String::new())
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
