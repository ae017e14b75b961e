//! From the command line and the file to the settings of this process.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use super::address::{
    choose_advertised, host_name_of, interface_addresses, resolve, resolve_advertise,
};
use super::{
    Config, ConfigError, Machine, NamesrvPlan, Role, ShardCount, ShardPlan, bounds, plan, unknown,
};
use crate::cli::{BrokerArgs, CheckArgs, ConfigArgs, NamesrvArgs, ShardArgs, StandaloneArgs};

/// What this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Name server and broker together.
    Standalone,
    /// Broker alone.
    Broker,
    /// Name server alone.
    Namesrv,
    /// The checks of a broker, without starting one.
    Check,
}

/// Everything that is decided before the first reactor starts. Read-only afterwards.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What this process is.
    pub mode: Mode,
    /// The configuration with every optional key of this mode filled in.
    pub config: Arc<Config>,
    /// The shards, in order; empty for a name server alone.
    pub shards: Vec<ShardPlan>,
    /// How the number of shards was decided; `None` for a name server alone.
    pub shard_count: Option<ShardCount>,
    /// The name server that this process runs.
    pub namesrv: Option<NamesrvPlan>,
    /// Where metrics are served, if they are.
    pub metrics: Option<SocketAddr>,
    /// The name servers that each shard registers at, as `HOST:PORT`. Never resolved here: a name may move while we run.
    pub namesrv_addrs: Vec<String>,
    /// Processors and memory within reach.
    pub machine: Machine,
}

impl Settings {
    /// Settings of `ringmq standalone`.
    pub fn standalone(args: &StandaloneArgs, machine: Machine) -> Result<Settings, ConfigError> {
        let mut config = load(&args.config)?;
        apply_shard_args(&mut config, &args.shards);
        set(&mut config.broker.name, &args.name);
        if let Some(cluster) = &args.cluster {
            config.broker.cluster.clone_from(cluster);
        }
        set(&mut config.namesrv.listen, &args.namesrv_listen);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        finish(config, Mode::Standalone, loopback, machine)
    }

    /// Settings of `ringmq broker`.
    pub fn broker(args: &BrokerArgs, machine: Machine) -> Result<Settings, ConfigError> {
        let mut config = load(&args.config)?;
        apply_shard_args(&mut config, &args.shards);
        set(&mut config.broker.name, &args.name);
        if let Some(cluster) = &args.cluster {
            config.broker.cluster.clone_from(cluster);
        }
        if let Some(id) = args.broker_id {
            config.broker.id = id;
        }
        if let Some(role) = args.role {
            config.ha.role = role;
        }
        if let Some(list) = &args.namesrv {
            config.broker.namesrv = split_list(list);
        }
        finish(config, Mode::Broker, IpAddr::V4(Ipv4Addr::UNSPECIFIED), machine)
    }

    /// Settings of `ringmq namesrv`.
    pub fn namesrv(args: &NamesrvArgs, machine: Machine) -> Result<Settings, ConfigError> {
        let mut config = load(&args.config)?;
        set(&mut config.namesrv.listen, &args.listen);
        set(&mut config.namesrv.data_dir, &args.data_dir);
        finish(config, Mode::Namesrv, IpAddr::V4(Ipv4Addr::UNSPECIFIED), machine)
    }

    /// Settings of `ringmq check`: those of a broker.
    pub fn check(args: &CheckArgs, machine: Machine) -> Result<Settings, ConfigError> {
        let mut config = load(&args.config)?;
        apply_shard_args(&mut config, &args.shards);
        finish(config, Mode::Check, IpAddr::V4(Ipv4Addr::UNSPECIFIED), machine)
    }

    /// The configuration as TOML, as `--print-config` shows it; it can be used as a file.
    pub fn to_toml(&self) -> String {
        // A configuration is a struct of structs of plain values, which TOML can always express.
        toml::to_string_pretty(&*self.config).unwrap_or_else(|error| format!("# {error}\n"))
    }
}

fn set<T: Clone>(slot: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        slot.clone_from(flag);
    }
}

fn apply_shard_args(config: &mut Config, args: &ShardArgs) {
    if let Some(dir) = &args.data_dir {
        config.store.data_dir.clone_from(dir);
    }
    set(&mut config.broker.listen, &args.listen);
    set(&mut config.broker.advertise, &args.advertise);
    set(&mut config.shards.count, &args.shards);
    if let Some(level) = args.durability {
        config.durability.level = level;
    }
}

fn split_list(list: &str) -> Vec<String> {
    list.split(';').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads the file, if one is given, and applies the flags that every subcommand has.
fn load(args: &ConfigArgs) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        None => Config::default(),
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| ConfigError::Read { path: path.clone(), error })?;
            parse(path, &text)?
        }
    };
    if let Some(format) = args.log_format {
        config.log.format = format;
    }
    if let Some(level) = &args.log_level {
        config.log.level.clone_from(level);
    }
    set(&mut config.metrics.listen, &args.metrics_listen);
    Ok(config)
}

