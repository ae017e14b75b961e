//! Faults of a running program, from its environment. Only in builds of the tests: feature `test-faults`.
//!
//! `RINGMQ_TEST_FAULTS` is a list of rules, separated by `;`. For each file operation the first rule that fits decides:
//!
//! ```text
//! RULE   := ACTION ':' OPERATION [':' KEY '=' VALUE]...
//! ACTION := skip | errno | delay | short
//! OPERATION: a FileOp by its name (LogWrite, LogFlush, Sync, ...), or * for all
//!
//! skip:LogFlush                       say that it is done without doing it (LogWrite, LogFlush, Zero, Sync, SyncDir)
//! errno:LogWrite:error=EIO            fail with EIO, ENOSPC, EROFS, ENOENT, EACCES or a number
//! delay:LogFlush:ms=500               do it 500 ms later
//! short:LogRead:bytes=4096            a read gets at most so many bytes
//!
//! path=consumequeue   only where the path contains this
//! after=100           only after so many operations that fit otherwise
//! times=1             only so often
//! when=/tmp/x/on      only while that file exists: how a test switches a fault on and off
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::faults::{DiskFaults, Fault, FileOp};

const VARIABLE: &str = "RINGMQ_TEST_FAULTS";

static RULES: OnceLock<Option<Arc<dyn DiskFaults>>> = OnceLock::new();

/// What the environment of this process asks for; read once.
pub(super) fn of_this_process() -> Option<Arc<dyn DiskFaults>> {
    let read = || {
        let text = std::env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty())?;
        match Rules::parse(&text) {
            Ok(rules) => {
                tracing::warn!("{VARIABLE} makes file operations fail: {text}");
                Some(Arc::new(rules) as Arc<dyn DiskFaults>)
            }
            Err(why) => {
                eprintln!("{VARIABLE}: {why}");
                std::process::exit(2);
            }
        }
    };
    RULES.get_or_init(read).clone()
}

/// Rules in their order.
struct Rules(Vec<Rule>);

struct Rule {
    /// `None`: every operation.
    op: Option<FileOp>,
    fault: Fault,
    path: Option<String>,
    when: Option<PathBuf>,
    after: u64,
    times: u64,
    /// How many operations have fit so far.
    fitted: AtomicU64,
}

impl DiskFaults for Rules {
    fn check(&self, op: FileOp, path: &Path, _: u64, _: u64) -> Option<Fault> {
        self.0.iter().find(|rule| rule.fits(op, path)).map(|rule| rule.fault)
    }
}

impl Rule {
    fn fits(&self, op: FileOp, path: &Path) -> bool {
        let wanted = self.op.is_none_or(|o| o == op)
            && (self.fault != Fault::Skip || skippable(op))
            && self.path.as_ref().is_none_or(|part| path.to_string_lossy().contains(part))
            && self.when.as_ref().is_none_or(|flag| flag.exists());
        if !wanted {
            return false;
        }
        let n = self.fitted.fetch_add(1, Relaxed);
        n >= self.after && n - self.after < self.times
    }
}

impl Rules {
    fn parse(text: &str) -> Result<Rules, String> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        rules
            .map(|rule| parse_rule(rule).map_err(|why| format!("rule `{rule}`: {why}")))
            .collect::<Result<Vec<_>, _>>()
            .map(Rules)
    }
}

fn parse_rule(text: &str) -> Result<Rule, String> {
    let mut parts = text.split(':').map(str::trim);
    let action = parts.next().unwrap_or_default();
    let op = parse_op(parts.next().ok_or("an operation is missing, such as LogFlush or *")?)?;
    let mut rule = Rule {
        op,
        fault: Fault::Skip,
        path: None,
        when: None,
        after: 0,
        times: u64::MAX,
        fitted: AtomicU64::new(0),
    };
    let (mut errno, mut delay, mut bytes) = (libc::EIO, Duration::ZERO, 0);
    for part in parts {
        let (key, value) = part.split_once('=').ok_or(format!("`{part}` is not KEY=VALUE"))?;
        match key {
            "path" => rule.path = Some(value.to_owned()),
            "when" => rule.when = Some(PathBuf::from(value)),
            "after" => rule.after = number(value)?,
            "times" => rule.times = number(value)?,
            "error" => errno = parse_errno(value)?,
            "ms" => delay = Duration::from_millis(number(value)?),
            "bytes" => bytes = number(value)? as usize,
            _ => return Err(format!("no key {key}: path, when, after, times, error, ms or bytes")),
        }
    }
    rule.fault = match action {
        "skip" if op.is_some_and(|op| !skippable(op)) => {
            return Err("this operation can't be left out".to_owned());
        }
        "skip" => Fault::Skip,
        "errno" => Fault::Errno(errno),
        "delay" => Fault::Delay(delay),
        "short" => Fault::Short(bytes),
        _ => return Err(format!("no action {action}: skip, errno, delay or short")),
    };
    Ok(rule)
}

