use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringmq_net::body::{MessageQueue, TopicOffset, TopicStats};

use super::*;
use crate::ResetOffsets;
use crate::fake::{Fake, React, nobody, ok, record, refusal, route};

async fn cluster(broker: &Fake) -> (Fake, Admin) {
    let servers = Fake::name_server(vec![("a", broker.addr())], 1).await;
    let client = Client::builder().name_server(servers.addr()).build().unwrap();
    (servers, client.admin())
}

#[tokio::test]
async fn every_name_server_is_told_and_the_one_that_refuses_is_named() {
    let (one, two) =
        (Fake::start(|_| React::Answer(ok())).await, Fake::start(|_| refusal(1)).await);
    let addrs = format!("{};{}", one.addr(), two.addr());
    let client = Client::builder().name_server(addrs).build().unwrap();
    let error = client.admin().kv_put("space", "key", "value").await.unwrap_err();
    assert_eq!((error.code(), error.addr()), (Some(1), Some(two.addr().as_str())));
    assert_eq!(one.asked(request::PUT_KV_CONFIG)[0].ext("value"), Some("value"));
    client.set_name_servers(&nobody().await).unwrap();
    assert!(client.admin().topics().await.unwrap_err().is_network());
}

#[tokio::test]
async fn a_new_topic_is_waited_for_until_the_name_servers_have_it() {
    let broker = Fake::start(|_| React::Answer(ok())).await;
    let looks = Arc::new(AtomicUsize::new(0));
    let (addr, count) = (broker.addr(), looks.clone());
    let servers = Fake::start(move |command| match command.code {
        request::GET_BROKER_CLUSTER_INFO => {
            let data = ringmq_net::body::BrokerData {
                cluster: "c".into(),
                broker_name: "a".into(),
                broker_addrs: [(0, addr.clone())].into(),
            };
            let info = ClusterInfo {
                brokers: [("a".to_owned(), data)].into(),
                clusters: [("c".to_owned(), vec!["a".to_owned()])].into(),
            };
            React::Answer(ok().with_body(info.to_json()))
        }
        _ if count.fetch_add(1, Ordering::SeqCst) < 2 => refusal(response::TOPIC_NOT_EXIST),
        _ => React::Answer(ok().with_body(route(&[("a", addr.clone())], 8))),
    })
    .await;
    let client = Client::builder().name_server(servers.addr()).build().unwrap();
    let admin = client.admin();
    admin.create_topic("c", &TopicConfig::new("t", 8)).await.unwrap();
    assert_eq!(looks.load(Ordering::SeqCst), 3);
    assert_eq!(broker.asked(request::UPDATE_AND_CREATE_TOPIC)[0].ext("topic"), Some("t"));
    for name in ["", "a b", "TBW102", "rmq_sys_x"] {
        let error = admin.create_topic("c", &TopicConfig::new(name, 8)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    let unknown = admin.create_topic("d", &TopicConfig::new("t", 8)).await.unwrap_err();
    assert!(unknown.to_string().contains("there are: c"), "{unknown}");
}

#[tokio::test]
async fn a_group_without_members_is_reset_in_the_brokers_and_never_forwards_unasked() {
    let first = AtomicUsize::new(0);
    let broker = Fake::start(move |command| match command.code {
        request::INVOKE_BROKER_TO_RESET_OFFSET => match first.fetch_add(1, Ordering::SeqCst) {
            // No progress in some queue.
            0 => refusal(response::SYSTEM_ERROR),
            _ => refusal(response::CONSUMER_NOT_ONLINE),
        },
        request::GET_TOPIC_STATS_INFO => {
            let offsets = TopicOffset { min_offset: 0, max_offset: 90, last_update_timestamp: 0 };
            let queues = vec![(MessageQueue::new("t", "a", 0), offsets)];
            React::Answer(ok().with_body(TopicStats { queues }.to_json()))
        }
        request::QUERY_CONSUMER_OFFSET => React::Answer(ok().with_ext("offset", 40)),
        request::SEARCH_OFFSET_BY_TIMESTAMP => React::Answer(ok().with_ext("offset", 70)),
        _ => React::Answer(ok()),
    })
    .await;
    let (_servers, admin) = cluster(&broker).await;
    let table = [(5, false, 40), (5, true, 70), (-1, true, 90)];
    for (at, (timestamp_ms, force, wanted)) in table.into_iter().enumerate() {
        let reset = ResetOffsets { topic: "t", group: "g", timestamp_ms, force };
        let done = admin.reset_offsets(&reset).await.unwrap();
        assert_eq!(done, [(MessageQueue::new("t", "a", 0), wanted)]);
        let stored = broker.asked(request::UPDATE_CONSUMER_OFFSET);
        assert_eq!(stored[at].ext("commitOffset"), Some(wanted.to_string().as_str()));
    }
}

#[tokio::test]
async fn messages_of_other_keys_with_the_same_hash_are_left_out() {
    let broker = Fake::start(|command| match command.code {
        request::QUERY_MESSAGE => {
            let mut body = record("t", 0, b"other", "UNIQ_KEY\u{1}ID2\u{2}KEYS\u{1}no").to_vec();
            body.extend_from_slice(&record("t", 0, b"it", "UNIQ_KEY\u{1}ID\u{2}KEYS\u{1}x k"));
            React::Answer(ok().with_body(body))
        }
        _ => React::Answer(ok()),
    })
    .await;
    let (_servers, admin) = cluster(&broker).await;
    let query = crate::QueryMessages {
        topic: "t",
        key: "k",
        unique: false,
        max: 32,
        begin_ms: 0,
        end_ms: i64::MAX,
    };
    let found = admin.query_messages(&query).await.unwrap();
    assert_eq!(found.iter().map(|m| &m.body[..]).collect::<Vec<_>>(), [b"it"]);
    let one = admin.find_message("t", "ID").await.unwrap().unwrap();
    assert_eq!(&one.body[..], b"it");
    assert_eq!(admin.find_message("t", "ID3").await.unwrap(), None);
}
