//! Model repositories in buckets, held against stand-ins of the three services: what is listed, how changes show, what
//! a copy holds and when it goes, and what is said when a bucket cannot be read (contract/model_config.md section 4,
//! contract/cli.md section 4).

pub mod stands;

mod failures;
mod google_azure;
mod s3;
mod server;
