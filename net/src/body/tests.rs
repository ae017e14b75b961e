//! Bodies against the literal texts of stock brokers, name servers and clients.

use super::*;

/// Reads `text`, and requires that writing gives the same bytes.
fn exact<B: Body>(text: &str) -> B {
    let body = B::from_json(text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(body.to_json()).unwrap(), text);
    body
}

#[test]
fn heartbeat_of_java() {
    let text = r#"{"clientID":"192.168.0.1@1234#5678","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],"producerDataSet":[{"groupName":"PG"}]}"#;
    let got: Heartbeat = exact(text);
    assert_eq!(got.producers, ["PG"]);
    let group = &got.consumers[0];
    assert_eq!(group.consume_type, Some(ConsumeType::Passively));
    assert_eq!(group.message_model, Some(MessageModel::Clustering));
    assert_eq!(group.consume_from, Some(ConsumeFrom::LastOffset));
    assert_eq!(group.subscriptions[0].codes, [2598919, 2598920]);
    assert!(group.subscriptions[0].is_tag());
}

#[test]
fn heartbeat_of_cpp_with_ordinals_texts_and_gaps() {
    let text = "{\"clientID\":\"c2@cpp\",\"consumerDataSet\":[{\"consumeFromWhere\":0,\"consumeType\":1,\
                \"groupName\":\"g2\",\"messageModel\":1,\"subscriptionDataSet\":[{\"subString\":\"*\",\
                \"subVersion\":\"100\",\"topic\":\"TopicA\"}]}]}\n";
    let got = Heartbeat::from_json(text.as_bytes()).unwrap();
    let want = ConsumerData {
        group_name: "g2".into(),
        consume_type: Some(ConsumeType::Passively),
        message_model: Some(MessageModel::Clustering),
        consume_from: Some(ConsumeFrom::LastOffset),
        subscriptions: vec![SubscriptionData::all("TopicA", 100)],
        unit_mode: false,
    };
    assert_eq!(got.consumers, [want]);
    assert!(got.producers.is_empty());
}

#[test]
fn heartbeat_of_java_5_and_of_go() {
    let text = r#"{"clientID":"192.0.2.2@12604#1693788593233","consumerDataSet":[],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"Cli5PG"},{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}"#;
    let got = Heartbeat::from_json(text.as_bytes()).unwrap();
    assert_eq!(got.producers, ["Cli5PG", "CLIENT_INNER_PRODUCER"]);

    let text = r#"{"clientID":"go","producerDataSet":null,"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_POP","messageModel":"WHATEVER","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"T","subString":"A","codeSet":["65"],"tagsSet":null,"subVersion":1700000000000000000,"expressionType":""}]}]}"#;
    let got = Heartbeat::from_json(text.as_bytes()).unwrap();
    let group = &got.consumers[0];
    assert_eq!((group.consume_type, group.message_model), (Some(ConsumeType::Pop), None));
    assert_eq!(group.subscriptions[0].codes, [65]);
    assert_eq!(group.subscriptions[0].sub_version, 1_700_000_000_000_000_000);
    assert!(group.subscriptions[0].is_tag());
}

