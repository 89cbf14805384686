//! The bound that tests have in time (nereid_test_support::bound).

use std::process::Command;
use std::time::Duration;

use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// Set in the process whose test hangs.
const HANGS: &str = "NEREID_TEST_HANGS";

#[test]
fn a_test_that_hangs_ends_its_binary_and_is_named() {
    let name = "process::bound::a_test_that_hangs_ends_its_binary_and_is_named";
    if std::env::var_os(HANGS).is_some() {
        let repository = Repository::new();
        let _server = Server::start(usual(), repository.path(), &["--model-control-mode=explicit"]);
        // Longer than the test that waits for the end.
        std::thread::sleep(Duration::from_secs(3600));
    }
    let mut hanging = Command::new(std::env::current_exe().expect("the path of this test binary"));
    hanging.args(["--exact", name, "--color=never"]).envs([(HANGS, "1"), ("NEREID_TEST_BOUND_SECS", "2")]);
    let output = hanging.output().expect("run this test in another process");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains(&format!("the tests {name} have run for more than 2 s: they hang")), "{said}");
}
