//! Files that older packages wrote (tests/fixtures/fil/older.py), against what these packages predicted.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::fixtures::{self, Asked, Model};
use nereid_backend::fixtures::{Draft, as_floats};
use nereid_request::Code;

/// Values by the name of a model; `rows` and `category_rows` are the inputs.
type Expected = BTreeMap<String, Vec<Option<f32>>>;

fn expected() -> Expected {
    let text = std::fs::read(fixtures::committed().join("older.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn predict(model: &Model, rows: &[f32]) -> Vec<f32> {
    let count = rows.len() / 4;
    let draft = Draft::new(&model.answers, 0).batch(count as u64).floats(0, &[count as i64, 4], rows);
    let mut payload = Payload::default();
    payload.push(draft.outputs([0]));
    model.instance().execute(&mut payload).unwrap();
    let (_, response) = model.answers.take().remove(0);
    as_floats(&response.unwrap().outputs[0].data)
}

/// The committed files whose names begin so, by their names.
fn files(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixtures::committed()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

fn asked(file: &str, model_type: &str) -> Asked {
    let columns = if file.contains("_three.") { 3 } else { 1 };
    Asked::new(file, model_type, "false").output(&[columns]).in_folder(fixtures::committed())
}

#[test]
fn files_of_older_packages_predict_as_these_did() {
    let expected = expected();
    let inputs = |name: &str| expected[name].iter().map(|value| value.unwrap_or(f32::NAN)).collect::<Vec<f32>>();
    let (rows, category_rows) = (inputs("rows"), inputs("category_rows"));
    let mut seen = BTreeMap::<&str, usize>::new();
    let files = [files("xgb_"), files("lgb_2"), files("lgb_3")].concat();
    for file in &files {
        let (name, extension) = file.rsplit_once('.').unwrap();
        if name.ends_with("_zero") {
            continue;
        }
        let model_types: &[&str] = match extension {
            "model" => &["xgboost"],
            "json" => &["xgboost_json", "xgboost"],
            "ubj" => &["xgboost_ubj", "xgboost"],
            _ => &["lightgbm"],
        };
        let has_categories = ["_lists", "_onehot", "_categories"].iter().any(|end| name.ends_with(end));
        for model_type in model_types {
            let Some(model) = asked(file, model_type).open() else { return };
            let found = predict(&model, if has_categories { &category_rows } else { &rows });
            assert_eq!(found.len(), expected[name].len(), "{file}");
            for (at, (found, expected)) in found.iter().zip(&expected[name]).enumerate() {
                let expected = expected.unwrap();
                let is_near = (found - expected).abs() <= 2e-6 * expected.abs().max(1.0);
                assert!(is_near, "{file}: value {at} is {found} instead of {expected}");
            }
        }
        *seen.entry(name.rsplit_once('_').unwrap().0).or_default() += 1;
    }
    // Versions, each with its files.
    let versions = [("lgb_2.3.1", 4), ("lgb_3.3.5", 4), ("xgb_1.0.2", 8), ("xgb_1.7.6", 16), ("xgb_2.0.3", 16)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), versions);
}

#[test]
fn a_model_for_which_zeros_are_missing_is_refused() {
    for version in ["2.3.1", "3.3.5"] {
        let Some(opened) = asked(&format!("lgb_{version}_zero.txt"), "lightgbm").try_open() else { return };
        let error = opened.map(drop).unwrap_err();
        let text = "the LightGBM model was trained with zero_as_missing, which treelite does not support: it would \
                    predict other values than LightGBM";
        assert_eq!((error.code, &*error.message), (Code::Unsupported, text));
    }
}

/// Files that end early, at twenty places each, are refused, and none of them ends the process.
#[test]
fn older_files_that_are_cut_off_are_refused() {
    let scratch = nereid_backend::scratch::Scratch::new("fil-older-cut");
    let forms = [
        ("xgb_1.0.2_three.model", "xgboost"),
        ("xgb_1.0.2_two.json", "xgboost_json"),
        ("xgb_1.7.6_two.model", "xgboost"),
        ("xgb_1.7.6_lists.json", "xgboost_json"),
        ("xgb_2.0.3_lists.ubj", "xgboost_ubj"),
        ("xgb_2.0.3_dart.model", "xgboost"),
        ("lgb_2.3.1_categories.txt", "lightgbm"),
    ];
    for (file, model_type) in forms {
        let whole = std::fs::read(fixtures::committed().join(file)).unwrap();
        // LightGBM's text ends with its parameters, of which nothing depends, and the others' binary with attributes.
        let end = match file.rsplit_once('.').unwrap().1 {
            "txt" => String::from_utf8_lossy(&whole).find("end of trees").unwrap(),
            _ => whole.len() * 4 / 5,
        };
        for part in 0..20 {
            let cut = scratch.write(&format!("{part}-{file}"), &whole[..end * part / 20]);
            let folder = cut.parent().map(Path::to_owned).unwrap();
            let Some(opened) = asked(&format!("{part}-{file}"), model_type).in_folder(folder).try_open() else {
                return;
            };
            assert!(opened.is_err(), "{file} cut at {}", end * part / 20);
        }
    }
}
