//! Instances that execute at the same time.

use std::thread;

use super::bench::{Bench, check_rows, number, repository_of};
use super::table::{Framework, ModelKind};
use super::tensors::{Client, FORMS};
use nereid_test_support::variant::is_second_run;

const THREADS: usize = 6;
const REQUESTS: usize = 30;

pub fn instances_answer_in_parallel_and_mix_nothing_up(framework: &Framework) {
    if is_second_run() {
        return;
    }
    let two = "instance_group { kind: KIND_CPU count: 2 }\ndynamic_batching { }";
    let Some(repository) = repository_of(framework, &[ModelKind::Network], two) else { return };
    let model = framework.model(ModelKind::Network);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    let (http, grpc) = (bench.server.http, bench.server.grpc);
    let row_counts = |thread: usize| (0..REQUESTS).map(move |request| 1 + (thread + request) % 4);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let model = &model;
            scope.spawn(move || {
                let mut client = Client::connect(http, grpc);
                for (request, rows) in row_counts(thread).enumerate() {
                    let form = FORMS[request % FORMS.len()];
                    check_rows(&mut client, framework, form, model, rows, thread * REQUESTS + request);
                }
            });
        }
    });
    let statistics = bench.statistics(&model);
    let requests = (THREADS * REQUESTS) as u64;
    assert_eq!(number(&statistics["inference_stats"]["success"]["count"]), requests, "{statistics}");
    let rows: usize = (0..THREADS).flat_map(row_counts).sum();
    assert_eq!(number(&statistics["inference_count"]), rows as u64, "{statistics}");
    bench.stop();
}
