//! The example deployments exactly as they are shipped, each through the death and the return of a master. Their ports are fixed, so each
//! runs in a network namespace of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::broker::{create_topic_at, ringmq};
use crate::support::ha::{
    CAUGHT_UP_MAX, assert_shard_has, await_caught_up, await_streaming, await_text, compare_logs,
};
use crate::support::load::Load;
use crate::support::net::in_own_network;
use crate::support::process::Process;
use crate::support::wire::{Conn, code, eventually};
use crate::support::{TempDir, tempdir};
use crate::{QUEUES, TOPIC, journal, spec, stream};

const NAME_SERVERS: [u16; 2] = [9876, 9877];
const MASTERS: [(&str, u16); 2] = [("broker-a", 10911), ("broker-b", 11111)];
const SLAVES: [(&str, u16); 2] = [("broker-a-s", 11011), ("broker-b-s", 11211)];

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// What `examples/start` runs.
struct Deployment {
    name: &'static str,
    dir: TempDir,
    start: Process,
    /// What was started by hand since, as an operator would.
    again: Vec<Process>,
}

impl Deployment {
    fn start(name: &'static str) -> Deployment {
        let dir = tempdir(name);
        let mut command = Command::new(examples().join("start"));
        command.arg(name).current_dir(dir.path()).env("RINGMQ", ringmq().get_program());
        command.env_remove("NAMESRV_ADDR");
        let start = Process::spawn(name, command, &dir.path().join("start.log"));
        Deployment { name, dir, start, again: Vec::new() }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("ringmq-data").join(self.name)
    }

    fn store(&self, broker: &str) -> PathBuf {
        self.data().join(broker)
    }

    /// SIGKILL, by the process id that the script left.
    fn kill(&self, broker: &str) {
        let path = self.data().join(format!("{broker}.pid"));
        let pid = std::fs::read_to_string(&path).expect("a process id");
        let pid: i32 = pid.trim().parse().expect("a process id");
        // SAFETY: a plain system call with numbers; the process is a child of the script, which has not reaped it by waiting for all.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }

    fn start_again(&mut self, broker: &str) {
        let mut command = ringmq();
        command.arg("broker").arg("--config");
        command.arg(examples().join(self.name).join(format!("{broker}.toml")));
        command.current_dir(self.dir.path());
        self.again.push(Process::spawn(broker, command, &self.data().join("again.log")));
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = std::fs::read_dir(self.data()).into_iter().flatten().flatten();
            for path in logs.map(|entry| entry.path()).filter(|path| path.extension().is_some()) {
                println!(
                    "{}:\n{}",
                    path.display(),
                    std::fs::read_to_string(&path).unwrap_or_default()
                );
            }
        }
        // The script ends what it started.
        self.start.signal(libc::SIGTERM);
        self.start.wait(Duration::from_secs(30));
    }
}

/// What both name servers say of the topic, once it is as wanted.
fn await_route(what: &str, wanted: impl Fn(&str) -> bool) {
    for port in NAME_SERVERS {
        let route = || {
            let mut conn = Conn::open(at(port)).ok()?;
            let reply = conn.call(code::GET_ROUTE_BY_TOPIC, &[("topic", TOPIC)], &[]).ok()?;
            Some(String::from_utf8_lossy(&reply.body).into_owned())
        };
        let reached =
            eventually(CAUGHT_UP_MAX, || route().filter(|route| wanted(route)).map(|_| ()));
        assert!(reached.is_some(), "the route at {port} has no {what}: {:?}", route());
    }
}

fn await_listening(port: u16) {
    let open = eventually(CAUGHT_UP_MAX, || Conn::open(at(port)).ok().map(|_| ()));
    assert!(open.is_some(), "nothing listens at {port}");
}

