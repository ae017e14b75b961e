//! Criterion benches of the hot paths, one file for each: `decode`, `encode`, `record`, `log`, `queue`, `pull`.
//!
//! They measure parts alone, without sockets and (but for the preparation of `pull`) without a disk: what a message costs in each
//! of its stations. How fast the whole is, only the load harness tells. Here is what the benches have in common: a message as a
//! stock producer sends it.

use std::net::{Ipv4Addr, SocketAddr};

use ringmq_net::record::RecordFields;

/// Header of a SEND_MESSAGE_V2 as the Java client 4.9.8 writes it.
pub const SEND_HEADER_JSON: &str = r#"{"code":310,"extFields":{"a":"PG","b":"TopicTest","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\u00017F0000010BB818B4AAC214A1B2C30000\u0002WAIT\u0001true\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#;

/// The same request's header in the binary form, in hexadecimal.
const SEND_HEADER_BINARY_HEX: &str = "\
    0136000199000000070000000000000000000000cd00016100000002504700016200000009546f70696354657374\
    000163000000065442573130320001640000000134000165000000013100016600000001300001670000000d3137\
    303030303030303030303000016800000001300001690000003d554e49515f4b4559013746303030303031304242\
    383138423441414332313441314232433330303030025741495401747275650254414753015461674100016a0000\
    00013000016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b65722d61";

/// The properties of that message.
pub const PROPERTIES: &str =
    "UNIQ_KEY\u{1}7F0000010BB818B4AAC214A1B2C30000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";

/// What a broker stores of them.
pub const STORED_PROPERTIES: &str = "UNIQ_KEY\u{1}7F0000010BB818B4AAC214A1B2C30000\u{2}TAGS\u{1}TagA\u{2}CLUSTER\u{1}DefaultCluster";

/// Bytes of a body.
pub const BODY_BYTES: usize = 1024;

/// A broker's address.
pub const HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// The header's bytes in the binary form.
#[must_use]
pub fn send_header_binary() -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let pairs = SEND_HEADER_BINARY_HEX.as_bytes().chunks_exact(2);
    pairs.map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A whole frame. `kind`: 0 JSON, 1 binary.
#[must_use]
pub fn frame(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let total = 4 + header.len() + body.len();
    let mut out = (total as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(u32::from(kind) << 24 | header.len() as u32).to_be_bytes());
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out
}

/// The record that a broker stores for the message, with this body.
#[must_use]
pub fn record(body: &[u8]) -> RecordFields<'_> {
    RecordFields {
        queue_id: 1,
        flag: 0,
        queue_offset: 42,
        physical_offset: 0x1234,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: HOST,
        store_timestamp: 1_700_000_000_001,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        topic: "TopicTest",
        properties: STORED_PROPERTIES.as_bytes(),
    }
}
