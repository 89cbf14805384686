//! Which compiler and which compiled shim are found; and, with the PyTorch of this host, what a compilation leaves.

use super::*;
use crate::fixtures::pytorch;
use nereid_backend::scratch::Scratch;

#[test]
fn without_a_compiler_the_error_names_those_that_were_tried_and_the_next_step() {
    let programs = vec!["/nonexistent/g++".into(), "/nonexistent/c++".into()];
    let error = Compiler::first_of(programs, "2.15.0").unwrap_err().to_string();
    assert_eq!(
        error,
        "PyTorch models need a C++ compiler once, which compiles the server's interface to PyTorch 2.15.0, and there \
         is none: /nonexistent/g++ is not on the PATH, /nonexistent/c++ is not on the PATH. Install one, on Debian: \
         apt install g++; then load the model again"
    );
}

#[test]
fn the_first_compiler_that_works_is_taken() {
    let Ok(compiler) = Compiler::first_of(vec!["/nonexistent/g++".into(), "g++".into()], "2.15.0") else {
        nereid_test_support::skip::skip("there is no g++");
        return;
    };
    assert_eq!(compiler.program, "g++");
    assert!(!compiler.description.is_empty());
}

#[test]
fn shims_of_another_pytorch_are_passed_over() {
    let scratch = Scratch::new("shim-prefix");
    scratch.file("2.15.0-0a-11.so");
    scratch.file("2.15.0-0b-11.so");
    scratch.file("2.15.0-0a-22.so");
    scratch.file("2.15.0-0a-33.txt");
    let found = files_with_prefix(&scratch.path(""), "2.15.0-0a-");
    assert_eq!(found, [scratch.path("2.15.0-0a-11.so"), scratch.path("2.15.0-0a-22.so")]);
    assert!(files_with_prefix(&scratch.path("absent"), "2").is_empty());
}

#[test]
fn a_shim_that_cannot_be_opened_is_compiled_again_and_one_that_can_needs_no_compiler() {
    let Some((torch, _)) = pytorch() else { return };
    let scratch = Scratch::new("shim-compiled");
    let folder = scratch.path("shims");
    let compiler = Compiler::find(torch.version()).unwrap();
    let file = format!("shims/{}", name(torch, &compiler));
    scratch.write(&file, b"damaged");
    let mut reports = Vec::new();
    let mut report = |text: &str| reports.push(text.to_owned());
    open_or_compile(torch, Ok(compiler), &folder, &mut report).unwrap();
    assert!(reports[0].starts_with("Compiling the interface to PyTorch 2."), "{reports:?}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing but the shim is left");
    let none = || Compiler::first_of(Vec::new(), torch.version());
    let mut no_report = |text: &str| panic!("{text}");
    open_or_compile(torch, none(), &folder, &mut no_report).unwrap();
    let empty = scratch.path("empty");
    assert!(matches!(open_or_compile(torch, none(), &empty, &mut no_report), Err(ShimError::NoCompiler { .. })));
}

#[test]
fn a_compilers_first_complaint_is_the_reason() {
    let finished =
        |script: &str| helper_program::run(Command::new("sh").args(["-c", script]), VERSION_TIME_MAX).unwrap();
    let text = "shim.cpp:1: note: in file; shim.cpp:2: error: no member named 'x'; shim.cpp:3: error: then";
    let printed = finished(&format!("printf '%s' \"{text}\" | tr ';' '\\n' >&2"));
    assert_eq!(first_error(&printed), "shim.cpp:2: error: no member named 'x'");
    assert_eq!(first_error(&finished("exit 3")), "exit status: 3");
}
