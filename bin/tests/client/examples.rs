//! The crate's examples, run as their readers run them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

use crate::support::Target;
use crate::support::process::Process;
use crate::support::tempdir;

const EVERYWHERE: &[(&str, &str)] = &[
    ("first", "stored as "),
    ("ordered", "order-18 shipped: queue "),
    ("batch", "1000 more messages are stored"),
    ("admin", "12 boxes"),
    ("push", "all invoices are consumed"),
    ("orderly", "all steps are done"),
    ("pull", "20 messages pulled"),
    ("stream", "the sum is 55"),
];
/// RingMQ's broker does not have these yet; what it says then ends the program.
const STOCK_ALONE: &[(&str, &str, &str)] = &[
    ("transaction", "pay 1000000: Rollback as ", "sending transaction message is forbidden"),
    ("request_reply", "answered: 42", "does not have that feature"),
];

/// Runs every example at these name servers.
pub(crate) fn run_all(target: Target, namesrv: SocketAddr) {
    let dir = tempdir("client-examples");
    for (name, wanted) in EVERYWHERE {
        let (done, output) = run(name, namesrv, dir.path());
        assert!(done && output.contains(wanted), "{name}: {output}");
    }
    for (name, wanted, refused) in STOCK_ALONE {
        let (done, output) = run(name, namesrv, dir.path());
        match target {
            Target::RingMq => assert!(!done && output.contains(refused), "{name}: {output}"),
            _ => assert!(done && output.contains(wanted), "{name}: {output}"),
        }
    }
}

fn run(name: &str, namesrv: SocketAddr, dir: &Path) -> (bool, String) {
    build();
    let log = dir.join(format!("{name}.log"));
    let mut command = Command::new(examples_dir().join(name));
    command.env("NAMESRV_ADDR", namesrv.to_string());
    let mut process = Process::spawn(name, command, &log);
    let status = process.wait(std::time::Duration::from_secs(60));
    let status = status.unwrap_or_else(|| panic!("example {name} does not end"));
    (status.success(), process.log_text())
}

fn examples_dir() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_ringmq"));
    program.parent().expect("a directory of programs").join("examples")
}

/// A test of the whole workspace has built them; one of this package alone has not.
fn build() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client");
        let newest = newest(&crate_dir.join("src")).max(newest(&crate_dir.join("examples")));
        let names = EVERYWHERE.iter().map(|e| e.0).chain(STOCK_ALONE.iter().map(|e| e.0));
        let built = |name: &str| examples_dir().join(name).metadata().and_then(|m| m.modified());
        if names.into_iter().all(|name| built(name).is_ok_and(|built| built >= newest)) {
            return;
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "ringmq-client", "--examples"])
            .current_dir(&crate_dir)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the examples do not build");
    });
}

/// When a file below that directory was last changed.
fn newest(dir: &Path) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let meta = entry.metadata().expect("what a file is");
        let changed = match meta.is_dir() {
            true => self::newest(&entry.path()),
            false => meta.modified().expect("when a file was changed"),
        };
        newest = newest.max(changed);
    }
    newest
}