/// What [`Fault::Skip`] is honoured for.
fn skippable(op: FileOp) -> bool {
    use FileOp::{LogFlush, LogWrite, Sync, SyncDir, Zero};
    matches!(op, LogWrite | LogFlush | Zero | Sync | SyncDir)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn parse_errno(text: &str) -> Result<i32, String> {
    Ok(match text {
        "EIO" => libc::EIO,
        "ENOSPC" => libc::ENOSPC,
        "EROFS" => libc::EROFS,
        "ENOENT" => libc::ENOENT,
        "EACCES" => libc::EACCES,
        _ => number(text)? as i32,
    })
}

fn parse_op(text: &str) -> Result<Option<FileOp>, String> {
    const ALL: [FileOp; 15] = [
        FileOp::LogWrite,
        FileOp::LogFlush,
        FileOp::LogRead,
        FileOp::Open,
        FileOp::Create,
        FileOp::Allocate,
        FileOp::Zero,
        FileOp::Sync,
        FileOp::SyncDir,
        FileOp::Rename,
        FileOp::Truncate,
        FileOp::Unlink,
        FileOp::Write,
        FileOp::Read,
        FileOp::Space,
    ];
    if text == "*" {
        return Ok(None);
    }
    let named = ALL.into_iter().find(|op| format!("{op:?}") == text);
    named.map(Some).ok_or_else(|| format!("no operation {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(rules: &Rules, op: FileOp, path: &str) -> Option<Fault> {
        rules.check(op, Path::new(path), 0, 0)
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = Rules::parse(
            "skip:LogFlush; errno:Write:error=ENOSPC:path=/index/; delay:*:ms=5:path=slow",
        )
        .unwrap();
        assert_eq!(ask(&rules, FileOp::LogFlush, "/a"), Some(Fault::Skip));
        assert_eq!(ask(&rules, FileOp::Write, "/a/index/b"), Some(Fault::Errno(libc::ENOSPC)));
        assert_eq!(ask(&rules, FileOp::Write, "/a/b"), None);
        let slow = Some(Fault::Delay(Duration::from_millis(5)));
        assert_eq!(ask(&rules, FileOp::Read, "/slow"), slow);
    }

    #[test]
    fn a_rule_can_wait_end_and_be_switched() {
        let dir = tempfile::tempdir().unwrap();
        let flag = dir.path().join("on");
        let text = format!("errno:LogWrite:after=1:times=2:when={}", flag.display());
        let rules = Rules::parse(&text).unwrap();
        assert_eq!(ask(&rules, FileOp::LogWrite, "/a"), None);
        std::fs::write(&flag, "").unwrap();
        let answers = [(); 4].map(|()| ask(&rules, FileOp::LogWrite, "/a").is_some());
        assert_eq!(answers, [false, true, true, false]);
    }

    #[test]
    fn skipping_everything_leaves_what_cannot_be_skipped() {
        let rules = Rules::parse("skip:*").unwrap();
        assert_eq!(ask(&rules, FileOp::Sync, "/a"), Some(Fault::Skip));
        assert_eq!(ask(&rules, FileOp::Open, "/a"), None);
    }

    #[test]
    fn mistakes_are_named() {
        for bad in ["skip", "skip:Flush", "skip:Open", "errno:LogWrite:EIO", "x:*", "delay:*:ms=a"]
        {
            let why = Rules::parse(bad).err().unwrap_or_default();
            assert!(why.contains(bad), "{bad}: {why}");
        }
    }
}
