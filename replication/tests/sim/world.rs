//! One seed's world, and what must hold in it.

use std::collections::BTreeMap;
use std::time::Duration;

use ringmq_net::ha_term_frame::Capabilities;
use ringmq_replication::pair::{
    MasterAction, MasterConfig, MasterLog, MasterSession, Parsed, SlaveAction, SlaveConfig,
    SlaveLog, SlaveSession, Speech, Start, Trouble,
};
use ringmq_replication::stock::{LogRange, Timing};
use ringmq_replication::terms::{Term, TermId, TermList};

use crate::link::{Link, Stream};
use crate::log::SEGMENT;
use crate::node::{Following, Node, Role, Served, Waiting};
use crate::random::Random;

/// Steps in which things fail.
const STEPS: u64 = 350;
/// Simulated milliseconds within which all must be well again.
const HEAL_MS: u64 = 120_000;
const TIMING: Timing =
    Timing { heartbeat: Duration::from_millis(500), housekeeping: Duration::from_millis(2_000) };
/// Bytes under way before a master has to wait.
const WINDOW: usize = 3_000;

/// What happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) acknowledged: u64,
    pub(crate) terms: u64,
    pub(crate) cuts: u64,
    pub(crate) refused_cuts: u64,
    pub(crate) damaged: u64,
    pub(crate) kills: u64,
    pub(crate) power_losses: u64,
    pub(crate) steps: u64,
    pub(crate) bytes: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.acknowledged += other.acknowledged;
        self.terms += other.terms;
        self.cuts += other.cuts;
        self.refused_cuts += other.refused_cuts;
        self.damaged += other.damaged;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.steps += other.steps;
        self.bytes += other.bytes;
    }
}

