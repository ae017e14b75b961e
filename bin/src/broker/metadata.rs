//! A slave's copy of its master's topics, groups and progress, by RocketMQ's requests and at its pace (stock 4.9.8): topics at the
//! master's VIP port, the rest at its port, one after the other, each on its own. A RingMQ master says when there is something to ask for.

use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::state::{groups, topics};
use ringmq_net::client::{Client, ClientError};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;

use super::Broker;
use super::ha::Followed;

/// Before the first round (stock 4.9.8: 3 s), so that the name server has told of the master.
const FIRST: Duration = Duration::from_millis(500);
/// Between two rounds, whatever the master tells.
const PAUSE: Duration = Duration::from_millis(100);
/// One request to the master may take this long (stock 4.9.8).
const MASTER_TIMEOUT: Duration = Duration::from_secs(3);
/// (group, topic) pairs of what is to be told that are looked at at a time.
const PAIRS_A_TIME: usize = 1_000;
/// The VIP port is the client port less this.
const VIP_BELOW: u16 = 2;

impl Broker {
    /// Takes over the master's tables again and again, until the broker stops. Of a master whose log is followed, and of no other: one
    /// that came back without its disk has no topics either, and taking over that would remove the queues of the last copy there is.
    pub(super) async fn follow_metadata(self: Rc<Self>) {
        let period = Duration::from_millis(self.config.ha.metadata_ms);
        let mut wait = FIRST.min(period);
        while !self.stopped() {
            self.ha.tables_due.wait_at_most(wait).await;
            let Some((master, addr)) = self.whose_tables().await else {
                wait = FIRST.min(period);
                continue;
            };
            self.copy_tables(&master, &addr).await;
            let same = self.ha.followed().as_ref() == Some(&master);
            wait = if same { period } else { FIRST.min(period) };
            // Tables that change all the time are not asked for all the time.
            glommio::timer::sleep(PAUSE.min(period)).await;
        }
    }

    /// Whose log is followed, and where its tables are asked for.
    async fn whose_tables(&self) -> Option<(Followed, String)> {
        let master = self.ha.followed()?;
        let addr = self.tables_addr(&master).await?;
        (addr != self.config.told).then_some((master, addr))
    }

    /// What a master answered is not taken over when another one is followed, or told of, by then.
    async fn ask_master(
        &self,
        master: &Followed,
        addr: &str,
        code: i32,
    ) -> Result<Vec<u8>, String> {
        let body = ask(addr, code, &[]).await.map_err(|why| why.to_string())?;
        self.still_follows(master)?;
        Ok(body)
    }

    fn still_follows(&self, master: &Followed) -> Result<(), String> {
        if self.ha.followed().as_ref() == Some(master) {
            return Ok(());
        }
        Err("not taken over: another connection to a master is followed by now".to_owned())
    }

    async fn copy_tables(&self, master: &Followed, addr: &str) {
        // What comes with the log is newer than any answer.
        let offsets =
            if self.ha.metadata_comes() { Ok(()) } else { self.copy_offsets(master, addr).await };
        let topics = self.copy_topics(master, addr).await;
        let delays = self.copy_delay(master, addr).await;
        let groups = self.copy_groups(master, addr).await;
        // Before, it is not known what the master has no more.
        let known = topics.is_ok() && groups.is_ok();
        let outcomes = [
            ("topics", topics),
            ("consumer offsets", offsets),
            ("delay offsets", delays),
            ("consumer groups", groups),
        ];
        for (what, outcome) in outcomes {
            if let Err(why) = outcome {
                let why = format!("{what} of {addr}: {why}");
                self.rare_log.warn("taking over the master's tables, trying on", &why);
            }
        }
        if !known {
            return;
        }
        // May take long, and nothing else waits for it.
        if let Err(why) = self.hand_over_progress(master, addr).await {
            let why = format!("to {addr}: {why}");
            self.rare_log.warn("handing over what consumers committed here, trying on", &why);
        }
    }

    /// What consumers committed at this slave, because its master was away, goes to the master, where that does not know of more. What it
    /// has taken is not handed over again when it refuses something else.
    async fn hand_over_progress(&self, master: &Followed, addr: &str) -> Result<(), String> {
        let mut left = self.ha.untold.len();
        if left == 0 {
            return Ok(());
        }
        let connected = Client::connect(addr, MASTER_TIMEOUT).await;
        let client = connected.map_err(|why| why.to_string())?;
        let (mut outcome, mut stay) = (Ok(()), 0);
        // What consumers commit meanwhile may be for the next round.
        while left > 0 {
            let pairs = self.ha.untold.pairs(stay, PAIRS_A_TIME.min(left));
            if pairs.is_empty() {
                break;
            }
            left -= pairs.len();
            for (group, topic) in &pairs {
                let told = self.hand_over_pair(master, &client, group, topic).await?;
                outcome = told.and(outcome);
                stay += usize::from(self.ha.untold.table().queues(group, topic).is_some());
            }
        }
        outcome
    }

