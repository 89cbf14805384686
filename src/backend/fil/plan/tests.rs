//! Configurations, held against forests of real files.

use super::*;
use crate::fixtures::Asked;
use nereid_request::Code;

/// The error of a load; `None` after a message that the test is skipped.
fn refused(asked: Asked) -> Option<Status> {
    Some(asked.try_open()?.err().expect("the configuration is wrong"))
}

fn number() -> Asked {
    Asked::new("xgb_number.json", "xgboost_json", "false")
}

#[test]
fn the_input_has_the_forests_features() {
    for (asked, dims) in [
        (number().input(&[3]), "[3]"),
        (number().input(&[5]), "[5]"),
        (number().input(&[1, 4]), "[1,4]"),
        (number().input(&[-1, 4]), "[-1,4]"),
    ] {
        let Some(error) = refused(asked) else { return };
        let text = format!(
            "model 'm', tensor 'input__0': the configuration has the dimensions {dims}, but the forest has 4 features \
             and needs [4]"
        );
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, &*text));
    }
    let Some(error) = refused(number().batch(0)) else { return };
    assert!(error.message.ends_with("has 4 features and needs [rows, 4]"), "{error}");
    let mut unnamed = number();
    unnamed.config().input[0].name = "INPUT0".to_owned();
    let Some(error) = refused(unnamed) else { return };
    assert_eq!(error.message, "model 'm' must have the input 'input__0'");
    // A reshape is what the forest sees.
    let mut reshaped = number().input(&[2, 2]);
    reshaped.config().input[0].reshape = Some(nereid_wire::inference::ModelTensorReshape { shape: vec![4] });
    assert!(reshaped.open().is_some());
}

#[test]
fn outputs_have_the_values_that_are_computed() {
    let Some(error) = refused(number().output(&[2])) else { return };
    let text = "model 'm', tensor 'output__0': the configuration has 2 values for each row, but the forest computes 1";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    let two = || Asked::new("xgb_two.json", "xgboost_json", "true");
    let Some(error) = refused(two().parameter("predict_proba", "true").output(&[3])) else { return };
    assert!(error.message.ends_with("has 3 values for each row, but the forest computes 1 or 2"), "{error}");
    let Some(error) = refused(two().output(&[2])) else { return };
    assert!(error.message.ends_with("computes 1"), "{error}");
    let three = Asked::new("xgb_three.json", "xgboost_json", "true").parameter("predict_proba", "true");
    let Some(error) = refused(three.output(&[2])) else { return };
    assert!(error.message.ends_with("computes 3"), "{error}");
    let Some(error) = refused(number().shapley_values(&[4])) else { return };
    assert!(error.message.contains("'treeshap_output'") && error.message.ends_with("computes 5"), "{error}");
    let mut other = number();
    other.config().output[0].name = "output".to_owned();
    let Some(error) = refused(other) else { return };
    let text = "model 'm' has the output 'output'; the outputs of fil are 'output__0' and 'treeshap_output'";
    assert_eq!(error.message, text);
    let mut only_shap = number().shapley_values(&[5]);
    only_shap.config().output.remove(0);
    let Some(error) = refused(only_shap) else { return };
    assert_eq!(error.message, "model 'm' must have the output 'output__0'");
}

#[test]
fn dimensions_of_an_output_lose_every_1() {
    let planned = |dims: &[i64], reshape: Option<&[i64]>| {
        let tensor = TensorSpec {
            name: "output__0".to_owned(),
            data_type: nereid_wire::inference::DataType::TypeFp32,
            datatype: "FP32",
            dims: dims.to_vec(),
            reshape: reshape.map(<[i64]>::to_vec),
            optional: false,
            label_filename: String::new(),
        };
        plan_output("m", (0, &tensor)).map(|planned| planned.shape(7).to_vec())
    };
    for (dims, shape) in [
        (&[1][..], &[7][..]),
        (&[-1], &[7]),
        (&[-1, 1], &[7]),
        (&[2], &[7, 2]),
        (&[-1, 2], &[7, 2]),
        (&[1, 2, 1], &[7, 2]),
        (&[3, 5], &[7, 3, 5]),
    ] {
        assert_eq!(planned(dims, None), Ok(shape.to_vec()), "{dims:?}");
    }
    assert_eq!(planned(&[1], Some(&[])), Ok(vec![7]));
    assert_eq!(planned(&[6], Some(&[2, 3])), Ok(vec![7, 2, 3]));
    let text = "Backends with variable-shape outputs must request desired output shape";
    for dims in [&[2, -1][..], &[-1, -1], &[1, -1]] {
        assert_eq!(planned(dims, None), Err(Status::internal(text)), "{dims:?}");
    }
}

#[test]
fn forests_that_cannot_be_served_are_refused_with_a_reason() {
    let Some(error) = refused(Asked::new("xgb_targets.json", "xgboost_json", "false").output(&[2])) else { return };
    assert_eq!((error.code, &*error.message), (Code::Unsupported, "Multi-target model not supported"));
    let checkpoint = |file| Asked::new(file, "treelite_checkpoint", "false");
    let Some(error) = refused(checkpoint("plain.tl").shapley_values(&[5])) else { return };
    assert_eq!((error.code, &*error.message), (Code::Unsupported, "Model does not have node statistics."));
    let Some(error) = refused(checkpoint("deep.tl").shapley_values(&[5])) else { return };
    let text = "Tree depths above 32 not supported. Shap cannot be considered accurate at this depth.";
    assert_eq!((error.code, &*error.message), (Code::Unsupported, text));
    // Without these values both are served.
    assert!(checkpoint("plain.tl").open().is_some() && checkpoint("deep.tl").open().is_some());
    let Some(model) = number().open() else { return };
    let error = model.on_gpu().err().unwrap();
    assert_eq!((error.code, &*error.message), (Code::Unsupported, "KIND_GPU cannot be used in CPU-only build"));
}
