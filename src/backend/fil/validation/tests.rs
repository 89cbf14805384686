//! Damaged files of every format.
//!
//! A damaged file that reaches treelite can end the process, so files are mutated in a process of their own: this test
//! binary, started again for the one test that does it.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::fixtures::{self, Asked};
use nereid_backend::scratch::Scratch;
use nereid_test_support::random::Random;

/// Names the file and the seed of a child process.
const CHILD: &str = "NEREID_FIL_MUTATED";

/// Of each file in one child.
const MUTATIONS: usize = 400;

const FILES: [(&str, &str); 8] = [
    ("xgb_three.json", "xgboost_json"),
    ("xgb_categories.json", "xgboost_json"),
    ("xgb_three.ubj", "xgboost_ubj"),
    ("xgb_categories.ubj", "xgboost_ubj"),
    ("xgb_legacy.model", "xgboost"),
    ("lgb_categories.txt", "lightgbm"),
    ("lgb_three.tl", "treelite_checkpoint"),
    ("skl_three.tl", "treelite_checkpoint"),
];

/// One change of a file as disks, editors and attackers make it.
fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let len = bytes.len();
    let at = random.below(len);
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << random.below(8),
        2 => (0..random.below(20) + 1).for_each(|_| bytes[random.below(len)] = random.byte()),
        3 => {
            let number = [-1, 0, 1, 2, 255, 1_000_000, i32::MAX, i32::MIN][random.below(8)];
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        }
        4 => {
            // Another digit keeps a text well-formed.
            if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *digit = b'0' + random.byte() % 10;
            }
        }
        _ => {
            let piece = bytes[at..(at + random.below(64)).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    bytes
}

fn read(file: &str, model_type: &str, folder: &Path) -> Option<Result<crate::fixtures::Model, Status>> {
    Asked::new(file, model_type, "false").output(&[3]).in_folder(folder.to_path_buf()).try_open().map(|opened| {
        // Only one of the files has this many classes; the forest is made before that is checked.
        opened.map_err(|error| match error.message.contains("values for each row") {
            true => Status::invalid("its output"),
            false => error,
        })
    })
}

/// Runs in the child process, and does nothing otherwise.
#[test]
fn mutated_in_a_child() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let (index, seed) = given.split_once(' ').unwrap();
    let (file, model_type) = FILES[index.parse::<usize>().unwrap()];
    let whole = std::fs::read(fixtures::models().unwrap().join(file)).unwrap();
    let mut random = Random::new(seed.parse().unwrap());
    let scratch = Scratch::new("fil-mutated");
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..MUTATIONS {
        scratch.write(file, &mutated(&whole, &mut random));
        match read(file, model_type, &scratch.path("")).unwrap() {
            Ok(_) => accepted += 1,
            Err(error) if error.message == "its output" => accepted += 1,
            Err(error) => {
                assert!(!error.message.is_empty());
                refused += 1;
            }
        }
    }
    println!("{file}: {refused} refused, {accepted} accepted");
    assert!(refused > MUTATIONS / 8, "{file}: {refused} refused");
}

#[test]
fn no_damaged_file_ends_the_process() {
    if fixtures::models().is_none() {
        return;
    }
    for (index, (file, _)) in FILES.iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "validation::tests::mutated_in_a_child", "--nocapture"]);
        let output = child.env(CHILD, format!("{index} 1")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {}\n{text}{errors}", output.status);
        assert!(text.contains(" refused, "), "{file} was not mutated: {text}");
    }
}

#[test]
fn files_that_are_not_models_get_treelites_texts() {
    let scratch = Scratch::new("fil-garbage");
    let garbage = b"this is not a model, but it is longer than a header of a model file. ".repeat(8);
    scratch.write("garbage", &garbage);
    scratch.write("empty", b"");
    let Some(folder) = fixtures::models() else { return };
    let whole = std::fs::read(folder.join("xgb_three.json")).unwrap();
    scratch.write("cut", &whole[..whole.len() / 2]);
    let refused =
        |file: &str, model_type| read(file, model_type, &scratch.path("")).map(|opened| opened.err().unwrap());
    for (file, model_type, text) in [
        ("garbage", "xgboost_json", "Provided JSON could not be parsed as XGBoost model. Parsing error at offset 1: "),
        ("empty", "xgboost_json", "Parsing error at offset 0: The document is empty."),
        ("garbage", "xgboost_ubj", "Check failed: nlohmann::json::sax_parse("),
        ("cut", "xgboost_json", "Provided JSON could not be parsed as XGBoost model. Parsing error at offset "),
        ("empty", "xgboost_ubj", "Check failed: nlohmann::json::sax_parse("),
        ("empty", "xgboost", "Check failed: "),
        (
            "garbage",
            "lightgbm",
            "Check failed: it != global_dict.end(): Ill-formed LightGBM model file: need max_feature_idx",
        ),
        (
            "garbage",
            "treelite_checkpoint",
            "Cannot load model from a different major Treelite version or a version before 3.9.0.",
        ),
        ("absent", "xgboost_json", "Check failed: std::filesystem::exists(path): Path \""),
        ("absent", "lightgbm", "/absent\" does not exist"),
    ] {
        let Some(error) = refused(file, model_type) else { return };
        assert_eq!(error.code, nereid_request::Code::Unknown, "{file} {model_type}: {error}");
        assert!(error.message.starts_with('[') && error.message.contains(text), "{file} {model_type}: {error}");
    }
    let Some(error) = refused("absent", "treelite_checkpoint") else { return };
    let path = scratch.path("absent");
    assert_eq!(error, Status::unavailable(format!("Could not open model file \"{}\"", path.display())));
    let Some(error) = refused("garbage", "xgboost") else { return };
    assert!(error.message.starts_with("the model file ends too early: "), "{error}");
}

