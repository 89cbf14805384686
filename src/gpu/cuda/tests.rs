//! Tests of the real driver's code, against a library of the tests that has the prototypes of cuda.h and checks
//! arguments (tests/fixtures/libcuda.c). They do not show what a device does with the calls.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::*;
use crate::{Gpus, Settings};

/// Runs one ignored test of this file in a process that finds the library in CUDA's place, and returns its output.
fn beside_the_fake(test: &str, name: &str, more: &[&str], environment: &[(&str, &str)]) -> String {
    let output = run_beside_the_fake(test, name, more, environment);
    let text = output_of(&output);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// The same, however it ends.
fn run_beside_the_fake(test: &str, name: &str, more: &[&str], environment: &[(&str, &str)]) -> Output {
    let directory = std::env::temp_dir().join(format!("nereid-libcuda-{name}-{}", std::process::id()));
    let library = compile(&directory, more);
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", library.parent().unwrap())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    output
}

fn compile(directory: &Path, more: &[&str]) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let library = directory.join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/libcuda.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]).args(more).arg(source).arg("-o").arg(&library);
    let output = compiler.output().expect("the compiler that the build needs too");
    assert!(output.status.success(), "{}", output_of(&output));
    library
}

fn output_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_host_without_a_driver_has_none() {
    // The benchmark of a device covers an installed driver. SAFETY: as in `open`.
    if !unsafe { sys::is_culib_present() } {
        assert!(open().is_none());
    }
}

#[test]
fn every_call_reaches_the_driver_as_cuda_h_declares() {
    let text = beside_the_fake("each_call_has_its_effect", "whole", &[], &[]);
    // When the first context goes, only the program of the second is left.
    for expected in ["released device 0, 0 retained, 1 alive", "released device 1, 0 retained, 0 alive"] {
        assert_eq!(text.matches(expected).count(), 1, "{text}");
    }
    // Once for each device, and the one that lacks its function.
    assert_eq!(text.matches("compiled").count(), 3, "{text}");
}

#[test]
fn a_driver_that_cannot_be_used_is_none() {
    beside_the_fake("nothing_is_opened", "older", &["-DWITHOUT_GRAPHS"], &[]);
}

#[test]
fn a_driver_without_devices_is_one() {
    beside_the_fake("there_are_no_devices", "empty", &[], &[("FAKE_CUDA_HAS_NO_DEVICE", "1")]);
}

#[test]
fn recordings_of_others_forbid_nothing() {
    beside_the_fake("while_another_thread_records_all_is_allowed", "recording", &[], &[]);
}

#[test]
#[ignore = "needs the library of the tests: run by recordings_of_others_forbid_nothing"]
fn while_another_thread_records_all_is_allowed() {
    let driver = open().expect("the library of the tests");
    let functions = Functions::load().unwrap();
    let (recorded, stream) = (driver.create_stream(0).unwrap(), driver.create_stream(0).unwrap());
    let event = driver.create_event(0, EventOptions { sleeps: true, is_timed: false }).unwrap();
    // SAFETY: the stream lives until the end; 0 is the process-wide mode, in which ONNX Runtime records.
    assert_eq!(unsafe { (functions.begin_capture)(pointer(recorded.0), 0) }, 0);
    // A thread that the driver has not seen before.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let at = driver.allocate(0, 16).unwrap();
            driver.record(0, event, stream).unwrap();
            assert_eq!((driver.query(0, event), driver.query(0, event)), (Ok(false), Ok(true)));
            driver.synchronize(0, event).unwrap();
            // A library may exchange the mode of the thread: a query that is forbidden now counts as not complete yet.
            let mut mode = 0;
            // SAFETY: the place is ours.
            assert_eq!(unsafe { (functions.exchange_capture_mode)(&mut mode) }, 0);
            assert_eq!((mode, driver.query(0, event)), (RELAXED, Ok(false)));
            // SAFETY: it was allocated above, and nothing uses it.
            unsafe { driver.free(0, at).unwrap() };
        });
    });
    let mut graph = ptr::null_mut();
    // SAFETY: the recording that was begun above; the place is ours.
    assert_eq!(unsafe { (functions.end_capture)(pointer(recorded.0), &mut graph) }, 0);
}

#[test]
fn a_copy_is_waited_for_until_the_driver_reports_its_end() {
    let fails = |times: &'static str| [("FAKE_CUDA_SYNCHRONIZE_FAILS", times)];
    // More failures than the queries after which a flight is given up.
    beside_the_fake("a_copy_is_made", "patient", &[], &fails("150"));
    // The memory must not be returned while the copy may run.
    let output = run_beside_the_fake("a_copy_is_made", "endless", &[], &fails("1000000"));
    const SIGABRT: i32 = 6;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(SIGABRT), "{}", output_of(&output));
}

