//! From options to a report: finds the brokers, has a driver prepare, watches the workers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::SendHeader;

use crate::arrivals::Arrivals;
use crate::call::call;
use crate::cli::{
    CommonOptions, ConsumeOptions, EndToEndOptions, ProduceOptions, ReplayOptions, SendOptions,
    StartAt,
};
use crate::clock::{Clock, SECOND_NS, Span};
use crate::crew::{Job, Lives, Watch, Watched, work};
use crate::driver::{self, From, GroupLoad, Purpose, ReceiveLoad, SendLoad, Start};
use crate::error::LoadError;
use crate::hdr_log::HdrLog;
use crate::journal::Journal;
use crate::kind::Kind;
use crate::knee;
use crate::lag::LagWatch;
use crate::ledger::{Rule, Verdict, judge};
use crate::report::{Facts, Report};
use crate::sizes::Sizes;
use crate::tally::{Live, Tally};
use crate::target::{Access, Target, find, ok, queue_offset};
use crate::trace::{self, Trace};
use crate::usage::processes;

/// Measured time if neither a time nor a count is given.
const SECONDS_DEFAULT: f64 = 10.0;
const WARMUP_SECONDS_DEFAULT: f64 = 2.0;
/// Between the last preparation and the first request.
const HEAD_START_NS: u64 = SECOND_NS / 50;
/// How long `produce --verify` waits for the next message when it reads back.
const READ_BACK_GRACE_NS: u64 = 5 * SECOND_NS;
/// Messages of a pull when it does.
const READ_BACK_BATCH: usize = 32;

/// Sends.
///
/// # Errors
/// What keeps the run from starting; trouble during the run is in the report.
pub fn produce(options: &ProduceOptions) -> Result<Report, LoadError> {
    options.common.check()?;
    options.check()?;
    let Some(bound) = options.knee.knee_p99 else { return produce_once(options) };
    let (common, send, precision) = (&options.common, &options.send, options.knee.knee_precision);
    knee::find(common, send, bound, precision, |common, send| {
        let report = produce_once(&ProduceOptions { common, send, ..options.clone() })?;
        Ok((report.send.as_ref().map(|side| side.latency), report))
    })
}

fn produce_once(options: &ProduceOptions) -> Result<Report, LoadError> {
    let (common, send) = (&options.common, &options.send);
    let driver = driver::of(common)?;
    check_pid(common)?;
    let targets = find(common, Access::Write)?;
    let run_id = new_run_id();
    let before = if options.verify { Some(ends(common, &options.group, &targets)?) } else { None };
    let prepared = driver.senders(&SendLoad {
        common,
        send,
        targets: &targets,
        group: &options.group,
        kinds: kinds(common, send),
        sizes: send.sizes(options.stamped()),
        topics: options.topics,
        burst: options.burst,
        trace: None,
        run_id,
        stamped: options.stamped(),
        keep: options.stamped(),
    })?;
    let (clock, span) = start(common, !has_end(common));
    let live = Arc::new(Live::default());
    let jobs = prepared(&Start { clock, span, live: Arc::clone(&live) })?;
    let lives = Lives { send: Some(live), receive: None };
    let mut watched = watch(jobs, clock, span, common, lives, &targets, &|_| {})?;
    let rule = Rule::new(run_id, send.size.max(), true);
    let verdict = match before {
        Some(before) => Some(read_back(common, &targets, before, &rule, &mut watched)?),
        None => None,
    };
    if let Some(path) = &options.journal {
        let acknowledged = watched.send.acknowledged.clone();
        let topic = common.topic.clone();
        Journal { run_id, topic, size_max: send.size.max(), order: true, acknowledged }
            .write(path)?;
    }
    let facts = facts("produce", options, common, &targets, clock, span);
    Ok(Report::new(Facts { sends: true, rate_asked: send.rate, verdict, ..facts }, watched))
}

