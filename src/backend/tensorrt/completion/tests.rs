//! What an engine adds to a configuration, and what contradicts it.

use super::*;
use crate::described::Bounds;
use crate::fixtures::{named, on_gpus};
use nereid_request::Shape;

fn tensor(name: &str, shape: &[i64], most: i64) -> Tensor {
    let of = |open: i64| shape.iter().map(|dim| if *dim == -1 { open } else { *dim }).collect::<Vec<i64>>();
    Tensor {
        name: name.to_owned(),
        c_name: std::ffi::CString::new(name).unwrap(),
        datatype: Some(DataType::Fp32),
        shape: Shape::from_slice(shape),
        is_shape_tensor: false,
        is_on_host: false,
        is_linear: true,
        shapes: vec![Bounds { min: of(1), opt: of(1), max: of(most) }],
        values: Vec::new(),
    }
}

fn engine(shape: &[i64], most: i64) -> Described {
    Described { inputs: vec![tensor("IN", shape, most)], outputs: vec![tensor("OUT", shape, most)], profiles: 1 }
}

fn input(dims: &[i64]) -> ModelInput {
    ModelInput { name: "IN".to_owned(), dims: dims.to_vec(), ..Default::default() }
}

fn completed(config: ModelConfig, engine: &Described) -> Result<ModelConfig, String> {
    let mut config = named(config);
    complete(&mut config, engine).map(|()| config).map_err(|status| status.message.into_owned())
}

#[test]
fn an_empty_configuration_is_filled() {
    let config = completed(ModelConfig::default(), &engine(&[-1, 4], 8)).unwrap();
    assert_eq!((config.max_batch_size, &config.input[0].dims[..], &config.output[0].dims[..]), (8, &[4][..], &[4][..]));
    assert_eq!((config.input[0].data_type(), config.output[0].data_type()), (Type::TypeFp32, Type::TypeFp32));
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    let fixed = completed(ModelConfig::default(), &engine(&[2, 4], 0)).unwrap();
    assert_eq!((fixed.max_batch_size, &fixed.input[0].dims[..], fixed.scheduling_choice), (0, &[2, 4][..], None));
    let one = completed(ModelConfig::default(), &engine(&[-1, 4], 1)).unwrap();
    assert_eq!((one.max_batch_size, one.scheduling_choice), (1, None));
}

#[test]
fn the_batch_size_is_that_of_the_largest_profile_that_is_used() {
    let mut engine = engine(&[-1, 4], 8);
    engine.profiles = 2;
    for tensor in &mut engine.inputs {
        tensor.shapes.push(Bounds { min: vec![1, 4], opt: vec![1, 4], max: vec![32, 4] });
    }
    let sizes = |profile: &[&str]| {
        let given = ModelConfig { instance_group: on_gpus(&[0], profile), ..Default::default() };
        completed(given, &engine).map(|config| config.max_batch_size)
    };
    assert_eq!((sizes(&[]), sizes(&["1"]), sizes(&["0", "1"])), (Ok(8), Ok(32), Ok(32)));
    let text = "unable to autofill for 'm', configuration specified invalid profile 2 . Number of profiles supported \
                by TensorRT engine: 2";
    assert_eq!(sizes(&["2"]), Err(text.to_owned()));
    let given = ModelConfig { max_batch_size: 9, ..Default::default() };
    let text = "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only supports \
                max-batch 8";
    assert_eq!(completed(given, &engine).unwrap_err(), text);
}

#[test]
fn dims_tell_whether_there_is_a_batch() {
    let with = |dims: &[i64], output: &[i64], engine: &Described| {
        let output = ModelOutput { name: "OUT".to_owned(), dims: output.to_vec(), ..Default::default() };
        completed(ModelConfig { input: vec![input(dims)], output: vec![output], ..Default::default() }, engine)
    };
    let batching = engine(&[-1, 4], 8);
    assert_eq!(with(&[4], &[], &batching).unwrap().max_batch_size, 8);
    assert_eq!(with(&[-1, 4], &[], &batching).unwrap().max_batch_size, 0, "whole shapes");
    let text = "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of \
                whether batching is supported";
    assert_eq!(with(&[4], &[-1, 4], &batching).unwrap_err(), text);
    let text = "autofill failed for model 'm': model tensor shape configuration hints for dynamic batching but the \
                underlying engine doesn't support batching.";
    assert_eq!(with(&[4], &[], &engine(&[2, 4], 0)).unwrap_err(), text);
}

#[test]
fn flags_are_filled_and_must_not_be_wrong() {
    let mut shapes = engine(&[2], 0);
    shapes.inputs[0].is_shape_tensor = true;
    assert!(completed(ModelConfig::default(), &shapes).unwrap().input[0].is_shape_tensor);
    let given = ModelInput { is_shape_tensor: true, ..input(&[4]) };
    let refused = completed(ModelConfig { input: vec![given], ..Default::default() }, &engine(&[-1, 4], 8));
    assert_eq!(refused.unwrap_err(), "'IN' is incorrectly specified as a shape tensor.");
    let given = ModelInput { is_non_linear_format_io: true, ..input(&[4]) };
    let refused = completed(ModelConfig { input: vec![given], ..Default::default() }, &engine(&[-1, 4], 8));
    let text = "'IN' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the model \
                configuration.";
    assert_eq!(refused.unwrap_err(), text);
}
