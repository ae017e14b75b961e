//! `ringmq log dump` and `ringmq log verify`: a store's log, looked at without a broker.
//!
//! Both work on any store, a stock broker's included, and change nothing. `verify` compares the consume queues and the index with the log
//! too. On a store that is being served the last records may be half written, which `verify` then reports behind the end of the log.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringmq_engine::index::{IndexCheck, IndexCheckError, IndexSummary};
use ringmq_engine::log::{Item, QueueCheck, QueueSummary, WalkError, WalkSummary, walk_log};
use ringmq_engine::state::TOPICS_FILE;
use ringmq_engine::state::json_file;
use ringmq_engine::state::topics;
use ringmq_engine::store::StoreLayout;
use ringmq_net::record::{Properties, RecordView};
use thiserror::Error;

use crate::cli::{LogArgs, LogCommand, LogDumpArgs};
use crate::log_tail::{self, LogTailError};

/// Problems of one store that are printed; further ones are only counted.
const PROBLEMS_SHOWN: u64 = 100;

/// Why a log could not be looked at.
#[derive(Debug, Error)]
pub enum LogToolError {
    /// The directory is no store.
    #[error("{path} has no commitlog directory: give a store's directory (--data-dir of the broker, or <data-dir>/shards/<k>)", path = .0.display())]
    NoStore(PathBuf),
    /// A file cannot be read.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// The index cannot be read.
    #[error(transparent)]
    Index(IndexCheckError),
    /// A running broker's log could not be followed.
    #[error(transparent)]
    Tail(#[from] LogTailError),
    /// Standard output is gone, other than by a closed pipe.
    #[error("standard output: {0}")]
    Output(io::Error),
}

/// Runs one of the log commands. Exit status 1 if `verify` found a problem.
pub fn run(args: &LogArgs) -> Result<ExitCode, LogToolError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
        LogCommand::Tail(tail) => {
            log_tail::run(tail, &mut out).map(|()| ExitCode::SUCCESS).map_err(LogToolError::from)
        }
        LogCommand::Dump(dump_args) => dump(dump_args, &mut out).map(|()| ExitCode::SUCCESS),
        LogCommand::Verify(verify_args) => verify(&verify_args.dir, &mut out),
    };
    match outcome.and_then(|status| out.flush().map(|()| status).map_err(LogToolError::Output)) {
        // `ringmq log dump | head` is an ordinary use.
        Err(LogToolError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::SUCCESS)
        }
        outcome => outcome,
    }
}

