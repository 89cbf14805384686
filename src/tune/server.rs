//! The scratch server: this program as a server on free ports of this machine alone, with its own log, in the mode in
//! which models are loaded by request. It ends with its owner, however that ends.
//!
//! Repositories are only read. Python would write compiled modules beside the files of a model, and is told not to.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use super::TuneError;
use super::interrupt::Interrupt;
use super::process::{Usage, usage};
use nereid_client::{CallError, Endpoint, HttpClient, Wire};

/// Until a server without models listens.
const START_MAX: Duration = Duration::from_secs(120);
/// Until it has ended after being asked to.
const END_MAX: Duration = Duration::from_secs(15);
/// Names that are tried for its directory.
const DIRECTORIES_MAX: u32 = 1000;
const LOOK: Duration = Duration::from_millis(10);
/// Bytes at the end of its log that are read.
const LOG_BYTES_MAX: u64 = 64 << 10;
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What starts a server.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// The program and its first words.
    pub command: Vec<OsString>,
    pub repositories: Vec<PathBuf>,
    /// Flags of the user.
    pub flags: Vec<OsString>,
    /// Further flags of a choice.
    pub more: Vec<String>,
}

/// A directory of our own below that for temporary files, removed with everything in it.
#[derive(Debug)]
pub struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    pub fn make() -> Result<ScratchDirectory, TuneError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("nereid-tune-{}-{number}", std::process::id()));
            // No other user may have made it, or look into it. A process that was killed may have left one.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(ScratchDirectory(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < DIRECTORIES_MAX => {}
                Err(source) => {
                    let what = format!("a directory for temporary files, {}", path.display());
                    return Err(TuneError::System { what, source });
                }
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a call to the server went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// It refused: the text of its error.
    Refused(String),
    /// It has ended, or was ended because it did not answer in time.
    Gone(String),
    Interrupted,
}

#[derive(Debug)]
pub struct ScratchServer {
    child: Child,
    log: PathBuf,
    pub http: Endpoint,
    pub grpc: Option<Endpoint>,
    /// Memory before any model was loaded.
    pub empty_rss_bytes: u64,
}

impl ScratchServer {
    /// Starts one, and waits until it listens. Call it on the thread that lives as long as the server: the server ends
    /// with that thread.
    pub fn start(
        plan: &ServerPlan,
        directory: &ScratchDirectory,
        interrupt: &Interrupt,
    ) -> Result<ScratchServer, TuneError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = directory.path().join(format!("server-{}.log", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| TuneError::System { what, source }
        };
        let output = File::create(&log).map_err(system("the log of the scratch server"))?;
        let errors = output.try_clone().map_err(system("the log of the scratch server"))?;
        let (program, first) = plan
            .command
            .split_first()
            .ok_or_else(|| TuneError::Failed("there is no program to start as a scratch server".to_owned()))?;
        let mut command = Command::new(program);
        command.args(first);
        // A later flag counts: these last ones are needed.
        command.args(&plan.flags);
        for repository in &plan.repositories {
            let mut flag = OsString::from("--model-repository=");
            flag.push(repository);
            command.arg(flag);
        }
        command.args([
            "--model-control-mode=explicit",
            "--http-address=127.0.0.1",
            "--http-port=0",
            "--grpc-address=127.0.0.1",
            "--grpc-port=0",
            "--allow-metrics=false",
            "--allow-http=true",
            "--allow-grpc=true",
            // The ports are read from the log.
            "--log-info=true",
            "--exit-timeout-secs=5",
            // Nobody is sent elsewhere.
            "--drain-delay=0",
        ]);
        command.args(&plan.more);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("TMPDIR", directory.path());
        // They concern the service that the tuner may be part of, and hold requests back.
        command.env_remove("NOTIFY_SOCKET").env_remove("TRITONSERVER_DELAY_SCHEDULER");
        // Ctrl-C is for the tuner alone, which then ends the server.
        command.process_group(0).stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(system("the scratch server"))?;
        let http = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let mut server = ScratchServer { child, log, http, grpc: None, empty_rss_bytes: 0 };
        let began = Instant::now();
        loop {
            if interrupt.is_raised() {
                return Err(TuneError::Interrupted);
            }
            let log = server.log_end();
            let port = |service: &str| {
                let at = log.split_once(&format!("Started {service} at 127.0.0.1:"))?.1;
                let digits: String = at.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u16>().ok().filter(|port| *port > 0)
            };
            if let (Some(http), Some(grpc)) = (port("HTTPService"), port("GRPCInferenceService")) {
                let at = |port| Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
                (server.http, server.grpc) = (at(http), Some(at(grpc)));
                if server.answers() {
                    break;
                }
            }
            if let Some(status) = server.ended() {
                let text = format!("the scratch server ended before it was ready ({status}): {}", server.reason());
                return Err(TuneError::Failed(text));
            }
            if began.elapsed() > START_MAX {
                let secs = START_MAX.as_secs();
                let text = format!("the scratch server was not ready within {secs} s: {}", server.reason());
                return Err(TuneError::Failed(text));
            }
            std::thread::sleep(LOOK);
        }
        server.empty_rss_bytes = server.usage().rss_bytes;
        Ok(server)
    }

