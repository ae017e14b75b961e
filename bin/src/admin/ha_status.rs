//! `ringmq admin ha-status`: the replication of each shard, as the brokers themselves tell it (request 28).

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringmq_net::body::{Body, ClusterInfo, KvTable};
use ringmq_net::code::request;
use ringmq_net::command::Command;
use serde::Serialize;

use crate::quick::{Link, QuickError, connect_namesrv};

/// Flags of `ringmq admin ha-status`.
#[derive(Debug, Clone, Default, Args)]
pub struct HaStatusArgs {
    /// Name servers, joined by `;`: all brokers that the first one to answer knows are asked.
    #[arg(long, value_name = "HOST:PORT", env = "NAMESRV_ADDR", default_value = "127.0.0.1:9876")]
    pub namesrv: String,
    /// Ask this broker alone, without a name server; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub broker: Vec<String>,
    /// Print JSON, one array of brokers.
    #[arg(long)]
    pub json: bool,
}

/// One shard of a broker group's member.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    /// Name and id; absent when it was asked without a name server.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<(String, i64)>,
    address: String,
    /// What it told, or why it did not.
    #[serde(flatten)]
    told: Told,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Told {
    Status(Status),
    Error(String),
}

/// What a shard tells of its replication. Offsets are physical, in bytes.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// `unknown` for a broker that tells none: a stock one.
    role: String,
    /// End of its log.
    log_end: Option<u64>,
    /// Held by as many slaves as a synchronous send waits for, up to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicated: Option<u64>,
    /// Connected slaves.
    slaves: Vec<SlaveStatus>,
    /// The slave whose connection ended last, and why it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ended: Option<String>,
    /// A slave's own view.
    #[serde(skip_serializing_if = "Option::is_none")]
    following: Option<Following>,
}

/// A slave as its master sees it.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SlaveStatus {
    address: String,
    state: String,
    /// `sent`, `acked`, `lagBytes`, `lagMs`, and what later versions add.
    #[serde(flatten)]
    figures: BTreeMap<String, String>,
}

/// A slave as it sees itself.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Following {
    master: String,
    state: String,
    reported: Option<u64>,
    lag_bytes: Option<u64>,
    /// Why the last connection that ended did.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

impl Status {
    fn read(table: &BTreeMap<String, String>) -> Status {
        let text = |key: &str| table.get(key).cloned();
        let number = |key: &str| table.get(key)?.parse().ok();
        let following = text("ringmqHaState").map(|state| Following {
            master: text("ringmqHaMaster").unwrap_or_default(),
            state,
            reported: number("ringmqHaReported"),
            lag_bytes: number("ringmqHaLagBytes"),
            last_error: text("ringmqHaLastError"),
        });
        // Slaves are numbered without a gap.
        let slaves = (0..).map_while(|at| table.get(&format!("ringmqHaSlave_{at}")));
        Status {
            role: text("ringmqHaRole").unwrap_or_else(|| "unknown".to_owned()),
            log_end: number("commitLogMaxOffset"),
            replicated: number("ringmqHaReplicated"),
            slaves: slaves.map(|line| SlaveStatus::read(line)).collect(),
            last_ended: text("ringmqHaLastEnded"),
            following,
        }
    }

    /// Whether nobody has to look at it.
    fn is_well(&self) -> bool {
        let well = |slave: &SlaveStatus| slave.state == "streaming" && !slave.is_second();
        self.slaves.iter().all(well)
            && self.following.as_ref().is_none_or(|following| following.state == "following")
    }
}

impl SlaveStatus {
    /// `ADDRESS state=WORDS KEY=VALUE ...`: only the state has blanks.
    fn read(line: &str) -> SlaveStatus {
        let (address, rest) = line.split_once(" state=").unwrap_or((line, ""));
        let mut figures = BTreeMap::new();
        let mut state = rest;
        while let Some((before, word)) = state.rsplit_once(' ')
            && let Some((key, value)) = word.split_once('=')
        {
            figures.insert(key.to_owned(), value.to_owned());
            state = before;
        }
        SlaveStatus { address: address.to_owned(), state: state.to_owned(), figures }
    }

    /// Another slave has its id.
    fn is_second(&self) -> bool {
        self.figures.contains_key("sameIdAsAnother")
    }

    fn figure(&self, key: &str) -> &str {
        self.figures.get(key).map_or("?", String::as_str)
    }
}

impl Member {
    fn ask(broker: Option<(String, i64)>, address: &str) -> Member {
        let told = match runtime_info(address) {
            Ok(table) => Told::Status(Status::read(&table)),
            Err(error) => Told::Error(error.to_string()),
        };
        Member { broker, address: address.to_owned(), told }
    }

    fn is_well(&self) -> bool {
        matches!(&self.told, Told::Status(status) if status.is_well())
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, id)) = &self.broker {
            write!(f, "{name} {id} ")?;
        }
        let status = match &self.told {
            Told::Status(status) => status,
            Told::Error(why) => return writeln!(f, "{}: {why}", self.address),
        };
        let known =
            |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        write!(f, "{} {}, log ends at {}", self.address, status.role, known(status.log_end))?;
        if let Some(replicated) = status.replicated.filter(|_| !status.slaves.is_empty()) {
            write!(f, ", replicated to {replicated}")?;
        }
        f.write_char('\n')?;
        if let Some(following) = &status.following {
            let master = Some(following.master.as_str()).filter(|master| !master.is_empty());
            writeln!(
                f,
                "    master {}: {}, reported {}, behind {} bytes",
                master.unwrap_or("-"),
                following.state,
                known(following.reported),
                known(following.lag_bytes),
            )?;
            if let Some(why) = &following.last_error {
                writeln!(f, "        last error: {why}")?;
            }
        }
        for slave in &status.slaves {
            writeln!(
                f,
                "    slave {} at {} ({}): {}, sent {}, holds {}, behind {} bytes and {} ms{}",
                slave.figure("id"),
                slave.address,
                slave.figure("protocol"),
                slave.state,
                slave.figure("sent"),
                slave.figure("acked"),
                slave.figure("lagBytes"),
                slave.figure("lagMs"),
                if slave.is_second() { ": another slave has the same id" } else { "" },
            )?;
        }
        if let Some(ended) = &status.last_ended {
            writeln!(f, "    last connection that ended: {ended}")?;
        }
        Ok(())
    }
}

