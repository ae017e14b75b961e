//! A child process that writes to a log file and ends with its owner, also when the owner panics.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::wire::eventually;

/// A running child. Dropping it ends it with SIGKILL; if the thread panics, the end of its log is printed. It belongs to the thread that
/// started it and does not outlive it.
pub struct Process {
    name: String,
    child: Child,
    /// Becomes readable when the process ends: what makes waiting with a limit an event.
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Process {
        let out = OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        command.stdout(out.try_clone().expect("a second handle of the log"));
        command.stderr(out);
        Process::start(name, command, log)
    }

    /// Starts `command` with standard output in the file `out` and standard error appended to `log`.
    pub fn spawn_with_output(name: &str, mut command: Command, out: &Path, log: &Path) -> Process {
        command.stdout(File::create(out).expect("an output file"));
        command.stderr(OpenOptions::new().create(true).append(true).open(log).expect("a log file"));
        Process::start(name, command, log)
    }

    fn start(name: &str, mut command: Command, log: &Path) -> Process {
        // SAFETY: prctl is async-signal-safe and takes plain numbers; nothing else runs between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Should the test be killed, so that nothing is dropped, the child ends with the thread that started it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command
            .stdin(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{name} does not start ({command:?}): {e}"));
        // SAFETY: pidfd_open takes a process id and flags and returns a new descriptor or -1; the child is not reaped yet, so the id is its own.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        assert!(fd >= 0, "pidfd_open of {name}: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Process { name: name.to_owned(), child, pidfd, status: None, log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes to the child's standard input.
    pub fn say(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("standard input is a pipe");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("writing to a child");
    }

    /// Closes the child's standard input.
    pub fn hush(&mut self) {
        self.child.stdin = None;
    }

    /// Sends a signal. With SIGSTOP every thread stands still when this returns: the kernel only begins to stop them.
    pub fn signal(&self, signal: i32) {
        assert!(self.status.is_none(), "{} has ended already", self.name);
        // SAFETY: kill takes plain numbers; the child has not been waited for, so the id is still its own.
        let done = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(
            done,
            0,
            "signal {signal} to {}: {}",
            self.name,
            std::io::Error::last_os_error()
        );
        if signal == libc::SIGSTOP {
            let stopped = eventually(Duration::from_secs(20), || self.stands_still().then_some(()));
            assert!(stopped.is_some(), "{} does not stop", self.name);
        }
    }

    fn stands_still(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.child.id());
        let state = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        std::fs::read_dir(tasks).is_ok_and(|tasks| tasks.map_while(Result::ok).all(state))
    }

    /// Waits until the process has ended; `None` if it has not within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.status.is_none() {
            let mut poll =
                libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd, counted as one.
            let ready = unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) };
            if ready > 0 {
                self.status = Some(self.child.wait().expect("waiting for a child"));
            }
        }
        self.status
    }

    pub fn has_ended(&mut self) -> bool {
        self.wait(Duration::ZERO).is_some()
    }

    /// Ends the process with SIGKILL and waits for it.
    pub fn kill(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// All that was written to the log so far.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// A number of `/proc/PID/status` in KiB, such as `VmRSS`.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        status
            .lines()
            .find_map(|l| {
                l.strip_prefix(field)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok()
            })
            .unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended = self.has_ended();
        if std::thread::panicking() {
            let how = match self.status {
                Some(s) => format!("ended: {s}, signal {:?}", s.signal()),
                None => "was running".to_owned(),
            };
            println!(
                "---- {} (pid {}) {how}; the end of {}:\n{}",
                self.name,
                self.pid(),
                self.log.display(),
                self.log_tail()
            );
        }
        if !ended {
            self.kill();
        }
    }
}
