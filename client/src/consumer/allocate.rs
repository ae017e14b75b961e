//! How the queues of a topic are divided among the members of a group: every member computes the same division by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ringmq_net::body::MessageQueue;

use super::md5;

/// Virtual nodes per member of a consistent hash, unless said.
pub const VIRTUAL_NODES: u32 = 10;

/// The room of a queue or of a client id; `None` when it has none, which makes the division fail.
pub type RoomOf<T> = Arc<dyn Fn(&T) -> Option<String> + Send + Sync>;
/// A division of one's own: (own client id, all queues, all client ids), both sorted, to own queues.
pub type Divide = Arc<dyn Fn(&str, &[MessageQueue], &[String]) -> Vec<MessageQueue> + Send + Sync>;

/// A rule of division, with stock's results. All members of a group must have the same.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Allocate {
    /// Equal runs of neighbouring queues.
    #[default]
    Average,
    /// Each in turn takes one queue.
    AverageByCircle,
    /// These queues, whoever else is there.
    Fixed(Vec<MessageQueue>),
    /// Queues of brokers called `<room>@<name>` in these rooms, in equal runs.
    MachineRoom(BTreeSet<String>),
    /// Queues of a room among the members of that room; queues of rooms without a member among all.
    NearbyRoom {
        /// Where a queue is.
        room_of_queue: RoomOf<MessageQueue>,
        /// Where a client id is.
        room_of_client: RoomOf<String>,
        /// The division within a room.
        within: Box<Allocate>,
    },
    /// Each queue to the next member on a ring of hashes; few queues move when members come and go.
    ConsistentHash {
        /// Places of each member on the ring; [`VIRTUAL_NODES`] is stock's default.
        virtual_nodes: u32,
    },
    /// One's own.
    Custom(Divide),
}

impl fmt::Debug for Allocate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Allocate {
    /// The name that stock gives it.
    #[must_use]
    pub fn name(&self) -> String {
        let name = match self {
            Allocate::Average => "AVG",
            Allocate::AverageByCircle => "AVG_BY_CIRCLE",
            Allocate::Fixed(_) => "CONFIG",
            Allocate::MachineRoom(_) => "MACHINE_ROOM",
            Allocate::NearbyRoom { within, .. } => {
                return format!("MACHINE_ROOM_NEARBY-{}", within.name());
            }
            Allocate::ConsistentHash { .. } => "CONSISTENT_HASH",
            Allocate::Custom(_) => "CUSTOM",
        };
        name.to_owned()
    }

    /// The queues of `me`. `queues` and `members` are sorted, so that everybody gets the same division. Nothing for who is no member.
    ///
    /// # Errors
    /// What keeps it from being divided, for a sentence.
    pub fn divide(
        &self,
        me: &str,
        queues: &[MessageQueue],
        members: &[String],
    ) -> Result<Vec<MessageQueue>, String> {
        let Some(at) = members.iter().position(|member| member == me) else {
            return Ok(Vec::new());
        };
        let count = members.len();
        let own = match self {
            Allocate::Average => run(queues, at, count).to_vec(),
            Allocate::AverageByCircle => queues.iter().skip(at).step_by(count).cloned().collect(),
            Allocate::Fixed(fixed) => fixed.clone(),
            Allocate::MachineRoom(rooms) => machine_room(rooms, queues, at, count),
            Allocate::NearbyRoom { room_of_queue, room_of_client, within } => {
                return nearby(room_of_queue, room_of_client, within, me, queues, members);
            }
            Allocate::ConsistentHash { virtual_nodes } => ring(*virtual_nodes, me, queues, members),
            Allocate::Custom(divide) => divide(me, queues, members),
        };
        Ok(own)
    }
}

/// The run of the `at`th of `count`; the first ones get one more where it does not come out even.
fn run(queues: &[MessageQueue], at: usize, count: usize) -> &[MessageQueue] {
    let (each, more) = (queues.len() / count, queues.len() % count);
    let start = at * each + at.min(more);
    let len = each + usize::from(at < more);
    &queues[start..start + len]
}

