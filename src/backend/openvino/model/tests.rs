//! Opening models: completion, and checks against their files.

use super::*;
use crate::OpenVinoBackend;
use crate::fixtures::{
    Opened, config, context, error_of, floats_of, input, open, open_with, output, pair, runtime, single,
    with_parameters,
};
use nereid_backend::Backend;
use nereid_request::Code;
use nereid_wire::inference::DataType::{TypeFp32, TypeFp64, TypeInt8, TypeInt32, TypeString};
use nereid_wire::inference::ModelInput;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;

macro_rules! opened {
    ($config:expr) => {
        match open($config) {
            Some(result) => result,
            None => return,
        }
    };
}

fn inputs_of(config: &ModelConfig) -> Vec<(&str, nereid_wire::inference::DataType, &[i64])> {
    config.input.iter().map(|input| (&*input.name, input.data_type(), &*input.dims)).collect()
}

/// What the library computes is checked in every case, so that no model only seems to load.
fn must_add(opened: &mut Opened, shape: &[i64]) {
    let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
    let (a, b): (Vec<f32>, Vec<f32>) = (0..count).map(|at| (at as f32, 2.5 * at as f32)).unzip();
    let request = opened.pair(1, shape, [&a, &b]);
    let answer = &opened.execute([request])[0];
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    let differences: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    assert_eq!(floats_of(answer, 0), (shape.to_vec(), sums));
    assert_eq!(floats_of(answer, 1), (shape.to_vec(), differences));
}