/// Parses a configuration file's text; `path` is for messages.
fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let syntax = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let shown = text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
        ConfigError::Syntax {
            path: path.to_owned(),
            line,
            text: shown,
            why: error.message().replace('\n', ", "),
        }
    };
    let table: toml::Table = toml::from_str(text).map_err(syntax)?;
    if let Some(message) = unknown::find_unknown(&table) {
        return Err(ConfigError::Unknown { path: path.to_owned(), message });
    }
    toml::from_str(text).map_err(syntax)
}

/// Fills in what depends on the mode and the machine, checks, and lays out the shards. `listen_default` is the host to listen on.
fn finish(
    mut config: Config,
    mode: Mode,
    listen_default: IpAddr,
    machine: Machine,
) -> Result<Settings, ConfigError> {
    bounds::check(&config)?;
    check_role(&config, mode)?;
    let namesrv = match mode {
        Mode::Standalone | Mode::Namesrv => Some(namesrv_plan(&mut config, listen_default)?),
        Mode::Broker | Mode::Check => None,
    };
    let mut settings = Settings {
        mode,
        config: Arc::default(),
        shards: Vec::new(),
        shard_count: None,
        namesrv,
        metrics: match &config.metrics.listen {
            Some(listen) => Some(resolve("metrics.listen", listen)?),
            None => None,
        },
        namesrv_addrs: Vec::new(),
        machine,
    };
    if mode != Mode::Namesrv {
        lay_out_shards(&mut settings, &mut config, listen_default)?;
    }
    plan::check_ports(&settings.shards, settings.namesrv.as_ref(), settings.metrics)?;
    settings.config = Arc::new(config);
    Ok(settings)
}

/// A master has the id 0 and a slave another one; `standalone` is a master.
fn check_role(config: &Config, mode: Mode) -> Result<(), ConfigError> {
    let (id, role) = (config.broker.id, config.ha.role);
    let refused = |key, remedy| Err(ConfigError::Refused { key, remedy });
    match (role, id) {
        (Role::Slave, _) if mode == Mode::Standalone => refused(
            "ha.role",
            "standalone is a master: run a slave with `ringmq broker`".to_owned(),
        ),
        (Role::Slave, 0) => refused(
            "broker.id",
            "0 is the id of a master: set 1 or more for a slave (--broker-id)".to_owned(),
        ),
        (Role::Slave, _) | (_, 0) => Ok(()),
        (_, id) => refused(
            "broker.id",
            format!("{id} is the id of a slave: set 0, or the role slave (--role slave)"),
        ),
    }
}

fn namesrv_plan(config: &mut Config, listen_default: IpAddr) -> Result<NamesrvPlan, ConfigError> {
    let listen = config
        .namesrv
        .listen
        .get_or_insert_with(|| SocketAddr::new(listen_default, 9876).to_string());
    let listen = resolve("namesrv.listen", listen)?;
    let data_dir = config
        .namesrv
        .data_dir
        .get_or_insert_with(|| config.store.data_dir.join("namesrv"))
        .clone();
    Ok(NamesrvPlan { listen, data_dir })
}

fn lay_out_shards(
    settings: &mut Settings,
    config: &mut Config,
    listen_default: IpAddr,
) -> Result<(), ConfigError> {
    let name = config.broker.name.get_or_insert_with(host_name).clone();
    let listen = config
        .broker
        .listen
        .get_or_insert_with(|| SocketAddr::new(listen_default, 10911).to_string());
    let listen = resolve("broker.listen", listen)?;
    let advertise = match &config.broker.advertise {
        Some(text) => resolve_advertise("broker.advertise", text, listen.port())?,
        None if !listen.ip().is_unspecified() => listen,
        None => SocketAddr::new(
            choose_advertised(&interface_addresses()).ok_or(ConfigError::NoAdvertise)?,
            listen.port(),
        ),
    };
    let host = config.broker.advertise.as_deref().and_then(host_name_of).map(str::to_owned);
    config.broker.advertise = Some(match &host {
        Some(host) => format!("{host}:{}", advertise.port()),
        None => advertise.to_string(),
    });
    let count = ShardCount::decide(&config.store.data_dir, config.shards.count, &settings.machine)?;
    config.shards.count = Some(count.count);
    settings.shard_count = Some(count);
    settings.shards =
        plan::lay_out(config, &name, listen, (advertise, host.as_deref()), count.count)?;
    settings.namesrv_addrs = match &settings.namesrv {
        // The process's own name server comes first; further ones may be configured.
        Some(own) => std::iter::once(reachable(own.listen).to_string())
            .chain(config.broker.namesrv.iter().cloned())
            .collect(),
        None => config.broker.namesrv.clone(),
    };
    for address in &settings.namesrv_addrs {
        check_namesrv_address(address)?;
    }
    Ok(())
}

/// The form only: a name server whose name does not resolve now may do so later.
fn check_namesrv_address(text: &str) -> Result<(), ConfigError> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(()),
        _ => Err(ConfigError::Address {
            key: "broker.namesrv",
            value: text.to_owned(),
            why: "write HOST:PORT, several joined by `;` on the command line or as a list in the file".to_owned(),
        }),
    }
}

/// A listening address as one to connect to from this host.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listen.port())
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), listen.port())
        }
        _ => listen,
    }
}

/// The host's name, or stock's stand-in for it.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "DEFAULT_BROKER".to_owned(),
        name => name.to_owned(),
    }
}
