//! The good clients: a producer at a modest rate with a journal of its acknowledgements, and a consumer of every queue. They behave, and
//! so they are served, whatever others do.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::support::Broker;
use crate::support::checker::{Checker, Found, Place, Rules, Summary, watch};
use crate::support::load::{Journal, Load, LoadSpec};

pub(crate) const TOPIC: &str = "Good";
pub(crate) const QUEUES: u32 = 4;

pub(crate) struct Pair {
    pub(crate) journal: Arc<Journal>,
    load: Load,
    consumers: Vec<JoinHandle<Vec<(Place, Found)>>>,
}

impl Pair {
    /// Starts both; the topic is made if it is not there.
    pub(crate) fn start(broker: &Broker, dir: &Path, rate_max: u64) -> Pair {
        broker.create_topic(TOPIC, QUEUES);
        let journal = Journal::create(&dir.join("good.journal"));
        let spec =
            LoadSpec { topic: TOPIC.to_owned(), queues: QUEUES, conns: 2, window: 4, rate_max };
        let load = Load::start(&broker.addresses(), &spec, &journal);
        let consumers = watch(&broker.addresses(), TOPIC, QUEUES, &HashMap::new());
        Pair { journal, load, consumers }
    }

    /// Waits until `n` more messages are acknowledged: the pair is served while whatever else is going on.
    pub(crate) fn await_more(&self, n: u64) {
        self.journal.await_count(self.journal.count() + n);
    }

    /// Stops sending and checks all that was acknowledged; then ends the broker, so that the consumers come back with what they saw,
    /// which must be the same. Refusals are the producer's own affair: a stock one sends again.
    pub(crate) fn judge(self, broker: &mut Broker) -> Summary {
        self.load.stop();
        let rules = Rules::of(broker.target, broker.options.durability);
        let (addresses, mut checker) = (broker.addresses(), Checker::new());
        let summary = checker.check(&addresses, TOPIC, QUEUES, &self.journal, rules);
        assert!(broker.is_running(), "the broker is gone");
        broker.sigkill();
        let mut seen = 0;
        for consumer in self.consumers {
            seen += checker.hold_to(consumer.join().expect("a consumer"));
        }
        println!(
            "the good pair: {summary:?}, {seen} seen by its consumers, refused: {:?}",
            self.journal.refused_by_kind()
        );
        summary
    }
}
