//! A shard's life: open the store, serve, stop.
//!
//! ```text
//! lock ─ open and recover ─ load configuration ─ listen ─ register ─ serve
//!   … SIGTERM ─ leave the name servers ─ serve on for a while ─ refuse sends, release pulls ─ answer what waits
//!     ─ close connections ─ save configuration ─ flush, dispatch to the end, checkpoint ─ remove `abort`
//! ```

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use glommio::timer::Timer;
use glommio::{Latency, Shares, Task, TaskQueueHandle};
use ringmq_engine::shard::{OpenReport, Shard, ShardListener};
use ringmq_engine::state::clients::Clients;
use ringmq_engine::state::delay::SCHEDULE_TOPIC;
use ringmq_engine::state::locks::QueueLocks;
use ringmq_engine::state::offsets::OffsetTable;
use ringmq_engine::state::saver::ConfigSaver;
use ringmq_engine::state::waiters::{SCAN_INTERVAL_MS, WaitQueue, Waiters};
use ringmq_net::record::PropertiesRewriter;
use ringmq_net::server::{Gathering, Listen, PortKind, Server, ServerConfig};

use super::ack::{Acks, Level};
use super::clock::Clock;
use super::crowds::Crowds;
use super::cut::finish_cut;
use super::files::{Paths, Tables};
use super::ha::Ha;
use super::lag::Lags;
use super::late::LatePulls;
use super::masters_groups::MastersGroups;
use super::meters::Reason;
use super::observe::Opening;
use super::rare_log::RareLog;
use super::registration::Registrations;
use super::relay::Calls;
use super::saving::Promised;
use super::service::BrokerService;
use super::signal::Signal;
use super::stats::Stats;
use super::terms::open_terms;
use super::tunables::Tunables;
use super::untold::Untold;
use super::{Broker, BrokerConfig, Phase};
use crate::config::{LimitsSection, Role, Settings, ShardPlan};
use crate::metrics::{Probe, Stage};
use crate::reactor::{Label, Reactor, doing};

static DISPATCHING: Label = Label("dispatching visible messages");

/// The serving queue's part of the reactor against 1 of everything else.
const SERVING_SHARES: Shares = Shares::Static(1000);
/// How soon the serving queue gets the reactor back while others run.
const SERVING_LATENCY: Latency = Latency::Matters(Duration::from_millis(5));
/// How often overdue sends are looked for. Their timeout is seconds, so this is close enough.
const ACK_SCAN: Duration = Duration::from_millis(200);
/// How often batches of derived data are looked after.
const POLL: Duration = Duration::from_millis(250);
/// How often client registrations are checked for age (stock 4.9.8).
const CLIENT_SCAN: Duration = Duration::from_secs(10);
/// How long a stopping broker waits for sends that were accepted.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long a stopping broker answers what comes with refusals before it closes its connections: clients that have not heard of its
/// end go to another broker by an answer, which costs them less than a connection that breaks.
const REFUSE: Duration = Duration::from_millis(250);
/// How long a stopping broker waits for replies to leave.
const DRAIN_WAIT: Duration = Duration::from_millis(500);

