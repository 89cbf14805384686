//! `nereid install`: installs the program, the library, the headers and a folder for backends, where other programs
//! search for them.
//!
//! The headers are written by the program itself, so that they are those of its own functions. The installation begins
//! only if no file is in the way and the library was found; each file appears whole or not at all.

mod file;
mod library;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Arguments;
use super::check::print;
use super::subcommands::unknown_option;
use crate::abi::interface::{Table, TableError, headers};
pub(super) use file::{Content, File};

pub(super) const USAGE: &str = "\
Usage: nereid install --prefix=<directory> [--library=<file>] [--force]

Puts into the directory what other programs need: bin/nereid, which bin/tritonserver leads to, lib/libtritonserver.so
for programs that run the server inside themselves, include/triton/core with the headers for C and C++, and backends for
libraries of backends. Exit code 0 if all of it is in place, else 1.

  --prefix=<directory>  Where to; it is made if it is not there.
  --library=<file>      Another libtritonserver.so than the one that stands beside this program.
  --force               Replace files that are there already.
";

const LAYOUT: &str = "\
# Nereid

| Place | What |
|---|---|
| `bin/nereid`, `bin/tritonserver` | The server. |
| `lib/libtritonserver.so` | The server as a library, for programs that run it inside themselves. |
| `lib/nereid/runtimes` | What `bin/nereid runtime install onnxruntime --prefix=<this directory>` puts here. |
| `include/triton/core` | Headers of the interfaces, for programs, backends, caches and repository agents. |
| `backends/<name>/libtriton_<name>.so` | Libraries of backends; the server finds them by `--backend-directory`. |

A program: `cc program.c -I include -L lib -ltritonserver -Wl,-rpath,$PWD/lib -o program`

A backend: `cc -shared -fPIC backend.c -I include -o backends/<name>/libtriton_<name>.so`
";

/// The directory in which Triton's own installation searches for backends (contract/cli.md).
const USUAL_BACKENDS: &str = "/opt/tritonserver/backends";

#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error("{0}\n`nereid help install` explains the options.")]
    Usage(String),
    #[error(transparent)]
    Library(#[from] library::LibraryError),
    #[error("this program cannot find itself: {0}")]
    Program(std::io::Error),
    #[error("the interface cannot be written: {0}")]
    Table(#[from] TableError),
    #[error("there already, nothing was changed (--force replaces): {}", listed(.0))]
    Present(Vec<PathBuf>),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    prefix: PathBuf,
    library: Option<PathBuf>,
    is_forced: bool,
}

/// Installs, and prints the installed files.
pub fn run(arguments: &Arguments) -> ExitCode {
    match run_words(&arguments.words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_words(words: &[OsString]) -> Result<(), InstallError> {
    match options(words)? {
        Some(options) => {
            let program = std::env::current_exe().map_err(InstallError::Program)?;
            install(&options, &program, &mut print)
        }
        None => {
            print(USAGE);
            Ok(())
        }
    }
}

/// `None` if help is requested.
fn options(words: &[OsString]) -> Result<Option<Options>, InstallError> {
    let usage = |text: String| InstallError::Usage(text);
    let (mut prefix, mut library, mut is_forced) = (None, None, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.as_bytes().iter().position(|&byte| byte == b'=') {
            Some(at) => (&word.as_bytes()[..at], Some(OsStr::from_bytes(&word.as_bytes()[at + 1..]))),
            None => (word.as_bytes(), None),
        };
        let into = match (name, value) {
            (b"--help" | b"-h", None) => return Ok(None),
            (b"--force", None) => {
                is_forced = true;
                continue;
            }
            (b"--prefix", _) => &mut prefix,
            (b"--library", _) => &mut library,
            _ => return Err(usage(unknown_option("install", &word.to_string_lossy()))),
        };
        let value = value.or_else(|| words.next().map(OsString::as_os_str)).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| usage(format!("'{}' needs a value", word.display())))?;
        *into = Some(PathBuf::from(value));
    }
    let prefix = prefix.ok_or_else(|| usage("--prefix=<directory> is missing".to_owned()))?;
    Ok(Some(Options { prefix, library, is_forced }))
}

fn install(options: &Options, program: &Path, print_line: &mut dyn FnMut(&str)) -> Result<(), InstallError> {
    let prefix = std::path::absolute(&options.prefix)
        .map_err(|source| InstallError::File { path: options.prefix.clone(), source })?;
    let files = files(&prefix, program, library::find(program, options.library.as_deref())?)?;
    let paths = files.iter().map(|file| file.path.clone());
    let present: Vec<_> = paths.filter(|path| path.symlink_metadata().is_ok()).collect();
    if !options.is_forced && !present.is_empty() {
        return Err(InstallError::Present(present));
    }
    let backends = prefix.join("backends");
    std::fs::create_dir_all(&backends).map_err(|source| InstallError::File { path: backends.clone(), source })?;
    for file in files {
        file.put(options.is_forced).map_err(|source| InstallError::File { path: file.path.clone(), source })?;
        print_line(&format!("{}\n", file.path.display()));
    }
    print_line(&format!("{}\n\n{}", backends.display(), next_steps(&prefix, &backends)));
    Ok(())
}

fn files(prefix: &Path, program: &Path, library: PathBuf) -> Result<Vec<File>, InstallError> {
    let mut files = vec![
        File { path: prefix.join("bin/nereid"), content: Content::Copy(program.to_owned()), mode: 0o755 },
        File { path: prefix.join("bin/tritonserver"), content: Content::Link("nereid".into()), mode: 0o777 },
        File { path: prefix.join("lib/libtritonserver.so"), content: Content::Copy(library), mode: 0o755 },
    ];
    files.extend(headers(&Table::own()?).into_iter().map(|header| {
        let path = prefix.join("include/triton/core").join(header.name);
        File { path, content: Content::Text(header.text), mode: 0o644 }
    }));
    files.push(File { path: prefix.join("README.md"), content: Content::Text(LAYOUT.to_owned()), mode: 0o644 });
    Ok(files)
}

fn next_steps(prefix: &Path, backends: &Path) -> String {
    let flag = match backends == Path::new(USUAL_BACKENDS) {
        true => String::new(),
        false => format!(" --backend-directory={}", backends.display()),
    };
    let (program, include, lib) = (prefix.join("bin/nereid"), prefix.join("include"), prefix.join("lib"));
    format!(
        "ONNX:     {} runtime install onnxruntime --prefix={}\n\
         Serve:    {} --model-repository=<path>{flag}\n\
         Compile:  cc program.c -I {} -L {lib} -ltritonserver -Wl,-rpath,{lib}\n",
        program.display(),
        prefix.display(),
        program.display(),
        include.display(),
        lib = lib.display(),
    )
}
