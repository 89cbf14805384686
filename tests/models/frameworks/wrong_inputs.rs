//! Requests that no model can serve: each is refused with its own text over both protocols, and the next good request
//! is served.

use super::bench::{Bench, repository_of, rows_of};
use super::reference::quarters;
use super::table::{Framework, ModelKind};
use super::tensors::{FORMS, Form, Kind, Tensor};

const ID: &str = "[request id: <id_unknown>] ";

pub fn a_wrong_request_is_refused_and_the_next_one_is_served(framework: &Framework) {
    let kinds: &[ModelKind] = match framework.has(ModelKind::AddSub) {
        true => &[ModelKind::Network, ModelKind::AddSub],
        false => &[ModelKind::Network],
    };
    let Some(repository) = repository_of(framework, kinds, "") else { return };
    let model = framework.model(ModelKind::Network);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    for (inputs, outputs, text) in refusals(framework, &model) {
        for form in FORMS {
            let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
            let what = format!("{model}, {form:?}, expected {text:?}");
            let refusal = bench.client.infer(form, &model, &inputs, &outputs).expect_err(&what);
            assert_eq!(refusal.kind, Kind::InvalidArgument, "{what}: {refusal:?}");
            assert!(refusal.text.starts_with(&text), "{what}: {refusal:?}");
            bench.check_rows(framework, form, &model, 2, 7);
        }
    }
    check_byte_sizes(&mut bench, framework, &model);
    if let Some(text) = framework.mismatch {
        check_mismatch(&mut bench, framework, text);
    }
    bench.stop();
}

/// Requests with the beginning of the text that refuses them (contract/http.md section 6).
fn refusals(framework: &Framework, model: &str) -> Vec<(Vec<Tensor>, Vec<String>, String)> {
    let (name, columns) = (framework.input(0), framework.function.inputs());
    let floats = |name: &str, rows: usize, columns: usize| {
        Tensor::floats(name, &[rows as i64, columns as i64], &quarters(rows * columns, 1))
    };
    let good = || rows_of(framework, 2, 7);
    let more = columns + 1;
    let shape = format!("{ID}unexpected shape for input '{name}' for model '{model}'. Expected [-1,{columns}], got ");
    vec![
        (vec![floats("NONE", 1, columns)], vec![], format!("unexpected inference input 'NONE' for model '{model}'")),
        (
            vec![],
            vec![],
            format!(
                "{ID}expected 1 inputs but got 0 inputs for model '{model}'. Got input(s) [], but missing required \
                 input(s) ['{name}']. Please provide all required input(s)."
            ),
        ),
        (
            vec![Tensor { datatype: "INT32".to_owned(), ..good() }],
            vec![],
            format!("{ID}inference input '{name}' data-type is 'INT32', but model '{model}' expects 'FP32'"),
        ),
        (vec![floats(&name, 1, more)], vec![], format!("{shape}[1,{more}]. NOTE: ")),
        (vec![Tensor::floats(&name, &[2], &[1., 2.])], vec![], format!("{shape}[2]. NOTE: ")),
        (
            vec![floats(&name, 9, columns)],
            vec![],
            format!("{ID}inference request batch-size must be <= 8 for '{model}'"),
        ),
        (vec![good()], vec!["NONE".to_owned()], format!("unexpected inference output 'NONE' for model '{model}'")),
    ]
}

/// In JSON the elements are counted, not the bytes.
fn check_byte_sizes(bench: &mut Bench, framework: &Framework, model: &str) {
    let good = rows_of(framework, 2, 7);
    let expected = good.bytes.len();
    for form in [Form::Binary, Form::Grpc] {
        for given in [expected - 4, expected + 4, expected - 1, 0] {
            let mut bytes = good.bytes.clone();
            bytes.resize(given, 0);
            let what = format!("{model}, {form:?}, {given} bytes");
            let input = Tensor { bytes, ..good.clone() };
            let refusal = bench.client.infer(form, model, &[input], &[]).expect_err(&what);
            let text = format!("input byte size mismatch for input '{}' for model '{model}'", framework.input(0));
            assert_eq!(refusal.kind, Kind::InvalidArgument, "{what}: {refusal:?}");
            assert_eq!(refusal.text, format!("{ID}{text}. Expected {expected}, got {given}"), "{what}");
            bench.check_rows(framework, form, model, 2, 7);
        }
    }
}

/// Shapes that the configuration allows and the model cannot compute: the backend's error, for this request alone.
fn check_mismatch(bench: &mut Bench, framework: &Framework, text: &str) {
    let model = framework.model(ModelKind::AddSub);
    for form in FORMS {
        let inputs = [3, 4].map(|columns| (columns, quarters(columns, columns)));
        let inputs = [0, 1].map(|at| Tensor::floats(&framework.input(at), &[1, inputs[at].0 as i64], &inputs[at].1));
        let what = format!("{model}, {form:?}");
        let refusal = bench.client.infer(form, &model, &inputs, &[]).expect_err(&what);
        assert_eq!(refusal.kind, Kind::Internal, "{what}: {refusal:?}");
        assert!(refusal.text.contains(text), "{what}: expected {text:?} in {refusal:?}");
        super::batching::check_add_sub(bench, framework, form, 3, 5, 2);
    }
}
