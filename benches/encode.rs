//! The reply to a send, in both header forms, into a buffer that is used again.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_benches::HOST;
use ringmq_net::code::response;
use ringmq_net::frame::SerializeType;
use ringmq_net::record::{MESSAGE_ID_CHARS_MAX, OffsetMessageId};
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply};

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode the reply to a send");
    group.throughput(Throughput::Elements(1));
    for (form, serialize) in [("json", SerializeType::Json), ("binary", SerializeType::Binary)] {
        let (mut out, mut offset) = (BytesMut::with_capacity(64 * 1024), 0i64);
        group.bench_function(form, |bencher| {
            bencher.iter(|| {
                offset += 1;
                let physical_offset = offset as u64 * 1200;
                let id = OffsetMessageId { store_host: HOST, physical_offset };
                let mut chars = [0; MESSAGE_ID_CHARS_MAX];
                let ext = [
                    ("queueId", ExtValue::I64(1)),
                    ("TRACE_ON", ExtValue::Bool(true)),
                    ("MSG_REGION", ExtValue::Str("DefaultRegion")),
                    ("msgId", ExtValue::Str(id.write(&mut chars))),
                    ("queueOffset", ExtValue::I64(offset)),
                    ("ackLevel", ExtValue::Str("write")),
                    ("ackReplicas", ExtValue::I64(0)),
                ];
                let (opaque, code) = (offset as i32, response::SUCCESS);
                let head = ReplyHead { serialize, opaque, code, remark: None, ext: Some(&ext) };
                if out.len() > 32 * 1024 {
                    out.clear();
                }
                encode_reply(black_box(&mut out), &head, 0);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, encode);
criterion_main!(benches);