fn start(name: &'static str, slaves: &[(&str, u16)]) -> Deployment {
    let deployment = Deployment::start(name);
    for (_, port) in MASTERS.iter().chain(slaves) {
        await_listening(*port);
    }
    for (_, port) in MASTERS {
        create_topic_at(at(port), TOPIC, QUEUES);
        await_route("master", |route| route.contains(&at(port).to_string()));
    }
    for ((_, slave), (_, master)) in slaves.iter().zip(MASTERS) {
        await_text(at(*slave), "ringmqHaState", |state| state == "following");
        await_streaming(at(master));
        stream::await_topic_on(at(*slave));
        await_route("slave", |route| route.contains(&at(*slave).to_string()));
    }
    deployment
}

/// A master dies, its consumers go on at its slave, it comes back, its producers go on.
fn with_slaves(name: &'static str, synchronous: bool) {
    let mut deployment = start(name, &SLAVES);
    let journal = journal(&deployment.dir);
    let masters = MASTERS.map(|(_, port)| at(port));
    let slaves = SLAVES.map(|(_, port)| at(port));
    let load = Load::start(&masters, &spec(), &journal);
    journal.await_count(2_000);
    if synchronous {
        // In the middle of it: what was acknowledged is at the slave.
        deployment.kill("broker-a");
        load.stop();
    } else {
        load.stop();
        await_caught_up(masters[0], slaves[0]);
        deployment.kill("broker-a");
    }
    await_route("dead master removed", |route| !route.contains(&masters[0].to_string()));
    await_route("slave of the dead master", |route| route.contains(&slaves[0].to_string()));
    assert_shard_has(slaves[0], 0, TOPIC, QUEUES, &journal);
    deployment.start_again("broker-a");
    await_route("master again", |route| route.contains(&masters[0].to_string()));
    await_streaming(masters[0]);
    let before = journal.count();
    let load = Load::start(&masters, &spec(), &journal);
    journal.await_count(before + 1_000);
    load.stop();
    for (shard, (master, slave)) in masters.into_iter().zip(slaves).enumerate() {
        await_caught_up(master, slave);
        for address in [master, slave] {
            assert_shard_has(address, shard as u16, TOPIC, QUEUES, &journal);
        }
        let (of_master, of_slave) = (MASTERS[shard].0, SLAVES[shard].0);
        assert!(compare_logs(&deployment.store(of_master), &deployment.store(of_slave)) > 0);
    }
    assert_eq!(journal.refused_in_earnest(), Vec::<String>::new());
}

#[test]
fn two_masters_with_asynchronous_slaves_live_through_a_masters_death() {
    if in_own_network(
        "deployments::two_masters_with_asynchronous_slaves_live_through_a_masters_death",
    ) {
        with_slaves("2m-2s-async", false);
    }
}

#[test]
fn two_masters_with_synchronous_slaves_live_through_a_masters_death() {
    if in_own_network(
        "deployments::two_masters_with_synchronous_slaves_live_through_a_masters_death",
    ) {
        with_slaves("2m-2s-sync", true);
    }
}

#[test]
fn two_masters_without_slaves_lose_nothing_when_one_dies_and_returns() {
    if !in_own_network(
        "deployments::two_masters_without_slaves_lose_nothing_when_one_dies_and_returns",
    ) {
        return;
    }
    let mut deployment = start("2m-noslave", &[]);
    let journal = journal(&deployment.dir);
    let masters = MASTERS.map(|(_, port)| at(port));
    let load = Load::start(&masters, &spec(), &journal);
    journal.await_count(1_000);
    deployment.kill("broker-a");
    load.stop();
    // The other one goes on.
    let before = journal.count();
    let load = Load::start_on(&[(1, masters[1])], &spec(), &journal);
    journal.await_count(before + 500);
    load.stop();
    deployment.start_again("broker-a");
    await_route("master again", |route| route.contains(&masters[0].to_string()));
    let before = journal.count();
    let load = Load::start(&masters, &spec(), &journal);
    journal.await_count(before + 500);
    load.stop();
    for (shard, master) in masters.into_iter().enumerate() {
        assert_shard_has(master, shard as u16, TOPIC, QUEUES, &journal);
    }
}
