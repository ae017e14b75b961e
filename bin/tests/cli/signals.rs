//! Stopping by signal: the first asks, a second ends the process at once.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{free_ports, ringmq};

/// A process whose log lines are read one by one; killed if the test leaves it.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let mut child =
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
        let lines = BufReader::new(child.stderr.take().expect("piped"));
        Running { child, lines }
    }

    /// Reads log lines until one contains `part`.
    pub(crate) fn wait_for(&mut self, part: &str) {
        let mut seen = String::new();
        loop {
            let from = seen.len();
            let read = self.lines.read_line(&mut seen).expect("read");
            assert!(read > 0, "the log ended without {part:?}: {seen}");
            if seen[from..].contains(part) {
                return;
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers only, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn broker(dir: &std::path::Path) -> Command {
    let mut command = ringmq();
    let listen = format!("127.0.0.1:{}", free_ports(1));
    let config = dir.join("ringmq.toml");
    std::fs::write(&config, "[store]\nsegment_bytes = 16777216\n[drain]\nserve_ms = 100\n")
        .expect("write");
    command.args(["broker", "--shards", "1", "--listen", &listen, "--config"]).arg(config);
    command.arg("--data-dir").arg(dir.join("store"));
    command
}

pub(crate) fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary directory")
}

#[test]
fn a_first_signal_stops_the_process_in_order() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let dir = disk_dir();
        let mut running = Running::start(&mut broker(dir.path()));
        running.wait_for("starting");
        let asked = Instant::now();
        running.signal(signal);
        running.wait_for("stopped");
        assert_eq!(running.child.wait().expect("wait").code(), Some(0));
        assert!(asked.elapsed() < Duration::from_secs(5), "took {:?}", asked.elapsed());
    }
}

#[test]
fn a_second_start_on_the_same_store_keeps_its_shard_count() {
    let dir = disk_dir();
    let mut first = Running::start(&mut broker(dir.path()));
    first.wait_for("starting");
    first.signal(libc::SIGTERM);
    first.wait_for("stopped");
    let output = broker(dir.path()).arg("--shards=2").output().expect("run");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("has 1 shard(s) and 2 were asked for"), "{text}");
}

#[test]
fn a_failed_check_prevents_the_start() {
    let dir = disk_dir();
    let port = free_ports(1);
    let _other = std::net::TcpListener::bind(("127.0.0.1", port)).expect("bind");
    let output =
        broker(dir.path()).arg(format!("--listen=127.0.0.1:{port}")).output().expect("run");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("in use by another process") && text.contains("`ringmq check`"),
        "{text}"
    );
    assert!(!dir.path().join("store").exists());
}

#[test]
fn a_name_server_starts_and_stops_alone() {
    let dir = disk_dir();
    let mut command = ringmq();
    command.args(["namesrv", "--listen", &format!("127.0.0.1:{}", free_ports(1))]);
    command.arg("--data-dir").arg(dir.path().join("namesrv"));
    let mut running = Running::start(&mut command);
    running.wait_for("the name server listens");
    running.signal(libc::SIGTERM);
    running.wait_for("stopped");
    assert_eq!(running.child.wait().expect("wait").code(), Some(0));
}
