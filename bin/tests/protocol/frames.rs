//! Frames: what is read in which form, and what is never answered.

use super::ext::Ext;
use super::fixture::{shared, stock, topic};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Request, raw_frame};

#[test]
fn unknown_codes_are_3_with_stocks_words() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        for code in [0, 1, 9, 13, 22, 99, 105, 400, 999, 9_999, 32_000] {
            let reply = peer.call(code, &Ext::none(), b"a body");
            reply.refused(3, &format!(" request type {code} not supported"));
            peer.post(code, FLAG_ONEWAY, &Ext::none(), b"a body");
        }
        if form == Form::Json {
            // Of 5.x, and of nobody; no 16 bits hold them.
            for code in [200_050, 99_999] {
                let reply = peer.call(code, &Ext::none(), b"");
                reply.refused(3, &format!(" request type {code} not supported"));
                peer.post(code, FLAG_ONEWAY, &Ext::none(), b"");
            }
        }
        peer.quiet();
    }
}

#[test]
fn requests_that_are_not_served_are_3_and_never_silence() {
    let mut peer = shared().peer(Form::Json);
    if stock() {
        return;
    }
    for code in [37, 50, 51, 52, 53, 323, 324, 325] {
        let reply = peer.call(code, &Ext::none(), b"");
        reply.refused(3, &format!(" request type {code} not supported"));
    }
}

#[test]
fn opaques_are_given_back_whatever_they_are() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        for opaque in [0, -1, 1, i32::MIN, i32::MAX] {
            let ext = Ext::queue("Opaque", 0);
            let request =
                Request { code: 30, opaque, version: 409, ext: Some(&ext), ..Request::default() };
            peer.write(&request.frame(form));
            assert_eq!(peer.reply().opaque, opaque);
        }
    }
}

#[test]
fn nothing_oneway_is_answered_not_even_refusals() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = topic(1);
        let codes = [
            10, 310, 320, 11, 361, 12, 14, 15, 17, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36,
            38, 41, 42, 43, 45, 46, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303,
            305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 328, 329, 351, 9_999,
        ];
        for code in codes {
            if stock() && code == 33 {
                continue; // Answered even so.
            }
            // Without what they need, and with some of it.
            peer.post(code, FLAG_ONEWAY, &Ext::none(), b"");
            let ext = Ext::queue(&topic, 0)
                .with("consumerGroup", "Oneway")
                .with("producerGroup", "Oneway")
                .with("queueOffset", 0);
            if code != 215 && code != 17 {
                peer.post(
                    code,
                    FLAG_ONEWAY,
                    &ext.with("maxMsgNums", 1).with("sysFlag", 6).with("offset", 0),
                    b"",
                );
            }
        }
        peer.quiet();
        // Tasks of theirs may still run: whatever they say would come before this.
        std::thread::sleep(std::time::Duration::from_millis(300));
        peer.quiet();
    }
}

#[test]
fn other_flag_bits_mean_nothing() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let ext = Ext::queue("Flags", 0);
        peer.post(30, 0x7FFF_FFFC, &ext, &[]);
        peer.reply().ok();
    }
}

#[test]
fn responses_that_nobody_waits_for_are_dropped() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        for code in [0, 1, 310] {
            peer.post(code, 1, &Ext::send("NobodyAsked"), b"x");
        }
        peer.quiet();
        assert_eq!(peer.topic_config("NobodyAsked"), None);
    }
}

#[test]
fn headers_are_read_as_leniently_as_stock_reads_them() {
    let mut peer = shared().peer(Form::Json);
    let headers = [
        // C++ ends its header in a line feed; blanks are nothing.
        "{\"code\":30,\"opaque\":5,\"flag\":0,\"language\":\"CPP\",\"version\":333,\"extFields\":{\"topic\":\"H\",\"queueId\":0}}\n",
        " \t{ \"code\" : 30 , \"opaque\" : 5, \"extFields\" : { \"topic\" : \"H\", \"queueId\" : \"0\" } } ",
        // Unknown fields of any shape, unknown languages, numbers as text, a key twice, null.
        "{\"x\":{\"y\":[1,{}]},\"code\":\"30\",\"opaque\":\"5\",\"flag\":\"0\",\"language\":\"NODE_JS\",\"remark\":null,\"extFields\":{\"topic\":\"other\",\"topic\":\"H\",\"queueId\":0,\"gone\":null,\"yes\":true}}",
        "{\"code\":30,\"opaque\":5,\"language\":12,\"extFields\":{\"topic\":\"H\",\"queueId\":\"0\"}}",
        "{'code':30,opaque:5,\"extFields\":{\"topic\":'H',\"queueId\":\"0\",},}",
    ];
    for header in headers {
        peer.write(&raw_frame(header.as_bytes(), Form::Json, b""));
        let reply = peer.reply().ok();
        assert_eq!((reply.opaque, reply.number("offset")), (5, 0), "{header}");
    }
}

