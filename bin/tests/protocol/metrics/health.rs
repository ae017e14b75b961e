//! `/healthz` and `/readyz` through a broker's life and its misfortunes, and clients that mean no good.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use super::http::{connect, get};
use super::{Watched, scrape, status};
use crate::ext::Ext;
use crate::fixture::{SOON, soon};
use crate::peer::{Form, Peer};
use crate::support::broker::NameServer;
use crate::support::process::Process;
use crate::support::{Broker, Options, Target, ports, tempdir};

/// A metrics address and the configuration that opens it.
fn metrics(more: &str) -> (SocketAddr, String) {
    let http = SocketAddr::from(([127, 0, 0, 1], ports::single()));
    (http, format!("[metrics]\nlisten = \"{http}\"\n{more}\n"))
}

/// Asks until the answer is that; while the port is not open yet, there is none.
#[track_caller]
fn readyz_until(http: SocketAddr, what: &str, right: impl Fn(u16, &str) -> bool) -> String {
    soon(what, || {
        let answer = get(http, "/readyz").ok()?;
        right(answer.status, &answer.body).then_some(answer.body)
    })
}

#[test]
fn a_broker_is_ready_from_its_registration_until_it_leaves() {
    let dir = tempdir("ready");
    let (http, config) = metrics("");
    let flag = dir.path().join("slow");
    fs::write(&flag, "").expect("a flag");
    // The store opens slowly as long as the flag is there.
    let faults = format!("delay:Open:ms=700:when={}", flag.display());
    let mut namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = Options { config, faults, ..Options::default() };
    let mut broker =
        Broker::new(Target::RingMq, &dir.sub("broker"), options, Some(namesrv.address));
    broker.spawn();
    let opening =
        readyz_until(http, "opening", |code, body| code == 503 && body.contains("opening"));
    assert_eq!(opening, "broker-a: opening its store\n");
    // It lives, though it does not serve: whoever restarts it now would only begin again.
    assert_eq!(status(http, "/healthz").status, 200);
    assert_eq!(scrape(http).value("ringmq_shard_up", &[]), 0.0);
    fs::remove_file(&flag).expect("the flag");
    readyz_until(http, "ready", |code, body| (code, body) == (200, "ok\n"));

    // Without its name server nobody finds it; it is found again when that is back.
    namesrv.process.kill();
    let lost = readyz_until(http, "not registered", |code, _| code == 503);
    let expected = format!("broker-a: registered at no name server, tried {}\n", namesrv.address);
    assert_eq!(lost, expected);
    assert_eq!(status(http, "/healthz").status, 200);
    // A scrape may be that of the last 200 ms, in which the shard was not open yet.
    soon("the name server is told as lost", || {
        let scrape = scrape(http);
        let registered = scrape.find("ringmq_namesrv_registered", &[]);
        matches!(registered[..], [(_, 0.0)]).then_some(())
    });
    let mut again = std::process::Command::new(env!("CARGO_BIN_EXE_ringmq"));
    again.args(["namesrv", "--listen", &namesrv.address.to_string(), "--data-dir"]);
    again.arg(dir.sub("namesrv"));
    let _namesrv = Process::spawn("name server", again, &dir.path().join("namesrv.log"));
    readyz_until(http, "registered again", |code, _| code == 200);

    // On the way out it serves on for a while, and says at once that it is leaving.
    broker.process().signal(libc::SIGTERM);
    let leaving = readyz_until(http, "leaving", |code, _| code == 503);
    assert_eq!(leaving, "broker-a: stopping\n");
    let ended = broker.process().wait(SOON).expect("it ends");
    assert!(ended.success(), "{ended}");
    assert!(get(http, "/readyz").is_err(), "the port is closed");
}

