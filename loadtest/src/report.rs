//! The result of a run: a table for people, JSON for programs.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::crew::{Sample, Watched};
use crate::html;
use crate::knee::{HARNESS, Knee};
use crate::ledger::{Account, Verdict};
use crate::progress::Second;
use crate::tally::{Tally, latencies};

/// Above this part of a processor a thread of the harness is taken to be the bottleneck.
const BUSY_MAX: f64 = 0.9;
/// Above this part of the time spent waiting for a processor, latencies are those of the machine.
const WAITED_MAX: f64 = 0.1;
/// Below this part of the rate asked for, it was not kept.
const RATE_PART_MIN: f64 = 0.99;
/// The first bucket of a distribution, nanoseconds...
const BUCKET_FIRST_NS: u64 = 1_000;
/// ...and how much longer each one is than the one before.
const BUCKET_RATIO: f64 = 1.189_207_1;
/// A request of the open loop that leaves later than this is the harness's fault.
const LAG_P99_NS_MAX: u64 = 1_000_000;

/// A result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Program and version.
    pub tool: String,
    /// `produce`, `consume`, `e2e` or `replay`.
    pub mode: &'static str,
    /// When the run began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The command line's options.
    pub options: serde_json::Value,
    /// Brokers and the number of queues used on each.
    pub targets: Vec<(String, usize)>,
    /// Processors that this machine offers.
    pub processors: usize,
    /// Length of the measured span.
    pub measured_seconds: f64,
    /// Messages a second that were asked for.
    pub rate_asked: Option<f64>,
    /// What was sent; `latency` is that of requests.
    pub send: Option<Side>,
    /// What was received; `latency` is that of pulls, or end to end the age of messages.
    pub receive: Option<Side>,
    /// End to end: what each consumer group received.
    pub groups: Vec<Group>,
    /// The account of every message, if it was asked for.
    pub verify: Option<Verdict>,
    /// The search for the knee; the rest of the report is that of the highest rate that was borne.
    pub knee: Option<Knee>,
    /// What the broker's processes used.
    pub broker: Option<Broker>,
    /// What the harness used.
    pub harness: Harness,
    /// What makes the result less than it seems.
    pub warnings: Vec<String>,
    /// Whether all that was sent was acknowledged, and all that was to be received was, as it should be.
    pub clean: bool,
    /// Second by second.
    pub series: Vec<Second>,
}

/// What one side did.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Messages acknowledged or received inside the measured span.
    pub messages: u64,
    /// The same, with warm-up and tail.
    pub messages_all: u64,
    /// Messages a second of the span.
    pub messages_per_second: f64,
    /// 10^6 bytes of bodies (sent) or records (received) a second.
    pub megabytes_per_second: f64,
    /// Messages of an answer, on average.
    pub messages_per_answer: f64,
    /// Latencies.
    pub latency: Latency,
    /// Their quantiles: parts of all (0 to 1) and microseconds.
    pub curve: Vec<(f64, f64)>,
    /// Their distribution: upper bounds in microseconds that grow by the same factor, and how many are between them.
    pub buckets: Vec<(f64, u64)>,
    /// Open loop: how late requests left although there was room for them.
    pub lag: Option<Latency>,
    /// Error answers, warm-up included.
    pub errors: Vec<ErrorLine>,
    /// Requests without an answer.
    pub unanswered: u64,
    /// Answers that no request waited for.
    pub strays: u64,
    /// Broken connections.
    pub breaks: u64,
    /// Connections that were closed and made anew on purpose.
    pub renewed: u64,
    /// Open loop: requests that were due and could not be sent.
    pub unsent: u64,
    /// Records that are not as they should be.
    pub bad_records: u64,
    /// The first of them.
    pub bad_record_texts: Vec<String>,
    /// Pulls whose queue offset the broker corrected.
    pub offsets_moved: u64,
}

