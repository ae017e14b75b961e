//! What must hold before the first reactor starts, checked one by one, each failure with its remedy in one line.
//!
//! Everything here would also fail later, but as an error number deep in a start, or (an opcode that glommio misses) as the end of
//! the process without a reason.

mod disk;
mod memory;
mod ports;
mod uring;

use std::fmt;

use crate::config::{Mode, Settings};

pub use disk::existing_ancestor;
pub(crate) use disk::{AlignedBuffer, open_unnamed};
pub use memory::connections_per_shard;

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it should be; with what was found.
    Good(String),
    /// Works, with less than configured; with what to do.
    Warning(String),
    /// Does not work; with what to do.
    Failure(String),
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked, in a few words.
    pub subject: String,
    /// How it ended.
    pub outcome: Outcome,
}

impl Finding {
    pub(crate) fn good(subject: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { subject: subject.into(), outcome: Outcome::Good(found.into()) }
    }

    pub(crate) fn warning(subject: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding { subject: subject.into(), outcome: Outcome::Warning(text.into()) }
    }

    pub(crate) fn failure(subject: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding { subject: subject.into(), outcome: Outcome::Failure(text.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Good(text) => write!(out, "ok       {}: {text}", self.subject),
            Outcome::Warning(text) => write!(out, "warning  {}: {text}", self.subject),
            Outcome::Failure(text) => write!(out, "FAILED   {}: {text}", self.subject),
        }
    }
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether a check failed, so that a start would.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(|finding| matches!(finding.outcome, Outcome::Failure(_)))
    }
}

/// Runs every check. Raises the soft limits on files and locked memory as far as the hard ones allow; changes nothing else and
/// leaves no file behind.
pub fn run(settings: &Settings) -> Report {
    let mut findings = Vec::new();
    findings.extend(uring::check());
    findings.extend(memory::check(settings));
    if settings.mode != Mode::Namesrv {
        findings.extend(disk::check(settings));
    }
    findings.extend(ports::check(settings));
    Report { findings }
}
