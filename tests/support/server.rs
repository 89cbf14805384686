//! The server as a child process with free ports and a repository. Its log is kept; the start waits for readiness, and
//! the stop requires exit code 0.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bound::bound_this_test;
use crate::paths;
use crate::variant::Variant;

pub use crate::ports::free_port;

/// Longer than any step takes; it only turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The path of another binary to test in place of ours, so that the tests can run against the original server (through
/// a wrapper that removes the flags that it does not have).
pub const OTHER_SERVER: &str = "NEREID_TEST_SERVER";

/// The script that starts the official server (support/original.rs). A server started by it is the official one.
pub const ORIGINAL_WRAPPER: &str = "tests/support/original.sh";

thread_local! {
    /// Official servers of this thread's tests that crashed.
    static CRASHES: Cell<usize> = const { Cell::new(0) };
}

/// The number of official servers that have crashed in this thread's tests.
pub fn crashes() -> usize {
    CRASHES.get()
}

fn is_original(words: &[String]) -> bool {
    words.iter().any(|word| word.ends_with(ORIGINAL_WRAPPER))
}

/// Counts the end of an official server as a crash, unless it exited or a signal that the tests send ended it.
fn note_end(status: ExitStatus) {
    const SENT_BY_TESTS: [i32; 3] = [2, 9, 15]; // SIGINT, SIGKILL, SIGTERM
    if status.signal().is_some_and(|signal| !SENT_BY_TESTS.contains(&signal)) {
        CRASHES.set(CRASHES.get() + 1);
    }
}

/// The binary under test.
pub fn binary() -> OsString {
    std::env::var_os(OTHER_SERVER).unwrap_or_else(|| paths::server().into())
}

/// A running server. Dropping it kills the process, so that a failing test leaves none.
pub struct Server {
    child: Child,
    log: Log,
    /// Whether this is the official server, whose crashes are counted.
    is_original: bool,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub metrics: SocketAddr,
}

impl Server {
    /// Starts on free ports and waits until /v2/health/ready returns 200; fails with the log if the process ends first.
    pub fn start(variant: Variant, repository: &Path, flags: &[&str]) -> Server {
        Server::start_with(variant, repository, flags, "/v2/health/ready")
    }

    /// Starts and waits for 200 from `probe` (the live route, if a model is expected not to load).
    pub fn start_with(variant: Variant, repository: &Path, flags: &[&str], probe: &str) -> Server {
        Server::start_under(&[], variant, repository, flags, probe)
    }

    /// The same with environment variables in addition to the test's.
    pub fn start_in(
        variant: Variant,
        repository: &Path,
        flags: &[&str],
        probe: &str,
        environment: &[(&str, &str)],
    ) -> Server {
        let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
        let program = binary().into_string().expect("the binary's path is UTF-8");
        let words: Vec<String> = std::iter::once("env".to_owned()).chain(variables).chain([program]).collect();
        Server::start_under(&words, variant, repository, flags, probe)
    }

    /// The same with another command in place of our binary: a program that confines it (support/confine.rs), or
    /// another server. None: our binary.
    pub fn start_under(words: &[String], variant: Variant, repository: &Path, flags: &[&str], probe: &str) -> Server {
        for _ in 0..5 {
            let mut server = Server::launch(words, variant, repository, flags);
            match server.wait_until_answers(probe) {
                Ok(()) => {
                    server.wait_for_ports(flags);
                    return server;
                }
                // Another program took one of the ports between our check and the server's bind.
                Err(log) if log.contains("already in use") || log.contains("ddress in use") => continue,
                Err(log) => panic!("the server ended before it was ready:\n{log}"),
            }
        }
        panic!("no three free ports in five attempts");
    }