/// Error answers of one code.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorLine {
    /// Response code.
    pub code: i32,
    /// How many.
    pub count: u64,
    /// The text of the first.
    pub remark: String,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// A consumer group of an end-to-end run.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Messages of this run that it received.
    pub received: u64,
    /// Acknowledged messages that had not arrived when the run gave up waiting.
    pub missing: u64,
    /// Messages beyond those acknowledged: duplicates, or sends whose answer was an error or lost.
    pub surplus: u64,
    /// Ages of its messages.
    pub latency: Latency,
}

/// What the broker's processes used in the measured span, all of them together.
#[derive(Clone, Debug, Serialize)]
pub struct Broker {
    /// Process ids.
    pub pids: Vec<i32>,
    /// CPU seconds.
    pub cpu_seconds: f64,
    /// CPU seconds a second.
    pub cores: f64,
    /// CPU seconds for a million messages (end to end: messages sent).
    pub cpu_seconds_per_million: Option<f64>,
    /// Resident bytes at the end.
    pub rss_bytes: u64,
    /// The most it ever had resident.
    pub rss_bytes_max: u64,
}

/// What the harness used in the measured span.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Harness {
    /// CPU seconds.
    pub cpu_seconds: f64,
    /// CPU microseconds for a message (end to end: a message sent), the kernel's work for its sockets included.
    pub cpu_us_per_message: Option<f64>,
    /// Part of the time that the busiest thread used a processor.
    pub busiest_thread: f64,
    /// Part of the time that a thread waited for a processor, at worst.
    pub waited_for_processor: f64,
}

/// What is known about a run besides what it saw.
pub(crate) struct Facts {
    pub(crate) mode: &'static str,
    pub(crate) started_unix_ms: u64,
    pub(crate) options: serde_json::Value,
    pub(crate) targets: Vec<(String, usize)>,
    pub(crate) warm: u64,
    pub(crate) end: u64,
    pub(crate) rate_asked: Option<f64>,
    /// Requests have intended times.
    pub(crate) open: bool,
    pub(crate) pids: Vec<i32>,
    pub(crate) sends: bool,
    pub(crate) receives: bool,
    pub(crate) groups: Vec<(String, u64)>,
    pub(crate) verdict: Option<Verdict>,
}

impl Report {
    pub(crate) fn new(facts: Facts, watched: Watched) -> Self {
        let Watched { send, receive, samples, finished, series } = watched;
        // A run that a count or the end of the queues ended was over with the last answer.
        let last = send.last.max(receive.last);
        let end = if finished < facts.end { last } else { facts.end };
        let seconds = end.saturating_sub(facts.warm) as f64 / 1e9;
        let open = facts.rate_asked.is_some() || facts.open;
        let messages = if facts.sends { send.messages } else { receive.messages };
        let groups = groups(&facts, &send, &receive);
        let mut report = Report {
            tool: concat!("ringmq-loadtest ", env!("CARGO_PKG_VERSION")).to_owned(),
            mode: facts.mode,
            started_unix_ms: facts.started_unix_ms,
            options: facts.options,
            targets: facts.targets,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            measured_seconds: seconds,
            rate_asked: facts.rate_asked,
            send: facts.sends.then(|| Side::new(&send, seconds, open)),
            receive: facts.receives.then(|| Side::new(&receive, seconds, false)),
            groups,
            verify: facts.verdict,
            knee: None,
            broker: broker(facts.pids, &samples, messages),
            harness: harness(&samples, messages, &send, &receive),
            warnings: Vec::new(),
            clean: false,
            series,
        };
        report.judge(&send);
        report
    }