#[test]
fn a_shard_whose_log_failed_is_alive_and_not_ready() {
    let dir = tempdir("log-failed");
    let flag = dir.path().join("broken");
    let faults = format!("errno:LogWrite:error=EIO:when={}", flag.display());
    let watched = Watched::start("failed", "", Options { faults, ..Options::default() });
    let mut peer = watched.peer();
    peer.send("T", &[], b"stored");
    assert_eq!(status(watched.http, "/readyz").status, 200);
    fs::write(&flag, "").expect("a flag");
    assert_eq!(peer.call(310, &Ext::send("T"), b"refused").code, 14);
    let answer = status(watched.http, "/readyz");
    assert_eq!(answer.status, 503);
    assert!(answer.body.starts_with("broker-a: takes no messages: "), "{}", answer.body);
    assert_eq!(status(watched.http, "/healthz").status, 200);
    assert_eq!(peer.call(310, &Ext::send("T"), b"refused too").code, 14);
    let scrape = watched.scrape_until("the failure", |s| s.value("ringmq_log_failed", &[]) == 1.0);
    assert_eq!(scrape.value("ringmq_refused_total", &[("reason", "log_failed")]), 2.0);
    assert_eq!(scrape.sum("ringmq_messages_out_total", &[]), 0.0);
    assert_eq!(peer.pull("T", 0, 0).len(), 1, "reads go on");
}

#[test]
fn a_broker_that_may_not_write_is_not_ready() {
    let watched = Watched::start("permission", "", Options::default());
    let mut peer = watched.peer();
    let mut permit = |value: &str| {
        peer.call(25, &Ext::none(), format!("brokerPermission={value}").as_bytes()).ok();
        status(watched.http, "/readyz")
    };
    let answer = permit("4");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("brokerPermission does not allow writing"), "{}", answer.body);
    assert_eq!(permit("6").status, 200);
}

/// One thread of a process, stopped by the debugger's means until dropped: its reactor cannot turn, all others can.
struct Stopped(libc::pid_t);

