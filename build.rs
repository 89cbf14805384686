//! Turns `proto/` into Rust and into descriptors, and gives the library the name and symbols that plug-ins look for.
//!
//! protox reads the .proto files, so that a build needs no protoc on the machine.

use std::collections::BTreeSet;
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
    symbols(&out)?;

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

/// A table of every function that `src/abi` exports: each is defined as `extern "C" fn TRITON…`, by itself or by a
/// macro of its file, where its name begins a line.
fn symbols(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/abi");
    let mut names = BTreeSet::new();
    let mut pending = vec![PathBuf::from("src/abi")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                names.extend(text.lines().filter_map(exported).map(str::to_owned));
            }
        }
    }
    let mut table = String::from("#[allow(clashing_extern_declarations)]\nunsafe extern \"C\" {\n");
    names.iter().for_each(|name| table += &format!("    fn {name}();\n"));
    table += &format!("}}\n\n#[used]\nstatic SYMBOLS: &[unsafe extern \"C\" fn(); {}] = &[\n", names.len());
    names.iter().for_each(|name| table += &format!("    {name},\n"));
    table += "];\n";
    Ok(fs::write(out.join("symbols.rs"), table)?)
}

/// The function that a line defines.
fn exported(line: &str) -> Option<&str> {
    let at = match line.split_once("extern \"C\" fn ") {
        Some((_, name)) => name,
        None => line.strip_prefix("    ")?,
    };
    let (name, _) = at.split_once('(')?;
    let is_name = name.starts_with("TRITON") && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(name)
}
