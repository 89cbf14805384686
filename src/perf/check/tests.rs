//! Plans that no server could serve are refused, and why.

use std::time::Duration;

use super::*;
use crate::plan::tests::plan;
use crate::plan::{Expected, Sequences, Spacing, Target, Times, Tls};
use nereid_memory::Slice;

fn good() -> Plan {
    let endpoint = Endpoint::Tcp { host: "h".into(), port: 1 };
    plan(Target { endpoint, tls: None, protocol: Protocol::Http })
}

fn concurrency(start: usize, end: Option<usize>, step: usize) -> Load {
    Load::Concurrency(Sweep { start, end, step })
}

fn rate(start: f64, end: Option<f64>, step: f64) -> Load {
    Load::Rate { sweep: Sweep { start, end, step }, spacing: Spacing::Constant }
}

/// Requests that came so many nanoseconds after the first.
fn recorded(offsets_ns: &[u64], speed: f64) -> Load {
    Load::Recorded(Times { offsets: offsets_ns.iter().copied().map(Duration::from_nanos).collect(), speed })
}

fn two_templates() -> Vec<Vec<Template>> {
    vec![vec![Template::default(); 2]]
}

fn sequences(end_id: Option<u64>) -> Option<Sequences> {
    Some(Sequences { at_once: 4, length: Some(3), length_variation_percent: 0.0, first_id: 1, end_id })
}

fn ring() -> Target {
    Target { endpoint: Endpoint::Unix("/run/x".into()), tls: None, protocol: Protocol::Ipc }
}

#[test]
fn plans_that_cannot_be_run_are_refused_with_a_reason() {
    check_plan(&good()).unwrap();
    check_plan(&Plan { target: ring(), ..good() }).unwrap();
    type Change = fn(&mut Plan);
    let cases: [(&str, Change); 32] = [
        ("there is no request", |plan| plan.work.streams = vec![Vec::new()]),
        ("header 'a b'", |plan| plan.work.headers = vec![("a b".into(), "c".into())]),
        ("header 'a'", |plan| plan.work.headers = vec![("a".into(), "c\r\nd: e".into())]),
        ("gRPC streams only", |plan| plan.work.decoupled = true),
        ("an arena only with a shared-memory ring", |plan| {
            plan.work.shared_memory = SharedMemory::Arena { output_bytes: 1 };
        }),
        ("poll shared-memory rings alone", |plan| plan.client.ring_spin = Duration::from_micros(1)),
        ("through the Unix socket", |plan| {
            let endpoint = Endpoint::Tcp { host: "h".into(), port: 1 };
            plan.target = Target { endpoint, ..ring() };
        }),
        ("has no TLS", |plan| plan.target = Target { tls: Some(Tls::default()), ..ring() }),
        ("are not packed", |plan| (plan.target, plan.work.compression) = (ring(), Compression::Gzip)),
        ("concurrencies goes from 0", |plan| plan.load = concurrency(0, Some(1), 1)),
        ("concurrencies goes from 2 to 1", |plan| plan.load = concurrency(2, Some(1), 1)),
        ("concurrencies goes from 1 to 2 by 0", |plan| plan.load = concurrency(1, Some(2), 0)),
        ("needs a latency threshold", |plan| plan.load = concurrency(1, None, 1)),
        ("binary search", |plan| plan.rules.binary_search = true),
        ("rates goes from -1", |plan| plan.load = rate(-1.0, None, 1.0)),
        ("rates goes from NaN", |plan| plan.load = rate(f64::NAN, Some(1.0), 1.0)),
        ("nothing but zeros", |plan| plan.load = Load::Intervals(vec![Duration::ZERO])),
        ("no times to follow", |plan| plan.load = recorded(&[0], 1.0)),
        ("not those of the requests", |plan| plan.load = recorded(&[0, 0], 1.0)),
        ("no times to follow", |plan| {
            (plan.work.streams, plan.load) = (two_templates(), recorded(&[0, 0], 1.0));
        }),
        ("at this speed all requests are due at once", |plan| {
            (plan.work.streams, plan.load) = (two_templates(), recorded(&[0, 900], 1000.0));
        }),
        ("cannot be sent NaN times as fast", |plan| plan.load = recorded(&[0], f64::NAN)),
        ("2 connections", |plan| {
            plan.load = concurrency(3, Some(3), 1);
            plan.client.connections = Some(2);
        }),
        ("share 1 connections", |plan| (plan.client.threads, plan.client.connections) = (2, Some(1))),
        ("0 threads", |plan| plan.client.threads = 0),
        ("outstanding", |plan| plan.client.outstanding_max = 0),
        ("window of nothing", |plan| plan.rules.window = Window::Count(0)),
        ("window of nothing", |plan| plan.rules.request_count = Some(0)),
        ("percentage", |plan| plan.rules.percentile = Some(101.0)),
        ("percentage", |plan| plan.rules.stability_percent = f64::NAN),
        ("need 4 ids above 0 out of 3", |plan| {
            plan.load = rate(1.0, Some(1.0), 1.0);
            plan.work.sequences = sequences(Some(4));
        }),
        ("not in both", |plan| {
            plan.work.shared_memory = SharedMemory::System { output_bytes: 1 };
            plan.work.input_form = Form::Json;
        }),
    ];
    for (text, change) in cases {
        let mut plan = good();
        change(&mut plan);
        let error = check_plan(&plan).unwrap_err().to_string();
        assert!(error.contains(text), "{error:?} does not say {text:?}");
    }
    let mut plan = good();
    (plan.load, plan.work.sequences) = (rate(1.0, None, 1.0), sequences(None));
    plan.rules.latency_threshold = Some(Duration::from_millis(1));
    check_plan(&plan).unwrap();
}

