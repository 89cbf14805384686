//! Opening models: completion and checks against their files.

use super::*;
use crate::Backend;
use crate::onnxruntime::OnnxRuntimeBackend;
use crate::onnxruntime::fixtures::{context, runtime};
use crate::scratch::Scratch;
use nereid_model_config::ModelSpec;
use nereid_request::Code;
use nereid_wire::inference::{self as wire, ModelInput, ModelOutput};

fn config(file: &str) -> ModelConfig {
    ModelConfig { name: "m".to_owned(), default_model_filename: format!("{file}.onnx"), ..ModelConfig::default() }
}

fn input(name: &str, data_type: wire::DataType, dims: &[i64]) -> ModelInput {
    ModelInput { name: name.to_owned(), data_type: data_type.into(), dims: dims.to_vec(), ..ModelInput::default() }
}

fn output(name: &str, data_type: wire::DataType, dims: &[i64]) -> ModelOutput {
    ModelOutput { name: name.to_owned(), data_type: data_type.into(), dims: dims.to_vec(), ..ModelOutput::default() }
}

/// Opens a model as the server does; `None` without a library, which was reported.
fn open(config: ModelConfig) -> Option<Result<Arc<OnnxModel>, Status>> {
    let context = Arc::new(context("m", config));
    let backend = BackendSettings::parse(&context).unwrap();
    Some(OnnxModel::open(runtime()?, &backend, context).map(Arc::new))
}

fn instance(model: &Arc<OnnxModel>, config: &ModelConfig) -> Result<OnnxInstance, Status> {
    let spec = Arc::new(ModelSpec::new(config.clone()).unwrap());
    let model_context = Arc::clone(&model.context);
    model.instance(InstanceContext::new("m_0", spec, model_context))
}

macro_rules! opened {
    ($config:expr) => {
        match open($config) {
            Some(result) => result,
            None => return,
        }
    };
}

#[test]
fn a_model_without_a_configuration_is_completed() {
    let model = opened!(config("add_sub")).unwrap();
    let completed = model.completed_config().unwrap();
    assert_eq!(completed.max_batch_size, 4);
    let inputs: Vec<(&str, wire::DataType, &[i64])> =
        completed.input.iter().map(|input| (&*input.name, input.data_type(), &*input.dims)).collect();
    let fp32 = wire::DataType::TypeFp32;
    assert_eq!(inputs, [("INPUT0", fp32, &[4][..]), ("INPUT1", fp32, &[4][..])]);
    let outputs: Vec<&str> = completed.output.iter().map(|output| &*output.name).collect();
    assert_eq!(outputs, ["OUTPUT0", "OUTPUT1"]);
    assert!(model.trial.lock().unwrap().is_some());
    assert!(instance(&model, &completed).is_ok());
    assert!(model.trial.lock().unwrap().is_none(), "the first instance takes the trial session");
    assert!(instance(&model, &completed).is_ok(), "the second one has its own");
}

#[test]
fn models_without_a_variable_first_dimension_do_not_batch() {
    let completed = opened!(config("fixed")).unwrap().completed_config().unwrap();
    assert_eq!((completed.max_batch_size, &*completed.input[0].dims), (0, &[4][..]));
    let scalar = opened!(config("scalar")).unwrap();
    let completed = scalar.completed_config().unwrap();
    assert_eq!((completed.max_batch_size, &*completed.output[0].dims), (0, &[1][..]));
    assert!(completed.output[0].reshape.is_none());
    assert!(instance(&scalar, &completed).is_ok());
    let error = opened!(ModelConfig { max_batch_size: 8, ..config("fixed") }).err().unwrap();
    assert_eq!(error.code, Code::InvalidArg);
    assert_eq!(
        error.message,
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    );
}