/// Sends what was recorded.
///
/// # Errors
/// As [`produce`]; or the trace is none.
pub fn replay(options: &ReplayOptions) -> Result<Report, LoadError> {
    let common = &options.common;
    common.check()?;
    options.check()?;
    let driver = driver::of(common)?;
    check_pid(common)?;
    let mut trace = Trace::read(&options.trace)?;
    if options.redirect {
        trace.redirect(&common.topic);
    }
    // With routes of their own, the first topic stands for all in the report.
    let first = trace.kinds.first().map(|kind| kind.topic.clone());
    let topic = first.unwrap_or_else(|| common.topic.clone());
    let targets = find(&CommonOptions { topic, ..common.clone() }, Access::Write)?;
    let send = SendOptions::of_replay(options.connections, options.window);
    let asked = trace.events.len() as f64 / (trace.length_us().max(1) as f64 / 1e6 / options.speed);
    let trace = Arc::new(trace);
    let prepared = driver.senders(&SendLoad {
        common,
        send: &send,
        targets: &targets,
        group: &options.group,
        kinds: trace.kinds.clone(),
        sizes: Sizes::fixed(trace.size_max()),
        topics: 1,
        burst: false,
        trace: Some((Arc::clone(&trace), options.speed)),
        run_id: new_run_id(),
        stamped: false,
        keep: false,
    })?;
    // The trace ends the run, unless a time or a count does so before.
    let warmup = common.warmup.or(Some(0.0));
    let (clock, span) = start(&CommonOptions { warmup, ..common.clone() }, false);
    let live = Arc::new(Live::default());
    let jobs = prepared(&Start { clock, span, live: Arc::clone(&live) })?;
    let goal = common.count.or(Some(trace.events.len() as u64));
    let shown = CommonOptions { count: goal, ..common.clone() };
    let lives = Lives { send: Some(live), receive: None };
    let watched = watch(jobs, clock, span, &shown, lives, &targets, &|_| {})?;
    let facts = facts("replay", options, common, &targets, clock, span);
    let rate_asked = (trace.length_us() >= 1_000_000).then_some(asked);
    Ok(Report::new(Facts { sends: true, rate_asked, open: true, ..facts }, watched))
}

/// Pulls.
///
/// # Errors
/// As [`produce`].
pub fn consume(options: &ConsumeOptions) -> Result<Report, LoadError> {
    let common = &options.common;
    common.check()?;
    options.check()?;
    let driver = driver::of(common)?;
    check_pid(common)?;
    let journal = options.journal.as_deref().map(Journal::read).transpose()?;
    let check =
        journal.as_ref().map(|journal| Rule::new(journal.run_id, journal.size_max, journal.order));
    let targets = find(common, Access::Read)?;
    let prepared = driver.receivers(&ReceiveLoad {
        common,
        targets: &targets,
        groups: vec![GroupLoad { name: options.group.clone(), work_ns: 0 }],
        from: From::At(options.from),
        connections: options.connections,
        batch: options.batch,
        follow: options.follow,
        expression: &options.expression,
        purpose: Purpose::Drain { check, record: options.record.is_some() },
    })?;
    let (clock, span) = start(common, options.follow && !has_end(common));
    let live = Arc::new(Live::default());
    let jobs = prepared(&Start { clock, span, live: Arc::clone(&live) })?;
    let lives = Lives { send: None, receive: Some(live) };
    let watched = watch(jobs, clock, span, common, lives, &targets, &|_| {})?;
    if let Some(path) = &options.record {
        trace::write(path, &common.topic, &watched.receive.recorded)?;
    }
    let verdict = journal.map(|journal| {
        let rule = (journal.run_id, journal.order);
        judge(
            rule,
            &journal.acknowledged,
            &watched.receive.seen,
            std::slice::from_ref(&options.group),
        )
    });
    let facts = facts("consume", options, common, &targets, clock, span);
    Ok(Report::new(Facts { receives: true, verdict, ..facts }, watched))
}

/// Sends and receives.
///
/// # Errors
/// As [`produce`].
pub fn end_to_end(options: &EndToEndOptions) -> Result<Report, LoadError> {
    options.common.check()?;
    options.check()?;
    let Some(bound) = options.knee.knee_p99 else { return end_to_end_once(options) };
    let (common, send, precision) = (&options.common, &options.send, options.knee.knee_precision);
    knee::find(common, send, bound, precision, |common, send| {
        let report = end_to_end_once(&EndToEndOptions { common, send, ..options.clone() })?;
        Ok((report.receive.as_ref().map(|side| side.latency), report))
    })
}