/// Runs one shard's broker on the current reactor until it is told to stop, and opens its store anew when its log is to be cut. `probe`
/// is told how far it is, and asked through.
///
/// # Errors
/// One line that says what could not be opened, listened to or closed, and what to do.
pub async fn run_shard(
    reactor: &Reactor,
    settings: &Settings,
    plan: &ShardPlan,
    connections_max: u64,
    probe: &Arc<Probe>,
) -> Result<(), String> {
    // Connections and the log's writes before everything else: without a queue that matters, a ready socket waits for whatever
    // task is running, up to the executor's 100 ms.
    let serving = glommio::executor().create_task_queue(SERVING_SHARES, SERVING_LATENCY, "serving");
    let current = Rc::new(RefCell::new(None::<Rc<Broker>>));
    let mut watched = None;
    let outcome = loop {
        probe.set_stage(Stage::Recovering);
        let config = BrokerConfig::new(settings, plan)?;
        let broker = Broker::open(config, settings, serving).await?;
        let server = {
            let broker = Rc::clone(&broker);
            let limits = settings.config.limits.clone();
            let listening = async move { broker.listen(&limits, connections_max) };
            glommio::spawn_local_into(listening, serving)
                .map_err(|error| error.to_string())?
                .await?
        };
        let mut tasks = broker.start_tasks(serving).map_err(|error| error.to_string())?;
        *current.borrow_mut() = Some(Rc::clone(&broker));
        if probe.inbox().is_some() {
            tasks.push(glommio::spawn_local(Rc::clone(&broker).survey_lags()));
            watched.get_or_insert_with(|| watch(&current, probe));
        }
        probe.set_stage(Stage::Serving);
        tracing::info!(
            listen = %broker.config.listen,
            level = broker.config.level.name(),
            "The broker[{}, {}] boot success. serializeType=JSON and name server is {}",
            broker.config.name,
            broker.config.store_host,
            broker.config.namesrv_addrs.join(";"),
        );
        let stopped = async {
            reactor.stopping.raised().await;
            false
        };
        let reopening = async {
            broker.reopening.wait().await;
            true
        };
        let reopen = stopped.or(reopening).await;
        probe.set_stage(Stage::Stopping);
        let serve = if reopen { 0 } else { settings.config.drain.serve_ms };
        let outcome = broker.stop(&server, tasks, Duration::from_millis(serve)).await;
        if !reopen || outcome.is_err() {
            break outcome;
        }
        *current.borrow_mut() = None;
        tracing::info!(broker = %broker.config.name, "the store is opened anew");
    };
    probe.set_stage(Stage::Ended);
    if let (Some(inbox), Some(task)) = (probe.inbox(), watched) {
        inbox.close();
        task.await;
    }
    outcome
}

/// Answers who asks about this shard, whichever broker serves it at the time; while none does, the question is dropped.
fn watch(current: &Rc<RefCell<Option<Rc<Broker>>>>, probe: &Arc<Probe>) -> Task<()> {
    let (current, probe) = (Rc::clone(current), Arc::clone(probe));
    glommio::spawn_local(async move {
        let Some(inbox) = probe.inbox() else { return };
        inbox
            .serve(async |ask| {
                let broker = current.borrow().clone();
                if let Some(broker) = broker {
                    broker.tell(ask).await;
                }
            })
            .await;
    })
}

