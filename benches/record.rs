//! What becomes of a message on its way into the log: its properties text, its record; and reading a record back.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_benches::{BODY_BYTES, PROPERTIES, record};
use ringmq_net::record::{PropertiesRewriter, decode, tags_code};

fn properties(criterion: &mut Criterion) {
    let mut rewriter = PropertiesRewriter::new();
    criterion.bench_function("rewrite properties for the store", |bencher| {
        bencher.iter(|| {
            let text = black_box(PROPERTIES);
            let Ok(known) = rewriter.for_send(text, "DefaultCluster") else { panic!("refused") };
            black_box((rewriter.text().len(), tags_code(known.tags)))
        });
    });
}

fn records(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record of 1 KiB");
    let body = vec![b'x'; BODY_BYTES];
    let fields = record(&body);
    let mut out = vec![0; fields.encoded_len()];
    group.throughput(Throughput::Bytes(out.len() as u64));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| black_box(&fields).encode(black_box(&mut out)));
    });
    fields.encode(&mut out);
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            let Ok(view) = decode(black_box(&out)) else { panic!("not a record") };
            black_box((view.queue_offset(), view.body().len()))
        });
    });
    group.finish();
}

criterion_group!(benches, properties, records);
criterion_main!(benches);
