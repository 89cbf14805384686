//! Libraries of several frameworks in one process, opened in every order.

use super::bench::{Bench, EXPLICIT, flags};
use super::files::add;
use super::table::{FRAMEWORKS, Framework, ModelKind, Runtime};
use super::tensors::Form;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::is_second_run;

/// The frameworks with a library that run here.
fn with_libraries() -> Vec<&'static Framework> {
    let has_library = |framework: &&Framework| matches!(framework.runtime, Runtime::Library { .. });
    FRAMEWORKS.into_iter().filter(has_library).filter(|framework| flags(framework).is_some()).collect()
}

fn serve(frameworks: &[&Framework]) -> Option<(Repository, Bench)> {
    let repository = Repository::new();
    for framework in frameworks {
        add(&repository, framework, ModelKind::Network, &framework.model(ModelKind::Network), "")?;
    }
    let bench = Bench::start(frameworks, &repository, &[EXPLICIT])?;
    Some((repository, bench))
}

#[test]
fn two_frameworks_work_in_one_process_whichever_is_loaded_first() {
    if is_second_run() {
        return;
    }
    let frameworks = with_libraries();
    for first in &frameworks {
        for second in frameworks.iter().filter(|second| second.name != first.name) {
            println!("--- {} before {}", first.name, second.name);
            let Some((_repository, mut bench)) = serve(&[first, second]) else { return };
            let [of_first, of_second] = [first, second].map(|framework| framework.model(ModelKind::Network));
            bench.must_load(&of_first);
            bench.check_rows(first, Form::Binary, &of_first, 3, 1);
            bench.must_load(&of_second);
            bench.check_rows(second, Form::Binary, &of_second, 3, 2);
            bench.check_rows(first, Form::Grpc, &of_first, 2, 3);
            bench.unload(&of_first);
            bench.check_rows(second, Form::Json, &of_second, 1, 4);
            bench.must_load(&of_first);
            bench.check_rows(first, Form::Json, &of_first, 1, 5);
            bench.unload(&of_second);
            bench.check_rows(first, Form::Json, &of_first, 1, 6);
            bench.stop();
        }
    }
}

#[test]
fn all_frameworks_work_in_one_process_forwards_and_backwards() {
    if is_second_run() {
        return;
    }
    let mut frameworks = with_libraries();
    for _ in 0..2 {
        let Some((_repository, mut bench)) = serve(&frameworks) else { return };
        for framework in &frameworks {
            bench.must_load(&framework.model(ModelKind::Network));
        }
        for form in super::tensors::FORMS {
            for framework in &frameworks {
                bench.check_rows(framework, form, &framework.model(ModelKind::Network), 3, 1);
            }
        }
        bench.stop();
        frameworks.reverse();
    }
}
