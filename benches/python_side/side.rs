//! The two servers: how each is started over the same repository, and the usage of it and its processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::options::Options;
use crate::side::machine;
use crate::side::usage::{Usage, descendants};
use nereid_test_support::original::original;
use nereid_test_support::python::Python;

/// Neither a start nor a drain takes this long; it only turns a hang into an error.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of the log's end that an error shows.
const LOG_SHOWN: usize = 4000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Nereid,
    Official,
}

impl Kind {
    pub fn named(name: &str) -> Option<Kind> {
        [Kind::Nereid, Kind::Official].into_iter().find(|kind| kind.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Nereid => "nereid",
            Kind::Official => "official",
        }
    }
}

pub struct Side {
    pub kind: Kind,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    /// From the start of the process until every model was ready.
    pub start: Duration,
    child: Child,
    directory: PathBuf,
}

/// The usage of a server and its processes, by the names of the processes.
#[derive(Clone, Default)]
pub struct Used {
    pub processes: BTreeMap<String, Usage>,
}

impl Used {
    pub fn since(&self, before: &Used) -> Used {
        let none = Usage::default();
        let since = |name: &String, usage: &Usage| usage.since(before.processes.get(name).unwrap_or(&none));
        Used { processes: self.processes.iter().map(|(name, usage)| (name.clone(), since(name, usage))).collect() }
    }

    pub fn cpu_ns(&self) -> u64 {
        self.processes.values().map(Usage::cpu_ns).sum()
    }

    pub fn sleeps(&self) -> u64 {
        self.processes.values().map(|usage| usage.sleeps).sum()
    }
}

impl Side {
    /// Starts on `cores` and waits until every model is ready. `None`: the official server cannot be had.
    pub fn start(kind: Kind, cores: &[usize], python: &Python, options: &Options) -> Result<Option<Side>, String> {
        machine::pin_this_thread(cores)?;
        let directory = std::env::temp_dir().join(format!("nereid-bench-{}-{}", std::process::id(), kind.name()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let command = match kind {
            Kind::Nereid => {
                let mut command = Command::new(&options.binary);
                command.arg(format!("--backend-config=python,interpreter={}", python.interpreter().display()));
                command.args(&options.server_arguments);
                Some(command)
            }
            Kind::Official => official(python, &directory)?,
        };
        let Some(command) = command else { return Ok(None) };
        let mut side = launch(kind, command, directory)?;
        match side.wait_until_ready() {
            Ok(()) => Ok(Some(side)),
            Err(error) => Err(format!("{error}; its log ends with:\n{}", side.log_end())),
        }
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("the server ended before it was ready, {status}"));
            }
            if is_ready(self.http) {
                self.start = started.elapsed();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("the server does not get ready".to_owned())
    }

    /// Of the server and all that it started.
    pub fn used(&self, cores: &[usize]) -> Result<Used, String> {
        let mut used = Used { processes: BTreeMap::from([("server".to_owned(), Usage::of(self.child.id(), cores)?)]) };
        for pid in descendants(self.child.id()) {
            // A process that ends meanwhile is no worker of these models.
            if let Ok(usage) = Usage::of(pid, &[]) {
                used.processes.insert(format!("worker {pid}"), usage);
            }
        }
        Ok(used)
    }

    pub fn log_end(&self) -> String {
        let log = fs::read(log_path(&self.directory)).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_SHOWN)..]).into_owned()
    }

    /// SIGTERM, which must end in exit code 0.
    pub fn stop(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("a process without a number")?;
        kill_process(pid, Signal::TERM).map_err(|error| format!("SIGTERM: {error}"))?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.code() == Some(0) => return Ok(()),
                Some(status) => return Err(format!("after SIGTERM: {status}; the log ends:\n{}", self.log_end())),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(format!("no end within {} s of SIGTERM; the log ends:\n{}", PATIENCE.as_secs(), self.log_end()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Both fail on a process that has ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn launch(kind: Kind, mut command: Command, directory: PathBuf) -> Result<Side, String> {
    let [http, grpc, metrics] = free_ports()?;
    let log = File::create(log_path(&directory)).map_err(|error| error.to_string())?;
    let log_too = log.try_clone().map_err(|error| error.to_string())?;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/python_side/models");
    command
        .arg(format!("--model-repository={}", models.display()))
        .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"])
        .args([format!("--http-port={http}"), format!("--grpc-port={grpc}"), format!("--metrics-port={metrics}")])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    let child = command.spawn().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    Ok(Side { kind, http: at(http), grpc: at(grpc), start: Duration::ZERO, child, directory })
}

/// The official server, with a directory of backends in which the Python backend has the stub of that interpreter.
fn official(python: &Python, directory: &Path) -> Result<Option<Command>, String> {
    let Some(words) = original() else { return Ok(None) };
    let (program, arguments) = words.split_first().ok_or("no words start it")?;
    let server = arguments.last().map(PathBuf::from).ok_or("no path of the server")?;
    let root = server.parent().and_then(Path::parent).ok_or("no directory above the server")?;
    let question = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2]); print(sys.base_prefix)";
    let output =
        Command::new(python.interpreter()).args(["-c", question]).output().map_err(|error| error.to_string())?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let (version, prefix) = output.trim().split_once('\n').ok_or("the interpreter does not print its version")?;
    let backend = directory.join("backends/python");
    fs::create_dir_all(&backend).map_err(|error| error.to_string())?;
    let (parts, stub) = (root.join("backends/python"), "triton_python_backend_stub");
    for (from, name) in [
        (parts.join("libtriton_python.so"), "libtriton_python.so"),
        (parts.join("triton_python_backend_utils.py"), "triton_python_backend_utils.py"),
        (root.join("python_backend_stubs").join(version).join(stub), stub),
    ] {
        symlink(from, backend.join(name)).map_err(|error| error.to_string())?;
    }
    let libraries = root.parent().and_then(Path::parent).ok_or("no wheel")?.join("nvidia_pytriton.libs");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(format!("--backend-directory={}", directory.join("backends").display()))
        .env("LD_LIBRARY_PATH", format!("{prefix}/lib:{}", libraries.display()));
    // Its stub is an interpreter that searches for its packages beside the first python3 of the path.
    let bin = python.interpreter().parent().map(Path::to_path_buf).ok_or("no directory of the interpreter")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)));
    command.env("PATH", path.map_err(|error| error.to_string())?);
    Ok(Some(command))
}

fn log_path(directory: &Path) -> PathBuf {
    directory.join("server.log")
}

/// Three ports that are free now. All are held until the last one is known, so they differ.
fn free_ports() -> Result<[u16; 3], String> {
    let mut ports = [0; 3];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
        *port = listener.local_addr().map_err(|error| error.to_string())?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn is_ready(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return false };
    let request = "GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).is_ok()
        && stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_end(&mut answer).is_ok()
        && answer.starts_with(b"HTTP/1.1 200")
}
