//! Turns `proto/` into Rust and into descriptors.
//!
//! protox reads the .proto files, so that a build needs no protoc on the machine.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: [&str; 8] = [
    "inference.proto",
    "model_config.proto",
    "health.proto",
    "orca_load_report.proto",
    "orca_service.proto",
    "otlp.proto",
    "reflection.proto",
    "reflection_v1alpha.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../proto");
    let descriptors = protox::compile(FILES, ["../../proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut configuration = descriptors.clone();
    configuration.file.retain(|file| file.name() == "model_config.proto");
    configuration.file.iter_mut().for_each(|file| file.source_code_info = None);
    let options = options_of_messages(&configuration.file);
    configuration.file.insert(0, options);
    fs::write(out.join("configuration.bin"), configuration.encode_to_vec())?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}

/// A file that declares `google.protobuf.MessageOptions`, without fields: what marks maps passes through it as it is.
/// Where a set declares none, prost-reflect builds the descriptors of all well-known types to read those marks, which
/// takes longer than building those of the configuration.
fn options_of_messages<F: Message + Default>(_alike: &[F]) -> F {
    // FileDescriptorProto: package = 2, message_type = 4; DescriptorProto: name = 1; both texts.
    let name = |tag: u8, text: &str| [&[tag << 3 | 2, text.len() as u8], text.as_bytes()].concat();
    let message = name(1, "MessageOptions");
    let file = [name(1, "options.proto"), name(2, "google.protobuf"), vec![4 << 3 | 2, message.len() as u8], message];
    F::decode(&*file.concat()).expect("fields of descriptors")
}
