use super::*;
use crate::fake::{Fake, React, eventually, nobody, ok, refusal};
use ringmq_net::code::request::{GET_BROKER_CONFIG, NOTIFY_CONSUMER_IDS_CHANGED, PULL_MESSAGE};
use std::sync::atomic::{AtomicUsize, Ordering};

const LIMITS: Limits =
    Limits { connect: Duration::from_secs(2), idle: Duration::from_secs(60), window: 64 };
const LONG: Duration = Duration::from_secs(20);

/// Counts connections, and answers 0 to everything.
#[derive(Default)]
struct Counter {
    connected: AtomicUsize,
}

impl Handler for Counter {
    fn connected(&self, _: &Arc<str>) {
        self.connected.fetch_add(1, Ordering::SeqCst);
    }

    fn handle(self: Arc<Self>, _: Arc<str>, command: Command) -> Answer {
        Box::pin(std::future::ready(Some(ok().with_ext("asked", command.code))))
    }
}

fn remoting(limits: Limits) -> (Arc<Counter>, Arc<Remoting>) {
    let counter = Arc::new(Counter::default());
    let handler: Weak<dyn Handler> = Arc::downgrade(&(counter.clone() as Arc<dyn Handler>));
    (counter, Arc::new(Remoting::new(limits, handler)))
}

