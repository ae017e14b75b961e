//! What the client does at a broker, kind by kind of request.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringmq_client::protocol::body::{SubscriptionGroupConfig, TopicConfig};
use ringmq_client::protocol::code::response;
use ringmq_client::{
    Client, Compression, Message, MessageQueue, Producer, PullRequest, PullStatus, QueryMessages,
    ReceivedMessage, ResetOffsets, Result, SendReceipt, SendStatus, Tls, TransactionState,
};

use crate::audit::{Load, audit};
use crate::meet::Stage;
use crate::support::Target;

/// A limit that nothing reaches.
pub(crate) const LONG: Duration = Duration::from_secs(60);
const QUEUES: u32 = 4;

impl Stage {
    pub(crate) async fn topic(&self, name: &str) -> Result<()> {
        let config = TopicConfig::new(name, QUEUES as i32);
        self.client.admin().create_topic(&self.cluster, &config).await
    }

    pub(crate) async fn producer(&self, group: &str) -> Result<Producer> {
        self.client.producer(group).send_timeout(LONG).start().await
    }

    fn is_ringmq(&self) -> bool {
        self.target == Target::RingMq
    }

    fn address(&self, queue: &MessageQueue) -> String {
        let found = self.brokers.iter().find(|(name, _)| *name == queue.broker_name);
        found.expect("a broker of the cluster").1.to_string()
    }

    /// The messages of a queue from an offset on, waiting for the first of them.
    async fn pull(&self, queue: &MessageQueue, offset: i64) -> Result<Vec<ReceivedMessage>> {
        let broker = self.client.broker(&self.address(queue));
        let began = Instant::now();
        loop {
            let reply = broker.pull(&PullRequest::new("readers", queue.clone(), offset)).await?;
            if reply.status == PullStatus::Found {
                return Ok(reply.messages);
            }
            assert!(began.elapsed() < Duration::from_secs(60), "nothing comes in {queue:?}");
        }
    }

    async fn stored(&self, receipt: &SendReceipt) -> Result<ReceivedMessage> {
        Ok(self.pull(&receipt.queue, receipt.queue_offset).await?.remove(0))
    }
}

/// Topics, groups, progress, settings and numbers.
pub(crate) async fn administration(stage: &Stage) -> Result<()> {
    let admin = stage.client.admin();
    let masters = admin.masters(&stage.cluster).await?;
    assert_eq!(masters.len(), stage.brokers.len());
    let unknown = admin.masters("no-such-cluster").await.unwrap_err();
    assert!(unknown.to_string().contains(&stage.cluster), "{unknown}");

    stage.topic("admin").await?;
    assert!(admin.topics().await?.contains(&"admin".to_owned()));
    assert!(admin.topics_of_cluster(&stage.cluster).await?.contains(&"admin".to_owned()));
    assert_eq!(admin.topic_route("nowhere").await?, None);
    let route = stage.client.route("admin").await?;
    assert_eq!(route.writable.len(), QUEUES as usize * stage.brokers.len());
    let producer = stage.producer("administrators").await?;
    let receipt = producer.send(Message::new("admin", "one")).await?;
    assert_eq!(admin.topic_stats("admin").await?.queues.len(), route.writable.len());

    admin.create_group(&stage.cluster, &SubscriptionGroupConfig::new("gone")).await?;
    for master in &masters {
        assert!(master.groups().await?.groups.iter().any(|g| g.group_name == "gone"));
        assert!(!master.topics().await?.topics.is_empty());
        assert!(!master.config().await?.is_empty());
        assert_eq!(
            master.max_offset("admin", 0).await?.min(1),
            master.max_offset("admin", 0).await?
        );
    }
    let queue = &receipt.queue;
    let owner = stage.client.broker(&stage.address(queue));
    assert_eq!(owner.min_offset("admin", queue.queue_id).await?, 0);
    assert_eq!(owner.max_offset("admin", queue.queue_id).await?, receipt.queue_offset + 1);
    let born = owner.earliest_store_time("admin", queue.queue_id).await?;
    assert_eq!(owner.search_offset("admin", queue.queue_id, born).await?, 0);
    // A broker lets a new group begin at 0 while all of a queue is in memory.
    assert!(matches!(owner.consumer_offset("gone", queue).await?, None | Some(0)));
    owner.update_consumer_offset("gone", queue, 1).await?;
    assert_eq!(owner.consumer_offset("gone", queue).await?, Some(1));
    let progress = admin.consume_stats("gone", Some("admin")).await?;
    let row = progress.queues.iter().find(|(of, _)| of == queue).expect("its progress").1;
    assert_eq!((row.broker_offset, row.consumer_offset), (receipt.queue_offset + 1, 1));
    admin.clone_offsets("gone", "copy", "admin").await?;
    assert_eq!(owner.consumer_offset("copy", queue).await?, Some(1));
    // Nobody runs in these groups: the brokers alone are told.
    let reset =
        |timestamp_ms, force| ResetOffsets { topic: "admin", group: "gone", timestamp_ms, force };
    let all = admin.reset_offsets(&reset(0, true)).await?;
    assert_eq!(all.len(), route.readable.len());
    assert_eq!(owner.consumer_offset("gone", queue).await?, Some(0));
    admin.reset_offsets(&reset(-1, true)).await?;
    assert_eq!(owner.consumer_offset("gone", queue).await?, Some(receipt.queue_offset + 1));
    admin.delete_group(&stage.cluster, "gone", true).await?;
    assert!(!owner.groups().await?.groups.iter().any(|g| g.group_name == "gone"));

    admin.kv_put("ORDER_TOPIC_CONFIG", "admin", "a:1").await?;
    assert_eq!(admin.kv_get("ORDER_TOPIC_CONFIG", "admin").await?.as_deref(), Some("a:1"));
    admin.kv_delete("ORDER_TOPIC_CONFIG", "admin").await?;
    assert_eq!(admin.kv_get("ORDER_TOPIC_CONFIG", "admin").await?, None);

    assert_eq!(admin.clusters_of_topic("admin").await?, [stage.cluster.clone()].into());
    admin.set_topic_permission("admin", 4).await?;
    let began = Instant::now();
    while !stage.client.renew_route("admin").await?.writable.is_empty() {
        assert!(began.elapsed() < LONG, "the topic can still be written to");
    }
    let unwritable = producer.send(Message::new("admin", "two")).await.unwrap_err();
    assert!(unwritable.to_string().contains("permissions"), "{unwritable}");

    producer.shutdown().await?;
    admin.delete_topic(&stage.cluster, "admin").await?;
    let began = Instant::now();
    while admin.topic_route("admin").await?.is_some() {
        // A registration that was under way when the topic went brings it back to a stock name server, for good.
        assert!(!stage.is_ringmq() && began.elapsed() < LONG, "a deleted topic has a route");
        admin.delete_topic(&stage.cluster, "admin").await?;
    }
    let refused = owner.topic_stats("admin").await.unwrap_err();
    assert_eq!(refused.code(), Some(response::TOPIC_NOT_EXIST));
    Ok(())
}

