//! Two slaves that were given the same broker id.

use crate::SLAVE;
use crate::support::broker::ringmq;
use crate::support::ha::{
    CAUGHT_UP_MAX, Pair, QUICK, await_streaming, await_text, number, runtime,
};
use crate::support::wire::eventually;
use crate::support::{Broker, Options, Target, tempdir};

const TOLD: &str = "two slaves have the same id";

#[test]
fn two_slaves_of_one_id_are_named_and_count_as_one() {
    let dir = tempdir("ha-twins");
    let mut pair = Pair::start(dir.path(), "sync-master", QUICK, Options::default());
    await_streaming(pair.master.address(0));
    let mut options = pair.slave.options.clone();
    options.args = SLAVE.iter().map(|arg| (*arg).to_owned()).collect();
    let namesrv = Some(pair.namesrv.address);
    let mut twin = Broker::new(Target::RingMq, &dir.sub("twin"), options, namesrv);
    twin.start();
    let master = pair.master.address(0);
    let marked = || {
        let table = runtime(master);
        let lines = table.iter().filter(|(key, _)| key.starts_with("ringmqHaSlave_"));
        lines.filter(|(_, line)| line.contains("sameIdAsAnother=true")).count()
    };
    let named = eventually(CAUGHT_UP_MAX, || (marked() == 1).then_some(()));
    assert!(named.is_some(), "{:?}", runtime(master));
    let mut status = ringmq();
    status.args(["admin", "ha-status", "--broker", &master.to_string()]);
    let out = status.output().expect("the status");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(!out.status.success() && text.contains("another slave has the same id"), "{text}");
    // Said once, however often both report.
    let reports = || -> u64 {
        let lines = runtime(master).into_values().filter_map(|line| {
            line.split("reports=").nth(1)?.split(' ').next()?.parse::<u64>().ok()
        });
        lines.sum()
    };
    let before = reports();
    assert!(eventually(CAUGHT_UP_MAX, || (reports() >= before + 10).then_some(())).is_some());
    assert_eq!(pair.master.process().log_text().matches(TOLD).count(), 1);
    // One of them goes, and all is well.
    twin.sigkill();
    await_text(master, "ringmqHaSlaves", |slaves| slaves == "1");
    assert!(eventually(CAUGHT_UP_MAX, || (marked() == 0).then_some(())).is_some());
    assert_eq!(number(master, "ringmqHaSlaves"), Some(1));
}
