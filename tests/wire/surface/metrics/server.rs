//! What the page tells of the server and its host, and how the port answers.

use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

use super::{NO_GPUS, Page, ask, body, one, start, wait_for};

#[test]
fn the_build_and_the_process_are_described() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &[]);
    let page = Page::of(server.metrics);
    for label in ["version", "triton_version", "revision", "target", "profile"] {
        let found = page.labels("nereid_build_info", label, &[]);
        assert!(matches!(&found[..], [value] if !value.is_empty()), "{label}: {found:?}");
    }
    assert_eq!(page.value("nereid_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert_eq!(page.value("nereid_ready", &[]), 1.0);
    assert!(page.value("nereid_pool_bytes_limit", &[]) >= page.value("nereid_pool_bytes_in_use", &[]));
    let (process, server_start) = ("process_start_time_seconds", "nereid_start_time_seconds");
    // The kernel's clock of the boot may be off by a second.
    assert!(page.value(process, &[]) <= page.value(server_start, &[]) + 1.0);
    let resident = page.value("process_resident_memory_bytes", &[]);
    assert!(resident > 1e6 && resident <= page.value("process_virtual_memory_bytes", &[]), "{resident}");
    assert!(page.value("process_open_fds", &[]) < page.value("process_max_fds", &[]));
    server.stop();
}

/// contract/http.md section 1, metrics port.
#[test]
fn the_port_answers_its_one_path() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &[]);
    let mut peer = Peer::connect(server.metrics);
    for path in ["/metrics", "/metrics/"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.text().contains("nv_inference_count{")), (200, true), "{path}");
    }
    // The page may have another length each time: values change.
    let answer = peer.send(&request("HEAD", "/metrics", &[], b"")).head();
    let length: usize = answer.header("content-length").expect("a length").parse().expect("a number");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert!(length > 1000, "{length}");
    for path in ["/", "/metrics//", "/metricsx", "/v2/health/ready"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = peer.send(&request(method, "/metrics", &[], b"")).answer();
        assert_eq!(answer.status, 405, "{method}");
    }
    server.stop();
}

/// The gauges of the host go with their flag, and those of GPUs are not there where no GPU is.
#[test]
fn gauges_of_the_host_can_be_left_out() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &["--metrics-interval-ms=10"]);
    let total = |page: &Page| page.value("nv_cpu_memory_total_bytes", &[]);
    let page = wait_for(&server, "a first reading", |page| total(page) > 0.0);
    assert!(page.value("nv_cpu_memory_used_bytes", &[]) <= total(&page));
    assert!((0.0..=1.0).contains(&page.value("nv_cpu_utilization", &[])));
    assert!(page.families.keys().all(|name| !name.starts_with("nv_gpu_") && !name.starts_with("nv_energy")));
    server.stop();
    let server = start(&repository, &["--allow-cpu-metrics=false", "--allow-gpu-metrics=false"]);
    assert!(Page::of(server.metrics).families.keys().all(|name| !name.starts_with("nv_cpu_")));
    server.stop();
}

/// Pages of many models are written beside the requests, whoever reads them and however slowly.
#[test]
fn many_models_and_many_readers_are_all_answered() {
    each(&variant::ALL, |variant| {
        const MODELS: usize = 150;
        let repository = Repository::new();
        for model in 0..MODELS {
            repository.identity(&format!("m{model}"), 0, &one());
        }
        // Those that have not read a page yet are not slow, whatever 150 requests take.
        let patient = "--slow-peer-secs=600";
        let flags = ["--metrics-config=summary_latencies=true", "--metrics-config=histogram_phases=true", patient];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let mut readers: Vec<Peer> = (0..16).map(|_| Peer::connect(server.metrics)).collect();
        for reader in &mut readers {
            reader.send(&request("GET", "/metrics", &[], b""));
        }
        // Nobody has read a page yet.
        for model in 0..MODELS {
            assert_eq!(ask(&server, &format!("m{model}"), &body("[1]", &[1], "")), 200);
        }
        for reader in &mut readers {
            let page = Page::read(&reader.answer().text());
            assert_eq!(page.all("nv_inference_count", &[]).len(), MODELS);
        }
        let page = Page::of(server.metrics);
        let counts = page.all("nereid_request_duration_us_count", &[]);
        assert!(!counts.is_empty() && counts.iter().all(|count| *count == "1"), "{counts:?}");
        server.stop();
    });
}
