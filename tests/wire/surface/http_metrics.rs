//! `--http-metrics`: `/metrics` and `/health` on the HTTP port (contract/scale_out.md section 5).

use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn plain() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

#[test]
fn the_http_port_answers_probes_where_the_flag_says_so() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let server = Server::start(variant, repository.path(), &["--http-metrics=true"]);
        let (mut peer, mut metrics) = (Peer::connect(server.http), Peer::connect(server.metrics));
        let (here, there) = (peer.get("/metrics"), metrics.get("/metrics"));
        assert_eq!((here.status, here.header("content-type")), (200, there.header("content-type")));
        let families = |text: &str| text.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!(families(&here.text()), families(&there.text()));
        assert!(here.text().contains(r#"nv_inference_count{model="plain",version="1"}"#));
        let health = peer.get("/health");
        assert_eq!((health.status, health.text().as_str()), (200, ""));
        for path in ["/metrics", "/health"] {
            assert_eq!(peer.send(&request("POST", path, &[], b"")).answer().status, 405, "{path}");
        }
        for path in ["/metrics/", "/health/", "/v2/metrics", "/v2/health"] {
            assert_eq!(peer.get(path).status, 404, "{path}");
        }
        server.stop();
    });
}

#[test]
fn without_the_flag_it_answers_as_triton_does() {
    let repository = plain();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for path in ["/metrics", "/health"] {
        assert_eq!(peer.get(path).status, 404, "{path}");
    }
    server.stop();
}

/// A server that is not ready says so; one without metrics has none to show.
#[test]
fn health_is_readiness() {
    let repository = plain();
    repository.model("broken", "backend: \"nothing\" max_batch_size: 0");
    let flags = ["--http-metrics=true", "--allow-metrics=false", "--exit-on-error=false", "--strict-readiness=true"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/health").status, peer.get("/v2/health/ready").status);
    assert_eq!(peer.get("/health").status, 400);
    assert_eq!(peer.get("/metrics").status, 404);
    server.stop();
}

#[test]
fn keys_of_groups_are_demanded() {
    let repository = plain();
    let keys = ["--http-metrics=true", "--http-restricted-api=statistics:key=one"];
    let server = Server::start(usual(), repository.path(), &keys);
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/metrics").status, 403);
    assert_eq!(peer.send(&request("GET", "/metrics", &[("key", "one")], b"")).answer().status, 200);
    assert_eq!(peer.get("/health").status, 200, "another group");
    server.stop();
    let server = Server::start(usual(), repository.path(), &["--http-restricted-api=statistics:key=one"]);
    assert_eq!(Peer::connect(server.http).get("/metrics").status, 404, "a route that is not there demands no key");
    server.stop();
}
