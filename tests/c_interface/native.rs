//! Triton's C interfaces from C: programs that link the library, each written against the header of `include/`.
//!
//! A program checks single calls with `check.h` and exits with 0. It must have done all checks: the names in its source
//! and those that it printed must be the same.

mod custom_metrics;
mod elf;
mod in_process;
mod inference;
mod installed;
mod interface;
pub mod program;
mod valgrind;

use program::Program;

#[test]
fn numbers_have_names() {
    let Some(program) = Program::compiled("names.c") else { return };
    program.run::<&str>(&[]);
    program.run_checked::<&str>(&[]);
}

#[test]
fn objects_are_what_was_put_into_them() {
    let Some(program) = Program::compiled("standalone.c") else { return };
    program.run::<&str>(&[]);
    program.run_checked::<&str>(&[]);
    program.run_watched::<&str>(&[]);
}
