//! Calls of models to the server other than requests: load and unload of models, metrics, lines of the log
//! (contract/python_backend.md section 3).

use serde_json::json;

use super::calls::answered;
use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn models_load_and_unload_models() {
    let repository = models::repository(&["caller", "echo"]);
    let flags = ["--model-control-mode=explicit", "--load-model=caller", "--load-model=echo"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    let said = answered(&mut peer, "control", &json!({}));
    let not_found = "TritonModelException: Failed to load model: failed to load 'nobody', failed to poll from model \
                     repository";
    let not_ready = "Model echo - Error when running inference: Failed for execute the inference request. Model 'echo' \
                     is not ready.";
    assert_eq!(
        said,
        json!(["True", "False", "None", "False", not_ready, "None", "True", "False", {"OUT": [1]}, not_found, "None"])
    );
    assert_eq!(answered(&mut peer, "replaced", &json!({})), json!({"OUT": [2, 4]}));
    // What models did is what clients see.
    assert_eq!(peer.get("/v2/models/echo/ready").status, 200);
    assert_ne!(peer.get("/v2/models/doubler/ready").status, 200);
}

#[test]
fn without_explicit_control_models_control_nothing() {
    let repository = models::repository(&["caller", "echo"]);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let said = answered(&mut peer, "control_refused", &json!({}));
    let text = "explicit model load / unload is not allowed if polling is enabled";
    let load = format!("TritonModelException: Failed to load model: {text}");
    let unload = format!("TritonModelException: Failed to unload model: {text}");
    assert_eq!(said, json!([load, unload, "True"]));
}

#[test]
fn models_keep_metrics_for_as_long_as_they_have_them() {
    let repository = models::repository(&["caller"]);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let said = answered(&mut peer, "metrics", &json!({}));
    assert_eq!(said.as_array().map(|said| said[..3].to_vec()), json!([3.5, 3.5, 3.5]).as_array().cloned());
    let monotonic = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.";
    let refused = |at: usize, text: &str| {
        let said = said[at].as_str().unwrap_or_default();
        assert!(said.starts_with("TritonModelException: ") && said.contains(text), "{at}: {said}");
    };
    refused(3, &format!("Failed to increment metric value: {monotonic}"));
    refused(4, "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set");
    refused(5, "Failed to increment metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment");
    refused(6, "Error when creating MetricFamily: ");
    refused(7, "Error when creating MetricFamily: ");
    let page = page(&server);
    let lines = [
        "# HELP caller_total counted by a model",
        "# TYPE caller_total counter",
        "caller_total{a=\"b\"} 3.5",
        "caller_total 1",
        "# TYPE caller_level gauge",
        "caller_level{x=\"quoted \\\"text\\\"\"} 3.5",
        "# TYPE caller_times histogram",
        "caller_times_bucket{le=\"0.5\"} 1",
        "caller_times_bucket{le=\"2\"} 2",
        "caller_times_bucket{le=\"+Inf\"} 3",
        "caller_times_sum 4.25",
        "caller_times_count 3",
    ];
    for line in lines {
        assert!(page.lines().any(|one| one == line), "{line}\n{page}");
    }
    assert_eq!(page.matches("# TYPE caller_total").count(), 1);
    // Their lifetime is that of the objects, which the worker tells in its own time.
    answered(&mut peer, "forget", &json!({}));
    server.wait_until("they are gone", || !self::page(&server).contains("caller_"));
}

/// A sample that several models keep lives until the last of them is gone, and goes on with a model that comes back.
#[test]
fn a_sample_of_several_models_outlives_each_of_them() {
    let repository = models::repository(&[]);
    for model in ["first", "second"] {
        models::add(&repository, "metered", model);
    }
    let flags = ["--model-control-mode=explicit", "--load-model=first", "--load-model=second"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    let mut seen = |model: &str| {
        let input = json!({"name": "IN", "datatype": "FP64", "shape": [1], "data": [1.0]});
        let body = json!({ "inputs": [input] }).to_string();
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The model's own, the one of all, and the largest.
        answer.json()["outputs"][0]["data"].clone()
    };
    let mut control = Peer::connect(server.http);
    let mut ask = |model: &str, action: &str| {
        let answer = control.post(&format!("/v2/repository/models/{model}/{action}"), &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let samples = || {
        let page = page(&server);
        page.lines().filter(|line| line.starts_with("differential_seen")).map(str::to_owned).collect::<Vec<_>>()
    };
    let own = |model: &str, count: u32| {
        format!("differential_seen{{kind=\"a \\\"quoted\\\" one\",model=\"{model}\"}} {count}")
    };
    assert_eq!(seen("first"), json!([1.0, 0.5, 1.0]));
    assert_eq!(seen("second"), json!([1.0, 1.0, 1.0]));
    assert_eq!(samples().len(), 3, "{:?}", samples());
    for round in 2..5 {
        let before = f64::from(round) / 2.0;
        ask("first", "unload");
        server.wait_until("its own sample goes", || !samples().contains(&own("first", 1)));
        assert!(samples().contains(&format!("differential_seen {before}")), "{:?}", samples());
        ask("first", "load");
        assert_eq!(seen("first"), json!([1.0, before + 0.5, 1.0]), "the model begins anew, the one of all goes on");
    }
    // A model that is loaded once more beside itself has never been without it either.
    models::add(&repository, "metered", "second");
    ask("second", "load");
    assert!(samples().iter().any(|line| line.starts_with("differential_seen 2.5")), "{:?}", samples());
    ["first", "second"].into_iter().for_each(|model| ask(model, "unload"));
    server.wait_until("all of them go", || samples().is_empty());
    server.stop();
}

fn page(server: &Server) -> String {
    Peer::connect(server.metrics).get("/metrics").text()
}

#[test]
fn models_write_to_the_log_under_their_own_lines() {
    let repository = models::repository(&["caller"]);
    let Some(server) = models::serve(usual(), &repository, &["--log-verbose=1"]) else { return };
    let mut peer = Peer::connect(server.http);
    let last = answered(&mut peer, "log", &json!({})).as_u64().expect("a line");
    let log = server.stop();
    for (letter, ahead, text) in [
        ('I', 4, "information of the caller"),
        ('W', 3, "warning of the caller"),
        ('E', 2, "error of the caller"),
        ('V', 1, "detail of the caller"),
    ] {
        let line = log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}\n{log}"));
        let place = format!("model.py:{}]", last - ahead);
        // Verbose lines look like information to Triton.
        let letter = if letter == 'V' { 'I' } else { letter };
        assert!(line.starts_with(letter) && line.contains(&place), "{line}: {place}");
    }
}