/// Every form of sending, each read back.
pub(crate) async fn sends(stage: &Stage) -> Result<()> {
    stage.topic("sends").await?;
    let producer = stage.producer("senders").await?;

    let load = Load::start(&producer, "sends", 8, 50);
    let sent = load.finish().await;
    let summary = audit(&stage.brokers, "sends", QUEUES, &sent).unwrap();
    assert_eq!((summary.receipts, summary.failures, summary.twice), (400, 0, 0));

    let message =
        Message::new("sends", "with all").tag("tag").keys(["k1", "k2"]).property("p", "v");
    let receipt = producer.send(message.flag(7)).await?;
    assert_eq!(receipt.status, SendStatus::Ok);
    assert_eq!(receipt.ack_level.is_some(), stage.is_ringmq());
    let stored = stage.stored(&receipt).await?;
    assert_eq!((&stored.body[..], stored.tag(), stored.flag), (&b"with all"[..], Some("tag"), 7));
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["k1", "k2"]);
    assert_eq!(stored.property("p"), Some("v"));
    assert_eq!(stored.message_id(), receipt.message_id);
    assert_eq!(stored.offset_message_id(), receipt.offset_message_id);
    let viewed = stage.client.admin().view_message(&receipt.offset_message_id).await?.unwrap();
    assert_eq!(viewed.message_id(), receipt.message_id);
    find_by_key(stage, &receipt, "k2", false).await?;
    find_by_key(stage, &receipt, &receipt.message_id, true).await?;
    let found = stage.client.admin().find_message("sends", &receipt.message_id).await?;
    assert_eq!(found.expect("it was found before").offset_message_id(), receipt.offset_message_id);
    assert_eq!(stage.client.admin().find_message("sends", "no-such-id").await?, None);

    let first = producer.send_ordered(Message::new("sends", "o1"), "order-1").await?;
    let second = producer.send_ordered(Message::new("sends", "o2"), "order-1").await?;
    assert_eq!(first.queue, second.queue);
    assert!(first.queue_offset < second.queue_offset);

    let small = stage.client.producer("batchers").body_bytes_max(16 * 1024);
    let small = small.send_timeout(LONG).start().await?;
    let bodies: Vec<String> = (0..100).map(|i| format!("{i:0>1000}")).collect();
    let batch = bodies.iter().map(|body| Message::new("sends", body.clone()).tag("batch"));
    let receipts = small.send_batch(batch).await?;
    assert_eq!(receipts.len(), 100);
    for (receipt, body) in receipts.iter().zip(&bodies) {
        let stored = stage.stored(receipt).await?;
        assert_eq!(&stored.body[..], body.as_bytes());
        assert_eq!(stored.message_id(), receipt.message_id);
        assert_eq!(stored.offset_message_id(), receipt.offset_message_id);
    }

    for kind in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        let group = format!("compressors-{kind:?}");
        let builder = stage.client.producer(group).compression(kind, 4096);
        let packer = builder.send_timeout(LONG).start().await?;
        let body = "so much of the same ".repeat(2000);
        let stored = stage.stored(&packer.send(Message::new("sends", body.clone())).await?).await?;
        assert!(stored.body == body && stored.sys_flag & 1 == 1, "{kind:?}");
    }

    let before = stage.client.admin().topic_stats("sends").await?;
    producer.send_oneway(Message::new("sends", "oneway")).await?;
    let began = Instant::now();
    while stage.client.admin().topic_stats("sends").await? == before {
        assert!(began.elapsed() < LONG, "a oneway message never came");
    }

    let queue = MessageQueue { queue_id: 2, ..first.queue.clone() };
    let end = stage.client.broker(&stage.address(&queue)).max_offset("sends", 2).await?;
    producer.send_to(Message::new("sends", "later").delay_level(1), &queue).await?;
    assert_eq!(&stage.pull(&queue, end).await?[0].body[..], b"later");

    let empty = producer.send(Message::new("sends", "")).await.unwrap_err();
    assert!(empty.to_string().contains("empty"), "{empty}");
    let builder = stage.client.producer("longs").body_bytes_max(64 << 20);
    let longs = builder.compression(Compression::Zlib, usize::MAX).send_timeout(LONG);
    let longs = longs.start().await?;
    let refused = longs.send(Message::new("sends", vec![b'x'; 5_000_000])).await.unwrap_err();
    assert_eq!(refused.code(), Some(response::MESSAGE_ILLEGAL), "{refused}");
    Ok(())
}