impl Broker {
    /// Opens the store and reads the configuration.
    pub(super) async fn open(
        config: BrokerConfig,
        settings: &Settings,
        serving: TaskQueueHandle,
    ) -> Result<Rc<Broker>, String> {
        let clock = Clock::new();
        let mut shard_config = config.shard(settings);
        shard_config.log.task_queue = Some(serving);
        let began = Instant::now();
        let (shard, report) = Shard::open(shard_config).await.map_err(|error| error.to_string())?;
        let opening = Opening {
            took: began.elapsed(),
            scanned_bytes: report.log.recovered.scanned_bytes,
            unclean: !report.log.recovered.clean,
        };
        log_opened(&config.name, &report);
        let paths = Paths::new(shard.layout());
        let now_ms = clock.now_ms();
        let mut tables = Tables::load(&paths, &config, now_ms)?;
        let moved = tables.delay.clamp(|queue| {
            let queue = shard.existing_queue(SCHEDULE_TOPIC, queue);
            queue.map_or((0, 0), |queue| (queue.min_offset(), queue.max_offset()))
        });
        for moved in moved {
            tracing::warn!(
                level = moved.level,
                stored = moved.stored,
                used = moved.used,
                "the delay offset lay outside of its queue and was moved to its nearest end"
            );
        }
        let saver = ConfigSaver::start().map_err(|error| error.to_string())?;
        let untold = Untold::load(shard.layout(), report.log.stock_was_here)?;
        untold.put_into(&mut tables.offsets);
        let cut = match &report.cut {
            Some(cut) => {
                let progress = (&mut tables.offsets, &untold);
                Some(finish_cut(&config.name, cut, progress, &shard, &saver, &paths).await?)
            }
            None => None,
        };
        let terms = open_terms(&config, &shard, &report)?;
        if config.role != Role::Slave {
            untold.give_up(&mut tables.offsets, &saver, &paths)?;
        }
        let masters_groups = MastersGroups::load(shard.layout());
        if config.role != Role::Slave || report.log.stock_was_here {
            masters_groups.forget()?;
        }
        if report.log.stock_was_here {
            // Whatever that one made worthless is durably so.
            shard.settle_visit().await.map_err(|error| error.to_string())?;
        }
        audit_offsets(&tables.offsets, &shard);
        audit_topics(&tables, &shard, report.log.fresh);
        let absent = !tables.absent.is_empty();
        let mut waiters = Waiters::new(config.waiting_pulls_max);
        let delay_list = waiters.add_queue();
        let broker = Rc::new(Broker {
            tunables: RefCell::new(Tunables::new(config.retention.clone())),
            shard: Rc::clone(&shard),
            server: OnceCell::new(),
            phase: Cell::new(Phase::Serving),
            leaving: Cell::new(false),
            log_failed: Cell::new(false),
            topics: RefCell::new(tables.topics),
            groups: RefCell::new(tables.groups),
            offsets: RefCell::new(tables.offsets),
            clients: RefCell::new(Clients::new()),
            locks: RefCell::new(QueueLocks::default()),
            delay_levels: config.delay_levels.clone(),
            delay_offsets: RefCell::new(tables.delay),
            waiters: RefCell::new(waiters),
            woken: RefCell::default(),
            released: RefCell::default(),
            many_released: Signal::default(),
            late: RefCell::new(LatePulls::new()),
            crowds: Crowds::default(),
            acks: Acks::new(
                config.store_host,
                &config.region,
                config.trace_on,
                config.slow_send_us,
            ),
            stats: Stats::new(&config.cluster, config.metered_topics_max, now_ms),
            turn_pulls: Cell::new(0),
            rewriter: RefCell::new(PropertiesRewriter::new()),
            batch_texts: RefCell::default(),
            slow_tasks: Cell::new(0),
            commits_waiting: Cell::new(0),
            next_random: Cell::new((now_ms as u64) | 1),
            next_opaque: Cell::new(0),
            calls: Calls::default(),
            rare_log: RareLog::default(),
            lags: Lags::default(),
            opening,
            disk: Cell::new(None),
            waiters_changed: Signal::default(),
            waiters_due_ms: Cell::new(i64::MAX),
            delay_list,
            delay_arrived: Signal::default(),
            reopening: Signal::default(),
            progressed: Signal::default(),
            retention_asked: Signal::default(),
            steps: RefCell::default(),
            manual_rounds: Cell::new(0),
            config_changes: Cell::new(0),
            config_version: RefCell::new(format!("{{\"counter\":0,\"timestamp\":{now_ms}}}")),
            registrations: Registrations::new(&config.namesrv_addrs),
            ha: Ha::new(terms, cut, untold, masters_groups),
            saver,
            paths,
            promised: Promised::default(),
            clock,
            config,
        });
        if absent {
            broker.save_first();
        }
        broker.clock.go_on_from(shard.last_store_timestamp());
        shard.set_listener(Rc::new(Listener(Rc::downgrade(&broker))));
        Ok(broker)
    }

