//! `ringmq log` on stores made here, byte by byte, as a stock broker lays them out.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ringmq_net::record::RecordFields;

use crate::signals::disk_dir;
use crate::support::ringmq;

const SEGMENT_BYTES: usize = 1 << 20;

/// A store with one segment of `count` records; returns the physical offset of each.
fn make_store(dir: &Path, count: i64) -> Vec<usize> {
    let mut segment = vec![0; SEGMENT_BYTES];
    let mut offsets = Vec::new();
    let mut at = 0;
    for number in 0..count {
        let body = format!("body {number}\n");
        let record = RecordFields {
            queue_id: 2,
            flag: 0,
            queue_offset: number,
            physical_offset: at as i64,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_000,
            born_host: "10.0.0.1:5000".parse().expect("address"),
            store_timestamp: 1_700_000_000_001,
            store_host: "10.0.0.2:10911".parse().expect("address"),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: body.as_bytes(),
            topic: if number % 2 == 0 { "Even" } else { "Odd" },
            properties: b"TAGS\x01TagA\x02KEYS\x01a\nb\x02",
        };
        let len = record.encoded_len();
        record.encode(&mut segment[at..at + len]);
        offsets.push(at);
        at += len;
    }
    fs::create_dir_all(dir.join("commitlog")).expect("create");
    fs::write(dir.join("commitlog/00000000000000000000"), segment).expect("write");
    offsets
}

fn log(args: &[&str], dir: &Path) -> Output {
    ringmq().arg("log").args(args).arg(dir).output().expect("run")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("utf-8")
}

fn records(output: &Output) -> Vec<String> {
    text(output).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn each_record_is_one_line() {
    let dir = disk_dir();
    let offsets = make_store(dir.path(), 5);
    let output = log(&["dump", "--body"], dir.path());
    let lines = records(&output);
    assert_eq!(lines.len(), 5, "{}", text(&output));
    assert!(lines[1].starts_with(&format!("{} ", offsets[1])), "{}", lines[1]);
    for part in [
        "topic=Odd",
        "queue=2",
        "offset=1",
        "TAGS=TagA",
        r"KEYS=a\nb",
        r#"text="body 1\n""#,
        "from=10.0.0.1:5000",
    ] {
        assert!(lines[1].contains(part), "{} lacks {part}", lines[1]);
    }
    assert!(text(&output).contains("end of log"), "{}", text(&output));
}

#[test]
fn a_dump_can_be_narrowed() {
    let dir = disk_dir();
    let offsets = make_store(dir.path(), 10);
    assert_eq!(records(&log(&["dump", "--topic", "Even"], dir.path())).len(), 5);
    assert_eq!(records(&log(&["dump", "--count", "3"], dir.path())).len(), 3);
    let from = offsets[7].to_string();
    let lines = records(&log(&["dump", "--from", &from], dir.path()));
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with(&format!("{from} ")));
}

#[test]
fn a_sound_log_verifies_with_those_of_all_shards() {
    let dir = disk_dir();
    make_store(dir.path(), 3);
    make_store(&dir.path().join("shards/1"), 4);
    let output = log(&["verify"], dir.path());
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output);
    assert!(
        lines.contains(" 3 records") && lines.contains(" 4 records") && lines.lines().count() == 2,
        "{lines}"
    );
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let dir = disk_dir();
    let offsets = make_store(dir.path(), 5);
    let path = dir.path().join("commitlog/00000000000000000000");
    let mut bytes = fs::read(&path).expect("read");
    // In the body of record 2, behind the 84 bytes of fixed fields and the body's length.
    bytes[offsets[2] + 88] ^= 1;
    fs::write(&path, bytes).expect("write");
    let output = log(&["verify"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    let lines = text(&output);
    assert!(lines.contains("PROBLEM") && lines.contains(&offsets[2].to_string()), "{lines}");
    assert!(text(&log(&["dump"], dir.path())).contains("# PROBLEM"));
}

#[test]
fn a_directory_that_is_no_store_is_refused() {
    let dir = disk_dir();
    for command in ["dump", "verify"] {
        let output = log(&[command], dir.path());
        assert_eq!(output.status.code(), Some(1));
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains("no commitlog directory") && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn a_closed_pipe_ends_a_dump_quietly() {
    let dir = disk_dir();
    make_store(dir.path(), 4_000);
    let mut command: Command = ringmq();
    let mut child = command
        .args(["log", "dump"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut first = [0; 16];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("the first bytes");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
