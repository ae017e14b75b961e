//! Networks of the kernel for one test: its own, and a second one that veth pairs lead to. Nothing of it has a name outside, so all of
//! it is gone with the processes, however these end. Needs root.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::Process;
use super::wire::eventually;

const IN_NAMESPACE: &str = "RINGMQ_TEST_IN_NAMESPACE";
const MADE_MAX: Duration = Duration::from_secs(10);

/// Runs the test `name` of this program in a network of its own, where any port is free; `true` if this is it.
pub fn in_own_network(name: &str) -> bool {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(program).args([name, "--exact", "--nocapture"]).env(IN_NAMESPACE, "1");
    let out = command.output().expect("unshare runs");
    let text = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("{}", text.join("\n"));
    assert!(out.status.success(), "{name} in a network of its own: {}", out.status);
    assert!(text[0].contains("1 passed"), "{name} is no test of this program");
    false
}

/// A second network: a process that does nothing lives there and keeps it.
pub struct FarNetwork {
    keeper: Process,
}

impl FarNetwork {
    pub fn new(dir: &Path) -> FarNetwork {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sleep", "infinity"]);
        let keeper = Process::spawn("far network", command, &dir.join("far-network.log"));
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = of("self").expect("this network");
        let made = eventually(MADE_MAX, || {
            of(&keeper.pid().to_string()).filter(|network| *network != own).map(|_| ())
        });
        assert!(made.is_some(), "no second network");
        let far = FarNetwork { keeper };
        far.ip(&["link", "set", "lo", "up"]);
        far
    }

    /// A pair of veth devices between both networks, named `near` and `far` here, with an address each.
    pub fn wire(&self, number: u8) -> Wire<'_> {
        let (near, far) = (format!("near{number}"), format!("far{number}"));
        let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 99, number, last));
        let keeper = self.keeper.pid().to_string();
        ip(&["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &keeper]);
        ip(&["addr", "add", &format!("{}/24", addresses[0]), "dev", &near]);
        self.ip(&["addr", "add", &format!("{}/24", addresses[1]), "dev", &far]);
        let wire =
            Wire { network: self, near, far, near_addr: addresses[0], far_addr: addresses[1] };
        wire.heal();
        wire
    }

    /// What begins a command line that is to run there.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.path().display()), "--".to_owned()]
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.keeper.pid()))
    }

    fn ip(&self, args: &[&str]) {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg("ip").args(args);
        run(command);
    }
}

/// See [`FarNetwork::wire`].
pub struct Wire<'a> {
    network: &'a FarNetwork,
    near: String,
    far: String,
    pub near_addr: Ipv4Addr,
    pub far_addr: Ipv4Addr,
}

impl Wire<'_> {
    /// Pulls the plug here: nothing passes, and neither side's connections are told.
    pub fn cut_near(&self) {
        ip(&["link", "set", &self.near, "down"]);
    }

    /// The same over there.
    pub fn cut_far(&self) {
        self.network.ip(&["link", "set", &self.far, "down"]);
    }

    pub fn heal(&self) {
        ip(&["link", "set", &self.near, "up"]);
        self.network.ip(&["link", "set", &self.far, "up"]);
    }
}

fn ip(args: &[&str]) {
    let mut command = Command::new("ip");
    command.args(args);
    run(command);
}

fn run(mut command: Command) {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {errors}");
}
