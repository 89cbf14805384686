//! Turns `proto/` into Rust and into descriptors, and gives the library the name and symbols that plug-ins look for.
//!
//! protox reads the .proto files, so that a build needs no protoc on the machine.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: [&str; 3] = ["inference.proto", "model_config.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;

    // Cargo sets no SONAME; programs and plug-ins were linked against this one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
    // A plug-in that is opened by the binary must bind to the binary's symbols.
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
    Ok(())
}
