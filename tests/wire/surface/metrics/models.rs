//! Samples of models: reasons of failures, the time that they exist, and labels.

use nereid_test_support::gate::{self, Gate};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

use super::{
    EVERYTHING, FIRST, NO_GPUS, Page, SUMMARIES, ask, body, ensemble, families, one, start, three_models, wait_for,
};

/// Every reason, and what is counted nowhere but as refused.
#[test]
fn failures_have_their_reasons() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        let queue = |policy: &str| {
            format!("{} dynamic_batching {{ default_queue_policy {{ {policy} }} }}", gate.of_executions())
        };
        repository.identity_of(gate::BACKEND, "short", 1, &one(), &queue("max_queue_size: 2"));
        // A request can only shorten the time.
        let hour = "default_timeout_microseconds: 3600000000";
        let impatient = queue(&format!("{hour} allow_timeout_override: true timeout_action: REJECT"));
        repository.identity_of(gate::BACKEND, "impatient", 1, &one(), &impatient);
        repository.identity_of("copycat", "failing", 0, &one(), "");
        repository.model("around", &ensemble("around", "failing", ""));
        let backends = format!("--backend-directory={}", directory.display());
        let flags = [&backends, "--metrics-config=histogram_latencies=true"];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let send = |model: &str, more: &str| {
            let mut peer = Peer::connect(server.http);
            let path = format!("/v2/models/{model}/infer");
            peer.send(&request("POST", &path, &[], body("[1,1]", &[1], more).as_bytes()));
            peer
        };
        let waiting = |page: &Page| page.count("nv_inference_pending_request_count", "short");
        let executes = send("short", "");
        gate.wait_until_held(&server, "short");
        let mut stay = [executes, send("short", "")];
        wait_for(&server, "one that waits", |page| waiting(page) == 1);
        let leaves = send("short", "");
        wait_for(&server, "two that wait", |page| waiting(page) == 2);
        let refused = send("short", "").answer();
        let text = "[request id: <id_unknown>] Exceeds maximum queue size";
        assert_eq!((refused.status, refused.error().as_str()), (503, text));
        drop(leaves);
        let page = wait_for(&server, "a cancelled request", |page| page.failures("short")[1] == 1);
        assert_eq!(page.failures("short"), [0, 1, 0, 0]);
        assert_eq!(page.count("nereid_queue_full_total", "short"), 1);
        gate.open();
        assert_eq!(stay.each_mut().map(|peer| peer.answer().status), [200, 200]);
        // One executes, and the other's time runs out.
        gate.close();
        let mut executes = send("impatient", "");
        gate.wait_until_held(&server, "impatient");
        let late = send("impatient", r#","parameters":{"timeout":1000}"#).answer();
        assert_eq!((late.status, late.error().as_str()), (503, "Request timeout expired"));
        gate.open();
        assert_eq!(executes.answer().status, 200);
        for model in ["failing", "around"] {
            let told = body("[1]", &[1], r#","parameters":{"fail":"told to"}"#);
            let status = ask(&server, model, &told);
            // Parameters of an ensemble's request reach its steps.
            assert_eq!(status, 400, "{model}");
        }
        // The backend reports after it answered, the step of an ensemble after the ensemble.
        let page = wait_for(&server, "all of them", |page| {
            page.failures("around")[3] == 1
                && page.failures("failing")[2] == 2
                && page.count("nv_inference_request_success", "impatient") == 1
                && page.count("nv_inference_request_success", "short") == 2
        });
        assert_eq!(page.failures("impatient"), [1, 0, 0, 0]);
        assert_eq!(page.failures("failing"), [0, 0, 2, 0]);
        assert_eq!(page.failures("around"), [0, 0, 0, 1]);
        for (model, successes, responses) in [("short", 2, 3), ("impatient", 1, 2), ("failing", 0, 2), ("around", 0, 1)]
        {
            assert_eq!(page.count("nv_inference_request_success", model), successes, "{model}");
            // A failure is a response as well; a request that was refused is none.
            assert_eq!(page.count(&format!("{FIRST}_count"), model), responses, "{model}");
        }
        server.stop();
    });
}

#[test]
fn samples_go_with_their_model_and_begin_anew() {
    let repository = three_models();
    let mode = "--model-control-mode=explicit";
    let flags: Vec<&str> = EVERYTHING.into_iter().chain([mode, "--load-model=plain", "--load-model=cached"]).collect();
    let server = start(&repository, &flags);
    let mut peer = Peer::connect(server.http);
    assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
    let page = Page::of(server.metrics);
    assert_eq!(page.count("nv_inference_request_success", "plain"), 1);
    assert!(page.all("nv_inference_request_success", &[("model", "both")]).is_empty());
    assert_eq!(peer.post("/v2/repository/models/plain/unload", &[], b"").status, 200);
    // It goes when nothing of it is left, which unloading does not wait for.
    let page = wait_for(&server, "no sample of an unloaded model", |page| !page.text.contains("model=\"plain\""));
    let mut others = families(true, true, true, true);
    others.remove(SUMMARIES[0]);
    assert_eq!(page.families, others, "the other one has all but the summary of requests");
    assert_eq!(peer.post("/v2/repository/models/plain/load", &[], b"").status, 200);
    let page = Page::of(server.metrics);
    assert_eq!(page.count("nv_inference_request_success", "plain"), 0);
    assert_eq!(page.count("nv_inference_request_summary_us_count", "plain"), 0);
    assert!(page.value("nv_model_load_duration_secs", &[("model", "plain")]) > 0.0);
    for model in ["plain", "cached"] {
        assert_eq!(peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"").status, 200);
    }
    let page = wait_for(&server, "no sample of any model", |page| !page.text.contains("model=\""));
    assert!(page.families.keys().all(|name| !name.starts_with("nv_inference_")), "{:?}", page.families);
    server.stop();
}

#[test]
fn labels_are_namespaces_tags_and_version_1_of_ensembles() {
    let (one_place, other) = (Repository::new(), Repository::new());
    for repository in [&one_place, &other] {
        let tags = "metric_tags { key: \"team\" value: \"blue\" }";
        repository.identity_of("identity", "same", 0, &one(), tags);
    }
    one_place.model("around", &ensemble("around", "same", "version_policy { all { } }"));
    one_place.version("around", "7");
    let second = format!("--model-repository={}", other.path().display());
    let server = start(&one_place, &["--model-namespacing=true", &second]);
    let page = Page::of(server.metrics);
    for repository in [&one_place, &other] {
        let namespace = repository.path().display().to_string();
        let labels = [("model", "same"), ("namespace", &*namespace), ("_team", "blue"), ("version", "1")];
        assert_eq!(page.value("nv_inference_request_success", &labels), 0.0);
    }
    assert_eq!(page.all("nv_inference_request_success", &[("model", "around"), ("version", "1")]), ["0"]);
    assert_eq!(page.all("nv_inference_request_success", &[("model", "around")]).len(), 1, "of both versions");
    server.stop();
    let plain = Repository::new();
    plain.identity("plain", 0, &one());
    let server = start(&plain, &[]);
    assert!(!Page::of(server.metrics).text.contains("namespace="));
    server.stop();
}
