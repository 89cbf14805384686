//! Clients that leave before their answer: in the queue, and while the model executes.

use super::bench::{Bench, number, repository_of, rows_of};
use super::files::add;
use super::table::{Framework, ModelKind};
use super::tensors::{FORMS, Form, http_request, message, of_answer};
use nereid_test_support::grpc::SERVICE;
use nereid_test_support::http::Peer;

const FAILURES: &str = "nv_inference_request_failure";
const PENDING: &str = "nv_inference_pending_request_count";
const CANCELED: &str = "reason=\"CANCELED\"";
/// Clients that leave at any moment of their request.
const LEAVERS: usize = 40;

pub fn a_client_that_is_gone_costs_the_others_nothing(framework: &Framework) {
    let waits = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 3600000000 }";
    let Some(repository) = repository_of(framework, &[ModelKind::Network], "") else { return };
    let (plain, queued) = (framework.model(ModelKind::Network), format!("{}_queued", framework.name));
    let Some(()) = add(&repository, framework, ModelKind::Network, &queued, waits) else { return };
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    leave_the_queue(&mut bench, framework, &queued);
    leave_at_any_moment(&mut bench, framework, &plain);
    bench.stop();
}

fn call_and_cancel(bench: &mut Bench, framework: &Framework, model: &str, seed: usize, when: impl FnOnce(&mut Bench)) {
    let request = message(model, &[rows_of(framework, 1, seed)], &[]);
    let grpc = &mut bench.client.grpc;
    let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
    grpc.send(&mut exchange, &request);
    grpc.half_close(&mut exchange);
    grpc.flush();
    when(bench);
    bench.client.grpc.cancel(exchange);
}

/// Both requests leave the queue, and the batch behind them is complete without them.
fn leave_the_queue(bench: &mut Bench, framework: &Framework, model: &str) {
    call_and_cancel(bench, framework, model, 1, |bench| bench.wait_for_metric(PENDING, model, "", 1));
    bench.wait_for_metric(FAILURES, model, CANCELED, 1);
    let mut leaver = Peer::connect(bench.server.http);
    leaver.send(&http_request(Form::Binary, model, &[rows_of(framework, 1, 2)], &[]));
    bench.wait_for_metric(PENDING, model, "", 1);
    drop(leaver);
    bench.wait_for_metric(FAILURES, model, CANCELED, 2);
    let mut peers = Vec::new();
    for (seed, rows) in [(3, 5), (4, 3)] {
        let mut peer = Peer::connect(bench.server.http);
        peer.send(&http_request(Form::Json, model, &[rows_of(framework, rows, seed)], &[]));
        peers.push((peer, rows, seed));
    }
    for (mut peer, rows, seed) in peers {
        let outputs = of_answer(&peer.answer()).unwrap_or_else(|refusal| panic!("{model}: {refusal:?}"));
        super::bench::assert_rows(framework, &outputs, rows, seed, model);
    }
    let statistics = bench.statistics(model);
    let counts = ["success", "fail"].map(|name| number(&statistics["inference_stats"][name]["count"]));
    assert_eq!(counts, [2, 2], "{statistics}");
    assert_eq!(number(&statistics["inference_count"]), 8, "{statistics}");
    assert_eq!(number(&statistics["execution_count"]), 1, "{statistics}");
}

/// Whatever became of each request, it is counted once.
fn leave_at_any_moment(bench: &mut Bench, framework: &Framework, model: &str) {
    for seed in 0..LEAVERS {
        match seed % 2 {
            0 => call_and_cancel(bench, framework, model, seed, |_| {}),
            _ => {
                let mut leaver = Peer::connect(bench.server.http);
                leaver.send(&http_request(Form::Binary, model, &[rows_of(framework, 1, seed)], &[]));
            }
        }
        if seed % 8 == 0 {
            bench.check_rows(framework, Form::Grpc, model, 1, seed);
        }
    }
    for form in FORMS {
        bench.check_rows(framework, form, model, 1, 5);
    }
    bench.wait_for_metric(PENDING, model, "", 0);
    // The single instance has executed every request before this one, and a batch is counted after its responses.
    bench.check_rows(framework, Form::Json, model, 1, 6);
    let stayers = (LEAVERS.div_ceil(8) + FORMS.len() + 1) as u64;
    let mut last = String::new();
    let server = &bench.server;
    let client = &mut bench.client;
    let path = format!("/v2/models/{model}/stats");
    server.wait_until("every execution is counted", || {
        let statistics = client.http.get(&path).json()["model_stats"][0].clone();
        let count = |name: &str| number(&statistics["inference_stats"][name]["count"]);
        let (succeeded, failed) = (count("success"), count("fail"));
        let executed = number(&statistics["inference_count"]);
        let adds_up = executed == succeeded && succeeded >= stayers && succeeded + failed <= stayers + LEAVERS as u64;
        let text = statistics.to_string();
        if !adds_up && last != text {
            last = text;
            println!("does not add up yet: {last}");
        }
        adds_up
    });
    for reason in ["REJECTED", "BACKEND", "OTHER"] {
        assert_eq!(bench.metric(FAILURES, model, &format!("reason=\"{reason}\"")), Some(0), "{model}: {reason}");
    }
}
