//! The program's log lines (not the commit log): formatted where they are made, written by a thread of their own.
//!
//! A reactor must never wait for a terminal or a pipe, so lines go through a bounded queue; when it is full the line is dropped,
//! and the next line written says how many were.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogFormat, LogSection};

/// Bytes gathered for one write.
const BATCH_BYTES: usize = 64 << 10;

/// Why logging could not start.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// The level is neither a level nor a list of directives.
    #[error(
        "log.level = \"{level}\": {why}: set error, warn, info, debug or trace, or directives such as info,ringmq_net=debug"
    )]
    Level {
        /// The value.
        level: String,
        /// What the parser says.
        why: String,
    },
    /// The writer's thread did not start, or another subscriber is installed.
    #[error("log writer: {0}")]
    Start(String),
}

/// Keeps the writer's thread; dropping it writes what is queued and ends the thread.
pub struct LogGuard {
    queue: LineQueue,
    thread: Option<JoinHandle<()>>,
}

impl LogGuard {
    /// Tells how many lines were dropped; also to other threads.
    pub fn dropped(&self) -> DroppedLines {
        DroppedLines(Arc::clone(&self.queue.shared))
    }
}

/// Counts lines that were dropped because the queue was full.
#[derive(Clone)]
pub struct DroppedLines(Arc<Shared>);

impl DroppedLines {
    /// So far.
    pub fn count(&self) -> u64 {
        self.0.dropped_total.load(Ordering::Relaxed)
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // The subscriber is global and keeps its own handle, so the channel is closed through the shared slot.
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends the log lines of this process to standard error.
pub fn init(section: &LogSection) -> Result<LogGuard, LoggingError> {
    let filter = EnvFilter::try_new(&section.level).map_err(|error| LoggingError::Level {
        level: section.level.clone(),
        why: error.to_string(),
    })?;
    let (queue, thread) = LineQueue::start(section, io::stderr())
        .map_err(|error| LoggingError::Start(error.to_string()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(queue.clone())
        .with_ansi(false);
    let installed = match section.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| LoggingError::Start(error.to_string()))?;
    Ok(LogGuard { queue, thread: Some(thread) })
}

/// A panic is a bug: the process ends at once rather than running half alive. The message goes past the queue.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

/// The bounded queue of formatted lines.
#[derive(Clone)]
struct LineQueue {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` once closed. Taken for the length of a `try_send`, which never blocks.
    sender: Mutex<Option<SyncSender<Vec<u8>>>>,
    /// Dropped since the last line that said so.
    dropped: AtomicU64,
    dropped_total: AtomicU64,
}

impl LineQueue {
    fn start(
        section: &LogSection,
        out: impl Write + Send + 'static,
    ) -> io::Result<(LineQueue, JoinHandle<()>)> {
        let (sender, receiver) =
            sync_channel(usize::try_from(section.queue_lines).unwrap_or(usize::MAX));
        let shared = Arc::new(Shared {
            sender: Mutex::new(Some(sender)),
            dropped: AtomicU64::new(0),
            dropped_total: AtomicU64::new(0),
        });
        let (format, own) = (section.format, Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || write_lines(&receiver, out, format, &own))?;
        Ok((LineQueue { shared }, thread))
    }

    fn push(&self, line: Vec<u8>) {
        let sender = self.shared.sender.lock().unwrap_or_else(PoisonError::into_inner);
        match sender.as_ref().map(|sender| sender.try_send(line)) {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_))) => {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                self.shared.dropped_total.fetch_add(1, Ordering::Relaxed);
            }
            // After the guard is gone, only a process that ends is left to speak: straight out.
            Some(Err(TrySendError::Disconnected(line))) => drop(io::stderr().write_all(&line)),
            None => {}
        }
    }

    fn close(&self) {
        self.shared.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { queue: self, line: Vec::with_capacity(256) }
    }
}

/// Gathers one event's bytes and queues them when dropped.
struct LineWriter<'a> {
    queue: &'a LineQueue,
    line: Vec<u8>,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LineWriter<'_> {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.queue.push(std::mem::take(&mut self.line));
        }
    }
}

/// The writer's thread: takes what is there, writes it in one piece, and tells of dropped lines.
fn write_lines(lines: &Receiver<Vec<u8>>, mut out: impl Write, format: LogFormat, shared: &Shared) {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    while let Ok(line) = lines.recv() {
        batch.extend_from_slice(&line);
        while batch.len() < BATCH_BYTES {
            match lines.try_recv() {
                Ok(line) => batch.extend_from_slice(&line),
                Err(_) => break,
            }
        }
        append_dropped(&mut batch, format, shared);
        // Nobody is left to tell if standard error is gone.
        let _ = out.write_all(&batch);
        batch.clear();
    }
    append_dropped(&mut batch, format, shared);
    let _ = out.write_all(&batch);
}

fn append_dropped(batch: &mut Vec<u8>, format: LogFormat, shared: &Shared) {
    let dropped = shared.dropped.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        batch.extend_from_slice(dropped_line(dropped, format).as_bytes());
    }
}

fn dropped_line(count: u64, format: LogFormat) -> String {
    match format {
        LogFormat::Text => format!(
            "WARN {count} log lines were dropped: the log's reader is slower than the broker\n"
        ),
        LogFormat::Json => format!(
            "{{\"level\":\"WARN\",\"message\":\"log lines were dropped\",\"count\":{count}}}\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A destination whose first write waits until the test lets it go.
    struct Gate {
        entered: Sender<()>,
        go: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
        passed: bool,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !self.passed {
                self.passed = true;
                self.entered.send(()).map_err(io::Error::other)?;
                self.go.recv().map_err(io::Error::other)?;
            }
            self.written.lock().expect("lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_lines_without_blocking_and_says_how_many() {
        let (entered, at_gate) = channel();
        let (open, go) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let gate = Gate { entered, go, written: Arc::clone(&written), passed: false };
        let section = LogSection { queue_lines: 64, ..LogSection::default() };
        let (queue, thread) = LineQueue::start(&section, gate).expect("start");
        queue.push(b"first\n".to_vec());
        at_gate.recv().expect("the writer is stuck in its first write");
        for line in 0..100 {
            queue.push(format!("line {line}\n").into_bytes());
        }
        open.send(()).expect("open the gate");
        queue.close();
        thread.join().expect("writer ends");
        let text = String::from_utf8(written.lock().expect("lock").clone()).expect("utf-8");
        assert!(
            text.starts_with("first\nline 0\n")
                && text.contains("line 63\n")
                && !text.contains("line 64\n"),
            "{text}"
        );
        assert!(text.contains("36 log lines were dropped"), "{text}");
        assert_eq!(queue.shared.dropped_total.load(Ordering::Relaxed), 36);
    }

    #[test]
    fn a_wrong_level_names_the_key() {
        let section = LogSection { level: "ringmq=loud".to_owned(), ..LogSection::default() };
        let error = init(&section).err().expect("refused").to_string();
        assert!(error.contains("log.level") && error.contains("set error"), "{error}");
    }

    #[test]
    fn the_json_notice_is_json() {
        let value: serde_json::Value =
            serde_json::from_str(&dropped_line(3, LogFormat::Json)).expect("json");
        assert_eq!(value["count"], 3);
    }
}
