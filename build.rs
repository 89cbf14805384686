//! Gives the library the name and the symbols that plug-ins and programs resolve.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[allow(dead_code)] // A build needs the functions only.
#[path = "src/abi/interface/table.rs"]
mod table;

/// What the names of exported functions begin with: Triton's, and those of the server itself.
const PREFIXES: [&str; 2] = ["TRITON", "NEREID_"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    plugin_host(&out)?;
    symbols(&out)?;
    hide_others(&out)?;
    facts()?;

    // Cargo sets no SONAME; programs and plug-ins were linked against this one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
    // A plug-in that is opened by the binary must bind to the binary's symbols.
    for of in ["bins", "benches", "tests"] {
        for prefix in PREFIXES {
            println!("cargo:rustc-link-arg-{of}=-Wl,--export-dynamic-symbol={prefix}*");
        }
    }
    Ok(())
}

/// The C++ guard around calls into plug-ins, and the empty library with Triton's soname, which replaces the one here
/// when it is loaded.
fn plugin_host(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/abi/guard.cc");
    println!("cargo:rerun-if-changed=src/abi/plugin");
    cc::Build::new().cpp(true).std("c++17").file("src/abi/guard.cc").compile("nereid_guard");
    let soname = fs::read_to_string("src/abi/plugin/soname.txt")?;
    // It has to stay empty, however the rest is built: a sanitizer would add calls of its own.
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-fno-sanitize=all", "-shared", "-nostdlib", &format!("-Wl,-soname,{}", soname.trim_end()), "-o"])
        .arg(out.join("libtritonserver_stub.so"))
        .arg("src/abi/plugin/stub.c")
        .status()?;
    if status.success() { Ok(()) } else { Err("cannot build the empty libtritonserver.so".into()) }
}

/// Functions with C names that a crate defines for programs of its own, and that the library would export with Triton's:
/// those of crc-fast, which object_store uses.
const OTHERS: [&str; 26] = [
    "crc_fast_checksum",
    "crc_fast_checksum_combine",
    "crc_fast_checksum_combine_with_params",
    "crc_fast_checksum_file",
    "crc_fast_checksum_file_with_params",
    "crc_fast_checksum_with_params",
    "crc_fast_clear_error",
    "crc_fast_crc32_iscsi",
    "crc_fast_crc32_iso_hdlc",
    "crc_fast_crc64_nvme",
    "crc_fast_digest_combine",
    "crc_fast_digest_finalize",
    "crc_fast_digest_finalize_reset",
    "crc_fast_digest_free",
    "crc_fast_digest_get_amount",
    "crc_fast_digest_get_state",
    "crc_fast_digest_new",
    "crc_fast_digest_new_with_init_state",
    "crc_fast_digest_new_with_params",
    "crc_fast_digest_reset",
    "crc_fast_digest_update",
    "crc_fast_error_message",
    "crc_fast_get_calculator_target",
    "crc_fast_get_custom_params",
    "crc_fast_get_last_error",
    "crc_fast_get_version",
];

/// Keeps those functions inside the library: a symbol has the strictest visibility of all objects that name it. (A
/// second version script beside the one that rustc writes is an error to GNU's linker.)
fn hide_others(out: &Path) -> Result<(), Box<dyn Error>> {
    let (source, object) = (out.join("hidden.c"), out.join("hidden.o"));
    let mut text = String::new();
    for name in OTHERS {
        text += &format!("extern void {name}(void) __attribute__((weak, visibility(\"hidden\")));\n");
    }
    text += &format!("static void (*const hidden[])(void) __attribute__((used)) = {{{}}};\n", OTHERS.join(", "));
    fs::write(&source, text)?;
    let compiler = cc::Build::new().get_compiler();
    let status = compiler.to_command().args(["-fPIC", "-c", "-o"]).arg(&object).arg(&source).status()?;
    println!("cargo:rustc-cdylib-link-arg={}", object.display());
    if status.success() { Ok(()) } else { Err("cannot compile the list of symbols to hide".into()) }
}

