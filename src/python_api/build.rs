//! Links the extension with a library of Triton's name, which is found beside the extension when it is loaded.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // An empty library with the name suffices to link, so that a build of the extension builds no server.
    let (source, library) = (out.join("empty.c"), out.join("libtritonserver.so"));
    fs::write(&source, "")?;
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let arguments = ["-shared", "-nostdlib", "-Wl,-soname,libtritonserver.so", "-o"];
    let status = Command::new(compiler).args(arguments).args([&library, &source]).status()?;
    if !status.success() {
        return Err("cannot link an empty libtritonserver.so".into());
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--no-as-needed,{}", library.display());
    // An old tag, as it comes before LD_LIBRARY_PATH: the package has its own library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--disable-new-dtags,-rpath,$ORIGIN/..");
    Ok(())
}