#[test]
#[ignore = "needs the library of the tests: run by a_copy_is_waited_for_until_the_driver_reports_its_end"]
fn a_copy_is_made() {
    let gpus = Gpus::discover(&Settings { pinned_pool_bytes: 0, ..Settings::default() });
    let gpu = gpus.get(0).expect("a device of the library of the tests");
    let mut back = [0; 4];
    let slice = gpu.put(&[1, 2, 3, 4]).unwrap();
    gpu.fetch(&slice, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4]);
}

#[test]
#[ignore = "needs the library of the tests: run by a_driver_without_devices_is_one"]
fn there_are_no_devices() {
    assert_eq!(open().map(|driver| (driver.name(), driver.device_count())), Some(("CUDA 12.4".to_owned(), 0)));
    let gpus = Gpus::discover(&Settings::default());
    assert!(gpus.is_supported() && gpus.ids().is_empty() && gpus.pinned().take(1).is_none());
}

#[test]
#[ignore = "needs the library of the tests: run by a_driver_that_cannot_be_used_is_none"]
fn nothing_is_opened() {
    // SAFETY: as in `open`.
    assert!(unsafe { sys::is_culib_present() }, "the library of the tests is found");
    assert!(open().is_none());
    let gpus = Gpus::discover(&Settings::default());
    assert!(!gpus.is_supported() && gpus.ids().is_empty());
}

static FAKE_ADD: Program = Program { name: "fake_add", ptx: ".version 6.4 fake_add\0", on_host: nothing };
static BROKEN: Program = Program { name: "broken", ptx: "broken", on_host: nothing };
static MISSING: Program = Program { name: "missing", ptx: ".version 6.4", on_host: nothing };

unsafe fn nothing(_: &[Argument]) {}

#[test]
#[ignore = "needs the library of the tests: run by every_call_reaches_the_driver_as_cuda_h_declares"]
fn each_call_has_its_effect() {
    let driver = open().expect("the library of the tests");
    assert_eq!((driver.name().as_str(), driver.device_count()), ("CUDA 12.4", 2));
    let described = driver.describe(1).unwrap();
    let expected = Description {
        name: "Fake 1".to_owned(),
        uuid: "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01".to_owned(),
        memory_bytes: 5_000_000_000,
        compute_capability: (8, 6),
        pci_address: "00ff:4b:00.0".to_owned(),
        numa_node: None,
    };
    assert_eq!(described, expected);
    assert_eq!(
        (driver.memory(0), driver.memory(1)),
        (Ok((4_000_000_000, 5_000_000_000)), Ok((4_000_000_001, 5_000_000_000)))
    );
    assert_eq!((driver.describe(2).unwrap_err().code, driver.enter(7).unwrap_err().code), (101, 101));
    assert_eq!((driver.enable_peer_access(0, 1), driver.enable_peer_access(0, 1)), (Ok(true), Ok(true)));
    assert_eq!(driver.enable_peer_access(1, 0), Ok(false));
    driver.enter(0).unwrap();
    assert!(
        !driver.is_simulated()
            && !driver.context(0).is_null()
            && driver.context(0) != driver.context(1)
            && driver.context(2).is_null()
    );
    errors(&*driver);
    for device in 0..2 {
        work(&*driver, device);
    }
    across(&*driver);
    // A thread that has used neither yet.
    std::thread::scope(|scope| scope.spawn(|| work(&*driver, 1)).join().unwrap());
}

