//! Latencies of each second in the HdrHistogram log format (version 1.3 with V2 histograms), which HistogramLogProcessor and its like read. Tags
//! `send` and `receive` tell the sides apart. Values are nanoseconds.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::clock::Clock;
use crate::error::LoadError;

/// Maximum values of the log's lines are told in milliseconds.
const NS_PER_MS: f64 = 1e6;

struct Interval {
    tag: &'static str,
    since_start: Duration,
    length: Duration,
    latencies: Histogram<u64>,
}

/// A log that is being written, by a thread of its own.
#[derive(Debug)]
pub struct HdrLog {
    path: PathBuf,
    intervals: Sender<Interval>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl HdrLog {
    /// Creates the file.
    ///
    /// # Errors
    /// It can't be created.
    pub fn create(path: &Path, clock: &Clock) -> Result<Self, LoadError> {
        let file = File::create(path).map_err(|source| failed(path, source))?;
        let start = UNIX_EPOCH + Duration::from_millis(clock.unix_ms(0));
        let (intervals, received) = channel();
        let write = move || write(file, start, &received);
        let spawned = std::thread::Builder::new().name("load-hdr".into()).spawn(write);
        let writer = spawned.map_err(|source| failed(path, source))?;
        Ok(HdrLog { path: path.to_owned(), intervals, writer })
    }

    /// Writes the latencies of an interval that ends at `now` on the run's clock.
    pub fn add(&self, tag: &'static str, now: u64, length_ns: u64, latencies: Histogram<u64>) {
        let since_start = Duration::from_nanos(now.saturating_sub(length_ns));
        let length = Duration::from_nanos(length_ns);
        // If the writer ended with an error, `finish` tells.
        let _ = self.intervals.send(Interval { tag, since_start, length, latencies });
    }

    /// Completes the file.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(self) -> Result<(), LoadError> {
        drop(self.intervals);
        let written = self.writer.join().map_err(|_| LoadError::Worker)?;
        written.map_err(|source| failed(&self.path, source))
    }
}

fn failed(path: &Path, source: std::io::Error) -> LoadError {
    LoadError::File { what: "write the HdrHistogram log", path: path.to_owned(), source }
}

fn write(
    file: File,
    start: std::time::SystemTime,
    intervals: &Receiver<Interval>,
) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("Latencies of ringmq-loadtest, nanoseconds");
    builder.with_start_time(start).with_base_time(start).with_max_value_divisor(NS_PER_MS);
    let mut log = builder.begin_log_with(&mut out, &mut serializer)?;
    for Interval { tag, since_start, length, latencies } in intervals {
        let written = log.write_histogram(&latencies, since_start, length, Tag::new(tag));
        written.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    }
    std::io::Write::flush(&mut out)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::clock::SECOND_NS;
    use crate::tally::latencies;

    #[test]
    fn what_is_logged_reads_back_second_by_second() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = HdrLog::create(file.path(), &Clock::start()).unwrap();
        for second in 1..=3u64 {
            for tag in ["send", "receive"] {
                let mut histogram = latencies();
                (0..second * 10).for_each(|value| histogram.saturating_record(1_000_000 + value));
                log.add(tag, second * SECOND_NS, SECOND_NS, histogram);
            }
        }
        log.finish().unwrap();
        let text = std::fs::read(file.path()).unwrap();
        let mut seen = Vec::new();
        for entry in IntervalLogIterator::new(&text) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            let bytes = base64_decode(interval.encoded_histogram());
            let histogram: Histogram<u64> =
                Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
            seen.push((
                interval.tag().unwrap().as_str().to_owned(),
                interval.start_timestamp().as_secs(),
                histogram.len(),
            ));
        }
        let expected = (0..3u64)
            .flat_map(|at| ["send", "receive"].map(|tag| (tag.to_owned(), at, (at + 1) * 10)));
        assert_eq!(seen, expected.collect::<Vec<_>>());
    }

    fn base64_decode(text: &str) -> Vec<u8> {
        let digit = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let bits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
        let mut out = Vec::new();
        for group in bits.chunks(4) {
            let all = group.iter().fold(0u32, |sum, six| sum << 6 | u32::from(*six))
                << (6 * (4 - group.len()));
            out.extend_from_slice(&all.to_be_bytes()[1..group.len()]);
        }
        out
    }
}
