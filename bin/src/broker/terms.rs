//! The terms of this shard's log: one begins with each start as a master, before a message is taken.

use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::shard::{OpenReport, Shard};
use ringmq_replication::term_store::{LogFound, TermStore};

use super::{Broker, BrokerConfig};
use crate::config::Role;

/// How often it is made durable how far the log was acknowledged as replicated: a lower bound, so it may lag.
const KEEP_BOUND: Duration = Duration::from_secs(1);

/// Reads the terms of a store that was opened, and begins one if this broker is a master. Blocks; the broker does not serve yet.
///
/// # Errors
/// One line.
pub(super) fn open_terms(
    config: &BrokerConfig,
    shard: &Shard,
    report: &OpenReport,
) -> Result<Rc<TermStore>, String> {
    let end = report.log.recovered.end;
    let found =
        LogFound { min: shard.log().min_offset(), end, stock_was_here: report.log.stock_was_here };
    let loaded = TermStore::load(shard.layout(), found);
    let (terms, notes) = loaded.map_err(|error| error.to_string())?;
    for note in notes {
        tracing::warn!(broker = config.name, "{note}");
    }
    if config.role != Role::Slave {
        let bound = terms.bound();
        if bound > end && !config.ha.give_up_acknowledged {
            return Err(format!(
                "this log ends at {end}, and messages up to {bound} were acknowledged because slaves held them: as a master it would lose them; start a slave that has them as the master and this one as its slave, or give them up with ha.give_up_acknowledged = true"
            ));
        }
        if bound > end {
            tracing::error!(
                broker = config.name,
                end,
                acknowledged = bound,
                "messages that were acknowledged because slaves held them are given up, as ha.give_up_acknowledged says: set it back to false"
            );
        }
        let term = terms.begin(end).map_err(|error| error.to_string())?;
        tracing::info!(
            broker = config.name,
            number = term.number,
            start = term.start,
            "a term begins"
        );
    }
    Ok(Rc::new(terms))
}

impl Broker {
    /// Makes durable, every now and then, how far the log was acknowledged as replicated.
    pub(super) async fn keep_bound_again_and_again(self: Rc<Self>) {
        while !self.stopped() {
            glommio::timer::sleep(KEEP_BOUND).await;
            self.keep_bound().await;
        }
    }

    pub(super) async fn keep_bound(&self) {
        let terms = &self.ha.terms;
        let Some((bound, save)) = terms.save_bound() else { return };
        match self.shard.off_reactor(move || save.run()).await {
            Ok(Ok(())) => terms.bound_saved(bound),
            Ok(Err(error)) => self.rare_log.error("saving how much is replicated", &error),
            Err(error) => self.rare_log.error("saving how much is replicated", &error),
        }
    }
}
