//! An endpoint at work: the processes that a scenario starts, stops and kills, and the commands of the harness that load them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use ringmq_net::code::response;

use crate::cli::{Cli, Mode};
use crate::compare::process::{Plan, Process, end_with_parent, shell};
use crate::compare::scenario::{Endpoint, FIRST, Phase, Scenario, Step};
use crate::error::LoadError;
use crate::lag::log_end;
use crate::report::{Report, Side};
use crate::run;
use crate::target::resolve;
use crate::usage::{ProcessUsage, process, processes};

/// How long a load goes before the broker is killed under it.
const KILL_AFTER: Duration = Duration::from_millis(1500);
/// Longest wait for a process to come level with the first one.
const LEVEL: Duration = Duration::from_secs(600);
/// How often logs are asked for their ends.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Stands in each directory that this program may empty.
const MARK: &str = ".ringmq-compare";

/// An endpoint of a scenario in one phase, with its processes if the scenario starts them. They end with it.
#[derive(Debug)]
pub struct Running<'a> {
    scenario: &'a Scenario,
    endpoint: &'a Endpoint,
    phase: &'a Phase,
    given: &'a BTreeMap<String, String>,
    /// The first one first.
    processes: Vec<Process>,
    /// How long the last start took.
    pub ready: Option<Duration>,
    quiet: bool,
}

/// How a process that was away came level with the first one.
#[derive(Clone, Copy, Debug)]
pub struct CaughtUp {
    /// From its start.
    pub took: Duration,
    /// Bytes a second of its log, from when it first told how long it was; `None` if it was level by then.
    pub bytes_per_second: Option<f64>,
}

