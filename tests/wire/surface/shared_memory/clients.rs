//! The official client's own shared memory, with each of its four clients.

use super::*;
use nereid_test_support::python::Python;
use nereid_test_support::variant::{self, each};

#[test]
fn the_official_client_shares_its_memory() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.example("simple");
        repository.identity("words", 0, &[Pair::new("BYTES", "-1")]);
        repository.identity("image", 0, &[Pair::new("FP32", "-1")]);
        let server = Server::start(variant, repository.path(), &[ALLOWED, &python.onnxruntime_flag()]);
        for protocol in ["http", "grpc", "http-aio", "grpc-aio"] {
            let url = if protocol.starts_with("http") { server.http } else { server.grpc }.to_string();
            print!("{}", python.run("shared_memory.py", &["--protocol", protocol, "--url", &url]));
        }
        server.stop();
    });
}
