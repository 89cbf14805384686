//! Tests of a whole server with models: scheduling of requests, loads and unloads from directories and buckets, models
//! of every framework and in Python; some compare the responses with those of the official server.

mod aoti;
mod cloud;
mod differential;
mod frameworks;
mod many_models;
mod onnx;
mod openvino;
mod python_backend;
mod pytorch;
mod repository;
mod scheduling;
mod tensorflow;
mod tensorrt;
mod tree_models;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll(&[
        "aoti::",
        "cloud::",
        "differential::",
        "frameworks::",
        "onnx::",
        "openvino::",
        "python_backend::calls::",
        "python_backend::chat::",
        "python_backend::classes::",
        "python_backend::devices::",
        "python_backend::engines::",
        "python_backend::environments::",
        "python_backend::leftovers::",
        "python_backend::loading::",
        "python_backend::minilm::",
        "python_backend::numbers::",
        "python_backend::services::",
        "python_backend::units::",
        "pytorch::",
        "repository::judge::",
        "tensorflow::",
        "tensorrt::",
        "tree_models::",
    ]);
}