    fn answers(&self) -> bool {
        let wire = Wire::connect(&self.http, None, Duration::from_secs(5));
        wire.is_ok_and(|wire| HttpClient::new(wire, self.http.authority(), Vec::new()).page("/v2/health/live").is_ok())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn usage(&self) -> Usage {
        usage(self.pid())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    fn log_end(&self) -> String {
        use std::io::{Seek, SeekFrom};
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)));
            let _ = file.take(LOG_BYTES_MAX).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last line of its log that tells of an error, or its last line.
    pub fn reason(&self) -> String {
        let log = self.log_end();
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let is_error = |line: &&&str| line.starts_with('E') || line.starts_with("error:") || line.contains("Signal (");
        if let Some(line) = lines.iter().rev().find(is_error) {
            return line.chars().take(500).collect();
        }
        // Mistakes of the command line have more than one line.
        let last = lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join(" ");
        if last.is_empty() { "its log is empty".to_owned() } else { last.chars().take(500).collect() }
    }

    /// A call with an answer in JSON. It does not outlive an interrupt, the server, or its time.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<Value, CallFailure> {
        let http = self.http.clone();
        let (method, path, body) = (method.to_owned(), path.to_owned(), body.to_owned());
        let began = Instant::now();
        // A thread of its own, because it blocks. Ending the server ends it.
        let thread = std::thread::spawn(move || {
            let wire = Wire::connect(&http, None, patience).map_err(CallError::Connection)?;
            HttpClient::new(wire, http.authority(), Vec::new()).call(&method, &path, &body)
        });
        let mut end = None;
        while !thread.is_finished() {
            let is_late = began.elapsed() > patience + Duration::from_secs(5);
            if end.is_none() && (interrupt.is_raised() || is_late) {
                end = Some(if interrupt.is_raised() {
                    CallFailure::Interrupted
                } else {
                    CallFailure::Gone(format!("the server did not answer within {} s", patience.as_secs()))
                });
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let outcome = thread.join().unwrap_or_else(|_| Err(CallError::Connection("the call panicked".to_owned())));
        if let Some(end) = end {
            return Err(end);
        }
        outcome.map_err(|error| match error {
            CallError::Refused(text) => CallFailure::Refused(text),
            CallError::TimedOut(text) => {
                self.kill();
                CallFailure::Gone(text)
            }
            CallError::Connection(text) => {
                // A connection may end a moment before the process does.
                let began = Instant::now();
                while self.ended().is_none() && began.elapsed() < Duration::from_secs(2) {
                    std::thread::sleep(LOOK);
                }
                CallFailure::Gone(match self.ended() {
                    Some(status) => format!("the server ended ({status}): {}", self.reason()),
                    None => text,
                })
            }
        })
    }

    /// Loads a model, with another configuration if one is given.
    pub fn load(
        &mut self,
        model: &str,
        config: Option<&Value>,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<(), CallFailure> {
        let body = match config {
            Some(config) => json!({ "parameters": { "config": config.to_string() } }).to_string(),
            None => String::new(),
        };
        let path = format!("/v2/repository/models/{}/load", escaped(model));
        self.call("POST", &path, &body, patience, interrupt).map(drop)
    }

    /// The configuration of a model as it is served.
    pub fn config(&mut self, model: &str, patience: Duration, interrupt: &Interrupt) -> Result<Value, CallFailure> {
        self.call("GET", &format!("/v2/models/{}/config", escaped(model)), "", patience, interrupt)
    }

    /// Whether a model serves.
    pub fn is_ready(&mut self, model: &str, patience: Duration, interrupt: &Interrupt) -> Result<bool, CallFailure> {
        match self.call("GET", &format!("/v2/models/{}/ready", escaped(model)), "", patience, interrupt) {
            Ok(_) => Ok(true),
            Err(CallFailure::Refused(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn group(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Ends it at once, with all that is in its group.
    fn kill(&mut self) {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for ScratchServer {
    fn drop(&mut self) {
        if self.ended().is_none()
            && let Some(process) = self.group()
        {
            let _ = kill_process(process, Signal::TERM);
            let began = Instant::now();
            while self.ended().is_none() && began.elapsed() < END_MAX {
                std::thread::sleep(LOOK);
            }
        }
        // What a model started may still be there.
        self.kill();
        let _ = self.child.wait();
    }
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}