#[test]
fn the_vectors_of_a_stock_client_are_served() {
    // A send of group PG to queue 1 of TopicTest, as 4.9.8 writes it in its two forms, byte for byte.
    let header = r#"{"code":310,"extFields":{"a":"PG","b":"TopicTest","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\u00017F0000010BB818B4AAC214A1B2C30000\u0002WAIT\u0001true\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#;
    let json = raw_frame(header.as_bytes(), Form::Json, b"Hello");
    assert_eq!(json.len(), 354);
    let binary = "000000eb010000e20136000199000000070000000000000000000000cd00016100000002504700016200000009546f70696354657374000163000000065442573130320001640000000134000165000000013100016600000001300001670000000d3137303030303030303030303000016800000001300001690000003d554e49515f4b4559013746303030303031304242383138423441414332313441314232433330303030025741495401747275650254414753015461674100016a000000013000016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b65722d6148656c6c6f";
    let binary: Vec<u8> = (0..binary.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&binary[at..at + 2], 16).expect("hex"))
        .collect();
    assert_eq!(binary.len(), 239);
    for (form, frame) in [(Form::Json, json), (Form::Binary, binary)] {
        let mut peer = shared().peer(form);
        peer.write(&frame);
        let reply = peer.reply().ok();
        assert_eq!((reply.opaque, reply.form, reply.number("queueId")), (7, form, 1));
        let message = peer.pull("TopicTest", 1, reply.number("queueOffset")).remove(0);
        assert_eq!((message.body.as_slice(), message.born), (&b"Hello"[..], 1_700_000_000_000));
        assert_eq!(message.property("TAGS"), Some("TagA"));
        assert_eq!(message.property("UNIQ_KEY"), Some("7F0000010BB818B4AAC214A1B2C30000"));
        assert_eq!(message.property("WAIT"), None);
    }
}

#[test]
fn many_small_requests_in_one_segment_are_all_answered_in_order() {
    if stock() {
        return; // In any order.
    }
    let mut peer = shared().peer(Form::Json);
    let ext = Ext::queue("Pipeline", 0);
    let bytes: Vec<u8> = (0..300)
        .flat_map(|opaque| {
            let form = FORMS[opaque as usize % 2];
            Request { code: 30, opaque, version: 409, ext: Some(&ext), ..Request::default() }
                .frame(form)
        })
        .collect();
    peer.write(&bytes);
    for opaque in 0..300 {
        let reply = peer.reply().ok();
        assert_eq!((reply.opaque, reply.form), (opaque, FORMS[opaque as usize % 2]));
    }
}

#[test]
fn languages_that_are_newer_than_the_broker_are_served_and_shown() {
    for (form, language) in [(Form::Json, 13), (Form::Binary, 13), (Form::Binary, 200)] {
        let group = super::fixture::unique("Language");
        let mut peer = shared().peer(form);
        let beat = super::fixture::consumer_beat("c", &group, "T", "*", 1);
        peer.language = language;
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        let reply = peer.call(203, &Ext::new([("consumerGroup", group.as_str())]), &[]).ok();
        let shown = reply.json()["connectionSet"][0]["language"].clone();
        if !stock() {
            let expected = if language == 13 { "NODE_JS" } else { "OTHER" };
            assert_eq!(shown, expected);
        }
    }
}

#[test]
fn what_cpp_and_go_clients_add_to_every_request_changes_nothing() {
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(1), super::fixture::unique("Adds"));
    // C++ signs with nothing where nothing is configured; Go names the broker.
    let add = |ext: Ext| {
        ext.with("AccessKey", "")
            .with("Signature", "")
            .with("ONSChannelKey", "")
            .with("SecurityToken", "")
            .with("bname", "broker-a")
            .with("ns", "")
    };
    peer.call(310, &add(Ext::send(&topic)), b"x").ok();
    peer.call(10, &add(Ext::send(&topic).named_for(10)), b"x").ok();
    assert_eq!(peer.call(11, &add(Ext::pull(&group, &topic, 0, 0)), &[]).code, 0);
    let ext = Ext::queue(&topic, 0).with("consumerGroup", &group).with("commitOffset", 1);
    peer.call(15, &add(ext), &[]).ok();
    assert_eq!(peer.committed(&group, &topic, 0), Some(1));
    let back = Ext::new([("group", group.as_str()), ("delayLevel", "3"), ("offset", "0")]);
    let reply = peer.call(36, &add(back), &[]);
    assert!([0, 1].contains(&reply.code), "{reply:?}");
    let beat = super::fixture::consumer_beat("c", &group, &topic, "*", 1);
    peer.call(34, &add(Ext::none()), beat.as_bytes()).ok();
    // As stock's tools sign by default, with keys that nobody here knows.
    let signed = Ext::new([("topic", topic.as_str())])
        .with("AccessKey", "rocketmq2")
        .with("Signature", "Ou1T58RIcyZWaTIwzkhJZWn/Zvs=");
    peer.call(202, &signed, &[]).ok();
}
