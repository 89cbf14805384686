//! Turns `proto/` into Rust and into descriptors, and gives the library the name and symbols that plug-ins look for.
//!
//! protox reads the .proto files, so that a build needs no protoc on the machine.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;

const FILES: [&str; 6] = [
    "inference.proto",
    "model_config.proto",
    "health.proto",
    "otlp.proto",
    "reflection.proto",
    "reflection_v1alpha.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;

    plugin_host(&out)?;

    // Cargo sets no SONAME; programs and plug-ins were linked against this one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
    // A plug-in that is opened by the binary must bind to the binary's symbols.
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
    Ok(())
}

/// The C++ guard around calls into plug-ins, and the empty library that answers to Triton's soname.
fn plugin_host(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/backend/plugin");
    cc::Build::new().cpp(true).std("c++17").file("src/backend/plugin/guard.cc").compile("nereid_guard");
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-nostdlib", "-Wl,-soname,libtritonserver.so", "-o"])
        .arg(out.join("libtritonserver_stub.so"))
        .arg("src/backend/plugin/stub.c")
        .status()?;
    if status.success() { Ok(()) } else { Err("cannot build the empty libtritonserver.so".into()) }
}
