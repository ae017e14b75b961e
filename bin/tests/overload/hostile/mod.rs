//! Hostile clients, at the broker and at the name server: requests with every part wrong, connections that only hold on, bodies that
//! explode, names that want out of the store. What they may cost is their own connections.

mod attack;
mod catalog;
mod mutate;
mod request;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::judge::{self, Budgets};
use crate::pair::{self, Pair};
use crate::support::checker::{Checker, Rules};
use crate::support::random::Random;
use crate::support::{Broker, Options, Target, exclusive, tempdir};
use attack::{Mutants, Quiet, attack, hold_giants, trickle};

/// `RINGMQ_HOSTILE_SECONDS`, else 20.
fn seconds() -> u64 {
    let seconds = std::env::var("RINGMQ_HOSTILE_SECONDS").ok();
    seconds.map_or(20, |s| s.parse().expect("RINGMQ_HOSTILE_SECONDS is a number"))
}

#[test]
fn hostile_clients_cost_only_their_own_connections() {
    let _alone = exclusive();
    let mut random = Random::from_env("hostile");
    let budgets = Budgets::default();
    let dir = tempdir("hostile");
    let options = Options { config: budgets.config(), ..Options::default() };
    let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
    broker.create_topic(catalog::TOPIC, 4);
    let pair = Pair::start(&broker, dir.path(), 100);
    pair.await_more(50);
    let idle_kib = broker.process().memory_kib("VmRSS");

    let stop = Arc::new(AtomicBool::new(false));
    let attackers = start_attackers(&broker, &mut random, &stop);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds()) {
        pair.await_more(10);
    }
    stop.store(true, Ordering::Relaxed);
    let sent: u64 = attackers.into_iter().map(|a| a.join().expect("an attacker")).sum();
    println!("{sent} hostile requests");
    assert!(sent > 100, "{sent} hostile requests are no attack");

    assert!(broker.is_running(), "the broker is gone");
    pair.await_more(50);
    let peak = broker.process().memory_kib("VmHWM");
    // The name server has buffers of its own. What a large body says takes more than the body, and names that were made stay.
    let both = Budgets { buffers: 2 * budgets.buffers, ..budgets };
    let bound = both.peak_kib(idle_kib, 1_000, 10_000) + (64 << 10);
    println!("resident: idle {idle_kib} KiB, peak {peak} KiB, bound {bound} KiB");
    assert!(peak <= bound, "the process had {peak} KiB, its budgets make {bound}");
    let log = broker.process().log_text();
    println!("stalls: {:?}", judge::stalls(&log));
    judge::assert_calm_log(&log, 2_000 + 200 * seconds() as usize);
    let journal = Arc::clone(&pair.journal);
    pair.judge(&mut broker);

    // What they left behind is a store like any other.
    nothing_got_out(dir.path());
    broker.start();
    let rules = Rules::of(broker.target, "write");
    Checker::new().check(&broker.addresses(), pair::TOPIC, pair::QUEUES, &journal, rules);
    let (status, _) = broker.terminate(Duration::from_secs(30));
    assert!(status.success(), "{status}");
    files_are_well_formed(&broker.store_dir());
    nothing_got_out(dir.path());
}

fn start_attackers(
    broker: &Broker,
    random: &mut Random,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<u64>> {
    let (at_broker, at_names) = (broker.address(0), broker.namesrv);
    let mut threads = Vec::new();
    let mut start =
        |seed: u64, to: SocketAddr, work: fn(SocketAddr, Random, &AtomicBool) -> u64| {
            let stop = Arc::clone(stop);
            threads.push(std::thread::spawn(move || work(to, Random::new(seed), &stop)));
        };
    start(random.next(), at_broker, |to, random, stop| {
        attack(to, Mutants { valid: catalog::of_a_broker(), random }, stop)
    });
    start(random.next(), at_broker, |to, random, stop| {
        attack(to, Mutants { valid: catalog::of_a_broker(), random }, stop)
    });
    start(random.next(), at_names, |to, random, stop| {
        attack(to, Mutants { valid: catalog::of_a_name_server(), random }, stop)
    });
    start(random.next(), at_broker, |to, _, stop| hold_giants(to, 16, stop));
    start(random.next(), at_names, |to, _, stop| hold_giants(to, 4, stop));
    start(random.next(), at_broker, |to, _, stop| trickle(&mut Quiet::open(to, 200), stop));
    start(random.next(), at_names, |to, _, stop| trickle(&mut Quiet::open(to, 50), stop));
    threads
}

/// Nothing lies beside the store, and in it nothing that a name has put there.
fn nothing_got_out(dir: &Path) {
    let expected = ["broker", "good.journal"];
    for entry in std::fs::read_dir(dir).expect("the directory").map_while(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(expected.contains(&name.as_str()), "{name} was made beside the broker's directory");
    }
    let expected = ["store", "process.log", "ringmq.toml"];
    for entry in std::fs::read_dir(dir.join("broker")).expect("its directory").map_while(Result::ok)
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(expected.contains(&name.as_str()), "{name} was made beside the store");
    }
    for name in judge::files_below(&dir.join("broker/store")) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_-%|.".contains(&b));
        assert!(plain && !name.contains("escaped"), "a name made the file {name:?}");
    }
    for outside in ["/tmp/ringmq-escaped", "/escaped"] {
        assert!(!Path::new(outside).exists(), "{outside} was made");
    }
}

/// Every file of the configuration is JSON (with bare numbers as keys, as stock writes them), and none is a leftover.
fn files_are_well_formed(store: &Path) {
    for dir in [store.join("config"), store.join("namesrv")] {
        for entry in std::fs::read_dir(&dir).expect("a directory").map_while(Result::ok) {
            let path = entry.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            assert!(!name.ends_with(".tmp"), "{name} is left over");
            if name.ends_with(".json") || name.ends_with(".json.bak") {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                let parsed = serde_json::from_str::<serde_json::Value>(&with_quoted_keys(&text));
                assert!(parsed.is_ok(), "{name}: {parsed:?}");
            }
        }
    }
}

/// Puts bare numbers that stand as keys into quotes.
fn with_quoted_keys(json: &str) -> String {
    let mut out = String::new();
    let mut rest = json;
    let mut in_text = false;
    while let Some(c) = rest.chars().next() {
        let number = rest.strip_prefix('-').unwrap_or(rest);
        let sign = rest.len() - number.len();
        let digits = sign + number.bytes().take_while(|b| b.is_ascii_digit()).count();
        if in_text && c == '\\' {
            out.push_str(&rest[..2]);
            rest = &rest[2..];
        } else if !in_text
            && digits > sign
            && rest[digits..].starts_with(':')
            && !ends_in_number(&out)
        {
            out.push_str(&format!("\"{}\"", &rest[..digits]));
            rest = &rest[digits..];
        } else {
            in_text ^= c == '"';
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn ends_in_number(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.')
}

#[test]
fn bare_keys_are_quoted_and_values_are_not() {
    let json = r#"{"a@b":{-1:-5,0:7},"c\"{1:":"2:3"}"#;
    let quoted = with_quoted_keys(json);
    assert_eq!(quoted, r#"{"a@b":{"-1":-5,"0":7},"c\"{1:":"2:3"}"#);
}
