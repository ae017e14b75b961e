//! Sending through the client crate.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringmq_client::{Client, Compression, Error, Message, Producer, SendStatus};
use ringmq_net::code::response;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet, spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use crate::cli::CommonOptions;
use crate::client::timer::Timer;
use crate::client::{ThroughClient, failed, runtime};
use crate::clock::{Clock, SECOND_NS};
use crate::crew::{Job, Role};
use crate::driver::{SendLoad, Start, share};
use crate::error::LoadError;
use crate::floor::Floor;
use crate::kind::Kind;
use crate::ledger;
use crate::schedule::{Agenda, Replay, Schedule};
use crate::sizes::{Sizes, draw, draw_key};
use crate::stamp::{self, Stamp};
use crate::tally::{Recorder, Tally};
use crate::trace::{Event, Trace};

/// How long answers are waited for after the last request.
const DRAIN: Duration = Duration::from_secs(5);
/// Open loop: requests that were due before the end are sent this long after it, at most.
const OVERDUE_NS: u64 = SECOND_NS / 5;
/// Longest sleep: the end of the run and a stop are noticed this late at most.
const TURN_NS: u64 = SECOND_NS / 20;
const TURN: Duration = Duration::from_millis(50);
/// Requests that are begun without letting others have a turn.
const BEGIN_MAX: usize = 16;
/// Code of a failure that has none.
const NO_CODE: i32 = -1;

/// Clients by thread, ready to send.
pub(super) struct SendCrew {
    threads: Vec<(Runtime, Vec<Connection>)>,
    shared: Arc<Shared>,
    rate: Option<f64>,
    churn: Option<f64>,
    burst: bool,
    trace: Option<(Arc<Trace>, f64)>,
    requests_max: u64,
}

/// What is the same for all threads.
struct Shared {
    driver: ThroughClient,
    common: CommonOptions,
    group: String,
    kinds: Vec<Kind>,
    topics: usize,
    sizes: Sizes,
    /// A batch's messages have one of these.
    batch_sizes: Vec<usize>,
    batch: usize,
    window: usize,
    keys: u64,
    delay_level: u32,
    run_id: u64,
    stamped: bool,
    keep: bool,
    filler: Bytes,
}

struct Connection {
    number: usize,
    client: Client,
    producer: Producer,
    floor: Floor,
    epoch: u32,
    in_flight: usize,
    /// It takes no more requests, and is closed and made anew when all are answered.
    leaving: bool,
}

impl SendCrew {
    pub(super) fn new(driver: &ThroughClient, load: &SendLoad<'_>) -> Result<Self, LoadError> {
        let send = load.send;
        let shared = Arc::new(Shared {
            driver: driver.clone(),
            common: load.common.clone(),
            group: load.group.to_owned(),
            kinds: load.kinds.clone(),
            topics: load.topics,
            sizes: load.sizes.clone(),
            batch_sizes: load.sizes.sample(16),
            batch: send.batch,
            window: send.window,
            keys: send.keys,
            delay_level: send.delay_level,
            run_id: load.run_id,
            stamped: load.stamped,
            keep: load.keep,
            filler: stamp::filler(load.run_id, load.sizes.max()).into(),
        });
        let count = load.common.threads.min(send.connections);
        let mut threads = Vec::new();
        for part in 0..count {
            let runtime = runtime()?;
            let numbers = (part..send.connections).step_by(count);
            let connect = async {
                let mut connections = Vec::new();
                for number in numbers {
                    connections.push(shared.connect(number).await?);
                }
                Ok::<_, LoadError>(connections)
            };
            let connections = runtime.block_on(connect)?;
            threads.push((runtime, connections));
        }
        let requests_max =
            load.common.count.map_or(u64::MAX, |count| count.div_ceil(send.batch as u64));
        let (rate, churn, burst, trace) = (send.rate, send.churn, load.burst, load.trace.clone());
        Ok(SendCrew { threads, shared, rate, churn, burst, trace, requests_max })
    }

