//! Half messages, their ends, and brokers' questions about them.

use super::*;
use crate::fake::record;
use ringmq_net::record::sys_flag;

fn start(
    client: &Client,
    state: TransactionState,
) -> impl Future<Output = Result<TransactionProducer>> + use<> {
    client.producer("g").topics(["t"]).transactional(move |_| async move { state }).start()
}

fn check_of(group: &str) -> Command {
    let properties = format!("PGROUP\u{1}{group}\u{2}TRAN_MSG\u{1}true\u{2}UNIQ_KEY\u{1}THE-ID");
    Command::oneway(request::CHECK_TRANSACTION_STATE)
        .with_ext("tranStateTableOffset", 44)
        .with_ext("commitLogOffset", 55)
        .with_ext("transactionId", "THE-ID")
        .with_body(record("t", sys_flag::TRANSACTION_PREPARED, b"half", &properties))
}

async fn ends(fake: &Fake, count: usize) -> Vec<Command> {
    fake.until_asked(request::END_TRANSACTION, count).await
}

#[tokio::test]
async fn a_transaction_ends_as_its_local_part_says() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = start(&client, TransactionState::Unknown).await.unwrap();
    let states = [
        (TransactionState::Commit, "8"),
        (TransactionState::Rollback, "12"),
        (TransactionState::Unknown, "0"),
    ];
    for (at, (state, action)) in states.into_iter().enumerate() {
        let message = Message::new("t", "half").delay_level(3);
        let done = producer.send(message, |half| async move {
            assert_eq!(half.queue_offset, 7);
            state
        });
        let receipt = done.await.unwrap();
        assert_eq!(receipt.state, state);
        let end = ends(&a, at + 1).await.remove(at);
        assert!(end.is_oneway());
        let wanted = [
            ("commitOrRollback", action),
            ("producerGroup", "g"),
            ("tranStateTableOffset", "7"),
            ("commitLogOffset", "4660"),
            ("fromTransactionCheck", "false"),
            ("transactionId", &receipt.send.message_id),
        ];
        for (field, value) in wanted {
            assert_eq!(end.ext(field), Some(value), "{field}");
        }
    }
    for half in sends(&a) {
        assert_eq!(half.ext("f"), Some("4"));
        assert_eq!((property(&half, "PGROUP"), property(&half, "DELAY")), (Some("g"), None));
    }
}

