//! An endpoint at work: the process that a scenario starts, stops and kills, and the commands of the harness that load it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::cli::{Cli, Mode};
use crate::compare::scenario::{Endpoint, Phase, Scenario, Step};
use crate::error::LoadError;
use crate::report::Report;
use crate::run;
use crate::usage;

/// Longest wait for a start or a stop.
const READY: Duration = Duration::from_secs(90);
/// How often ports are tried.
const TRY_EVERY: Duration = Duration::from_millis(5);
/// How long a load goes before the broker is killed under it.
const KILL_AFTER: Duration = Duration::from_millis(1500);
/// Stands in each directory that this program may empty.
const MARK: &str = ".ringmq-compare";

/// An endpoint of a scenario in one phase, with its process if the scenario starts one. The process ends with it.
#[derive(Debug)]
pub struct Running<'a> {
    scenario: &'a Scenario,
    endpoint: &'a Endpoint,
    phase: &'a Phase,
    given: &'a BTreeMap<String, String>,
    process: Option<Child>,
    /// How long the last start took.
    pub ready: Option<Duration>,
    quiet: bool,
}

impl<'a> Running<'a> {
    /// Starts an endpoint on an empty store, if the scenario starts it at all.
    ///
    /// # Errors
    /// It doesn't start.
    pub fn begin(
        scenario: &'a Scenario,
        endpoint: &'a Endpoint,
        phase: &'a Phase,
        given: &'a BTreeMap<String, String>,
        quiet: bool,
    ) -> Result<Self, LoadError> {
        let mut running =
            Running { scenario, endpoint, phase, given, process: None, ready: None, quiet };
        if endpoint.start.is_some() {
            running.empty()?;
            running.start()?;
        }
        Ok(running)
    }

