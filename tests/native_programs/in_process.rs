//! Programs that run a server of their own: options, life, models, metrics, the log.

use std::path::Path;

use super::program::Program;
use crate::support::repository::{Pair, Repository};

/// No backend lies there: the models of these tests run on those that are built in.
const NO_BACKENDS: &str = "/nonexistent/backends";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is UTF-8")
}

/// `echo`, and with it a model that cannot be loaded.
fn repositories() -> (Repository, Repository) {
    let (good, broken) = (Repository::new(), Repository::new());
    for repository in [&good, &broken] {
        repository.identity_of("identity", "echo", 8, &[Pair::new("INT32", "-1")], "");
    }
    broken.identity_of("nosuch", "broken", 0, &[Pair::new("INT32", "-1")], "");
    (good, broken)
}

#[test]
fn servers_begin_and_end() {
    let Some(program) = Program::compiled("life.c") else { return };
    let (good, broken) = repositories();
    program.run(&[text(good.path()), text(broken.path()), NO_BACKENDS]);
}
