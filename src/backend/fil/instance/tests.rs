//! Models of the real packages, against what these predict themselves.

use std::sync::Arc;

use super::*;
use crate::fixtures::{self, Asked, Model};
use nereid_backend::fixtures::{Answers, Draft, as_floats, floats};
use nereid_request::{Code, DataType, Request};

/// Treelite and the packages round differently at the end.
const TOLERANCE: f32 = 1e-6;

/// Shape and values of the first output.
type Answer = Result<(Vec<i64>, Vec<f32>), Status>;

/// Runs `requests` as one payload and returns the answers in the order of their keys.
fn execute(model: &Model, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<Answer> {
    let answers = model.answers.clone();
    execute_on(&mut model.instance(), &answers, requests)
}

fn execute_on(
    instance: &mut FilInstance,
    answers: &Arc<Answers>,
    requests: impl IntoIterator<Item = Box<Request>>,
) -> Vec<Answer> {
    let mut payload = Payload::default();
    requests.into_iter().for_each(|request| payload.push(request));
    instance.execute(&mut payload).unwrap();
    let mut answers = answers.take();
    answers.sort_by_key(|(key, _)| *key);
    let value = |answer: Result<nereid_request::Response, Status>| {
        answer.map(|response| {
            let output = response.outputs.first().expect("an output was asked for");
            (output.shape.to_vec(), as_floats(&output.data))
        })
    };
    answers.into_iter().map(|(_, answer)| value(answer)).collect()
}

fn request(model: &Model, key: u64, rows: &[f32], output: usize) -> Box<Request> {
    let count = rows.len() / 4;
    Draft::new(&model.answers, key).batch(count as u64).floats(0, &[count as i64, 4], rows).outputs([output])
}

fn predict(model: &Model, rows: &[f32]) -> (Vec<i64>, Vec<f32>) {
    execute(model, [request(model, 0, rows, 0)]).remove(0).unwrap()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(near, "{what}: value {at} is {found} instead of {expected}");
    }
}

#[test]
fn raw_results_are_those_of_the_packages() {
    let Some(expected) = fixtures::expected() else { return };
    for (file, model_type, rows) in [
        ("xgb_two.json", "xgboost_json", "rows"),
        ("xgb_two.ubj", "xgboost_ubj", "rows"),
        ("xgb_two.model", "xgboost", "rows"),
        ("xgb_two.json", "xgboost", "rows"),
        ("xgb_number.json", "xgboost_json", "rows"),
        ("xgb_counts.ubj", "xgboost_ubj", "rows"),
        ("xgb_dart.json", "xgboost_json", "rows"),
        ("xgb_dart.ubj", "xgboost", "rows"),
        ("xgb_categories.json", "xgboost_json", "category_rows"),
        ("xgb_categories.ubj", "xgboost_ubj", "category_rows"),
        ("lgb_two.txt", "lightgbm", "rows"),
        ("lgb_number.txt", "lightgbm", "rows"),
        ("lgb_forest.txt", "lightgbm", "rows"),
        ("lgb_categories.txt", "lightgbm", "lgb_category_rows"),
        ("skl_number.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_boosted_number.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_isolation.tl", "treelite_checkpoint", "whole_rows"),
    ] {
        let Some(model) = Asked::new(file, model_type, "false").open() else { return };
        let (shape, found) = predict(&model, &expected.values(rows, "input"));
        assert_eq!(shape, [64], "{file}");
        let name = file.split('.').next().unwrap();
        assert_close(&found, &expected.values(name, "predict"), TOLERANCE, file);
    }
}

#[test]
fn the_binary_form_of_older_xgboost_is_read() {
    let (Some(expected), Some(model)) =
        (fixtures::expected(), Asked::new("xgb_legacy.model", "xgboost", "false").open())
    else {
        return;
    };
    let (_, found) = predict(&model, &expected.values("rows", "input"));
    assert_close(&found, &expected.values("xgb_two", "predict"), TOLERANCE, "xgb_legacy");
}

#[test]
fn checkpoints_of_treelite_3_9_predict_as_their_models() {
    let Some(expected) = fixtures::expected() else { return };
    let rows = expected.values("rows", "input");
    for (name, classes) in [("lgb_two", 1), ("lgb_three", 3)] {
        let asked = |file: &str, model_type| {
            let asked = Asked::new(file, model_type, "true").parameter("predict_proba", "true").output(&[classes]);
            asked.in_folder(fixtures::committed()).open()
        };
        let old = asked(&format!("{name}_3_9.tl"), "treelite_checkpoint");
        let (Some(old), Some(text)) = (old, asked(&format!("{name}.txt"), "lightgbm")) else { return };
        assert_eq!(predict(&old, &rows), predict(&text, &rows), "{name}");
    }
}

