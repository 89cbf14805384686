//! The places of virtual functions, compared with those that NVIDIA's own client calls.

use nereid_backend::runtime_search::OpenedLibrary;
use nereid_test_support::python::Python;

use super::*;
use crate::described::{Described, shape_of};
use crate::fixtures::{Devices, library, stand_in};

const EXPECTED: &str = "\
dla 2 1
junk None
refused None
log ['Magic tag does not match', 'Cannot deserialize engine with lean runtime']
tensors ['A', 'S', 'B'] 2
A INPUT FLOAT (-1, 4) DEVICE False 1 -1
S INPUT INT64 (2,) HOST True 1 -1
B OUTPUT FLOAT (-1, 4) DEVICE False 1 -1
bounds [(4, 4), (6, 4), (8, 4)]
values [[1, 1], [5, 6], [8, 8]]
profile True 1
outside False
inside True (5, 4)
missing [None]
addresses [True, True, True] []
allocator True
enqueued False
live 3
live 1
";

/// The stand-in has each method at its place in the tables: NVIDIA's Python package, which is compiled against NVIDIA's
/// headers, gets the right answer from each. The tests of this crate call the stand-in at the places of [`abi`].
#[test]
fn the_client_of_nvidia_calls_the_places_that_the_stand_in_has() {
    for (requirements, file) in
        [("tensorrt_10.txt", "libnvinfer_lean.so.10"), ("tensorrt.txt", "libnvinfer_lean.so.11")]
    {
        let (Some(library), Some(python)) = (stand_in(&format!("lean/{file}")), Python::with(requirements)) else {
            return;
        };
        let mut client = python.command("tensorrt_client.py");
        let folder = library.parent().unwrap();
        let output = client.arg(&library).env("LD_LIBRARY_PATH", folder).output().expect("the client starts");
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(text, EXPECTED, "{file}: {errors}");
    }
}

/// The same library through this crate.
#[test]
fn an_engine_is_described_as_the_client_of_nvidia_sees_it() {
    let plan = "nereid-plan 2\ninput A 0 -1 4\ninput S 8 2\noutput B 0 -1 4\n\
                bounds 0 A 1 4 / 2 4 / 4 4\nbounds 1 A 4 4 / 6 4 / 8 4\nbounds 0 S 2 / 2 / 2\nbounds 1 S 2 / 2 / 2\n\
                shape S\nvalues 0 S 1 1 / 2 3 / 4 4\nvalues 1 S 1 1 / 5 6 / 8 8\ncopy B A\n";
    for major in [10, 11] {
        let Some(library) = library(major) else { return };
        let devices = Devices::new(3);
        let gpu = devices.gpus.get(0).unwrap();
        let runtime = std::sync::Arc::new(Runtime::new(library, gpu).unwrap());
        assert_eq!(runtime.dla_cores(), 2);
        let refused = runtime.engine(plan.as_bytes()).map(drop).unwrap_err();
        assert!(refused.contains("Cannot deserialize engine with lean runtime"), "{refused}");
        runtime.allow_host_code();
        let engine = std::sync::Arc::new(runtime.engine(plan.as_bytes()).unwrap());
        let described = Described::of(&engine).unwrap();
        assert_eq!((described.inputs.len(), described.outputs.len(), described.profiles), (2, 1, 2));
        let (a, s) = (&described.inputs[0], &described.inputs[1]);
        assert_eq!((&a.name[..], &a.shape[..], &a.shapes[1].max[..]), ("A", &[-1, 4][..], &[8, 4][..]));
        assert!(s.is_shape_tensor && s.is_on_host && !a.is_shape_tensor && !a.is_on_host);
        assert_eq!((&s.values[0].min[..], &s.values[1].opt[..]), (&[1, 1][..], &[5, 6][..]));
        let stream = gpu.stream().unwrap();
        let mut context = engine.context(AllocationStrategy::OnProfileChange).unwrap();
        assert!(context.set_profile(1, &stream) && !context.set_profile(2, &stream));
        let dims = |rows| crate::described::dims_of(&[rows, 4]).unwrap();
        assert!(!context.set_input_shape(&a.c_name, &dims(9)) && context.set_input_shape(&a.c_name, &dims(5)));
        assert_eq!(shape_of(&context.tensor_shape(&described.outputs[0].c_name)).unwrap()[..], [5, 4]);
        assert_eq!(context.missing_shapes(), 1, "the values of S");
    }
}

/// As NVIDIA's library, the stand-in returns an offset from null when it fails.
#[test]
fn a_runtime_that_cannot_be_created_is_an_error_with_the_text_of_the_library() {
    for file in ["without-runtime/libnvinfer.so.10", "without-runtime/libnvinfer.so.11"] {
        let Some(library) = stand_in(file) else { return };
        let devices = Devices::new(3);
        let runtime = Runtime::new(Library::opened_at(&library), devices.gpus.get(0).unwrap());
        let text = "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)";
        assert_eq!(runtime.map(drop).unwrap_err(), text, "{file}");
    }
}

/// NVIDIA's own library calls the logger, and what it says is the error: without a driver that of the runtime's
/// creation, else that of a plan which is none.
#[test]
fn the_lean_runtime_reports_its_errors_through_the_logger() {
    let Some(python) = Python::with("tensorrt_lean.txt") else { return };
    let library = Library::opened_at(&python.packages().join("tensorrt_lean_libs/libnvinfer_lean.so.11"));
    assert_eq!((library.version(), library.is_for_simulated()), ("11.4.0", false));
    let devices = Devices::new(3);
    let text = match Runtime::new(library, devices.gpus.get(0).unwrap()) {
        Ok(runtime) => std::sync::Arc::new(runtime).engine(b"junk").map(drop).unwrap_err(),
        Err(text) => text,
    };
    assert!(text.contains("Error Code"), "{text}");
}

/// The stand-in ends the process if an object is deleted before those that need it.
#[test]
fn all_objects_are_deleted_in_their_order() {
    let Some(path) = stand_in("counted/libnvinfer.so.11") else { return };
    // SAFETY: it is open already, or opened as any library of the backend is.
    let counting = unsafe { libloading::Library::new(&path) }.unwrap();
    // SAFETY: the stand-in declares it so.
    let live = || unsafe { counting.get::<unsafe extern "C" fn() -> i32>("nereid_live_objects").unwrap()() };
    let library = Library::opened_at(&path);
    for _ in 0..3 {
        let opened = crate::fixtures::open(library, "counted", crate::fixtures::ADD_SUB, Default::default()).unwrap();
        assert_eq!(live(), 3, "a runtime, an engine, a context");
        drop(opened);
        assert_eq!(live(), 0);
    }
}
