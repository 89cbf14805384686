//! Opening models: completion, checks, sessions and bad files, with the library.

use super::*;
use crate::fixtures::{context, folder, input, named, output, parameters, runtime, sequence};
use nereid_backend::scratch::Scratch;
use nereid_model_config::ModelSpec;
use nereid_request::{Code, DataType};
use nereid_wire::inference::{ModelInstanceGroup, ModelParameter};

/// Opens a model as the server does; `None` if the library is not wanted.
fn open_in(context: ModelContext) -> Option<Result<Arc<TensorFlowModel>, Status>> {
    let context = Arc::new(context);
    let backend = BackendSettings::parse(&context).unwrap();
    let runtime = runtime()?;
    let open = |settings| TensorFlowModel::open(runtime, backend, settings, context.clone()).map(Arc::new);
    Some(ModelSettings::parse(&context).and_then(open))
}

fn instance_of(model: &Arc<TensorFlowModel>, kind: Kind) -> Result<TensorFlowInstance, Status> {
    let config = model.completed_config().unwrap_or_else(|| model.context.config.clone());
    let spec = Arc::new(ModelSpec::new(config).unwrap());
    model.instance(InstanceContext { kind, ..InstanceContext::new("m_0", spec, Arc::clone(&model.context)) })
}

fn with(mut config: ModelConfig, given: &[(&str, &str)]) -> ModelConfig {
    for (key, value) in given {
        config.parameters.insert((*key).to_owned(), ModelParameter { string_value: (*value).to_owned() });
    }
    config
}

macro_rules! opened {
    ($config:expr) => {
        match open_in(context($config)) {
            Some(result) => result,
            None => return,
        }
    };
}

/// A copy of a SavedModel that a test may damage.
fn copy_of(file: &str, scratch: &Scratch) -> PathBuf {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => copy(&entry.path(), &target),
                false => drop(std::fs::copy(entry.path(), target).unwrap()),
            }
        }
    }
    let target = scratch.path("model.savedmodel");
    copy(&folder().join(file), &target);
    target
}

/// Opens the model in `scratch`, with its default file.
fn open_damaged(scratch: &Scratch, platform: &str) -> Option<Status> {
    let config = ModelConfig { name: "m".to_owned(), platform: platform.to_owned(), ..ModelConfig::default() };
    let mut given = context(config);
    given.version_directory = scratch.path("");
    Some(open_in(given)?.err().expect("a damaged model does not open"))
}

#[test]
fn a_saved_model_without_a_configuration_is_completed() {
    let model = opened!(named("add_sub.savedmodel")).unwrap();
    let completed = model.completed_config().unwrap();
    assert_eq!(completed.max_batch_size, 4);
    let fp32 = DataType::Fp32;
    assert_eq!(completed.input, [input("INPUT0", fp32, &[4]), input("INPUT1", fp32, &[4])]);
    assert_eq!(completed.output, [output("OUTPUT0", fp32, &[4]), output("OUTPUT1", fp32, &[4])]);
    assert_eq!(model.sessions.lock().unwrap().values().next().unwrap().0, 0, "no instance has the session yet");
    assert!(instance_of(&model, Kind::Cpu).is_ok());
    // Strings of any rank, and a vector per row.
    let completed = opened!(named("strings.savedmodel")).unwrap().completed_config().unwrap();
    assert_eq!(completed.input, [input("TEXT", DataType::Bytes, &[-1])]);
    let first = completed.output.iter().find(|output| output.name == "FIRST").unwrap();
    assert!(first.dims == [1] && first.reshape.as_ref().unwrap().shape.is_empty());
}

#[test]
fn instances_share_sessions_as_the_parameter_says() {
    for (count, expected) in [("1", 3), ("2", 2), ("3", 1)] {
        let model = opened!(with(named("add_sub.savedmodel"), &[("MAX_SESSION_SHARE_COUNT", count)])).unwrap();
        let instances: Vec<_> = (0..3).map(|_| instance_of(&model, Kind::Cpu).unwrap()).collect();
        let mut sessions: Vec<_> = instances.iter().map(|instance| Arc::as_ptr(instance.session())).collect();
        sessions.sort();
        sessions.dedup();
        assert_eq!(sessions.len(), expected, "{count}");
    }
}

#[test]
fn graphs_and_signatures_are_chosen_by_parameters() {
    let triple = opened!(with(named("signatures.savedmodel"), &[("TF_SIGNATURE_DEF", "triple")])).unwrap();
    assert!(instance_of(&triple, Kind::Cpu).is_ok());
    let half = opened!(with(named("signatures.savedmodel"), &[("TF_GRAPH_TAG", "half")])).unwrap();
    assert_eq!(half.completed_config().unwrap().input, [input("VALUE", DataType::Fp32, &[3])]);
    assert!(opened!(named("only.savedmodel")).is_ok(), "the only graph and the only signature");
    let prefix = "unable to auto-complete model configuration for 'm', failed to load model: ";
    let error = opened!(named("signatures.savedmodel")).err().unwrap();
    assert_eq!(error.code, Code::Internal);
    let text = format!("{prefix}unable to load model 'm', expected 'serving_default' signature; the model has: ");
    assert!(error.message.starts_with(&text), "{}", error.message);
    let error = opened!(with(named("add_sub.savedmodel"), &[("TF_GRAPH_TAG", "none")])).err().unwrap();
    assert!(error.message.starts_with(prefix) && error.message.contains("none"), "{}", error.message);
}