#[test]
fn files_that_were_cut_off_are_refused() {
    let Some(folder) = fixtures::models() else { return };
    let scratch = Scratch::new("fil-cut");
    for (file, model_type) in FILES {
        let whole = std::fs::read(folder.join(file)).unwrap();
        let end = match model_type {
            // What follows the trees is not needed.
            "lightgbm" => String::from_utf8_lossy(&whole).find("end of trees").unwrap(),
            _ => whole.len() - 1,
        };
        for eighth in 0..8 {
            scratch.write(file, &whole[..end * eighth / 8]);
            let opened = read(file, model_type, &scratch.path("")).unwrap();
            assert!(opened.is_err_and(|error| error.message != "its output"), "{file}: {eighth} eighths");
        }
    }
}

/// The reason why `from`, replaced by `to` in a file, is refused.
fn replaced(file: &str, model_type: &str, from: &str, to: &str) -> Option<String> {
    let text = std::fs::read_to_string(fixtures::models()?.join(file)).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    let scratch = Scratch::new("fil-replaced");
    scratch.write(file, text.replacen(from, to, 1).as_bytes());
    Some(read(file, model_type, &scratch.path(""))?.err().unwrap().message.into_owned())
}

#[test]
fn numbers_that_treelite_trusts_are_refused_with_their_place() {
    let xgboost = |from: &str, to: &str| replaced("xgb_three.json", "xgboost_json", from, to);
    for (from, to, text) in [
        ("\"left_children\":[1,", "\"left_children\":[0,", "tree 0: node 0 is reached twice"),
        ("\"tree_info\":[0,", "\"tree_info\":[", "tree_info has 17 values for 18 trees"),
        ("\"tree_info\":[0,", "\"tree_info\":[-1,", "tree_info has a value that is not a class"),
        ("\"tree_info\"", "\"tree\\u005finfo_\"", "it has trees, but no tree_info"),
        ("\"num_class\":\"3\"", "\"num_class\":\"2147483647\"", "num_class is 2147483647"),
        (
            "\"num_feature\":\"4\",\"num_target\"",
            "\"num_feature\":\"2147483647\",\"num_target\"",
            "it has 2147483647 features",
        ),
        ("\"split_indices\":[0,", "\"split_indices\":[-7,", "tree 0: node 0 splits feature -7 of 4"),
    ] {
        let Some(error) = xgboost(from, to) else { return };
        assert!(error.contains(text), "{to}: {error}");
    }
    let lightgbm = |from: &str, to: &str| replaced("lgb_categories.txt", "lightgbm", from, to);
    for (from, to, text) in [
        ("num_leaves=7", "num_leaves=2147483647", "tree 0: leaf_value has 7 values instead of 2147483647"),
        ("num_leaves=7", "num_leaves=-1", "tree 0: num_leaves is '-1'"),
        ("left_child=", "left_child=0 ", "tree 0: node 0 is reached twice"),
        ("right_child=", "right_child=7000 ", "tree 0: there is no node 7000"),
        ("cat_boundaries=0 ", "cat_boundaries=0 1000 ", "tree 0: cat_boundaries are not those of cat_threshold"),
        ("num_cat=", "num_cat=0\nx=", "tree 0: decision '"),
        ("num_class=1", "num_class=0", "num_class is '0'"),
        ("Tree=3", "Three=3", "ends too early: it has 6 trees, of which 5 begin"),
    ] {
        let Some(error) = lightgbm(from, to) else { return };
        assert!(error.contains(text), "{to}: {error}");
    }
}

#[test]
fn documents_are_nested_in_few_levels() {
    let deep = |open: &[u8]| [b"{\"learner\":".as_slice(), &open.repeat(100_000)].concat();
    for open in [b"[".as_slice(), b"{\"a\":"] {
        let text = "the model file is damaged: it is nested in more than 64 levels";
        assert_eq!(validate(Format::XgboostJson, &deep(open)).unwrap_err().to_string(), text);
    }
    let ubjson = [b"{i\x07learner".as_slice(), &b"[".repeat(100_000)].concat();
    assert!(validate(Format::XgboostUbjson, &ubjson).is_err());
    let endless = [b"{i\x01a[$Z#L".as_slice(), &(1u64 << 40).to_be_bytes()].concat();
    let text = "the model file ends too early: it cannot contain an array of 1099511627776 items";
    assert_eq!(validate(Format::XgboostUbjson, &endless).unwrap_err().to_string(), text);
}
