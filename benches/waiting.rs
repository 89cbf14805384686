//! Measures how late an expired request is answered, and the delay of requests by the load of another model or by a
//! long packed body: `cargo bench --bench waiting`.
//!
//! The release binary runs as a process of its own; a client thread sends requests over HTTP, one at a time on each
//! connection. Nothing here asserts a time: only a wrong answer fails.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Of a request that waits for the one instance, which is busy for longer.
const TIMEOUT: Duration = Duration::from_millis(50);
const BUSY: Duration = Duration::from_millis(400);
/// Requests that expire at the same moment.
const TOGETHER: usize = 16;
const EXPIRIES: usize = 20;
/// Of each half of a round.
const STEADY: Duration = Duration::from_secs(2);
const ROUNDS: usize = 4;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let server = Server::start()?;
    println!("| | median | p99 | most |\n|---|---|---|---|");
    print_row("answer of an expired request, after its time", expiries(server.http)?);
    let (mut alone, mut beside, mut loads) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        alone.extend(steady(server.http, STEADY)?);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome<()> {
            let loader = scope.spawn(|| reload(server.http, &is_over));
            let times = steady(server.http, STEADY);
            is_over.store(true, Ordering::SeqCst);
            loads += loader.join().map_err(|_| "the loader panicked")??;
            beside.extend(times?);
            Ok(())
        })?;
    }
    print_row("request, nothing else going on", alone);
    print_row(&format!("request, beside {loads} loads of a model with 16 instances"), beside);
    drop(server);
    beside_packed_bodies()
}

/// Small requests while another client of the same shard posts long packed bodies.
fn beside_packed_bodies() -> Outcome<()> {
    let server = Server::start_with(&["--io-cores=1"])?;
    let body = packed_body()?;
    let (mut alone, mut beside, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.extend(steady(server.http, STEADY)?);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome<()> {
            let poster = scope.spawn(|| post_packed(server.http, &body, &is_over));
            let times = steady(server.http, STEADY);
            is_over.store(true, Ordering::SeqCst);
            bodies.extend(poster.join().map_err(|_| "the client of the packed bodies panicked")??);
            beside.extend(times?);
            Ok(())
        })?;
    }
    print_row("request on one shard, nothing else going on", alone);
    print_row("request on one shard, beside packed bodies", beside);
    let sizes = format!("{} MiB of JSON in {} KiB", PACKED_JSON >> 20, body.len() >> 10);
    print_row(&format!("a packed body: {sizes}"), bodies);
    Ok(())
}

/// Bytes of JSON that are packed: the server's default limit.
const PACKED_JSON: usize = 64 << 20;

/// The end of such a request: it is refused once all of it was read, because its answer is not measured.
const UNKNOWN_OUTPUT: &str = r#"]}],"outputs":[{"name":"NONE"}]}"#;

/// A request whose numbers fill [`PACKED_JSON`].
fn packed_body() -> Outcome<Vec<u8>> {
    let (head, tail) = (r#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,"#, UNKNOWN_OUTPUT);
    let count = (PACKED_JSON - head.len() - tail.len() - 32) / 4;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    write!(encoder, "{head}{count}],\"data\":[100")?;
    for at in 1..count {
        write!(encoder, ",{}", 100 + at * at % 156)?;
    }
    encoder.write_all(tail.as_bytes())?;
    Ok(encoder.finish()?)
}

/// How long each body took that was posted until `is_over`.
fn post_packed(http: SocketAddr, body: &[u8], is_over: &AtomicBool) -> Outcome<Vec<Duration>> {
    let mut connection = Connection::open(http)?;
    let mut times = Vec::new();
    let length = body.len();
    let head = format!(
        "POST /v2/models/steady/infer HTTP/1.1\r\nHost: bench\r\nContent-Encoding: gzip\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    while !is_over.load(Ordering::SeqCst) {
        let sent = Instant::now();
        connection.0.write_all(head.as_bytes())?;
        connection.0.write_all(body)?;
        let (status, body) = connection.receive()?;
        if status != 400 || !body.contains("unexpected inference output 'NONE'") {
            return Err(format!("{status}: {body}").into());
        }
        times.push(sent.elapsed());
    }
    Ok(times)
}

fn print_row(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times.get(((times.len() - 1) as f64 * share) as usize).copied().unwrap_or_default();
    let show = |time: Duration| format!("{:.0} µs", time.as_secs_f64() * 1e6);
    println!("| {name} ({}) | {} | {} | {} |", times.len(), show(at(0.5)), show(at(0.99)), show(at(1.0)));
}

/// How much later than its timeout each request was answered.
fn expiries(http: SocketAddr) -> Outcome<Vec<Duration>> {
    let mut late = Vec::new();
    for _ in 0..EXPIRIES {
        let mut first = Connection::open(http)?;
        first.send("POST", "/v2/models/busy/infer", INFER)?;
        // The instance has it now, or will before the others.
        std::thread::sleep(TIMEOUT / 4);
        let waiting: Vec<_> = (0..TOGETHER)
            .map(|_| {
                std::thread::spawn(move || -> Outcome<Duration> {
                    let mut connection = Connection::open(http)?;
                    connection.send("POST", "/v2/models/busy/infer", INFER)?;
                    let sent = Instant::now();
                    let (status, body) = connection.receive()?;
                    let took = sent.elapsed();
                    match status == 503 && body.contains("Request timeout expired") {
                        true => Ok(took.saturating_sub(TIMEOUT)),
                        false => Err(format!("expected an expiry, got {status}: {body}").into()),
                    }
                })
            })
            .collect();
        for request in waiting {
            late.push(request.join().map_err(|_| "a client panicked")??);
        }
        first.receive()?;
    }
    Ok(late)
}

/// Times of requests, one after the other, for `time`.
fn steady(http: SocketAddr, time: Duration) -> Outcome<Vec<Duration>> {
    let mut connection = Connection::open(http)?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        let sent = Instant::now();
        connection.send("POST", "/v2/models/steady/infer", INFER)?;
        let (status, body) = connection.receive()?;
        if status != 200 {
            return Err(format!("{status}: {body}").into());
        }
        times.push(sent.elapsed());
    }
    Ok(times)
}

