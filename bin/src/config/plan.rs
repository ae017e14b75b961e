//! The plan of each shard: its name, its directory and its ports, derived from the configuration and from nothing else.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::address::{host_name_of, resolve_advertise};
use super::{Config, ConfigError};

/// Everything that makes one shard a broker of its own. Read-only once made; each reactor owns a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// 0 for the shard with the configured name, directory and ports.
    pub index: u32,
    /// Broker name, unique in the cluster: the configured one, or `shard<kk>-<name>`. A stock producer retries at the next
    /// *different* name in sorted order, so the shards of one process must not be neighbours there.
    pub name: String,
    /// The store: the configured directory, or `<dir>/shards/<k>` in it.
    pub store_dir: PathBuf,
    /// Client port.
    pub listen: SocketAddr,
    /// Client port for requests that must not queue behind pulls: exactly `listen - 2`, which stock peers compute.
    pub vip: SocketAddr,
    /// Port for slaves: exactly `listen + 1`, which stock peers compute.
    pub ha: SocketAddr,
    /// The address that clients reach, and the host inside each message id.
    pub advertise: SocketAddr,
    /// What clients are told to connect to, `HOST:PORT`: [`ShardPlan::advertise`], by name if it was configured by name.
    pub told: String,
    /// What slaves are told to connect to, `HOST:PORT`, by name if it was configured by name.
    pub told_ha: String,
    /// The configured HA address of this shard's master, `HOST:PORT`.
    pub ha_master: Option<String>,
}

impl ShardPlan {
    /// The ports that this shard binds, with the name of each.
    pub fn ports(&self) -> [(&'static str, SocketAddr); 3] {
        [("client", self.listen), ("VIP", self.vip), ("HA", self.ha)]
    }
}

/// The name server of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamesrvPlan {
    /// Address and port.
    pub listen: SocketAddr,
    /// Directory of the persisted key-value configuration.
    pub data_dir: PathBuf,
}

/// Lays out `count` shards. `listen` and `advertise` are those of shard 0, `host` is the configured name of `advertise` if it has one.
pub(super) fn lay_out(
    config: &Config,
    name: &str,
    listen: SocketAddr,
    (advertise, host): (SocketAddr, Option<&str>),
    count: u32,
) -> Result<Vec<ShardPlan>, ConfigError> {
    let told_ha = match config.ha.advertise.as_deref() {
        Some(text) => {
            let port = advertise.port().saturating_add(1);
            Some((resolve_advertise("ha.advertise", text, port)?, host_name_of(text)))
        }
        None => None,
    };
    let by_name = |address: SocketAddr, host: Option<&str>| match host {
        Some(host) => format!("{host}:{}", address.port()),
        None => address.to_string(),
    };
    let mut plans = Vec::new();
    for index in 0..count {
        let port = |key, base: SocketAddr, delta: i64| -> Result<SocketAddr, ConfigError> {
            let port = i64::from(base.port())
                + i64::from(index) * i64::from(config.shards.port_stride)
                + delta;
            match u16::try_from(port) {
                Ok(port) if port > 0 => Ok(SocketAddr::new(base.ip(), port)),
                _ => Err(ConfigError::PortRange { key, shard: index, port }),
            }
        };
        let told = port("broker.advertise", advertise, 0)?;
        plans.push(ShardPlan {
            index,
            name: if index == 0 { name.to_owned() } else { format!("shard{index:02}-{name}") },
            store_dir: match index {
                0 => config.store.data_dir.clone(),
                _ => config.store.data_dir.join("shards").join(index.to_string()),
            },
            listen: port("broker.listen", listen, 0)?,
            vip: port("broker.listen", listen, -2)?,
            ha: port("broker.listen", listen, 1)?,
            advertise: told,
            told: by_name(told, host),
            told_ha: match &told_ha {
                Some((base, host)) => by_name(port("ha.advertise", *base, 0)?, *host),
                None => by_name(port("broker.advertise", advertise, 1)?, host),
            },
            ha_master: match &config.ha.master {
                Some(text) => Some(master_of(config, text, index)?),
                None => None,
            },
        });
    }
    Ok(plans)
}

/// The HA address of a shard's master: that of shard 0 is configured, and both lay out their ports alike.
fn master_of(config: &Config, text: &str, index: u32) -> Result<String, ConfigError> {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = |port: &str| {
        let port = u32::from(port.parse::<u16>().ok().filter(|port| *port > 0)?);
        u16::try_from(port + index * u32::from(config.shards.port_stride)).ok()
    };
    match parts.and_then(|(host, text)| Some((host, port(text)?))) {
        Some((host, port)) => Ok(format!("{host}:{port}")),
        None => Err(ConfigError::Address {
            key: "ha.master",
            value: text.to_owned(),
            why: "write HOST:PORT of the master's HA port (its client port + 1)".to_owned(),
        }),
    }
}

