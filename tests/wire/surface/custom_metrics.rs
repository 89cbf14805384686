//! Metrics that a backend defines through the C interface, as scrapers and load balancers see them (contract/metrics.md
//! section 2, custom metrics; contract/http.md section 7, load reports).

use super::metrics::wait_for;
use nereid_test_support::backend;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const INPUT: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;

/// A server of the models `one` and `two` on tests/backends/gauges.c, which loads what it is told to. None, after a
/// visible skip, without a C compiler.
fn start(variant: variant::Variant) -> Option<(Repository, Server)> {
    start_with(variant, &[])
}

/// The same with more flags.
pub fn start_with(variant: variant::Variant, more: &[&str]) -> Option<(Repository, Server)> {
    let directory = backend::compiled("gauges.c")?;
    let repository = Repository::new();
    for name in ["one", "two"] {
        repository.identity_of("gauges", name, 0, &[Pair::new("INT32", "-1")], "");
    }
    let directory = format!("--backend-directory={}", directory.display());
    let own = [&directory, "--model-control-mode=explicit", "--load-model=one"];
    let flags: Vec<&str> = own.into_iter().chain(more.iter().copied()).collect();
    let server = Server::start(variant, repository.path(), &flags);
    Some((repository, server))
}

/// The lines of the page that are about the backend's metrics.
fn page(server: &Server) -> Vec<String> {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    page.lines().filter(|line| line.contains("gauges_")).map(str::to_owned).collect()
}

#[test]
fn a_backends_metrics_stand_on_the_page_as_long_as_its_model_is_loaded() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = start(variant) else { return };
        let mut peer = Peer::connect(server.http);
        let mut infer = |model: &str| {
            let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], INPUT);
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        (0..3).for_each(|_| infer("one"));
        let expected = [
            "# HELP gauges_free Of the backend in tests",
            "# TYPE gauges_free gauge",
            r#"gauges_free{model="one"} 7"#,
            "# HELP gauges_requests_total Of the backend in tests",
            "# TYPE gauges_requests_total counter",
            r#"gauges_requests_total{model="one"} 3"#,
            "# HELP gauges_spread Of the backend in tests",
            "# TYPE gauges_spread histogram",
            r#"gauges_spread_count{model="one"} 3"#,
            r#"gauges_spread_sum{model="one"} 6"#,
            r#"gauges_spread_bucket{model="one",le="1"} 1"#,
            r#"gauges_spread_bucket{model="one",le="2.5"} 2"#,
            r#"gauges_spread_bucket{model="one",le="+Inf"} 3"#,
        ];
        assert_eq!(page(&server), expected);
        let mut control = Peer::connect(server.http);
        let mut ask = |model: &str, what: &str| {
            let answer = control.post(&format!("/v2/repository/models/{model}/{what}"), &[], b"");
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        // A second model of the backend shares the families.
        ask("two", "load");
        infer("two");
        let lines = page(&server);
        let of = |start: &str| lines.iter().filter(|line| line.starts_with(start)).cloned().collect::<Vec<_>>();
        let both = [r#"gauges_requests_total{model="one"} 3"#, r#"gauges_requests_total{model="two"} 1"#];
        assert_eq!(of("gauges_requests_total{"), both);
        assert_eq!(of("# TYPE").len(), 3);
        // What goes takes its samples along, and only those.
        ask("one", "unload");
        wait_for(&server, "the samples go", |_| page(&server).len() == expected.len());
        assert!(page(&server).iter().all(|line| !line.contains(r#"model="one""#)));
        ask("two", "unload");
        wait_for(&server, "all samples go", |_| page(&server).is_empty());
        server.stop();
    });
}

/// The server has one family of this name, whoever adds to it.
#[test]
fn samples_of_a_backend_stand_in_the_servers_own_family() {
    let Some((_repository, server)) = start(usual()) else { return };
    let name = "nv_inference_pending_request_count";
    let family = || {
        let text = Peer::connect(server.metrics).get("/metrics").text();
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{text}");
        let lines = text.lines().skip_while(|line| *line != format!("# TYPE {name} gauge")).skip(1);
        lines.take_while(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let line = |labels: &str, value: u64| format!("{name}{{{labels}}} {value}");
    let backends = |model: &str| line(&format!(r#"kv_cache_block_type="none",model="{model}""#), 42);
    let one = line(r#"model="one",version="1""#, 0);
    assert_eq!(family(), [one.clone(), backends("one")]);
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.post("/v2/repository/models/two/load", &[], b"").status, 200);
    let two = line(r#"model="two",version="1""#, 0);
    assert_eq!(family(), [one, two.clone(), backends("one"), backends("two")]);
    assert_eq!(peer.post("/v2/repository/models/one/unload", &[], b"").status, 200);
    server.wait_until("the samples go", || family() == [two.clone(), backends("two")]);
    server.stop();
}

#[test]
fn load_balancers_are_told_how_full_the_cache_of_blocks_is() {
    let Some((_repository, server)) = start(usual()) else { return };
    let mut peer = Peer::connect(server.http);
    let mut report = |action: &str, format: &str| {
        let head = [("endpoint-load-metrics-format", format)];
        let path = format!("/v2/models/one/{action}");
        let answer = peer.send(&request("POST", &path, &head, br#"{"INPUT0":1}"#)).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("endpoint-load-metrics").map(str::to_owned)
    };
    // The request that is answered counts already: the head is made when the answer is there.
    let first = r#"JSON {"named_metrics":{"kv_cache_utilization":0.125,"max_token_capacity":512}}"#;
    assert_eq!(report("generate", "json").as_deref(), Some(first));
    let second = "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=512";
    assert_eq!(report("generate", "text").as_deref(), Some(second));
    assert_eq!(report("generate", "other"), None);
    let streamed = report("generate_stream", "json").expect("a report with the stream");
    assert!(streamed.starts_with(r#"JSON {"named_metrics":{"kv_cache_utilization":0."#), "{streamed}");
    assert!(streamed.ends_with(r#","max_token_capacity":512}}"#), "{streamed}");
    server.stop();
}
