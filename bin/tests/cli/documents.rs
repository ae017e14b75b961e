//! What the documents claim, held against the code: every command of the README is executed, every table is complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringmq::config::{BOUNDS, Config};

use crate::signals::{Running, disk_dir};
use crate::support::{free_ports, ringmq};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The commands of a document: the lines of its `sh` blocks.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            found.push(line.to_owned());
        }
    }
    found
}

/// The arguments of a command of the program, if it is one; quotes are taken off.
fn ringmq_args(command: &str) -> Option<Vec<String>> {
    let starts = ["cargo run --release --bin ringmq -- ", "target/release/ringmq "];
    let rest = starts.iter().find_map(|start| command.strip_prefix(start))?;
    Some(rest.split(' ').map(|word| word.trim_matches('"').to_owned()).collect())
}

fn succeeded(what: &str, output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

#[test]
fn the_readme_holds_only_commands_that_a_test_executes() {
    for command in commands(&read("README.md")) {
        let executed = match ringmq_args(&command) {
            Some(args) => ["standalone", "check", "send", "tail", "namesrv", "broker"]
                .contains(&args[0].as_str()),
            None => {
                // The deployments are run by bin/tests/ha/deployments.rs.
                command == "cargo test --workspace"
                    || command.starts_with("cargo build --release --bin ringmq && examples/start ")
                    || command.starts_with("mvn -q -f examples/java ")
            }
        };
        assert!(executed, "no test executes {command:?}");
    }
}

#[test]
fn continuous_integration_runs_the_readmes_test_command() {
    let test = "cargo test --workspace";
    assert!(commands(&read("README.md")).iter().any(|command| command == test));
    assert!(read(".ci/run").lines().any(|line| line == test));
    for script in [".ci/run", "ci/soak"] {
        let checked =
            Command::new("bash").arg("-n").arg(root().join(script)).output().expect("bash");
        succeeded(script, &checked);
    }
}

#[test]
fn the_readmes_checks_work() {
    let dir = disk_dir();
    let listen = format!("127.0.0.1:{}", free_ports(1));
    let mut count = 0;
    for command in commands(&read("README.md")) {
        let Some(args) = ringmq_args(&command) else { continue };
        if args[0] == "check" || args.iter().any(|arg| arg == "--print-config") {
            let mut run = ringmq();
            run.current_dir(root())
                .args(&args)
                .args(["--listen", &listen, "--shards", "1", "--data-dir"])
                .arg(dir.path().join("store"));
            succeeded(&command, &run.output().expect("run"));
            count += 1;
        }
    }
    assert_eq!(count, 2);
}

/// The five minutes of the README as written, on ports of the test's own.
#[test]
fn the_readmes_five_minutes_work() {
    if !ringmq().args(["send", "--help"]).output().expect("run").status.success() {
        println!("SKIPPED: this build has no `ringmq send` yet");
        return;
    }
    let dir = disk_dir();
    let (port, namesrv) = (free_ports(2), format!("127.0.0.1:{}", free_ports(1)));
    let mut standalone = None;
    for command in commands(&read("README.md")) {
        let here = command.replace("127.0.0.1:9876", &namesrv);
        match ringmq_args(&here) {
            Some(args) if args[0] == "standalone" => {
                let mut run = ringmq();
                run.args(&args).args([
                    "--namesrv-listen",
                    &namesrv,
                    "--listen",
                    &format!("127.0.0.1:{port}"),
                    "--shards",
                    "2",
                ]);
                run.arg("--data-dir").arg(dir.path().join("store"));
                let mut running = Running::start(&mut run);
                running.wait_for("boot success");
                standalone = Some(running);
            }
            Some(args) if args[0] == "send" => {
                let output =
                    ringmq().args(&args).env("NAMESRV_ADDR", &namesrv).output().expect("run");
                succeeded(&command, &output);
            }
            Some(args) if args[0] == "tail" => {
                let output = ringmq()
                    .args(&args)
                    .args(["--count", "1"])
                    .env("NAMESRV_ADDR", &namesrv)
                    .output()
                    .expect("run");
                assert!(succeeded(&command, &output).contains("hello"), "{output:?}");
            }
            Some(_) => {}
            None if here.starts_with("mvn ") => {
                let output = Command::new("sh")
                    .current_dir(root())
                    .args(["-c", &here])
                    .output()
                    .expect("run");
                assert!(succeeded(&command, &output).contains("all received"), "{output:?}");
            }
            None => {}
        }
    }
    let mut standalone = standalone.expect("the README starts `standalone`");
    standalone.signal(libc::SIGTERM);
    standalone.wait_for("stopped");
}

/// A name server and a broker as two processes, as the README starts them.
#[test]
fn the_readmes_two_processes_work() {
    let dir = disk_dir();
    let (port, namesrv) = (free_ports(1), format!("127.0.0.1:{}", free_ports(1)));
    let metrics = format!("127.0.0.1:{}", free_ports(1));
    let mut running = Vec::new();
    for command in commands(&read("README.md")) {
        let here = command.replace("127.0.0.1:9876", &namesrv).replace("127.0.0.1:5557", &metrics);
        let Some(args) = ringmq_args(&here) else {
            continue;
        };
        let mut run = ringmq();
        run.args(&args);
        let ready = match args[0].as_str() {
            "namesrv" => {
                run.args(["--listen", &namesrv, "--data-dir"]).arg(dir.path().join("namesrv"));
                "the name server listens"
            }
            "broker" if !args.iter().any(|arg| arg == "--print-config") => {
                run.args(["--listen", &format!("127.0.0.1:{port}"), "--shards", "1", "--data-dir"])
                    .arg(dir.path().join("store"));
                "boot success"
            }
            _ => continue,
        };
        let mut process = Running::start(&mut run);
        process.wait_for(ready);
        running.push(process);
    }
    assert_eq!(running.len(), 2);
    assert!(std::net::TcpStream::connect(&metrics).is_ok(), "nothing listens on {metrics}");
    for process in running.iter_mut().rev() {
        process.signal(libc::SIGTERM);
        process.wait_for("stopped");
    }
}

#[test]
fn the_readmes_table_of_limits_is_the_codes() {
    let text = read("README.md");
    let config = Config::default();
    for bound in BOUNDS.iter().filter(|bound| bound.key.starts_with("limits.")) {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{}` |", bound.key)))
            .unwrap_or_else(|| panic!("{} has no row", bound.key));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(plain_number(cells[2]), (bound.get)(&config), "{row}");
        assert_eq!(cells[3], bound.answer, "{row}");
    }
}

/// `64 MiB`, `120 s`, `1,000 us` or `20,000` as bytes, milliseconds, microseconds or a plain number.
fn plain_number(text: &str) -> u64 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: u64 =
        number.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is no number"));
    match unit {
        "" | "us" => number,
        "s" => number * 1_000,
        "KiB" => number << 10,
        "MiB" => number << 20,
        other => panic!("unit {other:?}"),
    }
}

#[test]
fn every_request_code_has_a_row_in_the_compatibility_table() {
    let source = read("net/src/code.rs");
    let requests = source.split("pub mod response").next().expect("requests come first");
    let table = read("docs/compatibility.md");
    let mut count = 0;
    for line in requests.lines().filter_map(|line| line.trim().strip_prefix("pub const ")) {
        let (name, rest) = line.split_once(": i32 = ").expect("a constant");
        let row = format!("| {} | {name} |", rest.trim_end_matches(';'));
        assert!(table.contains(&row), "docs/compatibility.md lacks a row that starts with {row:?}");
        count += 1;
    }
    assert!(count > 60, "only {count} codes found");
}

#[test]
fn every_dependency_earns_its_line() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let document = read("docs/dependencies.md");
    let dependencies = manifest["workspace"]["dependencies"].as_table().expect("a table");
    for name in dependencies.keys().filter(|name| !name.starts_with("ringmq")) {
        assert!(document.contains(&format!("| {name} |")), "docs/dependencies.md lacks {name}");
    }
    for row in document.lines().filter_map(|line| line.strip_prefix("| ")) {
        let name = row.split(' ').next().expect("a first cell");
        assert!(
            name == "crate" || dependencies.contains_key(name),
            "docs/dependencies.md lists {name}, which is not used"
        );
    }
}

/// The engine's features as cargo resolves them over these kinds of dependencies.
fn engine_features(edges: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--workspace", "--locked", "--offline", "--prefix", "none"])
        .args(["--edges", edges, "--format", "{p} {f}"])
        .output()
        .expect("cargo starts");
    let tree = succeeded("cargo tree", &output);
    tree.lines().filter(|line| line.starts_with("ringmq-engine ")).collect()
}

#[test]
fn only_the_builds_of_tests_can_be_told_to_fail() {
    let shipped = engine_features("normal,build");
    assert!(!shipped.is_empty(), "the engine is part of the program");
    for feature in ["test-faults", "sim-switches"] {
        assert!(!shipped.contains(feature), "a program would be built with {feature}: {shipped}");
    }
    assert!(engine_features("normal,build,dev").contains("test-faults"), "the tests need it");
}

/// The cases of `docs/field-reports.md`, by subject.
const FIELD_REPORTS: [(&str, &[u32]); 11] = [
    ("HA", &[3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
    ("ST", &[3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 20, 21, 22]),
    ("PR", &[1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
    ("CO", &[1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]),
    ("NS", &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13]),
    ("PT", &[5, 6, 7, 8, 9, 10]),
    ("AC", &[2, 4, 5, 6, 7, 8, 9, 10]),
    ("TR", &[1]),
    ("AD", &[1, 2, 3, 4, 5, 6, 7]),
    ("CL", &[1, 2, 3, 4, 5, 6]),
    ("IO", &[3, 4, 5, 6, 7, 8]),
];

#[test]
fn every_field_report_has_a_row_and_every_test_named_there_exists() {
    let sources = rust_sources();
    let document = read("docs/field-reports.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let is_case = cells[0].len() == 5 && cells[0].as_bytes()[2] == b'-';
        is_case.then_some(cells)
    });
    let mut ids = Vec::new();
    for cells in rows {
        let [id, seen, done, tests] = cells[..] else { panic!("{cells:?}: four cells") };
        assert!(!seen.is_empty() && !done.is_empty(), "{id} says too little");
        assert!(!tests.is_empty() || done.contains("not in this release"), "{id} names no test");
        for name in tests.split(", ").filter(|name| !name.is_empty()) {
            let test = name.trim_matches('`');
            assert!(exists(test, &sources), "{id}: there is no test {test}");
        }
        ids.push(id.to_owned());
    }
    let expected: Vec<String> = FIELD_REPORTS
        .iter()
        .flat_map(|(subject, numbers)| numbers.iter().map(move |n| format!("{subject}-{n:02}")))
        .collect();
    assert_eq!(ids, expected);
}