#[test]
fn bodies_of_another_shape_say_what_is_wrong() {
    let error = |text: &str| Heartbeat::from_json(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        error(""),
        "body is not readable: JSON is malformed at byte 0: expected a value or a key"
    );
    assert_eq!(error("[]"), "body field body is not an object");
    assert_eq!(error("{}"), "body field clientID is missing");
    assert_eq!(
        error(r#"{"clientID":"c","consumerDataSet":{}}"#),
        "body field consumerDataSet is not an array"
    );
    assert_eq!(
        error(r#"{"clientID":"c","consumerDataSet":[7]}"#),
        "body field groupName is missing"
    );
}

#[test]
fn routes_in_both_dialects() {
    let plain = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    let strict = plain.replace("{0:", "{\"0\":").replace(",1:", ",\"1\":");
    let got: TopicRouteData = exact(plain);
    assert_eq!(got.brokers[0].broker_addrs[&1], "127.0.0.1:11911");
    assert_eq!(String::from_utf8(got.to_strict_json()).unwrap(), strict);
    assert_eq!(TopicRouteData::from_json(strict.as_bytes()), Ok(got));
    let ordered = r#"{"brokerDatas":[],"filterServerTable":{"a:1":["f:2"]},"orderTopicConf":"broker-a:8","queueDatas":[]}"#;
    assert_eq!(exact::<TopicRouteData>(ordered).order_topic_conf.as_deref(), Some("broker-a:8"));
}

#[test]
fn cluster_info_and_topic_lists() {
    exact::<ClusterInfo>(
        r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#,
    );
    exact::<ClusterInfo>(r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#);
    exact::<TopicList>(
        r#"{"brokerAddr":"127.0.0.1:10911","topicList":["broker-a","DefaultCluster"]}"#,
    );
    exact::<TopicList>(r#"{"topicList":[]}"#);
    exact::<GroupList>(r#"{"groupList":["CG1","CG2"]}"#);
    exact::<KvTable>(r#"{"table":{"TopicOrd":"broker-a:8"}}"#);
    exact::<KvTable>(r#"{"table":{}}"#);
    exact::<DataVersion>(r#"{"counter":9,"timestamp":1795977527809}"#);
}

const REGISTER: &str = r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":1,"writeQueueNums":4}}}}"#;
const REGISTER_ZLIB: &str = "78da63606050af564ace2fcd2b492d52b232d6512ac9cc4d2d2e49cc2d50b232343740805a0606064620160fc92fc84c76543001423385604f3f771fd7f8104777a01453742c00332112f4";

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

#[test]
fn registration_in_its_forms() {
    let plain: RegisterBroker = exact(REGISTER);
    assert_eq!(body_crc32(REGISTER.as_bytes()), 158_750_685);
    assert_eq!(RegisterBroker::decode(409, false, REGISTER.as_bytes()), Ok(plain.clone()));

    // Compression loses order and the system flag.
    let mut lossy = plain;
    lossy.topics.topics[0].order = false;
    lossy.topics.topics[0].topic_sys_flag = 0;
    let zlib = unhex(REGISTER_ZLIB);
    assert_eq!(body_crc32(&zlib), 146_929_124);
    assert_eq!(RegisterBroker::decode(409, true, &zlib), Ok(lossy.clone()));
    // 5.x brokers say "not compressed".
    assert_eq!(RegisterBroker::decode(479, false, &zlib), Ok(lossy.clone()));
    assert_eq!(RegisterBroker::decode(409, true, &lossy.to_compressed()), Ok(lossy.clone()));

    let empty = RegisterBroker::decode(409, true, b"").unwrap();
    assert_eq!(empty.topics, TopicConfigTable::default());
    let old = RegisterBroker::decode(36, false, &lossy.topics.to_json()).unwrap();
    assert_eq!(old, RegisterBroker { filter_servers: None, ..lossy });
}

#[test]
fn compressed_registration_of_a_5x_broker() {
    use std::io::Write;
    let mut plain = Vec::new();
    let version = br#"{"counter":3,"stateVersion":0,"timestamp":17}"#;
    plain.extend_from_slice(&(version.len() as u32).to_be_bytes());
    plain.extend_from_slice(version);
    plain.extend_from_slice(&1u32.to_be_bytes());
    for chunk in [&br#"T 1 2 6 MULTI_TAG {"+a":"b c"}"#[..], b"[\"f:1\"]"] {
        plain.extend_from_slice(&(chunk.len() as u32).to_be_bytes());
        plain.extend_from_slice(chunk);
    }
    plain.extend_from_slice(&0u32.to_be_bytes());
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&plain).unwrap();
    let got = RegisterBroker::decode(479, false, &zlib.finish().unwrap()).unwrap();
    assert_eq!(got.filter_servers.as_deref(), Some(&["f:1".to_owned()][..]));
    assert_eq!(got.topics.topics[0].topic_filter_type, TopicFilterType::MultiTag);
    assert_eq!(got.topics.topics[0].write_queue_nums, 2);
}

#[test]
fn broken_and_bloated_compressed_registrations_are_refused() {
    use std::io::Write;
    let zlib = |plain: &[u8]| {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(plain).unwrap();
        out.finish().unwrap()
    };
    let decode = |body: &[u8]| RegisterBroker::decode(409, true, body);
    assert!(decode(b"{}").is_err());
    let whole = unhex(REGISTER_ZLIB);
    for cut in 1..whole.len() {
        assert!(decode(&whole[..cut]).is_err(), "cut at {cut}");
    }
    for bad in
        [&b""[..], b"\0", b"\xff\xff\xff\xff", b"\0\0\0\x02{}\xff\xff\xff\xff", b"\0\0\0\x02{}"]
    {
        assert!(decode(&zlib(bad)).is_err(), "{bad:?}");
    }
    for line in ["T 1 2 6", "T 1 2 x SINGLE_TAG", " 1 2 6 SINGLE_TAG", "T 1 2 6 NO_TAG"] {
        let mut plain = b"\0\0\0\x02{}\0\0\0\x01".to_vec();
        plain.extend_from_slice(&(line.len() as u32).to_be_bytes());
        plain.extend_from_slice(line.as_bytes());
        plain.extend_from_slice(b"\0\0\0\x02[]");
        assert!(decode(&zlib(&plain)).is_err(), "{line}");
    }
    let bomb = zlib(&vec![0; INFLATED_BYTES_MAX + 1]);
    let error = decode(&bomb).unwrap_err();
    assert_eq!(error, BodyError::Compressed { what: "more than 16 MiB when inflated" });
}

#[test]
fn topic_and_group_tables() {
    let text = r#"{"dataVersion":{"counter":9,"timestamp":1795977527809},"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}}}"#;
    exact::<TopicConfigTable>(text);
    let text = r#"{"dataVersion":{"counter":1,"timestamp":1795977288792},"subscriptionGroupTable":{"CG3":{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":false,"groupName":"CG3","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}"#;
    exact::<SubscriptionGroupTable>(text);

    let sparse = br#"{"topicConfigTable":{"T":{"attributes":{"a":"b"},"topicFilterType":"NEW"}}}"#;
    let got = TopicConfigTable::from_json(sparse).unwrap();
    let want = TopicConfig { topic_name: "T".into(), ..TopicConfig::new("", 16) };
    assert_eq!((got.data_version, got.topics), (DataVersion::default(), vec![want]));
    let sparse = SubscriptionGroupTable::from_json(br#"{"subscriptionGroupTable":{"G":{}}}"#);
    assert_eq!(sparse.unwrap().groups, [SubscriptionGroupConfig::new("G")]);
}

#[test]
fn offset_tables() {
    let got: ConsumerOffsetTable =
        exact(r#"{"offsetTable":{"%RETRY%CG1@CG1":{0:0},"TopicA@CG1":{0:12,1:12,2:10,3:11}}}"#);
    assert_eq!(got.offsets["TopicA@CG1"][&2], 10);
    let quoted = br#"{"offsetTable":{"T@G":{"0":1,"1":"2"}}}"#;
    assert_eq!(ConsumerOffsetTable::from_json(quoted).unwrap().offsets["T@G"][&1], 2);
    exact::<DelayOffsetTable>(r#"{"offsetTable":{1:2}}"#);
    exact::<CorrectionOffsets>(r#"{"correctionOffsets":{0:10,1:11}}"#);
    let beyond = br#"{"offsetTable":{4294967296:2}}"#;
    assert!(DelayOffsetTable::from_json(beyond).is_err());
}

#[test]
fn reset_offsets_in_both_forms() {
    let java = r#"{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:1,{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:8}}"#;
    let got: ResetOffset = exact(java);
    assert_eq!(got.offsets[1], (MessageQueue::new("TopicA", "broker-a", 0), 8));
    let cpp = r#"{"offsetTable":[{"brokerName":"broker-a","offset":1,"queueId":3,"topic":"TopicA"},{"brokerName":"broker-a","offset":8,"queueId":0,"topic":"TopicA"}]}"#;
    assert_eq!(String::from_utf8(got.to_list_json()).unwrap(), cpp);
    assert_eq!(ResetOffset::from_json(cpp.as_bytes()), Ok(got.clone()));
    let quoted = r#"{"offsetTable":{"{\"brokerName\":\"broker-a\",\"queueId\":3,\"topic\":\"TopicA\"}":1,"{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"TopicA\"}":8}}"#;
    assert_eq!(ResetOffset::from_json(quoted.as_bytes()), Ok(got));
    exact::<ConsumerStatus>(
        r#"{"consumerTable":{"192.0.2.2@12650#1695034703579":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:16}},"messageQueueTable":{}}"#,
    );
    exact::<ConsumerStatus>(
        r#"{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:16}}"#,
    );
}

#[test]
fn locks_and_client_lists() {
    exact::<ConsumerList>(r#"{"consumerIdList":["c1@1","c2@cpp"]}"#);
    exact::<LockOk>(
        r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"TopicB"},{"brokerName":"broker-a","queueId":1,"topic":"TopicB"}]}"#,
    );
    exact::<LockOk>(r#"{"lockOKMQSet":[]}"#);
    let text = r#"{"clientId":"c","consumerGroup":"CG","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}]}"#;
    let got: LockBatch = exact(text);
    let java5 = text.replace("\"mqSet\"", "\"onlyThisBroker\":false,\"mqSet\"");
    assert_eq!(LockBatch::from_json(java5.as_bytes()), Ok(got));
    exact::<CheckClientConfig>(
        r#"{"clientId":"192.0.2.2@i2","group":"CG2","subscriptionData":{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":"a > 5","subVersion":1795977254326,"tagsSet":[],"topic":"TopicA"}}"#,
    );
}

#[test]
fn connections_and_producers() {
    exact::<ConsumerConnection>(
        r#"{"connectionSet":[{"clientAddr":"127.0.0.1:37392","clientId":"192.0.2.2@25488#835792410948","language":"JAVA","version":409}],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{"%RETRY%CG1":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795977108345,"tagsSet":[],"topic":"%RETRY%CG1"},"TopicA":{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1795977108217,"tagsSet":["TagA","TagB"],"topic":"TopicA"}}}"#,
    );
    exact::<ProducerConnection>(
        r#"{"connectionSet":[{"clientAddr":"127.0.0.1:37422","clientId":"192.0.2.2@25488#837070641121","language":"JAVA","version":409}]}"#,
    );
    exact::<ProducerTable>(
        r#"{"data":{"PG1":[{"clientId":"192.0.2.2@30797#983014942576","language":"JAVA","lastUpdateTimestamp":1795977255418,"remoteIP":"/127.0.0.1:52914","version":409}]}}"#,
    );
}

#[test]
fn statistics() {
    exact::<TopicStats>(
        r#"{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:{"lastUpdateTimestamp":1795977108877,"maxOffset":5,"minOffset":0},{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:{"lastUpdateTimestamp":1795977109934,"maxOffset":6,"minOffset":0}}}"#,
    );
    let got: ConsumeStats = exact(
        r#"{"consumeTps":0.42,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"%RETRY%CG1"}:{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0},{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:{"brokerOffset":5,"consumerOffset":5,"lastTimestamp":1795977108877}}}"#,
    );
    assert_eq!((got.consume_tps, got.queues[1].1.broker_offset), (0.42, 5));
    exact::<ConsumeStats>(r#"{"consumeTps":0.0,"offsetTable":{}}"#);
    exact::<ConsumeStatsList>(
        r#"{"brokerAddr":"127.0.0.1:10911","consumeStatsList":[{"CG2":[{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:{"brokerOffset":11,"consumerOffset":11,"lastTimestamp":1795977255738}}}]},{"TOOLS_CONSUMER":[]}],"totalDiff":0}"#,
    );
    exact::<BrokerStats>(
        r#"{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},"statsMinute":{"avgpt":1.0,"sum":21,"tps":1.0501575236285443}}"#,
    );
    let full = r#"{"consumeTimeSpanSet":[{"consumeTimeStamp":1795977967729,"consumeTimeStampStr":"2026-11-29#18:46:07:729","delayTime":0,"maxTimeStamp":1795977967729,"maxTimeStampStr":"2026-11-29#18:46:07:729","messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"TopicA"},"minTimeStamp":1795977108695,"minTimeStampStr":"2026-11-29#18:31:48:695"}]}"#;
    let got = ConsumeTimeSpans::from_json(full.as_bytes()).unwrap();
    assert_eq!(got.spans[0].queue, MessageQueue::new("TopicA", "broker-a", 0));
    assert_eq!(ConsumeTimeSpans::from_json(&got.to_json()), Ok(got));
    exact::<ConsumeQueueBody>(
        r#"{"filterData":"null","maxQueueIndex":10,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":648,"physicSize":216,"tagsCode":2598920}],"subscriptionData":{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1795977367277,"tagsSet":["TagA","TagB"],"topic":"TopicA"}}"#,
    );
}

#[test]
fn answers_of_running_consumers() {
    exact::<ConsumerRunningInfo>(
        r#"{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":17,"droped":false,"lastConsumeTimestamp":1795977967736,"lastLockTimestamp":1795977967186,"lastPullTimestamp":1795977983855,"locked":true,"transactionMsgCount":0,"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CLIENT_VERSION":"V4_9_8","PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":{"TopicA":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.05,"consumeRT":0.04,"pullRT":134.9,"pullTPS":1.05}},"subscriptionSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1795977967261,"tagsSet":["TagA","TagB"],"topic":"TopicA"}]}"#,
    );
    exact::<ConsumeDirectlyResult>(
        r#"{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":0}"#,
    );
}
