//! From options to a report: finds the brokers, connects, plans the workers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpStream;
use std::sync::Arc;

use bytes::BytesMut;
use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::SendHeader;

use crate::arrivals::Arrivals;
use crate::call::{call, connect};
use crate::cli::{
    CommonOptions, ConsumeOptions, EndToEndOptions, ProduceOptions, SendOptions, StartAt,
};
use crate::clock::{Clock, SECOND_NS, Span};
use crate::consume::{Consumer, ConsumerPlan, Purpose, QueuePlan};
use crate::crew::{Job, Lives, Role, Watch, Watched, work};
use crate::error::LoadError;
use crate::produce::{Pace, Producer, ProducerLink, ProducerPlan};
use crate::report::{Facts, Report};
use crate::schedule::Schedule;
use crate::tally::{Live, Tally};
use crate::target::{Access, Target, find, ok, queue_offset};
use crate::template::{Place, PullSpec, PullTemplate, SendSpec, SendTemplate};
use crate::usage::process;

/// Measured time if neither a time nor a count is given.
const SECONDS_DEFAULT: f64 = 10.0;
const WARMUP_SECONDS_DEFAULT: f64 = 2.0;
/// Between the last preparation and the first request.
const HEAD_START_NS: u64 = SECOND_NS / 50;
/// How long a consumer lets the broker hold a pull: what stock push consumers ask for.
const HOLD_MS: u64 = 15_000;

/// Sends.
///
/// # Errors
/// What keeps the run from starting; trouble during the run is in the report.
pub fn produce(options: &ProduceOptions) -> Result<Report, LoadError> {
    let (common, send) = (&options.common, &options.send);
    common.check()?;
    options.check()?;
    check_pid(common)?;
    let targets = find(common, Access::Write)?;
    let run_id = new_run_id();
    let crew = send_crew(common, send, &options.group, run_id, options.topics, false, &targets)?;
    let (clock, span) = start(common, !has_end(common));
    let live = Arc::new(Live::default());
    let jobs = crew.jobs(clock, span, options.burst, common, send, &live)?;
    let lives = Lives { send: Some(live), receive: None };
    let watched = watch(jobs, clock, span, common, lives, &|_| {})?;
    let facts = facts("produce", options, common, &targets, clock, span);
    Ok(Report::new(Facts { sends: true, rate_asked: send.rate, ..facts }, watched))
}

/// Pulls.
///
/// # Errors
/// As [`produce`].
pub fn consume(options: &ConsumeOptions) -> Result<Report, LoadError> {
    let common = &options.common;
    common.check()?;
    options.check()?;
    check_pid(common)?;
    let targets = find(common, Access::Read)?;
    let queues = targets.iter().map(|target| target.queues).sum::<usize>();
    let per_target = options.connections.unwrap_or(queues).div_ceil(targets.len());
    let reads = |target: &Target| Reading {
        group: options.group.clone(),
        group_number: 0,
        from: options.from,
        connections: per_target.clamp(1, target.queues),
        batch: options.batch,
        hold_ms: options.follow.then_some(HOLD_MS),
        expression: &options.expression,
    };
    let mut crew = ReceiveCrew::new(common.threads);
    for target in &targets {
        crew.read(common, target, &reads(target))?;
    }
    let (clock, span) = start(common, options.follow && !has_end(common));
    let live = Arc::new(Live::default());
    let plan = ConsumerPlan {
        clock,
        span,
        follow: options.follow,
        whole: options.expression == "*",
        messages_max: common.count.unwrap_or(u64::MAX),
        purpose: Purpose::Drain,
        live: Arc::clone(&live),
    };
    let jobs = crew.jobs(&plan)?;
    let lives = Lives { send: None, receive: Some(live) };
    let watched = watch(jobs, clock, span, common, lives, &|_| {})?;
    let facts = facts("consume", options, common, &targets, clock, span);
    Ok(Report::new(Facts { receives: true, ..facts }, watched))
}

