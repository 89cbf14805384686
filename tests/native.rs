//! Triton's C interfaces from C: programs that link the library, each written against the header of `include/`.
//!
//! A program checks single calls with `check.h` and ends with 0. What it says it checks, it has to have done: the names
//! in its source and those that it told must be the same.

mod native_programs {
    mod custom_metrics;
    pub mod elf;
    mod in_process;
    mod inference;
    mod installed;
    mod interface;
    pub mod program;
}

use native_programs::program::Program;

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

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