fn ask() -> Command {
    Command::request(GET_BROKER_CONFIG)
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order_over_one_connection() {
    let fake = Fake::start(|command| {
        let number: u64 = command.ext("number").unwrap().parse().unwrap();
        React::Answer(ok().with_ext("number", number).with_body(vec![number as u8; 20_000]))
    })
    .await;
    let (counter, remoting) = remoting(LIMITS);
    let addr = fake.addr();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..500u64 {
        let (remoting, addr) = (remoting.clone(), addr.clone());
        calls.spawn(async move {
            let command = ask().with_ext("number", number).with_body(vec![1; 10_000]);
            let reply = remoting.call(&addr, &command, LONG).await.unwrap();
            assert_eq!(reply.ext("number"), Some(number.to_string().as_str()));
            assert_eq!(reply.body, vec![number as u8; 20_000]);
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    assert_eq!(counter.connected.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_cut_mid_frame_fails_its_calls_at_once_and_is_opened_again() {
    let cut = AtomicUsize::new(0);
    let fake = Fake::start(move |command| match command.code {
        PULL_MESSAGE => React::Silence,
        _ if cut.fetch_add(1, Ordering::SeqCst) == 1 => React::CutMidFrame,
        _ => React::Answer(ok()),
    })
    .await;
    let (counter, remoting) = remoting(LIMITS);
    let addr = fake.addr();
    remoting.call(&addr, &ask(), LONG).await.unwrap();
    let waiting = tokio::spawn({
        let (remoting, addr) = (remoting.clone(), addr.clone());
        async move { remoting.call(&addr, &Command::request(PULL_MESSAGE), LONG).await }
    });
    fake.until_asked(PULL_MESSAGE, 1).await;
    let failed = remoting.call(&addr, &ask(), LONG).await.unwrap_err();
    assert!(matches!(failed, Error::Lost { .. }), "{failed}");
    assert!(matches!(waiting.await.unwrap(), Err(Error::Lost { .. })));
    remoting.call(&addr, &ask(), LONG).await.unwrap();
    assert_eq!(counter.connected.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_window_and_its_late_answer_harms_nobody() {
    let fake = Fake::start(|command| match command.code {
        PULL_MESSAGE => React::Silence,
        _ => React::Answer(ok()),
    })
    .await;
    let (_, remoting) = remoting(Limits { window: 1, ..LIMITS });
    let addr = fake.addr();
    let held = tokio::spawn({
        let (remoting, addr) = (remoting.clone(), addr.clone());
        async move { remoting.call(&addr, &Command::request(PULL_MESSAGE), LONG).await }
    });
    fake.until_asked(PULL_MESSAGE, 1).await;
    let full = remoting.call(&addr, &ask(), Duration::from_millis(30)).await.unwrap_err();
    assert!(matches!(full, Error::Busy { .. }), "{full}");
    held.abort();
    let _ = held.await;
    remoting.call(&addr, &ask(), LONG).await.unwrap();
}

#[tokio::test]
async fn an_address_that_refuses_is_left_alone_for_a_moment_and_then_tried_again() {
    let addr = nobody().await;
    let (_, remoting) = remoting(LIMITS);
    for _ in 0..3 {
        let refused = remoting.call(&addr, &ask(), LONG).await.unwrap_err();
        assert!(matches!(&refused, Error::Connect { addr: named, .. } if **named == *addr));
    }
    let fake = Fake::start_at(addr.parse().unwrap(), |_| React::Answer(ok())).await;
    let remoting = &remoting;
    let mut tries = 0;
    loop {
        match remoting.call(&fake.addr(), &ask(), LONG).await {
            Ok(_) => break,
            Err(Error::Connect { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(other) => panic!("{other}"),
        }
        tries += 1;
        assert!(tries < 1000, "it is never tried again");
    }
}

#[tokio::test]
async fn a_peer_that_is_silent_costs_the_connection_and_one_that_is_slow_does_not() {
    let fake = Fake::start(|command| match command.ext("silent") {
        Some(_) => React::Silence,
        None => React::Answer(ok()),
    })
    .await;
    let (counter, remoting) = remoting(LIMITS);
    let addr = fake.addr();
    let silent = ask().with_ext("silent", true);
    remoting.call(&addr, &ask(), LONG).await.unwrap();
    let short = remoting.call(&addr, &silent, Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(short, Error::Timeout { .. }));
    remoting.call(&addr, &ask(), LONG).await.unwrap();
    assert_eq!(
        counter.connected.load(Ordering::SeqCst),
        1,
        "a short limit says nothing of the peer"
    );
    let long = remoting.call(&addr, &silent, Duration::from_millis(1100)).await.unwrap_err();
    assert!(matches!(long, Error::Timeout { .. }));
    remoting.call(&addr, &ask(), LONG).await.unwrap();
    assert_eq!(counter.connected.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn requests_of_the_peer_are_served_and_oneway_ones_not_answered() {
    let fake = Fake::start(|_| {
        let mut own = Command::request(NOTIFY_CONSUMER_IDS_CHANGED);
        own.opaque = 77;
        React::Ask(ok(), own)
    })
    .await;
    let (_counter, remoting) = remoting(LIMITS);
    remoting.call(&fake.addr(), &ask(), LONG).await.unwrap();
    let answer = fake.until_answered().await;
    assert_eq!((answer.opaque, answer.code), (77, 0));
    assert_eq!(answer.ext("asked"), Some("40"));
}

#[tokio::test]
async fn an_unused_connection_is_closed_and_a_closed_client_refuses() {
    let fake = Fake::start(|_| refusal(1)).await;
    let (counter, remoting) = remoting(Limits { idle: Duration::from_millis(50), ..LIMITS });
    let addr = fake.addr();
    assert_eq!(remoting.call(&addr, &ask(), LONG).await.unwrap().code, 1);
    let slot = remoting.slot(&addr).unwrap();
    eventually(|| slot.open().is_none().then_some(())).await;
    assert_eq!(remoting.call(&addr, &ask(), LONG).await.unwrap().code, 1);
    assert_eq!(counter.connected.load(Ordering::SeqCst), 2);
    remoting.close();
    let closed = remoting.call(&addr, &ask(), LONG).await.unwrap_err();
    assert!(matches!(closed, Error::Closed(_)), "{closed}");
}

#[tokio::test]
async fn addresses_without_a_connection_are_forgotten_and_those_in_use_kept() {
    let fake = Fake::start(|_| React::Answer(ok())).await;
    let (_, remoting) = remoting(LIMITS);
    remoting.call(&fake.addr(), &ask(), LONG).await.unwrap();
    let _ = remoting.call(&nobody().await, &ask(), LONG).await;
    assert_eq!(remoting.slots().as_ref().unwrap().len(), 2);
    remoting.prune();
    assert_eq!(remoting.slots().as_ref().unwrap().len(), 1);
    assert!(remoting.is_connected(&fake.addr()));
    fake.cut();
    eventually(|| (!remoting.is_connected(&fake.addr())).then_some(())).await;
    remoting.prune();
    assert!(remoting.slots().as_ref().unwrap().is_empty());
}

#[tokio::test]
async fn many_requests_of_the_peer_at_once_are_served_within_a_bound_and_refused_beyond() {
    struct Slow(tokio::sync::Semaphore);
    impl Handler for Slow {
        fn connected(&self, _: &Arc<str>) {}
        fn handle(self: Arc<Self>, _: Arc<str>, _: Command) -> Answer {
            Box::pin(async move {
                self.0.acquire().await.unwrap().forget();
                Some(ok())
            })
        }
    }
    let slow = Arc::new(Slow(tokio::sync::Semaphore::new(0)));
    let handler: Weak<dyn Handler> = Arc::downgrade(&(slow.clone() as Arc<dyn Handler>));
    let remoting = Remoting::new(LIMITS, handler);
    let fake = Fake::start(|_| React::Answer(ok())).await;
    remoting.call(&fake.addr(), &ask(), LONG).await.unwrap();
    for _ in 0..64 {
        fake.tell(Command::request(NOTIFY_CONSUMER_IDS_CHANGED));
    }
    let refused = fake.ask(Command::request(NOTIFY_CONSUMER_IDS_CHANGED)).await;
    assert_eq!(refused.code, ringmq_net::code::response::SYSTEM_BUSY);
    slow.0.add_permits(100);
    // There is room again as soon as one was served.
    loop {
        let answer = fake.ask(Command::request(NOTIFY_CONSUMER_IDS_CHANGED)).await;
        if answer.code == 0 {
            break;
        }
    }
}

#[tokio::test]
async fn a_call_that_never_got_a_connection_says_that_nothing_was_sent() {
    let fake = Fake::start(|_| React::Answer(ok())).await;
    let (_, remoting) = remoting(LIMITS);
    let slot = remoting.slot(&fake.addr()).unwrap();
    let opening = slot.dial.lock().await;
    let error = remoting.call(&fake.addr(), &ask(), Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    drop(opening);
    remoting.call(&fake.addr(), &ask(), LONG).await.unwrap();
}

#[tokio::test]
async fn a_connection_on_which_a_call_waits_is_not_unused() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();
    let fake = Fake::start(move |command| match command.code {
        PULL_MESSAGE => {
            let held = held.clone();
            React::AnswerWhen(Box::pin(async move {
                held.notified().await;
                ok()
            }))
        }
        _ => React::Answer(ok()),
    })
    .await;
    let idle = Duration::from_millis(20);
    let (counter, remoting) = remoting(Limits { idle, ..LIMITS });
    let call = async { remoting.call(&fake.addr(), &Command::request(PULL_MESSAGE), LONG).await };
    let wait = async {
        fake.until_asked(PULL_MESSAGE, 1).await;
        tokio::time::sleep(idle * 5).await;
        gate.notify_one();
    };
    let (done, ()) = tokio::join!(call, wait);
    done.unwrap();
    assert_eq!(counter.connected.load(Ordering::SeqCst), 1);
}
