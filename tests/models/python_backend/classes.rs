//! The classes that models see, in a real worker: its memory, its log, its metrics
//! (contract/python_backend.md section 3).
//!
//! What does not need a server is tested without one, by [`units`](super::units).

use serde_json::json;

use super::models;
use nereid_test_support::http::{Answer, Peer, infer_with_tail};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// A request of the model `kept`: `count` numbers and as many words, all of them `value`.
fn keep(peer: &mut Peer, value: usize, count: usize) -> (Answer, Vec<u8>) {
    let numbers: Vec<u8> = std::iter::repeat_n((value as i64).to_le_bytes(), count).flatten().collect();
    let word = value.to_string();
    let element = [&(word.len() as u32).to_le_bytes()[..], word.as_bytes()].concat();
    let tail = [numbers.clone(), element.repeat(count)].concat();
    let head = json!({
        "id": value.to_string(),
        "inputs": [
            {"name": "NUMBERS", "datatype": "INT64", "shape": [count], "parameters": {"binary_data_size": numbers.len()}},
            {"name": "WORDS", "datatype": "BYTES", "shape": [count],
             "parameters": {"binary_data_size": tail.len() - numbers.len()}}],
        "parameters": {"binary_data_output": true}});
    let answer = peer.send(&infer_with_tail("/v2/models/kept/infer", &head.to_string(), &tail)).answer();
    (answer, tail)
}

#[test]
fn what_a_model_keeps_stays_as_it_was_and_what_it_passes_on_arrives() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["kept"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peers = [Peer::connect(server.http), Peer::connect(server.http)];
        for value in 0..120 {
            // In its message, in shared memory, and more than there is at first.
            let count = [3, 700, 10, 60_000, 4_000][value % 5] + value;
            let (answer, sent) = keep(&mut peers[value % 2], value, count);
            assert_eq!(answer.status, 200, "{value}: {}", answer.text());
            let (json, tail) = answer.split();
            let names: Vec<_> = json["outputs"].as_array().expect("outputs").iter().map(|one| &one["name"]).collect();
            assert_eq!(names, ["NUMBERS", "WORDS", "BROKEN"]);
            let (passed, broken) = tail.split_at(tail.len() - 8);
            assert!(passed == sent, "{value}: {count} elements do not come back");
            assert_eq!(broken, [0; 8], "{value}: something that was kept has changed");
        }
    });
}

struct Probe {
    _repository: Repository,
    server: Server,
    peer: Peer,
}

impl Probe {
    fn start(flags: &[&str]) -> Option<Probe> {
        let repository = models::repository(&["probe"]);
        let server = models::serve(usual(), &repository, flags)?;
        let peer = Peer::connect(server.http);
        Some(Probe { _repository: repository, server, peer })
    }

    fn ask(&mut self, request: serde_json::Value) -> serde_json::Value {
        let answer = self.peer.post("/v2/models/probe/infer", &[], request.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        answer.json()
    }

    /// What an expression gives, as text.
    fn value(&mut self, code: &str) -> String {
        let input = json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]});
        let answer = self.ask(json!({"inputs": [input], "outputs": [{"name": "TEXT"}]}));
        answer["outputs"][0]["data"][0].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn expressions_in_a_worker_give_what_they_do_in_the_official_backend() {
    let Some(mut probe) = Probe::start(&[]) else { return };
    // Each was asked of the official backend of release 2.51, too, where it has the call.
    let table = [
        ("type(request).__name__, type(request.inputs()).__name__", "('InferenceRequest', 'list')"),
        ("request.requested_output_names()", "{'TEXT'}"),
        ("request.parameters(), request.correlation_id(), request.flags(), request.timeout()", "('{}', 0, 0, 0)"),
        ("request.trace().get_context(), request.is_cancelled()", "(None, False)"),
        ("request.get_response_sender() is request.get_response_sender()", "True"),
        (
            "request.inputs()[0].as_numpy().dtype, type(request.inputs()[0].as_numpy()[0])",
            "(dtype('O'), <class 'bytes'>)",
        ),
        ("request.inputs()[0].shape(), request.inputs()[0].triton_dtype()", "([1], 13)"),
        ("Tensor('x', np.zeros((2, 0))).shape()", "[2, 0]"),
        ("Tensor('', np.zeros(1))", "TritonModelException: Tensor name cannot be an empty string."),
        ("Tensor('x', np.zeros(1, np.complex64))", "TritonModelException: NumPy dtype is not supported."),
        ("Tensor('x', np.array(['text']))", "TritonModelException: NumPy dtype is not supported."),
        ("np.from_dlpack(Tensor('x', np.arange(3)))", "[0 1 2]"),
        ("Tensor.from_dlpack('y', Tensor('x', np.array([True, False]))).as_numpy()", "[ True False]"),
        (
            "sorted(args)",
            "['model_config', 'model_instance_device_id', 'model_instance_kind', 'model_instance_name', \
          'model_name', 'model_repository', 'model_version']",
        ),
        ("all(type(value) is str for value in args.values())", "True"),
        ("args['model_name'], args['model_version'], args['model_instance_kind']", "('probe', '1', 'CPU')"),
        ("args['model_instance_name'], args['model_instance_device_id']", "('probe_0', '0')"),
        ("pb_utils.get_model_dir() == args['model_repository'] + '/1'", "True"),
        ("pb_utils.is_model_ready('probe'), pb_utils.is_model_ready('probe', '7')", "(True, False)"),
    ];
    for (code, expected) in table {
        assert_eq!(probe.value(code), expected, "{code}");
    }
}