    pub(super) fn jobs(self, start: &Start) -> Vec<Job> {
        let (of, span) = (self.threads.len(), start.span);
        let job = |(part, (runtime, connections)): (usize, (Runtime, Vec<Connection>))| {
            let pace = match (&self.trace, self.rate) {
                (Some((trace, speed)), _) => Pace::Open(Agenda::Trace(Replay::new(
                    Arc::clone(trace),
                    span.start,
                    *speed,
                    part,
                    of,
                ))),
                (None, Some(rate)) => {
                    let per_second = rate / self.shared.batch as f64 / of as f64;
                    Pace::Open(Agenda::Even(Schedule::new(span.start, per_second, part, of)))
                }
                (None, None) if self.burst => Pace::Burst,
                (None, None) => Pace::Closed,
            };
            let churn =
                self.churn.map(|churn| Schedule::new(span.start, churn / of as f64, part, of));
            let requests_left = share(self.requests_max, part, of);
            let (shared, start) = (Arc::clone(&self.shared), start.clone());
            let work = move || {
                let worker = Rc::new(Worker {
                    clock: start.clock,
                    recorder: RefCell::new(Recorder::new(start.span, start.live)),
                    connections: connections.into_iter().map(RefCell::new).collect(),
                    requests_left: Cell::new(requests_left),
                    answered: Notify::new(),
                    shared,
                });
                let ended = LocalSet::new().block_on(&runtime, Rc::clone(&worker).run(pace, churn));
                ended.map_err(|source| LoadError::System {
                    what: "waiting for the next send",
                    source,
                })
            };
            Job { role: Role::Producer, work: Box::new(work) }
        };
        self.threads.into_iter().enumerate().map(job).collect()
    }
}

enum Pace {
    Closed,
    Burst,
    Open(Agenda),
}

impl Shared {
    async fn connect(&self, number: usize) -> Result<Connection, LoadError> {
        let (client, producer) = self.producer().await?;
        let floor = Floor::new(self.batch as u64);
        Ok(Connection { number, client, producer, floor, epoch: 0, in_flight: 0, leaving: false })
    }

    async fn producer(&self) -> Result<(Client, Producer), LoadError> {
        let client = self.driver.client(&self.common)?;
        let builder = client.producer(&self.group).compression(Compression::Zlib, usize::MAX);
        let bytes =
            self.sizes.max().saturating_mul(self.batch).saturating_mul(self.window).max(1 << 20);
        let builder = builder.body_bytes_max(16 << 20).in_flight_max(self.window, bytes);
        let producer = builder.start().await.map_err(failed("cannot start a producer"))?;
        if self.topics == 1 {
            for kind in &self.kinds {
                // A topic that can't be sent to ends the run here, with the reason.
                producer.queues(&kind.topic).await.map_err(failed("cannot send"))?;
            }
        }
        Ok((client, producer))
    }

    /// The messages of a request and the bytes of their bodies.
    fn messages(
        &self,
        connection: &mut Connection,
        started: u64,
        event: Option<Event>,
    ) -> (Vec<Message>, u64, u64) {
        let floor = connection.floor.first();
        let first = connection.floor.begin();
        let (mut kind, mut size) =
            draw(self.run_id, connection.number, first, self.kinds.len(), &self.sizes);
        if self.batch > 1 {
            size = self.batch_sizes[first as usize / self.batch % self.batch_sizes.len()];
        }
        if let Some(event) = event {
            (kind, size) = (event.kind as usize, event.size as usize);
        }
        let sender = connection.epoch << 16 | (connection.number as u32 & 0xFFFF);
        let message = |number| {
            let stamp = Stamp { sender, intended: started, number, floor };
            let message = Message::new(self.topic(kind, first), self.body(&stamp, size));
            self.marked(message, kind, connection.number, number)
        };
        let messages = (first..first + self.batch as u64).map(message).collect();
        (messages, first, (size * self.batch) as u64)
    }

    fn topic(&self, kind: usize, first: u64) -> String {
        let topic = self.kinds.get(kind).map_or("", |kind| kind.topic.as_str());
        match self.topics {
            0 | 1 => topic.to_owned(),
            topics => format!("{topic}-{:05}", first / self.batch as u64 % topics as u64),
        }
    }

    fn body(&self, stamp: &Stamp, size: usize) -> Bytes {
        let size = size.min(self.filler.len());
        if !self.stamped {
            return self.filler.slice(..size);
        }
        let mut body = BytesMut::from(&self.filler[..size]);
        stamp::put_head(&mut body, self.run_id);
        stamp::put(&mut body, self.run_id, stamp, size);
        body.freeze()
    }

    fn marked(&self, message: Message, kind: usize, connection: usize, number: u64) -> Message {
        let mut message = message.delay_level(self.delay_level);
        if let Some(kind) = self.kinds.get(kind)
            && !kind.tag.is_empty()
        {
            message = message.tag(&kind.tag);
        }
        if self.keys > 0 {
            message = message.key(format!("k{:010}", draw_key(connection, number, self.keys)));
        }
        if self.keep {
            // The unique id is the client's: findings are told by this key.
            message = message.key(ledger::key_of(self.run_id, connection & 0xFFFF, number));
        }
        message
    }
}

