//! Sequences, maps and optionals of small models (tests/fixtures/onnx) as clients get them.

#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use ort::sys;

use super::*;
use crate::fixtures::{as_floats, floats};
use crate::onnxruntime::fixtures::runtime;
use crate::onnxruntime::instance::tests::{Rig, config, input, output, strings};
use crate::onnxruntime::plan::{ConfiguredTensor, Plan};
use crate::onnxruntime::runtime::{Runtime, filled};
use crate::onnxruntime::session::Session;
use crate::onnxruntime::settings::SessionSettings;
use nereid_memory::Slice;
use nereid_request::{Code, DataType, OutputTensor, Response};
use nereid_wire::inference::{ModelConfig, ModelOutput, ModelTensorReshape};

/// A label for each item, which has no dimensions of its own.
fn label() -> ModelOutput {
    ModelOutput { reshape: Some(ModelTensorReshape::default()), ..output("LABEL", DataType::Int64, &[1]) }
}

pub fn maps(file: &str, outputs: Vec<ModelOutput>) -> ModelConfig {
    config(file, 4, vec![input("INPUT", DataType::Fp32, &[3])], outputs)
}

fn bytes(output: &OutputTensor) -> Vec<u8> {
    output.data.iter().flat_map(|piece| piece.to_vec()).collect()
}

fn integers(output: &OutputTensor) -> Vec<i64> {
    bytes(output).as_chunks::<8>().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect()
}

#[test]
fn maps_are_a_matrix_in_the_order_of_their_keys() {
    let outputs = vec![label(), output("MAPS", DataType::Fp32, &[3]), output("MAPS.keys", DataType::Int64, &[3])];
    let Some(mut rig) = Rig::new(maps("maps", outputs)) else { return };
    let first = rig.draft(1).batch(1).floats(0, &[1, 3], &[0.125, 0.75, 0.25]).outputs([0, 1, 2]);
    let second = rig.draft(2).batch(2).floats(0, &[2, 3], &[1., 2., 3., 6., 5., 4.]).outputs([1]);
    let third = rig.draft(3).batch(1).floats(0, &[1, 3], &[7., 0., 0.]).outputs([2, 0]);
    let answers = rig.run([first, second, third]);
    let responses: Vec<&Response> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap()).collect();
    let [label, values, keys] = &responses[0].outputs[..] else { panic!("{:?}", responses[0]) };
    assert_eq!((&label.shape[..], integers(label)), (&[1, 1][..], vec![1]));
    // The model's columns are those of 30, 10 and 20.
    assert_eq!((&values.shape[..], as_floats(&values.data)), (&[1, 3][..], vec![0.75, 0.25, 0.125]));
    assert_eq!((&keys.shape[..], integers(keys)), (&[1, 3][..], vec![10, 20, 30]));
    let values = &responses[1].outputs[0];
    assert_eq!((&values.shape[..], as_floats(&values.data)), (&[2, 3][..], vec![2., 3., 1., 5., 4., 6.]));
    let [keys, label] = &responses[2].outputs[..] else { panic!("{:?}", responses[2]) };
    assert_eq!((integers(keys), integers(label)), (vec![10, 20, 30], vec![0]));
}

#[test]
fn keys_that_are_strings_may_be_listed_before_their_maps() {
    let outputs = vec![output("MAPS.keys", DataType::Bytes, &[3]), output("MAPS", DataType::Fp32, &[-1])];
    let Some(mut rig) = Rig::new(maps("string_maps", outputs)) else { return };
    let request = rig.draft(1).batch(2).floats(0, &[2, 3], &[1., 2., 3., 4., 5., 6.]).outputs([0, 1]);
    let response = rig.run_one(request).unwrap();
    let names: [&[u8]; 3] = [b"apple", b"fig", b"pear"];
    assert_eq!(bytes(&response.outputs[0]), strings(&[names, names].concat()));
    assert_eq!(response.outputs[0].shape[..], [2, 3]);
    assert_eq!(as_floats(&response.outputs[1].data), [2., 3., 1., 5., 6., 4.]);
    // No rows: no columns either.
    let response = rig.run_one(rig.draft(1).batch(0).floats(0, &[0, 3], &[]).outputs([0, 1]));
    assert!(response.unwrap().outputs.iter().all(|output| output.shape[0] == 0 && output.byte_size() == 0));
}