/// Loads a model again and again; each time as a changed one.
fn reload(http: SocketAddr, is_over: &AtomicBool) -> Outcome<usize> {
    let mut connection = Connection::open(http)?;
    let mut loads = 0;
    while !is_over.load(Ordering::SeqCst) {
        let config = config("other", &format!("metric_tags {{ key: \"n\" value: \"{loads}\" }}"), 16, "");
        fs::write(Path::new(&models()).join("other/config.pbtxt"), config)?;
        connection.send("POST", "/v2/repository/models/other/load", "")?;
        let (status, body) = connection.receive()?;
        if status != 200 {
            return Err(format!("{status}: {body}").into());
        }
        loads += 1;
    }
    Ok(loads)
}

const INFER: &str = r#"{"inputs":[{"name":"INPUT0","shape":[1,4],"datatype":"UINT8","data":[1,2,3,4]}]}"#;

fn config(name: &str, more: &str, instances: usize, parameters: &str) -> String {
    format!(
        "name: \"{name}\" backend: \"identity\" max_batch_size: 1 {more} {parameters}
         input {{ name: \"INPUT0\" data_type: TYPE_UINT8 dims: [ -1 ] }}
         output {{ name: \"OUTPUT0\" data_type: TYPE_UINT8 dims: [ -1 ] }}
         instance_group {{ kind: KIND_CPU count: {instances} }}"
    )
}

fn models() -> PathBuf {
    std::env::temp_dir().join(format!("nereid-bench-waiting-{}", std::process::id()))
}

struct Server {
    http: SocketAddr,
    child: Child,
}

impl Server {
    fn start() -> Outcome<Server> {
        Server::start_with(&[])
    }

    fn start_with(flags: &[&str]) -> Outcome<Server> {
        let timeout_us = TIMEOUT.as_micros();
        let policy = format!("default_queue_policy {{ default_timeout_microseconds: {timeout_us} }}");
        let delay =
            format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{}\" }} }}", BUSY.as_millis());
        for (name, config) in [
            ("busy", config("busy", &format!("dynamic_batching {{ {policy} }}"), 1, &delay)),
            ("steady", config("steady", "", 1, "")),
            ("other", config("other", "", 16, "")),
        ] {
            fs::create_dir_all(models().join(name).join("1"))?;
            fs::write(models().join(name).join("config.pbtxt"), config)?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(env!("CARGO_BIN_EXE_nereid"))
            .arg(format!("--model-repository={}", models().display()))
            .arg(format!("--http-port={port}"))
            .args(["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false", "--log-info=false"])
            .args(["--model-control-mode=explicit", "--load-model=*"])
            .args(flags)
            .stdin(Stdio::null())
            .spawn()?;
        let server = Server { http: SocketAddr::from(([127, 0, 0, 1], port)), child };
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            let ready = Connection::open(server.http).and_then(|mut connection| {
                connection.send("GET", "/v2/health/ready", "")?;
                connection.receive()
            });
            if ready.is_ok_and(|(status, _)| status == 200) {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the server does not get ready".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(models());
    }
}

/// One connection, one request at a time.
struct Connection(TcpStream);

impl Connection {
    fn open(to: SocketAddr) -> Outcome<Connection> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Connection(stream))
    }

    fn send(&mut self, method: &str, path: &str, body: &str) -> Outcome<()> {
        let length = body.len();
        let message = format!("{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n\r\n{body}");
        Ok(self.0.write_all(message.as_bytes())?)
    }

    /// Status and body.
    fn receive(&mut self) -> Outcome<(u16, String)> {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let count = self.0.read(&mut buffer)?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            bytes.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&bytes);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let header = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned);
            let length: usize = head.lines().find_map(header).map_or(Ok(0), |length| length.trim().parse())?;
            if body.len() >= length {
                let status = head.split(' ').nth(1).unwrap_or_default().parse()?;
                return Ok((status, body.to_owned()));
            }
        }
    }
}