#[test]
fn a_full_configuration_is_left_alone_and_opens_nothing() {
    let fp32 = wire::DataType::TypeFp32;
    let mut full = config("not_there");
    full.input = vec![input("INPUT", fp32, &[1])];
    full.output = vec![output("OUTPUT", fp32, &[1])];
    let model = opened!(full.clone()).unwrap();
    assert!(model.completed_config().is_none());
    let error = instance(&model, &full).err().unwrap();
    let path = model.context.version_directory.join("not_there.onnx");
    assert_eq!(error.code, Code::Unavailable);
    assert_eq!(error.message, format!("unable to find '{}' for model instance 'm'", path.display()));
}

#[test]
fn what_the_file_does_not_say_is_refused() {
    let fp32 = wire::DataType::TypeFp32;
    let refusal = |given: ModelConfig| {
        let model = open(given.clone())?.unwrap();
        Some(instance(&model, &given).err().unwrap())
    };
    let given = |inputs, outputs| ModelConfig { input: inputs, output: outputs, ..config("fixed") };
    let both = || vec![input("INPUT0", fp32, &[4]), input("INPUT1", fp32, &[4])];
    let outputs = || vec![output("OUTPUT0", fp32, &[4])];
    let Some(error) = refusal(given(vec![input("INPUT0", fp32, &[4])], outputs())) else { return };
    assert_eq!(
        (error.code, &*error.message),
        (Code::InvalidArg, "unable to load model 'm', configuration expects 1 inputs, model provides 2")
    );
    let error = refusal(given(both(), vec![output("OTHER", fp32, &[4])])).unwrap();
    assert_eq!(error.message, "unexpected inference output 'OTHER', allowed outputs are: OUTPUT0, OUTPUT1");
    let wrong = vec![input("INPUT0", wire::DataType::TypeInt32, &[4]), input("INPUT1", fp32, &[4])];
    let error = refusal(given(wrong, outputs())).unwrap();
    assert_eq!(
        error.message,
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'INPUT0', model provides \
         TYPE_FP32"
    );
    let error = refusal(given(both(), vec![output("OUTPUT0", fp32, &[5])])).unwrap();
    assert!(error.message.starts_with("model 'm', tensor 'OUTPUT0': the model expects 1 dimensions (shape [4])"));
}

#[test]
fn what_is_no_tensor_is_completed_as_the_tensor_that_stands_for_it() {
    use wire::DataType::{TypeBool, TypeFp32, TypeInt64, TypeString};
    let outputs = |completed: &ModelConfig| -> Vec<(String, wire::DataType, Vec<i64>)> {
        let tensor = |output: &ModelOutput| (output.name.clone(), output.data_type(), output.dims.clone());
        completed.output.iter().map(tensor).collect()
    };
    let expect = |tensors: &[(&str, wire::DataType, &[i64])]| -> Vec<(String, wire::DataType, Vec<i64>)> {
        tensors.iter().map(|(name, data_type, dims)| ((*name).to_owned(), *data_type, dims.to_vec())).collect()
    };
    let maps = opened!(config("maps")).unwrap();
    let completed = maps.completed_config().unwrap();
    assert_eq!(completed.max_batch_size, 4, "a map for each row is a batch");
    assert_eq!(outputs(&completed), expect(&[("LABEL", TypeInt64, &[1]), ("MAPS", TypeFp32, &[-1])]));
    assert!(instance(&maps, &completed).is_ok());
    let split = opened!(config("split")).unwrap();
    let completed = split.completed_config().unwrap();
    assert_eq!(completed.max_batch_size, 0, "a sequence is for the whole run");
    let expected =
        [("ROWS", TypeFp32, &[-1, 2][..]), ("UNEQUAL", TypeFp32, &[-1, -1, 2]), ("LISTS", TypeString, &[-1, 2])];
    assert_eq!(outputs(&completed), expect(&expected));
    assert!(instance(&split, &completed).is_ok());
    let optionals = opened!(config("optionals")).unwrap();
    let completed = optionals.completed_config().unwrap();
    let expected = [("HAS", TypeBool, &[1][..]), ("VALUE", TypeFp32, &[2]), ("NOTHING", TypeFp32, &[2])];
    assert_eq!(outputs(&completed), expect(&expected));
    let optional: Vec<bool> = completed.input.iter().map(|input| input.optional).collect();
    assert_eq!(optional, [true, false]);
    assert!(instance(&optionals, &completed).is_ok());
}

