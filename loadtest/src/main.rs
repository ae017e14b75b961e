//! The load harness: `ringmq-loadtest produce | consume | e2e | replay | compare | echo`.
//!
//! Exit status: 0 all as it should be, 1 no result, 2 wrong usage, 3 a result with errors in it, 4 messages lost, duplicated, reordered or
//! corrupt.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use ringmq_loadtest::cli::{CommonOptions, Mode};
use ringmq_loadtest::compare::compare;
use ringmq_loadtest::run::{consume, end_to_end, produce, replay};
use ringmq_loadtest::{Cli, LoadError, Report, echo};

/// Not all was acknowledged or received as it should be.
const UNCLEAN: u8 = 3;
/// The account of messages doesn't balance.
const UNSOUND: u8 = 4;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.mode {
        Mode::Produce(options) => report(&options.common, produce(options)),
        Mode::Consume(options) => report(&options.common, consume(options)),
        Mode::E2e(options) => report(&options.common, end_to_end(options)),
        Mode::Replay(options) => report(&options.common, replay(options)),
        Mode::Compare(options) => compare(options).map(|comparison| {
            print!("{}", comparison.table());
            if comparison.is_clean() { 0 } else { UNCLEAN }
        }),
        Mode::Echo(options) => {
            echo::serve(options.listen, |address| println!("answering on {address}")).map(|()| 0)
        }
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("ringmq-loadtest: {error}");
            ExitCode::from(if matches!(error, LoadError::Options(_)) { 2 } else { 1 })
        }
    }
}

/// Shows the report and writes what was asked for; returns the exit status.
fn report(common: &CommonOptions, report: Result<Report, LoadError>) -> Result<u8, LoadError> {
    let report = report?;
    let write = |path: &Path, text: String| {
        std::fs::write(path, text)
            .map_err(|source| LoadError::Report { path: path.to_owned(), source })
    };
    match &common.json {
        Some(path) if path == Path::new("-") => print!("{}", report.json()),
        path => {
            print!("{}", report.table());
            if let Some(path) = path {
                write(path, report.json())?;
            }
        }
    }
    if let Some(path) = &common.html {
        write(path, report.html())?;
    }
    Ok(if !report.is_sound() {
        UNSOUND
    } else if !report.clean {
        UNCLEAN
    } else {
        0
    })
}
