//! How the library is recognised, without it.

use super::*;
use nereid_backend::scratch::Scratch;

#[test]
fn the_version_is_read_from_the_package_that_holds_the_library() {
    let scratch = Scratch::new("torch-version");
    let library = scratch.file("torch/lib/libtorch_cpu.so");
    assert_eq!(version_beside(&library), None);
    scratch
        .write("torch/include/torch/headeronly/version.h", b"#pragma once\n#define TORCH_VERSION \\\n  \"2.15.1\"\n");
    assert_eq!(version_beside(&library).as_deref(), Some("2.15.1"));
    scratch.write("torch/build-version", b"2.3.1+cpu\n");
    assert_eq!(version_beside(&library).as_deref(), Some("2.3.1+cpu"));
    scratch.write("torch/version.py", b"__all__ = ['__version__']\n__version__ = '2.15.0+cu132'\n");
    assert_eq!(version_beside(&library).as_deref(), Some("2.15.0+cu132"));
    // It becomes a folder's name.
    scratch.write("torch/version.py", b"__version__ = '../../2.15.0'\n");
    assert_eq!(version_beside(&library).as_deref(), Some("2.3.1+cpu"));
}

#[test]
fn a_library_of_another_kind_is_refused() {
    let scratch = Scratch::new("torch-foreign");
    let text = scratch.write("libtorch_cpu.so", b"not a library");
    assert!(matches!(open(&text), Err(LibraryError::Open(_))));
    let foreign = open(Path::new("libm.so.6")).unwrap_err();
    assert!(matches!(foreign, LibraryError::Foreign { title: "PyTorch", .. }), "{foreign}");
}
