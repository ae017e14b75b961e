//! Stock Java clients that live through their master's death.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::support::client::{Client, Event, Running};
use crate::support::ha::{Pair, QUICK, await_streaming};
use crate::support::journal::Journal;
use crate::support::load::{Load, LoadSpec};
use crate::support::wire::eventually;
use crate::support::{Broker, tempdir};
use crate::{QUEUES, TOPIC, journal, small_segments, spec, stream};

const PATIENCE: Duration = Duration::from_secs(90);
const JAVA: Client = Client::Java("4.9.8");

/// What of `kind` is reported so far, by place.
fn places(events: &[Event], kind: &str) -> BTreeSet<(i32, i64)> {
    let some = events.iter().filter(|event| event.kind == kind);
    let well = some.filter(|event| event.status.as_deref().is_none_or(|s| s == "SEND_OK"));
    well.filter_map(|event| Some((event.queue?, event.offset?))).collect()
}

/// Waits until the consumer has had all of `wanted`.
fn await_received(consumer: &Running, wanted: impl Fn() -> BTreeSet<(i32, i64)>) {
    let missing = || {
        let had = places(&consumer.so_far(), "recv");
        wanted().into_iter().filter(|place| !had.contains(place)).collect::<Vec<_>>()
    };
    let all = eventually(PATIENCE, || missing().is_empty().then_some(()));
    assert!(
        all.is_some(),
        "{} messages do not come, first {:?}",
        missing().len(),
        missing().first()
    );
}

/// A group that comes when the master is gone reads every acknowledged message from the slave.
pub(crate) fn assert_a_consumer_reads_all(slave: &Broker, dir: &Path, journal: &Journal) {
    if !JAVA.fetch() {
        return;
    }
    let online = format!("online={TOPIC}");
    let mut consumer = JAVA.start(slave, dir, "late", QUEUES, &[&online]);
    let wanted = || journal.acked().iter().map(|at| (at.queue, at.offset)).collect();
    await_received(&consumer, wanted);
    consumer.process.say("stop\n");
    consumer.finish(PATIENCE);
}

#[test]
fn java_consumers_go_on_at_the_slave_and_the_producer_when_the_master_is_back() {
    if !JAVA.fetch() {
        return;
    }
    let dir = tempdir("ha-java");
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, small_segments());
    let topic = "flow_flood";
    pair.master.create_topic(topic, QUEUES);
    await_streaming(pair.master.address(0));
    stream::await_at(&pair.slave, topic);
    let online = format!("online={topic}");
    let mut consumer = JAVA.start(&pair.master, dir.path(), "reader", QUEUES, &[&online]);
    let mut producer = JAVA.start(&pair.master, dir.path(), "flow", QUEUES, &["flood"]);
    let sent = |producer: &Running| places(&producer.so_far(), "sent");
    let await_sent = |producer: &Running, count: usize| {
        let reached = eventually(PATIENCE, || (sent(producer).len() >= count).then_some(()));
        assert!(reached.is_some(), "{} sent, not {count}", sent(producer).len());
    };
    await_sent(&producer, 300);
    let some = || sent(&producer).into_iter().take(50).collect();
    await_received(&consumer, some);
    pair.master.sigkill();
    // It gets every message that was acknowledged.
    await_received(&consumer, || sent(&producer));
    producer.process.say("stop\n");
    let mut all = places(&producer.finish(PATIENCE), "sent");
    pair.master.start();
    await_streaming(pair.master.address(0));
    // Producers go on. A stock one with the defaults asks for the route after half a minute, so this is another one.
    let journal = journal(&dir);
    let spec = LoadSpec { topic: topic.to_owned(), ..spec() };
    let load = Load::start(&pair.master.addresses(), &spec, &journal);
    journal.await_count(300);
    load.stop();
    all.extend(journal.acked().iter().map(|at| (at.queue, at.offset)));
    await_received(&consumer, || all.clone());
    consumer.process.say("stop\n");
    consumer.finish(PATIENCE);
    pair.await_caught_up();
    pair.compare_logs();
}
