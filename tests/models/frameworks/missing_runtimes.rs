//! A host without the library of any framework.

use super::bench::EXPLICIT;
use super::files::add;
use super::table::{FRAMEWORKS, Framework, IDENTITY, ModelKind, Runtime};
use super::tensors::{Client, Form};
use nereid_test_support::is_large_runtime_wanted;
use nereid_test_support::paths;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, binary};
use nereid_test_support::variant::{is_second_run, usual};

/// The name of the runtime whose absence the framework's model reports.
fn runtime_of(framework: &Framework) -> Option<&'static str> {
    match framework.runtime {
        Runtime::Native => None,
        Runtime::Interpreter => Some("python"),
        Runtime::Library { name, .. } => Some(name),
    }
}

#[test]
fn a_model_whose_runtime_is_missing_names_the_command_that_installs_it() {
    if is_second_run() {
        return;
    }
    let repository = Repository::new();
    let home = paths::temporary().join(format!("home-without-runtimes-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("make a home");
    // Most files are made without the package of their framework.
    let is_made_here = |framework: &&Framework| {
        let needs_package = framework.format.is_some_and(|format| format.requirements.is_some());
        match framework.runtime {
            Runtime::Library { name, is_large: true, .. } if needs_package => is_large_runtime_wanted(name),
            _ => true,
        }
    };
    let frameworks: Vec<&Framework> = FRAMEWORKS.into_iter().filter(is_made_here).collect();
    for framework in &frameworks {
        let model = framework.model(ModelKind::Network);
        let Some(()) = add(&repository, framework, ModelKind::Network, &model, "") else { return };
    }
    let home_is = |name: &str| format!("{name}={}", home.display());
    let program = binary().into_string().expect("the binary's path is UTF-8");
    let words =
        ["env".to_owned(), "-i".to_owned(), home_is("HOME"), home_is("XDG_DATA_HOME"), home_is("PATH"), program];
    let server = Server::start_under(&words, usual(), repository.path(), &[EXPLICIT], "/v2/health/live");
    let mut client = Client::connect(server.http, server.grpc);
    let load = |client: &mut Client, framework: &Framework| {
        let path = format!("/v2/repository/models/{}/load", framework.model(ModelKind::Network));
        client.http.post(&path, &[], b"{}")
    };
    assert_eq!(load(&mut client, &IDENTITY).status, 200);
    for (framework, runtime) in frameworks.into_iter().filter_map(|it| Some((it, runtime_of(it)?))) {
        let answer = load(&mut client, framework);
        let error = answer.error();
        assert_eq!(answer.status, 400, "{}: {error}", framework.name);
        let command = format!("nereid runtime install {runtime}");
        assert!(error.contains(&command), "{}: no {command:?} in {error}", framework.name);
        let identity = IDENTITY.model(ModelKind::Network);
        super::bench::check_rows(&mut client, &IDENTITY, Form::Json, &identity, 2, 1);
    }
    server.stop();
    std::fs::remove_dir_all(home).expect("remove the home");
}