fn model_info() -> ModelInfo {
    let facts = |name: &str, datatype: &str, shape: &[i64], optional| TensorFacts {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.to_vec(),
        optional,
        is_shape_tensor: false,
    };
    ModelInfo {
        model: "m".into(),
        max_batch_size: 2,
        inputs: vec![facts("A", "FP32", &[-1, 2], false), facts("B", "BYTES", &[-1, -1], true)],
        outputs: vec![facts("O", "FP32", &[-1, 2], false)],
        ..ModelInfo::default()
    }
}

fn input(name: &str, datatype: &str, shape: &[i64], data: &[u8]) -> Input {
    Input { name: name.into(), datatype: datatype.into(), shape: shape.to_vec(), data: Slice::copy_of(data) }
}

#[test]
fn requests_have_to_fit_the_model() {
    let whole = || input("A", "FP32", &[1, 2], &[0; 8]);
    let template = |inputs: Vec<Input>| Template { inputs, ..Template::default() };
    let strings = |data: &[u8]| template(vec![whole(), input("B", "BYTES", &[1, 2], data)]);
    let named = |name: &str| Template { outputs: vec![name.into()], ..template(vec![whole()]) };
    let expects = Expected { name: "P".into(), data: Slice::from_static(b"") };
    let cases = [
        (template(vec![whole()]), ""),
        (named("O"), ""),
        (strings(b"\0\0\0\0\x01\0\0\0x"), ""),
        (template(vec![input("A", "FP32", &[2, 2], &[0; 16])]), ""),
        (template(vec![]), "input 'A' of model 'm' is missing"),
        (template(vec![whole(), whole()]), "input 'A' is there twice"),
        (template(vec![whole(), input("C", "FP32", &[1], &[])]), "model 'm' has no input 'C'"),
        (template(vec![input("A", "FP64", &[1, 2], &[])]), "input 'A': the model takes FP32, not FP64"),
        (template(vec![input("A", "FP32", &[2], &[])]), "the shape [2] does not fit the model's [-1, 2]"),
        (template(vec![input("A", "FP32", &[1, 3], &[])]), "the shape [1, 3] does not fit"),
        (template(vec![input("A", "FP32", &[-1, 2], &[])]), "the shape [-1, 2] does not fit"),
        (template(vec![input("A", "FP32", &[3, 2], &[0; 24])]), "a batch of 3 is more than the model's 2"),
        (template(vec![input("A", "FP32", &[1, 2], &[0; 4])]), "1 elements do not fill the shape [1, 2] of 2"),
        (template(vec![input("A", "FP32", &[1, 2], &[0; 7])]), "7 bytes are no whole number"),
        (strings(b"\x01\0\0\0x"), "1 elements do not fill"),
        (strings(b"\x09\0\0\0x"), "a string of 9 bytes is cut off"),
        (named("P"), "model 'm' has no output 'P'"),
        (Template { outputs: vec!["O".into(); 2], ..named("O") }, "output 'O' is requested twice"),
        (Template { expected: Some(vec![expects]), ..template(vec![whole()]) }, "model 'm' has no output 'P'"),
        (
            Template { parameters: vec![("sequence_id".into(), Parameter::Int(1))], ..template(vec![whole()]) },
            "parameter 'sequence_id' has a place of its own",
        ),
        (
            Template { parameters: vec![("x".into(), Parameter::Double(f64::NAN))], ..template(vec![whole()]) },
            "parameter 'x' is no number",
        ),
    ];
    for (template, text) in cases {
        let mut plan = good();
        plan.work.streams = vec![vec![template.clone()]];
        let outcome = check_against(&plan, &model_info());
        match text {
            "" => outcome.unwrap(),
            text => {
                let error = outcome.unwrap_err().to_string();
                assert!(error.starts_with("request 0: ") && error.contains(text), "{error:?} does not say {text:?}");
            }
        }
    }
    let plan = good();
    let decoupled = ModelInfo { decoupled: true, ..ModelInfo::default() };
    assert!(check_against(&plan, &decoupled).unwrap_err().to_string().contains("gRPC streams only"));
    let in_sequence = ModelInfo { sequences: true, ..ModelInfo::default() };
    assert!(check_against(&plan, &in_sequence).unwrap_err().to_string().contains("scheduled by sequences"));
}