impl Stopped {
    /// Stops the thread of that name. The process is a child of this one, so this is allowed. From one thread alone.
    fn thread(pid: u32, name: &str) -> Stopped {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the threads");
        let named = tasks.flatten().find(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        });
        let task = named.unwrap_or_else(|| panic!("no thread {name}")).file_name();
        let tid: libc::pid_t = task.to_str().and_then(|tid| tid.parse().ok()).expect("a thread id");
        // SAFETY: these requests take numbers only; the thread is a child's.
        unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0);
            assert_eq!(seized, 0, "seize: {}", std::io::Error::last_os_error());
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(tid, &raw mut status, libc::__WALL), tid);
        }
        Stopped(tid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above; the thread is stopped, and goes on where it was.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

#[test]
fn a_reactor_that_does_not_turn_is_unhealthy_and_holds_up_nobody() {
    let options = Options { shards: 2, ..Options::default() };
    let mut watched = Watched::start("stalled", "unhealthy_ms = 2000\n", options);
    let http = watched.http;
    soon("well", || (status(http, "/healthz").status == 200).then_some(()));
    let stopped = Stopped::thread(watched.own.broker.process().pid(), "reactor-1");
    let ill = soon("ill", || Some(status(http, "/healthz")).filter(|answer| answer.status == 503));
    assert!(ill.body.starts_with("shard01-broker-a: its reactor has not turned for "), "{ill:?}");
    let unready = status(http, "/readyz");
    assert_eq!(unready.status, 503);
    assert_eq!(unready.body, "shard01-broker-a: its reactor does not answer\n");

    // Scrapes come, with what the other shard knows, however many were not answered before.
    for _ in 0..3 {
        let scrape = watched.scrape_until("the other shard", |scrape| {
            scrape.value("ringmq_shard_up", &[("shard", "0")]) == 1.0
        });
        assert_eq!(scrape.value("ringmq_shard_up", &[("shard", "1")]), 0.0);
        assert!(scrape.find("ringmq_connections", &[("shard", "1")]).is_empty());
        assert!(scrape.value("ringmq_reactor_silent_seconds", &[("shard", "1")]) > 0.3);
    }
    let mut peer = Peer::open(watched.own.broker.address(0), Form::Json);
    peer.send("T", &[], b"the other shard serves");
    drop(stopped);

    soon("well again", || (status(http, "/healthz").status == 200).then_some(()));
    soon("ready again", || (status(http, "/readyz").status == 200).then_some(()));
    let scrape = watched.scrape_until("the stall", |scrape| {
        scrape.value("ringmq_shard_up", &[("shard", "1")]) == 1.0
            && scrape.sum("ringmq_stalled_seconds_total", &[("shard", "1")]) > 0.3
    });
    assert!(scrape.sum("ringmq_stalls_total", &[("shard", "1")]) >= 1.0);
    let longest = scrape.find("ringmq_stall_longest_seconds", &[("shard", "1")]);
    assert!(longest.iter().any(|(_, seconds)| *seconds > 0.3), "{longest:?}");
    assert!(longest.iter().all(|(labels, _)| labels.contains_key("cause")), "{longest:?}");
}

#[test]
fn clients_that_mean_no_good_keep_nobody_from_watching() {
    let mut watched = Watched::start("hostile", "", Options::default());
    let http = watched.http;
    let fds = |watched: &Watched| watched.scrape().value("process_open_fds", &[]);
    let before = fds(&watched);
    let memory = watched.own.broker.process().memory_kib("VmRSS");
    // Many that say nothing, many that say one byte at a time, and some whose request never ends.
    let mut open = Vec::new();
    for n in 0..300 {
        let mut stream = connect(http).expect("a connection");
        if n % 3 == 1 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").expect("a beginning");
        }
        open.push(stream);
    }
    for round in 0..3 {
        for stream in &mut open {
            // Those that were closed meanwhile refuse it.
            let _ = stream.write(b"x");
        }
        assert_eq!(status(http, "/readyz").status, 200, "round {round}");
        watched.scrape();
    }
    for bytes in [
        vec![0; 100_000],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 100_000]].concat(),
        [b"GET /metrics HTTP/1.1\r\n".to_vec(), b"X: y\r\n".repeat(1_000)].concat(),
        b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".to_vec(),
        b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
            .to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\r\n".repeat(10_000),
    ] {
        let mut stream = connect(http).expect("a connection");
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        // It is answered or closed, and never with what it asked for.
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "{bytes:?} is held"),
        }
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    // One that asks and does not read, while others do.
    let mut deaf = connect(http).expect("a connection");
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
    watched.scrape();
    // All are let go by themselves.
    for mut stream in open {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    drop(deaf);
    soon("their descriptors are free", || (fds(&watched) <= before + 2.0).then_some(()));
    let after = watched.own.broker.process().memory_kib("VmRSS");
    assert!(after < memory + (16 << 10), "memory grew from {memory} to {after} KiB");
    watched.peer().send("T", &[], b"the broker serves");
}

#[test]
fn a_name_server_alone_is_watched_too() {
    let dir = tempdir("namesrv-watched");
    let (http, listen) = (ports::single(), ports::single());
    let http = SocketAddr::from(([127, 0, 0, 1], http));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringmq"));
    command.args(["namesrv", "--listen", &format!("127.0.0.1:{listen}"), "--data-dir"]);
    command.arg(dir.sub("data")).args(["--metrics-listen", &http.to_string()]);
    let mut process = Process::spawn("name server", command, &dir.path().join("log"));
    readyz_until(http, "ready", |code, _| code == 200);
    let scrape = scrape(http);
    assert_eq!(scrape.value("ringmq_namesrv_up", &[]), 1.0);
    assert_eq!(scrape.find("ringmq_reactor_turns_total", &[]).len(), 1);
    assert!(scrape.find("ringmq_shard_up", &[]).is_empty());
    process.signal(libc::SIGTERM);
    assert!(process.wait(Duration::from_secs(20)).is_some_and(|status| status.success()));
}
