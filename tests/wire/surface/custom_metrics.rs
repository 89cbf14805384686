//! Metrics that a backend defines through the C interface, as scrapers and load balancers see them (contract/metrics.md
//! section 2, custom metrics; contract/http.md section 7, load reports).

use std::io::{Read, Write};
use std::net::TcpStream;

use super::metrics::{Page, wait_for};
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

/// A server whose model `all` has all metrics that code of models may have: its page has 9 MB. Others are `late`, which
/// wants them too, and `plain`. None, after a visible skip, without a C compiler.
fn start_full(variant: variant::Variant) -> Option<(Repository, Server)> {
    let directory = backend::compiled("hoarder.c")?;
    let repository = Repository::new();
    for (name, backend) in [("all", "hoarder"), ("late", "hoarder"), ("plain", "identity")] {
        repository.identity_of(backend, name, 0, &[Pair::new("INT32", "-1")], "");
    }
    let directory = format!("--backend-directory={}", directory.display());
    let flags = [&*directory, "--model-control-mode=explicit", "--load-model=all"];
    let server = Server::start(variant, repository.path(), &flags);
    Some((repository, server))
}

/// A page waits for its reader in memory that is counted, while the server goes on; it goes with its connection.
#[test]
fn a_long_page_goes_with_the_reader_that_does_not_take_it() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = start_full(variant) else { return };
        let bytes_in_use = || {
            let page = Page::of(server.metrics);
            page.value("nereid_pool_bytes_in_use", &[])
        };
        let most = bytes_in_use() + f64::from(1 << 20);
        let mut reader = TcpStream::connect(server.metrics).expect("a connection");
        reader.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
        let mut begin = [0; 15];
        reader.read_exact(&mut begin).expect("the page begins");
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
        server.wait_until("the page waits", || bytes_in_use() > most);
        assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
        // With bytes that are not read, the end is a reset.
        drop(reader);
        server.wait_until("its memory is free", || bytes_in_use() < most);
        server.stop();
    });
}

/// Models could not be loaded once there were 16,384 metrics, those of other models included: as each has two of the
/// server's own, 8,000 models were enough. Code of one model has all of them here, so that one more model shows it.
#[test]
fn models_are_loaded_whatever_metrics_others_have() {
    let Some((_repository, server)) = start_full(usual()) else { return };
    let mut peer = Peer::connect(server.http);
    let mut ask = |model: &str, what: &str| {
        let answer = peer.post(&format!("/v2/repository/models/{model}/{what}"), &[], b"");
        (answer.status, answer.text())
    };
    assert_eq!(ask("plain", "load").0, 200);
    let answer = Peer::connect(server.http).post("/v2/models/plain/infer", &[], INPUT);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (status, text) = ask("late", "load");
    assert!(status != 200 && text.contains("the server holds 16384 metrics at most"), "{status} {text}");
    let text = Peer::connect(server.metrics).get("/metrics").text();
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("hoarder_total{"), 16_383, "all but the one of the family");
    for family in ["input_byte_size_counter", "nereid_instance_stalls", "nv_inference_count"] {
        assert_eq!(count(&format!("{family}{{model=\"plain\",version=\"1\"}}")), 1, "{family}");
    }
    // The places come back.
    assert_eq!(ask("all", "unload").0, 200);
    server.wait_until("the samples go", || {
        !Peer::connect(server.metrics).get("/metrics").text().contains("hoarder_total")
    });
    assert_eq!(ask("late", "load").0, 200);
    server.stop();
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
