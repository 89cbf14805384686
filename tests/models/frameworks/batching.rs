//! Requests that are joined into one execution, and the shapes that requests may have.

use super::bench::{Bench, assert_rows, number, repository_of, rows_of};
use super::reference::{assert_close, quarters};
use super::table::{Framework, ModelKind};
use super::tensors::{FORMS, Form, Tensor, http_request, of_answer};
use nereid_test_support::http::Peer;
use nereid_test_support::variant::is_second_run;

/// A batch is complete when it has this many rows, and waits an hour for them: batches do not depend on time.
fn waits_for(rows: u32) -> String {
    format!("dynamic_batching {{ preferred_batch_size: [ {rows} ] max_queue_delay_microseconds: 3600000000 }}")
}

pub fn requests_are_joined_and_each_gets_its_rows(framework: &Framework) {
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Network], &waits_for(8)) else { return };
    let model = framework.model(ModelKind::Network);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    // Batches of other forms, so that nothing of one stays in the next.
    let batches: [&[usize]; 4] = [&[1, 3, 2, 2], &[8], &[5, 3], &[1, 1, 1, 1, 1, 1, 1, 1]];
    for (round, batch) in batches.iter().enumerate() {
        let mut peers = Vec::new();
        for (at, rows) in batch.iter().enumerate() {
            let form = if at % 2 == 0 { Form::Binary } else { Form::Json };
            let mut peer = Peer::connect(bench.server.http);
            peer.send(&http_request(form, &model, &[rows_of(framework, *rows, 10 * round + at)], &[]));
            peers.push(peer);
        }
        for (at, (mut peer, rows)) in peers.into_iter().zip(*batch).enumerate() {
            let what = format!("{model}, batch {batch:?}, request {at}");
            let outputs = of_answer(&peer.answer()).unwrap_or_else(|refusal| panic!("{what}: {refusal:?}"));
            assert_rows(framework, &outputs, *rows, 10 * round + at, &what);
        }
    }
    let requests: usize = batches.iter().map(|batch| batch.len()).sum();
    let statistics = bench.statistics(&model);
    assert_eq!(number(&statistics["execution_count"]), batches.len() as u64, "{statistics}");
    assert_eq!(number(&statistics["inference_stats"]["success"]["count"]), requests as u64, "{statistics}");
    assert_eq!(number(&statistics["inference_count"]), 8 * batches.len() as u64, "{statistics}");
    match framework.counts_requests {
        true => assert_eq!(bench.batches(&model), [(1, 1), (2, 1), (4, 1), (8, 1)]),
        false => assert_eq!(bench.batches(&model), [(8, batches.len() as u64)]),
    }
    bench.stop();
}

pub fn shapes_may_change_from_request_to_request(framework: &Framework) {
    if is_second_run() || !framework.has(ModelKind::AddSub) {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::AddSub], "") else { return };
    let model = framework.model(ModelKind::AddSub);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    // Packages of AOTInductor have at least two columns if they may have several.
    let shapes = [(1, 4), (8, 4), (3, 2), (1, 33), (5, 7), (1, 4), (2, 2)];
    for (at, (rows, columns)) in shapes.into_iter().enumerate() {
        for form in FORMS {
            check_add_sub(&mut bench, framework, form, rows, columns, at);
        }
    }
    // Outputs may be asked for one by one.
    let inputs = add_sub_inputs(framework, 2, 3, 1);
    let only = framework.output(1);
    let outputs = bench.client.infer(Form::Json, &model, &inputs, &[&only]).expect("an answer");
    assert_eq!(outputs.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), [only.as_str()]);
    bench.stop();
}

fn add_sub_inputs(framework: &Framework, rows: usize, columns: usize, seed: usize) -> [Tensor; 2] {
    let shape = [rows as i64, columns as i64];
    [0, 1].map(|at| Tensor::floats(&framework.input(at), &shape, &quarters(rows * columns, 2 * seed + at)))
}