#[test]
fn what_no_tensor_stands_for_is_unsupported() {
    let error = opened!(config("map_input")).err().unwrap();
    let text = "Unsupported ONNX Type 'ONNX_TYPE_MAP' for I/O 'INPUT', expected 'ONNX_TYPE_TENSOR'.";
    assert_eq!((error.code, &*error.message), (Code::Unsupported, text));
    // A sequence has no part for each request of a batch.
    let error = opened!(ModelConfig { max_batch_size: 2, ..config("split") }).err().unwrap();
    let text = "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is \
                specified";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    let fp32 = wire::DataType::TypeFp32;
    let full = ModelConfig {
        max_batch_size: 2,
        input: vec![
            input("INPUT", fp32, &[2]),
            input("SHORT", fp32, &[2]),
            input("WORDS", wire::DataType::TypeString, &[2]),
        ],
        output: vec![output("ROWS", fp32, &[2])],
        ..config("split")
    };
    let error = instance(&opened!(full.clone()).unwrap(), &full).err().unwrap();
    let text = "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'ROWS', expected 'ONNX_TYPE_TENSOR'.";
    assert_eq!((error.code, &*error.message), (Code::Unsupported, text));
}

#[test]
fn keys_are_an_output_beside_their_maps() {
    let fp32 = wire::DataType::TypeFp32;
    let with = |outputs| ModelConfig {
        max_batch_size: 4,
        input: vec![input("INPUT", fp32, &[3])],
        output: outputs,
        ..config("maps")
    };
    let keys = |data_type| output("MAPS.keys", data_type, &[3]);
    let alone = with(vec![keys(wire::DataType::TypeInt64)]);
    let error = instance(&opened!(alone.clone()).unwrap(), &alone).err().unwrap();
    let text = "output 'MAPS.keys' gives the keys of output 'MAPS'; add 'MAPS' to the configuration";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    let wrong = with(vec![output("MAPS", fp32, &[3]), keys(wire::DataType::TypeString)]);
    let error = instance(&open(wrong.clone()).unwrap().unwrap(), &wrong).err().unwrap();
    assert!(error.message.contains("datatype TYPE_STRING for output 'MAPS.keys', model provides TYPE_INT64"));
    // Only maps have keys.
    let none = with(vec![output("LABEL.keys", wire::DataType::TypeInt64, &[3])]);
    let error = instance(&open(none.clone()).unwrap().unwrap(), &none).err().unwrap();
    let text = "unexpected inference output 'LABEL.keys', allowed outputs are: LABEL, MAPS, MAPS.keys";
    assert_eq!(error.message, text);
}

#[test]
fn instances_of_a_group_share_a_session_if_the_model_asks_for_it() {
    let mut shared = config("add_sub");
    let parameter = wire::ModelParameter { string_value: "true".to_owned() };
    shared.parameters.insert("share_session_between_instances".to_owned(), parameter);
    for (given, is_shared) in [(shared, true), (config("add_sub"), false)] {
        let model = opened!(given).unwrap();
        let completed = model.completed_config().unwrap();
        let spec = Arc::new(ModelSpec::new(completed).unwrap());
        let [first, second, other] = ["m_0_0", "m_0_1", "m_1_0"].map(|name| {
            model.instance(InstanceContext::new(name, Arc::clone(&spec), Arc::clone(&model.context))).unwrap()
        });
        assert_eq!(Arc::ptr_eq(first.session(), second.session()), is_shared);
        assert!(!Arc::ptr_eq(first.session(), other.session()), "another group");
        let weak = Arc::downgrade(first.session());
        drop((first, second));
        assert!(weak.upgrade().is_none(), "the session ends with its instances");
    }
}