    /// The same of one group on one topic: what is inside tells of a refusal.
    ///
    /// # Errors
    /// There is no use in going on.
    async fn hand_over_pair(
        &self,
        master: &Followed,
        client: &Client,
        group: &str,
        topic: &str,
    ) -> Result<Result<(), String>, String> {
        let mut outcome = Ok(());
        let queues = self.ha.untold.table().queues(group, topic).cloned();
        for (queue, _) in queues.unwrap_or_default().iter() {
            if self.ha.followed().as_ref() != Some(master) {
                return Err("another connection to a master is followed by now".to_owned());
            }
            match self.hand_over_queue(client, group, topic, queue).await {
                Ok(()) => {}
                Err(why @ Unasked::Link(_)) => return Err(why.to_string()),
                Err(why) => outcome = Err(format!("{group} on {topic}, queue {queue}: {why}")),
            }
        }
        Ok(outcome)
    }

    /// The same of one queue. What the master tells while it is asked counts: it may have heard already.
    async fn hand_over_queue(
        &self,
        client: &Client,
        group: &str,
        topic: &str,
        queue: i32,
    ) -> Result<(), Unasked> {
        let Some(offset) = self.ha.untold.ask(group, topic, queue) else {
            return Ok(());
        };
        let Some(within) = self.within_queue(topic, queue, offset) else {
            self.ha.untold.not_told();
            return Ok(());
        };
        let told = tell_progress(client, group, topic, queue, within).await;
        let mut offsets = self.offsets.borrow_mut();
        let here = offsets.get(group, topic, queue);
        match told {
            Ok(more) => {
                self.ha.untold.told();
                // An entry that is there has its room.
                if here == Some(offset) {
                    let _ = offsets.commit(group, topic, queue, more);
                }
                Ok(())
            }
            Err(why) => {
                if self.ha.untold.not_told() && here.is_none_or(|here| here < offset) {
                    let _ = offsets.commit(group, topic, queue, offset);
                }
                Err(why)
            }
        }
    }

    /// Progress no further than its queue, which is the master's as far as that is here: beyond are messages that the master had and lost,
    /// and consumers would pass by what comes there. `None` while more of the queue is on its way. Of a queue that never had a message
    /// nothing is known.
    fn within_queue(&self, topic: &str, queue: i32, offset: i64) -> Option<i64> {
        let all = self.ha.has_masters_end(self.shard.dispatched());
        let end = self.shard.existing_queue(topic, queue).map_or(0, |queue| queue.max_offset());
        if end == 0 {
            return Some(offset);
        }
        (offset <= end || all).then(|| offset.min(end))
    }

    async fn copy_topics(&self, master: &Followed, addr: &str) -> Result<(), String> {
        let vip = port_below(addr, VIP_BELOW).ok_or("its address has no port")?;
        let body = self.ask_master(master, &vip, request::GET_ALL_TOPIC_CONFIG).await?;
        let table = topics::parse_file(&body).map_err(|error| error.to_string())?;
        // Not this table's own version: that goes on by itself where a name server has to hear of everything again.
        if self.ha.topics_taken.get() == Some(table.data_version) {
            return Ok(());
        }
        self.ha.topics_taken.set(Some(table.data_version));
        let gone = self.topics.borrow_mut().replace(&table);
        for topic in &gone {
            self.offsets.borrow_mut().remove_topic(topic.name());
        }
        // Not only of those: what the file has may be of a topic that was gone before this start.
        let known = |topic: &str| self.topics.borrow().get(topic).is_some();
        if self.ha.untold.keep_topics(known) {
            self.untold_is_saved().await;
        }
        for topic in gone {
            tracing::info!(
                topic = topic.name(),
                "the topic is gone from the master, and from here"
            );
            if let Err(error) = self.shard.remove_topic(topic.name()).await {
                self.rare_log.error("removing a topic's queues", &error);
            }
        }
        self.save_topics();
        self.registrations.register_soon();
        Ok(())
    }

    async fn copy_offsets(&self, master: &Followed, addr: &str) -> Result<(), String> {
        let body = self.ask_master(master, addr, request::GET_ALL_CONSUMER_OFFSET).await?;
        self.take_offsets(&body)
    }

    async fn copy_delay(&self, master: &Followed, addr: &str) -> Result<(), String> {
        let body = self.ask_master(master, addr, request::GET_ALL_DELAY_OFFSET).await?;
        self.take_delays(&body)
    }

