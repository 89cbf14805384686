//! Installation with a made-up python3, so that no test needs a network.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;
use crate::cli::runtime::distributions;
use crate::cli::runtime::distributions::Package;
use nereid_backend::onnxruntime::fixtures::surroundings;
use nereid_backend::onnxruntime::{inspect, locate};
use nereid_backend::scratch::Scratch;
use nereid_test_support::skip::skip;

/// Records each step.
#[derive(Default)]
struct RecordedProgress(Vec<String>);

impl Progress for RecordedProgress {
    fn step(&mut self, what: &str) {
        self.0.push(what.to_owned());
    }

    fn done(&mut self, what: &str) {
        self.0.push(what.to_owned());
    }
}

fn onnxruntime() -> &'static Distribution {
    distributions::find("onnxruntime", false).unwrap()
}

fn tested_version() -> &'static str {
    onnxruntime().first().tested_version
}

/// A python3 whose pip "downloads" an empty wheel of `offered`, and whose unpacking copies `library`.
fn python(scratch: &Scratch, offered: &str, library: &Path) -> Python {
    let script = format!(
        r#"#!/bin/sh
case "$*" in
  --version) echo Python 3.11.2 ;;
  "-m pip --version") echo pip 23 ;;
  "-m pip download"*)
    for word in "$@"; do
      case "$word" in
        onnxruntime==*) wanted="${{word#onnxruntime==}}" ;;
        onnxruntime-gpu*) package=onnxruntime_gpu; wanted="${{word#onnxruntime-gpu}}"; wanted="${{wanted#==}}" ;;
      esac
      [ "$before" = --dest ] && dest="$word"
      before="$word"
    done
    case "$wanted" in ">="*) wanted= ;; esac
    if [ -n "$wanted" ] && [ "$wanted" != {offered} ]; then
      echo "ERROR: No matching distribution found for onnxruntime==$wanted" >&2
      exit 1
    fi
    : > "$dest/${{package:-onnxruntime}}-{offered}-cp311-cp311-manylinux_2_28_x86_64.whl" ;;
  -c*) cp "{library}" "$4/libonnxruntime.so.{offered}" ;;
  *) exit 9 ;;