#[test]
fn a_graph_is_used_as_it_is_configured() {
    let fp32 = DataType::Fp32;
    let mut config = named("add_sub.graphdef");
    config.max_batch_size = 8;
    config.input = vec![input("INPUT0", fp32, &[4]), input("INPUT1", fp32, &[4])];
    config.output = vec![output("OUTPUT1", fp32, &[4])];
    let model = opened!(config.clone()).unwrap();
    assert!(model.completed_config().is_none(), "a graph says nothing to complete by");
    assert!(instance_of(&model, Kind::Cpu).is_ok());
    assert!(instance_of(&model, Kind::Model).is_ok());
    let refused = |change: &dyn Fn(&mut ModelConfig)| {
        let mut changed = config.clone();
        change(&mut changed);
        let model = open_in(context(changed)).unwrap().unwrap();
        instance_of(&model, Kind::Cpu).err().unwrap().message.to_string()
    };
    let text = refused(&|config| config.input[0].name = "X".to_owned());
    assert_eq!(text, "unexpected inference input 'X'");
    let text = refused(&|config| config.output[0].data_type = DataType::Int64 as i32);
    assert_eq!(
        text,
        "unable to load model 'm', configuration expects datatype TYPE_INT64 for output 'OUTPUT1', model provides \
         TYPE_FP32"
    );
    let text = refused(&|config| config.scheduling_choice = Some(sequence(&["START"], &[])));
    assert_eq!(text, "configuration specified sequence control 'START', but model does not provide that input");
}

#[test]
fn variables_of_a_graph_are_initialised_by_its_list_of_operations() {
    let fp32 = DataType::Fp32;
    let scratch = Scratch::new("tensorflow-init");
    std::fs::copy(folder().join("initialized.graphdef"), scratch.path("model.graphdef")).unwrap();
    let given = |file: &str| {
        let mut config = with(named(""), &[("TF_INIT_OPS_FILE", file)]);
        config.platform = "tensorflow_graphdef".to_owned();
        config.input = vec![input("VALUE", fp32, &[-1, 1])];
        config.output = vec![output("RESULT", fp32, &[-1, 1])];
        let mut context = context(config);
        context.version_directory = scratch.path("");
        context.directory = scratch.path("above");
        let model = open_in(context)?.unwrap();
        Some(instance_of(&model, Kind::Cpu).map(|_| ()).map_err(|error| error.message.to_string()))
    };
    let Some(absent) = given("init_ops.json") else { return };
    assert_eq!(
        absent,
        Err("TF_INIT_OPS_FILE 'init_ops.json' of model 'm' is in neither of its directories".to_owned())
    );
    scratch.write("init_ops.json", br#"{"init_ops": ["init_weight", "init_bias"]}"#);
    assert_eq!(given("init_ops.json"), Some(Ok(())));
    scratch.write("init_ops.json", br#"{"init_ops": ["other"]}"#);
    assert_eq!(given("init_ops.json"), Some(Err("the graph has no operation 'other'".to_owned())));
    scratch.write("init_ops.json", br#"["init"]"#);
    let text = given("init_ops.json").unwrap().unwrap_err();
    assert!(
        text.starts_with("TF_INIT_OPS_FILE 'init_ops.json' of model 'm' is not {\"init_ops\": [\"…\"]}: "),
        "{text}"
    );
    assert_eq!(
        given("../init_ops.json"),
        Some(
            Err("TF_INIT_OPS_FILE '../init_ops.json' of model 'm' is outside the directories of the model".to_owned())
        )
    );
}

#[test]
fn damaged_saved_models_do_not_open() {
    let platform = "tensorflow_savedmodel";
    let prefix = "unable to auto-complete model configuration for 'm', failed to load model: ";
    let scratch = Scratch::new("tensorflow-damaged");
    let Some(absent) = open_damaged(&scratch, platform) else { return };
    let path = scratch.path("model.savedmodel");
    let text = format!("unable to find '{}' for model instance 'm'", path.display());
    assert_eq!((absent.code, absent.message.to_string()), (Code::Unavailable, text));
    copy_of("add_sub.savedmodel", &scratch);
    let file = path.join("saved_model.pb");
    let whole = std::fs::read(&file).unwrap();
    for len in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..len]).unwrap();
        let error = open_damaged(&scratch, platform).unwrap();
        assert_eq!(error.code, Code::Internal, "{len}");
        assert!(error.message.starts_with(prefix), "{len}: {}", error.message);
    }
    std::fs::write(&file, &whole).unwrap();
    let data = path.join("variables/variables.data-00000-of-00001");
    std::fs::write(&data, b"too short").unwrap();
    assert!(open_damaged(&scratch, platform).unwrap().message.starts_with(prefix));
    std::fs::remove_dir_all(path.join("variables")).unwrap();
    let error = open_damaged(&scratch, platform).unwrap();
    let index = path.join("variables/variables.index");
    assert_eq!(
        error.message,
        format!(
            "{prefix}unable to load model 'm', the values of its variables are missing: there is no '{}'",
            index.display()
        )
    );
    std::fs::remove_file(&file).unwrap();
    let error = open_damaged(&scratch, platform).unwrap();
    assert!(error.message.contains("Could not find SavedModel"), "{}", error.message);
    // A file of the other format where the directory is expected.
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::copy(folder().join("add_sub.graphdef"), &path).unwrap();
    assert!(open_damaged(&scratch, platform).unwrap().message.starts_with(prefix));
}

