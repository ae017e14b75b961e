//! The raw driver's preparations: connections and queues dealt out to threads.

use std::net::TcpStream;
use std::sync::Arc;

use crate::call::connect;
use crate::cli::{SendOptions, StartAt};
use crate::crew::{Job, Role};
use crate::driver::{
    Driver, From, GroupLoad, Prepared, Purpose, ReceiveLoad, SendLoad, Start, share,
};
use crate::error::LoadError;
use crate::raw::consume::{Consumer, ConsumerPlan, QueuePlan};
use crate::raw::produce::{Pace, Producer, ProducerLink, ProducerPlan};
use crate::raw::template::{Place, PullSpec, PullTemplate, SendSpec, SendTemplate};
use crate::raw::window::slots_bytes;
use crate::schedule::{Agenda, Replay, Schedule};
use crate::target::{Target, queue_offset};
use crate::trace::Trace;

/// How long a consumer lets the broker hold a pull: what stock push consumers ask for.
const HOLD_MS: u64 = 15_000;
/// Most bytes of all windows together.
const WINDOWS_BYTES_MAX: usize = 8 << 30;

/// See [`crate::raw`].
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Driver for Raw {
    fn senders(&self, load: &SendLoad<'_>) -> Result<Prepared, LoadError> {
        let crew = SendCrew::new(load)?;
        Ok(Box::new(move |start| crew.jobs(start)))
    }

    fn receivers(&self, load: &ReceiveLoad<'_>) -> Result<Prepared, LoadError> {
        let crew = ReceiveCrew::new(load)?;
        Ok(Box::new(move |start| crew.jobs(start)))
    }
}

struct SendCrew {
    /// Connections by thread.
    links: Vec<Vec<ProducerLink>>,
    send: SendOptions,
    requests_max: u64,
    burst: bool,
    keep: bool,
    trace: Option<(Arc<Trace>, f64)>,
}

impl SendCrew {
    fn new(load: &SendLoad<'_>) -> Result<Self, LoadError> {
        let (common, send, targets) = (load.common, load.send, load.targets);
        let threads = common.threads.min(send.connections);
        let mut links: Vec<_> = (0..threads).map(|_| Vec::new()).collect();
        // All brokers of a run get the same requests; how many queues a new topic gets is the largest number of any.
        let template = SendTemplate::new(&SendSpec {
            kinds: load.kinds.clone(),
            topics: load.topics,
            group: load.group.to_owned(),
            keys: send.keys,
            delay_level: send.delay_level,
            default_queues: targets.iter().map(|target| target.queues).max().unwrap_or(1),
            sizes: load.sizes.clone(),
            batch: send.batch,
            serialize: common.serialize.into(),
            run_id: load.run_id,
            stamped: load.stamped,
        })?;
        if slots_bytes(&template, send.window).saturating_mul(send.connections) > WINDOWS_BYTES_MAX
        {
            return Err(LoadError::Options(
                "the requests of all windows together would need more than 8 GiB: give a smaller --window, --connections, --size or --batch".into(),
            ));
        }
        for connection in 0..send.connections {
            let Target { address, queues } = targets[connection % targets.len()];
            // Each connection begins at another place, so that few requests spread too.
            let first = connection / targets.len();
            let (topics, all) = (load.topics, queues * load.topics);
            let place = |at: usize| Place {
                topic: (at % topics) as u32,
                queue: (at / topics % queues) as u32,
            };
            let places = (0..all).map(|at| place((at + first) % all)).collect();
            let (stream, template) = (connect(address)?, template.for_connection(connection));
            links[connection % threads].push(ProducerLink { stream, places, template });
        }
        let count = common.count.map_or(u64::MAX, |count| count.div_ceil(send.batch as u64));
        Ok(SendCrew {
            links,
            send: send.clone(),
            requests_max: count,
            burst: load.burst,
            keep: load.keep,
            trace: load.trace.clone(),
        })
    }

