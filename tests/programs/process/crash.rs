//! Signals that end the process at once: a stack on stderr, and the signal's own end (contract/cli.md section 6).

use std::os::unix::process::ExitStatusExt;

use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::{self, each};

#[test]
fn a_fatal_signal_leaves_a_stack_and_ends_the_process() {
    for (name, number) in [("SEGV", 11), ("ABRT", 6)] {
        each(&variant::ALL, |variant| {
            let repository = Repository::new();
            repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
            let server = Server::start(variant, repository.path(), &[]);
            signal(server.pid(), name);
            let (status, log) = server.wait();
            assert_eq!(status.signal(), Some(number), "{log}");
            let told = format!("Signal ({number}) received.\n");
            let (_, stack) = log.split_once(&told).unwrap_or_else(|| panic!("no {told:?} in:\n{log}"));
            let frames = stack.lines().filter(|line| line.contains('[') && line.ends_with(']')).count();
            assert!(frames >= 3, "no stack in:\n{log}");
            assert_eq!(log.matches("received.").count(), 1, "told once:\n{log}");
        });
    }
}