    /// The broker's process.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        let own = self.process.as_ref().and_then(|process| i32::try_from(process.id()).ok());
        own.or(self.endpoint.pid)
    }

    /// Does what has to be done before a row.
    ///
    /// # Errors
    /// It can't be done.
    pub fn step(&mut self, step: &Step) -> Result<(), LoadError> {
        match step {
            Step::Start => self.start(),
            Step::Stop => self.stop(libc::SIGTERM).map(drop),
            Step::Kill => self.stop(libc::SIGKILL).map(drop),
            Step::KillUnder(line) => self.kill_under(line),
            Step::DropCaches => self.drop_caches(),
            Step::Wait(seconds) => {
                std::thread::sleep(Duration::from_secs_f64(*seconds));
                Ok(())
            }
            Step::Run(line) => self.run(line).map(drop),
        }
    }

    /// Runs a command of the harness against it.
    ///
    /// # Errors
    /// The command is none, or has no result.
    pub fn run(&self, line: &str) -> Result<Report, LoadError> {
        let cli = Cli::try_parse_from(self.command_line(line)?)
            .map_err(|error| self.error(format!("`{line}`: {error}")))?;
        match &cli.mode {
            Mode::Produce(options) => run::produce(options),
            Mode::Consume(options) => run::consume(options),
            Mode::E2e(options) => run::end_to_end(options),
            Mode::Replay(options) => run::replay(options),
            Mode::Compare(_) | Mode::Echo(_) => {
                Err(self.error(format!("`{line}`: it has no result to compare")))
            }
        }
    }

    /// A command of the harness with everything that it does not say itself.
    fn command_line(&self, line: &str) -> Result<Vec<String>, LoadError> {
        let line = self.fill(line)?;
        let mut words = vec!["ringmq-loadtest".to_owned()];
        words.extend(line.split_whitespace().map(str::to_owned));
        if !words.iter().any(|word| word == "--addr" || word == "--namesrv") {
            let addresses = self.addresses()?;
            words.extend(addresses.into_iter().flat_map(|address| ["--addr".to_owned(), address]));
        }
        if let Some(pid) = self.pid() {
            words.extend(["--pid".to_owned(), pid.to_string()]);
        }
        if self.quiet && !words.iter().any(|word| word == "--quiet") {
            words.push("--quiet".to_owned());
        }
        Ok(words)
    }

    fn addresses(&self) -> Result<Vec<String>, LoadError> {
        self.endpoint.addr.iter().map(|address| self.fill(address)).collect()
    }

    fn fill(&self, text: &str) -> Result<String, LoadError> {
        let filled = self.scenario.fill(text, self.endpoint, Some(self.phase), self.given);
        filled.map_err(|why| self.error(why))
    }

    fn error(&self, why: String) -> LoadError {
        LoadError::Endpoint { endpoint: self.endpoint.name.clone(), why }
    }

    fn dir(&self) -> PathBuf {
        self.scenario.dir_of(self.endpoint).into()
    }

    // ---- the process ----

    /// Makes its directory anew. One that this program did not make is left alone.
    fn empty(&self) -> Result<(), LoadError> {
        let dir = self.dir();
        let io = |error: std::io::Error| {
            self.error(format!("cannot make {} anew: {error}", dir.display()))
        };
        if dir.exists() {
            if !dir.join(MARK).exists() {
                return Err(self.error(format!(
                    "{} is there and was not made by `compare`: remove it, or set `dir`",
                    dir.display()
                )));
            }
            fs::remove_dir_all(&dir).map_err(io)?;
        }
        fs::create_dir_all(&dir).map_err(io)?;
        fs::write(dir.join(MARK), "").map_err(io)
    }

    fn start(&mut self) -> Result<(), LoadError> {
        let Some(command) = &self.endpoint.start else {
            return Err(self.error("the scenario does not start it: give `start`".into()));
        };
        let (command, addresses) = (self.fill(command)?, self.addresses()?);
        if let Some(address) = addresses.iter().find(|address| answers(address)) {
            return Err(self.error(format!("something else listens on {address} already")));
        }
        let dir = self.dir();
        let io = |error: std::io::Error| self.error(format!("cannot start: {error}"));
        for (name, text) in &self.endpoint.files {
            fs::write(dir.join(name), self.fill(text)?).map_err(io)?;
        }
        let log =
            File::options().create(true).append(true).open(dir.join("out.log")).map_err(io)?;
        let began = Instant::now();
        let mut shell = shell(&command);
        shell.envs(&self.endpoint.env).stdout(log.try_clone().map_err(io)?).stderr(log);
        let child = shell.spawn().map_err(io)?;
        let child = self.process.insert(child);
        while !addresses.iter().all(|address| answers(address)) {
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || began.elapsed() > READY {
                let why = ended
                    .map_or("is not ready".to_owned(), |status| format!("ended with {status}"));
                return Err(self.error(format!("it {why}: see {}/out.log", dir.display())));
            }
            std::thread::sleep(TRY_EVERY);
        }
        self.ready = Some(began.elapsed());
        Ok(())
    }

    /// Ends the process; returns how long that took.
    ///
    /// # Errors
    /// There is none, or it doesn't end.
    pub fn stop(&mut self, signal: i32) -> Result<Duration, LoadError> {
        let Some(mut process) = self.process.take() else {
            return Err(self.error("there is no process of the scenario's to end".into()));
        };
        let began = Instant::now();
        send_signal(&process, signal);
        while began.elapsed() < READY {
            if matches!(process.try_wait(), Ok(Some(_))) {
                return Ok(began.elapsed());
            }
            std::thread::sleep(TRY_EVERY);
        }
        send_signal(&process, libc::SIGKILL);
        let _ = process.wait();
        Err(self.error(format!("it did not end within {} s", READY.as_secs())))
    }

    fn kill_under(&mut self, line: &str) -> Result<(), LoadError> {
        let words = self.command_line(line)?;
        let own = std::env::current_exe()
            .map_err(|source| LoadError::System { what: "finding this program", source })?;
        let mut load = Command::new(own);
        load.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        let load =
            load.spawn().map_err(|source| LoadError::System { what: "starting a load", source })?;
        let mut load = EndsWithOwner(load);
        std::thread::sleep(KILL_AFTER);
        let ended = load.0.try_wait().ok().flatten();
        self.stop(libc::SIGKILL)?;
        match ended {
            None => Ok(()),
            Some(status) => {
                Err(self.error(format!("`{line}` ended with {status} before the kill")))
            }
        }
    }

    fn drop_caches(&self) -> Result<(), LoadError> {
        // SAFETY: it takes no arguments and touches no memory of ours.
        unsafe { libc::sync() };
        let dropped = fs::write("/proc/sys/vm/drop_caches", "3\n");
        dropped.map_err(|error| self.error(format!("cannot drop the page cache: {error}; be root")))
    }

    /// Processor time over some seconds in which nothing is asked of it, and its memory then.
    ///
    /// # Errors
    /// Its process is not known or gone.
    pub fn idle(&self, seconds: f64) -> Result<(f64, u64), LoadError> {
        let pid = self
            .pid()
            .ok_or_else(|| self.error("give its `pid`, or have the scenario start it".into()))?;
        let (began, before) = (Instant::now(), usage::process(pid)?);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let after = usage::process(pid)?;
        let cores = (after.cpu_seconds - before.cpu_seconds) / began.elapsed().as_secs_f64();
        Ok((cores, after.rss_bytes))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            send_signal(&process, libc::SIGKILL);
            let _ = process.wait();
        }
        let dir = self.dir();
        if self.endpoint.start.is_some() && dir.join(MARK).exists() && !std::thread::panicking() {
            keep_log(&dir);
        }
    }
}

