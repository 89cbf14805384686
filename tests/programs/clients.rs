//! The official Triton client, unchanged, against a whole server: over HTTP and gRPC, synchronous and asynchronous.

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::variant::{self, each, usual};

const PROTOCOLS: [&str; 4] = ["http", "grpc", "http-aio", "grpc-aio"];

/// Runs `script` once per client.
fn run_with_every_client(python: &Python, server: &Server, script: &str, more: &[&str]) {
    for protocol in PROTOCOLS {
        let url = if protocol.starts_with("http") { server.http } else { server.grpc }.to_string();
        let mut arguments = vec!["--protocol", protocol, "--url", &url];
        arguments.extend(more);
        print!("{}", python.run(script, &arguments));
    }
}

#[test]
fn digits_are_recognised_as_well_as_known() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.example("digits");
        let server = Server::start(variant, repository.path(), &[&python.onnxruntime_flag()]);
        run_with_every_client(&python, &server, "digits.py", &[]);
        server.stop();
    });
}

#[test]
fn add_and_subtract_with_many_requests_in_flight() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.example("simple");
        let server = Server::start(variant, repository.path(), &[&python.onnxruntime_flag()]);
        run_with_every_client(&python, &server, "simple.py", &[]);
        server.stop();
    });
}

#[test]
fn onnx_models_complete_their_own_configuration() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("digits").example("simple");
    // Only the name of the backend is left; the rest is read from the model file.
    repository.file("simple/config.pbtxt", "backend: \"onnxruntime\"\nmax_batch_size: 8\n");
    let server = Server::start(usual(), repository.path(), &[&python.onnxruntime_flag()]);
    let config = Peer::connect(server.http).get("/v2/models/simple/config").json();
    assert_eq!(config["max_batch_size"], 8);
    assert_eq!(config["input"].as_array().map(Vec::len), Some(2), "{config}");
    assert_eq!(config["input"][0]["dims"], serde_json::json!([16]), "{config}");
    assert_eq!(config["output"].as_array().map(Vec::len), Some(2), "{config}");
    run_with_every_client(&python, &server, "simple.py", &[]);
    server.stop();
}

#[test]
fn every_datatype_in_every_form_of_the_client() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(variant, repository.path(), &[]);
        run_with_every_client(&python, &server, "forms.py", &[]);
        server.stop();
    });
}

#[test]
fn what_the_client_asks_about_server_and_models() {
    let Some(python) = Python::get() else { return };
    // One server per client: the statistics are counted from nothing.
    for protocol in PROTOCOLS {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(usual(), repository.path(), &[]);
        let url = if protocol.starts_with("http") { server.http } else { server.grpc }.to_string();
        let mut arguments = vec!["--protocol", protocol, "--url", &url];
        if std::env::var_os(OTHER_SERVER).is_none() {
            arguments.push("--refusals");
        }
        python.run("management.py", &arguments);
        server.stop();
    }
}

#[test]
fn the_log_is_set_by_the_client() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.every_datatype();
    let server = Server::start(usual(), repository.path(), &[]);
    run_with_every_client(&python, &server, "logging_settings.py", &[]);
    server.stop();
}

#[test]
fn streams_of_the_client() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(variant, repository.path(), &[]);
        python.run("stream.py", &["--url", &server.grpc.to_string()]);
        server.stop();
    });
}

#[test]
fn clients_that_do_not_wait_and_clients_in_crowds() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1000\" } }";
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
        let server = Server::start(variant, repository.path(), &[]);
        python.run("patience.py", &["--grpc", &server.grpc.to_string(), "--http", &server.http.to_string()]);
        server.stop();
    });
}
