//! The library itself: how it is found, refused and called.

use super::*;
use crate::fixtures::runtime;
use nereid_backend::scratch::Scratch;
use nereid_memory::Slice;
use nereid_request::{Code, DataType, Status};

#[test]
fn other_files_are_refused() {
    let scratch = Scratch::new("openvino-foreign");
    let text = scratch.write("libopenvino_c.so.1", b"not a library");
    assert!(matches!(version(&text), Err(LibraryError::Open(_))));
    let surroundings = Surroundings { library_setting: Some(text), ..Surroundings::default() };
    let missing = surroundings.find(&KIND, Runtime::open).unwrap_err();
    let text = missing.to_string();
    assert!(text.starts_with("OpenVINO is not available (--backend-config=openvino,library: "), "{text}");
    assert!(text.ends_with("Install it with: nereid runtime install openvino"), "{text}");
    assert_eq!(Status::from(missing).code, Code::Unavailable);
    let libm = ["libm.so.6", "libgcc_s.so.1"].into_iter().find_map(|name| match version(Path::new(name)) {
        Err(LibraryError::Open(_)) => None,
        other => Some(other),
    });
    let foreign = LibraryError::Foreign { title: "OpenVINO", symbol: "ov_get_openvino_version" };
    assert_eq!(libm.expect("every host has one of these"), Err(foreign));
}

#[test]
fn the_library_of_a_python_package_is_found_and_names_its_version() {
    let Some((runtime, _)) = runtime() else { return };
    assert!(runtime.version().split('.').count() >= 3, "{runtime:?}");
    let packages = runtime.path.ancestors().nth(5).expect("…/lib/python3.x/site-packages/openvino/libs").to_owned();
    if packages.join("lib").is_dir() {
        let surroundings =
            Surroundings { virtual_env: packages.parent().map(Path::to_owned), ..Surroundings::default() };
        let found = surroundings.candidate(&KIND).expect("the library in the virtual environment");
        assert_eq!(found.canonicalize().unwrap(), runtime.path);
    }
}

#[test]
fn errors_name_the_step_and_contain_the_librarys_text() {
    let Some((runtime, models)) = runtime() else { return };
    let core = Core::new(runtime).unwrap();
    let Err(error) = core.read(&models.join("absent.xml")) else { panic!("it is read") };
    let text = error.to_string();
    assert!(text.starts_with("openvino error in reading model : "), "{text}");
    assert_eq!(Status::from(error).code, Code::Internal);
    let error = core.add_extension("/nowhere/extension.so").unwrap_err().to_string();
    assert!(error.starts_with("openvino error in configuring openvino core : "), "{error}");
    let network = core.read(&models.join("add_sub.xml")).unwrap();
    let Err(error) = core.compile(&network, "NOWHERE", &[]) else { panic!("it is compiled") };
    assert!(error.to_string().starts_with("openvino error in loading model : "), "{error}");
    let Err(error) = core.compile(&network, "zero\0byte", &[]) else { panic!("it is compiled") };
    assert_eq!(error.to_string(), "openvino error in loading model : a text contains a zero byte");
    // The library checks properties when a model is compiled.
    core.set_properties("CPU", &[("NO_SUCH_PROPERTY", "1".to_owned())]).unwrap();
    let Err(error) = core.compile(&network, "CPU", &[]) else { panic!("it is compiled") };
    assert!(error.to_string().contains("NO_SUCH_PROPERTY"), "{error}");
}

#[test]
fn runs_check_the_memory_that_they_are_given() {
    let Some((runtime, models)) = runtime() else { return };
    let core = Core::new(runtime).unwrap();
    let network = core.read(&models.join("matmul.xml")).unwrap();
    let compiled = core.compile(&network, "CPU", &[]).unwrap();
    let mut request = compiled.infer_request(&compiled.outputs().unwrap()).unwrap();
    let (bytes, none) = (Slice::copy_of(&[0; 32]), Slice::empty());
    let input = HostInput { datatype: DataType::Fp32, shape: &[1, 8], bytes: &bytes };
    let run = |request: &mut InferRequest, input: HostInput<'_>| {
        request.run(&[input], &mut [OutputMemory::Own]).map(|shapes| shapes[0].to_vec())
    };
    assert_eq!(run(&mut request, input), Ok(vec![1, 4]));
    assert_eq!(request.own_output(0).unwrap(), [1f32; 4].map(f32::to_le_bytes).concat());
    assert!(request.own_output(1).is_err());
    let short = HostInput { shape: &[2, 8], ..input };
    let error = run(&mut request, short).unwrap_err();
    assert_eq!(error.to_string(), "expected 64 bytes of data in input buffer, got 32 bytes.");
    assert_eq!(Status::from(error).code, Code::Unsupported);
    for shape in [&[-1, 8][..], &[i64::MAX, 8]] {
        assert!(matches!(run(&mut request, HostInput { shape, ..input }), Err(OpenVinoError::ByteSize { .. })));
    }
    let error = run(&mut request, HostInput { shape: &[8, 1], ..input }).unwrap_err().to_string();
    assert!(error.starts_with("openvino error in setting tensor data : "), "{error}");
    let error = request.run(&[], &mut [OutputMemory::Own]).unwrap_err().to_string();
    assert_eq!(error, "openvino error in setting tensor data : the model has 1 inputs and 1 outputs");
    // It goes on after errors, with no rows as well.
    assert_eq!(run(&mut request, HostInput { shape: &[0, 8], bytes: &none, ..input }), Ok(vec![0, 4]));
    assert_eq!(run(&mut request, input), Ok(vec![1, 4]));
}

#[test]
fn properties_are_set_with_the_variadic_functions_of_older_libraries_as_well() {
    let Some((runtime, models)) = runtime() else { return };
    // The table again, without the functions that older libraries lack.
    let mut older = Runtime::open(&runtime.path).unwrap();
    older.functions.ov_core_set_properties = None;
    older.functions.ov_core_compile_model_props = None;
    older.functions.ov_get_last_err_msg = None;
    let older: &'static Runtime = Box::leak(Box::new(older));
    let core = Core::new(older).unwrap();
    let text = |text: &str| text.to_owned();
    core.set_properties("CPU", &[("INFERENCE_NUM_THREADS", text("2")), ("NUM_STREAMS", text("2"))]).unwrap();
    let network = core.read(&models.join("add_sub.xml")).unwrap();
    let streams = |properties: &[(&str, String)]| {
        core.compile(&network, "CPU", properties).unwrap().property("PERFORMANCE_HINT").unwrap_or_default()
    };
    let core_only = core.compile(&network, "CPU", &[]).unwrap();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(core_only.property("INFERENCE_NUM_THREADS"), Some(cpus.min(2).to_string()));
    assert_eq!(streams(&[("PERFORMANCE_HINT", text("THROUGHPUT"))]), "THROUGHPUT");
    assert_eq!(
        streams(&[("INFERENCE_PRECISION_HINT", text("f32")), ("PERFORMANCE_HINT", text("THROUGHPUT"))]),
        "THROUGHPUT"
    );
    let Err(error) = core.compile(&network, "NOWHERE", &[]) else { panic!("it is compiled") };
    assert!(error.to_string().starts_with("openvino error in loading model : "), "{error}");
}
