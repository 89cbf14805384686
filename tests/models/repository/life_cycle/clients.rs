//! The official client loads, overrides and unloads.

use crate::repository::life_cycle::control::{EXPLICIT, Life, config, generation, parameter};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::usual;

#[test]
fn the_official_clients_manage_models() {
    let Some(python) = Python::get() else { return };
    // A server for each: the model that fails to load leaves a server that is not ready.
    for protocol in ["http", "grpc", "http-aio", "grpc-aio"] {
        let repository = Repository::new();
        repository.model("m", &generation("m", "disk"));
        repository.model("failing", &config("failing", &parameter("fail_load", "as told")));
        let Some(life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
        let url = if protocol.starts_with("http") { life.server.http } else { life.server.grpc }.to_string();
        print!("{}", python.run("life.py", &["--protocol", protocol, "--url", &url]));
        life.server.stop();
    }
}