    async fn copy_groups(&self, master: &Followed, addr: &str) -> Result<(), String> {
        let body = self.ask_master(master, addr, request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG).await?;
        let table = groups::parse_file(&body).map_err(|error| error.to_string())?;
        let known = &self.ha.masters_groups;
        if !known.are_taken() || table.data_version != self.groups.borrow().version() {
            let gone = known.gone(&table);
            for group in &gone {
                self.ha.untold.forget_group(group);
            }
            if !gone.is_empty() && !self.untold_is_saved().await {
                return Err("what is not told of deleted groups is not saved yet".to_owned());
            }
            self.still_follows(master)?;
            known.take(&table, &self.saver);
            self.groups.borrow_mut().replace(table);
            self.save_groups();
        }
        Ok(())
    }
}

/// Why a master's answer is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unasked {
    /// There is none.
    #[error("{0}")]
    Link(#[from] ClientError),
    /// It is a refusal.
    #[error("answered {code}: {remark}")]
    Answered {
        /// Its code.
        code: i32,
        /// What it says, if anything.
        remark: String,
    },
}

impl Unasked {
    fn answered(answer: Command) -> Unasked {
        Unasked::Answered { code: answer.code, remark: answer.remark.unwrap_or_default() }
    }
}

/// The body of a master's answer.
pub(super) async fn ask(
    addr: &str,
    code: i32,
    ext: &[(&'static str, &str)],
) -> Result<Vec<u8>, Unasked> {
    let client = Client::connect(addr, MASTER_TIMEOUT).await?;
    let mut command = Command::request(code);
    for (name, value) in ext {
        command = command.with_ext(*name, value);
    }
    let answer = client.call(command, MASTER_TIMEOUT).await?;
    if answer.code != response::SUCCESS {
        return Err(Unasked::answered(answer));
    }
    Ok(answer.body.to_vec())
}

/// Commits one queue's progress at the master if that does not know of more; what it has then.
async fn tell_progress(
    client: &Client,
    group: &str,
    topic: &str,
    queue: i32,
    offset: i64,
) -> Result<i64, Unasked> {
    let command = |code| {
        let command = Command::request(code).with_ext("consumerGroup", group);
        command.with_ext("topic", topic).with_ext("queueId", queue)
    };
    let asked = client.call(command(request::QUERY_CONSUMER_OFFSET), MASTER_TIMEOUT).await?;
    if let Some(known) = progress_in(asked)?.filter(|known| *known >= offset) {
        return Ok(known);
    }
    let commit = command(request::UPDATE_CONSUMER_OFFSET).with_ext("commitOffset", offset);
    let done = client.call(commit, MASTER_TIMEOUT).await?;
    if done.code != response::SUCCESS {
        return Err(Unasked::answered(done));
    }
    Ok(offset)
}

/// The offset in the answer to QUERY_CONSUMER_OFFSET; `None` if there is none.
///
/// # Errors
/// A refusal, as of a master that is busy: that does not tell that it has none.
fn progress_in(answer: Command) -> Result<Option<i64>, Unasked> {
    match answer.code {
        response::QUERY_NOT_FOUND => Ok(None),
        response::SUCCESS => match answer.ext("offset").and_then(|offset| offset.parse().ok()) {
            Some(offset) => Ok(Some(offset)),
            None => Err(Unasked::answered(answer)),
        },
        _ => Err(Unasked::answered(answer)),
    }
}

/// The address of the same host with a port so much lower.
pub(super) fn port_below(addr: &str, below: u16) -> Option<String> {
    let (host, port) = addr.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_sub(below)?;
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_refuses_to_tell_progress_is_not_one_that_has_none() {
        let answer = |code| Command { code, ..Command::request(0) };
        let known = progress_in(answer(response::SUCCESS).with_ext("offset", 90));
        assert!(matches!(known, Ok(Some(90))), "{known:?}");
        let none = progress_in(answer(response::QUERY_NOT_FOUND));
        assert!(matches!(none, Ok(None)), "{none:?}");
        for code in [response::SUCCESS, response::SYSTEM_ERROR, response::SYSTEM_BUSY] {
            let refused = progress_in(answer(code));
            assert!(
                matches!(refused, Err(Unasked::Answered { code: told, .. }) if told == code),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn topics_are_asked_for_two_ports_below() {
        assert_eq!(port_below("10.0.0.1:10911", VIP_BELOW).as_deref(), Some("10.0.0.1:10909"));
        assert_eq!(port_below("[::1]:10931", VIP_BELOW).as_deref(), Some("[::1]:10929"));
        assert_eq!(port_below("nowhere", VIP_BELOW), None);
        assert_eq!(port_below("host:1", VIP_BELOW), None);
    }
}