pub(crate) struct World {
    seed: u64,
    random: Random,
    now: u64,
    nodes: Vec<Node>,
    links: Vec<Link>,
    next_link: u64,
    master: usize,
    /// What each term's master wrote, from its start on, by id.
    truth: BTreeMap<u128, (u64, Vec<u8>)>,
    acknowledged: Vec<Waiting>,
    /// The operator may make anybody the master, even one that lacks what was acknowledged.
    careless: bool,
    sync: bool,
    /// Once in so many steps something fails.
    fault_in: u64,
    failing: bool,
    telling: bool,
    outcome: Outcome,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sync = random.one_in(2);
        let mut capabilities = Capabilities::none();
        for one in [Capabilities::FRAME_CRC, Capabilities::LARGE_FRAMES] {
            if !random.one_in(3) {
                capabilities = capabilities.with(one);
            }
        }
        if sync {
            capabilities = capabilities.with(Capabilities::SYNC_ACKS);
        }
        let count = 2 + random.below(2);
        let wanted = 1 + random.below(count - 1) as usize;
        let careless = random.one_in(5);
        let fault_in = 4 + random.below(30);
        let mut world = World {
            seed,
            now: 0,
            nodes: (0..count).map(|_| Node::new(capabilities, sync, wanted)).collect(),
            links: Vec::new(),
            next_link: 0,
            master: 0,
            truth: BTreeMap::new(),
            acknowledged: Vec::new(),
            careless,
            sync,
            fault_in,
            failing: true,
            telling: std::env::var_os("RINGMQ_SIM_TELL").is_some(),
            outcome: Outcome::default(),
            random,
        };
        world.nodes[0].role = Role::Master;
        (0..count as usize).for_each(|node| world.start(node));
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        for _ in 0..STEPS {
            self.step();
            if self.random.one_in(self.fault_in) {
                self.fail();
            }
        }
        self.heal();
        self.outcome.acknowledged = self.acknowledged.len() as u64;
        self.outcome.steps = self.now;
        self.outcome.bytes = self.nodes[self.master].log.end();
        self.outcome
    }

    /// Faults end; then all must come to agree, but for those who must not.
    fn heal(&mut self) {
        self.failing = false;
        self.links.iter_mut().for_each(|link| link.stalled_until = 0);
        if !self.nodes[self.master].up {
            let best = self.best(true);
            self.make_master(best);
        }
        let deadline = self.now + HEAL_MS;
        while !self.agreed() {
            assert!(self.now < deadline, "seed {}: {}", self.seed, self.describe());
            self.step();
        }
        (0..self.nodes.len()).for_each(|node| self.check_terms(node));
        if self.careless {
            return;
        }
        let log = &self.nodes[self.master].log.bytes;
        for message in &self.acknowledged {
            let there = log.get(message.from as usize..message.end() as usize);
            let seed = self.seed;
            assert_eq!(there, Some(&message.bytes[..]), "seed {seed}: at {}", message.from);
        }
    }

    fn agreed(&self) -> bool {
        let master = &self.nodes[self.master];
        master.up
            && self.nodes.iter().enumerate().all(|(id, node)| {
                let follows = node.following.as_ref().is_some_and(|f| f.session.is_following());
                let same = node.log.bytes == master.log.bytes && node.held() == node.log.end();
                id == self.master || (follows && same) || self.may_stay_apart(id)
            })
    }

    /// A slave that refuses to give up what was acknowledged, or whose log shares no term with its master's.
    fn may_stay_apart(&self, id: usize) -> bool {
        let (node, master) = (&self.nodes[id], &self.nodes[self.master]);
        match &node.diverged {
            Some(Trouble::BelowAcknowledged { .. }) => self.careless,
            Some(Trouble::NothingCommon { .. }) => {
                let known = |term: &Term| master.terms.as_slice().iter().any(|m| m.id == term.id);
                !node.terms.as_slice().iter().any(known)
            }
            _ => false,
        }
    }

    fn describe(&self) -> String {
        let each = self.nodes.iter().map(|node| {
            format!(
                "{:?} up={} end={} held={} terms={:?} diverged={:?} following={:?}\n",
                node.role,
                node.up,
                node.log.end(),
                node.held(),
                node.terms.as_slice(),
                node.diverged,
                node.following.as_ref().map(|f| f.session.is_following()),
            )
        });
        format!("they do not agree: master {}\n{}", self.master, each.collect::<String>())
    }

    fn step(&mut self) {
        self.now += 1 + self.random.below(20);
        for id in 0..self.nodes.len() {
            if !self.nodes[id].up && self.now >= self.nodes[id].start_at {
                let is_master = id == self.master;
                // A dead master is not always the one that comes back.
                if is_master && self.failing && self.random.one_in(2) {
                    let careful = !self.careless || self.random.one_in(2);
                    let best = self.best(careful);
                    self.make_master(best);
                } else {
                    self.start(id);
                }
            }
        }
        self.send();
        for id in 0..self.nodes.len() {
            self.turn_disk(id);
            self.connect(id);
        }
        self.deliver();
        for id in 0..self.nodes.len() {
            self.serve(id);
            self.follow(id);
        }
        self.drop_links();
    }

    // ---- the operator ----

    /// Who has most of the latest history; or anybody. Never the present master, if others are there.
    fn best(&mut self, careful: bool) -> usize {
        if !careful {
            return self.random.below(self.nodes.len() as u64) as usize;
        }
        let rank = |id: &usize| {
            let node = &self.nodes[*id];
            // What a running one has not written does not survive its restart as the master.
            let end = if node.up { node.log.written } else { node.log.end() };
            let end = node.cut_order.unwrap_or(end);
            let last = end.checked_sub(1).and_then(|at| node.terms.at(at));
            (last.map_or(0, |term| term.id.0), end)
        };
        let others = (0..self.nodes.len()).filter(|id| *id != self.master);
        others.max_by_key(rank).unwrap_or(self.master)
    }

    fn make_master(&mut self, id: usize) {
        self.tell(&format!("{id} becomes the master"));
        self.kill(self.master, false);
        self.kill(id, false);
        self.nodes[self.master].role = Role::Slave;
        self.nodes[id].role = Role::Master;
        self.master = id;
        self.start(id);
    }

    // ---- a node's life ----

    fn start(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        if let Some(at) = node.cut_order.take() {
            assert!(at >= node.bound_saved, "seed {}: a cut below the bound", self.seed);
            node.log.cut(at);
            self.outcome.cuts += 1;
        }
        node.log.restart(node.log.end());
        let end = node.log.end();
        node.terms.cut(end);
        node.bound = node.bound_saved;
        node.up = true;
        node.next_try = self.now;
        if node.role == Role::Master {
            self.outcome.terms += 1;
            let id = TermId(u128::from(self.outcome.terms));
            let term = Term { number: node.floor + 1, start: end, id };
            node.floor += 1;
            node.terms.append(term).expect("a term that follows");
            self.truth.insert(id.0, (end, Vec::new()));
        }
        let (end, last) = (end, node.terms.last().copied());
        self.tell(&format!("{id} starts at {end}, {last:?}"));
        self.check_terms(id);
    }

    /// What happens, for who looks into one seed.
    fn tell(&self, what: &str) {
        if self.telling {
            println!("{:>7} {what}", self.now);
        }
    }

    fn kill(&mut self, id: usize, power: bool) {
        let node = &mut self.nodes[id];
        if !node.up {
            return;
        }
        self.outcome.kills += 1;
        self.outcome.power_losses += u64::from(power);
        let safe = if power { node.log.durable } else { node.log.written };
        let kept = safe + self.random.below(node.log.end() - safe + 1);
        let (end, sync) = (node.log.end(), power);
        if self.telling {
            println!("{:>7} {id} dies at {end}, {kept} is kept, power loss {sync}", self.now);
        }
        node.log.restart(kept);
        node.stop();
        node.start_at = self.now + 1 + self.random.below(600);
        for link in &mut self.links {
            link.slave_gone |= link.slave == id;
            link.master_gone |= link.master == id;
        }
    }

    fn fail(&mut self) {
        let id = self.random.below(self.nodes.len() as u64) as usize;
        let power = self.sync && self.random.one_in(2);
        match self.random.below(8) {
            0 => self.kill(id, power),
            1 => self.kill(self.master, power),
            2 => {
                let until = self.now + self.random.below(4_000);
                let slave = id;
                let of_slave = self.links.iter_mut().filter(|link| link.slave == slave);
                of_slave.for_each(|link| link.stalled_until = until);
            }
            // The slave's end breaks, and the master does not hear of it for a while: the next connection is beside the old one.
            3 | 4 => {
                let until = self.now + self.random.below(1_500);
                if let Some(following) = self.nodes[id].following.take() {
                    for link in self.links.iter_mut().filter(|link| link.id == following.link) {
                        link.slave_gone = true;
                        link.stalled_until = until;
                    }
                }
            }
            5 => {
                let link = self.random.below(8) as usize;
                if let Some(link) = self.links.get_mut(link) {
                    link.master_gone = true;
                }
            }
            _ => {
                let careful = !self.careless || self.random.one_in(2);
                if self.random.one_in(3) {
                    self.kill(self.master, false);
                    let best = self.best(careful);
                    self.make_master(best);
                }
            }
        }
    }

    fn send(&mut self) {
        let wanted = if self.failing { self.random.below(4) } else { self.random.below(12) / 11 };
        let node = &mut self.nodes[self.master];
        if !node.up || (!self.failing && node.log.end() > 200_000) {
            return;
        }
        for _ in 0..wanted {
            let seed = self.random.next();
            let len = 1 + self.random.below(120) as usize;
            let body: Vec<u8> = (0..len).map(|at| (seed >> (at % 8 * 8)) as u8).collect();
            let before = node.log.end();
            let bytes = node.log.append(&body);
            let term = node.terms.last().expect("a master's term");
            let (_, written) = self.truth.get_mut(&term.id.0).expect("a known term");
            written.extend_from_slice(&bytes);
            if node.gate.reachable(node.log.end()) {
                let from = node.log.end() - (2 + len as u64);
                let bytes = bytes[(from - before) as usize..].to_vec();
                node.waiting.push(Waiting { from, bytes });
            }
        }
    }

    fn turn_disk(&mut self, id: usize) {
        let slow = 1 + self.seed % 4;
        let node = &mut self.nodes[id];
        if !node.up || !self.random.one_in(slow) {
            return;
        }
        let log = &mut node.log;
        let unwritten = log.end() - log.written;
        log.durable += if self.random.one_in(2) { log.written - log.durable } else { 0 };
        let all = !self.failing || self.random.one_in(2);
        log.written += if all { unwritten } else { self.random.below(unwritten + 1) };
        if self.random.one_in(10) {
            node.bound_saved = node.bound;
        }
    }

    // ---- connections ----

    fn connect(&mut self, id: usize) {
        let node = &self.nodes[id];
        let due = node.up && node.role == Role::Slave && node.following.is_none();
        // The shell waits until what the last connection brought is held.
        if !due || self.now < node.next_try || node.held() < node.log.end() {
            return;
        }
        if !self.nodes[self.master].up {
            self.nodes[id].next_try = self.now + 250;
            return;
        }
        self.next_link += 1;
        let link = self.next_link;
        self.links.push(Link {
            id: link,
            slave: id,
            master: self.master,
            up: Stream::default(),
            down: Stream::default(),
            stalled_until: 0,
            slave_gone: false,
            master_gone: false,
        });
        let now = self.now;
        let config = SlaveConfig {
            timing: TIMING,
            slave_id: id as i64 + 1,
            start: Start::Oldest,
            capabilities: self.nodes[id].capabilities,
        };
        let known = self.random.one_in(2);
        self.nodes[id].following = Some(Following {
            link,
            session: SlaveSession::new(config, Speech::Terms { known }, now),
            frame: Vec::new(),
            body: Vec::new(),
            wanted: None,
            since: now,
        });
        let master = &mut self.nodes[self.master];
        let peer = master.gate.join();
        let config = MasterConfig { timing: TIMING, stock_batch_bytes: 300, metadata: true };
        let session = MasterSession::new(config, now);
        master.served.push(Served { link, peer, session, acked: 0, writing: false });
    }

    fn deliver(&mut self) {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.stalled_until > self.now {
                continue;
            }
            let (id, slave, master) = (link.id, link.slave, link.master);
            while let Some(bytes) = link.up.pop(self.now, &mut self.random) {
                let node = &mut self.nodes[master];
                let view = view_of_master(&node.log, &node.terms, node.held(), node.bound, true);
                if let Some(served) = node.served.iter_mut().find(|served| served.link == id) {
                    served.session.received(self.now, &bytes, &view);
                }
            }
            while let Some(bytes) = link.down.pop(self.now, &mut self.random) {
                let following = self.nodes[slave].following.as_mut();
                if let Some(following) = following.filter(|following| following.link == id) {
                    following.frame.extend_from_slice(&bytes);
                }
            }
        }
    }

    /// Ends of links that are gone are heard of once nothing is under way any more.
    fn drop_links(&mut self) {
        let (now, nodes) = (self.now, &mut self.nodes);
        self.links.retain(|link| {
            if link.stalled_until > now {
                return true;
            }
            if link.slave_gone && link.up.bytes == 0 {
                let master = &mut nodes[link.master];
                for served in master.served.iter().filter(|served| served.link == link.id) {
                    master.gate.leave(served.peer);
                }
                master.served.retain(|served| served.link != link.id);
            }
            if link.master_gone && link.down.bytes == 0 {
                let slave = &mut nodes[link.slave];
                slave.following = slave.following.take().filter(|f| f.link != link.id);
            }
            let served = nodes[link.master].served.iter().any(|served| served.link == link.id);
            let followed = nodes[link.slave].following.as_ref().is_some_and(|f| f.link == link.id);
            served || followed
        });
    }

    fn push_down(&mut self, link: u64, bytes: Vec<u8>) {
        let delay = self.random.below(40);
        if let Some(link) = self.links.iter_mut().find(|other| other.id == link) {
            link.down.push(self.now, delay, bytes);
        }
    }

    // ---- the master ----

    fn serve(&mut self, id: usize) {
        for at in 0..self.nodes[id].served.len() {
            if let Some(close) = self.serve_one(id, at) {
                for link in self.links.iter_mut().filter(|link| link.id == close) {
                    link.master_gone = true;
                }
                let node = &mut self.nodes[id];
                for served in node.served.iter().filter(|served| served.link == close) {
                    node.gate.leave(served.peer);
                }
            }
        }
        let links = &self.links;
        let open = |link: u64| links.iter().any(|other| other.id == link && !other.master_gone);
        self.nodes[id].served.retain(|served| open(served.link));
        self.release(id);
    }

    /// What one session of a master wants; the link, if it is to be closed.
    fn serve_one(&mut self, id: usize, at: usize) -> Option<u64> {
        loop {
            let link = self.nodes[id].served[at].link;
            let under_way = self.links.iter().find(|other| other.id == link)?.down.bytes;
            let node = &mut self.nodes[id];
            let view = view_of_master(&node.log, &node.terms, node.held(), node.bound, false);
            let held = node.held();
            let served = &mut node.served[at];
            if served.writing && under_way < WINDOW {
                served.writing = false;
                served.session.sent(self.now);
            }
            let due = served.session.due(&view);
            match served.session.next(self.now, &view)? {
                MasterAction::Send(bytes) => {
                    served.writing = true;
                    self.push_down(link, bytes);
                }
                MasterAction::Data { from, max } => {
                    assert_eq!(due, Some((from, max)), "seed {}: what leaves at once", self.seed);
                    let end = held.min(from + 1 + self.random.below(u64::from(max)));
                    let body = node.log.bytes[from as usize..end as usize].to_vec();
                    let head = served.session.frame(&body, &view);
                    served.writing = true;
                    let mut bytes = head.bytes().to_vec();
                    let body_at = bytes.len();
                    bytes.extend_from_slice(&body);
                    let checked = served.session.granted().has(Capabilities::FRAME_CRC);
                    if checked && self.failing && self.random.one_in(60) {
                        let place = body_at + self.random.below(body.len() as u64) as usize;
                        bytes[place] ^= 1 << self.random.below(8);
                    }
                    self.push_down(link, bytes);
                }
                MasterAction::Crc { offset, len } => {
                    let crc = node.log.crc(offset, len);
                    served.session.crc(offset, len, crc);
                }
                MasterAction::Withhold => node.gate.withhold(served.peer),
                MasterAction::Admit(slave) => node.gate.admit(served.peer, slave),
                MasterAction::Acked(offset) => {
                    let sent = served.session.next_offset().unwrap_or(0);
                    assert!(offset <= sent, "seed {}: {offset} of {sent} sent", self.seed);
                    assert!(offset >= served.acked, "seed {}: backwards", self.seed);
                    served.acked = offset;
                    node.gate.acked(served.peer, offset);
                    self.release(id);
                }
                MasterAction::State(_) => {}
                MasterAction::Close(_) => return Some(link),
            }
        }
    }

    /// Answers the sends that are replicated, and looks whether they are.
    fn release(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        let replicated = node.gate.replicated();
        let count = node.waiting.partition_point(|waiting| waiting.end() <= replicated);
        let done: Vec<Waiting> = node.waiting.drain(..count).collect();
        for message in done {
            let end = message.end() as usize;
            let log = &self.nodes[id].log.bytes[..end];
            let holds = |node: &Node| {
                node.held() >= message.end() && node.log.bytes.get(..end) == Some(log)
            };
            let slaves = self.nodes.iter().enumerate().filter(|(other, _)| *other != id);
            let holders = slaves.filter(|(_, node)| holds(node)).count();
            let (seed, wanted) = (self.seed, self.nodes[id].wanted);
            assert!(holders >= wanted, "seed {seed}: {holders} hold what ends at {end}");
            self.nodes[id].bound = self.nodes[id].bound.max(message.end());
            self.tell(&format!("{id} acknowledges up to {end}"));
            self.acknowledged.push(message);
        }
    }

    // ---- the slave ----

    fn follow(&mut self, id: usize) {
        let since = match &self.nodes[id].following {
            Some(following) => following.since,
            None => return,
        };
        if let Err(why) = self.follow_on(id) {
            self.ended(id, since, why);
        }
        self.nodes[id].bound = match &self.nodes[id].following {
            Some(following) => self.nodes[id].bound.max(following.session.confirmed()),
            None => self.nodes[id].bound,
        };
    }

    fn ended(&mut self, id: usize, since: u64, why: Trouble) {
        let node = &mut self.nodes[id];
        if let Some(following) = node.following.take() {
            for link in self.links.iter_mut().filter(|link| link.id == following.link) {
                link.slave_gone = true;
            }
        }
        let lasted = Duration::from_millis(self.now - since);
        let wait = node.retry.after(lasted, why.is_divergence());
        node.next_try = self.now + wait.as_millis() as u64;
        match why {
            Trouble::Silent(_) | Trouble::NotRingMq => {}
            Trouble::Damaged(_) => self.outcome.damaged += 1,
            Trouble::BelowAcknowledged { point, bound, .. } => {
                assert!(self.careless, "seed {}: {why}", self.seed);
                assert!(point < bound && node.log.end() >= point);
                self.outcome.refused_cuts += 1;
                node.diverged = Some(why);
            }
            Trouble::NothingCommon { .. } => node.diverged = Some(why),
            other => panic!("seed {}: {other}", self.seed),
        }
    }

    fn follow_on(&mut self, id: usize) -> Result<(), Trouble> {
        loop {
            let now = self.now;
            let node = &mut self.nodes[id];
            let Some(following) = node.following.as_mut() else { return Ok(()) };
            let view = SlaveLog {
                min: 0,
                end: node.log.end(),
                held: if node.sync { node.log.durable } else { node.log.written },
                segment: SEGMENT,
                bound: node.bound,
                terms: &node.terms,
            };
            match following.session.next(now, &view)? {
                Some(SlaveAction::Send(bytes)) => {
                    let (link, delay) = (following.link, self.random.below(40));
                    if let Some(link) = self.links.iter_mut().find(|other| other.id == link) {
                        link.up.push(now, delay, bytes);
                    }
                }
                Some(SlaveAction::Crc { offset, len }) => {
                    let crc = node.log.crc(offset, len);
                    following.session.crc(now, crc, &view)?;
                }
                Some(SlaveAction::StoreTerms(terms)) => {
                    following.session.terms_stored(now);
                    self.store_terms(id, terms);
                }
                Some(SlaveAction::Cut(at)) => {
                    if self.telling {
                        println!("{now:>7} {id} is cut at {at} of {}", node.log.end());
                    }
                    node.cut_order = Some(at);
                    let at_once = node.log.end();
                    node.log.written = at_once;
                    self.kill(id, false);
                    self.nodes[id].start_at = now + self.random.below(100);
                    return Ok(());
                }
                Some(SlaveAction::Follows) => {
                    node.diverged = None;
                    let end = node.log.end();
                    self.tell(&format!("{id} follows at {end}"));
                    self.check_prefix(id);
                }
                None if self.read(id)? => {}
                None => return Ok(()),
            }
        }
    }

    fn store_terms(&mut self, id: usize, terms: TermList) {
        let node = &mut self.nodes[id];
        node.floor = node.floor.max(terms.last().map_or(0, |term| term.number));
        node.terms = terms;
        if self.failing && self.random.one_in(40) {
            self.kill(id, false);
        }
    }

    /// Goes on with what has come. Whether that was something.
    fn read(&mut self, id: usize) -> Result<bool, Trouble> {
        let now = self.now;
        let node = &mut self.nodes[id];
        let Some(following) = node.following.as_mut() else { return Ok(false) };
        if let Some(body) = following.wanted {
            let left = body.len - following.body.len();
            let take = left.min(following.frame.len());
            following.body.extend(following.frame.drain(..take));
            following.session.heard(now);
            if following.body.len() < body.len {
                return Ok(false);
            }
            following.wanted = None;
            let bytes = std::mem::take(&mut following.body);
            following.session.body(now, body.is_intact(&bytes))?;
            assert_eq!(body.at, node.log.end(), "seed {}", self.seed);
            node.log.bytes.extend_from_slice(&bytes);
            return Ok(true);
        }
        let view = SlaveLog {
            min: 0,
            end: node.log.end(),
            held: if node.sync { node.log.durable } else { node.log.written },
            segment: SEGMENT,
            bound: node.bound,
            terms: &node.terms,
        };
        match following.session.parse(now, &following.frame, &view)? {
            Parsed::Need(_) | Parsed::Wait => Ok(false),
            Parsed::Consumed(len) | Parsed::Metadata(_, len) => {
                following.frame.drain(..len);
                Ok(true)
            }
            Parsed::Body(body, head) => {
                following.frame.drain(..head);
                following.wanted = Some(body);
                assert!(!body.begins, "seed {}: the log begins at 0", self.seed);
                if let Some(term) = body.term {
                    assert_ne!(term.id, TermId(0), "seed {}: a term without an id", self.seed);
                    let mut terms = node.terms.clone();
                    terms.append(term).expect("a term that follows");
                    self.store_terms(id, terms);
                }
                Ok(true)
            }
        }
    }

    // ---- what must hold ----

    /// A slave that follows has a part of its master's log from the first byte on.
    fn check_prefix(&self, id: usize) {
        let (node, master) = (&self.nodes[id], &self.nodes[self.master]);
        let link = node.following.as_ref().map(|following| following.link);
        let mut open = self.links.iter().filter(|link| !link.master_gone);
        if open.all(|other| Some(other.id) != link || other.master != self.master) {
            // What a dead master had still on its way may be what it lost.
            return;
        }
        let same = master.log.bytes.starts_with(&node.log.bytes);
        assert!(
            same,
            "seed {}: node {id} follows with another log\n{}",
            self.seed,
            self.describe()
        );
        self.check_terms(id);
    }

    /// Each term of a node's list covers what that term's master wrote, and nothing else.
    fn check_terms(&self, id: usize) {
        let node = &self.nodes[id];
        let terms = node.terms.as_slice();
        for (at, term) in terms.iter().enumerate() {
            let (start, written) = &self.truth[&term.id.0];
            assert_eq!(term.start, *start, "seed {}: {term:?}", self.seed);
            let end = terms.get(at + 1).map_or(node.log.end(), |next| next.start);
            let end = end.min(node.log.end());
            let held = node.log.bytes.get(*start as usize..end as usize).unwrap_or_default();
            let seed = self.seed;
            assert!(
                written.starts_with(held),
                "seed {seed}: node {id}, {term:?}\n{}",
                self.describe()
            );
        }
    }
}

fn view_of_master<'a>(
    log: &crate::log::SimLog,
    terms: &'a TermList,
    held: u64,
    confirmed: u64,
    handshake: bool,
) -> MasterLog<'a> {
    MasterLog {
        range: LogRange { min: 0, max: held, segment: SEGMENT },
        whole: if handshake { log.whole(held) } else { held },
        confirmed,
        terms,
    }
}
