//! The harness against a broker that is known to the last message.

mod compare;
mod consume;
mod end_to_end;
mod fake;
mod produce;
mod replay;
mod report;
mod verify;

use clap::Parser;
use ringmq_loadtest::cli::Mode;
use ringmq_loadtest::run::{
    consume as run_consume, end_to_end as run_end_to_end, produce as run_produce,
    replay as run_replay,
};
use ringmq_loadtest::{Cli, LoadError, Report};

use fake::FakeBroker;

/// Runs a command line against a broker.
fn load(broker: &FakeBroker, mode: &str, options: &str) -> Report {
    let line = format!("x {mode} --raw --quiet --addr {} {options}", broker.address());
    try_load(&line).unwrap()
}

fn try_load(line: &str) -> Result<Report, LoadError> {
    let cli = Cli::try_parse_from(line.split_whitespace());
    match cli.unwrap_or_else(|error| panic!("{line}: {error}")).mode {
        Mode::Produce(options) => run_produce(&options),
        Mode::Consume(options) => run_consume(&options),
        Mode::E2e(options) => run_end_to_end(&options),
        Mode::Replay(options) => run_replay(&options),
        Mode::Compare(_) | Mode::Echo(_) => panic!("{line}: it has no report"),
    }
}

/// Percentiles that could be those of one distribution.
fn assert_plausible(latency: &ringmq_loadtest::report::Latency, count: u64) {
    let rising = [
        latency.p50_us,
        latency.p90_us,
        latency.p99_us,
        latency.p999_us,
        // The histogram keeps three digits.
        latency.max_us * 1.001,
    ];
    assert!(rising.is_sorted(), "{latency:?}");
    assert!(latency.p50_us > 0.0 && latency.mean_us <= latency.max_us * 1.001, "{latency:?}");
    assert_eq!(latency.count, count);
}
