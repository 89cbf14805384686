//! Which families the page has, and what they are called.

use std::collections::BTreeMap;

use nereid_wire::inference::ModelInferResponse;
use serde_json::{Value, json};

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::original::original;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

use super::{
    CACHE, CACHE_SUMMARIES, EVERYTHING, FIRST, NO_GPUS, PHASES, Page, ask, body, families, message, one, start,
    three_models, wait_for,
};

#[test]
fn every_family_is_there_before_and_after_traffic() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let server = Server::start_in(variant, repository.path(), &EVERYTHING, "/v2/health/ready", &NO_GPUS);
        let before = Page::of(server.metrics);
        assert_eq!(before.families, families(true, true, true, true));
        for model in ["plain", "cached", "both"] {
            assert_eq!(before.count("nv_inference_request_success", model), 0);
            assert_eq!(before.failures(model), [0; 4]);
            assert_eq!(before.count("nv_inference_queue_summary_us_count", model), 0);
            let quantiles = before.all("nv_inference_queue_summary_us", &[("model", model)]);
            assert_eq!(quantiles, ["NaN"; 5], "nothing came within the last minute");
            assert_eq!(before.value(&format!("{FIRST}_bucket"), &[("model", model), ("le", "+Inf")]), 0.0);
        }
        assert_eq!(ask(&server, "plain", &body("[2]", &[1, 2], "")), 200);
        let mut grpc = Grpc::connect(server.grpc);
        let answer: Result<ModelInferResponse, _> = grpc.call("ModelInfer", &message("plain", &[3]));
        assert!(answer.is_ok());
        (0..3).for_each(|_| assert_eq!(ask(&server, "cached", &body("[1]", &[1], "")), 200));
        assert_eq!(ask(&server, "both", &body("[1]", &[7], "")), 200);
        // An ensemble's phases are known when its steps are released, which may be after its answer.
        // A page may be read between two of them.
        let after = wait_for(&server, "the ensemble's phases", |page| {
            let summaries = ["queue", "compute_input", "compute_infer", "compute_output"];
            let summary = |phase: &str| page.count(&format!("nv_inference_{phase}_summary_us_count"), "both");
            summaries.iter().all(|phase| summary(phase) == 1)
                && PHASES.iter().all(|family| page.count(&format!("{family}_count"), "both") == 1)
        });
        assert_eq!(after.families, families(true, true, true, true));
        for (model, successes, inferences, hits) in [("plain", 3, 3, 0), ("cached", 3, 1, 2), ("both", 1, 1, 0)] {
            assert_eq!(after.count("nv_inference_request_success", model), successes, "{model}");
            assert_eq!(after.count("nv_inference_count", model), inferences, "{model}");
            assert_eq!(after.count("nv_inference_exec_count", model), inferences, "{model}");
            assert_eq!(after.count(&format!("{FIRST}_count"), model), successes, "{model}");
            for (phase, family) in PHASES.iter().enumerate() {
                let expected = if phase < 2 { successes } else { inferences };
                assert_eq!(after.count(&format!("{family}_count"), model), expected, "{model} {family}");
            }
            assert_eq!(after.count("nv_inference_queue_summary_us_count", model), successes);
            assert_eq!(after.count("nv_inference_compute_infer_summary_us_count", model), inferences);
            let sum = after.count("nereid_queue_duration_us_sum", model);
            assert_eq!(sum, after.count("nv_inference_queue_summary_us_sum", model));
            assert_eq!(sum, after.count("nv_inference_queue_duration_us", model));
            let caching: &[&str] = if model == "cached" { &CACHE_SUMMARIES } else { &[] };
            for family in CACHE_SUMMARIES {
                let shown = after.all(&format!("{family}_count"), &[("model", model)]).len();
                assert_eq!(shown, usize::from(caching.contains(&family)), "{family} of {model}");
            }
            let request = after.all("nv_inference_request_summary_us_count", &[("model", model)]);
            assert_eq!(request.is_empty(), model == "cached", "a caching model has no summary of requests");
            if model == "cached" {
                assert_eq!(after.count("nv_cache_num_hits_per_model", model), hits);
                assert_eq!(after.count("nv_cache_num_misses_per_model", model), 1);
                assert_eq!(after.count("nv_cache_hit_summary_per_model_count", model), hits);
                assert_eq!(after.count("nv_cache_miss_summary_per_model_count", model), 1);
            }
        }
        assert_eq!(after.all("nv_pinned_memory_pool_total_bytes", &[]), ["268435456"], "as configured");
        let info = after.all("nereid_build_info", &[("version", env!("CARGO_PKG_VERSION"))]);
        assert_eq!(info, ["1"]);
        let numbers = after.all("nv_inference_request_summary_us", &[("model", "plain")]);
        assert!(numbers.len() == 5 && numbers.iter().all(|value| *value != "NaN"), "{numbers:?}");
        server.stop();
    });
}

