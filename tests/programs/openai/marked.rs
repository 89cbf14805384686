//! A model that switches the interface on.

use std::net::SocketAddr;

use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{ALL, each};

/// An address of this host that no other test listens at: the port is the default one.
const ADDRESS: [u8; 4] = [127, 0, 0, 77];
const PORT: u16 = 9000;

#[test]
fn a_marked_model_opens_the_port_unless_a_flag_decides() {
    each(&ALL, |variant| {
        let repository = Repository::new();
        repository.file(
            "marked/config.pbtxt",
            "backend: 'identity' input { name: 'INPUT0' data_type: TYPE_INT32 dims: 1 } \
             output { name: 'OUTPUT0' data_type: TYPE_INT32 dims: 1 } \
             parameters { key: 'openai' value { string_value: 'true' } }",
        );
        repository.file("marked/1/empty", "");
        let address = SocketAddr::from((ADDRESS, PORT));
        let flag = "--openai-address=127.0.0.77";
        let server = Server::start_with(variant, repository.path(), &[flag], "/v2/health/ready");
        server.wait_until("the port takes connections", || Peer::try_connect(address).is_ok());
        let models = Peer::connect(address).get("/v1/models");
        assert_eq!(models.status, 200, "{}", models.text());
        assert_eq!(models.json()["data"][0]["id"], "marked");
        let log = server.stop();
        assert!(log.contains("model 'marked' switches OpenAI's interface on"), "{log}");
        let flags = [flag, "--allow-openai=false"];
        let server = Server::start_with(variant, repository.path(), &flags, "/v2/health/ready");
        assert!(Peer::try_connect(address).is_err());
        server.stop();
        // Other ports need a key, and this one would not.
        let flags = [flag, "--http-restricted-api=inference:key=hush"];
        let server = Server::start_with(variant, repository.path(), &flags, "/v2/health/ready");
        assert!(Peer::try_connect(address).is_err());
        let log = server.stop();
        assert!(log.contains("model 'marked' would switch OpenAI's interface on, which stays off"), "{log}");
    });
}
