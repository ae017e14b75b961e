//! Where a topic's queues are.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};

use ringmq_net::body::{Body, TopicRouteData};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::QueueHeader;

use crate::call::call;
use crate::cli::CommonOptions;
use crate::error::LoadError;

/// Queues used on a broker given by its address.
const QUEUES_DEFAULT: usize = 4;
/// Bits of a topic's permission.
const PERM_WRITE: i32 = 2;
const PERM_READ: i32 = 4;
/// The topic that producers make new topics after.
const TEMPLATE_TOPIC: &str = "TBW102";

/// A broker and the queues to use there: 0 up to `queues`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The master's address.
    pub address: SocketAddr,
    /// How many queues.
    pub queues: usize,
}

/// What the queues are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Sending.
    Write,
    /// Pulling.
    Read,
}

/// The brokers and queues that the options name.
///
/// # Errors
/// An address doesn't resolve, no name server answers, or there is no queue.
pub fn find(options: &CommonOptions, access: Access) -> Result<Vec<Target>, LoadError> {
    match &options.namesrv {
        Some(namesrv) if options.addr.is_empty() => by_route(options, namesrv, access),
        _ => {
            let queues = options.queues.unwrap_or(QUEUES_DEFAULT);
            let target = |address: &String| Ok(Target { address: resolve(address)?, queues });
            options.addr.iter().map(target).collect()
        }
    }
}

/// The first address that a name stands for.
///
/// # Errors
/// There is none.
pub fn resolve(address: &str) -> Result<SocketAddr, LoadError> {
    let error = |source| LoadError::Resolve { address: address.to_owned(), source };
    let first = address.to_socket_addrs().map_err(error)?.next();
    first.ok_or_else(|| error(std::io::ErrorKind::NotFound.into()))
}

fn by_route(
    options: &CommonOptions,
    namesrv: &str,
    access: Access,
) -> Result<Vec<Target>, LoadError> {
    let mut last = LoadError::Options("--namesrv is empty".into());
    for address in namesrv.split([';', ',']).filter(|address| !address.trim().is_empty()) {
        let route = resolve(address.trim()).and_then(|address| {
            let own = route(address, &options.topic);
            match own {
                // As stock producers do: where a new topic could be made.
                Err(LoadError::Refused { code: response::TOPIC_NOT_EXIST, .. })
                    if access == Access::Write =>
                {
                    route(address, TEMPLATE_TOPIC)
                }
                own => own,
            }
        });
        match route {
            Ok(route) => return targets(options, &route, access),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn route(address: SocketAddr, topic: &str) -> Result<TopicRouteData, LoadError> {
    const WHAT: &str = "the topic's route";
    let request = Command::request(request::GET_ROUTEINFO_BY_TOPIC)
        .with_ext("topic", topic)
        .with_ext("acceptStandardJsonOnly", true);
    let reply = ok(WHAT, address, call(address, WHAT, &request)?)?;
    TopicRouteData::from_json(&reply.body).map_err(|source| LoadError::Call {
        what: WHAT,
        address,
        source: source.into(),
    })
}

fn targets(
    options: &CommonOptions,
    route: &TopicRouteData,
    access: Access,
) -> Result<Vec<Target>, LoadError> {
    let masters: BTreeMap<_, _> = route
        .brokers
        .iter()
        .filter_map(|broker| Some((&broker.broker_name, broker.broker_addrs.get(&0)?)))
        .collect();
    let mut targets = Vec::new();
    for queues in &route.queues {
        let (permission, count) = match access {
            Access::Write => (PERM_WRITE, queues.write_queue_nums),
            Access::Read => (PERM_READ, queues.read_queue_nums),
        };
        let count = usize::try_from(count).unwrap_or(0).min(options.queues.unwrap_or(usize::MAX));
        if let Some(address) = masters.get(&queues.broker_name)
            && queues.perm & permission != 0
            && count > 0
        {
            targets.push(Target { address: resolve(address)?, queues: count });
        }
    }
    if targets.is_empty() {
        let purpose = if access == Access::Write { "writable" } else { "readable" };
        return Err(LoadError::NoQueue { topic: options.topic.clone(), purpose });
    }
    Ok(targets)
}

/// The first or (`max`) the next queue offset of a queue.
///
/// # Errors
/// The broker doesn't say.
pub fn queue_offset(
    address: SocketAddr,
    topic: &str,
    queue_id: i32,
    max: bool,
) -> Result<u64, LoadError> {
    let (code, what) = if max {
        (request::GET_MAX_OFFSET, "a queue's max offset")
    } else {
        (request::GET_MIN_OFFSET, "a queue's min offset")
    };
    let header = QueueHeader { topic, queue_id };
    let request = Command::request(code).with_header(&header.ext());
    let reply = ok(what, address, call(address, what, &request)?)?;
    let offset = reply.ext("offset").and_then(|text| text.parse::<i64>().ok());
    Ok(offset.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0))
}

/// The reply if it is a success.
///
/// # Errors
/// It is none.
pub fn ok(what: &'static str, address: SocketAddr, reply: Command) -> Result<Command, LoadError> {
    if reply.code == response::SUCCESS {
        return Ok(reply);
    }
    let remark = reply.remark.unwrap_or_default();
    Err(LoadError::Refused { what, address, code: reply.code, remark })
}
