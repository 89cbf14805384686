//! Tests of programs as users start them: the server itself, its load generator, and clients from other projects.

mod chaos;
mod clients;
mod deployment;
mod docs_site;
mod dynamo;
mod foreign;
mod java;
mod monitor;
mod monitoring;
mod openai;
mod packages;
mod perf;
mod process;
mod python_package;
mod ray;
mod record;
mod supply;
mod traffic;
mod tune;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll(&[
        "deployment::",
        "docs_site::",
        "dynamo::",
        "foreign::described::",
        "foreign::in_process::",
        "foreign::perf_analyzer::",
        "java::",
        "monitor::",
        "monitoring::",
        "openai::access::",
        "openai::answers::",
        "openai::clients::",
        "openai::described::",
        "openai::extensions::",
        "openai::forms::",
        "openai::lora::",
        "openai::models::",
        "openai::prompts::",
        "openai::schema::",
        "openai::tools::",
        "openai::traced::",
        "openai::vectors::",
        "packages::",
        "process::deep_check::",
        "process::explain::",
        "process::flags::",
        "process::front::",
        "process::migrate::",
        "process::models::",
        "process::next_steps::",
        "process::tuning::",
        "process::without::",
        "python_package::",
        "ray::",
        "supply::",
        "traffic::",
        "tune::",
    ]);
}
