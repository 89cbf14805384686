//! Tests of a whole server with models: scheduling of requests, loads and unloads from directories and buckets, models
//! of every framework and in Python; some compare the responses with those of the official server.
//! Tests of a whole server with models: scheduling of requests, loads and unloads from directories and buckets, Python
//! models, and models of every framework; some compare the responses with those of the official server.

mod aoti;
mod cloud;
mod differential;
mod onnx;
mod openvino;
mod frameworks;
mod python_backend;
mod pytorch;
mod repository;
mod scheduling;
mod tree_models;
mod tensorflow;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