#[test]
fn probabilities_of_two_classes_have_one_column_or_two() {
    let Some(expected) = fixtures::expected() else { return };
    let rows = expected.values("rows", "input");
    for (file, model_type) in [("xgb_two.json", "xgboost_json"), ("lgb_two.txt", "lightgbm")] {
        let asked = Asked::new(file, model_type, "true").parameter("predict_proba", "true");
        let (Some(one), Some(two)) = (asked.clone().open(), asked.output(&[2]).open()) else { return };
        let (shape, of_one) = predict(&one, &rows);
        assert_eq!(shape, [64]);
        assert_close(&of_one, &expected.values(file.split('.').next().unwrap(), "predict"), TOLERANCE, file);
        let (shape, of_two) = predict(&two, &rows);
        assert_eq!(shape, [64, 2]);
        let pairs: Vec<f32> = of_one.iter().flat_map(|score| [1.0 - score, *score]).collect();
        assert_eq!(of_two, pairs);
    }
}

#[test]
fn probabilities_of_several_classes_are_the_packages_or_forced() {
    let Some(expected) = fixtures::expected() else { return };
    for (file, model_type, rows, key) in [
        ("xgb_three.json", "xgboost_json", "rows", "predict"),
        ("lgb_three.txt", "lightgbm", "rows", "predict"),
        ("lgb_three.tl", "treelite_checkpoint", "rows", "predict"),
        ("skl_three.tl", "treelite_checkpoint", "whole_rows", "proba"),
        ("skl_boosted_three.tl", "treelite_checkpoint", "whole_rows", "proba"),
        ("skl_histogram.tl", "treelite_checkpoint", "whole_rows", "proba"),
    ] {
        let asked = Asked::new(file, model_type, "true").parameter("predict_proba", "true").output(&[3]);
        let Some(model) = asked.open() else { return };
        let (shape, found) = predict(&model, &expected.values(rows, "input"));
        assert_eq!(shape, [64, 3], "{file}");
        assert_close(&found, &expected.values(file.split('.').next().unwrap(), key), TOLERANCE, file);
    }
    // The model's own function is another one for these two.
    for (file, model_type) in [("xgb_softmax.json", "xgboost_json"), ("lgb_ova.txt", "lightgbm")] {
        let asked = Asked::new(file, model_type, "true").parameter("predict_proba", "true").output(&[3]);
        let Some(model) = asked.open() else { return };
        let raw = expected.values(file.split('.').next().unwrap(), "raw");
        let softmax = raw.chunks_exact(3).flat_map(|row| {
            let exponentials = [row[0].exp(), row[1].exp(), row[2].exp()];
            exponentials.map(|value| value / exponentials.iter().sum::<f32>())
        });
        let (_, found) = predict(&model, &expected.values("rows", "input"));
        assert_close(&found, &softmax.collect::<Vec<f32>>(), 1e-5, file);
    }
    let asked = Asked::new("skl_two.tl", "treelite_checkpoint", "true").parameter("predict_proba", "true");
    let Some(model) = asked.output(&[2]).open() else { return };
    let (_, found) = predict(&model, &expected.values("whole_rows", "input"));
    assert_close(&found, &expected.values("skl_two", "proba"), TOLERANCE, "skl_two");
}

#[test]
fn classes_are_those_of_the_packages() {
    let Some(expected) = fixtures::expected() else { return };
    for (file, model_type, rows) in [
        ("xgb_softmax.ubj", "xgboost_ubj", "rows"),
        ("skl_two.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_three.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_boosted_two.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_boosted_three.tl", "treelite_checkpoint", "whole_rows"),
        ("skl_histogram.tl", "treelite_checkpoint", "whole_rows"),
    ] {
        let Some(model) = Asked::new(file, model_type, "true").open() else { return };
        let (shape, found) = predict(&model, &expected.values(rows, "input"));
        assert_eq!(shape, [64], "{file}");
        assert_eq!(found, expected.values(file.split('.').next().unwrap(), "predict"), "{file}");
    }
}

#[test]
fn a_class_needs_more_than_the_threshold_and_more_than_nothing() {
    // The first feature below 0 goes left: 0.5, else 0.75.
    let rows = [-1.0, 0., 0., 0., 1.0, 0., 0., 0.];
    for (threshold, classes) in [(None, [0., 1.]), (Some("0.49"), [1., 1.]), (Some("0.75"), [0., 0.])] {
        let mut asked = Asked::new("half.tl", "treelite_checkpoint", "true");
        if let Some(threshold) = threshold {
            asked = asked.parameter("threshold", threshold);
        }
        let Some(model) = asked.open() else { return };
        assert_eq!(predict(&model, &rows).1, classes, "{threshold:?}");
    }
    // Left all three scores are negative, of which the second is the largest; right the first two are equal.
    let Some(model) = Asked::new("negative.tl", "treelite_checkpoint", "true").open() else { return };
    assert_eq!(predict(&model, &rows).1, [0., 0.]);
}

