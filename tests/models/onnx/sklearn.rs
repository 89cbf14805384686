//! A classifier as skl2onnx exports it without any option: its probabilities are a sequence of maps.

use super::{fp32, infer, start};
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use serde_json::{Value, json};

#[test]
fn a_classifier_of_scikit_learn_is_served_as_it_is_exported() {
    let Some(python) = Python::with("sklearn.txt") else { return };
    let repository = Repository::new();
    let expected: Value = {
        let folder = repository.path().display().to_string();
        serde_json::from_str(&python.run("sklearn_models.py", &[&folder])).expect("what scikit-learn computes")
    };
    let Some(server) = start(&repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let rows: Vec<f32> =
        expected["rows"].as_array().into_iter().flatten().filter_map(Value::as_f64).map(|x| x as f32).collect();
    let inputs = json!([fp32("X", &[rows.len() as i64 / 4, 4], &rows)]);
    for (model, labels) in [("numbers", "numbers"), ("words", "words"), ("matrix", "numbers")] {
        let answer = infer(&mut peer, model, &inputs, &[]);
        assert_eq!(answer["output_label"]["data"], expected[labels]["labels"], "{model}");
        let name = if model == "matrix" { "probabilities" } else { "output_probability" };
        let pairs = answer[name]["data"]
            .as_array()
            .into_iter()
            .flatten()
            .zip(expected[labels]["probabilities"].as_array().into_iter().flatten());
        let pairs: Vec<(f64, f64)> = pairs.filter_map(|(a, b)| Some((a.as_f64()?, b.as_f64()?))).collect();
        assert_eq!(pairs.len(), rows.len() / 4 * 3, "{model}: {answer}");
        assert!(pairs.iter().all(|(ours, theirs)| (ours - theirs).abs() < 1e-5), "{model}: {pairs:?}");
    }
    let answer = infer(&mut peer, "words", &inputs, &["output_probability.keys"]);
    let keys = answer["output_probability.keys"]["data"].as_array().map(|keys| keys[..3].to_vec());
    assert_eq!(Value::from(keys.unwrap_or_default()), expected["words"]["classes"]);
    server.stop();
}