/// Sends and receives.
///
/// # Errors
/// As [`produce`].
pub fn end_to_end(options: &EndToEndOptions) -> Result<Report, LoadError> {
    let (common, send) = (&options.common, &options.send);
    common.check()?;
    options.check()?;
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
    let senders = send_crew(common, send, &options.group, run_id, 1, true, &targets)?;
    let names: Vec<_> =
        (0..options.groups).map(|number| format!("{}-{number}", options.group)).collect();
    let mut receivers = ReceiveCrew::new(common.threads);
    for target in &targets {
        for (group_number, name) in names.iter().enumerate() {
            let reading = Reading {
                group: name.clone(),
                group_number,
                from: StartAt::Max,
                connections: 1,
                batch: options.pull_batch,
                hold_ms: Some(HOLD_MS),
                expression: "*",
            };
            receivers.read(common, target, &reading)?;
        }
    }
    let (clock, span) = start(common, !has_end(common));
    let lives = Lives { send: Some(Arc::default()), receive: Some(Arc::default()) };
    let (Some(send_live), Some(receive_live)) = (&lives.send, &lives.receive) else {
        return Err(LoadError::Worker);
    };
    let arrivals = Arc::new(Arrivals::new(options.groups));
    let plan = ConsumerPlan {
        clock,
        span,
        follow: true,
        whole: true,
        messages_max: u64::MAX,
        purpose: Purpose::EndToEnd { run_id, arrivals: Arc::clone(&arrivals) },
        live: Arc::clone(receive_live),
    };
    let mut jobs = receivers.jobs(&plan)?;
    jobs.extend(senders.jobs(clock, span, false, common, send, send_live)?);
    let grace_ns = (options.grace * SECOND_NS as f64) as u64;
    let sent = |tally: &Tally| arrivals.expect(tally.messages_all, clock.now() + grace_ns);
    let watched = watch(jobs, clock, span, common, lives.clone(), &sent)?;
    let groups = names.into_iter().zip(arrivals.received()).collect();
    let facts = facts("e2e", options, common, &targets, clock, span);
    let (sends, receives) = (true, true);
    Ok(Report::new(Facts { sends, receives, rate_asked: send.rate, groups, ..facts }, watched))
}

// ---- before the run ----

fn check_pid(common: &CommonOptions) -> Result<(), LoadError> {
    common.pid.map(process).transpose().map(drop)
}

fn has_end(common: &CommonOptions) -> bool {
    common.seconds.is_some() || common.count.is_some()
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

// ---- workers ----

struct SendCrew {
    /// Connections by thread.
    links: Vec<Vec<ProducerLink>>,
}

fn send_crew(
    common: &CommonOptions,
    send: &SendOptions,
    group: &str,
    run_id: u64,
    topics: usize,
    stamped: bool,
    targets: &[Target],
) -> Result<SendCrew, LoadError> {
    let threads = common.threads.min(send.connections);
    let mut links: Vec<_> = (0..threads).map(|_| Vec::new()).collect();
    for connection in 0..send.connections {
        let Target { address, queues } = targets[connection % targets.len()];
        let spec = SendSpec {
            topic: common.topic.clone(),
            topics,
            group: group.to_owned(),
            tag: send.tag.clone(),
            default_queues: queues,
            body_bytes: send.size,
            batch: send.batch,
            serialize: common.serialize.into(),
            run_id,
            stamped,
        };
        let mut template = SendTemplate::new(&spec)?;
        template.set_connection(connection);
        // Each connection begins at another place, so that few requests spread too.
        let first = connection / targets.len();
        let all = queues * topics;
        let place =
            |at: usize| Place { topic: (at % topics) as u32, queue: (at / topics % queues) as u32 };
        let places = (0..all).map(|at| place((at + first) % all)).collect();
        let stream = connect(address)?;
        links[connection % threads].push(ProducerLink { stream, places, template });
    }
    Ok(SendCrew { links })
}

impl SendCrew {
    fn jobs(
        self,
        clock: Clock,
        span: Span,
        burst: bool,
        common: &CommonOptions,
        send: &SendOptions,
        live: &Arc<Live>,
    ) -> Result<Vec<Job>, LoadError> {
        let threads = self.links.len();
        let requests = common.count.map_or(u64::MAX, |count| count.div_ceil(send.batch as u64));
        let job = |(part, links): (usize, Vec<ProducerLink>)| {
            let pace = match send.rate {
                Some(rate) => {
                    let per_second = rate / send.batch as f64 / threads as f64;
                    Pace::Open(Schedule::new(span.start, per_second, part, threads))
                }
                None if burst => Pace::Burst,
                None => Pace::Closed,
            };
            let plan = ProducerPlan {
                clock,
                span,
                pace,
                window: send.window,
                body_bytes: send.size,
                requests_max: share(requests, part, threads),
                live: Arc::clone(live),
            };
            let producer = Producer::new(plan, links)?;
            Ok(Job { role: Role::Producer, work: Box::new(move || producer.run()) })
        };
        self.links.into_iter().enumerate().map(job).collect()
    }
}

/// The part of `total` that worker `part` of `of` gets.
fn share(total: u64, part: usize, of: usize) -> u64 {
    if total == u64::MAX {
        return total;
    }
    total / of as u64 + u64::from((part as u64) < total % of as u64)
}

/// How one broker's queues are read.
struct Reading<'a> {
    group: String,
    group_number: usize,
    from: StartAt,
    connections: usize,
    batch: usize,
    hold_ms: Option<u64>,
    expression: &'a str,
}

