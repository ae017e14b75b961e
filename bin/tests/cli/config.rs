//! The configuration as a user meets it: the example file, the precedence, and one-line errors that name key and remedy.

use std::fs;
use std::path::PathBuf;

use crate::support::ringmq;
use ringmq::config::{BOUNDS, Config, sections};

fn example() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("ringmq.example.toml");
    fs::read_to_string(path).expect("example file")
}

/// Writes a configuration file and returns its directory (which keeps it) and its path.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("ringmq.toml");
    fs::write(&path, text).expect("write");
    (dir, path.display().to_string())
}

/// What `--print-config` prints for these arguments.
fn printed(args: &[&str]) -> toml::Table {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output =
        ringmq().current_dir(dir.path()).args(args).arg("--print-config").output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("utf-8").parse().expect("TOML")
}

/// The one line of standard error that these arguments end in.
fn refusal(args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output =
        ringmq().current_dir(dir.path()).args(args).arg("--print-config").output().expect("run");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr).expect("utf-8");
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().to_owned()
}

#[test]
fn the_example_file_is_the_defaults() {
    let config: Config = toml::from_str(&example()).expect("example parses");
    assert_eq!(config, Config::default());
}

#[test]
fn the_example_file_explains_every_key_with_its_range() {
    let text = example();
    for (section, keys) in sections() {
        let start = text
            .find(&format!("\n[{section}]\n"))
            .unwrap_or_else(|| panic!("[{section}] is missing"));
        let body = &text[start + 2..];
        let body = &body[..body.find("\n[").unwrap_or(body.len())];
        for key in keys {
            let paragraph = body
                .split("\n\n")
                .find(|paragraph| {
                    paragraph
                        .lines()
                        .any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")))
                })
                .unwrap_or_else(|| panic!("[{section}] {key} is missing"));
            assert!(paragraph.contains("Default:"), "[{section}] {key} states no default");
            // Words may be broken between lines.
            let words = paragraph.replace("\n# ", " ");
            if let Some(bound) = BOUNDS.iter().find(|bound| bound.key == format!("{section}.{key}"))
            {
                let range = format!("{} to {}", bound.min, bound.max);
                assert!(
                    words.contains(&range),
                    "[{section}] {key} does not state its range {range}"
                );
            }
        }
    }
}

#[test]
fn printed_configuration_can_be_used_again() {
    let first = printed(&["broker", "--listen", "127.0.0.1:20911", "--shards", "3", "--name", "a"]);
    let (_dir, path) = file(&first.to_string());
    assert_eq!(printed(&["broker", "--config", &path]), first);
    assert_eq!(first["broker"]["advertise"].as_str(), Some("127.0.0.1:20911"));
    assert_eq!(first["shards"]["count"].as_integer(), Some(3));
}

#[test]
fn command_line_beats_environment_beats_file_beats_default() {
    let (_dir, path) = file("[durability]\nlevel = 'memory'\n[broker]\nnamesrv = ['f:1']\n");
    let level = |env: Option<&str>, args: &[&str]| {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut command = ringmq();
        command
            .current_dir(dir.path())
            .args(["broker", "--advertise", "10.0.0.1", "--print-config"])
            .args(args);
        if let Some(value) = env {
            command.env("RINGMQ_DURABILITY", value).env("NAMESRV_ADDR", "e:1;e:2");
        }
        let output = command.output().expect("run");
        let text = String::from_utf8(output.stdout).expect("utf-8");
        let table: toml::Table = text.parse().expect("TOML");
        let names = table["broker"]["namesrv"].as_array().expect("list").len();
        (table["durability"]["level"].as_str().expect("level").to_owned(), names)
    };
    assert_eq!(level(None, &[]), ("write".to_owned(), 0));
    assert_eq!(level(None, &["--config", &path]), ("memory".to_owned(), 1));
    assert_eq!(level(Some("sync"), &["--config", &path]), ("sync".to_owned(), 2));
    assert_eq!(
        level(Some("sync"), &["--config", &path, "--durability", "write", "--namesrv", "a:1"]),
        ("write".to_owned(), 1)
    );
}