    pub(super) fn listen(
        self: &Rc<Self>,
        limits: &LimitsSection,
        connections_max: u64,
    ) -> Result<Rc<Server>, String> {
        let mut config = ServerConfig::new(self.config.listen);
        config.listen.push(Listen { addr: self.config.vip, port: PortKind::Vip });
        config.conns_max = usize::try_from(connections_max).unwrap_or(usize::MAX);
        config.out_bytes_max = usize::try_from(limits.connection_out_bytes).unwrap_or(usize::MAX);
        config.held_bytes_max = usize::try_from(limits.connections_bytes).unwrap_or(usize::MAX);
        config.idle = Duration::from_millis(limits.connection_idle_ms);
        config.gather = match limits.gather_us {
            0 => Gathering::Never,
            us => Gathering::WhenItPays(Duration::from_micros(us)),
        };
        config.frame_bytes_max = usize::try_from(limits.frame_bytes).unwrap_or(usize::MAX);
        let service = Rc::new(BrokerService(Rc::clone(self)));
        let server = Server::bind(config, service).map_err(|error| error.to_string())?;
        if self.server.set(Rc::downgrade(&server)).is_err() {
            return Err("a shard listens once".to_owned());
        }
        self.listen_to_slaves()?;
        Ok(server)
    }

    pub(super) fn start_tasks(
        self: &Rc<Self>,
        serving: TaskQueueHandle,
    ) -> Result<Vec<Task<()>>, glommio::GlommioError<()>> {
        let mut tasks = vec![
            glommio::spawn_local(Rc::clone(self).expire_waiting()),
            glommio::spawn_local_into(Rc::clone(self).run_many_released(), serving)?,
            glommio::spawn_local_into(Rc::clone(self).notify_crowds(), serving)?,
            self.every(ACK_SCAN, Broker::expire_acks),
            self.every(Duration::from_millis(SCAN_INTERVAL_MS as u64), Broker::scan_waiting),
            self.every(CLIENT_SCAN, Broker::scan_clients),
            self.every(Duration::from_secs(1), Broker::tick_stats),
            glommio::spawn_local(Rc::clone(self).save_again_and_again()),
            glommio::spawn_local(Rc::clone(self).keep_promises()),
            glommio::spawn_local(Rc::clone(self).retain()),
            self.every(POLL, |broker| broker.shard.poll()),
            glommio::spawn_local(Rc::clone(self).checkpoint_again_and_again()),
            glommio::spawn_local(Rc::clone(self).keep_bound_again_and_again()),
        ];
        if self.is_slave() {
            tasks.extend(self.start_following(serving)?);
        } else {
            tasks.push(glommio::spawn_local(Rc::clone(self).deliver_delayed()));
            tasks.push(glommio::spawn_local(Rc::clone(self).save_delivery_again_and_again()));
            tasks.push(glommio::spawn_local(Rc::clone(self).stream_metadata()));
        }
        tasks.extend(self.start_registrations());
        Ok(tasks)
    }

    /// A task that does something again and again until the broker stops.
    fn every(self: &Rc<Self>, period: Duration, work: impl Fn(&Rc<Broker>) + 'static) -> Task<()> {
        let broker = Rc::clone(self);
        glommio::spawn_local(async move {
            while !broker.stopped() {
                Timer::new(period).await;
                work(&broker);
            }
        })
    }

    /// Answers the sends that have reached their level.
    pub(super) fn release_acks(&self) {
        if self.acks.waiting() == 0 {
            return;
        }
        let (log, level) = (self.shard.log(), self.config.level);
        let mut reached = match level {
            Level::Memory => log.appended(),
            Level::Write => log.written(),
            Level::Sync => log.durable(),
        };
        let status = |ticket| self.saver.status(ticket);
        let now_us = self.clock.monotonic_us();
        let took = |us, n| self.stats_sends_took(us, n);
        if self.config.role == Role::SyncMaster {
            self.acks.release_local(reached, level, now_us, status, took);
            reached = reached.min(self.ha.replicated());
        }
        let end = self.acks.release(reached, level, now_us, status, took);
        if let Some(end) = end.filter(|_| self.config.role == Role::SyncMaster) {
            // Where a message ends, not just what slaves hold: what they hold may end inside a record, and a log never does for long.
            self.ha.terms.raise_bound(end);
        }
    }

    /// The level that the log has reached up to `end`.
    fn level_of(&self, end: u64) -> Level {
        let log = self.shard.log();
        match end {
            end if end <= log.durable() => Level::Sync,
            end if end <= log.written() => Level::Write,
            _ => Level::Memory,
        }
    }

