//! `ringmq log dump` and `ringmq log verify`: a store's log, looked at without a broker.
//!
//! Both work on any store, a stock broker's included, and change nothing. On a store that is being served the last records may be half
//! written, which `verify` then reports behind the end of the log.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ringmq_engine::log::{Item, WalkError, WalkSummary, walk_log};
use ringmq_net::record::{Properties, RecordView};
use thiserror::Error;

use crate::cli::{LogArgs, LogCommand, LogDumpArgs};

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
    /// Standard output is gone, other than by a closed pipe.
    #[error("standard output: {0}")]
    Output(io::Error),
}

/// Runs one of the log commands. Exit status 1 if `verify` found a problem.
pub fn run(args: &LogArgs) -> Result<ExitCode, LogToolError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match &args.command {
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

fn dump_record(record: &RecordView<'_>, with_body: bool, out: &mut impl Write) -> io::Result<()> {
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
        let summary = verify_store(&store, out)?;
        problems += summary.problems;
        print_summary(&store, &summary, out).map_err(LogToolError::Output)?;
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verify_store(store: &Path, out: &mut impl Write) -> Result<WalkSummary, LogToolError> {
    let mut written = Ok(());
    let mut shown = 0;
    let summary = walk_log(store, 0, &mut |item| {
        if let Item::Problem(problem) = item {
            shown += 1;
            if shown <= PROBLEMS_SHOWN {
                written = writeln!(out, "PROBLEM {problem}");
            }
        }
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    written.map_err(LogToolError::Output)?;
    Ok(summary)
}

fn print_summary(store: &Path, summary: &WalkSummary, out: &mut impl Write) -> io::Result<()> {
    let durable = summary.durable.map_or("unknown".to_owned(), |offset| offset.to_string());
    writeln!(
        out,
        "{}: {} problems; {} records of {} bytes in {} segments, offsets {} to {}, durable {durable}, {} blocks compared with their checksums",
        store.display(),
        summary.problems,
        summary.records,
        summary.record_bytes,
        summary.segments,
        summary.start,
        summary.end,
        summary.blocks_compared
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