#[test]
fn standalone_stays_on_the_loopback_address_unless_told() {
    let table = printed(&["standalone"]);
    assert_eq!(table["broker"]["listen"].as_str(), Some("127.0.0.1:10911"));
    assert_eq!(table["broker"]["advertise"].as_str(), Some("127.0.0.1:10911"));
    assert_eq!(table["namesrv"]["listen"].as_str(), Some("127.0.0.1:9876"));
    let table = printed(&["broker", "--advertise", "10.0.0.1"]);
    assert_eq!(table["broker"]["listen"].as_str(), Some("0.0.0.0:10911"));
    assert_eq!(table["broker"]["advertise"].as_str(), Some("10.0.0.1:10911"));
    assert!(table["namesrv"].get("listen").is_none());
    let table = printed(&["namesrv", "--listen", "[::1]:9999"]);
    assert_eq!(table["namesrv"]["listen"].as_str(), Some("[::1]:9999"));
}

#[test]
fn a_wrong_file_is_refused_in_one_line_with_the_remedy() {
    for (text, parts) in [
        (
            "[durability]\nack_timout_ms = 1",
            &["ack_timout_ms", "did you mean `ack_timeout_ms`?"][..],
        ),
        ("[broker]\nname = 7", &["line 2", "name = 7"]),
        ("[broker\n", &["line 1"]),
        ("[durability]\nlevel = 'fast'", &["line 2", "memory", "sync"]),
        ("[durability]\nack_timeout_ms = 5", &["durability.ack_timeout_ms = 5", "set 10 to 60000"]),
        (
            "[limits]\nunwritten_bytes = 104857600",
            &["limits.unwritten_bytes", "block_budget_bytes"],
        ),
        ("[store]\nsegment_bytes = 1073741825", &["store.segment_bytes", "4096"]),
        ("[broker]\nname = 'a b'", &["broker.name", "letters"]),
        ("[broker]\nid = 1", &["broker.id", "set 0", "slave"]),
        ("[ha]\nrole = 'slave'", &["broker.id", "set 1"]),
        (
            "[broker]\nid = 1\n[ha]\nrole = 'slave'\nmaster = '10.0.0.5'",
            &["ha.master", "HOST:PORT"],
        ),
        ("[ha]\nin_sync_replicas = 0", &["ha.in_sync_replicas", "1 to 16"]),
        ("[broker]\nnamesrv = ['nowhere']", &["broker.namesrv", "HOST:PORT"]),
        ("[broker]\nlisten = '10911'", &["broker.listen", "HOST:PORT"]),
        ("[retention]\ndelete_when = [24]", &["retention.delete_when", "0 to 23"]),
        ("[retention]\ndisk_aged_percent = 99", &["retention.disk_aged_percent", "10 to 95"]),
        ("[retention]\ndisk_aged_percent = 5", &["retention.disk_aged_percent", "10 to 95"]),
        ("[retention]\nhours = 0", &["retention.hours", "1 to 87600"]),
        ("[shards]\nport_stride = 3", &["shards.port_stride", "set 4 to 1000"]),
        ("[shards]\ncount = 1000", &["shards.count", "256"]),
    ] {
        let (_dir, path) = file(text);
        let line = refusal(&["broker", "--advertise", "10.0.0.1", "--config", &path]);
        for part in parts {
            assert!(line.contains(part), "{text:?}: {line:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let line = refusal(&["broker", "--config", "/nonexistent/ringmq.toml"]);
    assert!(line.contains("/nonexistent/ringmq.toml") && line.contains("--config"), "{line}");
}

#[test]
fn ports_of_one_process_that_clash_are_refused() {
    let line = refusal(&["standalone", "--listen", "127.0.0.1:9878", "--shards", "1"]);
    assert!(!line.is_empty() && line.contains("change"), "{line}");
}

#[test]
fn a_role_needs_its_id() {
    let advertised = ["broker", "--advertise", "10.0.0.1"];
    for fits in [
        &["--role", "async-master"][..],
        &["--role", "sync-master", "--broker-id", "0"],
        &["--role", "slave", "--broker-id", "1"],
    ] {
        printed(&[&advertised, fits].concat());
    }
    for wrong in [&["--role", "slave"][..], &["--role", "sync-master", "--broker-id", "2"]] {
        let line = refusal(&[&advertised, wrong].concat());
        assert!(line.contains("broker.id"), "{line}");
    }
}
