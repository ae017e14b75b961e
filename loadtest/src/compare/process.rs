//! A process of an endpoint: started on the scenario's command, stopped, killed and frozen, and ended with its owner.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a start or a stop.
const READY: Duration = Duration::from_secs(90);
/// Longest wait for the sockets of an ended process to go.
const SILENT: Duration = Duration::from_secs(10);
/// How often ports are tried.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// What a scenario says of a process, with everything filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What steps call it.
    pub name: String,
    /// The command that becomes it.
    pub command: String,
    /// What takes connections once it is ready.
    pub addresses: Vec<String>,
    /// More of its environment.
    pub env: BTreeMap<String, String>,
    /// Files that are written before it starts.
    pub files: Vec<(PathBuf, String)>,
    /// Where its output goes, after what is there.
    pub log: PathBuf,
}

/// A process that may run. It is killed with its owner.
#[derive(Debug)]
pub struct Process {
    /// What it is.
    pub plan: Plan,
    child: Option<Child>,
    frozen: bool,
}

impl Process {
    /// One that does not run yet.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Process { plan, child: None, frozen: false }
    }

    /// Its id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        i32::try_from(self.child.as_ref()?.id()).ok()
    }

    /// Whether it was started and has not been seen to end.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Starts it without waiting until it is ready.
    ///
    /// # Errors
    /// It runs already, or cannot be started.
    pub fn launch(&mut self) -> Result<(), String> {
        let runs = self.runs();
        let Plan { name, command, addresses, env, files, log } = &self.plan;
        if runs {
            return Err(format!("{name} runs already"));
        }
        if let Some(address) = addresses.iter().find(|address| answers(address)) {
            return Err(format!("something else listens on {address} already"));
        }
        let io = |error: std::io::Error| format!("cannot start {name}: {error}");
        for (path, text) in files {
            fs::write(path, text).map_err(io)?;
        }
        let log = File::options().create(true).append(true).open(log).map_err(io)?;
        let mut shell = shell(command);
        shell.envs(env).stdout(log.try_clone().map_err(io)?).stderr(log);
        self.child = Some(shell.spawn().map_err(io)?);
        self.frozen = false;
        Ok(())
    }

    /// Waits until all its addresses take connections.
    ///
    /// # Errors
    /// It ends, or is not ready in time.
    pub fn await_ready(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while !self.plan.addresses.iter().all(|address| answers(address)) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || began.elapsed() > READY {
                let why = ended
                    .map_or("is not ready".to_owned(), |status| format!("ended with {status}"));
                return Err(format!("{} {why}: see {}", self.plan.name, self.plan.log.display()));
            }
            std::thread::sleep(TRY_EVERY);
        }
        Ok(())
    }

    /// Ends it and waits for that.
    ///
    /// # Errors
    /// It does not run, or has to be killed because it takes too long.
    pub fn stop(&mut self, signal: i32) -> Result<(), String> {
        self.thaw();
        let name = &self.plan.name;
        let Some(mut child) = self.child.take() else {
            return Err(format!("{name} does not run, so it cannot be ended"));
        };
        if let Ok(Some(status)) = child.try_wait() {
            let log = self.plan.log.display();
            return Err(format!("{name} had ended by itself with {status}: see {log}"));
        }
        let began = Instant::now();
        send_signal(&mut child, signal);
        while began.elapsed() < READY {
            if matches!(child.try_wait(), Ok(Some(_))) {
                self.await_silence();
                return Ok(());
            }
            std::thread::sleep(TRY_EVERY);
        }
        send_signal(&mut child, libc::SIGKILL);
        let _ = child.wait();
        Err(format!("{name} did not end within {} s", READY.as_secs()))
    }

    /// Waits until nobody answers at its addresses any more: the kernel takes down the sockets of a killed process that used io_uring some
    /// time after the process, and they would pass for those of the next one.
    fn await_silence(&self) {
        let began = Instant::now();
        while self.plan.addresses.iter().any(|address| answers(address)) && began.elapsed() < SILENT
        {
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// Stops its clock: it does nothing any more, and the kernel keeps its connections.
    ///
    /// # Errors
    /// It does not run.
    pub fn freeze(&mut self) -> Result<(), String> {
        let child = self.child.as_mut();
        let child = child.ok_or_else(|| format!("{} does not run", self.plan.name))?;
        send_signal(child, libc::SIGSTOP);
        self.frozen = true;
        Ok(())
    }

    /// Lets it go on.
    pub fn thaw(&mut self) {
        if let (true, Some(child)) = (std::mem::take(&mut self.frozen), &mut self.child) {
            send_signal(child, libc::SIGCONT);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            send_signal(&mut child, libc::SIGKILL);
            let _ = child.wait();
            self.await_silence();
        }
    }
}

/// A command by the shell, which it replaces; it ends when this thread does, however that comes.
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {command}")).stdin(Stdio::null());
    end_with_parent(&mut shell);
    shell
}

/// Has a command that is still to be started end when this thread does, however that comes.
pub fn end_with_parent(command: &mut Command) {
    let die_with_parent = || {
        // SAFETY: a system call on the new process alone, without memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(die_with_parent) };
}

/// To a process that has not ended: the id of one that has may be another's by now.
fn send_signal(child: &mut Child, signal: i32) {
    if let (Ok(None), Ok(pid)) = (child.try_wait(), i32::try_from(child.id())) {
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