/// Equal runs of those in the rooms; what is left over goes to the first ones, one each.
fn machine_room(
    rooms: &BTreeSet<String>,
    queues: &[MessageQueue],
    at: usize,
    count: usize,
) -> Vec<MessageQueue> {
    let in_rooms = |queue: &&MessageQueue| {
        let mut parts = queue.broker_name.split('@');
        let room = parts.next().unwrap_or_default();
        parts.next().is_some() && parts.next().is_none() && rooms.contains(room)
    };
    let here: Vec<&MessageQueue> = queues.iter().filter(in_rooms).collect();
    let each = here.len() / count;
    let rest = here.get(at + each * count);
    here[each * at..each * (at + 1)].iter().chain(rest).map(|queue| (*queue).clone()).collect()
}

fn nearby(
    room_of_queue: &RoomOf<MessageQueue>,
    room_of_client: &RoomOf<String>,
    within: &Allocate,
    me: &str,
    queues: &[MessageQueue],
    members: &[String],
) -> Result<Vec<MessageQueue>, String> {
    let named = |room: Option<String>, of: &dyn fmt::Display| {
        room.filter(|room| !room.is_empty()).ok_or_else(|| format!("{of} has no machine room"))
    };
    let mut queues_of: BTreeMap<String, Vec<MessageQueue>> = BTreeMap::new();
    for queue in queues {
        let room = named(room_of_queue(queue), &queue_text(queue))?;
        queues_of.entry(room).or_default().push(queue.clone());
    }
    let mut members_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut mine = String::new();
    for member in members {
        let room = named(room_of_client(member), member)?;
        if member == me {
            mine.clone_from(&room);
        }
        members_of.entry(room).or_default().push(member.clone());
    }
    let mut own = Vec::new();
    for (room, queues) in queues_of {
        match members_of.get(&room) {
            Some(neighbours) if room == mine => {
                own.extend(within.divide(me, &queues, neighbours)?);
            }
            Some(_) => {}
            None => own.extend(within.divide(me, &queues, members)?),
        }
    }
    Ok(own)
}

fn ring(nodes: u32, me: &str, queues: &[MessageQueue], members: &[String]) -> Vec<MessageQueue> {
    let mut ring: BTreeMap<u32, &str> = BTreeMap::new();
    for member in members {
        for node in 0..nodes.max(1) {
            ring.insert(md5::first_word(&format!("{member}-{node}")), member);
        }
    }
    let owner = |queue: &&MessageQueue| {
        let hash = md5::first_word(&queue_text(queue));
        let next = ring.range(hash..).next().or_else(|| ring.iter().next());
        next.is_some_and(|(_, owner)| *owner == me)
    };
    queues.iter().filter(owner).cloned().collect()
}

