//! Recorded requests as the data and the times of a load: `--input-recording`.

use std::path::Path;
use std::time::Duration;

use nereid_perf::{Load, Recording, Times};
use nereid_recording::{
    Contents, FileHead, Parameter, Record, RecordHead, RequestFacts, TensorFacts, VERSION, write_head, write_record,
};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

use super::plans::{PROTOCOLS, demand_all_good, echoes, measure, plan};
use super::program::{Reports, measured, perf};
use crate::record::{flag, records, wait_for};

const JSON: &str = r#"{"id":"7","parameters":{"customer":"eve"},
    "inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[0.5,7]}]}"#;

/// Two identity models of numbers, which take batches.
fn two_models() -> Repository {
    let repository = Repository::new();
    repository.identity("m", 8, &[Pair::new("FP32", "-1")]);
    repository.identity("n", 8, &[Pair::new("FP32", "-1")]);
    repository
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect()
}

/// A request of each protocol to one model, with two shapes, and one to another model.
fn traffic(server: &Server) {
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.post("/v2/models/m/infer", &[], JSON.as_bytes()).status, 200);
    assert_eq!(peer.post("/v2/models/n/infer", &[], JSON.as_bytes()).status, 200);
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![3, 5],
        ..InferInputTensor::default()
    };
    let message = ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![numbers(15).into()],
        ..ModelInferRequest::default()
    };
    let answer: ModelInferResponse = Grpc::connect(server.grpc).call("ModelInfer", &message).expect("an answer");
    assert_eq!(answer.outputs[0].shape, [3, 5]);
}

/// A file without contents: requests to `m` with so many elements, so many milliseconds after the begin.
fn write(file: &Path, requests: &[(u64, i64)]) {
    let head = FileHead {
        format: "nereid-recording".to_owned(),
        version: VERSION,
        server: String::new(),
        started_unix_ms: 0,
        data: false,
        rate: 1,
        redacted: Vec::new(),
    };
    let mut bytes = Vec::new();
    write_head(&head, &mut bytes).expect("a line");
    for (at_ms, elements) in requests {
        let input = TensorFacts {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, *elements],
            ..TensorFacts::default()
        };
        let head = RecordHead {
            at_ns: at_ms * 1_000_000,
            took_ns: 1,
            protocol: nereid_recording::Protocol::Http,
            model: "m".to_owned(),
            version: String::new(),
            request: RequestFacts { inputs: vec![input], ..RequestFacts::default() },
            answer: None,
        };
        let mut record = Record { head, request_body: None, answer_body: None };
        write_record(&mut record, u64::MAX, &mut bytes).expect("a line");
    }
    std::fs::write(file, bytes).expect("a file");
}