/// Ports that two parts of this same process would both bind.
pub(super) fn check_ports(
    shards: &[ShardPlan],
    namesrv: Option<&NamesrvPlan>,
    metrics: Option<SocketAddr>,
) -> Result<(), ConfigError> {
    let mut taken: Vec<(u16, String)> =
        namesrv.iter().map(|plan| (plan.listen.port(), "the name server".to_owned())).collect();
    if let Some(metrics) = metrics {
        if let Some((port, other)) = taken.iter().find(|(port, _)| *port == metrics.port()) {
            let second = "the metrics".to_owned();
            return Err(ConfigError::PortClash { port: *port, first: other.clone(), second });
        }
        taken.push((metrics.port(), "the metrics".to_owned()));
    }
    for shard in shards {
        for (what, address) in shard.ports() {
            let what = format!("the {what} port of shard {}", shard.index);
            if let Some((port, other)) = taken.iter().find(|(port, _)| *port == address.port()) {
                return Err(ConfigError::PortClash {
                    port: *port,
                    first: other.clone(),
                    second: what,
                });
            }
            taken.push((address.port(), what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("address")
    }

    fn plans(listen: &str, count: u32) -> Result<Vec<ShardPlan>, ConfigError> {
        let advertise = (address("10.0.0.5:10911"), None);
        lay_out(&Config::default(), "broker-a", address(listen), advertise, count)
    }

    #[test]
    fn shard_zero_is_indistinguishable_from_a_stock_broker() {
        let plan = &plans("0.0.0.0:10911", 1).expect("plan")[0];
        assert_eq!(plan.name, "broker-a");
        assert_eq!(plan.store_dir, PathBuf::from("./ringmq-data"));
        assert_eq!(plan.ports().map(|(_, address)| address.port()), [10911, 10909, 10912]);
        assert_eq!(plan.advertise, address("10.0.0.5:10911"));
        assert_eq!(plan.told_ha, "10.0.0.5:10912");
    }

    #[test]
    fn further_shards_are_brokers_of_their_own() {
        let plan = &plans("[::]:10911", 3).expect("plan")[2];
        assert_eq!(plan.name, "shard02-broker-a");
        assert_eq!(plan.store_dir, PathBuf::from("./ringmq-data/shards/2"));
        assert_eq!(plan.ports().map(|(_, address)| address.port()), [10951, 10949, 10952]);
        assert_eq!(plan.advertise, address("10.0.0.5:10951"));
        assert!(plan.listen.is_ipv6());
    }

    #[test]
    fn clients_are_told_the_name_that_was_configured() {
        let advertise = (address("10.0.0.5:31000"), Some("mq.example.com"));
        let plans = lay_out(&Config::default(), "broker-a", address("0.0.0.0:10911"), advertise, 2);
        let plans = plans.expect("plan");
        let told: Vec<&str> = plans.iter().map(|plan| plan.told.as_str()).collect();
        assert_eq!(told, ["mq.example.com:31000", "mq.example.com:31020"]);
        let told: Vec<&str> = plans.iter().map(|plan| plan.told_ha.as_str()).collect();
        assert_eq!(told, ["mq.example.com:31001", "mq.example.com:31021"]);
    }

    #[test]
    fn slaves_are_told_the_inner_address_that_was_configured() {
        let told = |text: &str| {
            let mut config = Config::default();
            config.ha.advertise = Some(text.to_owned());
            let advertise = (address("203.0.113.5:10911"), Some("mq.example.com"));
            let plans = lay_out(&config, "broker-a", address("0.0.0.0:10911"), advertise, 2);
            plans.map(|plans| plans.into_iter().map(|plan| plan.told_ha).collect::<Vec<_>>())
        };
        assert_eq!(told("10.0.0.5").expect("plan"), ["10.0.0.5:10912", "10.0.0.5:10932"]);
        assert_eq!(told("10.0.0.5:7000").expect("plan"), ["10.0.0.5:7000", "10.0.0.5:7020"]);
        assert!(matches!(told("0.0.0.0"), Err(ConfigError::Address { key: "ha.advertise", .. })));
    }

    #[test]
    fn sibling_shards_are_not_neighbours_of_shard_zero_in_name_order() {
        let mut names: Vec<String> = Vec::new();
        for name in ["broker-a", "broker-b"] {
            let plans = lay_out(
                &Config::default(),
                name,
                address("0.0.0.0:10911"),
                (address("10.0.0.5:10911"), None),
                3,
            )
            .expect("plan");
            names.extend(plans.into_iter().map(|plan| plan.name));
        }
        names.sort();
        let process = |name: &str| name.ends_with("broker-a");
        assert!(names.windows(2).all(|pair| process(&pair[0]) != process(&pair[1])), "{names:?}");
    }

    #[test]
    fn ports_beyond_the_range_are_refused_by_shard() {
        let error = plans("0.0.0.0:65500", 3).expect_err("out of range").to_string();
        assert!(error.contains("shard 2") && error.contains("broker.listen"), "{error}");
        assert!(plans("0.0.0.0:2", 1).is_err());
    }

    #[test]
    fn a_port_used_twice_within_the_process_names_both_users() {
        let shards = plans("0.0.0.0:9857", 2).expect("plan");
        let namesrv = NamesrvPlan { listen: address("0.0.0.0:9878"), data_dir: PathBuf::new() };
        let error = check_ports(&shards, Some(&namesrv), None).expect_err("clash").to_string();
        assert!(
            error.contains("9878")
                && error.contains("the name server")
                && error.contains("the HA port of shard 1"),
            "{error}"
        );
        assert!(check_ports(&shards, None, None).is_ok());
        let metrics = Some(address("127.0.0.1:9858"));
        let error = check_ports(&shards, None, metrics).expect_err("clash").to_string();
        assert!(error.contains("9858") && error.contains("the metrics"), "{error}");
    }
}
