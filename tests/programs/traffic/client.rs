//! Labels and headers through the official client.

use super::identity;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn the_official_client_uses_labels_and_headers() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    identity(&repository, "m", &[("weights", "1:100"), ("header", "x-canary"), ("labels", "stable:1,canary:2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    for (protocol, url) in
        [("http", server.http), ("grpc", server.grpc), ("http-aio", server.http), ("grpc-aio", server.grpc)]
    {
        python.run("traffic.py", &["--protocol", protocol, "--url", &url.to_string()]);
    }
    server.stop();
}
