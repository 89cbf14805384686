//! The worker's program: an archive of Python modules in memory, which an interpreter runs as it runs any zip file.
//!
//! Compiling the modules takes an interpreter longer than its own start. So each interpreter compiles them once, in
//! parallel with its first worker, and later workers find the code in their archive. The interpreter itself ignores
//! code of another version and compiles the modules, which are in the archive too.

use std::collections::HashMap;
use std::io::{self, Cursor, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tracing::debug;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::helper_program;
use super::process::PROGRAM;

macro_rules! modules {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("worker/", $path)))),*]
    };
}

/// The modules, with their paths in the archive.
const MODULES: [(&str, &str); 24] = modules![
    "__main__.py",
    "c_python_backend_utils.py",
    "triton_python_backend_utils.py",
    "nereid_python/__init__.py",
    "nereid_python/calls.py",
    "nereid_python/config.py",
    "nereid_python/control.py",
    "nereid_python/device.py",
    "nereid_python/dlpack.py",
    "nereid_python/errors.py",
    "nereid_python/kinds.py",
    "nereid_python/logger.py",
    "nereid_python/loop.py",
    "nereid_python/memory.py",
    "nereid_python/metrics.py",
    "nereid_python/parameters.py",
    "nereid_python/request.py",
    "nereid_python/response.py",
    "nereid_python/sender.py",
    "nereid_python/strings.py",
    "nereid_python/tensor.py",
    "nereid_python/trace.py",
    "nereid_python/types.py",
    "nereid_python/wire.py",
];

/// Prints, for each pair of a path and a module, the path and the file that an interpreter makes of a module, in
/// hexadecimal digits. The file is marked as valid without a comparison with its source.
const COMPILE: &str = r#"
import importlib.util
import marshal
import sys

prefix, words = sys.argv[1], sys.argv[2:]
for path, text in zip(words[::2], words[1::2]):
    code = compile(text, prefix + path, "exec", dont_inherit=True)
    file = importlib.util.MAGIC_NUMBER + bytes((1, 0, 0, 0)) + bytes(8) + marshal.dumps(code)
    sys.stdout.write("\nnereid\x1f" + path + "c\x1f" + file.hex() + "\n")
"#;
/// The time limit of a compilation.
const COMPILE_TIME: Duration = Duration::from_secs(60);
/// The most interpreters with cached archives.
const CACHE_MAX: usize = 64;

/// An interpreter: its file, and the file's modification time.
type Key = (std::ffi::OsString, Option<SystemTime>);

/// The cached archives, by interpreter.
#[derive(Default)]
struct ArchiveCache {
    plain: Option<Arc<OwnedFd>>,
    /// `None`: the compilation failed, or has not ended.
    compiled: HashMap<Key, Option<Arc<OwnedFd>>>,
}

static CACHE: Mutex<Option<ArchiveCache>> = Mutex::new(None);

fn cache() -> MutexGuard<'static, Option<ArchiveCache>> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The archive without compiled code, one for the process.
pub fn archive() -> io::Result<Arc<OwnedFd>> {
    let mut cache = cache();
    let plain = &mut cache.get_or_insert_default().plain;
    if let Some(archive) = plain {
        return Ok(Arc::clone(archive));
    }
    let files = MODULES.map(|(path, text)| (path, text.as_bytes()));
    Ok(Arc::clone(plain.insert(Arc::new(seal(&packed(&files)?)?))))
}

/// The archive for an interpreter, which `command` starts: with compiled code, if that is ready; the first call starts
/// the compilation.
pub fn archive_for(command: Command) -> io::Result<Arc<OwnedFd>> {
    let modified = std::fs::metadata(command.get_program()).and_then(|metadata| metadata.modified()).ok();
    let key = (command.get_program().to_owned(), modified);
    let mut guard = cache();
    let compiled = &mut guard.get_or_insert_default().compiled;
    match compiled.get(&key) {
        Some(Some(archive)) => return Ok(Arc::clone(archive)),
        Some(None) => {}
        None => {
            if compiled.len() >= CACHE_MAX {
                compiled.clear();
            }
            compiled.insert(key.clone(), None);
            let compile = move || compile(command, key);
            if let Err(error) = std::thread::Builder::new().name("python-compile".to_owned()).spawn(compile) {
                debug!("modules are compiled by each Python process: {error}");
            }
        }
    }
    drop(guard);
    archive()
}

