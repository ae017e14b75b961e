use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::*;
use crate::fake::{Fake, React, nobody, ok, refusal, route};
use crate::remoting::{Answer, Handler, Limits, Remoting};

struct Nobody;

impl Handler for Nobody {
    fn connected(&self, _: &Arc<str>) {}

    fn handle(self: Arc<Self>, _: Arc<str>, _: Command) -> Answer {
        Box::pin(std::future::ready(None))
    }
}

const LONG: Duration = Duration::from_secs(20);

fn routes(servers: Vec<String>) -> Routes {
    let limits =
        Limits { connect: Duration::from_secs(1), idle: Duration::from_secs(60), window: 64 };
    let handler: std::sync::Weak<dyn Handler> = std::sync::Weak::<Nobody>::new();
    Routes::new(NameServers::new(Arc::new(Remoting::new(limits, handler)), servers))
}

fn one_broker() -> bytes::Bytes {
    route(&[("a", "10.0.0.1:10911".into())], 8)
}

#[tokio::test]
async fn the_next_name_server_answers_within_the_same_call() {
    let alive = Fake::start(|_| React::Answer(ok().with_body(one_broker()))).await;
    let silent = Fake::start(|_| React::Silence).await;
    for _ in 0..6 {
        // Whichever of them a client begins with.
        let routes = routes(vec![nobody().await, silent.addr(), alive.addr()]);
        let found = routes.find("t", Missing::IsError, Duration::from_secs(3)).await.unwrap();
        assert_eq!(found.route.writable.len(), 8);
        let asked = silent.asked(request::GET_ROUTEINFO_BY_TOPIC).len();
        routes.renew("t", Missing::IsError, Duration::from_secs(3)).await.unwrap();
        let again = silent.asked(request::GET_ROUTEINFO_BY_TOPIC).len();
        assert_eq!(asked, again, "who answered is asked first from then on");
    }
}

#[tokio::test]
async fn without_a_name_server_the_error_names_each_with_its_cause() {
    let (one, two) = (nobody().await, nobody().await);
    let routes = routes(vec![one.clone(), two.clone()]);
    let error = routes.find("t", Missing::IsError, Duration::from_millis(300)).await;
    let text = error.err().unwrap().to_string();
    assert!(text.contains(&one) && text.contains(&two), "{text}");
}

#[tokio::test]
async fn a_topic_that_does_not_exist_takes_four_queues_of_the_template() {
    let server = Fake::start(|command| match command.ext("topic") {
        Some(TEMPLATE_TOPIC) => React::Answer(ok().with_body(one_broker())),
        _ => refusal(response::TOPIC_NOT_EXIST),
    })
    .await;
    let routes = routes(vec![server.addr()]);
    let refused = routes.find("t", Missing::IsError, LONG).await.err().unwrap();
    assert!(matches!(refused, Error::NoRoute { .. }), "{refused}");
    let found = routes.find("t", Missing::TakesTemplate(4), LONG).await.unwrap();
    assert_eq!(found.route.writable.len(), 4);
    assert!(found.route.assumed && routes.is_assumed("t"));
    let asked = routes.find("t", Missing::IsError, LONG).await.err().unwrap();
    assert!(matches!(asked, Error::NoRoute { .. }), "a send's guess is no topic: {asked}");
    let again = routes.find("t", Missing::TakesTemplate(4), LONG).await.unwrap();
    assert!(again.route.assumed);
    assert_eq!(routes.master("a").as_deref(), Some("10.0.0.1:10911"));
}

#[tokio::test]
async fn a_route_outlives_failing_name_servers_and_not_a_deleted_topic() {
    let (gone, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_gone, is_broken) = (gone.clone(), broken.clone());
    let server = Fake::start(move |_| match () {
        () if is_broken.load(Ordering::SeqCst) => refusal(response::SYSTEM_ERROR),
        () if is_gone.load(Ordering::SeqCst) => refusal(response::TOPIC_NOT_EXIST),
        () => React::Answer(ok().with_body(one_broker())),
    })
    .await;
    let routes = routes(vec![server.addr()]);
    routes.find("t", Missing::IsError, LONG).await.unwrap();
    broken.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        assert!(routes.renew("t", Missing::IsError, LONG).await.is_err());
    }
    assert!(routes.known("t").is_some());
    broken.store(false, Ordering::SeqCst);
    gone.store(true, Ordering::SeqCst);
    for _ in 1..MISSES_MAX {
        assert!(routes.renew("t", Missing::IsError, LONG).await.is_err());
        assert!(
            routes.known("t").is_some(),
            "one answer may be of a name server that just started"
        );
    }
    assert!(routes.renew("t", Missing::IsError, LONG).await.is_err());
    assert!(routes.known("t").is_none());
    assert_eq!(routes.master("a"), None);
}

#[tokio::test]
async fn many_who_need_a_route_ask_once_and_a_change_is_told() {
    let queues = Arc::new(AtomicI32::new(2));
    let count = queues.clone();
    let server = Fake::start(move |_| {
        let body = route(&[("a", "x:1".into())], count.load(Ordering::SeqCst));
        React::AnswerAfter(Duration::from_millis(50), ok().with_body(body))
    })
    .await;
    let routes = Arc::new(routes(vec![server.addr()]));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let routes = routes.clone();
        calls.spawn(async move { routes.find("t", Missing::IsError, LONG).await.is_ok() });
    }
    while let Some(found) = calls.join_next().await {
        assert!(found.unwrap());
    }
    assert_eq!(server.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 1);
    assert!(!routes.renew("t", Missing::IsError, LONG).await.unwrap().1);
    queues.store(3, Ordering::SeqCst);
    assert!(routes.renew("t", Missing::IsError, LONG).await.unwrap().1);
}

#[tokio::test]
async fn a_name_server_that_just_started_is_not_believed_alone() {
    let fresh = Fake::start(|_| refusal(response::TOPIC_NOT_EXIST)).await;
    let knows = Fake::start(|_| React::Answer(ok().with_body(one_broker()))).await;
    for _ in 0..6 {
        // Whichever of them a client begins with.
        let routes = routes(vec![fresh.addr(), knows.addr()]);
        assert!(routes.find("t", Missing::IsError, LONG).await.is_ok());
    }
    let alone = routes(vec![fresh.addr(), nobody().await]);
    let error = alone.find("t", Missing::IsError, LONG).await.err().unwrap();
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");
}

#[tokio::test]
async fn who_waits_for_anothers_question_in_vain_is_told_of_the_name_servers() {
    let silent = Fake::start(|_| React::Silence).await;
    let routes = Arc::new(routes(vec![silent.addr()]));
    let first = routes.clone();
    let asking = tokio::spawn(async move { first.find("t", Missing::IsError, LONG).await.is_ok() });
    silent.until_asked(request::GET_ROUTEINFO_BY_TOPIC, 1).await;
    let waited = routes.find("t", Missing::IsError, Duration::from_millis(20)).await;
    let error = waited.err().unwrap();
    assert!(error.is_network() && error.to_string().contains(&silent.addr()), "{error}");
    asking.abort();
}
