//! The server as a child process on free ports, with a repository made for it, and its clean end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::options::Options;
use crate::side::floor::{FLOOR, FLOOR_ARGUMENT};
use crate::side::machine;

/// Neither a start nor a drain takes this long; it only turns a hang into an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the log's end that an error shows.
const LOG_SHOWN: usize = 4000;

pub struct Server {
    pub engine: String,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    child: Child,
    /// The directory of its repository and its log; the floor has none.
    directory: Option<PathBuf>,
}

impl Server {
    /// Starts on `cores` and waits until the server is ready. The thread's own affinity is what a child inherits.
    pub fn start(engine: &str, cores: &[usize], options: &Options) -> Result<Server, String> {
        machine::pin_this_thread(cores)?;
        if engine == FLOOR {
            return launch_floor();
        }
        let name = format!("nereid-bench-{}-{engine}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        write_repository(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let mut server = launch(engine, directory, options)?;
        match server.wait_until_ready() {
            Ok(()) => Ok(server),
            Err(error) => Err(format!("{error}; its log ends with:\n{}", server.log_end())),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("the server ended before it was ready, {status}"));
            }
            if is_ready(self.http) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("the server does not get ready".to_owned())
    }

    pub fn is_floor(&self) -> bool {
        self.engine == FLOOR
    }

    /// SIGTERM, which must end in exit code 0.
    pub fn stop(mut self) -> Result<(), String> {
        if self.is_floor() {
            drop(self.child.stdin.take());
        } else {
            let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or("a process without a number")?;
            kill_process(pid, Signal::TERM).map_err(|error| format!("SIGTERM: {error}"))?;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.code() == Some(0) => return Ok(()),
                Some(status) => {
                    return Err(format!("after SIGTERM: {status}; the log ends with:\n{}", self.log_end()));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(format!("no end within {} s of SIGTERM; the log ends with:\n{}", PATIENCE.as_secs(), self.log_end()))
    }

    pub fn log_end(&self) -> String {
        let log = self.directory.as_deref().map(|directory| fs::read(log_path(directory)).unwrap_or_default());
        let log = log.unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_SHOWN)..]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail on a process that has ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn launch(engine: &str, directory: PathBuf, options: &Options) -> Result<Server, String> {
    let [http, grpc, metrics] = free_ports()?;
    let log = File::create(log_path(&directory)).map_err(|error| error.to_string())?;
    let log_too = log.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(&options.binary);
    command
        .arg(format!("--model-repository={}", directory.join("models").display()))
        .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"])
        .arg(format!("--http-port={http}"))
        .arg(format!("--grpc-port={grpc}"))
        .arg(format!("--metrics-port={metrics}"))
        .arg(format!("--io-engine={engine}"))
        .args(options.scenarios.iter().any(|scenario| scenario.is_shared()).then_some("--allow-client-shm=true"))
        .args(&options.server_arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    let child = command.spawn().map_err(|error| format!("{}: {error}", options.binary.display()))?;
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    Ok(Server { engine: engine.to_owned(), http: at(http), grpc: at(grpc), child, directory: Some(directory) })
}

fn launch_floor() -> Result<Server, String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(binary);
    command.arg(FLOOR_ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("the floor: {error}"))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(|error| format!("the floor: {error}"))?;
    }
    let port: u16 = line.trim().parse().map_err(|_| format!("the floor prints {line:?} for its port"))?;
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    Ok(Server { engine: FLOOR.to_owned(), http: at, grpc: at, child, directory: None })
}

fn log_path(directory: &Path) -> PathBuf {
    directory.join("server.log")
}

fn write_repository(directory: &Path) -> std::io::Result<()> {
    for (model, dims) in [("identity", "-1"), ("image", "1, 3, 224, 224")] {
        let model_directory = directory.join("models").join(model);
        fs::create_dir_all(model_directory.join("1"))?;
        let config = format!(
            "name: \"{model}\"\nbackend: \"identity\"\nmax_batch_size: 0\n\
             input [ {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n\
             output [ {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n\
             instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n"
        );
        fs::write(model_directory.join("config.pbtxt"), config)?;
    }
    let chain = directory.join("models/chain");
    fs::create_dir_all(chain.join("1"))?;
    let step = |from: &str, to: &str| {
        format!(
            "step {{ model_name: \"identity\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}\n"
        )
    };
    let steps = [step("INPUT0", "first"), step("first", "second"), step("second", "OUTPUT0")].concat();
    let config = format!(
        "name: \"chain\"\nplatform: \"ensemble\"\n\
         input [ {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n\
         output [ {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n\
         ensemble_scheduling {{ {steps} }}\n"
    );
    fs::write(chain.join("config.pbtxt"), config)
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
