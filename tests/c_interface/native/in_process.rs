//! Programs that embed a server: options, life cycle, models, metrics, the log.

use std::path::{Path, PathBuf};

use super::program::{Program, told};
use nereid_test_support::backend;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// No backend lies there: the models of these tests run on those that are built in.
const NO_BACKENDS: &str = "/nonexistent/backends";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is UTF-8")
}

/// `echo` on that backend, and with it a model that cannot be loaded.
fn repositories(backend: &str) -> (Repository, Repository) {
    let (good, broken) = (Repository::new(), Repository::new());
    for repository in [&good, &broken] {
        repository.identity_of(backend, "echo", 8, &[Pair::new("INT32", "-1")], "");
    }
    broken.identity_of("nosuch", "broken", 0, &[Pair::new("INT32", "-1")], "");
    (good, broken)
}

#[test]
fn servers_begin_and_end() {
    let Some(program) = Program::compiled("life.c") else { return };
    let (good, broken) = repositories("identity");
    let arguments = [text(good.path()), text(broken.path()), NO_BACKENDS];
    program.run(&arguments);
    program.run_checked(&arguments);
    program.run_watched(&arguments);
}

/// Its library stays open from one server to the next.
#[test]
fn servers_begin_and_end_with_a_backend_of_c() {
    let Some((program, directory)) = Program::compiled("life.c").zip(backend::directory()) else { return };
    let (good, broken) = repositories("copycat");
    program.run(&[text(good.path()), text(broken.path()), text(&directory)]);
    program.run_checked(&[text(good.path()), text(broken.path()), text(&directory)]);
}

#[test]
fn options_are_checked_when_they_are_set() {
    let Some(program) = Program::compiled("options.c") else { return };
    let directory = Repository::new();
    program.run(&[text(directory.path())]);
    let directory = Repository::new();
    program.run_checked(&[text(directory.path())]);
}

#[test]
fn parameters_have_one_of_five_types() {
    let Some(program) = Program::compiled("parameters.c") else { return };
    program.run::<&str>(&[]);
}

/// One model of each kind that `models.c` asks after.
fn kinds() -> Repository {
    let repository = Repository::new();
    repository.identity_of("identity", "echo", 8, &[Pair::new("INT32", "-1")], "");
    repository.model(
        "stream",
        r#"backend: "repeat" model_transaction_policy { decoupled: true }
           input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
                   { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
                   { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
           output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
                    { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]"#,
    );
    repository.model(
        "pair",
        r#"platform: "ensemble" max_batch_size: 8
           input { name: "I" data_type: TYPE_INT32 dims: -1 } output { name: "O" data_type: TYPE_INT32 dims: -1 }
           ensemble_scheduling { step { model_name: "echo" model_version: -1
             input_map { key: "INPUT0" value: "I" } output_map { key: "OUTPUT0" value: "O" } } }"#,
    );
    repository
}

/// What `models.c` is given: the models that it asks after, a second repository, and one that it fills itself.
fn for_models() -> [Repository; 3] {
    let (repository, other, polled) = (kinds(), Repository::new(), Repository::new());
    other.identity_of("identity", "other", 0, &[Pair::new("INT8", "1")], "");
    // The directory bears the name that the model has in its own configuration, which the mapping overrides.
    let config = std::fs::read_to_string(other.path().join("other/config.pbtxt")).expect("the configuration");
    other.file("other/config.pbtxt", config.replace("name: \"other\"", ""));
    [repository, other, polled]
}

#[test]
fn models_that_come_and_go_leave_nothing_behind() {
    let Some(program) = Program::compiled("models.c") else { return };
    let repositories = for_models();
    program.run_checked(&repositories.each_ref().map(|repository| text(repository.path())));
    let repositories = for_models();
    program.run_watched(&repositories.each_ref().map(|repository| text(repository.path())));
}

#[test]
fn models_come_and_go_and_are_told_as_over_http() {
    let Some(program) = Program::compiled("models.c") else { return };
    let [repository, other, polled] = for_models();
    let stdout = program.run(&[text(repository.path()), text(other.path()), text(polled.path())]);

    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let documents: Vec<_> = stdout.lines().filter_map(|line| line.strip_prefix("= ")?.split_once(' ')).collect();
    assert_eq!(documents.len(), 7, "{stdout}");
    for (path, document) in documents {
        let method_is_post = path.ends_with("/index");
        let answer = if method_is_post { peer.post(path, &[], b"") } else { peer.get(path) };
        assert_eq!((answer.status, answer.text().as_str()), (200, document), "{path}");
    }
    server.stop();
}

/// `empty`, `one` with `model_0`, `two` with `model_0` and `model_1`; each model has a version of its own.
fn for_registering() -> Repository {
    let all = Repository::new();
    std::fs::create_dir(all.path().join("empty")).expect("an empty repository");
    for (place, version) in [("one/model_0", 1), ("two/model_0", 2), ("two/model_1", 3)] {
        // Without a name: it is that of the directory, or the one that a registration gives.
        let config = "backend: \"identity\" input { name: \"INPUT0\" data_type: TYPE_INT8 dims: 1 }\n\
                      output { name: \"OUTPUT0\" data_type: TYPE_INT8 dims: 1 }";
        all.file(&format!("{place}/config.pbtxt"), config);
        all.file(&format!("{place}/{version}/none"), "");
    }
    all
}

/// Cases of the tests of Triton's core.
#[test]
fn repositories_come_and_go() {
    let Some(program) = Program::compiled("registering.c") else { return };
    let all = for_registering();
    program.run(&[text(all.path())]);
    program.run_checked(&[text(all.path())]);
}

fn with_guest() -> Option<(Repository, PathBuf)> {
    let directory = backend::compiled("guest.c")?;
    let repository = Repository::new();
    repository.identity_of("guest", "guest", 0, &[Pair::new("INT8", "1")], "");
    Some((repository, directory))
}

#[test]
fn ports_of_a_server_open_and_close_while_it_runs() {
    let Some(program) = Program::compiled("frontends.c") else { return };
    let (good, _) = repositories("identity");
    let arguments = [text(good.path()), NO_BACKENDS, usual().io_engine];
    program.run(&arguments);
    program.run_checked(&arguments);
}

#[test]
fn a_server_that_is_held_up_says_so_in_time() {
    let Some((program, (repository, directory))) = Program::compiled("stop.c").zip(with_guest()) else { return };
    let file = repository.path().with_extension("go");
    let arguments = [text(repository.path()), text(&directory), text(&file)];
    program.run(&arguments);
    std::fs::remove_file(&file).expect("the file that the backend waited for");
    program.run_checked(&arguments);
    std::fs::remove_file(&file).expect("the file that the backend waited for");
}

#[test]
fn a_backend_cannot_end_the_program_that_it_runs_in() {
    let Some((repository, directory)) = with_guest() else { return };
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&flag]);
    let log = server.stop();
    let refused = ["TRITONSERVER_ServerStop", "TRITONSERVER_ServerDelete", "TRITONSERVER_ServerSetExitTimeout"];
    for name in refused.into_iter().chain(["NEREID_FrontendNew"]) {
        assert!(told(&log).contains(&('-', name.to_owned())), "{name}: {log}");
    }
}