/// One thread's work.
struct Worker {
    clock: Clock,
    recorder: RefCell<Recorder>,
    connections: Vec<RefCell<Connection>>,
    requests_left: Cell<u64>,
    /// A request was answered, or a client came back.
    answered: Notify,
    shared: Arc<Shared>,
}

impl Worker {
    async fn run(self: Rc<Self>, pace: Pace, churn: Option<Schedule>) -> std::io::Result<Tally> {
        let (timer, span) = (Timer::new()?, self.recorder.borrow().span);
        timer.wait(span.start.saturating_sub(self.clock.now())).await?;
        let publishing = spawn_local(Rc::clone(&self).publish());
        let churning = churn.map(|churn| spawn_local(Rc::clone(&self).churn(churn)));
        let mut agenda = None;
        match pace {
            Pace::Open(open) => agenda = Some(self.open_loop(open, &timer).await?),
            pace => self.closed_loop(matches!(pace, Pace::Burst)).await,
        }
        if let Some(churning) = churning {
            // What is being made anew gets its time.
            let _ = timeout(DRAIN, churning).await;
        }
        let _ = timeout(DRAIN, self.all_answered()).await;
        publishing.abort();
        let now = self.clock.now();
        let open: usize =
            self.connections.iter().map(|connection| connection.borrow().in_flight).sum();
        let clients: Vec<Client> =
            self.connections.iter().map(|connection| connection.borrow().client.clone()).collect();
        for client in clients {
            // The run is over; what a broker is not told it finds out.
            let _ = timeout(DRAIN, client.shutdown()).await;
        }
        let mut recorder = self.recorder.borrow_mut();
        recorder.tally.unanswered += open as u64;
        if let Some(agenda) = agenda
            && self.requests_left.get() > 0
        {
            recorder.tally.unsent = agenda.overdue(span.end.min(now)).min(self.requests_left.get());
        }
        Ok(recorder.take(now))
    }

    async fn publish(self: Rc<Self>) {
        loop {
            self.recorder.borrow_mut().publish(self.clock.now());
            sleep(TURN).await;
        }
    }

    fn may_send(&self) -> bool {
        let recorder = self.recorder.borrow();
        self.clock.now() < recorder.span.end && self.requests_left.get() > 0 && !recorder.stopped()
    }

    async fn closed_loop(self: &Rc<Self>, burst: bool) {
        let mut loops = JoinSet::new();
        let per_connection = if burst { 1 } else { self.shared.window };
        for at in 0..self.connections.len() {
            for _ in 0..per_connection {
                let worker = Rc::clone(self);
                loops.spawn_local(async move {
                    while worker.may_send() {
                        if worker.connections[at].borrow().leaving {
                            let _ = timeout(TURN, worker.answered.notified()).await;
                        } else if burst {
                            worker.burst(at).await;
                        } else {
                            worker.send(at, worker.clock.now(), None).await;
                        }
                    }
                });
            }
        }
        while loops.join_next().await.is_some() {}
    }

    async fn burst(self: &Rc<Self>, at: usize) {
        let (mut sends, now) = (JoinSet::new(), self.clock.now());
        for _ in 0..self.shared.window {
            let worker = Rc::clone(self);
            sends.spawn_local(async move { worker.send(at, now, None).await });
        }
        while sends.join_next().await.is_some() {}
    }

    /// Begins requests when they are due, at the next client with room.
    async fn open_loop(
        self: &Rc<Self>,
        mut agenda: Agenda,
        timer: &Timer,
    ) -> std::io::Result<Agenda> {
        let end = self.recorder.borrow().span.end;
        let (mut turn, mut begun, mut full) = (0, 0, false);
        loop {
            let now = self.clock.now();
            let timely = agenda.next() < end && now < end.saturating_add(OVERDUE_NS);
            if !timely || self.requests_left.get() == 0 || self.recorder.borrow().stopped() {
                return Ok(agenda);
            }
            if agenda.next() > now {
                timer.wait((agenda.next() - now).min(TURN_NS)).await?;
                continue;
            }
            let Some(at) = self.with_room(&mut turn) else {
                full = true;
                let _ = timeout(TURN, self.answered.notified()).await;
                continue;
            };
            let Some(due) = agenda.take(now) else { continue };
            // If all were full, it is the brokers that make requests late.
            if !std::mem::take(&mut full) {
                self.recorder.borrow_mut().lag(now, due.intended);
            }
            let worker = Rc::clone(self);
            // It has its room from now on, not from when its task has a turn.
            self.connections[at].borrow_mut().in_flight += 1;
            spawn_local(async move {
                worker.connections[at].borrow_mut().in_flight -= 1;
                worker.send(at, due.intended, due.event).await;
            });
            begun += 1;
            if begun % BEGIN_MAX == 0 {
                yield_now().await;
            }
        }
    }

