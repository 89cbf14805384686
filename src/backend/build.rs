//! Builds the library with the memory fence for Python workers (`python::fence`).

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=python/fence.c");
    let library = PathBuf::from(std::env::var("OUT_DIR")?).join("fence.so");
    // An interpreter loads it: it must not depend on a sanitizer of the build.
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-O2", "-fPIC", "-fno-sanitize=all", "-shared", "-nostdlib", "-o"])
        .arg(&library)
        .arg("python/fence.c")
        .status()?;
    if status.success() { Ok(()) } else { Err("cannot build the memory fence for Python workers".into()) }
}