esac
"#,
        library = library.display()
    );
    let file = scratch.write("python3", script.as_bytes());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    // A process that another test starts at this moment may have the file open for writing until it runs its own
    // program.
    let is_busy = |error: io::Error| error.kind() == io::ErrorKind::ExecutableFileBusy;
    while Command::new(&file).arg("--version").output().is_err_and(is_busy) {
        std::thread::yield_now();
    }
    Python::at(file)
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn without_python_or_pip_the_error_names_the_next_step() {
    let scratch = Scratch::new("install-python");
    let folder = scratch.path("runtimes");
    let install = |python: &Python| {
        install_into(onnxruntime(), &folder, python, &InstallOptions::default(), &mut RecordedProgress::default())
    };
    let error = install(&Python::at(scratch.path("missing"))).unwrap_err();
    assert!(error.to_string().contains("--backend-config=onnxruntime,library=<path>"), "{error}");
    let file =
        scratch.write("python3", b"#!/bin/sh\n[ \"$1\" = --version ] || { echo No module named pip >&2; exit 1; }\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let error = install(&Python::at(file)).unwrap_err();
    assert!(error.to_string().contains("No module named pip"), "{error}");
    assert!(entries(&folder).is_empty(), "nothing is left behind");
}

#[test]
fn a_package_that_is_not_a_library_is_not_installed() {
    let scratch = Scratch::new("install-broken");
    let folder = scratch.path("runtimes");
    let python = python(&scratch, tested_version(), &scratch.write("text", b"no library"));
    let error =
        install_into(onnxruntime(), &folder, &python, &InstallOptions::default(), &mut RecordedProgress::default())
            .unwrap_err();
    assert!(matches!(error, InstallError::Unusable(LibraryError::Open(_))), "{error}");
    assert!(entries(&folder).is_empty());
}

#[test]
fn a_requested_version_that_is_not_offered_is_an_error() {
    let scratch = Scratch::new("install-version");
    let python = python(&scratch, "1.20.1", &scratch.write("text", b"no library"));
    let options = InstallOptions { version: Some("1.19.0".to_owned()), ..InstallOptions::default() };
    let error =
        install_into(onnxruntime(), &scratch.path("runtimes"), &python, &options, &mut RecordedProgress::default())
            .unwrap_err();
    assert!(matches!(&error, InstallError::NoSuchVersion { version, .. } if version == "1.19.0"), "{error}");
}

#[test]
fn without_an_index_the_network_is_named() {
    let scratch = Scratch::new("install-network");
    let script = "#!/bin/sh\ncase \"$*\" in *download*) echo 'WARNING: Retrying after connection broken' >&2; \
                  echo 'ERROR: No matching distribution found' >&2; exit 1 ;; esac\n";
    let file = scratch.write("python3", script.as_bytes());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let options = InstallOptions::default();
    let error =
        install_into(onnxruntime(), &scratch.path("r"), &Python::at(file), &options, &mut RecordedProgress::default())
            .unwrap_err();
    assert!(matches!(error, InstallError::Download { .. }), "{error}");
}

#[test]
fn remains_of_dead_installations_are_removed_and_those_of_living_ones_kept() {
    let scratch = Scratch::new("install-remains");
    // Process ids end at 2^22 (proc(5), pid_max).
    scratch.file("r/.unfinished-4194999-0/half");
    let own = format!("r/.unfinished-{}-999/half", std::process::id());
    scratch.file(&own);
    scratch.file("r/1.20.1/libonnxruntime.so.1.20.1");
    remove_abandoned(&scratch.path("r"));
    assert_eq!(entries(&scratch.path("r")), [&format!(".unfinished-{}-999", std::process::id()), "1.20.1"]);
}

#[test]
fn a_library_is_installed_once_and_again_only_by_force() {
    let Ok(found) = locate(&surroundings()) else {
        skip("no ONNX Runtime library on this host");
        return;
    };
    let scratch = Scratch::new("install-works");
    let folder = scratch.path("runtimes");
    let python = python(&scratch, "1.2.3", &found.path);
    let mut progress = RecordedProgress::default();
    // The tested version is not offered here, so the newest one is taken.
    let path = install_into(onnxruntime(), &folder, &python, &InstallOptions::default(), &mut progress).unwrap();
    assert_eq!(path, folder.join("1.2.3/libonnxruntime.so.1.2.3"));
    assert_eq!(inspect(&path).unwrap().version, found.version);
    assert_eq!(entries(&folder), ["1.2.3"]);
    assert!(progress.0.iter().any(|step| step.contains("newest")), "{:?}", progress.0);

    let nothing = Python::at(scratch.path("missing"));
    let again = InstallOptions { version: Some("1.2.3".to_owned()), ..InstallOptions::default() };
    assert_eq!(install_into(onnxruntime(), &folder, &nothing, &again, &mut progress).unwrap(), path);
    let forced = InstallOptions { force: true, ..again };
    assert!(matches!(
        install_into(onnxruntime(), &folder, &nothing, &forced, &mut progress),
        Err(InstallError::NoPython { .. })
    ));
    assert!(path.exists(), "a failed attempt leaves what was there");
    assert_eq!(install_into(onnxruntime(), &folder, &python, &forced, &mut progress).unwrap(), path);
    assert_eq!(entries(&folder), ["1.2.3"]);
    // The build for GPUs is another package, beside the other one.
    let gpu = distributions::find("onnxruntime", true).unwrap();
    let other = install_into(gpu, &folder, &python, &InstallOptions::default(), &mut progress).unwrap();
    assert_eq!(other, folder.join("1.2.3-gpu/libonnxruntime.so.1.2.3"));
    assert!(progress.0.iter().any(|step| step.contains("onnxruntime-gpu")), "{:?}", progress.0);
    assert_eq!(entries(&folder), ["1.2.3", "1.2.3-gpu"]);
}

#[test]
fn only_the_library_is_unpacked_from_a_wheel() {
    let python = Python::default();
    if python.check("onnxruntime").is_err() {
        skip("no python3 with pip on this host");
        return;
    }
    let scratch = Scratch::new("install-unpack");
    let wheel = scratch.path("x.whl");
    let write = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for name in sys.argv[2:]:
        archive.writestr(name, name)
"#;
    let make = |names: &[&str]| {
        let mut command = std::process::Command::new("python3");
        assert!(command.args(["-c", write]).arg(&wheel).args(names).status().unwrap().success());
    };
    make(&[
        "onnxruntime/capi/libonnxruntime.so.1.2.3",
        "onnxruntime/capi/libonnxruntime_providers_shared.so",
        "onnxruntime/capi/../../../libonnxruntime.so.evil",
        "onnxruntime/__init__.py",
    ]);
    let gpu = distributions::find("onnxruntime", true).unwrap().first();
    let target = scratch.path("out");
    fs::create_dir_all(&target).unwrap();
    python.unpack(onnxruntime().first(), &wheel, &target).unwrap();
    assert_eq!(entries(&target), ["libonnxruntime.so.1.2.3"]);
    let beside = scratch.path("gpu");
    fs::create_dir_all(&beside).unwrap();
    python.unpack(gpu, &wheel, &beside).unwrap();
    assert_eq!(entries(&beside), ["libonnxruntime.so.1.2.3", "libonnxruntime_providers_shared.so"]);
    make(&["onnxruntime/capi/libonnxruntime_providers_shared.so"]);
    assert!(python.unpack(gpu, &wheel, &beside).is_err(), "no library among them");
    make(&["onnxruntime/__init__.py"]);
    let error = python.unpack(onnxruntime().first(), &wheel, &target).unwrap_err();
    assert!(error.to_string().contains("no onnxruntime/capi/libonnxruntime.so"), "{error}");
}

#[test]
fn folders_of_a_wheel_are_kept_and_files_can_be_left_out() {
    let python = Python::default();
    if python.check("onnxruntime").is_err() {
        skip("no python3 with pip on this host");
        return;
    }
    let scratch = Scratch::new("install-folders");
    let wheel = scratch.path("x.whl");
    let write = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for name in sys.argv[2:]:
        archive.writestr(name, name)
"#;
    let names = [
        "p/libs/libp.so",
        "p/libs/libq_gpu.so",
        "p/libs/deep/libr.so",
        "p.libs/libgomp-1.so",
        "p/x.py",
        "/p/libs/libs.so",
    ];
    let mut command = std::process::Command::new("python3");
    assert!(command.args(["-c", write]).arg(&wheel).args(names).status().unwrap().success());
    let package = Package {
        name: "p",
        tested_version: "1",
        oldest_version: "1",
        files: &["p/libs/*", "!*_gpu.so", "p.libs/libgomp-*"],
        strip: "",
    };
    let target = scratch.path("out");
    fs::create_dir_all(&target).unwrap();
    python.unpack(&package, &wheel, &target).unwrap();
    assert_eq!(entries(&target), ["p", "p.libs"]);
    assert_eq!(entries(&target.join("p")), ["libs"]);
    assert_eq!(entries(&target.join("p/libs")), ["deep", "libp.so"]);
    finish_files(&target, true).unwrap();
    let mode = |path: &str| fs::metadata(target.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("p/libs/deep"), mode("p/libs/deep/libr.so")), (0o755, 0o755));
}

#[test]
fn every_runtime_is_known_by_its_name() {
    assert_eq!(distributions::names()[0], "onnxruntime");
    for name in distributions::names() {
        let one = distributions::find(name, false).unwrap();
        assert_eq!(one.runtime.name, name);
        assert!(!one.packages.is_empty() && !one.first().files.is_empty());
    }
    assert!(distributions::find("onnxruntime", true).unwrap().is_for_gpus);
    assert!(distributions::find("torch", false).is_err_and(|error| error.starts_with("unknown runtime 'torch'")));
}
