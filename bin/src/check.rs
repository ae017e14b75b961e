//! `ringmq check`: the pre-flight alone, and what the disk does with the writes, reads and flushes that the log makes.
//!
//! Judge the broker's numbers beside these: an acknowledgement at `write` takes at least one direct write, at `sync` a flush more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::CheckArgs;
use crate::config::{ConfigError, Machine, Settings};
use crate::preflight::{self, AlignedBuffer, existing_ancestor};

/// Time for one kind of operation; with five of them a check ends within about two seconds.
const STEP: Duration = Duration::from_millis(400);

/// Bytes of the file that is measured; zeroed first, as the log's own files are.
const FILE_BYTES: u64 = 64 << 20;

/// What one kind of operation did.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// The operation.
    pub name: &'static str,
    /// Bytes of one operation; 0 for a flush.
    pub bytes: u64,
    /// Operations per second, one after the other.
    pub per_second: f64,
    /// Microseconds that half of them took at most.
    pub p50_us: u64,
    /// Microseconds that 99 in 100 of them took at most.
    pub p99_us: u64,
}

/// Runs the checks, prints them, measures and prints that. Exit status 1 if a check failed.
pub fn run(args: &CheckArgs) -> Result<ExitCode, ConfigError> {
    let settings = Settings::check(args, Machine::detect())?;
    if args.config.print_config {
        print!("{}", settings.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    let report = preflight::run(&settings);
    for finding in &report.findings {
        println!("{finding}");
    }
    if !args.no_measure {
        let dir = existing_ancestor(&settings.config.store.data_dir);
        match measure_disk(&dir, STEP) {
            Ok(measures) => print_table(&dir, &measures),
            Err(error) => println!("not measured: {}: {error}", dir.display()),
        }
    }
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures direct writes, reads and flushes, each for `step`, one in flight. The file has no name and is gone afterwards.
pub fn measure_disk(dir: &Path, step: Duration) -> io::Result<Vec<Measure>> {
    let file = preflight::open_unnamed(dir)?;
    let zeroed = zero(&file, step)?;
    let mut small = AlignedBuffer::new(4 << 10);
    let mut large = AlignedBuffer::new(256 << 10);
    small.bytes_mut().fill(0xa5);
    large.bytes_mut().fill(0x5a);
    let (small_len, large_len) = (small.bytes().len() as u64, large.bytes().len() as u64);
    let wrap = |operation: u64, len: u64| operation * len % zeroed.max(len);

    let mut measures = vec![
        repeat("direct write", small_len, step, |n| {
            file.write_all_at(small.bytes(), wrap(n, small_len))
        })?,
        repeat("direct write", large_len, step, |n| {
            file.write_all_at(large.bytes(), wrap(n, large_len))
        })?,
        repeat("direct read", large_len, step, |n| {
            file.read_exact_at(large.bytes_mut(), wrap(n, large_len))
        })?,
    ];
    // Only the flush is timed; each has one write before it to flush.
    let mut flushes = Vec::new();
    let start = Instant::now();
    while start.elapsed() < step {
        file.write_all_at(small.bytes(), wrap(flushes.len() as u64, small_len))?;
        let before = Instant::now();
        file.sync_data()?;
        flushes.push(before.elapsed());
    }
    measures.push(summarize("flush after a 4 KiB write", 0, flushes));
    Ok(measures)
}

/// Zeros the file for at most `step`; returns how far it came (a multiple of 1 MiB, at least one).
fn zero(file: &File, step: Duration) -> io::Result<u64> {
    let zeros = AlignedBuffer::new(1 << 20);
    let len = zeros.bytes().len() as u64;
    let start = Instant::now();
    let mut end = 0;
    while end < FILE_BYTES && (end == 0 || start.elapsed() < step) {
        file.write_all_at(zeros.bytes(), end)?;
        end += len;
    }
    file.sync_all()?;
    Ok(end)
}

fn repeat(
    name: &'static str,
    bytes: u64,
    step: Duration,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Measure> {
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < step {
        let before = Instant::now();
        operation(times.len() as u64)?;
        times.push(before.elapsed());
    }
    Ok(summarize(name, bytes, times))
}

fn summarize(name: &'static str, bytes: u64, mut times: Vec<Duration>) -> Measure {
    times.sort_unstable();
    let at = |share: f64| {
        times
            .get((times.len() as f64 * share) as usize)
            .or(times.last())
            .map_or(0, |time| time.as_micros() as u64)
    };
    let total: Duration = times.iter().sum();
    let per_second = if total.is_zero() { 0.0 } else { times.len() as f64 / total.as_secs_f64() };
    Measure { name, bytes, per_second, p50_us: at(0.5), p99_us: at(0.99) }
}

fn print_table(dir: &Path, measures: &[Measure]) {
    println!("\ndisk at {}, one operation in flight", dir.display());
    println!(
        "{:<28}{:>10}{:>12}{:>10}{:>10}{:>10}",
        "operation", "size", "per second", "MB/s", "p50 us", "p99 us"
    );
    for measure in measures {
        let (size, rate) = match measure.bytes {
            0 => ("-".to_owned(), "-".to_owned()),
            bytes => (
                format!("{} KiB", bytes >> 10),
                format!("{:.0}", measure.per_second * bytes as f64 / 1e6),
            ),
        };
        println!(
            "{:<28}{size:>10}{:>12.0}{rate:>10}{:>10}{:>10}",
            measure.name, measure.per_second, measure.p50_us, measure.p99_us
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir_in(".").expect("temporary directory");
        let measures = measure_disk(dir.path(), Duration::from_millis(30)).expect("measure");
        assert_eq!(measures.len(), 4);
        assert!(
            measures
                .iter()
                .all(|measure| measure.per_second > 0.0 && measure.p50_us <= measure.p99_us),
            "{measures:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=100).rev().map(Duration::from_micros).collect();
        let measure = summarize("x", 0, times);
        assert_eq!((measure.p50_us, measure.p99_us), (51, 100));
        assert_eq!(summarize("x", 0, Vec::new()).per_second, 0.0);
    }
}
