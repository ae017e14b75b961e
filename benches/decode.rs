//! From received bytes to a typed send request, in both header forms.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_benches::{BODY_BYTES, SEND_HEADER_JSON, frame, send_header_binary};
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::header::HeaderDecoder;
use ringmq_net::headers::SendHeader;

fn decode(criterion: &mut Criterion) {
    let body = vec![b'x'; BODY_BYTES];
    let forms = [
        ("json", frame(0, SEND_HEADER_JSON.as_bytes(), &body)),
        ("binary", frame(1, &send_header_binary(), &body)),
    ];
    let mut group = criterion.benchmark_group("decode a send request");
    group.throughput(Throughput::Elements(1));
    for (form, bytes) in &forms {
        let mut decoder = HeaderDecoder::new();
        group.bench_function(*form, |bencher| {
            bencher.iter(|| {
                let Ok(Peek::Frame(frame)) = peek(black_box(bytes), FRAME_BYTES_MAX) else {
                    panic!("not a frame")
                };
                let Ok(view) = decoder.decode(frame.serialize, frame.header) else {
                    panic!("not a header")
                };
                let Ok(header) = SendHeader::v2(&view) else { panic!("not a send request") };
                assert_eq!(header.queue_id, 1);
                black_box(header.properties.len() + frame.body.len())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