    fn with_room(&self, turn: &mut usize) -> Option<usize> {
        for _ in 0..self.connections.len() {
            *turn = (*turn + 1) % self.connections.len();
            let connection = self.connections[*turn].borrow();
            if !connection.leaving && connection.in_flight < self.shared.window {
                return Some(*turn);
            }
        }
        None
    }

    async fn all_answered(&self) {
        while self.connections.iter().any(|connection| connection.borrow().in_flight > 0) {
            let _ = timeout(TURN, self.answered.notified()).await;
        }
    }

    /// Sends one request and notes what came of it.
    async fn send(&self, at: usize, started: u64, event: Option<Event>) {
        let Some(left) = self.requests_left.get().checked_sub(1) else { return };
        self.requests_left.set(left);
        let (producer, mut messages, first, bytes) = {
            let connection = &mut *self.connections[at].borrow_mut();
            connection.in_flight += 1;
            let (messages, first, bytes) = self.shared.messages(connection, started, event);
            (connection.producer.clone(), messages, first, bytes)
        };
        let count = messages.len() as u64;
        let outcome = match (count, messages.pop()) {
            (1, Some(message)) => producer.send(message).await.map(|receipt| receipt.status),
            (_, last) => {
                producer.send_batch(messages.into_iter().chain(last)).await.map(|receipts| {
                    let failed = receipts
                        .iter()
                        .map(|receipt| receipt.status)
                        .find(|status| *status != SendStatus::Ok);
                    failed.unwrap_or(SendStatus::Ok)
                })
            }
        };
        self.note(at, first..first + count, (started, bytes), outcome);
        self.answered.notify_waiters();
    }

    fn note(
        &self,
        at: usize,
        numbers: std::ops::Range<u64>,
        (started, bytes): (u64, u64),
        outcome: Result<SendStatus, Error>,
    ) {
        let (now, mut recorder) = (self.clock.now(), self.recorder.borrow_mut());
        let connection = &mut *self.connections[at].borrow_mut();
        connection.in_flight -= 1;
        let failure = match outcome {
            Ok(SendStatus::Ok) => None,
            Ok(status) => Some((code_of(status), format!("{status:?}"))),
            Err(error) => {
                // A broker may store it still, behind what is sent from now on.
                connection.epoch = (connection.epoch + 1) & 0xFFFF;
                Some((error.code().unwrap_or(NO_CODE), error.to_string()))
            }
        };
        connection.floor.answer(numbers.start);
        match failure {
            Some((code, text)) => recorder.tally.failure(code, || text),
            None => {
                recorder.messages(now, numbers.end - numbers.start, bytes);
                recorder.latency(now, started);
                if self.shared.keep {
                    recorder.acknowledged(connection.number, numbers);
                }
            }
        }
    }

    /// Has clients leave when their time has come, and makes them anew.
    async fn churn(self: Rc<Self>, mut schedule: Schedule) {
        let end = self.recorder.borrow().span.end;
        for at in (0..self.connections.len()).cycle() {
            while schedule.take(self.clock.now()).is_none() {
                if !self.may_send() || schedule.next() >= end {
                    return;
                }
                let wait = schedule.next().saturating_sub(self.clock.now()).min(TURN_NS);
                sleep(Duration::from_nanos(wait).max(Duration::from_millis(1))).await;
            }
            self.connections[at].borrow_mut().leaving = true;
            while self.connections[at].borrow().in_flight > 0 {
                let _ = timeout(TURN, self.answered.notified()).await;
            }
            let old = self.connections[at].borrow().client.clone();
            let _ = timeout(DRAIN, old.shutdown()).await;
            let made = self.shared.producer().await;
            let connection = &mut *self.connections[at].borrow_mut();
            let tally = &mut self.recorder.borrow_mut().tally;
            match made {
                Ok((client, producer)) => {
                    (connection.client, connection.producer) = (client, producer);
                    tally.renewed += 1;
                }
                Err(error) => tally.failure(NO_CODE, || error.to_string()),
            }
            connection.leaving = false;
            self.answered.notify_waiters();
        }
    }
}

fn code_of(status: SendStatus) -> i32 {
    match status {
        SendStatus::Ok => response::SUCCESS,
        SendStatus::FlushDiskTimeout => response::FLUSH_DISK_TIMEOUT,
        SendStatus::FlushSlaveTimeout => response::FLUSH_SLAVE_TIMEOUT,
        SendStatus::SlaveNotAvailable => response::SLAVE_NOT_AVAILABLE,
    }
}