fn split() -> ModelConfig {
    let inputs = vec![
        input("INPUT", DataType::Fp32, &[-1, 2]),
        input("SHORT", DataType::Fp32, &[-1, 2]),
        input("WORDS", DataType::Bytes, &[-1, 2]),
    ];
    let outputs = vec![
        output("ROWS", DataType::Fp32, &[-1, 2]),
        output("UNEQUAL", DataType::Fp32, &[-1, -1, 2]),
        output("LISTS", DataType::Bytes, &[-1, 2]),
    ];
    config("split", 0, inputs, outputs)
}

#[test]
fn tensors_of_a_sequence_are_stacked_if_they_have_one_shape() {
    let Some(mut rig) = Rig::new(split()) else { return };
    let words = strings(&[b"a", b"", b"long\0er", b"d"]);
    let request = |rig: &Rig, few: i64, wanted: &[usize]| {
        let draft = rig.draft(1).floats(0, &[2, 2], &[1., 2., 3., 4.]);
        let draft = draft.floats(1, &[few, 2], &vec![9.; few as usize * 2]);
        let words = [Slice::copy_of(&words)];
        draft.input(2, DataType::Bytes, &[2, 2], &words).outputs(wanted.iter().copied())
    };
    let equal = request(&rig, 2, &[0, 1, 2]);
    let response = rig.run_one(equal).unwrap();
    let [rows, both, lists] = &response.outputs[..] else { panic!("{response:?}") };
    assert_eq!((&rows.shape[..], as_floats(&rows.data)), (&[2, 2][..], vec![1., 2., 3., 4.]));
    assert_eq!(both.shape[..], [2, 2, 2]);
    assert_eq!(as_floats(&both.data), [1., 2., 3., 4., 9., 9., 9., 9.]);
    assert_eq!((&lists.shape[..], bytes(lists)), (&[2, 2][..], strings(&[b"a", b"", b"long", b"d"])));
    let without = request(&rig, 1, &[2, 0]);
    assert_eq!(rig.run_one(without).unwrap().outputs.len(), 2, "an output that is not requested fails no request");
    let unequal = request(&rig, 1, &[0, 1]);
    let status = rig.run_one(unequal).unwrap_err();
    let text = "output 'UNEQUAL' is a sequence whose tensors 0 and 1 differ in shape, so that no tensor can hold it; \
                let the model join them (ConcatFromSequence)";
    assert_eq!((status.code, &*status.message), (Code::Internal, text));
}

#[test]
fn an_optional_input_may_be_absent_and_an_optional_output_without_a_value() {
    let mut given = input("INPUT", DataType::Fp32, &[2]);
    given.optional = true;
    let inputs = vec![given, input("OTHER", DataType::Fp32, &[2])];
    let outputs = vec![
        output("HAS", DataType::Bool, &[1]),
        output("VALUE", DataType::Fp32, &[2]),
        output("NOTHING", DataType::Fp32, &[2]),
    ];
    let Some(mut rig) = Rig::new(config("optionals", 0, inputs, outputs)) else { return };
    let with = rig.draft(1).floats(0, &[2], &[1., 2.]).floats(1, &[2], &[3., 4.]).outputs([0, 1]);
    let response = rig.run_one(with).unwrap();
    assert_eq!((bytes(&response.outputs[0]), as_floats(&response.outputs[1].data)), (vec![1], vec![3., 4.]));
    let without = rig.draft(1).floats(1, &[2], &[5., 6.]).outputs([0, 1]);
    let response = rig.run_one(without).unwrap();
    assert_eq!((bytes(&response.outputs[0]), as_floats(&response.outputs[1].data)), (vec![0], vec![5., 6.]));
    assert_eq!(response.outputs[1].shape[..], [2]);
    let wanted = rig.draft(1).floats(1, &[2], &[5., 6.]).outputs([0, 2]);
    let status = rig.run_one(wanted).unwrap_err();
    let text = "output 'NOTHING' is optional, and the model gave no value for these inputs; request the other outputs \
                only";
    assert_eq!((status.code, &*status.message), (Code::Internal, text));
}