#[test]
fn parameters_of_the_client_reach_the_model_as_json() {
    let Some(mut probe) = Probe::start(&[]) else { return };
    let input = json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["request.parameters()"]});
    let answer = probe.ask(json!({"id": "n", "inputs": [input], "outputs": [{"name": "TEXT"}],
        "parameters": {"text": "\u{fc}", "number": -5, "flag": true, "real": 0.5}}));
    let text = answer["outputs"][0]["data"][0].as_str().expect("a text");
    let parameters: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(parameters, json!({"text": "\u{fc}", "number": -5, "flag": true, "real": 0.5}));
}

#[test]
fn bf16_passes_through_a_worker() {
    let Some(mut probe) = Probe::start(&[]) else { return };
    for code in [
        "extra.append(Tensor.from_dlpack('HALF', request.inputs()[1]))",
        "extra.append(request.inputs()[1])",
        "request.inputs()[1].to_dlpack() and extra.append(request.inputs()[1])",
        // A model that declares types of its own for the interpreter's functions.
        "[setattr(getattr(__import__('ctypes').pythonapi, 'PyCapsule_' + name), 'restype', None) for name in \
         ('IsValid', 'GetPointer', 'SetName', 'SetDestructor', 'New')] and \
         extra.append(Tensor.from_dlpack('HALF', request.inputs()[1].to_dlpack()))",
    ] {
        let halves: Vec<u8> = (0..4000u16).flat_map(|value| (0x3f80 + value % 64).to_le_bytes()).collect();
        let text = [&(code.len() as u32).to_le_bytes()[..], code.as_bytes()].concat();
        let head = json!({"inputs": [
            {"name": "CODE", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": text.len()}},
            {"name": "HALF", "datatype": "BF16", "shape": [4000], "parameters": {"binary_data_size": halves.len()}}],
            "outputs": [{"name": "HALF", "parameters": {"binary_data": true}}]});
        let body = [text, halves.clone()].concat();
        let answer = probe.peer.send(&infer_with_tail("/v2/models/probe/infer", &head.to_string(), &body)).answer();
        assert_eq!(answer.status, 200, "{code}: {}", answer.text());
        let (json, tail) = answer.split();
        assert_eq!((&json["outputs"][0]["datatype"], tail), (&json!("BF16"), &halves[..]), "{code}");
    }
    let text = "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and \
                from_dlpack() instead.";
    let half = json!({"name": "HALF", "datatype": "BF16", "shape": [1], "parameters": {"binary_data_size": 2}});
    let code = "request.inputs()[1].as_numpy()";
    let head = json!({"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}, half],
        "outputs": [{"name": "TEXT"}]});
    let answer = probe.peer.send(&infer_with_tail("/v2/models/probe/infer", &head.to_string(), b"\x80\x3f")).answer();
    assert_eq!(answer.split().0["outputs"][0]["data"], json!([text]), "{}", answer.text());
}

#[test]
fn strings_of_every_kind_leave_a_worker() {
    let Some(mut probe) = Probe::start(&[]) else { return };
    for (array, expected) in [
        ("np.array([b'a', 'gr\u{fc}n', 3, None, 1.5], dtype=object)", json!(["a", "gr\u{fc}n", "3", "None", "1.5"])),
        ("np.array([b'fixed', b'w'])", json!(["fixed", "w"])),
        ("np.array([], dtype=object)", json!([])),
        ("np.array([str(n) for n in range(10000)], dtype=object)", (0..10000).map(|n| json!(n.to_string())).collect()),
    ] {
        let code = format!("extra.append(Tensor('EXTRA', {array}))");
        let input = json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]});
        let answer = probe.ask(json!({"inputs": [input], "outputs": [{"name": "EXTRA"}]}));
        assert_eq!(answer["outputs"][0]["data"], expected, "{array}");
        assert_eq!(answer["outputs"].as_array().map(Vec::len), Some(1), "what is not asked for is left out");
    }
    let code = "extra.append(Tensor('EXTRA', np.array(['\\ud800'], dtype=object)))";
    let input = json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]});
    let answer = probe.peer.post("/v2/models/probe/infer", &[], json!({"inputs": [input]}).to_string().as_bytes());
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.error().contains("Tensor 'EXTRA' has a text that is not Unicode"), "{}", answer.error());
}

