//! Opening models: completion and checks against their files.

use super::*;
use crate::Backend;
use crate::onnxruntime::OnnxRuntimeBackend;
use crate::onnxruntime::fixtures::{context, runtime};
use crate::scratch::Scratch;
use nereid_model_config::ModelSpec;
use nereid_request::Code;
use nereid_wire::inference::{ModelInput, ModelOutput};

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
fn outputs_that_are_no_tensors_are_unsupported() {
    let error = opened!(config("sequence")).err().unwrap();
    assert_eq!(error.code, Code::Unsupported);
    assert_eq!(
        error.message,
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'OUTPUT', expected 'ONNX_TYPE_TENSOR'."
    );
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
