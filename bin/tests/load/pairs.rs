//! The scenario of pairs that ships, at RingMQ's own pair: what it does between the rows works, and what it tells is there.

use clap::Parser;
use ringmq_loadtest::cli::{Cli, Mode};
use ringmq_loadtest::compare::{Comparison, compare};

use crate::support::{ports, tempdir};

fn run(options: &[String]) -> Comparison {
    let words = ["x", "compare", "--quiet"].map(str::to_owned).into_iter().chain(options.to_vec());
    match Cli::try_parse_from(words).expect("a command line").mode {
        Mode::Compare(options) => compare(&options).expect("a comparison"),
        _ => panic!("another mode"),
    }
}

#[test]
fn a_pair_is_one_endpoint_whose_slave_comes_and_goes() {
    let dir = tempdir("load-pairs");
    let (master, slave) = (ports::broker_block(1), ports::broker_block(1));
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../loadtest/scenarios/pairs.toml");
    let mut options = vec![scenario.to_owned()];
    let sets = [
        ("program", env!("CARGO_BIN_EXE_ringmq").to_owned()),
        ("port", master.to_string()),
        ("ha_port", (master + 1).to_string()),
        ("slave_port", slave.to_string()),
        ("load", "--size 1024 --burst --count 50 --warmup 0".to_owned()),
        ("messages", "4000".to_owned()),
        ("warm_up", "0.1".to_owned()),
    ];
    for (name, value) in sets {
        options.extend(["--set".to_owned(), format!("{name}={value}")]);
    }
    let stores = dir.path().join("stores").display().to_string();
    let more = ["--rounds", "1", "--endpoint", "ringmq", "--dir", &stores];
    options.extend(more.map(str::to_owned));
    let comparison = run(&options);
    let table = comparison.table();
    assert!(comparison.is_clean(), "{table}");
    let told = |row: &str, measure: &str| {
        let row = comparison.rows.iter().find(|found| found.name.contains(row));
        let measures = &row.unwrap_or_else(|| panic!("{row:?}: {table}")).measures;
        let measure = measures.iter().find(|found| found.name == measure);
        measure.map(|measure| measure.figures["ringmq"].median)
    };
    for row in ["1x1 1 KiB", "16x1", "256x1", "16x64"] {
        assert!(told(row, "msg/s").is_some_and(|rate| rate > 0.0), "{row}: {table}");
        assert!(told(row, "CPU s per M").is_some_and(|cpu| cpu > 0.0), "{row}: {table}");
    }
    assert!(told("catches up", "seconds").is_some_and(|seconds| seconds > 0.0), "{table}");
    assert!(told("stopped slave", "MB more own memory").is_some(), "{table}");
}