    /// Starts through another program (see [`Server::start_under`]) and returns as soon as the HTTP port takes a
    /// connection, while the start may still go on.
    pub fn start_without_waiting(words: &[String], variant: Variant, repository: &Path, flags: &[&str]) -> Server {
        for _ in 0..5 {
            let mut server = Server::launch(words, variant, repository, flags);
            let started = Instant::now();
            while server.child.try_wait().expect("ask for the server's state").is_none() {
                if TcpStream::connect(server.http).is_ok() {
                    return server;
                }
                assert!(started.elapsed() < PATIENCE, "the server opens no port:\n{}", server.log.so_far());
            }
            let log = server.log.finish();
            assert!(log.contains("ddress in use") || log.contains("already in use"), "the server ended:\n{log}");
        }
        panic!("no three free ports in five attempts");
    }

    /// Starts and waits until the log contains `line`, for servers without readiness over plain HTTP. The log lists the
    /// endpoints when all of them answer.
    pub fn start_saying(variant: Variant, repository: &Path, flags: &[&str], line: &str) -> Server {
        for _ in 0..5 {
            let mut server = Server::launch(&[], variant, repository, flags);
            let started = Instant::now();
            loop {
                if server.log.so_far().contains(line) {
                    return server;
                }
                if server.child.try_wait().expect("ask for the server's state").is_some() {
                    let log = server.log.finish();
                    // It may have said so just before its end.
                    if log.contains(line) {
                        return server;
                    }
                    assert!(log.contains("already in use"), "the server ended before it was ready:\n{log}");
                    break;
                }
                assert!(started.elapsed() < PATIENCE, "the log never says {line:?}:\n{}", server.log.so_far());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        panic!("no three free ports in five attempts");
    }

    /// Starts as a service manager does that has opened the HTTP port (sd_listen_fds(3)), and waits until `probe`
    /// returns 200.
    pub fn start_activated(
        http: &TcpListener,
        variant: Variant,
        repository: &Path,
        flags: &[&str],
        probe: &str,
    ) -> Server {
        let address = http.local_addr().expect("the listener's address");
        let port = format!("--http-port={}", address.port());
        let flags: Vec<&str> = flags.iter().copied().chain([port.as_str()]).collect();
        let socket = http.try_clone().expect("another descriptor of the listener");
        let mut server = Server::launch_activated(socket.into(), variant, repository, &flags);
        server.http = address;
        server.wait_until_answers(probe).unwrap_or_else(|log| panic!("the server ended before it was ready:\n{log}"));
        server
    }

    /// Starts as a service manager does that has opened this socket. Which one it is, the flags say.
    pub fn launch_activated(socket: OwnedFd, variant: Variant, repository: &Path, flags: &[&str]) -> Server {
        const SCRIPT: &str = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
        let program = binary().into_string().expect("the binary's path is UTF-8");
        let words = ["sh".to_owned(), "-c".to_owned(), SCRIPT.to_owned(), program];
        Server::launch_with(Stdio::from(socket), &words, variant, repository, flags)
    }

    fn launch(words: &[String], variant: Variant, repository: &Path, flags: &[&str]) -> Server {
        Server::launch_with(Stdio::null(), words, variant, repository, flags)
    }

    fn launch_with(stdin: Stdio, words: &[String], variant: Variant, repository: &Path, flags: &[&str]) -> Server {
        let [http, grpc, metrics] = [free_port(), free_port(), free_port()];
        let mut command = command_of(words);
        command.arg(format!("--model-repository={}", repository.display()));
        command.args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]);
        command.arg(format!("--http-port={http}"));
        command.arg(format!("--grpc-port={grpc}"));
        command.arg(format!("--metrics-port={metrics}"));
        command.arg(format!("--io-engine={}", variant.io_engine));
        command.arg(format!("--io-cores={}", variant.io_cores));
        command.args(flags);
        let mut child = spawn_with(stdin, &mut command);
        let log = Log::of(&mut child);
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Server { child, log, is_original: is_original(words), http: at(http), grpc: at(grpc), metrics: at(metrics) }
    }