    fn expire_acks(self: &Rc<Self>) {
        let now_us = self.clock.monotonic_us();
        let since_us = now_us - self.config.ack_timeout_ms * 1_000;
        let took = |us, n| self.stats_sends_took(us, n);
        let reached = |end| self.level_of(end);
        if self.acks.expire(since_us, now_us, self.config.level, reached, took) > 0 {
            self.flush_replies();
        }
        self.answer_unsaved();
    }

    /// Selective pulls that are behind their queue are answered although nothing matched.
    fn scan_waiting(self: &Rc<Self>) {
        let mut woken = std::mem::take(&mut *self.woken.borrow_mut());
        self.waiters.borrow_mut().scan(|_, pull| self.max_offset_of(pull), &mut woken);
        self.woken.borrow_mut().append(&mut woken);
        self.run_released();
        self.flush_replies();
    }

    /// Answers each waiting pull at its own deadline.
    async fn expire_waiting(self: Rc<Self>) {
        while !self.stopped() {
            let now_ms = self.clock.monotonic_ms();
            let next = self.waiters.borrow_mut().next_deadline_ms();
            self.waiters_due_ms.set(next.unwrap_or(i64::MAX));
            match next {
                None => self.waiters_changed.wait().await,
                Some(deadline_ms) if deadline_ms > now_ms => {
                    let wait = Duration::from_millis((deadline_ms - now_ms) as u64);
                    self.waiters_changed.wait_at_most(wait).await;
                }
                Some(_) => {
                    {
                        let mut woken = self.woken.borrow_mut();
                        self.waiters.borrow_mut().expire(now_ms, &mut woken);
                    }
                    self.run_released();
                    self.flush_replies();
                }
            }
        }
    }

    /// Sends what was queued outside of a connection's turn.
    pub(super) fn flush_replies(&self) {
        if let Some(server) = self.server() {
            server.flush_dirty();
        }
        self.report_slow_send();
    }

    pub(super) async fn stop(
        self: &Rc<Self>,
        server: &Rc<Server>,
        tasks: Vec<Task<()>>,
        serve: Duration,
    ) -> Result<(), String> {
        tracing::info!(broker = %self.config.name, "stopping: leaving the name servers");
        self.unregister().await;
        Timer::new(serve).await;
        self.phase.set(Phase::Refusing);
        self.waiters.borrow_mut().release_all(&mut self.woken.borrow_mut());
        self.run_released();
        self.flush_replies();
        self.answer_waiting_sends().await;
        // A disk that hangs keeps the process, not its clients: they hear what their messages have come to.
        let now_us = self.clock.monotonic_us();
        let took = |us, n| self.stats_sends_took(us, n);
        self.acks.expire(now_us, now_us, self.config.level, |end| self.level_of(end), took);
        self.acks.answer_unsaved(now_us, now_us, |ticket| self.saver.status(ticket), took);
        self.flush_replies();
        Timer::new(REFUSE).await;
        server.drain(DRAIN_WAIT).await;
        self.ha.stop();
        self.phase.set(Phase::Stopped);
        self.wake_tasks();
        for task in tasks {
            task.cancel().await;
        }
        self.save_delivery_at_the_end().await;
        self.keep_bound().await;
        let saved = self.save_all();
        let closed = self.shard.close().await.map_err(|error| error.to_string());
        closed.and(saved)?;
        tracing::info!(broker = %self.config.name, "stopped");
        Ok(())
    }

    /// Waits until every accepted send is answered, within bounds.
    async fn answer_waiting_sends(&self) {
        let deadline = self.clock.monotonic_ms() + ANSWER_WAIT.as_millis() as i64;
        while (self.acks.waiting() > 0
            || self.slow_tasks.get() > 0
            || self.commits_waiting.get() > 0
            || !self.released.borrow().is_empty())
            && self.clock.monotonic_ms() < deadline
        {
            self.shard.kick();
            self.progressed.wait_at_most(Duration::from_millis(20)).await;
        }
    }