/// Prints the records of one store, one a line.
fn dump(args: &LogDumpArgs, out: &mut impl Write) -> Result<(), LogToolError> {
    check_store(&args.dir)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut written = Ok(());
    walk_log(&args.dir, args.from, &mut |item| {
        // The walk begins at a segment's start; what was asked for may begin later.
        written = match &item {
            Item::Record(record) if (record.physical_offset() as u64) < args.from => Ok(()),
            Item::Record(record)
                if args.topic.as_deref().is_some_and(|topic| topic != record.topic()) =>
            {
                Ok(())
            }
            Item::Record(record) => {
                left = left.saturating_sub(1);
                dump_record(record, args.body, out)
            }
            Item::Segment { start, path } => writeln!(out, "# segment {start} {}", path.display()),
            Item::Blank { offset, room } => {
                writeln!(out, "# {offset} end of segment, {room} bytes left")
            }
            Item::End { offset } => writeln!(out, "# {offset} end of log"),
            Item::Problem(problem) => writeln!(out, "# PROBLEM {problem}"),
        };
        if written.is_err() || left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    written.map_err(LogToolError::Output)
}

pub(crate) fn dump_record(
    record: &RecordView<'_>,
    with_body: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    write!(
        out,
        "{} size={} topic={} queue={} offset={} stored={} born={} from={} reconsumed={} sysflag={} body={}",
        record.physical_offset(),
        record.total_size(),
        record.topic(),
        record.queue_id(),
        record.queue_offset(),
        record.store_timestamp(),
        record.born_timestamp(),
        record.born_host(),
        record.reconsume_times(),
        record.sys_flag(),
        record.body().len()
    )?;
    for (name, value) in Properties::new(&record.properties_text()).iter() {
        // Escaped, so that a property cannot break a line or a terminal.
        write!(out, " {}={}", name.escape_debug(), value.escape_debug())?;
    }
    if with_body {
        write!(out, " text=\"{}\"", String::from_utf8_lossy(record.body()).escape_debug())?;
    }
    writeln!(out)
}

/// Checks the store in `dir` and those of the further shards below it.
fn verify(dir: &Path, out: &mut impl Write) -> Result<ExitCode, LogToolError> {
    check_store(dir)?;
    let mut problems = 0;
    for store in stores(dir) {
        let verified = verify_store(&store, out)?;
        problems += verified.problems;
        print_summary(&store, &verified, out).map_err(LogToolError::Output)?;
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the check of one store saw.
struct Verified {
    problems: u64,
    log: WalkSummary,
    queues: QueueSummary,
    index: IndexSummary,
}

/// Prints problems up to a number, and counts them all.
struct Problems<'a, W: Write> {
    out: &'a mut W,
    count: u64,
    written: io::Result<()>,
}

impl<W: Write> Problems<'_, W> {
    fn tell(&mut self, problem: &dyn std::fmt::Display) {
        self.count += 1;
        if self.count <= PROBLEMS_SHOWN && self.written.is_ok() {
            self.written = writeln!(self.out, "PROBLEM {problem}");
        }
    }

    /// A damaged index is a problem, one that cannot be read the end.
    fn index<T>(&mut self, result: Result<T, IndexCheckError>) -> Result<(), LogToolError> {
        match result {
            Ok(_) => Ok(()),
            Err(finding @ IndexCheckError::Damaged { .. }) => {
                self.tell(&finding);
                Ok(())
            }
            Err(error @ IndexCheckError::Io { .. }) => Err(LogToolError::Index(error)),
        }
    }
}

fn verify_store(store: &Path, out: &mut impl Write) -> Result<Verified, LogToolError> {
    let layout = StoreLayout::new(store);
    // After any other stop, and while a broker runs, queues and index may be behind.
    let clean = !layout.abort().exists();
    let mut problems = Problems { out, count: 0, written: Ok(()) };
    let mut queues = QueueCheck::new(store);
    let mut index = IndexCheck::new(store, clean).map_err(LogToolError::Index)?;
    let mut failed = Ok(());
    let log = walk_log(store, 0, &mut |item| {
        match item {
            Item::Problem(problem) => problems.tell(&problem),
            Item::Record(record) => {
                queues.record(&record);
                failed = problems.index(index.record(&record));
            }
            Item::Segment { .. } | Item::Blank { .. } | Item::End { .. } => {}
        }
        if problems.written.is_err() || failed.is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    failed?;
    problems.index(index.finish())?;
    let index = index.summary();
    if let Some(first) = index.first_missing.filter(|_| clean && index.files > 0) {
        let missing = index.missing;
        problems.tell(&format_args!(
            "index: {missing} keys of records have no entry, the first of the record at physical offset {first}; remove the index directory, it is made again at the next start"
        ));
    }
    let known = json_file::load(&layout.config().join(TOPICS_FILE), topics::parse_file);
    let known = known.ok().and_then(json_file::Loaded::into_value);
    let names: HashSet<String> =
        known.into_iter().flat_map(|table| table.topics).map(|topic| topic.topic_name).collect();
    let (queues, findings) = queues.finish(clean, |topic| names.contains(topic));
    for finding in findings {
        problems.tell(&finding);
    }
    problems.written.map_err(LogToolError::Output)?;
    Ok(Verified { problems: problems.count, log, queues, index })
}

fn print_summary(store: &Path, verified: &Verified, out: &mut impl Write) -> io::Result<()> {
    let Verified { problems, log: summary, queues, index } = verified;
    let durable = summary.durable.map_or("unknown".to_owned(), |offset| offset.to_string());
    writeln!(
        out,
        "{}: {problems} problems; {} records of {} bytes in {} segments, offsets {} to {}, durable {durable}, {} blocks compared with their checksums; {} queues with {} units right, {} missing, {} wrong; {} index files with {} entries right, {} missing",
        store.display(),
        summary.records,
        summary.record_bytes,
        summary.segments,
        summary.start,
        summary.end,
        summary.blocks_compared,
        queues.queues,
        queues.right,
        queues.missing,
        queues.wrong,
        index.files,
        index.right,
        index.missing
    )
}

/// The store itself and `<dir>/shards/<k>`, in order of k.
fn stores(dir: &Path) -> Vec<PathBuf> {
    let mut shards: Vec<(u32, PathBuf)> = fs::read_dir(dir.join("shards"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let index = entry.file_name().to_str()?.parse().ok()?;
            Some((index, entry.path())).filter(|(_, path)| path.join("commitlog").is_dir())
        })
        .collect();
    shards.sort();
    std::iter::once(dir.to_owned()).chain(shards.into_iter().map(|(_, path)| path)).collect()
}

fn check_store(dir: &Path) -> Result<(), LogToolError> {
    if dir.join("commitlog").is_dir() { Ok(()) } else { Err(LogToolError::NoStore(dir.to_owned())) }
}