#[test]
fn damaged_graphs_do_not_open() {
    let scratch = Scratch::new("tensorflow-graph");
    let whole = std::fs::read(folder().join("add_sub.graphdef")).unwrap();
    let other = std::fs::read(folder().join("add_sub.savedmodel/saved_model.pb")).unwrap();
    for content in [&whole[..whole.len() - 3], &other, &[0xff; 32], b""] {
        scratch.write("model.graphdef", content);
        let mut config = named("");
        config.platform = "tensorflow_graphdef".to_owned();
        config.input = vec![input("INPUT0", DataType::Fp32, &[4])];
        config.output = vec![output("OUTPUT0", DataType::Fp32, &[4])];
        let mut context = context(config);
        context.version_directory = scratch.path("");
        let Some(model) = open_in(context) else { return };
        let error = instance_of(&model.unwrap(), Kind::Cpu).err().unwrap();
        assert_eq!(error.code, Code::Internal, "{}", error.message);
        let is_empty = error.message == "model m has an empty network";
        assert!(is_empty || error.message.contains("GraphDef"), "{}", error.message);
    }
}

#[test]
fn instances_on_gpus_need_a_library_that_computes_there() {
    let model = opened!(named("add_sub.savedmodel")).unwrap();
    let error = instance_of(&model, Kind::Gpu).err().unwrap();
    assert_eq!(error.code, Code::Unavailable);
    assert!(error.message.starts_with("model 'm' asks for GPU 0, but TensorFlow 2."), "{}", error.message);
    assert!(error.message.contains("Give its instances KIND_CPU"), "{}", error.message);
    // Completion keeps its session only for an instance on the CPU.
    let group = ModelInstanceGroup { kind: Kind::Model.into(), ..ModelInstanceGroup::default() };
    let elsewhere = opened!(ModelConfig { instance_group: vec![group], ..named("add_sub.savedmodel") }).unwrap();
    assert!(elsewhere.sessions.lock().unwrap().is_empty());
    assert!(instance_of(&elsewhere, Kind::Model).is_ok());
}

#[test]
fn libraries_of_operations_are_loaded_before_the_model() {
    let with_library = |path: &str| {
        let operations = nereid_wire::inference::ModelOperations { op_library_filename: vec![path.to_owned()] };
        ModelConfig { model_operations: Some(operations), ..named("add_sub.savedmodel") }
    };
    let error = opened!(with_library("/nowhere/operations.so")).err().unwrap();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.contains("/nowhere/operations.so"), "{}", error.message);
    // A library without operations adds none.
    let scratch = Scratch::new("tensorflow-operations");
    let source = scratch.write("operations.c", b"int nothing(void) { return 0; }\n");
    let library = scratch.path("operations.so");
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.is_ok_and(|status| status.success()), "tests need a C compiler");
    for _ in 0..2 {
        assert!(opened!(with_library(&library.to_string_lossy())).is_ok());
    }
}

#[test]
fn a_model_is_examined_without_the_library() {
    use nereid_backend::Backend;
    let scratch = Scratch::new("tensorflow-examined");
    let library = scratch.write("libtensorflow_cc.so.2", b"");
    let examine = |config: ModelConfig| {
        let mut context = context(config);
        context.settings = vec![("library".to_owned(), library.display().to_string())];
        crate::TensorFlowBackend.examine(&context).map_err(|error| error.message.to_string())
    };
    assert_eq!(examine(named("add_sub.savedmodel")), Ok(()));
    assert!(examine(named("absent.savedmodel")).unwrap_err().starts_with("unable to find '"));
    let text = examine(named("../add_sub.savedmodel")).unwrap_err();
    assert_eq!(text, "default_model_filename '../add_sub.savedmodel' of model 'm' is outside its version directory");
    let text = examine(with(named("add_sub.savedmodel"), &[("TF_NUM_INTRA_THREADS", "x")])).unwrap_err();
    assert_eq!(text, "failed to convert 'x' to integral number");
    assert_eq!(
        model_path(&parameters(&[]), Format::GraphDef, Some("add_sub.graphdef")),
        Ok(folder().join("add_sub.graphdef"))
    );
}
