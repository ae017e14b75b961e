//! A recorded load: what was sent when. `consume --record` writes one, `replay` sends it again.
//!
//! One JSON object a line. The first line says what the file is; each further one is a message, in any order:
//!
//! ```text
//! {"ringmq_trace":1}
//! {"at_us":0,"topic":"orders","size":512,"tag":"paid"}
//! {"at_us":1800,"topic":"orders","size":96}
//! ```
//!
//! `at_us` counts microseconds from the first message, `size` is that of the body; without `tag` a message has none. Unknown fields are
//! left alone, so that other programs may add their own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::kind::Kind;

/// Version of the format.
const VERSION: u32 = 1;
/// Most messages of a trace: 16 bytes of memory each.
const EVENTS_MAX: usize = 200_000_000;
/// Most different pairs of topic and tag.
const KINDS_MAX: usize = 10_000;
/// Longest body.
const SIZE_MAX: u32 = 16 << 20;

/// A message of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the trace's first message.
    pub at_us: u64,
    /// Which of [`Trace::kinds`].
    pub kind: u32,
    /// Bytes of the body.
    pub size: u32,
}

/// A trace, by time.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Topics with tags.
    pub kinds: Vec<Kind>,
    /// The messages.
    pub events: Vec<Event>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    ringmq_trace: u32,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    at_us: u64,
    #[serde(borrow)]
    topic: Cow<'a, str>,
    size: u32,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    tag: Cow<'a, str>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The file can't be read, is no trace, or a line of it is none; the line is named.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let io = |source| LoadError::File { what: "read the trace", path: path.to_owned(), source };
        let wrong =
            |line: usize, why: String| LoadError::Trace { path: path.to_owned(), line, why };
        let mut lines = BufReader::new(File::open(path).map_err(io)?);
        let mut text = String::new();
        lines.read_line(&mut text).map_err(io)?;
        let head: Head = serde_json::from_str(&text)
            .map_err(|_| wrong(1, format!("a trace begins with {{\"ringmq_trace\":{VERSION}}}")))?;
        if head.ringmq_trace != VERSION {
            return Err(wrong(
                1,
                format!("version {} is not known, only {VERSION}", head.ringmq_trace),
            ));
        }
        let (mut trace, mut numbers) = (Trace::default(), HashMap::new());
        for number in 2.. {
            text.clear();
            if lines.read_line(&mut text).map_err(io)? == 0 {
                break;
            }
            if text.trim().is_empty() {
                continue;
            }
            let line: Line<'_> =
                serde_json::from_str(&text).map_err(|error| wrong(number, error.to_string()))?;
            trace.take(&line, &mut numbers).map_err(|why| wrong(number, why))?;
        }
        trace.events.sort_by_key(|event| event.at_us);
        if trace.events.is_empty() {
            return Err(wrong(2, "there is no message in it".into()));
        }
        Ok(trace)
    }

    fn take(&mut self, line: &Line<'_>, numbers: &mut HashMap<Kind, u32>) -> Result<(), String> {
        if line.size > SIZE_MAX {
            return Err(format!("a body of {} bytes: at most {SIZE_MAX} can be sent", line.size));
        }
        let kind =
            Kind { topic: line.topic.clone().into_owned(), tag: line.tag.clone().into_owned() };
        let next = self.kinds.len() as u32;
        let number = *numbers.entry(kind).or_insert_with_key(|kind| {
            self.kinds.push(kind.clone());
            next
        });
        if self.kinds.len() > KINDS_MAX || self.events.len() >= EVENTS_MAX {
            return Err(format!(
                "above {KINDS_MAX} pairs of topic and tag, or {EVENTS_MAX} messages"
            ));
        }
        self.events.push(Event { at_us: line.at_us, kind: number, size: line.size });
        Ok(())
    }

    /// Has all messages go to one topic.
    pub fn redirect(&mut self, topic: &str) {
        self.kinds.iter_mut().for_each(|kind| topic.clone_into(&mut kind.topic));
    }

    /// Time from the first message to the last, microseconds.
    #[must_use]
    pub fn length_us(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at_us)
    }

    /// The longest body.
    #[must_use]
    pub fn size_max(&self) -> usize {
        self.events.iter().map(|event| event.size as usize).max().unwrap_or(0)
    }
}

/// What is recorded of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it was born, milliseconds since 1970.
    pub born_ms: u64,
    /// Bytes of the body.
    pub size: u32,
    /// Tag, or empty.
    pub tag: Arc<str>,
}

/// Writes a trace of a topic's messages in any order; times count from the earliest.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, topic: &str, messages: &[Recorded]) -> Result<(), LoadError> {
    let error = |source| LoadError::File { what: "write the trace", path: path.to_owned(), source };
    let first = messages.iter().map(|message| message.born_ms).min().unwrap_or(0);
    let mut order: Vec<_> = messages.iter().collect();
    order.sort_by_key(|message| message.born_ms);
    let mut out = BufWriter::new(File::create(path).map_err(error)?);
    let mut line = |value: Result<String, serde_json::Error>| {
        let text = value.map_err(std::io::Error::from)?;
        writeln!(out, "{text}")
    };
    line(serde_json::to_string(&Head { ringmq_trace: VERSION })).map_err(error)?;
    for message in order {
        let at_us = (message.born_ms - first) * 1000;
        let (size, tag) = (message.size, message.tag.as_ref().into());
        line(serde_json::to_string(&Line { at_us, topic: topic.into(), size, tag }))
            .map_err(error)?;
    }
    out.flush().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Trace::read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_reads_back_by_time() {
        let message = |born_ms, size, tag: &str| Recorded { born_ms, size, tag: tag.into() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let messages = [message(1_003, 7, ""), message(1_000, 5, "x"), message(1_001, 0, "\"q\"")];
        write(file.path(), "t", &messages).unwrap();
        let trace = Trace::read(file.path()).unwrap();
        let kind = |tag: &str| Kind { topic: "t".into(), tag: tag.into() };
        assert_eq!(trace.kinds, ["x", "\"q\"", ""].map(kind));
        let event = |at_us, kind, size| Event { at_us, kind, size };
        assert_eq!(trace.events, [event(0, 0, 5), event(1_000, 1, 0), event(3_000, 2, 7)]);
        assert_eq!((trace.length_us(), trace.size_max()), (3_000, 7));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_line() {
        let head = "{\"ringmq_trace\":1}\n";
        for (text, expected) in [
            (String::new(), "line 1"),
            ("{\"ringmq_trace\":2}\n".into(), "version 2"),
            (head.into(), "no message"),
            (
                format!("{head}\n{{\"at_us\":1,\"topic\":\"t\",\"size\":1}}\n{{\"at_us\":-1}}\n"),
                "line 4",
            ),
            (format!("{head}{{\"at_us\":1,\"topic\":\"t\",\"size\":99999999}}\n"), "line 2"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let more = format!("{head}{{\"at_us\":1,\"topic\":\"t\",\"size\":1,\"queue\":3}}\n");
        assert_eq!(read(&more).unwrap().events.len(), 1);
    }
}
