//! One scenario at several brokers.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use ringmq_loadtest::Cli;
use ringmq_loadtest::LoadError;
use ringmq_loadtest::cli::Mode;
use ringmq_loadtest::compare::{Comparison, compare};

use crate::fake::{FakeBroker, Manners};

fn run(options: &str) -> Result<Comparison, LoadError> {
    let line = format!("x compare --quiet {options}");
    match Cli::try_parse_from(line.split_whitespace()).unwrap().mode {
        Mode::Compare(options) => compare(&options),
        _ => panic!("{line}"),
    }
}

#[test]
fn the_faster_broker_is_told_with_its_factor_and_errors_are_told_too() {
    let fast = FakeBroker::start(Manners::default());
    let pause = Some(Duration::from_millis(5));
    let slow = FakeBroker::start(Manners { pause, refuse: Some((50, 2)), ..Manners::default() });
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("s.toml");
    let text = format!(
        r#"
        title = "fast and slow"
        rounds = 2
        vars = {{ count = "100" }}
        [[endpoint]]
        name = "fast"
        addr = ["{}"]
        [[endpoint]]
        name = "slow"
        addr = ["{}"]
        [[phase]]
        row = [
            {{ name = "sends", run = "produce --raw --connections 1 --window 1 --count {{count}}" }},
            {{ name = "other", run = "produce --raw --connections 1 --window 1 --count 1" }},
        ]
        "#,
        fast.address(),
        slow.address()
    );
    std::fs::write(&scenario, text).unwrap();
    let page = dir.path().join("c.html");
    let options = format!("{} --row sends --html {}", scenario.display(), page.display());
    let comparison = run(&options).unwrap();
    assert_eq!((comparison.rounds, comparison.rows.len()), (2, 1), "{}", comparison.table());
    let row = &comparison.rows[0];
    let rate = row.measures.iter().find(|measure| measure.name == "msg/s").unwrap();
    let factor = &rate.advantage["slow"];
    assert!(factor.low > 1.0 && factor.values.len() == 2, "{}", comparison.table());
    assert_eq!(row.unclean, [("slow".to_owned(), 2)].into());
    assert!(!comparison.is_clean());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("data-kind=\"compare\"") && page.contains("fast and slow"));
    // Only what was asked for, in each round.
    assert_eq!(fast.requests(), 200);
    let fewer = run(&format!("{options} --set count=10 --endpoint fast --rounds 1")).unwrap();
    assert_eq!((fewer.endpoints.len(), fast.requests()), (1, 210));
}

#[test]
fn a_row_that_fails_at_one_broker_is_told_and_the_others_go_on() {
    let broker = FakeBroker::start(Manners::default());
    let dir = tempfile::tempdir().unwrap();
    let (scenario, page) = (dir.path().join("s.toml"), dir.path().join("c.md"));
    // Nobody listens on port 1, `false` is no broker, and the last one has no part in the second row.
    let text = format!(
        r#"
        title = "some fail"
        [[fact]]
        name = "What is here"
        command = "echo in {{dir}}"
        [[endpoint]]
        name = "well"
        addr = ["{0}"]
        [[endpoint]]
        name = "away"
        addr = ["127.0.0.1:1"]
        [[endpoint]]
        name = "ends"
        addr = ["127.0.0.1:2"]
        start = "false"
        [[endpoint]]
        name = "variant"
        addr = ["{0}"]
        rows = ["first"]
        rival = false
        [[phase]]
        row = [
            {{ name = "first", run = "produce --raw --connections 1 --window 1 --count 10" }},
            {{ name = "second", run = "produce --raw --connections 1 --window 1 --count 10" }},
        ]
        "#,
        broker.address(),
    );
    std::fs::write(&scenario, text).unwrap();
    let (scenario, stores) = (scenario.display(), dir.path().display());
    let options =
        format!("{scenario} --rounds 2 --dir {stores}/stores --markdown {}", page.display());
    let comparison = run(&options).unwrap();
    let [first, second] = &comparison.rows[..] else { panic!("{}", comparison.table()) };
    let told: Vec<_> = first.measures[0].figures.keys().map(String::as_str).collect();
    assert_eq!((told, second.measures[0].figures.len()), (vec!["variant", "well"], 1));
    assert_eq!((first.failed["away"].len(), second.failed["ends"].len()), (2, 2));
    assert!(!comparison.is_clean() && comparison.rounds == 2);
    assert_eq!((broker.requests(), comparison.rivals.len()), (60, 2));
    let page = std::fs::read_to_string(page).unwrap();
    for text in [
        &*format!("What is here:\n\n```\nin {stores}/stores\n```"),
        "| first | nothing at away, round 1: ",
        "| second | nothing at ends, round 2: ends: main ended with ",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    // If nothing tells anything, there is no comparison.
    let error = run(&format!("{options} --endpoint ends")).unwrap_err().to_string();
    assert!(error.contains("ended with"), "{error}");
}

#[test]
fn scenarios_that_ship_can_be_run() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let comparison = run(&format!("--dry-run {}", path.display()));
        assert!(
            comparison.is_ok_and(|comparison| comparison.endpoints.len() >= 2),
            "{}",
            path.display()
        );
        count += 1;
    }
    assert!(count >= 3);
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("s.toml");
    let begin = |start: &str| {
        let text = format!(
            "title = \"t\"\ndir = \"{}\"\n[[endpoint]]\nname = \"a\"\naddr = [\"127.0.0.1:1\"]\n{start}\n[[phase]]\nrow = [ {{ idle = 0.1 }} ]\n",
            dir.path().display()
        );
        std::fs::write(&scenario, text).unwrap();
        run(&scenario.display().to_string()).unwrap_err().to_string()
    };
    assert!(begin("").contains("pid"));
    assert!(begin("start = \"false\"").contains("ended with"));
    assert!(begin("start = \"echo {nothing}\"").contains("{nothing}"));
    let with_row = |line: &str| begin(&format!("[[phase]]\nrow = [ {{ run = \"{line}\" }} ]"));
    assert!(with_row("produce --colour red").contains("--colour"));
    assert!(with_row("echo").contains("no result"));
    // A directory of somebody else's is never emptied.
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/precious"), "x").unwrap();
    assert!(begin("start = \"false\"").contains("was not made by"));
    assert!(dir.path().join("a/precious").exists());
    let path = scenario.display();
    for (options, name) in [
        ("--row none", "--row"),
        ("--endpoint z", "--endpoint z"),
        ("--set x", "--set x"),
        ("--rounds 0", "--rounds"),
    ] {
        let error = run(&format!("{path} {options}")).unwrap_err().to_string();
        assert!(error.contains(name), "{options}: {error}");
    }
}