/// What arrives is recorded again, and compared with what was recorded first.
#[test]
fn recorded_requests_are_sent_over_both_protocols() {
    let repository = two_models();
    for data in [true, false] {
        let reports = Reports::new();
        let (first, again) = (reports.at("first"), reports.at("again"));
        let data_flag = format!("--record-data={data}");
        let server = Server::start(usual(), repository.path(), &[&flag(Path::new(&first)), &data_flag]);
        traffic(&server);
        wait_for(&server, "written", 3);
        server.stop();
        let record = flag(Path::new(&again));
        let server = Server::start(usual(), repository.path(), &[&*record, "--record-data=true"]);
        for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
            let (url, json, html) = (address.to_string(), reports.at("json"), reports.at("html"));
            let run = ["-m", "m", "-i", protocol, "-u", &url, "--input-recording", &first, "--concurrency-range=2"];
            let outcome = measured(&[&run[..], &["--request-count=6", "--json", &json, "--html", &html]].concat());
            let contents = if data { ", contents as recorded" } else { ", with made contents" };
            let told = format!("Recording {first}: 2 of its 3 requests{contents}");
            assert!(outcome.stdout.contains(&told), "{}", outcome.stdout);
            assert!(outcome.stdout.contains("Left out: 1, it is of another model"), "{}", outcome.stdout);
            let report: serde_json::Value = serde_json::from_str(&reports.read("json")).expect("a report");
            let recording = &report["plan"]["recording"];
            assert_eq!((&recording["requests"], &recording["left_out"]), (&2.into(), &1.into()), "{recording}");
            assert_eq!(recording["requests_with_made_contents"], if data { 0 } else { 2 }, "{recording}");
            assert_eq!(recording["file"], first, "{recording}");
            let point = &report["points"][0];
            assert_eq!((&point["completed"], &point["failed"]), (&6.into(), &0.into()), "{point}");
            // Three requests with a batch of one, and three with a batch of three.
            assert_eq!(point["server"]["inferences"], 12, "{point}");
            assert!(reports.read("html").contains("<dt>Recording</dt>"));
        }
        wait_for(&server, "written", 12);
        server.stop();
        let arrived: Vec<_> = records(Path::new(&again))
            .iter()
            .map(|record| record.infer(1, Contents::Zero).map(|infer| (record.head.protocol.name(), infer)))
            .collect::<Result<_, _>>()
            .expect("requests with contents");
        for protocol in ["http", "grpc"] {
            for (shape, contents) in
                [([1, 2], [0.5f32, 7.0].into_iter().flat_map(f32::to_le_bytes).collect()), ([3, 5], numbers(15))]
            {
                let expected = if data { contents } else { vec![0; contents.len()] };
                let same = arrived.iter().filter(|(over, infer)| {
                    let input = &infer.inputs[0];
                    *over == protocol && input.shape == shape && input.contents.as_ref() == Some(&expected)
                });
                let same: Vec<_> = same.collect();
                assert_eq!(same.len(), 3, "{protocol} {shape:?}: {arrived:?}");
                let customer = (data && shape == [1, 2]).then(|| Parameter::Text("eve".to_owned()));
                assert!(same.iter().all(|(_, infer)| infer.parameters.get("customer") == customer.as_ref()));
            }
        }
    }
}