/// Removes what a broker stored, and leaves its output.
fn keep_log(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            // Disk space matters more than an answer nobody waits for.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Looks whether a scenario's command of the harness is one that has a result.
///
/// # Errors
/// It is none.
pub fn parse(line: &str) -> Result<(), String> {
    let words: Vec<_> =
        ["ringmq-loadtest"].into_iter().chain(line.split_whitespace()).map(str::to_owned).collect();
    match parse_words(&words)? {
        Mode::Compare(_) | Mode::Echo(_) => Err(without_result(line)),
        _ => Ok(()),
    }
}

fn parse_words(words: &[String]) -> Result<Mode, String> {
    let cli = Cli::try_parse_from(words).map_err(|error| {
        let error = error.to_string();
        format!("`{}`: {}", words[1..].join(" "), error.lines().next().unwrap_or_default())
    })?;
    Ok(cli.mode)
}

fn without_result(line: &str) -> String {
    format!("`{line}`: it has no result to compare")
}

struct EndsWithOwner(Child);

impl Drop for EndsWithOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a scenario's command to its end.
///
/// # Errors
/// It fails.
pub fn set_up(endpoint: &str, command: &str) -> Result<(), LoadError> {
    let error = |why: String| LoadError::Endpoint {
        endpoint: endpoint.to_owned(),
        why: format!("`{command}` {why}"),
    };
    let status = shell(command).status().map_err(|source| error(source.to_string()))?;
    if status.success() { Ok(()) } else { Err(error(format!("ended with {status}"))) }
}

/// A command by the shell, which it replaces; it ends when this thread does, however that comes.
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {command}")).stdin(Stdio::null());
    let die_with_parent = || {
        // SAFETY: a system call on the new process alone, without memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
    unsafe { shell.pre_exec(die_with_parent) };
    shell
}

fn send_signal(process: &Child, signal: i32) {
    if let Ok(pid) = i32::try_from(process.id()) {
        // SAFETY: the process is ours and not yet waited for, so its id is still its own.
        unsafe { libc::kill(pid, signal) };
    }
}

fn answers(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses
        .into_iter()
        .any(|address| TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok())
}
