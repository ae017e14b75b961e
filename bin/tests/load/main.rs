//! The load harness at the running program: by pre-encoded frames and through the client crate, and with a network between them that takes
//! messages away or doubles them, which must not go unnoticed.

#[path = "../support/mod.rs"]
mod support;

mod pairs;
mod proxy;
mod runs;

use clap::Parser;
use ringmq_loadtest::cli::{Cli, Mode};
use ringmq_loadtest::{Report, run};

/// Runs a command line of the harness.
fn load(line: &str) -> Report {
    let words = ["ringmq-loadtest"].into_iter().chain(line.split_whitespace());
    let mode = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).mode;
    let report = match mode {
        Mode::Produce(options) => run::produce(&options),
        Mode::Consume(options) => run::consume(&options),
        Mode::E2e(options) => run::end_to_end(&options),
        Mode::Replay(options) => run::replay(&options),
        Mode::Compare(_) | Mode::Echo(_) => panic!("{line}: it has no report"),
    };
    report.unwrap_or_else(|error| panic!("{line}: {error}"))
}
