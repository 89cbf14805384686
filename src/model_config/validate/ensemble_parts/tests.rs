//! Tests beside the table of messages: parts that fit, versions, loops elsewhere, and the number of an ensemble's
//! responses.

use super::super::super::{from_dynamic, parse};
use super::*;

fn read(text: &str) -> ModelConfig {
    from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap()
}

fn step(model: &str, version: i64, input: &str, output: &str) -> String {
    format!(
        "step {{ model_name: \"{model}\" model_version: {version} input_map {{ key: \"I\" value: \"{input}\" }} \
         output_map {{ key: \"O\" value: \"{output}\" }} }} "
    )
}

fn ensemble(batch: i32, dims: &str, steps: &str) -> ModelConfig {
    read(&format!(
        "name: \"m\" platform: \"ensemble\" max_batch_size: {batch} \
         input {{ name: \"X\" data_type: TYPE_FP32 dims: [ {dims} ] }} \
         output {{ name: \"Y\" data_type: TYPE_FP32 dims: [ {dims} ] }} ensemble_scheduling {{ {steps} }}"
    ))
}

fn model(batch: i32, dims: &str, more: &str) -> ModelConfig {
    read(&format!(
        "max_batch_size: {batch} input {{ name: \"I\" data_type: TYPE_FP32 dims: [ {dims} ] }} \
         output {{ name: \"O\" data_type: TYPE_FP32 dims: [ {dims} ] }} {more}"
    ))
}

#[test]
fn shapes_fit_with_wildcards_and_with_the_batch_dimension() {
    /// Batch and dims of the ensemble, of the model, and whether they fit.
    type Case<'a> = (i32, &'a str, i32, &'a str, bool);
    let cases: [Case<'_>; 10] = [
        (0, "3, 4", 0, "3, 4", true),
        (0, "3, -1", 0, "-1, 4", true),
        (0, "3, 4", 0, "3, 5", false),
        (0, "3, 4", 0, "3, 4, 1", false),
        (4, "16", 8, "16", true),
        // A model without a batch dimension sees that of the ensemble as one of its own.
        (4, "16", 0, "-1, 16", true),
        (4, "16", 0, "4, 16", true),
        (0, "-1, 16", 8, "16", true),
        (4, "16", 0, "17", false),
        (4, "16", 0, "16", true),
    ];
    for (own, ours, batch, theirs, expected) in cases {
        let part = model(batch, theirs, "");
        let config = ensemble(own, ours, &step("p", -1, "X", "Y"));
        let got = ensemble_parts(&config, |_| StepModel::Loaded(vec![(1, &part)]));
        assert_eq!(got.is_ok(), expected, "{own} [{ours}] of {batch} [{theirs}]: {got:?}");
    }
}

/// The steps of an ensemble see its tensors behind its own `reshape`; clients of a model see those of the model before.
#[test]
fn a_reshape_of_the_ensembles_own_is_what_its_steps_see() {
    let ensemble = |dims: &str, input: &str, output: &str| {
        read(&format!(
            "name: \"m\" platform: \"ensemble\" \
             input {{ name: \"X\" data_type: TYPE_FP32 dims: [ {dims} ] {input} }} \
             output {{ name: \"Y\" data_type: TYPE_FP32 dims: [ {dims} ] {output} }} \
             ensemble_scheduling {{ {} }}",
            step("p", -1, "X", "Y")
        ))
    };
    let (flat, part) = ("reshape { shape: [ 4 ] }", model(0, "4", ""));
    for (input, output, expected) in [(flat, flat, true), (flat, "", false), ("", flat, false)] {
        let config = ensemble("2, 2", input, output);
        let got = ensemble_parts(&config, |_| StepModel::Loaded(vec![(1, &part)]));
        assert_eq!(got.is_ok(), expected, "{input} {output}: {got:?}");
    }
    let part = read(
        "input { name: \"I\" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } \
         output { name: \"O\" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } }",
    );
    assert!(ensemble_parts(&ensemble("2, 2", "", ""), |_| StepModel::Loaded(vec![(1, &part)])).is_ok());
}

#[test]
fn the_version_that_a_step_names_counts() {
    let (old, new) = (model(0, "3", ""), model(0, "4", ""));
    let versions = || StepModel::Loaded(vec![(9, &new), (2, &old)]);
    for (version, dims, expected) in [(-1, "4", true), (-1, "3", false), (2, "3", true), (9, "3", false)] {
        let config = ensemble(0, dims, &step("p", version, "X", "Y"));
        assert_eq!(ensemble_parts(&config, |_| versions()).is_ok(), expected, "{version} {dims}");
    }
    // The absent version is version 0.
    let config = ensemble(0, "4", &step("p", 0, "X", "Y"));
    let error = ensemble_parts(&config, |_| versions()).unwrap_err();
    assert_eq!(error, Error::invalid("ensemble 'm' depends on 'p' whose required version 0 is not loaded."));
    let error = ensemble_parts(&config, |_| StepModel::Loaded(Vec::new())).unwrap_err();
    assert_eq!(error, Error::invalid("ensemble 'm' depends on 'p' which has no loaded version"));
    let error = ensemble_parts(&config, |_| StepModel::Invalid { reason: "no".into() }).unwrap_err();
    let text = "ensemble 'm' depends on 'p' which is not valid. Model 'p' failed with error: no";
    assert_eq!(error, Error::invalid(text));
}

