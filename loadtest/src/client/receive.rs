//! Receiving through the client crate: a pull consumer for each group, with the queues that it is given, prefetching.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringmq_client::{MessageQueue, PullConsumer, ReceivedMessage};
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::cli::StartAt;
use crate::client::{ThroughClient, failed, runtime};
use crate::clock::Clock;
use crate::crew::{Job, Role};
use crate::driver::{From, GroupLoad, Purpose, ReceiveLoad, Start, share};
use crate::error::LoadError;
use crate::ledger::Checker;
use crate::stamp;
use crate::tally::{Recorder, Tally};
use crate::target::{Target, resolve};
use crate::trace::Recorded;

/// How long a poll waits: the end of the run is noticed this late at most.
const POLL: Duration = Duration::from_millis(50);
/// How long brokers may hold pulls: what stock push consumers ask for.
const HOLD: Duration = Duration::from_secs(15);
/// How long a consumer may take to get its queues.
const ASSIGNED: Duration = Duration::from_secs(5);
/// How long a consumer may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Consumers by thread, ready to receive.
pub(super) struct ReceiveCrew {
    threads: Vec<(Runtime, Vec<Reader>)>,
    purpose: Purpose,
    follow: bool,
    whole: bool,
    messages_max: u64,
}

/// One consumer.
struct Reader {
    consumer: PullConsumer,
    group: usize,
    work_ns: u64,
    /// By queue: a number among all of the thread's, the next queue offset, and where it ended at the start.
    queues: BTreeMap<MessageQueue, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    number: usize,
    next: i64,
    end: i64,
}

impl ReceiveCrew {
    pub(super) fn new(driver: &ThroughClient, load: &ReceiveLoad<'_>) -> Result<Self, LoadError> {
        let end_to_end = matches!(load.purpose, Purpose::EndToEnd { .. });
        let mut threads = Vec::new();
        for part in 0..load.common.threads {
            let runtime = runtime()?;
            let readers = runtime.block_on(readers(driver, load, part))?;
            if !readers.is_empty() {
                threads.push((runtime, readers));
            }
        }
        Ok(ReceiveCrew {
            threads,
            purpose: load.purpose.clone(),
            follow: load.follow,
            whole: load.expression == "*",
            messages_max: if end_to_end { u64::MAX } else { load.common.count.unwrap_or(u64::MAX) },
        })
    }

    pub(super) fn jobs(self, start: &Start) -> Vec<Job> {
        let of = self.threads.len();
        let job = |(part, (runtime, readers)): (usize, (Runtime, Vec<Reader>))| {
            let (purpose, follow, whole) = (self.purpose.clone(), self.follow, self.whole);
            let messages_max = share(self.messages_max, part, of);
            let start = start.clone();
            let work = move || {
                let checker = purpose.check().cloned().map(Checker::new);
                let notes = Notes {
                    recorder: Recorder::new(start.span, start.live),
                    checker,
                    recorded: Vec::new(),
                    tags: HashSet::new(),
                };
                let worker = Worker {
                    clock: start.clock,
                    notes: RefCell::new(notes),
                    purpose,
                    follow,
                    whole,
                    messages_max,
                };
                Ok(LocalSet::new().block_on(&runtime, Rc::new(worker).run(readers)))
            };
            Job { role: Role::Consumer, work: Box::new(work) }
        };
        self.threads.into_iter().enumerate().map(job).collect()
    }
}

/// The consumers of one thread: a group each end to end, a part of the queues when there is one group.
async fn readers(
    driver: &ThroughClient,
    load: &ReceiveLoad<'_>,
    part: usize,
) -> Result<Vec<Reader>, LoadError> {
    let threads = load.common.threads;
    let (mut readers, mut numbers) = (Vec::new(), 0);
    for (group, group_load) in load.groups.iter().enumerate() {
        let whole_group = load.groups.len() > 1;
        if whole_group && group % threads != part {
            continue;
        }
        let client = driver.client(load.common)?;
        let route =
            client.renew_route(&load.common.topic).await.map_err(failed("cannot receive"))?;
        let mut queues = Vec::new();
        for queue in &route.readable {
            let master = client.broker_group(&queue.broker_name).get(&0).cloned();
            let Some(address) = master.and_then(|master| resolve(&master).ok()) else { continue };
            if let Some(target) = target_of(load.targets, address, queue) {
                queues.push((queue.clone(), target));
            }
        }
        queues.sort();
        let mut own: Vec<_> = queues.into_iter().enumerate().collect();
        own.retain(|(at, _)| whole_group || at % threads == part);
        let own: Vec<_> = own.into_iter().map(|(_, queue)| queue).collect();
        if !own.is_empty() {
            let reader = reader(load, &client, (group, group_load), &own, &mut numbers).await;
            readers.push(reader.map_err(failed("cannot start a consumer"))?);
        }
    }
    Ok(readers)
}