/// Sends a request to the framework's `add_sub` and compares sum and difference.
pub fn check_add_sub(bench: &mut Bench, framework: &Framework, form: Form, rows: usize, columns: usize, seed: usize) {
    let inputs = add_sub_inputs(framework, rows, columns, seed);
    let model = framework.model(ModelKind::AddSub);
    let what = format!("{model}, [{rows}, {columns}], {form:?}");
    let outputs = bench.client.infer(form, &model, &inputs, &[]);
    let outputs = outputs.unwrap_or_else(|refusal| panic!("{what}: {refusal:?}"));
    assert_eq!(outputs.len(), 2, "{what}");
    let [first, second] = inputs.each_ref().map(Tensor::as_floats);
    for (at, sign) in [1., -1.].into_iter().enumerate() {
        let output = outputs.iter().find(|output| output.name == framework.output(at));
        let output = output.unwrap_or_else(|| panic!("{what}: {outputs:?}"));
        assert_eq!(output.shape, inputs[0].shape, "{what}");
        let expected: Vec<f32> = first.iter().zip(&second).map(|(first, second)| first + sign * second).collect();
        assert_close(&output.as_floats(), &expected, &what);
    }
}

pub fn ragged_requests_are_joined_flat(framework: &Framework) {
    if is_second_run() || !framework.has(ModelKind::Ragged) {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Ragged], &waits_for(3)) else { return };
    let model = framework.model(ModelKind::Ragged);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    for (round, lengths) in [[1, 4, 2], [3, 3, 3], [5, 1, 1]].into_iter().enumerate() {
        let send = |at: usize, length: usize| {
            let numbers = quarters(length, round + at);
            let mut peer = Peer::connect(bench.server.http);
            let input = Tensor::floats(&framework.input(0), &[1, length as i64], &numbers);
            peer.send(&http_request(Form::Json, &model, &[input], &[]));
            (peer, numbers)
        };
        let sent: Vec<(Peer, Vec<f32>)> = lengths.iter().enumerate().map(|(at, length)| send(at, *length)).collect();
        let total: usize = lengths.iter().sum();
        for (mut peer, numbers) in sent {
            let what = format!("{model}, {lengths:?}");
            let outputs = of_answer(&peer.answer()).unwrap_or_else(|refusal| panic!("{what}: {refusal:?}"));
            assert_eq!(outputs[0].shape, [1, numbers.len() as i64], "{what}");
            let expected: Vec<f32> = numbers.iter().map(|number| number + total as f32).collect();
            assert_close(&outputs[0].as_floats(), &expected, &what);
        }
    }
    assert_eq!(number(&bench.statistics(&model)["execution_count"]), 3);
    bench.stop();
}

pub fn an_optional_input_may_be_left_out(framework: &Framework) {
    let absent = framework.models.iter().find_map(|kind| match kind {
        ModelKind::Optional { absent } => Some((*kind, *absent)),
        _ => None,
    });
    let Some((kind, absent)) = absent else { return };
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[kind], "") else { return };
    let model = framework.model(kind);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    let input = |at: usize, numbers: &[f32]| Tensor::floats(&framework.input(at), &[2], numbers);
    for (given, second) in [(None, absent), (Some([3., 4.]), [3., 4.]), (None, absent)] {
        let mut inputs = vec![input(0, &[1., 2.])];
        inputs.extend(given.map(|numbers| input(1, &numbers)));
        // The last output of a model that copies is the second input; another model adds it to the first.
        let (name, expected) = match framework.function {
            super::reference::Function::Copy => (framework.output(1), second),
            _ => (framework.output(0), [1. + second[0], 2. + second[1]]),
        };
        let outputs = bench.client.infer(Form::Json, &model, &inputs, &[&name]);
        let outputs = outputs.unwrap_or_else(|refusal| panic!("{model}, {given:?}: {refusal:?}"));
        assert_close(&outputs[0].as_floats(), &expected, &format!("{model}, {given:?}"));
    }
    bench.stop();
}