#[test]
fn an_ensemble_answers_as_often_as_its_steps() {
    let (once, often) = (model(0, "3", ""), model(0, "3", "model_transaction_policy { decoupled: true }"));
    let flow = |steps: &str| {
        let config = ensemble(0, "3", steps);
        ensemble_parts(&config, |step| {
            StepModel::Loaded(vec![(1, if step.model_name == "d" { &often } else { &once })])
        })
    };
    // In the order of the data, whatever that of the steps.
    assert_eq!(flow(&(step("p", -1, "A", "Y") + &step("p", -1, "X", "A"))), Ok(Flow { decoupled: false }));
    assert_eq!(flow(&(step("p", -1, "A", "Y") + &step("d", -1, "X", "A"))), Ok(Flow { decoupled: true }));
    assert_eq!(flow(&(step("d", -1, "X", "A") + &step("d", -1, "A", "Y"))), Ok(Flow { decoupled: true }));
    let plain = read("name: \"m\" backend: \"b\"");
    assert_eq!(ensemble_parts(&plain, |_| StepModel::Unknown), Ok(Flow { decoupled: false }));
}

#[test]
fn decoupled_outputs_are_joined_with_nothing_else() {
    let io = "input { name: \"I\" data_type: TYPE_FP32 dims: 3 } input { name: \"J\" data_type: TYPE_FP32 dims: 3 }
              output { name: \"O\" data_type: TYPE_FP32 dims: 3 } output { name: \"P\" data_type: TYPE_FP32 dims: 3 }";
    let (once, often) = (read(io), read(&format!("{io} model_transaction_policy {{ decoupled: true }}")));
    let step = |model: &str, i: &str, j: &str, o: &str, p: &str| {
        format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"I\" value: \"{i}\" }} \
             input_map {{ key: \"J\" value: \"{j}\" }} output_map {{ key: \"O\" value: \"{o}\" }} \
             output_map {{ key: \"P\" value: \"{p}\" }} }} "
        )
    };
    let joined = |steps: &str| {
        let config = ensemble(0, "3", steps);
        let parts = |step: &Step| StepModel::Loaded(vec![(1, if step.model_name == "d" { &often } else { &once })]);
        ensemble_parts(&config, parts).map(|flow| flow.decoupled).map_err(|error| error.to_string())
    };
    let text = "in ensemble m, step of model 'p' receives inputs originated from different decoupled models";
    assert_eq!(joined(&(step("d", "X", "X", "A", "B") + &step("p", "A", "B", "Y", "Z"))), Ok(true));
    assert_eq!(joined(&(step("d", "X", "X", "A", "B") + &step("p", "A", "X", "Y", "Z"))), Err(text.into()));
    let two = step("d", "X", "X", "A", "B") + &step("d", "X", "X", "C", "D");
    assert_eq!(joined(&(two + &step("p", "A", "C", "Y", "Z"))), Err(text.into()));
}

/// A response of the ensemble joins its outputs.
#[test]
fn outputs_of_an_ensemble_come_through_one_decoupled_step() {
    let (once, often) = (model(0, "3", ""), model(0, "3", "model_transaction_policy { decoupled: true }"));
    let joined = |steps: &str| {
        let config = read(&format!(
            "name: \"m\" platform: \"ensemble\" input {{ name: \"X\" data_type: TYPE_FP32 dims: 3 }} \
             output {{ name: \"Y\" data_type: TYPE_FP32 dims: 3 }} \
             output {{ name: \"Z\" data_type: TYPE_FP32 dims: 3 }} ensemble_scheduling {{ {steps} }}"
        ));
        let parts = |step: &Step| StepModel::Loaded(vec![(1, if step.model_name == "d" { &often } else { &once })]);
        ensemble_parts(&config, parts).map(|flow| flow.decoupled).map_err(|error| error.to_string())
    };
    let text = "in ensemble m, step of model 'm' receives inputs originated from different decoupled models";
    let step = |model: &str, input: &str, output: &str| step(model, -1, input, output);
    assert_eq!(joined(&(step("d", "X", "Y") + &step("d", "X", "Z"))), Err(text.into()));
    assert_eq!(joined(&(step("d", "X", "Y") + &step("p", "X", "Z"))), Err(text.into()));
    assert_eq!(joined(&(step("d", "X", "Y") + &step("p", "Y", "Z"))), Ok(true));
    assert_eq!(joined(&(step("p", "X", "Y") + &step("p", "X", "Z"))), Ok(false));
}

#[test]
fn loops_are_found_from_any_of_their_members_and_end_for_others() {
    let parts = |model: &str| -> Vec<String> {
        match model {
            "a" => vec!["b".into(), "leaf".into()],
            "b" => vec!["c".into()],
            "c" => vec!["a".into(), "c2".into()],
            "self" => vec!["self".into()],
            "outside" => vec!["a".into()],
            _ => Vec::new(),
        }
    };
    for (ensemble, last) in [("a", "c"), ("b", "a"), ("c", "b"), ("self", "self")] {
        let expected = format!("circular dependency between ensembles: {ensemble} -> ... -> {last} -> {ensemble}");
        assert_eq!(
            ensemble_cycle(&ensemble.to_owned(), |name| name, |name| parts(name)),
            Err(Error::invalid(expected))
        );
    }
    for ensemble in ["outside", "leaf", "c2"] {
        assert_eq!(ensemble_cycle(&ensemble.to_owned(), |name| name, |name| parts(name)), Ok(()), "{ensemble}");
    }
}