    fn jobs(self, start: &Start) -> Result<Vec<Job>, LoadError> {
        let (threads, span) = (self.links.len(), start.span);
        let mut jobs = Vec::new();
        for (part, links) in self.links.into_iter().enumerate() {
            let pace = match (&self.trace, self.send.rate) {
                (Some((trace, speed)), _) => {
                    let trace = Arc::clone(trace);
                    Pace::Open(Agenda::Trace(Replay::new(trace, span.start, *speed, part, threads)))
                }
                (None, Some(rate)) => {
                    let per_second = rate / self.send.batch as f64 / threads as f64;
                    Pace::Open(Agenda::Even(Schedule::new(span.start, per_second, part, threads)))
                }
                (None, None) if self.burst => Pace::Burst,
                (None, None) => Pace::Closed,
            };
            let churn =
                |per_second| Schedule::new(span.start, per_second / threads as f64, part, threads);
            let plan = ProducerPlan {
                clock: start.clock,
                span,
                pace,
                window: self.send.window,
                churn: self.send.churn.map(churn),
                keep: self.keep,
                requests_max: share(self.requests_max, part, threads),
                live: Arc::clone(&start.live),
            };
            let producer = Producer::new(plan, links)?;
            jobs.push(Job { role: Role::Producer, work: Box::new(move || producer.run()) });
        }
        Ok(jobs)
    }
}

struct ReceiveCrew {
    /// Connections and queues by thread.
    parts: Vec<(Vec<TcpStream>, Vec<QueuePlan>)>,
    connections: usize,
    follow: bool,
    whole: bool,
    messages_max: u64,
    purpose: Purpose,
}

impl ReceiveCrew {
    fn new(load: &ReceiveLoad<'_>) -> Result<Self, LoadError> {
        let common = load.common;
        let end_to_end = matches!(load.purpose, Purpose::EndToEnd { .. });
        let mut crew = ReceiveCrew {
            parts: (0..common.threads).map(|_| Default::default()).collect(),
            connections: 0,
            follow: load.follow,
            whole: load.expression == "*",
            messages_max: if end_to_end { u64::MAX } else { common.count.unwrap_or(u64::MAX) },
            purpose: load.purpose.clone(),
        };
        let queues = load.targets.iter().map(|target| target.queues).sum::<usize>();
        let usual = if end_to_end { load.targets.len() } else { queues };
        let per_target = load.connections.unwrap_or(usual).div_ceil(load.targets.len().max(1));
        for (number, target) in load.targets.iter().enumerate() {
            for (group_number, group) in load.groups.iter().enumerate() {
                let connections = per_target.clamp(1, target.queues);
                crew.read(load, (number, target), (group_number, group), connections)?;
            }
        }
        Ok(crew)
    }

    /// Has a group read a broker's queues over this many connections.
    fn read(
        &mut self,
        load: &ReceiveLoad<'_>,
        (target_number, target): (usize, &Target),
        (group, group_load): (usize, &GroupLoad),
        connections: usize,
    ) -> Result<(), LoadError> {
        let topic = &load.common.topic;
        let threads = self.parts.len();
        for connection in 0..connections {
            let (streams, queues) = &mut self.parts[self.connections % threads];
            self.connections += 1;
            let link = streams.len();
            streams.push(connect(target.address)?);
            for number in (connection..target.queues).step_by(connections) {
                let queue = i32::try_from(number).unwrap_or(i32::MAX);
                let offset = match &load.from {
                    From::At(StartAt::Offset(offset)) => *offset,
                    From::At(from) => {
                        queue_offset(target.address, topic, queue, *from == StartAt::Max)?
                    }
                    From::Offsets(offsets) => offsets
                        .get(target_number)
                        .and_then(|of| of.get(number))
                        .copied()
                        .unwrap_or(0),
                };
                let template = PullTemplate::new(&PullSpec {
                    topic,
                    group: &group_load.name,
                    queue,
                    batch: load.batch,
                    hold_ms: load.follow.then_some(HOLD_MS),
                    expression: load.expression,
                    serialize: load.common.serialize.into(),
                })?;
                let work_ns = group_load.work_ns;
                queues.push(QueuePlan { link, group, queue, offset, work_ns, template });
            }
        }
        Ok(())
    }

    fn jobs(self, start: &Start) -> Result<Vec<Job>, LoadError> {
        let parts: Vec<_> =
            self.parts.into_iter().filter(|(streams, _)| !streams.is_empty()).collect();
        let threads = parts.len();
        let mut jobs = Vec::new();
        for (part, (streams, queues)) in parts.into_iter().enumerate() {
            let plan = ConsumerPlan {
                clock: start.clock,
                span: start.span,
                follow: self.follow,
                whole: self.whole,
                messages_max: share(self.messages_max, part, threads),
                purpose: self.purpose.clone(),
                live: Arc::clone(&start.live),
            };
            let consumer = Consumer::new(plan, streams, queues)?;
            jobs.push(Job { role: Role::Consumer, work: Box::new(move || consumer.run()) });
        }
        Ok(jobs)
    }
}