/// Asks, prints, and says by the exit status whether all is well.
pub(super) fn run(args: &HaStatusArgs) -> Result<ExitCode, QuickError> {
    let members: Vec<Member> = match args.broker.is_empty() {
        true => known_brokers(&args.namesrv)?
            .into_iter()
            .map(|(name, id, address)| Member::ask(Some((name, id)), &address))
            .collect(),
        false => args.broker.iter().map(|address| Member::ask(None, address)).collect(),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&members)
            .map(|text| text + "\n")
            .map_err(|error| QuickError::Terminal(error.into()))?,
        false => members.iter().map(Member::to_string).collect(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(QuickError::Terminal)?;
    let well = !members.is_empty() && members.iter().all(Member::is_well);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Name, id and address of every broker that a name server knows, in this order.
fn known_brokers(namesrvs: &str) -> Result<Vec<(String, i64, String)>, QuickError> {
    let mut namesrv = connect_namesrv(namesrvs)?;
    let answer = namesrv.call_ok(Command::request(request::GET_BROKER_CLUSTER_INFO))?;
    let info = ClusterInfo::from_json(&answer.body).map_err(|error| QuickError::Protocol {
        addr: namesrv.addr().to_owned(),
        why: error.to_string(),
    })?;
    let mut found: Vec<_> = info
        .brokers
        .into_values()
        .flat_map(|data| {
            let name = data.broker_name;
            data.broker_addrs.into_iter().map(move |(id, address)| (name.clone(), id, address))
        })
        .collect();
    found.sort();
    Ok(found)
}

fn runtime_info(address: &str) -> Result<BTreeMap<String, String>, QuickError> {
    let mut link = Link::connect(address)?;
    let answer = link.call_ok(Command::request(request::GET_BROKER_RUNTIME_INFO))?;
    let table = KvTable::from_json(&answer.body).map_err(|error| QuickError::Protocol {
        addr: address.to_owned(),
        why: error.to_string(),
    })?;
    Ok(table.table.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_master_tells_its_slaves_and_a_refused_one_is_not_well() {
        let mut told = table(&[
            ("ringmqHaRole", "SYNC_MASTER"),
            ("commitLogMaxOffset", "900"),
            ("ringmqHaReplicated", "800"),
            (
                "ringmqHaSlave_0",
                "10.0.0.2:4711 state=streaming protocol=terms id=1 sent=900 acked=800 lagBytes=100 lagMs=7 reports=3",
            ),
        ]);
        let status = Status::read(&told);
        assert!(status.is_well());
        assert_eq!(status.slaves[0].figure("lagMs"), "7");
        let second = "ringmqHaSlave_0";
        let mut doubled = told.clone();
        doubled.entry(second.to_owned()).and_modify(|line| line.push_str(" sameIdAsAnother=true"));
        assert!(!Status::read(&doubled).is_well());
        let why = "refused: its log ends at 9000, behind this master's end";
        told.insert("ringmqHaSlave_1".to_owned(), format!("[::1]:9 state={why} sent=0 acked=0"));
        let status = Status::read(&told);
        assert_eq!((status.slaves[1].address.as_str(), &*status.slaves[1].state), ("[::1]:9", why));
        assert!(!status.is_well());
        let member = Member {
            broker: Some(("a".to_owned(), 0)),
            address: "m:1".to_owned(),
            told: Told::Status(status),
        };
        let text = member.to_string();
        assert!(
            text.starts_with("a 0 m:1 SYNC_MASTER, log ends at 900, replicated to 800\n"),
            "{text}"
        );
        assert!(text.contains("    slave 1 at 10.0.0.2:4711 (terms): streaming, sent 900, holds 800, behind 100 bytes and 7 ms\n"), "{text}");
        assert!(text.contains(&format!("[::1]:9 (?): {why}, sent 0")), "{text}");
    }

    #[test]
    fn a_slave_tells_its_master_and_is_well_while_it_follows() {
        let mut told = table(&[
            ("ringmqHaRole", "SLAVE"),
            ("ringmqHaState", "following"),
            ("ringmqHaMaster", "10.0.0.1:10912"),
            ("ringmqHaReported", "55"),
            ("ringmqHaLagBytes", "0"),
        ]);
        told.insert("ringmqHaLastError".to_owned(), "10.0.0.1:10912: it was silent".to_owned());
        let status = Status::read(&told);
        assert!(status.is_well(), "it follows again");
        let told_of = Told::Status(status);
        let member = Member { broker: None, address: "s:1".to_owned(), told: told_of }.to_string();
        assert!(member.contains("last error: 10.0.0.1:10912: it was silent\n"), "{member}");
        told.insert("ringmqHaState".to_owned(), "connecting: Connection refused".to_owned());
        assert!(!Status::read(&told).is_well());
    }

    #[test]
    fn a_stock_broker_tells_nothing_of_it() {
        let status = Status::read(&table(&[("commitLogMaxOffset", "5")]));
        assert_eq!(
            (status.role.as_str(), status.log_end, status.is_well()),
            ("unknown", Some(5), true)
        );
    }
}
