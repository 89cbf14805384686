//! Tree models: their formulas, which tests/python/frameworks/tree_files.py repeats, and the predictions of all kinds
//! of forests (contract/frameworks.md section 4).

use super::bench::Bench;
use super::files::{add_files, made};
use super::reference::{assert_close, quarters};
use super::table::{FIL, ModelKind};
use super::tensors::{FORMS, Tensor};
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::is_second_run;

pub const FEATURES: usize = 4;
pub const CLASSES: usize = 3;
const TREES: usize = 6;
/// Of each tree, without its leaves.
const NODES: usize = 3;

/// The value of the leaf that a row reaches.
fn leaf(tree: usize, row: &[f32]) -> f64 {
    let mut node = 0;
    while node < NODES {
        let threshold = (((3 * tree + 2 * node) % 5) as f64 - 2.) / 2. + 0.125;
        let is_left = f64::from(row[(tree + node) % FEATURES]) < threshold;
        node = 2 * node + if is_left { 1 } else { 2 };
    }
    (((5 * tree + 3 * (node - NODES)) % 7) as f64 - 3.) / 5.
}

/// The sum over all trees.
fn margin(row: &[f32]) -> f64 {
    (0..TREES).map(|tree| leaf(tree, row)).sum()
}

/// Of the classes, to each of which every third tree belongs.
pub fn probabilities(row: &[f32]) -> Vec<f32> {
    let power = |class| (class..TREES).step_by(CLASSES).map(|tree| leaf(tree, row)).sum::<f64>().exp();
    let powers: Vec<f64> = (0..CLASSES).map(power).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / total) as f32).collect()
}

fn probability(row: &[f32]) -> f32 {
    (1. / (1. + (-margin(row)).exp())) as f32
}

/// A model of the suite, and what it must predict for a row.
struct Forest {
    folder: &'static str,
    model_type: &'static str,
    is_classifier: bool,
    predict_proba: bool,
    columns: usize,
    predict: fn(&[f32]) -> Vec<f32>,
}

const FORESTS: [Forest; 6] = [
    Forest {
        folder: "network",
        model_type: "xgboost_json",
        is_classifier: true,
        predict_proba: false,
        columns: 1,
        predict: |row| {
            let of_classes = probabilities(row);
            let better = |best: usize, class: usize| if of_classes[class] > of_classes[best] { class } else { best };
            vec![(1..CLASSES).fold(0, better) as f32]
        },
    },
    Forest {
        folder: "binary",
        model_type: "xgboost_json",
        is_classifier: true,
        predict_proba: true,
        columns: 1,
        predict: |row| vec![probability(row)],
    },
    Forest {
        folder: "binary",
        model_type: "xgboost_json",
        is_classifier: true,
        predict_proba: true,
        columns: 2,
        predict: |row| vec![1. - probability(row), probability(row)],
    },
    Forest {
        folder: "binary",
        model_type: "xgboost_json",
        is_classifier: true,
        predict_proba: false,
        columns: 1,
        predict: |row| vec![if probability(row) > 0.5 { 1. } else { 0. }],
    },
    Forest {
        folder: "regression",
        model_type: "xgboost_json",
        is_classifier: false,
        predict_proba: false,
        columns: 1,
        predict: |row| vec![margin(row) as f32 + 0.5],
    },
    Forest {
        folder: "lightgbm",
        model_type: "lightgbm",
        is_classifier: false,
        predict_proba: false,
        columns: 1,
        predict: |row| vec![margin(row) as f32],
    },
];

impl Forest {
    fn config(&self) -> String {
        let parameter = |key: &str, value: String| {
            format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
        };
        let parameters = parameter("model_type", self.model_type.to_owned())
            + &parameter("is_classifier", self.is_classifier.to_string())
            + &parameter("predict_proba", self.predict_proba.to_string());
        format!(
            "backend: \"fil\"\nmax_batch_size: 64\n{parameters}instance_group {{ kind: KIND_CPU }}\n\
             input {{ name: \"input__0\" data_type: TYPE_FP32 dims: [ {FEATURES} ] }}\n\
             output {{ name: \"output__0\" data_type: TYPE_FP32 dims: [ {} ] }}\n",
            self.columns
        )
    }
}

#[test]
fn forests_predict_what_their_trees_say() {
    if is_second_run() {
        return;
    }
    let repository = Repository::new();
    let Some(files) = FIL.format.as_ref().and_then(made) else { return };
    for (at, forest) in FORESTS.iter().enumerate() {
        let model = format!("forest_{at}");
        let Some(()) = add_files(&repository, &FIL, ModelKind::Network, &model) else { return };
        for name in ["xgboost.json", "model.txt"] {
            if let Ok(contents) = std::fs::read(files.join(forest.folder).join(name)) {
                repository.file(&format!("{model}/1/{name}"), contents);
            }
        }
        repository.file(&format!("{model}/config.pbtxt"), forest.config());
    }
    let Some(mut bench) = Bench::start(&[&FIL], &repository, &[]) else { return };
    for (at, forest) in FORESTS.iter().enumerate() {
        for (form, rows) in FORMS.into_iter().flat_map(|form| [(form, 1), (form, 13), (form, 64)]) {
            let numbers = quarters(rows * FEATURES, rows + at);
            let input = Tensor::floats("input__0", &[rows as i64, FEATURES as i64], &numbers);
            let what = format!("{}, {rows} rows, {form:?}, forest {at}", forest.folder);
            let outputs = bench.client.infer(form, &format!("forest_{at}"), &[input], &[]);
            let outputs = outputs.unwrap_or_else(|refusal| panic!("{what}: {refusal:?}"));
            // A dimension of 1 in the configuration is left out.
            let shape: &[i64] = if forest.columns == 1 { &[rows as i64] } else { &[rows as i64, 2] };
            assert_eq!(outputs[0].shape, shape, "{what}");
            let expected: Vec<f32> = numbers.chunks(FEATURES).flat_map(|row| (forest.predict)(row)).collect();
            assert_close(&outputs[0].as_floats(), &expected, &what);
        }
    }
    bench.stop();
}