/// A queue as the Java client prints it; the ring is made of such texts.
pub(crate) fn queue_text(queue: &MessageQueue) -> String {
    let MessageQueue { topic, broker_name, queue_id } = queue;
    format!("MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(n: usize) -> Vec<MessageQueue> {
        let name = |i: usize| if i.is_multiple_of(2) { "a@b1" } else { "b@b2" };
        let mut all: Vec<_> =
            (0..n).map(|i| MessageQueue::new("T", name(i), (i / 2) as i32)).collect();
        all.sort();
        all
    }

    fn members(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("10.0.0.{:02}@{}", i + 1, ["x", "y", "z"][i % 3])).collect()
    }

    fn sizes(rule: &Allocate, queue_count: usize, member_count: usize) -> Vec<usize> {
        let (queues, members) = (queues(queue_count), members(member_count));
        members.iter().map(|me| rule.divide(me, &queues, &members).unwrap().len()).collect()
    }

    fn nearby_rule() -> Allocate {
        Allocate::NearbyRoom {
            room_of_queue: Arc::new(|queue| queue.broker_name.split('@').next().map(str::to_owned)),
            room_of_client: Arc::new(|client| {
                let room = if client.ends_with('x') { "a" } else { "c" };
                Some(room.to_owned())
            }),
            within: Box::new(Allocate::Average),
        }
    }

    #[test]
    fn every_rule_gives_each_queue_to_exactly_one_member() {
        let rules = [
            Allocate::Average,
            Allocate::AverageByCircle,
            Allocate::MachineRoom(["a".to_owned(), "b".to_owned()].into()),
            nearby_rule(),
            Allocate::ConsistentHash { virtual_nodes: VIRTUAL_NODES },
        ];
        for rule in rules {
            for n in 0..=20 {
                for c in [1, 2, 3, 4, 5, 7, 12, 20] {
                    let (queues, members) = (queues(n), members(c));
                    let mut all = Vec::new();
                    for me in &members {
                        all.extend(rule.divide(me, &queues, &members).unwrap());
                    }
                    all.sort();
                    assert_eq!(all, queues, "{rule:?} {n} {c}");
                }
            }
        }
    }

    #[test]
    fn sizes_are_those_of_stock() {
        assert_eq!(sizes(&Allocate::Average, 8, 3), [3, 3, 2]);
        assert_eq!(sizes(&Allocate::Average, 4, 3), [2, 1, 1]);
        assert_eq!(sizes(&Allocate::Average, 2, 3), [1, 1, 0]);
        assert_eq!(sizes(&Allocate::AverageByCircle, 8, 3), [3, 3, 2]);
        // 4 of 8 queues are in room a: one each, and the first gets the one left over.
        assert_eq!(sizes(&Allocate::MachineRoom(["a".to_owned()].into()), 8, 3), [2, 1, 1]);
        let queues = queues(4);
        let own = Allocate::AverageByCircle.divide("m2", &queues, &["m1".into(), "m2".into()]);
        assert_eq!(own.unwrap(), [queues[1].clone(), queues[3].clone()]);
    }

    #[test]
    fn a_ring_is_the_one_of_the_java_client() {
        // Computed outside, by the rule of stock 4.9.8 with another MD5.
        let members = ["10.0.0.1@a".to_owned(), "10.0.0.2@b".to_owned()];
        let queues: Vec<_> = (0..8).map(|i| MessageQueue::new("T", "broker-a", i)).collect();
        let ids = |me: &str| -> Vec<i32> {
            let rule = Allocate::ConsistentHash { virtual_nodes: VIRTUAL_NODES };
            rule.divide(me, &queues, &members).unwrap().iter().map(|q| q.queue_id).collect()
        };
        assert_eq!((ids("10.0.0.1@a"), ids("10.0.0.2@b")), (vec![1, 4, 5], vec![0, 2, 3, 6, 7]));
    }

    #[test]
    fn few_queues_move_on_a_ring_when_a_member_leaves() {
        let (queues, all) = (queues(24), members(5));
        let rule = Allocate::ConsistentHash { virtual_nodes: 20 };
        let owner = |members: &[String], queue: &MessageQueue| {
            let has = |me: &&String| rule.divide(me, &queues, members).unwrap().contains(queue);
            members.iter().find(has).cloned()
        };
        let rest = &all[..4];
        for queue in &queues {
            let before = owner(&all, queue);
            if before.as_deref() != Some(all[4].as_str()) {
                assert_eq!(before, owner(rest, queue));
            }
        }
    }

    #[test]
    fn a_stranger_and_a_place_without_a_room_get_nothing_by_mistake() {
        let (queues, members) = (queues(4), members(2));
        assert_eq!(Allocate::Average.divide("nobody", &queues, &members), Ok(Vec::new()));
        let rule = Allocate::NearbyRoom {
            room_of_queue: Arc::new(|_| None),
            room_of_client: Arc::new(|_| Some("r".to_owned())),
            within: Box::default(),
        };
        assert!(rule.divide(&members[0], &queues, &members).unwrap_err().contains("machine room"));
        assert_eq!(rule.name(), "MACHINE_ROOM_NEARBY-AVG");
        let fixed = Allocate::Fixed(queues[1..2].to_vec());
        assert_eq!(fixed.divide(&members[1], &queues, &members).unwrap(), queues[1..2]);
    }
}