fn errors(driver: &dyn Driver) {
    for (len, expected) in [
        (1 << 30, "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
        (700, "cuMemAlloc failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"),
        (4242, "cuMemAlloc failed: CUDA_ERROR (4242): an error that this driver does not name"),
    ] {
        assert_eq!(driver.allocate(0, len).unwrap_err().to_string(), expected);
    }
    let error = driver.load(0, &BROKEN).unwrap_err().to_string();
    let expected =
        "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed: line 1: no version";
    assert_eq!(error, expected);
    assert_eq!(driver.load(1, &MISSING).unwrap_err().code, 500);
}

fn work(driver: &dyn Driver, device: usize) {
    let (stream, other) = (driver.create_stream(device).unwrap(), driver.create_stream(device).unwrap());
    let polled = driver.create_event(device, EventOptions::default()).unwrap();
    let timed = EventOptions { sleeps: true, is_timed: true };
    let (from, to) = (driver.create_event(device, timed).unwrap(), driver.create_event(device, timed).unwrap());
    let at = driver.allocate(device, 100).unwrap();
    assert_eq!(driver.allocation_of(device, at.offset(99)), Ok((at, 100)));
    assert!(!driver.stream_pointer(stream).is_null() && driver.host_view(at, 1).is_none());
    let pinned = driver.allocate_pinned(100).unwrap();
    let kernel = driver.load(device, &FAKE_ADD).unwrap();
    assert_eq!(driver.load(device, &FAKE_ADD), Ok(kernel), "compiled once");
    let arguments = [Argument::Address(at), Argument::U64(96), Argument::U32(5), Argument::F32(1.5)];
    let extent = Extent { blocks: 3, threads: 64 };
    // SAFETY: all of it lives until it is freed below, and the library does everything at once.
    unsafe {
        pinned.write_bytes(7, 100);
        driver.copy_in(device, stream, at, pinned, 100).unwrap();
        driver.launch(device, stream, kernel, extent, &arguments, &[]).unwrap();
        driver.fill(device, stream, at, 1, 10).unwrap();
        driver.copy_across(device, stream, (device, at.offset(20)), (device, at), 10).unwrap();
        driver.record(device, polled, stream).unwrap();
        driver.wait(device, other, polled).unwrap();
        driver.copy_out(device, other, pinned, at, 100).unwrap();
        assert_eq!((driver.query(device, polled), driver.query(device, polled)), (Ok(false), Ok(true)));
        assert_eq!(driver.synchronize(device, polled).unwrap_err().code, 400, "that one does not sleep");
        driver.record(device, from, stream).unwrap();
        driver.record(device, to, stream).unwrap();
        driver.synchronize(device, to).unwrap();
        let there = driver.elapsed(device, from, to).unwrap().as_micros();
        let back = driver.elapsed(device, to, from).unwrap().as_micros();
        assert_eq!([there.min(back), there.max(back)], [1500, 2500]);
        assert_eq!(driver.elapsed(device, from, polled).unwrap_err().code, 400, "that one is not timed");
        let bytes = std::slice::from_raw_parts(pinned, 100);
        let mut expected = [12; 100];
        expected[..10].fill(1);
        expected[20..30].fill(1);
        expected[96..].copy_from_slice(&1.5f32.to_le_bytes());
        assert_eq!(bytes, expected);

        driver.begin_capture(device, stream).unwrap();
        driver.launch(device, stream, kernel, extent, &arguments, &[]).unwrap();
        driver.launch(device, stream, kernel, extent, &arguments, &[]).unwrap();
        let graph = driver.end_capture(device, stream).unwrap();
        for _ in 0..3 {
            driver.launch_graph(device, other, graph).unwrap();
        }
        driver.copy_out(device, stream, pinned, at, 1).unwrap();
        assert_eq!(*pinned, 1 + 3 * 2 * 5);
        driver.destroy_graph(device, graph);

        let handle = driver.ipc_export(device, at).unwrap();
        assert_eq!(driver.ipc_open(device, &handle), Ok(at));
        assert_eq!(driver.ipc_open(device, &[0xFF; 64]).unwrap_err().code, 1);
        driver.ipc_close(device, at).unwrap();
        driver.free(device, at).unwrap();
        assert!(driver.free(device, at).is_err());
        driver.free_pinned(pinned).unwrap();
        [polled, from, to].into_iter().for_each(|event| driver.destroy_event(device, event));
        driver.destroy_stream(device, stream);
        driver.destroy_stream(device, other);
    }
}

fn across(driver: &dyn Driver) {
    let stream = driver.create_stream(1).unwrap();
    let (near, far) = (driver.allocate(0, 10).unwrap(), driver.allocate(1, 10).unwrap());
    let mut bytes = [0; 10];
    // SAFETY: both allocations live until the end of this function, which waits for the work.
    unsafe {
        driver.fill(1, stream, near, 9, 10).unwrap();
        driver.copy_across(1, stream, (1, far), (0, near), 10).unwrap();
        assert_eq!(driver.copy_across(1, stream, (1, far), (1, near), 10).unwrap_err().code, 101);
        driver.copy_out(1, stream, bytes.as_mut_ptr(), far, 10).unwrap();
        driver.free(0, near).unwrap();
        assert!(driver.free(0, far).is_err(), "it is of the other one");
        driver.free(1, far).unwrap();
        driver.destroy_stream(1, stream);
    }
    assert_eq!(bytes, [9; 10]);
}
