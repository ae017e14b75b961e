//! The load harness: `ringmq-loadtest produce | consume | e2e`.
//!
//! Exit status: 0 all as it should be, 1 no result, 2 wrong usage, 3 a result with errors in it.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use ringmq_loadtest::cli::{CommonOptions, Mode};
use ringmq_loadtest::{Cli, LoadError, Report, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli).and_then(|report| show(&cli, &report).map(|()| report.clean)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("ringmq-loadtest: {error}");
            ExitCode::from(if matches!(error, LoadError::Options(_)) { 2 } else { 1 })
        }
    }
}

fn show(cli: &Cli, report: &Report) -> Result<(), LoadError> {
    let common = common(cli);
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
    Ok(())
}

fn common(cli: &Cli) -> &CommonOptions {
    match &cli.mode {
        Mode::Produce(options) => &options.common,
        Mode::Consume(options) => &options.common,
        Mode::E2e(options) => &options.common,
    }
}