#[test]
fn requests_of_a_batch_get_their_own_rows_and_count_as_requests() {
    let Some(expected) = fixtures::expected() else { return };
    let Some(model) = Asked::new("xgb_number.json", "xgboost_json", "false").open() else { return };
    let rows = expected.values("rows", "input");
    let (first, second) = rows.split_at(4 * 3);
    let requests = [request(&model, 0, first, 0), request(&model, 1, second, 0)];
    let answers = execute(&model, requests);
    let [(one, of_one), (two, of_two)] = [0, 1].map(|at| answers[at].clone().unwrap());
    assert_eq!((one, two), (vec![3], vec![61]));
    assert_close(&[of_one, of_two].concat(), &expected.values("xgb_number", "predict"), TOLERANCE, "batch");
    let statistics = model.context.statistics.snapshot();
    // 64 rows: the batch counts two.
    assert_eq!((statistics.execution_count, statistics.inference_count), (1, 64));
    let sizes: Vec<u64> = statistics.batch_stats.iter().map(|batch| batch.batch_size).collect();
    assert_eq!(sizes, [2]);
}

#[test]
fn wrong_feature_counts_fail_their_request_alone() {
    let Some(model) = Asked::new("xgb_number.json", "xgboost_json", "false").input(&[-1]).open() else { return };
    let short = Draft::new(&model.answers, 1).batch(1).floats(0, &[1, 3], &[0.; 3]).outputs([0]);
    let long = Draft::new(&model.answers, 2).batch(1).floats(0, &[1, 5], &[0.; 5]).outputs([0]);
    let absent = Draft::new(&model.answers, 3).batch(1).outputs([0]);
    let answers = execute(&model, [request(&model, 0, &[0.; 4], 0), short, long, absent]);
    assert_eq!(answers[0].as_ref().unwrap().0, [1]);
    for (at, shape) in [(1, "[1,3]"), (2, "[1,5]")] {
        let error = answers[at].as_ref().unwrap_err();
        let text = format!("input 'input__0' has the shape {shape}, but the forest needs [rows, 4]");
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, &*text));
    }
    assert_eq!(answers[3].as_ref().unwrap_err().message, "failed to get input 'input__0'");
    let statistics = model.context.statistics.snapshot();
    assert_eq!((statistics.execution_count, statistics.fail.count), (1, 3));
}

#[test]
fn a_failed_prediction_answers_every_request_and_counts_none() {
    let Some(mut model) = Asked::new("xgb_number.json", "xgboost_json", "false").open() else { return };
    // More threads than OpenMP has are refused by each prediction.
    model.break_predictions();
    let answers = execute(&model, [request(&model, 0, &[0.; 4], 0), request(&model, 1, &[0.; 8], 0)]);
    for answer in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.code, Code::Unknown);
        assert!(error.message.contains("nthread cannot exceed"), "{error}");
    }
    let statistics = model.context.statistics.snapshot();
    assert_eq!((statistics.execution_count, statistics.inference_count, statistics.fail.count), (0, 0, 0));
}

#[test]
fn another_input_type_is_refused_by_each_execution() {
    let asked = Asked::new("xgb_number.json", "xgboost_json", "false");
    let Some(model) = asked.input_type(nereid_wire::inference::DataType::TypeFp64).open() else { return };
    let data = nereid_memory::Slice::copy_of(&[0; 32]);
    let request = Draft::new(&model.answers, 0).batch(1).input(0, DataType::Fp64, &[1, 4], &[data]).outputs([0]);
    let error = execute(&model, [request]).remove(0).unwrap_err();
    let text = "incorrect type FP64 for input with required type FP32";
    assert_eq!((error.code, &*error.message), (Code::Internal, text));
}

#[test]
fn bytes_at_any_address_and_models_without_batches_are_served() {
    let Some(expected) = fixtures::expected() else { return };
    let asked = Asked::new("lgb_number.txt", "lightgbm", "false").batch(0).input(&[-1, 4]).output(&[-1, 1]);
    let Some(model) = asked.open() else { return };
    let rows = expected.values("rows", "input");
    let whole = floats(&[&[0.0], &rows[..]].concat());
    let mut padded = vec![0u8; 1];
    padded.extend_from_slice(&whole[4..]);
    let odd = nereid_memory::Slice::copy_of(&padded).window(1..padded.len());
    let pieces = [odd.window(0..6), odd.window(6..odd.len())];
    for data in [&[odd.clone()][..], &pieces] {
        let request = Draft::new(&model.answers, 0).batch(1).input(0, DataType::Fp32, &[64, 4], data).outputs([0]);
        let (shape, found) = execute(&model, [request]).remove(0).unwrap();
        assert_eq!(shape, [64]);
        assert_close(&found, &expected.values("lgb_number", "predict"), TOLERANCE, "odd address");
    }
    let empty = Draft::new(&model.answers, 0).batch(1).floats(0, &[0, 4], &[]).outputs([0]);
    assert_eq!(execute(&model, [empty]).remove(0), Ok((vec![0], vec![])));
}