    fn judge(&mut self, send: &Tally) {
        let mut warnings = Vec::new();
        let harness = &self.harness;
        if self.saturated() {
            warnings.push(format!(
                "the harness is saturated: a thread of it used {:.0} % of a processor; what was measured is the harness. \
                 Give --threads, or another machine",
                harness.busiest_thread * 100.0
            ));
        }
        if harness.waited_for_processor > WAITED_MAX {
            warnings.push(format!(
                "a thread of the harness waited for a processor {:.0} % of the time: the machine is too busy, and latencies \
                 say so",
                harness.waited_for_processor * 100.0
            ));
        }
        let lag = send.lag.value_at_quantile(0.99);
        if lag > LAG_P99_NS_MAX {
            warnings.push(format!(
                "the harness sent late: 1 % of the requests left {:.1} ms or more after their time though there was room",
                lag as f64 / 1e6
            ));
        }
        if let (Some(asked), Some(side)) = (self.rate_asked, &self.send)
            && side.messages_per_second < asked * RATE_PART_MIN
        {
            warnings.push(format!(
                "asked for {} messages a second, achieved {}",
                thousands(asked as u64),
                thousands(side.messages_per_second as u64)
            ));
        }
        let sides = || [&self.send, &self.receive].into_iter().flatten();
        if sides().any(|side| side.strays > 0) {
            warnings.push("the broker answered something twice, or what was not asked".to_owned());
        }
        if sides().any(|side| side.messages == 0) {
            warnings.push("there was nothing to measure".to_owned());
        }
        self.clean = sides().all(Side::is_clean)
            && self.groups.iter().all(|group| group.missing == 0 && group.surplus == 0)
            && self.is_sound();
        self.warnings = warnings;
    }

    /// Whether no message was found lost, duplicated, reordered or corrupt.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.verify.as_ref().is_none_or(|verdict| verdict.sound)
    }

    /// Whether a thread of the harness was the limit.
    #[must_use]
    pub fn saturated(&self) -> bool {
        self.harness.busiest_thread > BUSY_MAX
    }

    /// Adds the search that this report is the best of.
    pub(crate) fn set_knee(&mut self, knee: Knee) {
        let above = knee.tries.iter().filter(|tried| !tried.borne);
        let lowest = above.min_by(|a, b| a.rate.total_cmp(&b.rate));
        match (knee.rate, lowest) {
            (None, _) => {
                self.warnings.push(format!("no rate stayed under a p99 of {} ms", knee.p99_bound_ms));
                self.clean = false;
            }
            (Some(_), Some(tried)) if tried.reason == HARNESS => self.warnings.push(
                "what bounds the rate is the harness, not the broker: give --threads, or another machine".to_owned(),
            ),
            _ => {}
        }
        self.knee = Some(knee);
    }

    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(&format!("{} · {}", self.mode, self.tool), "run", &self.json())
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        self.write_table(&mut out).unwrap_or_else(|_| unreachable!("a String takes everything"));
        out
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{} over {:.2} s", self.mode, self.measured_seconds)?;
        if let Some(side) = &self.send {
            side.write("sent", self.rate_asked, out)?;
        }
        if let Some(side) = &self.receive {
            side.write("received", None, out)?;
        }
        for group in &self.groups {
            let Group { name, received, missing, surplus, latency } = group;
            let age = (latency.p50_us / 1e3, latency.p99_us / 1e3);
            let (received, missing) = (thousands(*received), thousands(*missing));
            writeln!(
                out,
                "  group {name}: {received} received, {missing} missing, {surplus} surplus, p50 {:.2} p99 {:.2} ms",
                age.0, age.1
            )?;
        }
        if let Some(verdict) = &self.verify {
            write_verdict(verdict, out)?;
        }
        if let Some(knee) = &self.knee {
            write_knee(knee, out)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "  {:<26}{:>9} {:>9} {:>9} {:>9} {:>9}  ms",
            "latency", "p50", "p90", "p99", "p99.9", "max"
        )?;
        let kinds = match self.mode {
            "e2e" => ["send request", "send to receive"],
            _ => ["send request", "pull with messages"],
        };
        let of = |side: &Option<Side>| side.as_ref().map(|side| side.latency);
        let lag = self.send.as_ref().and_then(|side| side.lag);
        let rows = [
            (kinds[0], of(&self.send)),
            ("sent late by harness", lag),
            (kinds[1], of(&self.receive)),
        ];
        for (name, latency) in rows {
            if let Some(latency) = latency {
                latency.write(name, out)?;
            }
        }
        writeln!(out)?;
        if let Some(broker) = &self.broker {
            broker.write(out)?;
        }
        self.harness.write(out)?;
        for warning in &self.warnings {
            writeln!(out, "  warning: {warning}")?;
        }
        Ok(())
    }

    /// JSON, with a newline at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.map_or_else(|error| format!("{{\"error\":\"{error}\"}}\n"), |text| text + "\n")
    }
}

