//! The load harness: `ringmq-loadtest produce | consume | e2e | echo`.
//!
//! Exit status: 0 all as it should be, 1 no result, 2 wrong usage, 3 a result with errors in it.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use ringmq_loadtest::cli::{CommonOptions, Mode};
use ringmq_loadtest::run::{consume, end_to_end, produce};
use ringmq_loadtest::{Cli, LoadError, Report, echo};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.mode {
        Mode::Produce(options) => report(&options.common, produce(options)),
        Mode::Consume(options) => report(&options.common, consume(options)),
        Mode::E2e(options) => report(&options.common, end_to_end(options)),
        Mode::Echo(options) => {
            echo::serve(options.listen, |address| println!("answering on {address}")).map(|()| true)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("ringmq-loadtest: {error}");
            ExitCode::from(if matches!(error, LoadError::Options(_)) { 2 } else { 1 })
        }
    }
}

/// Shows the report; returns whether it is clean.
fn report(common: &CommonOptions, report: Result<Report, LoadError>) -> Result<bool, LoadError> {
    let report = report?;
    match &common.json {
        Some(path) if path == Path::new("-") => print!("{}", report.json()),
        path => {
            print!("{}", report.table());
            if let Some(path) = path {
                let write = std::fs::write(path, report.json());
                write.map_err(|source| LoadError::Report { path: path.clone(), source })?;
            }
        }
    }
    Ok(report.clean)
}