    fn wake_tasks(&self) {
        self.waiters_changed.raise();
        self.many_released.raise();
        self.crowds.changed.raise();
        self.delay_arrived.raise();
        self.ha.tables_due.raise();
    }
}

fn log_opened(name: &str, report: &OpenReport) {
    let recovered = &report.log.recovered;
    tracing::info!(
        broker = name,
        clean = recovered.clean,
        stock_was_here = report.log.stock_was_here,
        end = recovered.end,
        scanned_bytes = recovered.scanned_bytes,
        redone_records = report.redone_records,
        "store opened"
    );
    if recovered.cut_reason.is_some() || recovered.zeroed_bytes > 0 {
        let why = recovered.cut_reason.as_deref();
        tracing::warn!(
            broker = name,
            at = recovered.end,
            zeroed = recovered.zeroed_bytes,
            removed_segments = recovered.removed_segments,
            "the log was cut: {}",
            why.unwrap_or("zeros where a record begins, and other bytes behind them")
        );
    }
    let derived = report.queues.repairs.iter().chain(&report.index.repairs);
    for repair in report.log.repairs.iter().chain(derived) {
        tracing::warn!(broker = name, "repaired: {repair}");
    }
}

/// Says which stored offsets lie outside of their queues. They are kept as they are: a consumer is told where its queue
/// begins and ends when it pulls, and nothing is reset in silence.
fn audit_offsets(offsets: &OffsetTable, shard: &Shard) {
    let outside = offsets.audit(|topic, id| {
        let queue = shard.existing_queue(topic, id)?;
        Some((queue.min_offset(), queue.max_offset()))
    });
    for outside in outside {
        tracing::warn!(
            group = outside.group,
            topic = outside.topic,
            queue = outside.queue_id,
            offset = outside.offset,
            min = outside.min,
            max = outside.max,
            "a stored consumer offset lies outside of its queue: kept as it is"
        );
    }
}

/// Says what is missing in the configuration of a store that has messages.
fn audit_topics(tables: &Tables, shard: &Shard, fresh: bool) {
    for path in tables.absent.iter().filter(|_| !fresh) {
        tracing::warn!(
            file = %path.display(),
            "the store has a log, but this file and its .bak are missing: starting without what they held"
        );
    }
    let mut unknown: Vec<Rc<str>> = shard.topics_with_queues();
    unknown.retain(|topic| tables.topics.get(topic).is_none());
    unknown.sort_unstable();
    for topic in unknown {
        tracing::warn!(
            topic = &*topic,
            "the store has queues of a topic that is not in topics.json: make the topic again to read them"
        );
    }
}

/// What the store tells the broker.
struct Listener(std::rc::Weak<Broker>);

impl ShardListener for Listener {
    fn arrived(&self, list: WaitQueue, max_offset: i64, tags_code: i64) {
        let Some(broker) = self.0.upgrade() else { return };
        if list == broker.delay_list {
            broker.delay_arrived.raise();
            return;
        }
        let mut woken = broker.woken.borrow_mut();
        broker.waiters.borrow_mut().wake(list, max_offset, tags_code, &mut woken);
    }

    fn progressed(&self) {
        let Some(broker) = self.0.upgrade() else { return };
        let _doing = doing(&DISPATCHING);
        broker.release_acks();
        let log = broker.shard.log();
        if let Some(failure) = log.failed() {
            let why = failure.to_string();
            let refusal = broker.not_writable();
            for _ in 0..broker.acks.fail(log.written(), &why, refusal.remark()) {
                broker.stats.meters.refused(Reason::LogFailed);
            }
            if !broker.log_failed.replace(true) {
                tracing::error!(
                    broker = %broker.config.name,
                    dir = %broker.shard.layout().commit_log().display(),
                    "the log takes no more messages, sends are refused, reads go on: {why}"
                );
            }
        }
        broker.reach_late();
        broker.run_released();
        broker.flush_replies();
        broker.progressed.raise();
    }
}
