//! The page in OpenMetrics, with exemplars.

use std::collections::BTreeMap;

use nereid_test_support::http::{Peer, request};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

use super::{EVERYTHING, FIRST, NO_GPUS, PHASES, Page, ask, body, three_models};

/// What a client would do with a page in OpenMetrics: every family has a heading and its samples, with names that its
/// type allows, and the page has an end.
fn check_open_metrics(text: &str) -> BTreeMap<String, String> {
    let lines = text.strip_suffix("# EOF\n").expect("a page ends").lines();
    let (mut kinds, mut family) = (BTreeMap::new(), (String::new(), String::new()));
    for line in lines {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = (help.split(' ').next().unwrap_or_default().to_owned(), String::new());
        } else if let Some(heading) = line.strip_prefix("# TYPE ") {
            let (name, kind) = heading.split_once(' ').expect("a type");
            assert_eq!(name, family.0, "the type follows the help");
            family.1 = kind.to_owned();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
        } else if let Some(unit) = line.strip_prefix("# UNIT ") {
            let (name, unit) = unit.split_once(' ').expect("a unit");
            assert!(name == family.0 && name.ends_with(&format!("_{unit}")), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let suffix = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("'{line}' is not of {}", family.0));
            let allowed: &[&str] = match family.1.as_str() {
                "counter" => &["_total"],
                "gauge" | "unknown" => &[""],
                "summary" => &["", "_count", "_sum"],
                "histogram" => &["_bucket", "_count", "_sum"],
                other => panic!("{other}"),
            };
            assert!(allowed.contains(&suffix), "{line} is a {}", family.1);
        }
    }
    kinds
}

/// Both formats have the same samples under the same names, so that no query changes with the format.
#[test]
fn readers_of_openmetrics_get_it() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let flags = [&EVERYTHING[..], &["--http-metrics=true"]].concat();
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let accept =
            [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")];
        for address in [server.metrics, server.http] {
            let answer = Peer::connect(address).send(&request("GET", "/metrics", &accept, b"")).answer();
            let expected = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");
            assert_eq!((answer.status, answer.header("content-type")), (200, expected));
            let text = answer.text();
            let kinds = check_open_metrics(&text);
            assert_eq!(kinds["nv_inference_request_success"], "unknown");
            assert_eq!(kinds["nereid_queue_full"], "counter");
            assert_eq!(kinds["nereid_request_duration_us"], "histogram");
            assert!(text.contains("nereid_request_duration_us_bucket{model=\"plain\",version=\"1\",le=\"16.0\"} 0\n"));
            let names = |text: &str| {
                let lines = text.lines().filter(|line| !line.starts_with('#'));
                // Not the values, nor the forms of bounds.
                let series = lines.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned());
                series.filter(|series| !series.contains("le=") && !series.contains("quantile=")).collect::<Vec<_>>()
            };
            assert_eq!(names(&text), names(&Peer::connect(address).get("/metrics").text()));
        }
        server.stop();
    });
}

/// A traced request is the exemplar of the buckets that count it; other requests are none.
#[test]
fn histograms_lead_to_traced_requests() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let modes = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=127.0.0.1:9/v1/traces"];
        // Only requests that bring a context are traced.
        let levels = ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1000000"];
        let flags = [&EVERYTHING[..], &modes, &levels].concat();
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let page = || {
            let accept = [("Accept", "application/openmetrics-text")];
            Peer::connect(server.metrics).send(&request("GET", "/metrics", &accept, b"")).answer().text()
        };
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        assert!(!page().contains(" # {"), "no request was traced");
        let id = "0af7651916cd43dd8448eb211c80319c";
        let parent = format!("00-{id}-b7ad6b7169203331-01");
        let path = "/v2/models/plain/infer";
        let answer =
            Peer::connect(server.http).post(path, &[("traceparent", &parent)], body("[1]", &[1], "").as_bytes());
        assert_eq!(answer.status, 200);
        let mut text = String::new();
        server.wait_until("the exemplars are there", || {
            text = page();
            let has = |family: &&str| {
                let start = format!("{family}_bucket{{model=\"plain\"");
                text.lines().any(|line| line.starts_with(&start) && line.contains(id))
            };
            PHASES.iter().chain([&FIRST]).all(has)
        });
        check_open_metrics(&text);
        let exemplar = format!(" # {{trace_id=\"{id}\"}} ");
        for family in PHASES.iter().chain([&FIRST]) {
            let start = format!("{family}_bucket{{model=\"plain\"");
            let found: Vec<_> = text.lines().filter(|line| line.starts_with(&start)).collect();
            let found = found.iter().filter_map(|line| line.split_once(&*exemplar));
            let (series, exemplar) = found.clone().next().unwrap_or_else(|| panic!("{family} in\n{text}"));
            assert_eq!(found.count(), 1, "{family}");
            let (bound, count) =
                series.split_once("le=\"").and_then(|(_, rest)| rest.split_once("\"} ")).expect("a bound");
            let (value, at) = exemplar.split_once(' ').expect("a value and a time");
            let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{text} in {series}{exemplar}"));
            assert!(bound == "+Inf" || number(value) <= number(bound), "{series}{exemplar}");
            assert!(number(count) >= 1.0 && number(at) > 1.6e9, "{series}{exemplar}");
        }
        assert!(!Page::of(server.metrics).text.contains(id), "the other format has no exemplars");
        server.stop();
    });
}