#[test]
fn lines_of_the_log_name_the_models_place() {
    let Some(mut probe) = Probe::start(&["--log-verbose=1"]) else { return };
    for (call, level) in [
        ("log('said %d' % (40 + 2))", 'I'),
        ("log_info('told')", 'I'),
        ("log_warn('warned')", 'W'),
        ("log_error('failed')", 'E'),
        ("log_verbose('detailed')", 'I'),
        ("log('by level', pb_utils.Logger.WARNING)", 'W'),
    ] {
        assert_eq!(probe.value(&format!("pb_utils.Logger.{call}")), "None");
        let text = match call {
            "log('said %d' % (40 + 2))" => "said 42",
            call => call.split('\'').nth(1).expect("a text"),
        };
        probe.server.wait_for_log(&format!("probe.py:1] {text:?}"));
        let log = probe.server.log();
        let line = log.lines().find(|line| line.contains(&format!("{text:?}"))).expect("the line");
        assert!(line.starts_with(level), "{line}");
    }
}

#[test]
fn metrics_live_as_long_as_their_objects() {
    let Some(mut probe) = Probe::start(&[]) else { return };
    let mut scraped = Peer::connect(probe.server.metrics);
    let mut has = |line: &str| scraped.get("/metrics").text().lines().any(|one| one == line);
    for code in [
        "kept.update(family=pb_utils.MetricFamily('probe_things', 'Things seen', pb_utils.MetricFamily.COUNTER))",
        "kept.update(metric=kept['family'].Metric({'of': 'me'}), other=kept['family'].Metric({'of': 'me'}))",
        "kept['metric'].increment(2), kept['other'].increment(0.5)",
    ] {
        probe.value(code);
    }
    assert_eq!(probe.value("kept['metric'].value()"), "2.5");
    assert!(has("# HELP probe_things Things seen") && has("# TYPE probe_things counter"));
    assert!(has("probe_things{of=\"me\"} 2.5"), "both objects are one sample");
    let refused = probe.value("kept['metric'].set(1)");
    let text = "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set";
    assert_eq!(refused, format!("TritonModelException: {text}"));
    let again = "pb_utils.MetricFamily('probe_things', '', pb_utils.MetricFamily.GAUGE)";
    assert!(probe.value(again).starts_with("TritonModelException: Error when creating MetricFamily: "));
    probe.value("kept.pop('metric') and None");
    assert!(has("probe_things{of=\"me\"} 2.5"), "one of them is left");
    probe.value("kept.pop('family') and None");
    // The worker tells of it in its own time.
    probe.server.wait_until("the family is gone", || !has("probe_things{of=\"me\"} 2.5"));
    let text = probe.value("kept['other'].value()");
    assert!(text.contains("the corresponding 'MetricFamily' has been deleted"), "{text}");
}

#[test]
fn a_model_that_completes_its_configuration_logs_and_knows_its_directory_but_controls_no_model() {
    let repository = models::repository(&["completing"]);
    let Some(server) = models::serve(usual(), &repository, &["--model-control-mode=explicit", "--load-model=*"]) else {
        return;
    };
    let directory = repository.path().join("completing/1");
    server.wait_for_log(&format!("completed in {}", directory.display()));
    server.wait_for_log("asked: TritonModelException: Failed to check model readiness: models are not controlled from");
    let config = Peer::connect(server.http).get("/v2/models/completing/config").json();
    assert_eq!((&config["max_batch_size"], config["dynamic_batching"].is_object()), (&json!(4), true), "{config}");
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["input"][0]["dims"], json!([2]));
    assert_eq!(config["model_transaction_policy"]["decoupled"], true);
    let log = server.stop();
    assert!(
        log.contains("finalized: TritonModelException: Failed to unload model: models are not controlled"),
        "{log}"
    );
    assert!(
        log.contains("called: TritonModelException: BLS is only supported during the 'execute' function."),
        "{log}"
    );
}
