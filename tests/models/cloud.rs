//! Model repositories in buckets, tested with emulations of the three services: listings, detection of changes, content
//! and removal of copies, and the errors when a bucket cannot be read (contract/model_config.md section 4,
//! contract/cli.md section 4).

pub mod stands;

mod deep_check;
mod failures;
mod google_azure;
mod onnx;
mod s3;
mod server;
