//! Signed requests at a stock broker with `aclEnable`, which judges each of them.

use std::time::Duration;

use ringmq_client::protocol::body::TopicConfig;
use ringmq_client::{Client, ConsumeFrom, Credentials, Error, Message, Outcome, Result};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::runtime;
use crate::support::{Broker, Options, Target, tempdir};

const TOPIC: &str = "Guarded";
const LONG: Duration = Duration::from_secs(30);
/// One who may do everything, one who may send and receive, one who may receive only.
const ACCOUNTS: &str = r"accounts:
  - accessKey: administrator
    secretKey: secret-of-administrator
    admin: true
  - accessKey: clerk-key
    secretKey: secret-of-clerk
    admin: false
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
  - accessKey: reader-key
    secretKey: secret-of-reader
    admin: false
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
";

fn guarded(target: Target, dir: &std::path::Path) -> Broker {
    std::fs::create_dir_all(dir.join("conf")).expect("the broker's directory");
    std::fs::write(dir.join("conf/plain_acl.yml"), ACCOUNTS).expect("accounts");
    let options = Options { stock: vec!["aclEnable=true".into()], ..Options::default() };
    Broker::standalone(target, dir, options)
}

fn client(broker: &Broker, credentials: Option<Credentials>) -> Client {
    let builder = Client::builder().name_server(broker.namesrv.to_string());
    let built = match credentials {
        Some(credentials) => builder.credentials(credentials).build(),
        None => builder.build(),
    };
    built.expect("a client")
}

/// Why the broker refuses a send.
async fn refusal(broker: &Broker, credentials: Option<Credentials>) -> String {
    let client = client(broker, credentials);
    let producer = client.producer("Strangers").start().await.expect("a producer");
    let sent = producer.send(Message::new(TOPIC, "not to be stored")).await;
    let error = sent.expect_err("a broker that stores what is not signed");
    assert_eq!(error.code(), Some(1), "{error}");
    client.shutdown().await.expect("an end");
    error.to_string()
}

/// All that the clerk may do: every form of a send, looking a message up, and consuming with a retry.
async fn clerk(broker: &Broker) -> Result<()> {
    let client = client(broker, Some(Credentials::new("clerk-key", "secret-of-clerk")));
    let producer = client.producer("Clerks").start().await?;
    let receipt = producer.send(Message::new(TOPIC, "one").key("k")).await?;
    producer.send_batch(["two", "three"].map(|body| Message::new(TOPIC, body))).await?;
    producer.send_oneway(Message::new(TOPIC, "four")).await?;
    // Compressed: what is signed is what is sent.
    producer.send(Message::new(TOPIC, "five ".repeat(4096))).await?;
    let (seen, mut bodies) = mpsc::unbounded_channel();
    let consumer = client
        .consumer("Readers")
        .subscribe(TOPIC, "*")
        .consume_from(ConsumeFrom::First)
        .start(move |message| {
            let seen = seen.clone();
            async move {
                let body = String::from_utf8_lossy(&message.body).into_owned();
                // The first one goes back to the broker, which is a request too, and comes again.
                let again = body == "one" && message.reconsume_times == 0;
                let _ = seen.send((body, message.reconsume_times));
                if again { Outcome::RetryAtLevel(1) } else { Outcome::Consumed }
            }
        })
        .await?;
    let mut wanted = vec!["one", "one again", "two", "three", "four", "five"];
    while !wanted.is_empty() {
        let (body, times) =
            timeout(LONG, bodies.recv()).await.expect("a message").expect("a sender");
        let again = if times > 0 { " again" } else { "" };
        let name = format!("{}{again}", body.split_whitespace().next().unwrap_or_default());
        wanted.retain(|wanted| *wanted != name);
    }
    consumer.shutdown().await?;
    let found = client.admin().find_message(TOPIC, &receipt.message_id).await?;
    assert_eq!(found.map(|message| message.body), Some("one".into()));
    client.shutdown().await
}

#[test]
fn a_broker_that_asks_for_none_serves_signed_requests() {
    let dir = tempdir("client-signed");
    let broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), Options::default());
    runtime().block_on(async {
        let client = client(&broker, Some(Credentials::new("a-key", "a secret")));
        let producer = client.producer("Clerks").start().await.expect("a producer");
        let sent = producer.send(Message::new(TOPIC, "one")).await;
        let receipt = sent.expect("a receipt");
        assert_eq!(receipt.queue.topic, TOPIC);
        client.shutdown().await.expect("an end");
    });
}

#[test]
fn a_broker_that_asks_for_signatures_takes_ours_and_no_others() {
    let dir = tempdir("client-acl");
    let broker = guarded(Target::Stock497, &dir.sub("broker"));
    runtime().block_on(async {
        let admin = Credentials::new("administrator", "secret-of-administrator");
        let admin = client(&broker, Some(admin));
        let topic = TopicConfig::new(TOPIC, 2);
        admin.admin().create_topic("DefaultCluster", &topic).await.expect("an administrator");
        admin.shutdown().await.expect("an end");

        clerk(&broker).await.expect("what a clerk may do");

        for (credentials, reason) in [
            (None, "No accessKey is configured"),
            (Some(Credentials::new("clerk-key", "another secret")), "Check signature failed"),
            (Some(Credentials::new("nobody-key", "secret")), "No acl config for nobody-key"),
            (Some(Credentials::new("reader-key", "secret-of-reader")), "No default permission"),
        ] {
            let told = refusal(&broker, credentials).await;
            assert!(told.contains(reason), "{reason}: {told}");
        }
        let clerk = client(&broker, Some(Credentials::new("clerk-key", "secret-of-clerk")));
        let refused = clerk.admin().create_topic("DefaultCluster", &topic).await;
        let error = refused.expect_err("a clerk who makes topics");
        assert!(matches!(&error, Error::Refused { code: 1, .. }), "{error}");
        assert!(error.to_string().contains("Need admin permission"), "{error}");
        clerk.shutdown().await.expect("an end");
    });
}
