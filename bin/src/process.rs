//! One run of the program: from parsed flags to the exit status.
//!
//! What each reactor then does is in `work`; everything before it is the same for a broker, a name server and both together.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use thiserror::Error;
use tracing::{info, warn};

use crate::admin;
use crate::broker;
use crate::check;
use crate::cli::{Cli, Command};
use crate::config::{ConfigError, Machine, NamesrvPlan, Settings, ShardPlan};
use crate::log_tool::{self, LogToolError};
use crate::logging::{self, DroppedLines, LoggingError};
use crate::memory;
use crate::metrics::{self, MetricsError, MetricsServer, Probe, Stage};
use crate::namesrv::{Namesrv, NamesrvConfig};
use crate::preflight::{self, Outcome};
use crate::quick;
use crate::reactor::{Reactor, ReactorError, ReactorOptions, Seat, Stop, spawn_reactors};
use crate::signals;

/// How long a stopping name server waits for its replies and its files.
const NAMESRV_DRAIN: Duration = Duration::from_millis(500);

/// Why a run ended badly; the message is what the user reads.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A log could not be looked at.
    #[error(transparent)]
    LogTool(#[from] LogToolError),
    /// Log lines cannot be written.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// A pre-flight check failed; each failure has been printed.
    #[error("not started: {0} of the start-up checks failed; `ringmq check` runs them alone")]
    Preflight(usize),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be received.
    #[error("signal handlers: {0}: check the limit on threads")]
    Signals(std::io::Error),
    /// A reactor did not start, or its work failed.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// `send`, `tail` or `admin` ended.
    #[error(transparent)]
    Quick(#[from] quick::QuickError),
}

/// What one reactor is given to do.
pub struct Duty {
    /// The shard that lives here.
    pub shard: Option<ShardPlan>,
    /// The name server that lives here: alone, or beside shard 0 in `standalone`.
    pub namesrv: Option<NamesrvPlan>,
    /// Connections that may be open here: the configured limit, or what the limit on open files leaves.
    pub connections_max: u64,
    /// The settings of the process.
    pub settings: Arc<Settings>,
    /// How those who watch see the shard.
    pub probe: Option<Arc<Probe>>,
    /// How they see the name server.
    pub namesrv_probe: Option<Arc<Probe>>,
}

/// The program: parses the command line, runs it, prints what went wrong.
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, ProcessError> {
    let (settings, print_config) = match command {
        Command::Check(args) => return Ok(check::run(&args)?),
        Command::Log(args) => return Ok(log_tool::run(&args)?),
        Command::Admin(args) => return Ok(admin::run(&args)?),
        Command::Send(args) => {
            quick::send(&args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Tail(args) => {
            quick::tail(&args)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Standalone(args) => {
            (Settings::standalone(&args, Machine::detect())?, args.config.print_config)
        }
        Command::Broker(args) => {
            (Settings::broker(&args, Machine::detect())?, args.config.print_config)
        }
        Command::Namesrv(args) => {
            (Settings::namesrv(&args, Machine::detect())?, args.config.print_config)
        }
    };
    if print_config {
        print!("{}", settings.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    serve(settings)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs until asked to stop.
fn serve(settings: Settings) -> Result<(), ProcessError> {
    let started = metrics::Process::now();
    let log = logging::init(&settings.config.log)?;
    logging::abort_on_panic();
    memory::keep_freed_blocks();
    check_first(&settings)?;
    if let Some(count) = &settings.shard_count {
        count.record(&settings.config.store.data_dir)?;
    }
    let stop = Stop::new();
    signals::watch(&stop, Duration::from_millis(settings.config.drain.exit_ms))
        .map_err(ProcessError::Signals)?;
    let options = ReactorOptions {
        cpus: settings.machine.cpus.clone(),
        stall: Duration::from_millis(settings.config.reactor.stall_ms),
    };
    log_plan(&settings);
    let watched = watched(&settings, log.dropped(), started).map_err(MetricsError::Start)?;
    let server = match settings.metrics {
        Some(listen) => Some(MetricsServer::start(listen, watched.clone())?),
        None => None,
    };
    let reactors = spawn_reactors(seats(settings, &watched), &options, &stop, work)?;
    if let Some(server) = &server {
        server.watch(reactors.watch());
    }
    reactors.join()?;
    drop(server);
    info!("stopped");
    Ok(())
}

/// What is watched of this process, whether anybody watches or not.
fn watched(
    settings: &Settings,
    dropped: DroppedLines,
    started: f64,
) -> std::io::Result<metrics::Process> {
    let probe = |shard: &ShardPlan| match settings.metrics {
        Some(_) => Probe::new(shard.index, &shard.name).map(Arc::new),
        None => Ok(Arc::new(Probe::unwatched(shard.index, &shard.name))),
    };
    Ok(metrics::Process {
        level: settings.config.durability.level.name(),
        dropped,
        started,
        unhealthy: Duration::from_millis(settings.config.metrics.unhealthy_ms),
        probes: settings.shards.iter().map(probe).collect::<Result<_, _>>()?,
        namesrv: settings.namesrv.as_ref().map(|_| Arc::new(Probe::unwatched(0, "name server"))),
    })
}

/// The pre-flight: warnings go to the log, failures to the user.
fn check_first(settings: &Settings) -> Result<(), ProcessError> {
    let report = preflight::run(settings);
    let mut failures = 0;
    for finding in &report.findings {
        match &finding.outcome {
            Outcome::Good(_) => {}
            Outcome::Warning(text) => warn!("{}: {text}", finding.subject),
            Outcome::Failure(text) => {
                eprintln!("ringmq: {}: {text}", finding.subject);
                failures += 1;
            }
        }
    }
    if failures > 0 { Err(ProcessError::Preflight(failures)) } else { Ok(()) }
}

fn log_plan(settings: &Settings) {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        shards = settings.shards.len(),
        cpus = settings.machine.cpus.len(),
        memory_mib = settings.machine.memory_bytes >> 20,
        durability = ?settings.config.durability.level,
        "starting"
    );
    if let Some(namesrv) = &settings.namesrv {
        info!(listen = %namesrv.listen, dir = %namesrv.data_dir.display(), "name server");
    }
    for shard in &settings.shards {
        info!(name = shard.name, listen = %shard.listen, advertise = %shard.told, dir = %shard.store_dir.display(), "shard");
    }
}

/// One reactor per shard, the name server beside shard 0; or one reactor for the name server alone.
fn seats(settings: Settings, watched: &metrics::Process) -> Vec<Seat<Duty>> {
    let connections_max = preflight::connections_per_shard(&settings);
    let settings = Arc::new(settings);
    let namesrv_probe = watched.namesrv.clone();
    if settings.shards.is_empty() {
        let namesrv = settings.namesrv.clone();
        let duty =
            Duty { shard: None, namesrv, connections_max, settings, probe: None, namesrv_probe };
        return vec![Seat { name: "namesrv".to_owned(), load: duty }];
    }
    let seat = |shard: &ShardPlan| {
        let namesrv = settings.namesrv.clone().filter(|_| shard.index == 0);
        let duty = Duty {
            shard: Some(shard.clone()),
            namesrv,
            connections_max,
            settings: Arc::clone(&settings),
            probe: watched.probes.get(shard.index as usize).cloned(),
            namesrv_probe: namesrv_probe.clone(),
        };
        Seat { name: shard.name.clone(), load: duty }
    };
    settings.shards.iter().map(seat).collect()
}

/// The whole life of one reactor; it ends when the process has been asked to stop and all is written.
async fn work(reactor: Reactor, duty: Duty) -> Result<(), String> {
    let namesrv = match &duty.namesrv {
        Some(plan) => Some(start_namesrv(plan, &duty).await?),
        None => None,
    };
    let stage = |stage| {
        if let Some(probe) = duty.namesrv_probe.as_ref().filter(|_| duty.namesrv.is_some()) {
            probe.set_stage(stage);
        }
    };
    stage(Stage::Serving);
    let outcome = match &duty.shard {
        Some(plan) => serve_shard(&reactor, &duty, plan).await,
        None => {
            reactor.stopping.raised().await;
            Ok(())
        }
    };
    if let Some(namesrv) = namesrv {
        // Last of all, so that every shard of this process can leave it in order.
        let drain = &duty.settings.config.drain;
        reactor.others_ended(Duration::from_millis(drain.exit_ms / 2)).await;
        stage(Stage::Stopping);
        namesrv.drain(NAMESRV_DRAIN).await;
    }
    outcome
}

async fn start_namesrv(plan: &NamesrvPlan, duty: &Duty) -> Result<Namesrv, String> {
    let held_bytes_max = duty.settings.config.limits.connections_bytes;
    let mut config = NamesrvConfig::new(plan.listen, &plan.data_dir);
    config.conns_max = usize::try_from(duty.connections_max).unwrap_or(usize::MAX);
    config.held_bytes_max = usize::try_from(held_bytes_max).unwrap_or(usize::MAX);
    Namesrv::start(config).await.map_err(|error| error.to_string())
}

/// The life of one shard.
async fn serve_shard(reactor: &Reactor, duty: &Duty, plan: &ShardPlan) -> Result<(), String> {
    let probe = duty.probe.clone();
    let probe = probe.unwrap_or_else(|| Arc::new(Probe::unwatched(plan.index, &plan.name)));
    broker::run_shard(reactor, &duty.settings, plan, duty.connections_max, &probe).await
}