/// Times are those at which requests were due, which no machine is too slow for.
#[test]
fn requests_are_due_at_their_recorded_times() {
    let repository = Repository::new();
    repository.identity("identity", 0, &[Pair::new("FP32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let offsets = [0, 6, 8].map(Duration::from_millis).to_vec();
    for protocol in PROTOCOLS {
        for threads in [1, 2] {
            let mut plan = plan(&server, protocol, "identity", echoes(3, 16), 7);
            plan.load = Load::Recorded(Times { offsets: offsets.clone(), speed: 2.0 });
            let file = "monday.rec".into();
            let contents = Contents::Zero;
            let recording = Recording { file, used: 3, made: 0, contents, left_out: Default::default(), note: None };
            plan.work.recording = Some(recording);
            (plan.records_max, plan.client.threads) = (100, threads);
            // Behind them each request still has its own time.
            plan.rules.warm_up_requests = 5;
            let measured = measure(&plan);
            demand_all_good(&measured, 7);
            let mut due: Vec<_> = measured.records.iter().map(|record| (record.due_ns, record.template)).collect();
            due.sort_unstable();
            let expected = [(0, 0), (3, 1), (4, 2), (6, 0), (9, 1), (10, 2), (12, 0)];
            let expected = expected.map(|(ms, template)| (ms * 1_000_000, template));
            assert_eq!(due, expected, "{protocol:?} on {threads} threads");
            assert!(measured.records.iter().all(|record| record.sent_ns >= record.due_ns), "nothing leaves early");
        }
    }
    server.stop();
}

#[test]
fn the_command_line_follows_the_times_unless_it_has_a_load() {
    let repository = two_models();
    let server = Server::start(usual(), repository.path(), &[]);
    let reports = Reports::new();
    let (file, json, url) = (reports.at("file"), reports.at("json"), server.grpc.to_string());
    write(Path::new(&file), &[(100, 4), (140, 2), (120, 3)]);
    let run = ["-m", "m", "-i", "grpc", "-u", &url, "--input-recording", &file, "--request-count=6", "--json", &json];
    let times =
        |speed: f64, rate: f64| serde_json::json!({ "kind": "recorded", "count": 3, "speed": speed, "rate": rate });
    for (more, load) in [
        (&[][..], times(1.0, 50.0)),
        (&["--speed=4"], times(4.0, 200.0)),
        (&["--speed=0.5", "--input-data=random"], times(0.5, 25.0)),
        (&["--request-rate-range=100"], serde_json::Value::Null),
    ] {
        measured(&[&run[..], more].concat());
        let report: serde_json::Value = serde_json::from_str(&reports.read("json")).expect("a report");
        match load.is_null() {
            true => assert_eq!(report["plan"]["load"]["kind"], "rate", "{more:?}"),
            false => assert_eq!(report["plan"]["load"], load, "{more:?}"),
        }
        assert_eq!(report["plan"]["first_request"][0]["shape"], serde_json::json!([1, 4]), "{more:?}");
        assert_eq!(report["points"][0]["completed"], 6, "{more:?}");
        assert_eq!(report["points"][0]["server"]["inferences"], 6, "{more:?}");
    }
    server.stop();
}

#[test]
fn a_recording_of_no_use_has_its_error_before_anything_is_sent() {
    let repository = two_models();
    let server = Server::start(usual(), repository.path(), &[]);
    let reports = Reports::new();
    let (file, url) = (reports.at("file"), server.http.to_string());
    write(Path::new(&file), &[(1, 2), (5, 3)]);
    let whole = reports.read("file");
    let damaged = reports.write("damaged", &format!("{whole}nonsense\n"));
    let empty = reports.write("empty", &format!("{}\n", whole.lines().next().expect("a line")));
    let single = reports.at("single");
    write(Path::new(&single), &[(1, 2)]);
    let other = reports.write("other", "{}\n");
    let error = |arguments: &[&str]| {
        let outcome = perf(&[&["-u", &url, "--request-count=4"][..], arguments].concat());
        assert_eq!(outcome.code, Some(99), "{arguments:?}: {outcome:#?}");
        outcome.stderr
    };
    for (model, file, part) in [
        ("m", "/nowhere/file", "cannot open the recording '/nowhere/file'"),
        ("m", &*other, "this is no recording"),
        ("m", &*damaged, "record 3 at byte"),
        ("m", &*empty, "the recording has no requests; record others with `nereid serve --record=<file>`"),
        ("n", &*file, "2: it is of another model); name the model of a recorded request with -m: 'm'"),
        ("m", &*single, "give --concurrency-range or --request-rate-range"),
    ] {
        let text = error(&["-m", model, "--input-recording", file]);
        assert!(text.contains(part), "{part:?} in {text}");
    }
    for (more, part) in [
        (&["--shape=INPUT0:2"][..], "--input-recording and --shape contradict each other"),
        (&["--speed=2", "--concurrency-range=2"], "--speed and --concurrency-range contradict each other"),
    ] {
        let text = error(&[&["-m", "m", "--input-recording", &file][..], more].concat());
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let stats = Peer::connect(server.http).get("/v2/models/m/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 0, "{stats}");
    // One that is cut short gives what is in front of that place, as in `nereid replay`.
    let cut = reports.write("cut", whole.get(..whole.len() - 9).expect("text"));
    let run = ["-m", "m", "-u", &url, "--request-count=4", "--concurrency-range=1", "--input-recording", &cut];
    let outcome = measured(&run);
    for part in ["1 of its 1 requests", "Note: the file ends inside of a record, which is left out"] {
        assert!(outcome.stdout.contains(part), "{part:?} in {}", outcome.stdout);
    }
    server.stop();
}