/// Which of the targets has this queue.
fn target_of(targets: &[Target], address: SocketAddr, queue: &MessageQueue) -> Option<usize> {
    let id = usize::try_from(queue.queue_id).ok()?;
    targets.iter().position(|target| target.address == address && id < target.queues)
}

async fn reader(
    load: &ReceiveLoad<'_>,
    client: &ringmq_client::Client,
    (group, group_load): (usize, &GroupLoad),
    queues: &[(MessageQueue, usize)],
    numbers: &mut usize,
) -> ringmq_client::Result<Reader> {
    let batch = u16::try_from(load.batch).unwrap_or(u16::MAX).clamp(1, 1024);
    let builder = client.consumer(&group_load.name).subscribe(&load.common.topic, load.expression);
    let builder = builder.pull_batch(batch).manual_commit().long_poll(HOLD);
    let consumer = builder.start_assigned(queues.iter().map(|(queue, _)| queue.clone())).await?;
    // Queues are taken by a task of the consumer's, which may need a moment.
    let mut assigned = consumer.assignment();
    let all = assigned.wait_for(|have| queues.iter().all(|(queue, _)| have.contains(queue)));
    // If it takes too long, the seek says which queue is missing.
    let _ = timeout(ASSIGNED, all).await;
    let mut places = BTreeMap::new();
    for (queue, target) in queues {
        match &load.from {
            From::At(StartAt::Min) => consumer.seek_to_begin(queue).await?,
            From::At(StartAt::Max) => consumer.seek_to_end(queue).await?,
            From::At(StartAt::Offset(offset)) => {
                consumer.seek(queue, i64::try_from(*offset).unwrap_or(i64::MAX)).await?;
            }
            From::Offsets(offsets) => {
                let id = usize::try_from(queue.queue_id).unwrap_or(usize::MAX);
                let offset = offsets.get(*target).and_then(|of| of.get(id)).copied().unwrap_or(0);
                consumer.seek(queue, i64::try_from(offset).unwrap_or(i64::MAX)).await?;
            }
        }
        let address =
            load.targets.get(*target).map(|target| target.address.to_string()).unwrap_or_default();
        let end = client.broker(&address).max_offset(&queue.topic, queue.queue_id).await?;
        let next = consumer.position(queue)?;
        places.insert(queue.clone(), Place { number: *numbers, next, end });
        *numbers += 1;
    }
    Ok(Reader { consumer, group, work_ns: group_load.work_ns, queues: places })
}

/// One thread's work.
struct Worker {
    clock: Clock,
    notes: RefCell<Notes>,
    purpose: Purpose,
    follow: bool,
    whole: bool,
    messages_max: u64,
}

/// What a thread saw.
struct Notes {
    recorder: Recorder,
    checker: Option<Checker>,
    recorded: Vec<Recorded>,
    /// Tags that were recorded.
    tags: HashSet<Arc<str>>,
}

impl Worker {
    async fn run(self: Rc<Self>, readers: Vec<Reader>) -> Tally {
        let start = self.notes.borrow().recorder.span.start;
        sleep(self.clock.until(start)).await;
        let publishing = spawn_local({
            let worker = Rc::clone(&self);
            async move {
                loop {
                    worker.notes.borrow_mut().recorder.publish(worker.clock.now());
                    sleep(POLL).await;
                }
            }
        });
        let mut reading = JoinSet::new();
        for reader in readers {
            reading.spawn_local(Rc::clone(&self).read(reader));
        }
        while reading.join_next().await.is_some() {}
        publishing.abort();
        let now = self.clock.now();
        let notes = &mut *self.notes.borrow_mut();
        if let Some(checker) = notes.checker.take() {
            notes.recorder.tally.seen = checker.groups;
        }
        notes.recorder.tally.recorded = std::mem::take(&mut notes.recorded);
        notes.recorder.take(now)
    }