#[test]
fn instances_share_one_forest_and_predict_at_the_same_time() {
    let Some(expected) = fixtures::expected() else { return };
    let Some(model) = Asked::new("xgb_three.json", "xgboost_json", "false").output(&[3]).open() else { return };
    let rows = expected.values("rows", "input");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut instance = model.instance();
                let answers = Arc::<Answers>::default();
                for key in 0..50 {
                    let draft = Draft::new(&answers, key).batch(64).floats(0, &[64, 4], &rows);
                    let answered = execute_on(&mut instance, &answers, [draft.outputs([0])]);
                    let (_, found) = answered.into_iter().next().unwrap().unwrap();
                    assert_close(&found, &expected.values("xgb_three", "predict"), TOLERANCE, "threads");
                }
            });
        }
    });
}

#[test]
fn shapley_values_are_those_of_the_packages() {
    let Some(expected) = fixtures::expected() else { return };
    for (file, model_type, rows, classes, tolerance) in [
        ("xgb_two.json", "xgboost_json", "rows", 1, 1e-5),
        ("xgb_number.ubj", "xgboost_ubj", "rows", 1, 1e-5),
        ("xgb_three.json", "xgboost_json", "rows", 3, 1e-5),
        ("xgb_categories.json", "xgboost_json", "category_rows", 1, 1e-5),
        ("lgb_two.txt", "lightgbm", "rows", 1, 1e-5),
        ("lgb_three.txt", "lightgbm", "rows", 3, 1e-5),
        ("lgb_number.txt", "lightgbm", "rows", 1, 1e-5),
        ("lgb_categories.txt", "lightgbm", "lgb_category_rows", 1, 1e-5),
    ] {
        let dims: &[i64] = if classes == 1 { &[5] } else { &[classes, 5] };
        let asked = Asked::new(file, model_type, "false").output(&[classes]).shapley_values(dims);
        let Some(model) = asked.open() else { return };
        let rows = expected.values(rows, "input");
        let (shape, found) = execute(&model, [request(&model, 0, &rows, 1)]).remove(0).unwrap();
        assert_eq!(shape[1..], *dims, "{file}");
        assert_close(&found, &expected.values(file.split('.').next().unwrap(), "contrib"), tolerance, file);
    }
}

#[test]
fn shapley_values_of_a_row_add_up_to_its_sums() {
    let Some(expected) = fixtures::expected() else { return };
    let rows = expected.values("whole_rows", "input");
    // Leaves of the forest hold the probabilities themselves.
    let asked = Asked::new("skl_three.tl", "treelite_checkpoint", "false").output(&[3]).shapley_values(&[3, 5]);
    let Some(model) = asked.open() else { return };
    let (_, values) = execute(&model, [request(&model, 0, &rows, 1)]).remove(0).unwrap();
    let sums: Vec<f32> = values.chunks_exact(5).map(|values| values.iter().sum()).collect();
    assert_close(&sums, &expected.values("skl_three", "proba"), 1e-5, "skl_three");
    let asked = Asked::new("skl_number.tl", "treelite_checkpoint", "false").shapley_values(&[5]);
    let Some(model) = asked.open() else { return };
    let (_, values) = execute(&model, [request(&model, 0, &rows, 1)]).remove(0).unwrap();
    let sums: Vec<f32> = values.chunks_exact(5).map(|values| values.iter().sum()).collect();
    assert_close(&sums, &expected.values("skl_number", "predict"), 1e-5, "skl_number");
}

#[test]
fn both_outputs_are_answered_in_the_order_of_the_request() {
    let asked = Asked::new("xgb_two.json", "xgboost_json", "true").shapley_values(&[5]);
    let Some(model) = asked.open() else { return };
    let request = Draft::new(&model.answers, 0).batch(1).floats(0, &[1, 4], &[0.; 4]).outputs([1, 0]);
    let mut payload = Payload::default();
    payload.push(request);
    model.instance().execute(&mut payload).unwrap();
    let (_, response) = model.answers.take().remove(0);
    let response = response.unwrap();
    let names: Vec<String> = response.outputs.iter().map(|output| output.name.to_str_lossy().into_owned()).collect();
    assert_eq!(names, ["treeshap_output", "output__0"]);
    assert_eq!(response.outputs[0].shape[..], [1, 5]);
}