/// What Triton's dashboards show beside each family.
#[test]
fn descriptions_are_tritons() {
    let repository = three_models();
    let server = start(&repository, &EVERYTHING);
    let text = Peer::connect(server.metrics).get("/metrics").text();
    for (family, help) in [
        ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
        ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
        ("nv_inference_count", "Number of inferences performed (does not include cached requests)"),
        (
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
        ),
        (
            "nv_inference_queue_summary_us",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
        ),
        ("nv_cache_num_hits_per_model", "Number of cache hits per model"),
        ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"),
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"),
    ] {
        let line = format!("# HELP {family} {help}");
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    server.stop();
}

#[test]
fn a_scraper_reads_the_same() {
    let Some(python) = Python::with("metrics-requirements.txt") else { return };
    let repository = three_models();
    repository.identity_of(
        "identity",
        "tagged",
        0,
        &one(),
        "metric_tags { key: \"odd\" value: \"a \\\"b\\\" \\\\ {c}\" } metric_tags { key: \"a-b\" value: \"x\" }",
    );
    let server = start(&repository, &EVERYTHING);
    for round in 0..2 {
        let found: Value =
            serde_json::from_str(&python.run("metrics.py", &[&format!("http://{}/metrics", server.metrics)]))
                .expect("JSON");
        assert_eq!(found["families"], json!(families(true, true, true, true)), "round {round}");
        let samples = found["samples"].as_array().into_iter().flatten();
        let of = |name: &str, model: &str| {
            let mut fit = samples.clone().filter(|sample| sample[0] == name && sample[1]["model"] == model);
            fit.next().unwrap_or_else(|| panic!("no {name} of {model}")).clone()
        };
        let successes = of("nv_inference_request_success", "tagged");
        assert_eq!(successes[2], f64::from(round));
        assert_eq!(successes[1]["_odd"], "a \"b\" \\ {c}");
        assert_eq!(successes[1]["_a_b"], "x");
        let request = of("nv_inference_request_summary_us", "tagged");
        assert_eq!(request[2] == "NaN", round == 0, "{request}");
        assert_eq!(ask(&server, "tagged", &body("[1]", &[1], "")), 200);
    }
    server.stop();
}

#[test]
fn settings_decide_what_is_shown() {
    let repository = three_models();
    let config = |setting: &str| format!("--metrics-config={setting}");
    for (settings, expected) in [
        (&[][..], families(true, false, false, false)),
        (&["counter_latencies=false"][..], families(false, false, false, false)),
        (&["histogram_latencies=true", "other=1"][..], families(true, true, false, false)),
        (&["counter_latencies=false", "summary_latencies=true"][..], families(false, false, true, false)),
        (&["histogram_phases=true", "summary_latencies=1"][..], families(true, false, false, true)),
        (&["summary_latencies=true", "summary_latencies=false"][..], families(true, false, false, false)),
    ] {
        let flags: Vec<String> = settings.iter().map(|setting| config(setting)).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain([CACHE]).collect();
        let server = start(&repository, &flags);
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        let page = Page::of(server.metrics);
        assert_eq!(page.families, expected, "{settings:?}");
        // Without its counters of latencies a server counts nothing any more, but for what waits and its statistics.
        let counts = !settings.contains(&"counter_latencies=false");
        assert_eq!(page.count("nv_inference_request_success", "plain"), u64::from(counts), "{settings:?}");
        assert_eq!(page.count("nv_inference_count", "plain"), u64::from(counts), "{settings:?}");
        assert_eq!(page.count("nv_inference_exec_count", "plain"), u64::from(counts), "{settings:?}");
        let statistics = Peer::connect(server.http).get("/v2/models/plain/stats").json();
        assert_eq!(statistics["model_stats"][0]["inference_count"], 1, "{statistics}");
        server.stop();
    }
}

/// The same traffic for both servers: the official one has no family and no label that ours lacks.
#[test]
fn the_official_server_shows_the_same_families() {
    let (Some(words), Some(directory)) = (original(), nereid_test_support::backend::directory()) else { return };
    let backends = format!("--backend-directory={}", directory.display());
    let flags = [&*backends, "--metrics-config=summary_latencies=true", "--allow-gpu-metrics=false"];
    let series = |words: &[String], backend: &str| {
        let repository = Repository::new();
        repository.identity_of(backend, "m", 8, &one(), "metric_tags { key: \"team\" value: \"blue\" }");
        let server = Server::start_under(words, usual(), repository.path(), &flags, "/v2/health/ready");
        for numbers in [&[1, 2][..], &[3, 4]] {
            assert_eq!(ask(&server, "m", &body("[1,2]", numbers, "")), 200);
        }
        let failing = body("[1,1]", &[1], r#","parameters":{"fail":"told to"}"#);
        assert_eq!(ask(&server, "m", &failing), 400);
        let of_model = |page: &Page| page.count("nv_inference_request_success", "m");
        let page = wait_for(&server, "two successes", |page| of_model(page) == 2 && page.failures("m")[2] == 1);
        let counts: Vec<(String, String)> = ["nv_inference_count", "nv_inference_exec_count"]
            .map(|name| (name.to_owned(), page.count(name, "m").to_string()))
            .into();
        let labels = |labels: &BTreeMap<String, String>| {
            let known = |(name, value): (&String, &String)| format!("{name}={value}");
            labels.iter().map(known).collect::<Vec<_>>().join(",")
        };
        let series = page.samples.iter().map(|(name, all, _)| format!("{name}{{{}}}", labels(all)));
        // Newer than the official server that is at hand, or ours.
        let ours = ["nereid_", "process_", "nv_model_load"];
        let is_common = |name: &String| ours.iter().all(|beginning| !name.starts_with(beginning));
        let mut series: Vec<String> = series.filter(is_common).collect();
        series.sort();
        let families: Vec<_> = page.families.into_iter().filter(|(name, _)| is_common(name)).collect();
        drop(server);
        (families, series, counts)
    };
    let theirs = series(&words, "identity");
    let ours = series(&[], "copycat");
    assert_eq!(ours, theirs, "ours (left) and the official server's (right)");
}
