//! The search in made-up trees of files.

use super::*;
use crate::onnxruntime::RUNTIME as KIND;
use crate::scratch::Scratch;

fn all(locations: &[SearchLocation]) -> Vec<PathBuf> {
    locations.iter().flat_map(|location| location.libraries.clone()).collect()
}

#[test]
fn places_come_in_their_order() {
    let scratch = Scratch::new("discovery-order");
    let setting = scratch.file("setting/lib.so");
    let ort = scratch.file("ort/libonnxruntime.so");
    let nereid = scratch.file("nereid/libonnxruntime.so.1.20.0");
    let user_old = scratch.file("data/nereid/runtimes/onnxruntime/1.9.0/libonnxruntime.so.1.9.0");
    let user_new = scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
    scratch.file("data/nereid/runtimes/onnxruntime/.unfinished-7/libonnxruntime.so.1.99.0");
    let beside = scratch.file("opt/lib/libonnxruntime.so.1.30.0");
    let below = scratch.file("opt/lib/nereid/runtimes/onnxruntime/1.29.0/libonnxruntime.so.1.29.0");
    let system = scratch.file("local/lib/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
    let venv = scratch.file("venv/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime.so.1.25.0");
    scratch.file("venv/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime_providers_shared.so");
    scratch.file("usr/bin/python3");
    let python = scratch.file("usr/lib/python3.11/dist-packages/onnxruntime/capi/libonnxruntime.so.1.24.0");
    scratch.file("usr/lib/perl/dist-packages/onnxruntime/capi/libonnxruntime.so.1.99.0");
    scratch.file("empty/readme");
    let path = std::env::join_paths([scratch.path("empty"), scratch.path("usr/bin")]).unwrap();
    let surroundings = Surroundings {
        library_setting: Some(setting.clone()),
        variables: vec![
            ("ORT_DYLIB_PATH", ort.clone()),
            // A folder is accepted as well as the file in it.
            ("NEREID_ONNXRUNTIME_LIBRARY", scratch.path("nereid")),
        ],
        data_home: Some(scratch.path("data")),
        installation: Some(scratch.path("opt")),
        system: Some(scratch.path("local")),
        virtual_env: Some(scratch.path("venv")),
        path: Some(path),
        library_path: None,
    };
    let locations = surroundings.locations(&KIND);
    assert_eq!(all(&locations), [setting, ort, nereid, user_new, user_old, beside, below, system, venv, python]);
    let explicit: Vec<bool> = locations.iter().map(|location| location.origin.is_explicit()).collect();
    assert_eq!(explicit, [true, true, true, false, false, false, false, false]);
}

#[test]
fn an_installed_build_for_gpus_goes_before_newer_ones_without() {
    let scratch = Scratch::new("discovery-gpu");
    let newest = scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
    let gpu = scratch.file("data/nereid/runtimes/onnxruntime/1.20.1-gpu/libonnxruntime.so.1.20.1");
    scratch.file("data/nereid/runtimes/onnxruntime/1.20.1-gpu/libonnxruntime_providers_cuda.so");
    let surroundings = Surroundings { data_home: Some(scratch.path("data")), ..Surroundings::default() };
    assert_eq!(all(&surroundings.locations(&KIND)), [gpu.clone(), newest.clone()]);
    assert!(
        KIND.computes_on_gpus(&gpu)
            && !KIND.computes_on_gpus(&newest)
            && !KIND.computes_on_gpus(Path::new("absent.so"))
    );
}

#[test]
fn a_bare_host_has_places_but_no_libraries() {
    let locations = Surroundings::default().locations(&KIND);
    assert_eq!(locations.len(), 8);
    assert!(all(&locations).is_empty());
    let scratch = Scratch::new("discovery-bare");
    let missing = Surroundings { data_home: Some(scratch.path("none")), ..Surroundings::default() };
    let location = &missing.locations(&KIND)[3];
    assert!(location.libraries.is_empty());
    assert!(location.searched_path.ends_with("none/nereid/runtimes/onnxruntime"), "{}", location.searched_path);
}

#[test]
fn a_program_belongs_to_the_installation_around_it() {
    let scratch = Scratch::new("discovery-installation");
    let program = scratch.file("opt/bin/nereid");
    assert_eq!(installation_of(&program), None, "a program in any bin is no installation");
    scratch.file("opt/lib/libtritonserver.so");
    assert_eq!(installation_of(&program), Some(scratch.path("opt")));
    let surroundings = Surroundings { installation: Some(scratch.path("opt")), ..Surroundings::default() };
    assert_eq!(surroundings.shared_runtimes(), [scratch.path("opt/lib/nereid/runtimes")]);
}

#[test]
fn a_named_file_is_a_candidate_even_if_it_is_missing() {
    let surroundings =
        Surroundings { variables: vec![("ORT_DYLIB_PATH", "libonnxruntime.so".into())], ..Surroundings::default() };
    assert_eq!(all(&surroundings.locations(&KIND)), [PathBuf::from("libonnxruntime.so")]);
}

#[test]
fn the_prefix_of_a_virtual_environment_comes_before_the_one_behind_its_link() {
    let scratch = Scratch::new("discovery-links");
    let base = scratch.file("base/bin/python3.11");
    scratch.file("venv/bin/activate");
    std::os::unix::fs::symlink(&base, scratch.path("venv/bin/python3")).unwrap();
    let inner = scratch.file("venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.20.1");
    let surroundings =
        Surroundings { path: Some(scratch.path("venv/bin").into_os_string()), ..Surroundings::default() };
    assert_eq!(surroundings.python_prefixes(), [scratch.path("venv"), scratch.path("base")]);
    assert_eq!(all(&surroundings.locations(&KIND)), [inner]);
}

#[test]
fn versions_are_compared_as_numbers() {
    let mut names: Vec<PathBuf> =
        ["libonnxruntime.so", "libonnxruntime.so.1.9.1", "libonnxruntime.so.1.31.0", "libonnxruntime.so.1"]
            .map(PathBuf::from)
            .to_vec();
    sort_newest_first(&KIND, &mut names);
    let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    assert_eq!(
        names,
        ["libonnxruntime.so.1.31.0", "libonnxruntime.so.1.9.1", "libonnxruntime.so.1", "libonnxruntime.so"]
    );
}

#[test]
fn the_smaller_library_comes_behind_the_first_and_the_folders_of_the_loader_last() {
    let kind = RuntimeKind {
        stem: "libnvinfer.so",
        smaller_stem: Some("libnvinfer_lean.so"),
        loader_folders: &["/nonexistent/lib"],
        ..KIND
    };
    let scratch = Scratch::new("discovery-smaller");
    let lean = scratch.file("given/libnvinfer_lean.so.11");
    let full = scratch.file("given/libnvinfer.so.10");
    scratch.file("given/libnvinfer_plugin.so.11");
    let of_loader = scratch.file("loader/libnvinfer.so.10");
    let surroundings = Surroundings {
        library_setting: Some(scratch.path("given")),
        library_path: Some(scratch.path("loader").into()),
        ..Surroundings::default()
    };
    assert_eq!(all(&surroundings.locations(&kind)), [full, lean, of_loader.clone()]);
    assert!(!all(&surroundings.locations(&KIND)).contains(&of_loader), "not of a runtime without such folders");
    let missing = Surroundings::default().find(&kind, |_| -> Result<(), LibraryError> { unreachable!() }).unwrap_err();
    let end = "LD_LIBRARY_PATH and the system's libraries: no libnvinfer.so in /nonexistent/lib";
    assert!(missing.searched.ends_with(end), "{}", missing.searched);
}