/// Brokers write their index a moment after they answered.
async fn find_by_key(stage: &Stage, receipt: &SendReceipt, key: &str, unique: bool) -> Result<()> {
    let query =
        QueryMessages { topic: "sends", key, unique, max: 32, begin_ms: 0, end_ms: i64::MAX };
    let broker = stage.client.broker(&stage.address(&receipt.queue));
    let began = Instant::now();
    loop {
        let found = broker.query_messages(&query).await?;
        if found.iter().any(|message| message.message_id() == receipt.message_id) {
            return Ok(());
        }
        assert!(began.elapsed() < LONG, "{key} is not found");
    }
}

/// A topic that nobody made.
pub(crate) async fn first_send_makes_the_topic(stage: &Stage) -> Result<()> {
    let producer = stage.producer("makers").await?;
    let receipt = producer.send(Message::new("made-by-a-send", "first")).await?;
    assert_eq!(&stage.stored(&receipt).await?.body[..], b"first");
    assert!(stage.client.admin().topic_route("made-by-a-send").await?.is_some());
    Ok(())
}

/// Commit, rollback, and what the broker asks about. RingMQ's broker has no transactions, and says so.
pub(crate) async fn transactions(stage: &Stage) -> Result<()> {
    stage.topic("transactions").await?;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let check = move |message: ReceivedMessage| {
        let count = count.clone();
        async move {
            match &message.body[..] {
                // 5.x writes the ends of transactions in bundles, and asks about those it has not written yet.
                b"committed" => TransactionState::Commit,
                b"rolled back" => TransactionState::Rollback,
                b"open" if count.fetch_add(1, Ordering::SeqCst) == 0 => TransactionState::Unknown,
                b"open" => TransactionState::Commit,
                other => panic!("asked about {other:?}"),
            }
        }
    };
    let builder = stage.client.producer("traders").send_timeout(LONG).topics(["transactions"]);
    let producer = builder.transactional(check).start().await?;
    let commit = |body: &'static str, state| {
        producer.send(Message::new("transactions", body), move |_| async move { state })
    };
    if stage.is_ringmq() {
        let refused = commit("no", TransactionState::Commit).await.unwrap_err();
        assert_eq!(refused.code(), Some(response::NO_PERMISSION));
        assert!(
            refused.to_string().contains("sending transaction message is forbidden"),
            "{refused}"
        );
        return producer.shutdown().await;
    }
    commit("rolled back", TransactionState::Rollback).await?;
    commit("committed", TransactionState::Commit).await?;
    let open = commit("open", TransactionState::Unknown).await?;
    let began = Instant::now();
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        for queue in &stage.client.route("transactions").await?.readable {
            let broker = stage.client.broker(&stage.address(queue));
            let pull = PullRequest {
                hold: Duration::ZERO,
                ..PullRequest::new("readers", queue.clone(), 0)
            };
            for message in broker.pull(&pull).await?.messages {
                if &message.body[..] == b"open" {
                    assert_eq!(message.message_id(), open.send.message_id);
                }
                seen.insert(String::from_utf8_lossy(&message.body).into_owned());
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "only {seen:?} came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), ["committed", "open"]);
    assert!(asked.load(Ordering::SeqCst) >= 2, "unknown was asked again");
    producer.shutdown().await
}

/// A request, and a replier that takes it from its queue. RingMQ's broker passes no replies on, and says so.
pub(crate) async fn requests(stage: &Stage) -> Result<()> {
    stage.topic("requests").await?;
    let asker = stage.producer("askers").await?;
    let replier = stage.producer("repliers").await?;
    let ends = stage.client.admin().topic_stats("requests").await?;
    assert!(ends.queues.iter().all(|(_, offsets)| offsets.max_offset == 0));
    let patience = if stage.is_ringmq() { Duration::from_secs(2) } else { LONG };
    let asking = tokio::spawn({
        let asker = asker.clone();
        async move { asker.request(Message::new("requests", "ping"), patience).await }
    });
    let request = find_request(stage).await?;
    assert!(request.is_request());
    let replied = replier.send(Message::reply_to(&request, "pong")?).await;
    if stage.is_ringmq() {
        let refused = replied.unwrap_err();
        assert_eq!(refused.code(), Some(response::REQUEST_CODE_NOT_SUPPORTED));
        assert!(refused.to_string().contains("does not have that feature"), "{refused}");
        let error = asking.await.expect("the asker").unwrap_err();
        assert!(error.to_string().contains("no reply came"), "{error}");
        return Ok(());
    }
    replied?;
    let reply = asking.await.expect("the asker")?;
    assert_eq!(&reply.body[..], b"pong");
    assert_eq!(reply.property("CORRELATION_ID"), request.property("CORRELATION_ID"));
    Ok(())
}

async fn find_request(stage: &Stage) -> Result<ReceivedMessage> {
    let began = Instant::now();
    loop {
        for queue in &stage.client.route("requests").await?.readable {
            let broker = stage.client.broker(&stage.address(queue));
            let pull = PullRequest {
                hold: Duration::ZERO,
                ..PullRequest::new("readers", queue.clone(), 0)
            };
            if let Some(message) = broker.pull(&pull).await?.messages.pop() {
                return Ok(message);
            }
        }
        assert!(began.elapsed() < LONG, "the request never came");
    }
}

/// Brokers know the client by its heartbeats, and no longer after its end.
pub(crate) async fn connections(stage: &Stage) -> Result<()> {
    let producer = stage.client.producer("known").topics(["sends"]).start().await?;
    for (_, address) in &stage.brokers {
        let broker = stage.client.broker(&address.to_string());
        // Stock fails at this in its first second.
        assert!(broker.runtime_info().await?.table.contains_key("brokerVersionDesc"));
        let connections = broker.producer_connections("known").await?;
        let ids: Vec<&str> = connections.connections.iter().map(|c| c.client_id.as_str()).collect();
        assert_eq!(ids, [stage.client.id()]);
    }
    let all = stage.client.admin().producer_connections("known", "sends").await?;
    assert_eq!(all.connections.len(), 1, "over all brokers, each client once");
    producer.shutdown().await?;
    for (_, address) in &stage.brokers {
        let broker = stage.client.broker(&address.to_string());
        assert!(broker.producer_connections("known").await.is_err());
    }
    Ok(())
}

/// Stock takes TLS on its ordinary ports, with a certificate of its own making; RingMQ does not take it yet.
pub(crate) async fn encryption(stage: &Stage, namesrv: SocketAddr) -> Result<()> {
    let builder = Client::builder().name_server(namesrv.to_string()).tls(Tls::unverified());
    let client = builder
        .call_timeout(if stage.is_ringmq() { Duration::from_secs(1) } else { LONG })
        .build()?;
    if stage.is_ringmq() {
        let refused = client.renew_route("sends").await.unwrap_err();
        assert!(refused.is_network() && refused.to_string().contains("TLS"), "{refused}");
        return client.shutdown().await;
    }
    let producer = client.producer("secret").send_timeout(LONG).start().await?;
    for body in ["one".to_owned(), "x".repeat(3000), "y".repeat(500_000)] {
        let receipt = producer.send(Message::new("sends", body.clone())).await?;
        assert!(stage.stored(&receipt).await?.body == body);
    }
    client.shutdown().await
}