/// Lets an interpreter compile the modules, and caches the archive with the code.
fn compile(mut command: Command, key: Key) {
    // Without site-packages, which are slow to set up and not needed.
    command.args(["-S", "-c", COMPILE, &format!("/proc/self/fd/{PROGRAM}/")]);
    command.args(MODULES.iter().flat_map(|(path, text)| [*path, *text]));
    let outcome = helper_program::run(&mut command, COMPILE_TIME).map_err(|error| error.to_string()).and_then(|done| {
        let code = read(&done.stdout).ok_or_else(|| done.detail())?;
        let sources = MODULES.iter().map(|(path, text)| (*path, text.as_bytes()));
        let files: Vec<_> = sources.chain(code.iter().map(|(path, code)| (path.as_str(), &code[..]))).collect();
        packed(&files).and_then(|archive| seal(&archive)).map_err(|error| error.to_string())
    });
    match outcome {
        Ok(archive) => drop(cache().get_or_insert_default().compiled.insert(key, Some(Arc::new(archive)))),
        Err(error) => debug!("modules are compiled by each Python process: {error}"),
    }
}

/// The files that an interpreter printed; `None` where one is missing.
fn read(stdout: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let text = std::str::from_utf8(stdout).ok()?;
    let file = |line: &str| {
        let (path, digits) = line.strip_prefix("nereid\x1f")?.split_once('\x1f')?;
        MODULES.iter().any(|(module, _)| path.strip_suffix('c') == Some(module)).then_some(())?;
        Some((path.to_owned(), bytes_of(digits.as_bytes())?))
    };
    let files: Vec<_> = text.lines().filter_map(file).collect();
    (files.len() == MODULES.len()).then_some(files)
}

fn bytes_of(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::try_from(value(pair[0])? * 16 + value(pair[1])?).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// A sealed file in memory, which cannot be changed.
fn seal(bytes: &[u8]) -> io::Result<OwnedFd> {
    let object = memfd_create(c"nereid-worker.zip", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(object);
    file.write_all(bytes)?;
    let object = OwnedFd::from(file);
    fcntl_add_seals(&object, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(object)
}

/// Stored, not compressed: an interpreter reads it again at each start.
fn packed(files: &[(&str, &[u8])]) -> io::Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (path, bytes) in files {
        archive.start_file(*path, options)?;
        archive.write_all(bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interpreter_prints_is_code_or_nothing() {
        assert_eq!(bytes_of(b"00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!((bytes_of(b"0"), bytes_of(b"0g"), bytes_of(b"+1")), (None, None, None));
        let line = |path: &str| format!("nereid\x1f{path}c\x1f0102\n");
        let all: String = MODULES.iter().map(|(path, _)| line(path)).collect();
        let files = read(format!("a greeting\n{all}").as_bytes()).unwrap();
        assert_eq!(files.len(), MODULES.len());
        assert_eq!(files[0], ("__main__.pyc".to_owned(), vec![1, 2]));
        assert_eq!(read(all.replacen(&line("__main__.py"), "", 1).as_bytes()), None, "one is missing");
        assert_eq!(read(all.replacen("0102", "010", 1).as_bytes()), None);
        assert_eq!(read(&[255]), None);
    }

    #[test]
    fn every_module_is_told_on_a_command_line() {
        // The kernel's limits for one argument, and for all of them.
        assert!(MODULES.iter().all(|(_, text)| text.len() < 128 * 1024 && text.is_ascii()));
        assert!(MODULES.iter().map(|(path, text)| path.len() + text.len()).sum::<usize>() < 1 << 20);
    }
}