#[tokio::test]
async fn a_half_message_that_is_not_durable_is_rolled_back_and_one_not_stored_runs_nothing() {
    let table = [10, 11, 12, 13];
    for code in table {
        let a = broker(move |command| match code {
            13 => refusal(13),
            _ => React::Answer(stored(command, code)),
        })
        .await;
        let (_servers, client) = cluster(vec![("a", a.addr())]).await;
        let producer = start(&client, TransactionState::Unknown).await.unwrap();
        let sent = producer.send(message(), |_| async { panic!("the local part must not run") });
        match (code, sent.await) {
            (13, Err(error)) => assert_eq!(error.code(), Some(13)),
            (_, Ok(receipt)) => {
                assert_eq!(receipt.state, TransactionState::Rollback);
                assert_eq!(ends(&a, 1).await[0].ext("commitOrRollback"), Some("12"));
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_question_is_answered_to_who_asks_with_what_it_named() {
    let table = [
        (TransactionState::Commit, "8"),
        (TransactionState::Rollback, "12"),
        (TransactionState::Unknown, "0"),
    ];
    for (state, action) in table {
        let (a, b) = (good().await, good().await);
        let (_servers, client) = cluster(vec![("a", a.addr()), ("b", b.addr())]).await;
        let _producer = start(&client, state).await.unwrap();
        b.tell(check_of("g"));
        let end = ends(&b, 1).await.remove(0);
        let wanted = [
            ("commitOrRollback", action),
            ("producerGroup", "g"),
            ("tranStateTableOffset", "44"),
            ("commitLogOffset", "55"),
            ("fromTransactionCheck", "true"),
            ("msgId", "THE-ID"),
            ("transactionId", "THE-ID"),
        ];
        for (field, value) in wanted {
            assert_eq!(end.ext(field), Some(value), "{field}");
        }
        assert!(a.asked(request::END_TRANSACTION).is_empty());
    }
}

#[tokio::test]
async fn a_check_that_panics_is_unknown_and_ends_nothing_else() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let check = move |message: crate::ReceivedMessage| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        assert_eq!(&message.body[..], b"half");
        async move {
            assert!(!first, "the application fails");
            TransactionState::Commit
        }
    };
    let builder = client.producer("g").topics(["t"]).transactional(check);
    let _producer = builder.start().await.unwrap();
    a.tell(check_of("g"));
    assert_eq!(ends(&a, 1).await[0].ext("commitOrRollback"), Some("0"));
    a.tell(check_of("g"));
    assert_eq!(ends(&a, 2).await[1].ext("commitOrRollback"), Some("8"));
}

#[tokio::test]
async fn questions_that_nobody_here_can_answer_are_left_to_others() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let _plain = client.producer("plain").start().await.unwrap();
    let _producer = start(&client, TransactionState::Commit).await.unwrap();
    a.tell(check_of("another"));
    a.tell(check_of("plain"));
    a.tell(Command::oneway(request::CHECK_TRANSACTION_STATE).with_body("garbage"));
    a.tell(check_of("g"));
    assert_eq!(ends(&a, 1).await[0].ext("producerGroup"), Some("g"));
    // Whatever those three would have caused comes before the answer to a later question.
    a.tell(check_of("g"));
    let ends = ends(&a, 2).await;
    assert!(ends.iter().all(|end| end.ext("producerGroup") == Some("g")));
}

#[tokio::test]
async fn checks_beyond_the_bound_are_dropped_and_the_others_answered() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let gate = Arc::new(Semaphore::new(0));
    let (begun, held) = (Arc::new(AtomicUsize::new(0)), gate.clone());
    let counter = begun.clone();
    let check = move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let held = held.clone();
        async move {
            held.acquire().await.unwrap().forget();
            TransactionState::Commit
        }
    };
    let builder = client.producer("g").topics(["t"]).transactional(check).checks(1, 2);
    let _producer = builder.start().await.unwrap();
    for _ in 0..5 {
        a.tell(check_of("g"));
    }
    // An answered request behind them: the five were looked at.
    a.ask(Command::request(9999)).await;
    crate::fake::eventually(|| (begun.load(Ordering::SeqCst) == 1).then_some(())).await;
    gate.add_permits(5);
    ends(&a, 2).await;
    a.tell(check_of("g"));
    ends(&a, 3).await;
    assert_eq!(begun.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_shutdown_waits_for_the_local_part_and_may_be_called_from_a_check() {
    let a = good().await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let closer = client.clone();
    let check = move |_| {
        let closer = closer.clone();
        async move {
            closer.shutdown().await.unwrap();
            TransactionState::Commit
        }
    };
    let builder = client.producer("g").topics(["t"]).transactional(check);
    let producer = builder.start().await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let (held, sender) = (gate.clone(), producer.clone());
    let running = tokio::spawn(async move {
        let local = |_| async move {
            held.acquire().await.unwrap().forget();
            TransactionState::Commit
        };
        sender.send(message(), local).await
    });
    a.until_asked(request::SEND_MESSAGE_V2, 1).await;
    a.tell(check_of("g"));
    while !matches!(producer.producer().send(message()).await, Err(Error::Closed(_))) {}
    assert!(a.asked(request::END_TRANSACTION).is_empty());
    gate.add_permits(1);
    assert_eq!(running.await.unwrap().unwrap().state, TransactionState::Commit);
    assert_eq!(ends(&a, 1).await[0].ext("commitOrRollback"), Some("8"));
    a.until_asked(request::UNREGISTER_CLIENT, 1).await;
}