    async fn read(self: Rc<Self>, mut reader: Reader) {
        loop {
            let began = self.clock.now();
            if self.finished(began) {
                break;
            }
            let messages = match reader.consumer.poll(POLL).await {
                Ok(messages) => messages,
                Err(error) => {
                    self.notes.borrow_mut().recorder.tally.failure(-1, || error.to_string());
                    break;
                }
            };
            if messages.is_empty() {
                if !self.follow && reader.is_at_end() {
                    break;
                }
                continue;
            }
            self.take(&mut reader, &messages, began);
            let work_ns = reader.work_ns.saturating_mul(messages.len() as u64);
            if work_ns > 0 && self.is_sent_to() {
                sleep(Duration::from_nanos(work_ns)).await;
            }
        }
        // The run is over; what a broker is not told it finds out.
        let _ = timeout(DRAIN, reader.consumer.client().shutdown()).await;
    }

    fn finished(&self, now: u64) -> bool {
        let recorder = &self.notes.borrow().recorder;
        let over = match &self.purpose {
            Purpose::Drain { .. } => now >= recorder.span.end,
            Purpose::EndToEnd { arrivals, .. } => arrivals.done(now),
        };
        over || recorder.tally.messages_all >= self.messages_max || recorder.stopped()
    }

    fn is_sent_to(&self) -> bool {
        match &self.purpose {
            Purpose::Drain { .. } => true,
            Purpose::EndToEnd { arrivals, .. } => !arrivals.all_sent(),
        }
    }

    fn take(&self, reader: &mut Reader, messages: &[Arc<ReceivedMessage>], began: u64) {
        let (now, notes) = (self.clock.now(), &mut *self.notes.borrow_mut());
        let (mut bytes, mut new, mut ours) = (0, 0, Vec::new());
        for message in messages {
            let Some(number) = reader.follows(message, self.whole, &mut notes.recorder.tally)
            else {
                continue;
            };
            let place = || {
                format!(
                    "{} queue {}, queue offset {}",
                    message.queue.broker_name, message.queue.queue_id, message.queue_offset
                )
            };
            let seen = match (&mut notes.checker, &self.purpose) {
                (Some(checker), _) => checker.see(reader.group, number, place, &message.body),
                (None, Purpose::EndToEnd { run_id, .. }) => {
                    match stamp::read(&message.body, *run_id) {
                        stamp::Body::Ours(stamp) => Some((stamp, true)),
                        _ => None,
                    }
                }
                (None, Purpose::Drain { .. }) => None,
            };
            if let (Some((stamp, is_new)), Purpose::EndToEnd { .. }) = (seen, &self.purpose) {
                ours.push(stamp.intended);
                new += u64::from(is_new);
                bytes += message.body.len() as u64;
            }
        }
        match &self.purpose {
            Purpose::Drain { record, .. } => {
                if *record {
                    notes.record(messages);
                }
                let bytes = messages.iter().map(|message| message.body.len() as u64).sum();
                notes.recorder.messages(now, messages.len() as u64, bytes);
                notes.recorder.latency(now, began);
            }
            Purpose::EndToEnd { arrivals, .. } => {
                ours.iter().for_each(|intended| notes.recorder.age(now, *intended, reader.group));
                notes.recorder.messages(now, ours.len() as u64, bytes);
                arrivals.add(reader.group, new, now);
            }
        }
    }
}

impl Notes {
    fn record(&mut self, messages: &[Arc<ReceivedMessage>]) {
        for message in messages {
            let tag = message.tag().unwrap_or_default();
            let tag = self.tags.get(tag).cloned().unwrap_or_else(|| {
                let tag: Arc<str> = tag.into();
                self.tags.insert(Arc::clone(&tag));
                tag
            });
            let born_ms = u64::try_from(message.born_timestamp).unwrap_or(0);
            self.recorded.push(Recorded { born_ms, size: message.body.len() as u32, tag });
        }
    }
}

impl Reader {
    /// Notes that a message came; returns its queue's number, if it was asked for. Within a queue, offsets must rise, without gaps if everything was asked for.
    fn follows(
        &mut self,
        message: &ReceivedMessage,
        whole: bool,
        tally: &mut Tally,
    ) -> Option<usize> {
        let Some(place) = self.queues.get_mut(&message.queue) else {
            tally.bad_record(|| {
                format!("a message of {:?}, which was not asked for", message.queue)
            });
            return None;
        };
        let (got, expected) = (message.queue_offset, place.next);
        if got < expected || (whole && got > expected) {
            tally.bad_record(|| {
                format!("{:?}: queue offset {got} where {expected} was to come", message.queue)
            });
        }
        place.next = got + 1;
        Some(place.number)
    }

    /// Whether all queues have been read as far as they went at the start.
    fn is_at_end(&self) -> bool {
        let at_end = |(queue, place): (&MessageQueue, &Place)| {
            place.next >= place.end
                || self.consumer.position(queue).is_ok_and(|next| next >= place.end)
        };
        self.queues.iter().all(at_end)
    }
}
