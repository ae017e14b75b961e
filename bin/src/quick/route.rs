//! Where a topic's queues are.

use std::time::Duration;

use ringmq_net::body::{Body, TopicRouteData};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;

use super::QuickError;
use super::link::Link;

/// The topic whose route tells where unknown topics are made.
pub(super) const TEMPLATE_TOPIC: &str = "TBW102";
const PERM_READ: i32 = 4;
const PERM_WRITE: i32 = 2;

/// A queue and the address of the master that has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueAt {
    pub(super) broker: String,
    pub(super) addr: String,
    pub(super) queue_id: i32,
}

/// What a route is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    Reading,
    Writing,
}

/// The first of the name servers (joined by `;`) that can be reached.
pub(crate) fn connect_namesrv(addrs: &str) -> Result<Link, QuickError> {
    let mut last = QuickError::Argument("no name server given: use --namesrv HOST:PORT".to_owned());
    for addr in addrs.split(';').map(str::trim).filter(|addr| !addr.is_empty()) {
        match Link::connect(addr) {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The topic's queues, sorted; `None` if the name server does not know the topic.
pub(super) fn queues(
    namesrv: &mut Link,
    topic: &str,
    purpose: For,
) -> Result<Option<Vec<QueueAt>>, QuickError> {
    let request = Command::request(request::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", topic);
    let answer = namesrv.call(request, Duration::ZERO)?;
    match answer.code {
        response::SUCCESS => {}
        response::TOPIC_NOT_EXIST => return Ok(None),
        _ => return Err(namesrv.refused(&answer)),
    }
    let route = TopicRouteData::from_json(&answer.body).map_err(|error| QuickError::Protocol {
        addr: namesrv.addr().to_owned(),
        why: error.to_string(),
    })?;
    let mut queues = Vec::new();
    for data in &route.queues {
        let (perm, count) = match purpose {
            For::Reading => (PERM_READ, data.read_queue_nums),
            For::Writing => (PERM_WRITE, data.write_queue_nums),
        };
        let broker = route.brokers.iter().find(|broker| broker.broker_name == data.broker_name);
        let Some(addr) = broker.and_then(|broker| broker.broker_addrs.get(&0)) else { continue };
        if data.perm & perm == 0 {
            continue;
        }
        queues.extend((0..count).map(|queue_id| QueueAt {
            broker: data.broker_name.clone(),
            addr: addr.clone(),
            queue_id,
        }));
    }
    queues.sort();
    Ok(Some(queues))
}