fn write_verdict(verdict: &Verdict, out: &mut String) -> std::fmt::Result {
    for account in &verdict.groups {
        let Account { name, arrived, lost, duplicated, reordered, corrupt, unacknowledged, texts } =
            account;
        let [arrived, lost, duplicated, reordered, corrupt, unacknowledged] =
            [arrived, lost, duplicated, reordered, corrupt, unacknowledged]
                .map(|count| thousands(*count));
        let reordered = if verdict.order { reordered } else { "(not judged)".to_owned() };
        writeln!(
            out,
            "  verified at {name}: {} acknowledged, {arrived} arrived: {lost} lost, {duplicated} duplicated, {reordered} reordered, \
             {corrupt} corrupt, {unacknowledged} there without an acknowledgement",
            thousands(verdict.acknowledged)
        )?;
        for text in texts {
            writeln!(out, "    {text}")?;
        }
    }
    Ok(())
}

fn write_knee(knee: &Knee, out: &mut String) -> std::fmt::Result {
    match knee.rate {
        Some(rate) => {
            writeln!(
                out,
                "  knee: {} msg/s with p99 under {} ms",
                thousands(rate as u64),
                knee.p99_bound_ms
            )?;
        }
        None => writeln!(out, "  knee: no rate has a p99 under {} ms", knee.p99_bound_ms)?,
    }
    knee.tries.iter().try_for_each(|tried| writeln!(out, "   {}", tried.line()))
}

fn groups(facts: &Facts, send: &Tally, receive: &Tally) -> Vec<Group> {
    let none = latencies();
    let group = |(number, (name, received)): (usize, &(String, u64))| Group {
        latency: Latency::new(receive.ages.get(number).unwrap_or(&none)),
        name: name.clone(),
        received: *received,
        missing: send.messages_all.saturating_sub(*received),
        surplus: received.saturating_sub(send.messages_all),
    };
    facts.groups.iter().enumerate().map(group).collect()
}

fn broker(pids: Vec<i32>, samples: &(Sample, Sample), messages: u64) -> Option<Broker> {
    let (before, after) = (samples.0.broker?, samples.1.broker?);
    let seconds = (samples.1.at.saturating_sub(samples.0.at)).max(1) as f64 / 1e9;
    let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
    Some(Broker {
        pids,
        cpu_seconds,
        cores: cpu_seconds / seconds,
        cpu_seconds_per_million: (messages > 0).then(|| cpu_seconds / (messages as f64 / 1e6)),
        rss_bytes: after.rss_bytes,
        rss_bytes_max: after.rss_bytes_max,
    })
}

fn harness(samples: &(Sample, Sample), messages: u64, send: &Tally, receive: &Tally) -> Harness {
    let cpu_seconds = samples.1.own_cpu_seconds - samples.0.own_cpu_seconds;
    Harness {
        cpu_seconds,
        cpu_us_per_message: (messages > 0).then(|| cpu_seconds * 1e6 / messages as f64),
        busiest_thread: send.busy.max(receive.busy),
        waited_for_processor: send.waited.max(receive.waited),
    }
}