#[test]
fn weights_in_a_file_of_their_own_lie_beside_the_model() {
    let scratch = Scratch::new("model-external");
    let fixtures = crate::onnxruntime::fixtures::folder();
    let copy = |name: &str, to: &str| {
        scratch.write(to, &std::fs::read(fixtures.join(name)).unwrap());
    };
    let Some(runtime) = runtime() else { return };
    let load = |given: ModelConfig| {
        let context = ModelContext { version_directory: scratch.path("1"), ..context("m", given) };
        let backend = BackendSettings::parse(&context).unwrap();
        OnnxModel::open(runtime, &backend, Arc::new(context)).map(|model| model.completed_config().is_some())
    };
    scratch.file("1/other.onnx");
    copy("external.onnx", "1/other.onnx");
    let error = load(config("other")).unwrap_err();
    let step = format!("Put all files of external data beside {}", scratch.path("1/other.onnx").display());
    assert!(error.code == Code::Internal && error.message.contains(&step), "{error}");
    copy("external.weights", "1/external.weights");
    assert_eq!(load(config("other")), Ok(true));
    // A directory instead of the file.
    scratch.file("1/model.onnx/model.onnx");
    copy("external.onnx", "1/model.onnx/model.onnx");
    copy("external.weights", "1/model.onnx/external.weights");
    assert_eq!(load(ModelConfig { name: "m".to_owned(), ..ModelConfig::default() }), Ok(true));
}

#[test]
fn operators_come_from_a_library_beside_the_model_or_from_a_path() {
    let Some(library) = nereid_test_support::library::compiled("onnx_operator.c") else { return };
    let custom = |filename: &str| {
        let operations = wire::ModelOperations { op_library_filename: vec![filename.to_owned()] };
        ModelConfig { model_operations: Some(operations), ..config("custom") }
    };
    let error = opened!(config("custom")).err().unwrap();
    assert!(error.message.contains("com.example:Triple(-1) is not a registered function/op"), "{error}");
    assert!(error.message.contains("list the library that has it in model_operations"), "{error}");
    let error = opened!(custom("absent.so")).err().unwrap();
    assert!(error.message.contains("Check op_library_filename of model_operations"), "{error}");
    assert!(opened!(custom(&library.to_string_lossy())).is_ok());
    // By its name alone: from the version's directory, or from that of the model.
    let scratch = Scratch::new("model-operators");
    let model = std::fs::read(crate::onnxruntime::fixtures::folder().join("custom.onnx")).unwrap();
    scratch.file("1/custom.onnx");
    scratch.write("1/custom.onnx", &model);
    for place in ["1/triple.so", "triple.so"] {
        std::fs::copy(&library, scratch.path(place)).unwrap();
        let (version_directory, directory) = (scratch.path("1"), scratch.path(""));
        let context = ModelContext { version_directory, directory, ..context("m", custom("triple.so")) };
        let backend = BackendSettings::parse(&context).unwrap();
        let opened = OnnxModel::open(runtime().unwrap(), &backend, Arc::new(context));
        assert!(opened.is_ok(), "{place}: {:?}", opened.err());
        std::fs::remove_file(scratch.path(place)).unwrap();
    }
}

#[test]
fn errors_of_files_end_with_the_next_step() {
    for (file, text, step) in [
        ("unknown_operator", "Unheard", "list the library that has it in model_operations"),
        ("future_ir", "Unsupported model IR version: 99", "is newer than ONNX Runtime"),
        ("future_opset", "Opset 99", "is newer than ONNX Runtime"),
    ] {
        let error = opened!(config(file)).err().unwrap();
        assert_eq!(error.code, Code::Internal);
        assert!(error.message.starts_with("onnx runtime error "), "{error}");
        assert!(error.message.contains(text) && error.message.contains(step), "{error}");
    }
}