/// A value of `parts`: a map of keys and values, or a sequence.
fn joined(runtime: &'static Runtime, parts: &[&Value], kind: sys::ONNXType) -> Value {
    let parts: Vec<*const sys::OrtValue> = parts.iter().map(|part| part.as_ptr().cast_const()).collect();
    let mut made = ptr::null_mut();
    // SAFETY: the parts are alive and as many as passed; a new value is written to the given place.
    runtime.check(unsafe { (runtime.api.CreateValue)(parts.as_ptr(), parts.len(), kind, &mut made) }).unwrap();
    let made: NonNull<_> = filled(made).unwrap();
    // SAFETY: the library made this value for the caller.
    unsafe { Value::from_raw(runtime, made) }
}

/// MAPS and their keys.
fn plan_of_maps(runtime: &'static Runtime) -> Plan {
    let path = crate::onnxruntime::fixtures::folder().join("maps.onnx");
    let settings = SessionSettings::parse(&crate::onnxruntime::fixtures::with_parameters(&[])).unwrap();
    let session = Session::open(runtime, &path, &settings, None).unwrap();
    let tensors = [("MAPS", DataType::Fp32), ("MAPS.keys", DataType::Int64)].map(|(name, datatype)| {
        let (dims, reshape) = (Shape::from_slice(&[-1]), None);
        ConfiguredTensor { name: name.to_owned(), datatype, dims, reshape, optional: false, ragged: false }
    });
    Plan::new(&session, &[], &tensors, &ModelConfig::default()).unwrap()
}

#[test]
fn maps_with_different_keys_are_no_matrix() {
    let Some(runtime) = runtime() else { return };
    let plan = plan_of_maps(runtime);
    let pool = Pool::new(1 << 20);
    let bytes = [[1i64, 2], [1, 3]].map(|keys| Slice::copy_of(&keys.map(i64::to_le_bytes).concat()));
    let numbers = floats(&[0.5, 0.25]);
    let over = |bytes: &Slice, datatype: DataType| {
        // SAFETY: the bytes live until the end of the test, and nothing writes them.
        unsafe { Value::over(runtime, bytes.as_ptr().cast_mut(), bytes.len(), &[2], datatype.into()) }.unwrap()
    };
    let map = |keys: &Slice| {
        let (keys, values) = (over(keys, DataType::Int64), over(&numbers, DataType::Fp32));
        joined(runtime, &[&keys, &values], sys::ONNXType::ONNX_TYPE_MAP)
    };
    let kind = ValueKind::Maps(DataType::Int64.into());
    let converted = |maps: [&Slice; 3]| {
        let maps = maps.map(&map);
        let sequence = joined(runtime, &maps.each_ref(), sys::ONNXType::ONNX_TYPE_SEQUENCE);
        convert(&sequence, kind, &plan.outputs[0], &mut Content::default(), &pool)
    };
    assert!(converted([&bytes[0]; 3]).is_ok());
    let status = converted([&bytes[0], &bytes[0], &bytes[1]]).err().unwrap();
    let text = "output 'MAPS' is a sequence whose maps 0 and 2 have different keys, so that no matrix can hold it; \
                export the model with a tensor in its place (scikit-learn: options={'zipmap': False})";
    assert_eq!((status.code, &*status.message), (Code::Internal, text));
    // A map alone is a vector.
    let kind = ValueKind::Map(DataType::Int64.into());
    let converted = convert(&map(&bytes[1]), kind, &plan.outputs[0], &mut Content::default(), &pool).unwrap();
    let (shape, values) = converted.values.cut(&plan.outputs[0], None).unwrap();
    assert_eq!((&shape[..], as_floats(&[values])), (&[2][..], vec![0.5, 0.25]));
    assert_eq!(*converted.keys.unwrap().cut(&plan.outputs[1], None).unwrap().1, *bytes[1]);
}
