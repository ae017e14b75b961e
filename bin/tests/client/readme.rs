//! The README's program as a newcomer has it: in a crate of its own beside a checkout, with the dependencies that the README names.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringmq_client::Client;

use crate::runtime;
use crate::support::process::Process;
use crate::support::{Broker, Options, Target, tempdir};

/// The name server's address as the README has it, which the program that is run gets from its caller instead.
const ADDRESS: &str = "\"127.0.0.1:9876\"";
const FROM_CALLER: &str = "std::env::args().nth(1).expect(\"an address\")";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of the README in this language that contain `text`: there must be one.
fn block(readme: &str, language: &str, text: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = readme.split(&fence).skip(1).filter_map(|rest| rest.split_once("```"));
    let found: Vec<_> = blocks.map(|(block, _)| block).filter(|b| b.contains(text)).collect();
    let [one] = found[..] else { panic!("{} {language} blocks with {text}", found.len()) };
    one.to_owned()
}

/// Builds the crate; returns its programs: as the README has it, and with the name server's address as its argument.
fn build() -> (PathBuf, PathBuf) {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let program = block(&readme, "rust", "ringmq_client");
    assert_eq!(program.matches(ADDRESS).count(), 1, "the name server's address:\n{program}");
    let lines = program.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 10, "a first program of {lines} lines:\n{program}");
    // Always in the same place, so that what it depends on is built once. `[workspace]`: it is none of the workspace that target/ is in.
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    let dir = home.join("greeter");
    fs::create_dir_all(dir.join("src/bin")).expect("a directory for the crate");
    let checkout = home.join("ringmq");
    if !checkout.exists() {
        std::os::unix::fs::symlink(root().canonicalize().expect("a checkout"), &checkout)
            .expect("a checkout beside the crate");
    }
    let dependencies = block(&readme, "toml", "ringmq-client");
    // The same profiles, so that what the workspace has built is not built again.
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let profiles = workspace.find("[profile.").map_or("", |at| &workspace[at..]);
    let manifest = format!(
        "[package]\nname = \"greeter\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n{dependencies}\n{profiles}"
    );
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")).expect("versions that are here");
    fs::write(dir.join("Cargo.toml"), manifest).expect("a manifest");
    fs::write(dir.join("src/main.rs"), &program).expect("a program");
    let told = program.replace(ADDRESS, FROM_CALLER);
    fs::write(dir.join("src/bin/greeter-told.rs"), told).expect("a program");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--target-dir"])
        .arg(&target)
        .current_dir(&dir)
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the README's program does not build:\n{errors}\n{program}");
    (target.join("debug/greeter"), target.join("debug/greeter-told"))
}

/// The program says where the message is; the broker has it there, with the README's text.
fn greet(program: &Path, target: Target) {
    let dir = tempdir("client-readme");
    let options = Options { shards: 2, ..Options::default() };
    let broker = Broker::standalone(target, &dir.sub("broker"), options);
    let mut command = Command::new(program);
    command.arg(broker.namesrv.to_string());
    let mut process = Process::spawn("greeter", command, &dir.path().join("greeter.log"));
    let status = process.wait(Duration::from_secs(60)).expect("the program ends");
    let said = process.log_text();
    assert!(status.success(), "{said}");
    let line = said.lines().find(|line| line.starts_with("stored as ")).expect(&said);
    let id = line.split_whitespace().nth(2).expect("an id");
    let body = runtime().block_on(stored(broker.namesrv, id));
    assert_eq!(body, "hello", "{said}");
}

/// The body of the message with this unique id, as its broker finds it.
async fn stored(namesrv: SocketAddr, id: &str) -> String {
    let client = Client::builder().name_server(namesrv.to_string()).build().expect("a client");
    // The index follows the log by a moment.
    for _ in 0..200 {
        let found = client.admin().find_message("greetings", id).await;
        if let Some(message) = found.expect("an answer") {
            return String::from_utf8_lossy(&message.body).into_owned();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no message {id} in the topic");
}

#[test]
fn the_first_program_of_the_readme_builds_in_a_crate_of_its_own_and_sends() {
    let (verbatim, told) = build();
    assert!(verbatim.exists());
    greet(&told, Target::RingMq);
    greet(&told, Target::Stock497);
}