#[test]
fn a_model_with_a_batch_in_its_layout_is_completed_with_batching() {
    let mut model = opened!(config("layout.xml")).unwrap();
    let completed = model.model.completed_config().unwrap();
    assert_eq!(completed.max_batch_size, 4);
    assert!(matches!(completed.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    // The file's batch is open, so all dimensions count as open.
    assert_eq!(inputs_of(&completed), [("INPUT0", TypeFp32, &[-1][..]), ("INPUT1", TypeFp32, &[-1][..])]);
    for rows in [4, 1, 3] {
        must_add(&mut model, &[rows, 16]);
    }
    let setting = |context: &mut ModelContext| {
        context.settings = vec![("default-max-batch-size".to_owned(), "32".to_owned())];
    };
    let model = open_with(config("layout.xml"), setting).unwrap().unwrap();
    assert_eq!(model.model.completed_config().unwrap().max_batch_size, 32);
    // The file's batch is 1, and becomes open.
    let model = opened!(config("fixed_layout.xml")).unwrap();
    let completed = model.model.completed_config().unwrap();
    assert_eq!((completed.max_batch_size, inputs_of(&completed)[0]), (4, ("INPUT0", TypeInt32, &[4][..])));
    assert_eq!(completed.output.iter().map(|output| &*output.name).collect::<Vec<_>>(), ["OUTPUT0", "OUTPUT1"]);
    assert_eq!(model.model.loading.lock().unwrap().prepared.as_ref().unwrap().plan.rows, Rows::Any);
}

#[test]
fn models_without_a_layout_are_completed_without_batching() {
    for file in ["add_sub.xml", "add_sub.onnx", "add_sub.saved_model", "add_sub.pdmodel", "add_sub.tflite"] {
        let mut model = opened!(config(file)).unwrap();
        let completed = model.model.completed_config().unwrap();
        assert_eq!((completed.max_batch_size, &completed.scheduling_choice), (0, &None), "{file}");
        let expected = [("INPUT0", TypeFp32, &[-1, -1][..]), ("INPUT1", TypeFp32, &[-1, -1][..])];
        assert_eq!(inputs_of(&completed), expected, "{file}");
        let names: Vec<String> = completed.output.iter().map(|output| output.name.clone()).collect();
        if names == ["OUTPUT0", "OUTPUT1"] {
            must_add(&mut model, &[3, 16]);
        }
    }
    let model = opened!(config("fixed.xml")).unwrap();
    let completed = model.model.completed_config().unwrap();
    assert_eq!((completed.max_batch_size, inputs_of(&completed)[1]), (0, ("INPUT1", TypeInt32, &[1, 4][..])));
    // A batch size that is given stays, with a warning only.
    let mut model = opened!(ModelConfig { max_batch_size: 8, ..config("add_sub.onnx") }).unwrap();
    let completed = model.model.completed_config().unwrap();
    assert_eq!((completed.max_batch_size, &completed.scheduling_choice), (8, &None));
    must_add(&mut model, &[5, 16]);
}

#[test]
fn a_configuration_that_is_complete_is_used_without_completion() {
    let complete = pair(config("add_sub.xml"), 8, TypeFp32, &[16]);
    let mut model = open_with(complete.clone(), |context| context.auto_complete = false);
    let Some(model) = model.as_mut().map(|model| model.as_mut().unwrap()) else { return };
    assert!(model.model.completed_config().is_none());
    must_add(model, &[8, 16]);
    must_add(model, &[1, 16]);
    let mut model = opened!(pair(config("add_sub.saved_model"), 8, TypeFp32, &[16])).unwrap();
    must_add(&mut model, &[2, 16]);
}

/// The cases that Triton's tests of configurations have for this backend, with their texts.
#[test]
fn configurations_that_do_not_fit_are_refused_by_the_texts_of_the_contract() {
    let whole = |name: &str, dims: &[i64]| input(name, TypeInt32, dims);
    let fixed = |input: Vec<ModelInput>| ModelConfig { input, ..config("fixed.xml") };
    let outputs = |second: &str, dims: &[i64]| ModelConfig {
        output: vec![output("OUTPUT0", TypeInt32, dims), output(second, TypeInt32, &[1, 4])],
        ..config("fixed.xml")
    };
    let one = fixed(vec![whole("INPUT0", &[1, 4])]);
    let refused = error_of(opened!(one));
    assert_eq!(refused, "unable to load model 'm', configuration expects 1 inputs, model provides 2");
    for (given, text) in [
        (
            fixed(["INPUT0", "INPUT1", "INPUT2"].map(|name| whole(name, &[1, 4])).to_vec()),
            "unable to load model 'm', configuration expects 3 inputs, model provides 2",
        ),
        (
            fixed(vec![whole("INPUT0", &[1, 4]), whole("unknown_input", &[1, 4])]),
            "unexpected inference input 'unknown_input', allowed inputs are: INPUT0, INPUT1",
        ),
        (
            fixed(vec![whole("INPUT0", &[1, 4]), whole("INPUT1", &[1, 256])]),
            "model 'm', tensor 'INPUT1': the model expects 2 dimensions (shape [1,4]) but the model configuration \
             specifies 2 dimensions (shape [1,256])",
        ),
        (
            outputs("unknown_output", &[1, 4]),
            "unexpected inference output 'unknown_output', allowed outputs are: OUTPUT0, OUTPUT1",
        ),
        (
            outputs("OUTPUT1", &[1, 128]),
            "model 'm', tensor 'OUTPUT0': the model expects 2 dimensions (shape [1,4]) but the model configuration \
             specifies 2 dimensions (shape [1,128])",
        ),
        (
            pair(config("add_sub.xml"), 0, TypeFp32, &[-1, -1]),
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
             specifies 2 dimensions (shape [-1,-1])",
        ),
        (
            pair(config("add_sub.xml"), 8, TypeFp32, &[15]),
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration \
             specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape [-1,15])",
        ),
        (
            ModelConfig {
                output: vec![output("OUTPUT0", TypeFp32, &[-1])],
                ..pair(config("add_sub.xml"), 8, TypeFp32, &[-1])
            },
            "model 'm', tensor 'OUTPUT0': the model expects 2 dimensions (shape [8,16]) but the model configuration \
             specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape [-1,-1])",
        ),
        (
            pair(config("add_sub.xml"), 8, TypeFp64, &[16]),
            "unsupported datatype TYPE_FP64 for input 'INPUT0' for model 'm'",
        ),
        (
            pair(config("add_sub.xml"), 8, TypeString, &[16]),
            "unsupported datatype TYPE_STRING for input 'INPUT0' for model 'm'",
        ),
        (
            ModelConfig {
                output: vec![output("OUTPUT1", TypeString, &[16])],
                ..pair(config("add_sub.xml"), 8, TypeFp32, &[16])
            },
            "unsupported datatype TYPE_STRING for output 'OUTPUT1' for model 'm'",
        ),
    ] {
        assert_eq!(error_of(open(given).unwrap()), text);
    }
}

#[test]
fn a_batch_size_that_the_model_does_not_take_is_refused() {
    // Every batch has one row of results.
    let error = error_of(opened!(single(config("one_row.xml"), 4, ["x", "y"], [&[2], &[2]])));
    let text =
        "model 'm' cannot be batched: its output 'y' has the shape [1,2] for a batch of 4; set max_batch_size to 0";
    assert_eq!(error, text);
    let error = error_of(opened!(single(config("four_rows.xml"), 3, ["x", "y"], [&[2], &[2]])));
    assert!(error.starts_with("openvino error in setting max batch size : "), "{error}");
    assert!(opened!(single(config("four_rows.xml"), 4, ["x", "y"], [&[2], &[2]])).is_ok());
    let error = error_of(opened!(single(config("four_rows.xml"), 4, ["x", "y"], [&[2], &[3]])));
    assert!(error.starts_with("model 'm', tensor 'y': the model expects 2 dimensions (shape [4,2])"), "{error}");
    let error = error_of(opened!(config("scalar.xml")));
    assert!(error.starts_with("model 'm', tensor 'x': the openvino backend does not support scalars"), "{error}");
    let scalar = single(config("scalar.xml"), 0, ["x", "y"], [&[1], &[1]]);
    let error = error_of(open_with(scalar, |context| context.auto_complete = false).unwrap());
    assert!(error.contains("the model expects 0 dimensions (shape [])"), "{error}");
}

#[test]
fn files_that_are_no_models_are_refused_and_name_the_step() {
    let Some((_, _)) = runtime() else { return };
    for (file, part) in [
        ("no_weights.xml", "bin file"),
        ("short_weights.xml", "weights"),
        ("cut.xml", "pars"),
        ("garbage.xml", "garbage.xml"),
        ("empty.xml", "empty.xml"),
        ("unknown_operation.xml", "Frobnicate"),
        ("triple.xml", "unsupported opset: nereid_test"),
        ("cut.onnx", "cut.onnx"),
        ("cut.pdmodel", "Model can't be parsed"),
        ("cut.tflite", "cut.tflite"),
    ] {
        let opened = open(config(file)).unwrap();
        let code = opened.as_ref().err().map(|status| status.code);
        let text = error_of(opened);
        assert_eq!(code, Some(Code::Internal), "{file}: {text}");
        assert!(text.starts_with("openvino error in reading model : ") && text.contains(part), "{file}: {text}");
    }
    // A model of another format, whatever its file is called: the library reads it.
    assert!(open(config("onnx_inside.xml")).unwrap().is_ok());
    let absent = error_of(open(config("absent.xml")).unwrap());
    assert!(absent.starts_with("unable to find '") && absent.ends_with("/absent.xml' for model 'm'"), "{absent}");
    for outside in ["../models/add_sub.xml", "/etc/hostname"] {
        let text = format!("default_model_filename '{outside}' of model 'm' is outside its version directory");
        assert_eq!(error_of(open(config(outside)).unwrap()), text);
    }
}

#[test]
fn inputs_are_reshaped_if_the_configuration_asks_for_it() {
    let reshape = [("RESHAPE_IO_LAYERS", "yes")];
    let fixed = with_parameters(pair(config("fixed.xml"), 0, TypeInt32, &[-1, 7]), &reshape);
    assert!(opened!(fixed).is_ok());
    let mut batched = opened!(with_parameters(pair(config("any_rank.xml"), 8, TypeFp32, &[3, 2]), &reshape)).unwrap();
    must_add(&mut batched, &[5, 3, 2]);
    let error = error_of(opened!(config("any_rank.xml")));
    assert!(error.contains("leaves the number of its dimensions open; set the parameter RESHAPE_IO_LAYERS"), "{error}");
    let wrong = with_parameters(single(config("matmul.xml"), 0, ["x", "y"], [&[3, 5], &[3, 4]]), &reshape);
    let error = error_of(opened!(wrong));
    assert!(error.starts_with("openvino error in setting shape for x : "), "{error}");
}

#[test]
fn parameters_reach_the_library() {
    let property = |parameters: &[(&str, &str)], key: &str| {
        let opened = open(with_parameters(pair(config("add_sub.xml"), 8, TypeFp32, &[16]), parameters))?.unwrap();
        let loading = opened.model.loading.lock().unwrap();
        Some(loading.prepared.as_ref().unwrap().compiled.property(key).unwrap_or_default())
    };
    let Some(precision) = property(&[], "INFERENCE_PRECISION_HINT") else { return };
    assert_eq!(precision, "f32");
    let get = |parameters: &[(&str, &str)], key: &str| property(parameters, key).unwrap();
    assert_eq!(get(&[("HINT_BF16", "YES")], "INFERENCE_PRECISION_HINT"), "bf16");
    assert_eq!(get(&[("PERFORMANCE_HINT", "throughput")], "PERFORMANCE_HINT"), "THROUGHPUT");
    // On a host with one CPU the library computes without streams, on the caller's thread.
    let threads = if std::thread::available_parallelism().is_ok_and(|count| count.get() == 1) { "0" } else { "2" };
    assert_eq!(get(&[], "INFERENCE_NUM_THREADS"), threads);
    assert_eq!(get(&[("NUM_STREAMS", "2")], "NUM_STREAMS"), threads);
    // Accepted: batches of every size run anyway, and this device has no such property.
    let accepted =
        [("ENABLE_BATCH_PADDING", "YES"), ("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"), ("COMPILATION_NUM_THREADS", "2")];
    assert_eq!(get(&accepted, "INFERENCE_NUM_THREADS"), threads);
    let with = |parameters: &[(&str, &str)]| open(with_parameters(config("add_sub.xml"), parameters)).unwrap();
    let error = error_of(with(&[("CPU_EXTENSION_PATH", "/nowhere/extension.so")]));
    assert!(error.starts_with("openvino error in configuring openvino core : "), "{error}");
    let error = error_of(with(&[("TARGET_DEVICE", "nowhere")]));
    assert!(error.starts_with("openvino error in loading model : ") && error.contains("NOWHERE"), "{error}");
    let error = error_of(with(&[("NUM_STREAMS", "many")]));
    assert_eq!(error, "expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many");
    let automatic = [("TARGET_DEVICE", "AUTO"), ("PERFORMANCE_HINT", "THROUGHPUT")];
    assert_eq!(get(&automatic, "PERFORMANCE_HINT"), "THROUGHPUT");
    for device in ["auto", "MULTI:CPU", "HETERO:CPU"] {
        let devices = [("TARGET_DEVICE", device), ("PERFORMANCE_HINT", "LATENCY")];
        let mut model = open(with_parameters(pair(config("add_sub.xml"), 8, TypeFp32, &[16]), &devices)).unwrap();
        must_add(model.as_mut().unwrap(), &[3, 16]);
    }
}

#[test]
fn a_library_adds_operations_to_its_model_alone() {
    let Some(openvino) = nereid_test_support::openvino::OpenVino::get() else { return };
    let Some(extension) = openvino.extension() else { return };
    let triple = single(config("triple.xml"), 4, ["x", "y"], [&[2], &[2]]);
    let extended = with_parameters(triple.clone(), &[("CPU_EXTENSION_PATH", extension.to_str().unwrap())]);
    let mut model = opened!(extended).unwrap();
    for rows in [1i64, 4, 2] {
        let values: Vec<f32> = (0..2 * rows).map(|value| value as f32).collect();
        let request = model.single(1, &[rows, 2], &values);
        let tripled: Vec<f32> = values.iter().map(|value| 3. * value).collect();
        assert_eq!(floats_of(&model.execute([request])[0], 0), (vec![rows, 2], tripled));
    }
    let error = error_of(open(triple).unwrap());
    assert!(error.contains("unsupported opset: nereid_test"), "{error}");
}

#[test]
fn features_that_the_backend_lacks_are_refused_by_each_load() {
    let given = pair(config("add_sub.xml"), 8, TypeFp32, &[16]);
    let optional = |index: usize| {
        let mut given = given.clone();
        given.input[index].optional = true;
        given
    };
    let error = error_of(opened!(optional(1)));
    assert_eq!(error, "unable to load model 'm', the openvino backend does not support optional input 'INPUT1'");
}

#[test]
fn instances_on_other_devices_are_refused() {
    let opened = opened!(pair(config("add_sub.xml"), 8, TypeFp32, &[16])).unwrap();
    for kind in [Kind::Gpu, Kind::Model] {
        let context = InstanceContext { kind, ..opened.context.clone() };
        let refused = Arc::clone(&opened.model).create_instance(context);
        let text = "unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO";
        assert_eq!(error_of(refused.map(|_| ())), text);
    }
}

#[test]
fn instances_share_one_compiled_model() {
    let opened = opened!(pair(config("add_sub.xml"), 8, TypeFp32, &[16])).unwrap();
    let first = Arc::clone(opened.model.loading.lock().unwrap().prepared.as_ref().unwrap());
    let _second = Arc::clone(&opened.model).create_instance(opened.context.clone()).unwrap();
    let second = Arc::clone(opened.model.loading.lock().unwrap().prepared.as_ref().unwrap());
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn a_model_is_examined_without_its_library_being_opened() {
    let Some((_, folder)) = runtime() else { return };
    let examined = |config: ModelConfig, library: &str| {
        let mut context = context(folder.clone(), config);
        context.settings = vec![("library".to_owned(), library.to_owned())];
        OpenVinoBackend.examine(&context)
    };
    let text = error_of(examined(config("add_sub.xml"), "/nowhere/libopenvino_c.so"));
    assert!(text.ends_with("Install it with: nereid runtime install openvino"), "{text}");
    let library = nereid_test_support::openvino::OpenVino::get().unwrap().library();
    let library = library.to_str().unwrap();
    assert_eq!(examined(config("add_sub.xml"), library), Ok(()));
    let wrong = with_parameters(config("add_sub.xml"), &[("HINT_BF16", "NO")]);
    assert_eq!(error_of(examined(wrong, library)), "expected the parameter 'HINT_BF16' to be YES, got no");
    assert!(error_of(examined(config("absent.xml"), library)).starts_with("unable to find '"));
    let ragged = ModelInput { allow_ragged_batch: true, ..input("x", TypeInt8, &[1]) };
    let error = error_of(examined(ModelConfig { input: vec![ragged], ..config("add_sub.xml") }, library));
    assert_eq!(error, "unable to load model 'm', the openvino backend does not support ragged input 'x'");
}