#[test]
fn openvino_is_refused_where_the_library_does_not_have_it() {
    use wire::model_optimization_policy::ExecutionAccelerators;
    use wire::model_optimization_policy::execution_accelerators::Accelerator;
    let accelerator = Accelerator { name: "openvino".to_owned(), ..Accelerator::default() };
    let given = ExecutionAccelerators { cpu_execution_accelerator: vec![accelerator], ..Default::default() };
    let policy = wire::ModelOptimizationPolicy { execution_accelerators: Some(given), ..Default::default() };
    let opened = opened!(ModelConfig { optimization: Some(policy), ..config("add_sub") });
    let runtime = runtime().unwrap();
    let has_openvino = runtime.available_providers().unwrap().iter().any(|name| name == "OpenVINOExecutionProvider");
    match opened {
        Ok(model) => {
            assert!(has_openvino);
            assert!(instance(&model, &model.completed_config().unwrap()).is_ok());
        }
        Err(error) => {
            assert!(!has_openvino && error.code == Code::Unavailable, "{error}");
            for part in ["model 'm' asks for the accelerator 'openvino'", "built without", "onnxruntime-openvino"] {
                assert!(error.message.contains(part), "{error}");
            }
        }
    }
}

#[test]
fn a_directory_holds_its_model_and_a_broken_file_is_the_librarys_error() {
    let scratch = Scratch::new("model-files");
    let mut context = context("m", ModelConfig::default());
    context.version_directory = scratch.path("");
    let error = model_path(&context, None).unwrap_err();
    assert!(error.message.ends_with("model.onnx' for model instance 'm'"), "{error}");
    let inner = scratch.file("model.onnx/model.onnx");
    assert_eq!(model_path(&context, None), Ok(inner.clone()));
    std::fs::write(&inner, b"no model").unwrap();
    let Some(runtime) = runtime() else { return };
    let backend = BackendSettings::parse(&context).unwrap();
    let error = OnnxModel::open(runtime, &backend, Arc::new(context)).err().unwrap();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.starts_with("onnx runtime error "), "{error}");
    assert!(error.message.contains("The file is not an ONNX model"), "{error}");
}

#[test]
fn a_wrong_library_is_unavailable_and_wrong_settings_come_first() {
    let scratch = Scratch::new("model-library");
    let wrong = scratch.write("libwrong.so", b"text");
    let mut context = context("m", config("add_sub"));
    context.settings = vec![("default-max-batch-size".to_owned(), "lots".to_owned())];
    let error = OnnxRuntimeBackend.create_model(Arc::new(context)).err().unwrap();
    assert_eq!(error.message, "failed to convert 'lots' to integral number");
    // Once a library is loaded it stays, so a process that has one does not search again.
    let surroundings = crate::runtime_search::Surroundings::of_process(&crate::onnxruntime::RUNTIME, wrong.to_str());
    let error: Status = crate::onnxruntime::locate(&surroundings).unwrap_err().into();
    assert_eq!(error.code, Code::Unavailable);
    assert!(error.message.contains("libwrong.so cannot be opened"), "{error}");
}

#[test]
fn a_file_name_does_not_lead_out_of_the_version_directory() {
    let scratch = Scratch::new("model-escape");
    scratch.file("outside.onnx");
    scratch.file("model/1/inside.onnx");
    let at = |name: &str| {
        let config = ModelConfig { default_model_filename: name.to_owned(), ..ModelConfig::default() };
        let version_directory = scratch.path("model/1");
        model_path(&ModelContext { version_directory, ..context("m", config) }, None)
    };
    let absolute = scratch.path("outside.onnx").display().to_string();
    for name in ["../../outside.onnx", "x/../../../outside.onnx", "..", "/", &*absolute] {
        let error = at(name).unwrap_err();
        let expected = format!("default_model_filename '{name}' of model 'm' is outside its version directory");
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, &*expected));
    }
    assert_eq!(at("inside.onnx").unwrap(), scratch.path("model/1/inside.onnx"));
    // A file for a compute capability replaces the default, under the same checks.
    let version_directory = scratch.path("model/1");
    let context = ModelContext { version_directory, ..context("m", ModelConfig::default()) };
    assert_eq!(model_path(&context, Some("inside.onnx")), Ok(scratch.path("model/1/inside.onnx")));
    let error = model_path(&context, Some("../../outside.onnx")).unwrap_err();
    let text = "cc_model_filenames '../../outside.onnx' of model 'm' is outside its version directory";
    assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
}