/// A table of every function that `src/abi` exports: each is defined as `extern "C" fn TRITON…` or `NEREID_…`, by itself or by a
/// macro of its file, where its name begins a line.
fn symbols(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/abi");
    let mut names = BTreeMap::new();
    let mut pending = vec![PathBuf::from("src/abi")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                let module = module_of(&path);
                names.extend(text.lines().filter_map(exported).map(|name| (name.to_owned(), module.clone())));
            }
        }
    }
    let mut table = String::from("#[allow(clashing_extern_declarations)]\nunsafe extern \"C\" {\n");
    names.keys().for_each(|name| table += &format!("    fn {name}();\n"));
    table += &format!("}}\n\n#[used]\nstatic SYMBOLS: &[unsafe extern \"C\" fn(); {}] = &[\n", names.len());
    names.keys().for_each(|name| table += &format!("    {name},\n"));
    table += &format!("];\n\n/// Their names, sorted.\npub static NAMES: [&str; {}] = [\n", names.len());
    names.keys().for_each(|name| table += &format!("    \"{name}\",\n"));
    table += "];\n";
    fs::write(out.join("symbols.rs"), table)?;
    signatures(out, &names)
}

/// What `nereid --version` says of the build. The revision is NEREID_REVISION, or in a release build that of the
/// repository's files: a development build would be made anew after each commit.
fn facts() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=NEREID_REVISION");
    let profile = env::var("PROFILE")?;
    let given = env::var("NEREID_REVISION").ok().filter(|given| !given.trim().is_empty());
    let revision = given.or_else(|| (profile == "release").then(revision_of_repository).flatten());
    println!("cargo:rustc-env=NEREID_REVISION={}", revision.as_deref().unwrap_or("unknown").trim());
    println!("cargo:rustc-env=NEREID_TARGET={}", env::var("TARGET")?);
    println!("cargo:rustc-env=NEREID_PROFILE={profile}");
    Ok(())
}

/// The commit that HEAD names, itself or by a branch. Sources without a repository have none.
fn revision_of_repository() -> Option<String> {
    let head = fs::read_to_string(".git/HEAD").ok()?;
    println!("cargo:rerun-if-changed=.git/HEAD");
    let Some(branch) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    let path = Path::new(".git").join(branch);
    if let Ok(revision) = fs::read_to_string(&path) {
        println!("cargo:rerun-if-changed={}", path.display());
        return Some(revision.trim().to_owned());
    }
    println!("cargo:rerun-if-changed=.git/packed-refs");
    let packed = fs::read_to_string(".git/packed-refs").ok()?;
    let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, name)| *name == branch).map(|(revision, _)| revision.to_owned())
}

/// The module that a file of `src/abi` is.
fn module_of(path: &Path) -> String {
    let path = path.with_extension("");
    let names: Vec<_> = path.iter().skip(1).map(|name| name.to_string_lossy()).collect();
    format!("crate::{}", names.join("::"))
}

/// For a test: every exported function with the kinds of its parameters and of its result, as the table of the interface
/// has them and as the compiler has them.
fn signatures(out: &Path, modules: &BTreeMap<String, String>) -> Result<(), Box<dyn Error>> {
    let table = table::Table::own()?;
    let mut list = String::from("[\n");
    for function in table.offered() {
        let (Some(module), Some(kinds)) = (modules.get(&function.name), table.kinds(function)) else { continue };
        let any = vec!["_"; function.parameters.len()].join(", ");
        let name = &function.name;
        let pointer = format!("{module}::{name} as unsafe extern \"C\" fn({any}) -> _");
        list += &format!("    ({name:?}, {kinds:?}, ({pointer}).kinds()),\n");
    }
    Ok(fs::write(out.join("signatures.rs"), list + "]\n")?)
}

/// The function that a line defines.
fn exported(line: &str) -> Option<&str> {
    let at = match line.split_once("extern \"C\" fn ") {
        Some((_, name)) => name,
        None => line.strip_prefix("    ")?,
    };
    let (name, _) = at.split_once('(')?;
    let is_own = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let is_name = is_own && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(name)
}