fn end_to_end_once(options: &EndToEndOptions) -> Result<Report, LoadError> {
    let (common, send) = (&options.common, &options.send);
    let driver = driver::of(common)?;
    check_pid(common)?;
    let mut targets = find(common, Access::Write)?;
    for target in &targets {
        make_topic(common, &options.group, target)?;
    }
    if common.namesrv.is_some() {
        // A topic that was new may have got other queues than the template's.
        targets = find(common, Access::Write)?;
    }
    let run_id = new_run_id();
    let senders = driver.senders(&SendLoad {
        common,
        send,
        targets: &targets,
        group: &options.group,
        kinds: kinds(common, send),
        sizes: send.sizes(true),
        topics: 1,
        burst: false,
        trace: None,
        run_id,
        stamped: true,
        keep: options.verify,
    })?;
    let names: Vec<_> =
        (0..options.groups).map(|number| format!("{}-{number}", options.group)).collect();
    let slow_from = options.groups - options.slow_groups;
    let group = |(number, name): (usize, &String)| GroupLoad {
        name: name.clone(),
        work_ns: if number >= slow_from { options.slow_us * 1_000 } else { 0 },
    };
    let grace_ns = (options.grace * SECOND_NS as f64) as u64;
    let arrivals = Arc::new(Arrivals::new(options.groups, grace_ns));
    // Delayed messages come in the order of their levels' queues.
    let rule = Rule::new(run_id, send.size.max(), send.delay_level == 0);
    let check = options.verify.then(|| rule.clone());
    let receivers = driver.receivers(&ReceiveLoad {
        common,
        targets: &targets,
        groups: names.iter().enumerate().map(group).collect(),
        from: From::At(StartAt::Max),
        connections: None,
        batch: options.pull_batch,
        follow: true,
        expression: "*",
        purpose: Purpose::EndToEnd { run_id, arrivals: Arc::clone(&arrivals), check },
    })?;
    let (clock, span) = start(common, !has_end(common));
    let (send_live, receive_live) = (Arc::<Live>::default(), Arc::<Live>::default());
    let mut jobs = receivers(&Start { clock, span, live: Arc::clone(&receive_live) })?;
    jobs.extend(senders(&Start { clock, span, live: Arc::clone(&send_live) })?);
    let lives = Lives { send: Some(send_live), receive: Some(receive_live) };
    let sent = |tally: &Tally| {
        // Whether a message is there whose send got no success, nobody knows.
        let certain = tally.errors.is_empty() && tally.unanswered == 0;
        arrivals.expect(certain.then_some(tally.messages_all), clock.now());
    };
    let watched = watch(jobs, clock, span, common, lives, &targets, &sent)?;
    let verdict = options.verify.then(|| {
        judge((run_id, rule.order), &watched.send.acknowledged, &watched.receive.seen, &names)
    });
    let groups = names.into_iter().zip(arrivals.received()).collect();
    let facts = facts("e2e", options, common, &targets, clock, span);
    let (sends, receives) = (true, true);
    Ok(Report::new(
        Facts { sends, receives, rate_asked: send.rate, groups, verdict, ..facts },
        watched,
    ))
}

// ---- accounting for what was sent ----

/// The next queue offset of each queue, after the topic was made if it was not there.
fn ends(
    common: &CommonOptions,
    group: &str,
    targets: &[Target],
) -> Result<Vec<Vec<u64>>, LoadError> {
    let of = |target: &Target| {
        make_topic(common, group, target)?;
        (0..target.queues)
            .map(|queue| {
                let queue = i32::try_from(queue).unwrap_or(i32::MAX);
                queue_offset(target.address, &common.topic, queue, true)
            })
            .collect()
    };
    targets.iter().map(of).collect()
}

/// Reads what was sent since `before` and judges it.
fn read_back(
    common: &CommonOptions,
    targets: &[Target],
    before: Vec<Vec<u64>>,
    rule: &Rule,
    watched: &mut Watched,
) -> Result<Verdict, LoadError> {
    let group = "loadtest-verify".to_owned();
    let arrivals = Arc::new(Arrivals::new(1, READ_BACK_GRACE_NS));
    let sent = &watched.send;
    let certain = sent.errors.is_empty() && sent.unanswered == 0;
    let (run_id, check) = (rule.run_id, Some(rule.clone()));
    let prepared = driver::of(common)?.receivers(&ReceiveLoad {
        common,
        targets,
        groups: vec![GroupLoad { name: group.clone(), work_ns: 0 }],
        from: From::Offsets(before),
        connections: None,
        batch: READ_BACK_BATCH,
        follow: true,
        expression: "*",
        purpose: Purpose::EndToEnd { run_id, arrivals: Arc::clone(&arrivals), check },
    })?;
    let clock = Clock::start();
    let at = clock.now();
    let span = Span { start: at, warm: at, end: u64::MAX };
    arrivals.expect(certain.then_some(sent.messages_all), at);
    let live = Arc::new(Live::default());
    let jobs = prepared(&Start { clock, span, live: Arc::clone(&live) })?;
    let lives = Lives { send: None, receive: Some(live) };
    let (progress, goal) = (!common.quiet, Some(sent.messages_all));
    let (hdr, lag) = (None, None);
    let watch = Watch { clock, span, pids: &[], progress, goal, lives, sent: &|_| {}, hdr, lag };
    let read = work(jobs, &watch)?.receive;
    watched.send.bad_records += read.bad_records;
    watched.send.bad_record_texts.extend(read.bad_record_texts);
    Ok(judge((run_id, rule.order), &watched.send.acknowledged, &read.seen, &[group]))
}

