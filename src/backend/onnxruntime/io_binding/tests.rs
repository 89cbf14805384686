//! The order of the library's calls for a run on a device, observed through a table of functions that records them.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ort::sys;

use crate::onnxruntime::fixtures::{context, runtime};
use crate::onnxruntime::instance::tests::add_sub;
use crate::onnxruntime::options::RunOptions;
use crate::onnxruntime::runtime::Runtime;
use crate::onnxruntime::session::Session;
use crate::onnxruntime::settings::SessionSettings;
use nereid_gpu::capture::{self, Held};

/// The library's own table, and the calls through the recording one.
static ORIGINAL: OnceLock<&'static sys::OrtApi> = OnceLock::new();
static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// One test at a time reads them.
static READING: Mutex<()> = Mutex::new(());

fn called(name: &str) -> &'static sys::OrtApi {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    ORIGINAL.get().expect("the table is there before what is made of it")
}

unsafe extern "system" fn bind_input(
    binding: *mut sys::OrtIoBinding,
    name: *const c_char,
    value: *const sys::OrtValue,
) -> sys::OrtStatusPtr {
    // SAFETY: the arguments are those that the library was called with; the original function gets them unchanged.
    unsafe { (called("bind").BindInput)(binding, name, value) }
}

unsafe extern "system" fn synchronize(binding: *mut sys::OrtIoBinding) -> sys::OrtStatusPtr {
    // SAFETY: the arguments are those that the library was called with; the original function gets them unchanged.
    unsafe { (called("synchronize").SynchronizeBoundInputs)(binding) }
}

unsafe extern "system" fn run(
    session: *mut sys::OrtSession,
    options: *const sys::OrtRunOptions,
    binding: *const sys::OrtIoBinding,
) -> sys::OrtStatusPtr {
    let name = match capture::held() {
        Held::Exclusive => "run alone",
        Held::Shared => "run",
        Held::Nothing => "run unprotected",
    };
    // SAFETY: the arguments are those that the library was called with; the original function gets them unchanged.
    unsafe { (called(name).RunWithBinding)(session, options, binding) }
}

unsafe extern "system" fn add_entry(
    options: *mut sys::OrtRunOptions,
    key: *const c_char,
    value: *const c_char,
) -> sys::OrtStatusPtr {
    // SAFETY: C strings by the interface's contract.
    let [key_text, value_text] = [key, value].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    // SAFETY: the arguments are those that the library was called with; the original function gets them unchanged.
    unsafe { (called(&format!("{key_text}={value_text}")).AddRunConfigEntry)(options, key, value) }
}

/// The library through the recording table, while the guard is held; `None`: there is no library, which was reported.
pub fn library_that_records() -> Option<(&'static Runtime, MutexGuard<'static, ()>)> {
    let runtime = runtime()?;
    let reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    ORIGINAL.get_or_init(|| runtime.api);
    let table = sys::OrtApi {
        BindInput: bind_input,
        SynchronizeBoundInputs: synchronize,
        RunWithBinding: run,
        AddRunConfigEntry: add_entry,
        ..runtime.api.clone()
    };
    taken();
    Some((Box::leak(Box::new(runtime.by(Box::leak(Box::new(table))))), reading))
}

/// The calls since the last call of this function.
pub fn taken() -> Vec<String> {
    std::mem::take(&mut CALLS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn only_early_runs_are_asked_to_return_early() {
    let Some((runtime, _reading)) = library_that_records() else { return };
    let settings = SessionSettings::parse(&context("add_sub", add_sub("add_sub", 8, &[4], &[4]))).unwrap();
    for (is_early, expected) in [(true, &["disable_synchronize_execution_providers=1"][..]), (false, &[])] {
        RunOptions::on_device(runtime, &settings, is_early).unwrap();
        assert_eq!(taken(), expected);
    }
}

/// The library refuses a session of which a node would be on the CPU, if an option requires that; here all nodes are.
#[test]
fn a_session_without_the_cpu_is_refused_where_a_node_is_on_it() {
    let Some(runtime) = runtime() else { return };
    let context = context("add_sub", add_sub("add_sub", 8, &[4], &[4]));
    let settings = SessionSettings::parse(&context).unwrap();
    let path = context.version_directory.join("add_sub.onnx");
    Session::open(runtime, &path, &settings, None).unwrap();
    let refused = Session::open(runtime, &path, &settings.without_cpu(), None).unwrap_err();
    assert!(refused.text.contains("fallback to CPU EP has been explicitly disabled"), "{refused}");
}