impl Side {
    fn new(tally: &Tally, seconds: f64, open: bool) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let error = |(code, errors): (&i32, &crate::tally::Errors)| ErrorLine {
            code: *code,
            count: errors.count,
            remark: errors.remark.clone(),
        };
        Side {
            messages: tally.messages,
            messages_all: tally.messages_all,
            messages_per_second: per_second(tally.messages),
            megabytes_per_second: per_second(tally.bytes) / 1e6,
            messages_per_answer: tally.messages as f64 / tally.answers.max(1) as f64,
            latency: Latency::new(&tally.latency),
            curve: curve(&tally.latency),
            buckets: buckets(&tally.latency),
            lag: open.then(|| Latency::new(&tally.lag)),
            errors: tally.errors.iter().map(error).collect(),
            unanswered: tally.unanswered,
            strays: tally.strays,
            breaks: tally.breaks,
            renewed: tally.renewed,
            unsent: tally.unsent,
            bad_records: tally.bad_records,
            bad_record_texts: tally.bad_record_texts.clone(),
            offsets_moved: tally.offsets_moved,
        }
    }

    fn is_clean(&self) -> bool {
        let troubles = [self.unanswered, self.strays, self.breaks, self.unsent, self.bad_records];
        self.errors.is_empty() && troubles.iter().all(|count| *count == 0)
    }

    fn write(&self, what: &str, asked: Option<f64>, out: &mut String) -> std::fmt::Result {
        write!(
            out,
            "  {what} {} messages, {}/s, {:.1} MB/s",
            thousands(self.messages),
            thousands(self.messages_per_second as u64),
            self.megabytes_per_second
        )?;
        if let Some(asked) = asked {
            let part = self.messages_per_second / asked * 100.0;
            write!(out, " ({part:.1} % of the {}/s asked for)", thousands(asked as u64))?;
        }
        if self.messages_per_answer > 1.005 {
            write!(out, ", {:.1} messages an answer", self.messages_per_answer)?;
        }
        writeln!(out)?;
        for ErrorLine { code, count, remark } in &self.errors {
            let remark = remark.lines().next().unwrap_or_default();
            writeln!(out, "  errors: {} x code {code} {remark}", thousands(*count))?;
        }
        let troubles = [
            (self.unanswered, "requests without an answer"),
            (self.strays, "answers to nothing"),
            (self.breaks, "broken connections"),
            (self.renewed, "connections closed and made anew"),
            (self.unsent, "requests due and not sent"),
            (self.bad_records, "records not as they should be"),
            (self.offsets_moved, "queue offsets corrected by the broker"),
        ];
        for (count, name) in troubles.iter().filter(|(count, _)| *count > 0) {
            writeln!(out, "  {name}: {}", thousands(*count))?;
        }
        for text in &self.bad_record_texts {
            writeln!(out, "    {text}")?;
        }
        Ok(())
    }
}

/// Quantiles, four for each halving of the rest.
fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let point = |value: hdrhistogram::iterators::IterationValue<u64>| {
        (value.quantile_iterated_to(), value.value_iterated_to() as f64 / 1e3)
    };
    histogram.iter_quantiles(4).map(point).collect()
}

/// How many latencies are between bounds of the same ratio.
fn buckets(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let bounds = histogram.iter_log(BUCKET_FIRST_NS, BUCKET_RATIO);
    let bucket = |value: hdrhistogram::iterators::IterationValue<u64>| {
        (value.value_iterated_to() as f64 / 1e3, value.count_since_last_iteration())
    };
    bounds.map(bucket).skip_while(|(_, count)| *count == 0).collect()
}

impl Latency {
    fn new(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Latency {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }

    fn write(&self, name: &str, out: &mut String) -> std::fmt::Result {
        write!(out, "  {name:<26}")?;
        for us in [self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us] {
            write!(out, "{:>9.3} ", us / 1e3)?;
        }
        writeln!(out)
    }
}

impl Broker {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let pids: Vec<_> = self.pids.iter().map(i32::to_string).collect();
        let many = if pids.len() > 1 { "processes" } else { "process" };
        write!(out, "  broker ({many} {}): {:.2} cores", pids.join(", "), self.cores)?;
        if let Some(per_million) = self.cpu_seconds_per_million {
            write!(out, ", {per_million:.2} CPU s per million messages")?;
        }
        let (now, most) = (self.rss_bytes >> 20, self.rss_bytes_max >> 20);
        writeln!(out, ", {now} MiB resident, {most} MiB at most")
    }
}

impl Harness {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let per_message = self.cpu_us_per_message.unwrap_or(0.0);
        writeln!(
            out,
            "  harness: {per_message:.2} us CPU a message, busiest thread {:.0} %, waited for a processor {:.0} %",
            self.busiest_thread * 100.0,
            self.waited_for_processor * 100.0
        )
    }
}

/// A number with its thousands set apart.
#[must_use]
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let shown = [0, 7, 999, 1_000, 12_345, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }
}