// ---- before the run ----

fn check_pid(common: &CommonOptions) -> Result<(), LoadError> {
    processes(&common.pid).map(drop)
}

fn has_end(common: &CommonOptions) -> bool {
    common.seconds.is_some() || common.count.is_some()
}

fn kinds(common: &CommonOptions, send: &SendOptions) -> Vec<Kind> {
    let kind = |tag| Kind { topic: common.topic.clone(), tag };
    send.tags().into_iter().map(kind).collect()
}

/// A number that no other run has.
fn new_run_id() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The clock and times of a run that begins in a moment. `needs_end`: it gets one though none was asked for.
fn start(common: &CommonOptions, needs_end: bool) -> (Clock, Span) {
    let seconds = common.seconds.or(needs_end.then_some(SECONDS_DEFAULT));
    let warmup = match (common.warmup, seconds) {
        (Some(warmup), _) => warmup,
        (None, Some(_)) => WARMUP_SECONDS_DEFAULT,
        (None, None) => 0.0,
    };
    let ns = |seconds: f64| (seconds * SECOND_NS as f64) as u64;
    let clock = Clock::start();
    let start = clock.now() + HEAD_START_NS;
    let warm = start + ns(warmup);
    (clock, Span { start, warm, end: seconds.map_or(u64::MAX, |seconds| warm + ns(seconds)) })
}

/// Sends one message to a broker: the topic is made if it can be, or the run ends here with the reason.
fn make_topic(common: &CommonOptions, group: &str, target: &Target) -> Result<(), LoadError> {
    const WHAT: &str = "a first message";
    let queues = i32::try_from(target.queues).unwrap_or(i32::MAX);
    let header = SendHeader {
        producer_group: group,
        topic: &common.topic,
        default_topic: "TBW102",
        default_topic_queue_nums: queues,
        properties: "WAIT\u{1}true",
        ..SendHeader::default()
    };
    let request = Command::request(request::SEND_MESSAGE_V2)
        .with_header(&header.ext_v2())
        .with_body(BytesMut::from(&b"first"[..]));
    ok(WHAT, target.address, call(target.address, WHAT, &request)?).map(drop)
}

// ---- the run and its report ----

fn watch(
    jobs: Vec<Job>,
    clock: Clock,
    span: Span,
    common: &CommonOptions,
    lives: Lives,
    targets: &[Target],
    sent: &dyn Fn(&Tally),
) -> Result<Watched, LoadError> {
    let hdr =
        common.hdr_log.as_deref().map(|path: &Path| HdrLog::create(path, &clock)).transpose()?;
    let lag = LagWatch::start(targets, &common.slave)?;
    let (progress, goal) = (!common.quiet, common.count);
    let watch = Watch { clock, span, pids: &common.pid, progress, goal, lives, sent, hdr, lag };
    let watched = work(jobs, &watch)?;
    watch.hdr.map_or(Ok(()), HdrLog::finish)?;
    Ok(watched)
}

fn facts(
    mode: &'static str,
    options: &impl serde::Serialize,
    common: &CommonOptions,
    targets: &[Target],
    clock: Clock,
    span: Span,
) -> Facts {
    Facts {
        mode,
        started_unix_ms: clock.unix_ms(span.start),
        options: serde_json::to_value(options).unwrap_or_default(),
        targets: targets.iter().map(|to| (to.address.to_string(), to.queues)).collect(),
        warm: span.warm,
        end: span.end,
        rate_asked: None,
        open: false,
        pids: common.pid.clone(),
        sends: false,
        receives: false,
        groups: Vec::new(),
        verdict: None,
    }
}