#[test]
fn every_test_that_the_page_on_replication_names_exists() {
    let sources = rust_sources();
    let document = read("docs/replication.md");
    let names = document.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next());
    let names = names.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`'));
    let tests: Vec<&str> = names.filter(|name| name.contains("::")).collect();
    assert!(tests.len() > 20, "{tests:?}");
    for test in tests {
        assert!(exists(test, &sources), "there is no test {test}");
    }
}

/// Every source file of the workspace, by its path below the root.
fn rust_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut dirs =
        ["bin", "engine", "net", "loadtest", "replication"].map(|dir| root().join(dir)).to_vec();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push((name, fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    found
}

/// Whether a test of this name (`program::module::test`) stands in a file that the other words name.
fn exists(test: &str, sources: &[(String, String)]) -> bool {
    let mut words: Vec<&str> = test.split("::").collect();
    let function = format!("fn {}(", words.pop().expect("a name"));
    let place = match words.first().copied() {
        Some("ringmq") => "bin/src/".to_owned(),
        Some(part @ ("engine" | "net" | "loadtest" | "replication")) => format!("{part}/"),
        Some(program) => format!("bin/tests/{program}/"),
        None => return false,
    };
    sources.iter().any(|(path, text)| {
        let named = words.iter().skip(1).all(|word| path.contains(word));
        path.starts_with(&place) && named && text.contains("#[test]") && text.contains(&function)
    })
}
