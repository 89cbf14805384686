//! One network in every format, in one server: the same numbers over every form of the protocols.

use super::bench::{Bench, flags, rows_of};
use super::files::add;
use super::reference::{Function, assert_close};
use super::table::{FRAMEWORKS, Framework, ModelKind};
use super::tensors::FORMS;
use nereid_test_support::repository::Repository;

#[test]
fn one_network_gives_the_same_numbers_in_every_format() {
    let has_it = |framework: &&Framework| framework.function == Function::Network && flags(framework).is_some();
    let frameworks: Vec<&Framework> = FRAMEWORKS.into_iter().filter(has_it).collect();
    // The reference; `flags` has printed why it is not there.
    if !frameworks.iter().any(|framework| framework.name == "python") {
        return;
    }
    let repository = Repository::new();
    for framework in &frameworks {
        for kind in [ModelKind::Network, ModelKind::AddSub] {
            let Some(()) = add(&repository, framework, kind, &framework.model(kind), "") else { return };
        }
    }
    let Some(mut bench) = Bench::start(&frameworks, &repository, &[]) else { return };
    for form in FORMS {
        for rows in [1, 2, 5, 8] {
            let mut found: Vec<(&str, Vec<f32>)> = Vec::new();
            for framework in &frameworks {
                let model = framework.model(ModelKind::Network);
                // Against the formula.
                bench.check_rows(framework, form, &model, rows, rows);
                let outputs = bench.client.infer(form, &model, &[rows_of(framework, rows, rows)], &[]);
                found.push((framework.name, outputs.expect("an answer")[0].as_floats()));
                super::batching::check_add_sub(&mut bench, framework, form, rows, 4, rows);
            }
            // Against each other: numpy's are the reference.
            let reference = found.iter().find(|(name, _)| *name == "python");
            let (_, reference) = reference.expect("the model in Python").clone();
            for (name, numbers) in found {
                assert_close(&numbers, &reference, &format!("{name} and numpy, {rows} rows, {form:?}"));
            }
        }
    }
    bench.stop();
}