struct ReceiveCrew {
    /// Connections and queues by thread.
    parts: Vec<(Vec<TcpStream>, Vec<QueuePlan>)>,
    connections: usize,
}

impl ReceiveCrew {
    fn new(threads: usize) -> Self {
        ReceiveCrew { parts: (0..threads).map(|_| Default::default()).collect(), connections: 0 }
    }

    fn read(
        &mut self,
        common: &CommonOptions,
        target: &Target,
        reading: &Reading<'_>,
    ) -> Result<(), LoadError> {
        let threads = self.parts.len();
        for connection in 0..reading.connections {
            let (streams, queues) = &mut self.parts[self.connections % threads];
            self.connections += 1;
            let link = streams.len();
            streams.push(connect(target.address)?);
            for queue in (connection..target.queues).step_by(reading.connections) {
                let queue = i32::try_from(queue).unwrap_or(i32::MAX);
                let offset = match reading.from {
                    StartAt::Offset(offset) => offset,
                    from => {
                        let max = from == StartAt::Max;
                        queue_offset(target.address, &common.topic, queue, max)?
                    }
                };
                let template = PullTemplate::new(&PullSpec {
                    topic: &common.topic,
                    group: &reading.group,
                    queue,
                    batch: reading.batch,
                    hold_ms: reading.hold_ms,
                    expression: reading.expression,
                    serialize: common.serialize.into(),
                })?;
                let group = reading.group_number;
                queues.push(QueuePlan { link, group, queue, offset, template });
            }
        }
        Ok(())
    }

    fn jobs(self, plan: &ConsumerPlan) -> Result<Vec<Job>, LoadError> {
        let parts: Vec<_> =
            self.parts.into_iter().filter(|(streams, _)| !streams.is_empty()).collect();
        let threads = parts.len();
        let job = |(part, (streams, queues)): (usize, (Vec<TcpStream>, Vec<QueuePlan>))| {
            let messages_max = share(plan.messages_max, part, threads);
            let plan = ConsumerPlan {
                messages_max,
                purpose: plan.purpose.clone(),
                live: Arc::clone(&plan.live),
                ..*plan
            };
            let consumer = Consumer::new(plan, streams, queues)?;
            Ok(Job { role: Role::Consumer, work: Box::new(move || consumer.run()) })
        };
        parts.into_iter().enumerate().map(job).collect()
    }
}

// ---- the run and its report ----

fn watch(
    jobs: Vec<Job>,
    clock: Clock,
    span: Span,
    common: &CommonOptions,
    lives: Lives,
    sent: &dyn Fn(&Tally),
) -> Result<Watched, LoadError> {
    let watch = Watch { clock, span, pid: common.pid, progress: !common.quiet, lives, sent };
    work(jobs, &watch)
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
        pid: common.pid,
        sends: false,
        receives: false,
        groups: Vec::new(),
    }
}