    /// Polls until the probe returns 200. Err is the log of a process that ended instead.
    fn wait_until_answers(&mut self, probe: &str) -> Result<(), String> {
        let started = Instant::now();
        let request = format!("GET {probe} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        loop {
            if let Ok(mut stream) = TcpStream::connect(self.http) {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let mut answer = Vec::new();
                let sent = stream.write_all(request.as_bytes());
                if sent.is_ok() && stream.read_to_end(&mut answer).is_ok() && answer.starts_with(b"HTTP/1.1 200") {
                    return Ok(());
                }
            }
            if self.child.try_wait().expect("ask for the server's state").is_some() {
                return Err(self.log.finish());
            }
            assert!(started.elapsed() < PATIENCE, "the server does not get ready:\n{}", self.log.so_far());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// gRPC starts before HTTP and metrics after it (contract/cli.md section 7): readiness does not imply that metrics
    /// answer.
    fn wait_for_ports(&self, flags: &[&str]) {
        for (service, address) in [("grpc", self.grpc), ("metrics", self.metrics)] {
            if flags.iter().any(|flag| flag.starts_with(&format!("--allow-{service}="))) {
                continue;
            }
            let started = Instant::now();
            while TcpStream::connect(address).is_err() {
                assert!(started.elapsed() < PATIENCE, "nobody listens at {service} {address}:\n{}", self.log.so_far());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output of the server so far, both streams.
    pub fn log(&self) -> String {
        self.log.so_far()
    }

    /// Waits until the log contains `text`: an event on which a test can act.
    pub fn wait_for_log(&self, text: &str) {
        let started = Instant::now();
        while !self.log.so_far().contains(text) {
            assert!(started.elapsed() < PATIENCE, "the log never says {text:?}:\n{}", self.log.so_far());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for an event that must be polled; on failure the log shows what happened instead.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < PATIENCE, "it never comes to pass that {what}:\n{}", self.log.so_far());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends SIGTERM and returns.
    pub fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    /// Waits until the process ends and returns its status and log.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = wait_bounded(&mut self.child, &self.log);
        if self.is_original {
            note_end(status);
        }
        (status, self.log.finish())
    }

    /// Whether the official server has crashed; a connection can break shortly before its process ends. A crash is
    /// counted when the server is dropped.
    pub fn has_crashed(&mut self) -> bool {
        const DUMPING: Duration = Duration::from_secs(2);
        let started = Instant::now();
        while self.is_original && started.elapsed() < DUMPING {
            if self.child.try_wait().expect("ask for the server's state").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// Sends SIGTERM; the test fails unless the exit code is 0. Returns the log.
    pub fn stop(self) -> String {
        if std::env::var_os(OTHER_SERVER).is_some() {
            // Only its responses are compared: the original waits for idle connections of its clients.
            return self.log();
        }
        self.terminate();
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "exit code after SIGTERM: expected 0, got {status}; log:\n{log}");
        assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
        log
    }

    /// The number of open descriptors of the process.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("descriptors of the server").count()
    }

    pub fn threads(&self) -> usize {
        self.thread_names().values().sum()
    }

    /// How many threads of each name the process has, once it has started its own. Not the kernel's own for io_uring,
    /// one of which stays once it was needed.
    pub fn thread_names(&self) -> BTreeMap<String, usize> {
        let started = Instant::now();
        loop {
            let names = self.thread_names_now();
            // A server serves before its watchdog has begun.
            if names.contains_key("watchdog") || std::env::var_os(OTHER_SERVER).is_some() {
                return names;
            }
            assert!(started.elapsed() < PATIENCE, "the server has no watchdog: {names:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn thread_names_now(&self) -> BTreeMap<String, usize> {
        let mut names = BTreeMap::new();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("threads of the server");
        for task in tasks.flatten() {
            // It may have ended meanwhile.
            let Ok(name) = std::fs::read_to_string(task.path().join("comm")) else { continue };
            if !name.starts_with("iou-") {
                *names.entry(name.trim_end().to_owned()).or_default() += 1;
            }
        }
        names
    }

    /// Resident memory of the process in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status of the server");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS of the server");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("VmRSS in kB")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_original && std::thread::panicking() {
            self.has_crashed();
        }
        let _ = self.child.kill();
        let status = self.child.wait();
        if let (true, Ok(status)) = (self.is_original, status) {
            note_end(status);
        }
        if std::thread::panicking() {
            println!("the server's log:\n{}", self.log.finish());
        }
    }
}

/// The binary, or the program and first arguments that are started in its place.
fn command_of(words: &[String]) -> Command {
    let Some((program, words)) = words.split_first() else { return Command::new(binary()) };
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// Runs the binary with exactly these arguments until it ends; returns status, standard output and standard error.
pub fn run_to_end(arguments: &[&str]) -> (ExitStatus, String, String) {
    run_to_end_under(&[], arguments)
}

/// The same with another command in place of our binary, as for [`Server::start_under`].
pub fn run_to_end_under(words: &[String], arguments: &[&str]) -> (ExitStatus, String, String) {
    let mut command = command_of(words);
    command.args(arguments);
    let mut child = spawn(&mut command);
    let (out, err) = (Log::read(child.stdout.take()), Log::read(child.stderr.take()));
    let status = wait_bounded(&mut child, &out);
    if is_original(words) {
        note_end(status);
    }
    (status, out.finish(), err.finish())
}

fn spawn(command: &mut Command) -> Child {
    spawn_with(Stdio::null(), command)
}

fn spawn_with(stdin: Stdio, command: &mut Command) -> Child {
    bound_this_test();
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{:?} does not start: {error}", command.get_program()))
}

/// Sends a signal by name, with the `kill` of the shell, because the tests contain no unsafe code.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("run sh");
    assert!(status.success(), "kill -{name} {pid}: {status}");
}

fn wait_bounded(child: &mut Child, log: &Log) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("ask for the server's state") {
            return status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the server does not end:\n{}", log.so_far());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The output of a child process, collected by threads that end with its pipes.
struct Log {
    text: Arc<Mutex<String>>,
    readers: Vec<Reader>,
}

struct Reader {
    thread: std::thread::JoinHandle<()>,
    /// Keeps the pipe, so that its last line can be written to it.
    pipe: OwnedFd,
}

/// The line behind the last one of a child that has ended.
const LAST_LINE: &str = "the end of what the child has written";

impl Log {
    fn of(child: &mut Child) -> Log {
        let mut log = Log::read(child.stdout.take());
        log.follow(child.stderr.take());
        log
    }

    fn read(pipe: Option<impl Read + AsFd + Send + 'static>) -> Log {
        let mut log = Log { text: Arc::default(), readers: Vec::new() };
        log.follow(pipe);
        log
    }

    fn follow(&mut self, pipe: Option<impl Read + AsFd + Send + 'static>) {
        let text = self.text.clone();
        let stream = pipe.expect("a piped stream");
        let pipe = stream.as_fd().try_clone_to_owned().expect("another descriptor of the pipe");
        let mut lines = BufReader::new(stream);
        let thread = std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let read = String::from_utf8_lossy(&line);
                // It may stand behind the beginning of a line that was never ended.
                let before_the_end = read.strip_suffix('\n').and_then(|read| read.strip_suffix(LAST_LINE));
                text.lock().expect("the log").push_str(before_the_end.unwrap_or(&read));
                if before_the_end.is_some() {
                    return;
                }
                line.clear();
            }
        });
        self.readers.push(Reader { thread, pipe });
    }

    fn so_far(&self) -> String {
        self.text.lock().expect("the log").clone()
    }

    /// The whole log, after the child has ended. A process that the child has left may keep the pipe open for long: so
    /// the end that is waited for is a line of ours, behind all that the child has written.
    fn finish(&self) -> String {
        for reader in self.readers.iter().filter(|reader| !reader.thread.is_finished()) {
            // proc_pid_fd(5): a pipe that is opened by this name is opened anew, here to write to it.
            let path = format!("/proc/self/fd/{}", reader.pipe.as_raw_fd());
            let mut pipe = File::options().write(true).open(path).expect("the other end of a pipe");
            writeln!(pipe, "{LAST_LINE}").expect("the reader reads");
        }
        let started = Instant::now();
        while self.readers.iter().any(|reader| !reader.thread.is_finished()) {
            assert!(started.elapsed() < PATIENCE, "the output of the child is not read:\n{}", self.so_far());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.so_far()
    }
}