/// Whether some of what a broker answered with an error is in its log all the same: the disk's flush, or the slaves, are late, or the slaves
/// are not there.
fn stores(side: &Side) -> bool {
    const LATE: [i32; 3] = [
        response::FLUSH_DISK_TIMEOUT,
        response::SLAVE_NOT_AVAILABLE,
        response::FLUSH_SLAVE_TIMEOUT,
    ];
    side.errors.iter().any(|error| LATE.contains(&error.code))
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
            Running { scenario, endpoint, phase, given, processes: Vec::new(), ready: None, quiet };
        if endpoint.start.is_some() {
            running.plan()?;
            running.empty()?;
            running.start(None)?;
        }
        Ok(running)
    }

    /// Its processes.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.processes.iter().filter_map(Process::pid).chain(self.endpoint.pid).collect()
    }

    /// Does what has to be done before a row.
    ///
    /// # Errors
    /// It can't be done.
    pub fn step(&mut self, step: &Step) -> Result<(), LoadError> {
        match step {
            Step::Start(name) => self.start(name.as_deref()),
            Step::Stop(name) => self.stop(libc::SIGTERM, name.as_deref()).map(drop),
            Step::Kill(name) => self.stop(libc::SIGKILL, name.as_deref()).map(drop),
            Step::Freeze(name) => {
                let frozen = self.process(name)?.freeze();
                frozen.map_err(|why| self.error(why))
            }
            Step::Thaw(name) => self.process(name).map(Process::thaw),
            Step::Level(name) => self.await_level(name),
            Step::KillUnder(line) => self.kill_under(line),
            Step::DropCaches => self.drop_caches(),
            Step::Wait(seconds) => {
                std::thread::sleep(Duration::from_secs_f64(*seconds));
                Ok(())
            }
            Step::Run(line) => {
                let report = self.run(line)?;
                self.check_stored(&report)
            }
        }
    }

    /// A load that is only to bring something about must have brought something about.
    ///
    /// # Errors
    /// All that it sent was refused.
    pub fn check_stored(&self, report: &Report) -> Result<(), LoadError> {
        if report.send.as_ref().is_some_and(|send| send.messages_all == 0 && !stores(send)) {
            return Err(self.error("none of its messages was taken".to_owned()));
        }
        Ok(())
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
        for pid in self.pids() {
            words.extend(["--pid".to_owned(), pid.to_string()]);
        }
        if self.quiet && !words.iter().any(|word| word == "--quiet") {
            words.push("--quiet".to_owned());
        }
        Ok(words)
    }

    fn addresses(&self) -> Result<Vec<String>, LoadError> {
        self.fill_all(&self.endpoint.addr)
    }

    fn fill_all(&self, texts: &[String]) -> Result<Vec<String>, LoadError> {
        texts.iter().map(|text| self.fill(text)).collect()
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

    // ---- the processes ----

    fn plan(&mut self) -> Result<(), LoadError> {
        let Some(start) = &self.endpoint.start else {
            return Err(self.error("the scenario does not start it: give `start`".into()));
        };
        let Endpoint { addr, env, files, beside, .. } = self.endpoint;
        let mut plans = vec![self.plan_of(FIRST, start, addr, env, files)?];
        for other in beside {
            plans.push(self.plan_of(
                &other.name,
                &other.start,
                &other.addr,
                &other.env,
                &other.files,
            )?);
        }
        self.processes = plans.into_iter().map(Process::new).collect();
        Ok(())
    }

    fn plan_of(
        &self,
        name: &str,
        start: &str,
        addr: &[String],
        env: &BTreeMap<String, String>,
        files: &BTreeMap<String, String>,
    ) -> Result<Plan, LoadError> {
        let dir = self.dir();
        let file = |(file, text): (&String, &String)| {
            Ok::<_, LoadError>((dir.join(file), self.fill(text)?))
        };
        let log = if name == FIRST { "out.log".to_owned() } else { format!("{name}.log") };
        Ok(Plan {
            name: name.to_owned(),
            command: self.fill(start)?,
            addresses: self.fill_all(addr)?,
            env: env.clone(),
            files: files.iter().map(file).collect::<Result<_, _>>()?,
            log: dir.join(log),
        })
    }

    fn process(&mut self, name: &str) -> Result<&mut Process, LoadError> {
        let endpoint = &self.endpoint.name;
        let found = self.processes.iter_mut().find(|process| process.plan.name == name);
        found.ok_or_else(|| LoadError::Endpoint {
            endpoint: endpoint.clone(),
            why: format!("the scenario starts no process `{name}` of it"),
        })
    }

    fn named(&mut self, name: Option<&str>) -> Result<Vec<&mut Process>, LoadError> {
        if let Some(name) = name {
            return Ok(vec![self.process(name)?]);
        }
        if self.processes.is_empty() {
            return Err(self.error("the scenario does not start it: give `start`".into()));
        }
        Ok(self.processes.iter_mut().collect())
    }

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

    /// Starts all that does not run, or the named one, and waits until it is ready.
    fn start(&mut self, name: Option<&str>) -> Result<(), LoadError> {
        let began = Instant::now();
        let started = self.named(name)?.into_iter().try_for_each(|process| {
            if name.is_none() && process.runs() {
                return Ok(());
            }
            process.launch()?;
            process.await_ready()
        });
        started.map_err(|why| self.error(why))?;
        self.ready = Some(began.elapsed());
        Ok(())
    }

    /// Starts again what has ended; nothing if all runs, or if the scenario starts nothing.
    ///
    /// # Errors
    /// It doesn't start.
    pub fn revive(&mut self) -> Result<(), LoadError> {
        self.processes.iter_mut().for_each(Process::thaw);
        if self.processes.is_empty() { Ok(()) } else { self.start(None) }
    }

    /// Ends all processes, or the named one; returns how long that took.
    ///
    /// # Errors
    /// There is none, or it doesn't end.
    pub fn stop(&mut self, signal: i32, name: Option<&str>) -> Result<Duration, LoadError> {
        let began = Instant::now();
        let stopped = self.named(name)?.into_iter().try_for_each(|process| process.stop(signal));
        stopped.map_err(|why| self.error(why))?;
        Ok(began.elapsed())
    }

    /// How much memory a process has, without mapped files.
    ///
    /// # Errors
    /// It isn't there.
    pub fn resident(&mut self, name: &str) -> Result<u64, LoadError> {
        let pid = match (name, self.endpoint.pid) {
            (FIRST, Some(pid)) => Some(pid),
            _ => self.process(name)?.pid(),
        };
        let pid = pid.ok_or_else(|| self.error(format!("{name} does not run")))?;
        process(pid).map(|usage| usage.own_bytes)
    }

    // ---- one that follows another ----

    /// Where the log of a process ends; `None` while it doesn't tell.
    fn log_end(&mut self, name: &str) -> Result<Option<u64>, LoadError> {
        let process = self.process(name)?;
        if !process.runs() {
            let ended = format!("{name} has ended: see {}", process.plan.log.display());
            return Err(self.error(ended));
        }
        let Some(address) = process.plan.addresses.first().cloned() else {
            return Err(self.error(format!("{name} has no addr to ask for the end of its log")));
        };
        Ok(log_end(resolve(&address)?).ok().flatten())
    }

    fn await_level(&mut self, name: &str) -> Result<(), LoadError> {
        let began = Instant::now();
        while began.elapsed() < LEVEL {
            if let (Some(of), Some(at)) = (self.log_end(FIRST)?, self.log_end(name)?)
                && at >= of
            {
                return Ok(());
            }
            std::thread::sleep(ASK_EVERY);
        }
        Err(self.error(format!("{name} does not come level within {} s", LEVEL.as_secs())))
    }

    /// Starts a process and sees it come level with the first one, which must not be sent to.
    ///
    /// # Errors
    /// It doesn't start or doesn't come level.
    pub fn catch_up(&mut self, name: &str) -> Result<CaughtUp, LoadError> {
        let began = Instant::now();
        let end = self
            .log_end(FIRST)?
            .ok_or_else(|| self.error(format!("{FIRST} does not tell the end of its log")))?;
        let launched = self.process(name)?.launch();
        launched.map_err(|why| self.error(why))?;
        let mut first = None;
        while began.elapsed() < LEVEL {
            if let Some(at) = self.log_end(name)? {
                let now = began.elapsed();
                let (first_at, first_end) = *first.get_or_insert((now, at));
                if at >= end {
                    let seconds = (now - first_at).as_secs_f64();
                    let bytes = at.saturating_sub(first_end);
                    let rate = (bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds);
                    return Ok(CaughtUp { took: now, bytes_per_second: rate });
                }
            }
            std::thread::sleep(ASK_EVERY);
        }
        Err(self.error(format!("{name} does not come level within {} s", LEVEL.as_secs())))
    }

    fn kill_under(&mut self, line: &str) -> Result<(), LoadError> {
        let words = self.command_line(line)?;
        let own = std::env::current_exe()
            .map_err(|source| LoadError::System { what: "finding this program", source })?;
        let mut load = Command::new(own);
        load.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        end_with_parent(&mut load);
        let load =
            load.spawn().map_err(|source| LoadError::System { what: "starting a load", source })?;
        let mut load = EndsWithOwner(load);
        std::thread::sleep(KILL_AFTER);
        let ended = load.0.try_wait().ok().flatten();
        self.stop(libc::SIGKILL, None)?;
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
        let (began, before) = (Instant::now(), self.usage()?);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let after = self.usage()?;
        let cores = (after.cpu_seconds - before.cpu_seconds) / began.elapsed().as_secs_f64();
        Ok((cores, after.own_bytes))
    }

    /// What its processes use together.
    ///
    /// # Errors
    /// They are not known, or one is gone.
    pub fn usage(&self) -> Result<ProcessUsage, LoadError> {
        let usage = processes(&self.pids())?;
        usage.ok_or_else(|| self.error("give its `pid`, or have the scenario start it".into()))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.processes.clear();
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

/// Longest text that a scenario's command tells of the machine.
const TOLD_CHARS_MAX: usize = 4096;

/// What a command prints, errors among it.
#[must_use]
pub fn tell(command: &str) -> String {
    let output = match shell(command).stderr(Stdio::piped()).output() {
        Ok(output) => output,
        Err(error) => return format!("`{command}`: {error}"),
    };
    let mut text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        text = format!("{text}\n`{command}` ended with {}: {}", output.status, errors.trim());
    }
    text.trim().chars().take(TOLD_CHARS_MAX).collect()
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
