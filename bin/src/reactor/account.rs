//! What the scheduler has done with a thread: how long it ran, and how long it was runnable without a processor. The difference
//! between a reactor that works too long and one that is kept from working.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A thread's two accounts since it began, from `/proc/self/task/<tid>/schedstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Time on a processor.
    pub(super) ran: Duration,
    /// Time runnable, waiting for one.
    pub(super) waited: Duration,
}

/// Why a reactor did not turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It ran: one piece of work took that long.
    Work,
    /// It had work and no processor: others have it.
    Starved,
    /// Neither: a system call, a device, or a lost wake-up.
    Waiting,
    /// The kernel keeps no account of it.
    Unknown,
}

impl Cause {
    /// As log lines have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Cause::Work => "work",
            Cause::Starved => "no processor",
            Cause::Waiting => "waiting",
            Cause::Unknown => "unknown",
        }
    }
}

impl Account {
    /// What happened since `before`.
    pub(super) fn since(self, before: Account) -> Account {
        Account {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }

    /// What a silence of length `silent` is due to. It is starvation if, without the wait, the silence would have stayed below
    /// `stall`.
    pub(super) fn cause(self, silent: Duration, stall: Duration) -> Cause {
        let idle = silent.saturating_sub(self.ran).saturating_sub(self.waited);
        if silent.saturating_sub(self.waited) < stall {
            Cause::Starved
        } else if self.ran >= idle {
            Cause::Work
        } else {
            Cause::Waiting
        }
    }
}

/// The accounts of one thread, kept open: a look is one system call.
#[derive(Debug)]
pub(super) struct Accounts(Option<File>);

impl Accounts {
    /// Of a thread of this process. Without the file (a kernel without scheduler statistics) there are no accounts.
    pub(super) fn of(tid: libc::pid_t) -> Accounts {
        Accounts(File::open(format!("/proc/self/task/{tid}/schedstat")).ok())
    }

    /// Now.
    pub(super) fn read(&self) -> Option<Account> {
        let mut text = [0; 80];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(std::str::from_utf8(text.get(..len)?).ok()?)
    }
}

/// The first two of the file's three numbers are nanoseconds.
fn parse(text: &str) -> Option<Account> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
    Some(Account { ran: next()?, waited: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_millis(100);

    fn account(ran_ms: u64, waited_ms: u64) -> Account {
        Account { ran: Duration::from_millis(ran_ms), waited: Duration::from_millis(waited_ms) }
    }

    fn cause(ran_ms: u64, waited_ms: u64, silent_ms: u64) -> Cause {
        account(ran_ms, waited_ms).cause(Duration::from_millis(silent_ms), STALL)
    }

    #[test]
    fn the_cause_is_what_made_the_silence_long() {
        assert_eq!(cause(150, 0, 150), Cause::Work);
        assert_eq!(cause(20, 130, 150), Cause::Starved);
        assert_eq!(cause(0, 0, 150), Cause::Waiting);
        assert_eq!(cause(160, 150, 310), Cause::Work, "long enough without the wait");
        assert_eq!(cause(50, 100, 500), Cause::Waiting);
    }

    #[test]
    fn the_kernels_text_is_read() {
        assert_eq!(parse("3000000 5000000 7\n"), Some(account(3, 5)));
        assert_eq!(parse("3000000"), None);
        assert_eq!(parse("x y z"), None);
    }

    #[test]
    fn work_of_this_thread_shows_in_its_account() {
        // SAFETY: gettid has no preconditions.
        let accounts = Accounts::of(unsafe { libc::gettid() });
        let Some(before) = accounts.read() else { return };
        let began = std::time::Instant::now();
        while accounts.read().is_some_and(|now| now.since(before).ran < Duration::from_millis(30)) {
            assert!(began.elapsed() < Duration::from_secs(60), "its time does not pass");
        }
    }
}
