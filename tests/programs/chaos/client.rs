//! A client process: the test binary itself, started again for the one test below. Each of its threads sends requests
//! of one kind until the process's standard input ends, and then finishes what it has begun.

mod calls;
mod cutting;
mod grpc;
mod http;
mod shared_memory;
mod vectors;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::judge::{self, Refusal};
use super::models::Generations;
use super::site::Site;
use super::tally::{Tally, count};
use nereid_test_support::random::Random;
use nereid_test_support::server::PATIENCE;

/// What a client process shall do, in JSON.
const ORDER: &str = "NEREID_TEST_CHAOS_CLIENT";
const REPORT_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Kind {
    /// One request after another, and several at once, on a connection that is kept.
    Http,
    GrpcUnary,
    GrpcStream,
    HttpSequences,
    GrpcSequences,
    SharedMemory,
    /// Connections that end in the middle of a request, or before its answer.
    Cutting,
    /// Calls and streams that are reset.
    Cancelling,
    /// Requests of the model `victim`, for a process that is killed.
    Victim,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Order {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub generations: PathBuf,
    pub shm: PathBuf,
    pub seed: u64,
    pub kinds: Vec<Kind>,
    /// Milliseconds between two requests of a thread.
    pub pause_ms: u64,
}

/// What the threads of a client process share.
pub struct Shared {
    pub order: Order,
    pub generations: Generations,
    tally: Mutex<Tally>,
    is_over: AtomicBool,
}

/// A connection broke, or an answer never came.
#[derive(Debug)]
pub struct Broken(pub String);

/// How a request ended.
pub type Outcome<T> = Result<T, Refusal>;

impl Shared {
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub fn pause(&self) {
        if self.order.pause_ms > 0 {
            std::thread::sleep(Duration::from_millis(self.order.pause_ms));
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn asks(&self, model: &str) {
        self.with(|tally| count(&mut tally.asked, model, 1));
    }

    pub fn leaves(&self, model: &str) {
        self.with(|tally| count(&mut tally.left, model, 1));
    }

    pub fn injects(&self, fault: &str) {
        self.with(|tally| count(&mut tally.faults, fault, 1));
    }

    pub fn is_wrong(&self, what: String) {
        self.with(|tally| tally.wrong.push(what));
        self.is_over.store(true, Ordering::Release);
    }

    /// Counts the end of a request; true if it was answered.
    pub fn ends(&self, model: &str, outcome: Outcome<Result<(), String>>) -> bool {
        match outcome {
            Ok(Ok(())) => self.with(|tally| count(&mut tally.right, model, 1)),
            Ok(Err(what)) => self.is_wrong(format!("model '{model}' answers wrongly: {what}")),
            Err(refusal) => {
                match judge::judge(model, &refusal) {
                    Ok(text) => self.with(|tally| count(tally.refused.entry(model.to_owned()).or_default(), &text, 1)),
                    Err(what) => self.is_wrong(what),
                }
                return false;
            }
        }
        true
    }

    /// The chaos cuts no connection of a client that lives: one that breaks has lost its requests.
    pub fn breaks(&self, what: &str, Broken(why): Broken) {
        self.is_wrong(format!("{what}: a connection that nobody cut is lost: {why}"));
    }
}

#[test]
fn a_client_of_the_chaos() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).expect("an order");
    let generations = Generations::open(&order.generations);
    let shared = Shared { order, generations, tally: Mutex::default(), is_over: AtomicBool::new(false) };
    let shared = Arc::new(shared);
    let threads: Vec<_> =
        shared.order.kinds.iter().copied().enumerate().map(|(at, kind)| start(&shared, at, kind)).collect();
    let listener = Arc::clone(&shared);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        listener.is_over.store(true, Ordering::Release);
    });
    while threads.iter().any(|thread| !thread.is_finished()) {
        print_tally(&shared);
        std::thread::sleep(REPORT_EVERY);
    }
    for thread in threads {
        if thread.join().is_err() {
            shared.is_wrong("a client's thread has panicked".to_owned());
        }
    }
    print_tally(&shared);
}

fn print_tally(shared: &Shared) {
    let line = shared.with(|tally| serde_json::to_string(tally).expect("JSON"));
    // A new line first: the harness has begun one.
    let _ = std::io::stdout().write_all(format!("\n{line}\n").as_bytes());
}

fn start(shared: &Arc<Shared>, at: usize, kind: Kind) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    let random = Random::new(shared.order.seed.wrapping_mul(1000).wrapping_add(at as u64));
    std::thread::spawn(move || match kind {
        Kind::Http => http::run(&shared, random),
        Kind::GrpcUnary => calls::run_unary(&shared, random),
        Kind::GrpcStream => calls::run_streams(&shared, random),
        Kind::HttpSequences => http::run_sequences(&shared, random),
        Kind::GrpcSequences => calls::run_sequences(&shared, random),
        Kind::SharedMemory => shared_memory::run(&shared, random),
        Kind::Cutting => cutting::run(&shared, random),
        Kind::Cancelling => calls::run_cancelling(&shared, random),
        Kind::Victim => http::run_victim(&shared, random),
    })
}

/// A client process as the test that has started it sees it. Dropping it kills it.
pub struct Process {
    child: Child,
    last: Arc<Mutex<Tally>>,
    reader: Option<JoinHandle<String>>,
}

impl Process {
    pub fn start(site: &Site, seed: u64, kinds: &[Kind], pause_ms: u64) -> Process {
        let order = Order {
            http: site.server.http,
            grpc: site.server.grpc,
            generations: site.folder.join("generations"),
            shm: site.shm(),
            seed,
            kinds: kinds.to_vec(),
            pause_ms,
        };
        let mut command = Command::new(std::env::current_exe().expect("the path of this test binary"));
        command.args(["--exact", "chaos::client::a_client_of_the_chaos", "--nocapture", "--test-threads=1"]);
        command.env(ORDER, serde_json::to_string(&order).expect("JSON"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start a client process");
        let last = Arc::new(Mutex::new(Tally::default()));
        let lines = BufReader::new(child.stdout.take().expect("a piped stream"));
        let errors = child.stderr.take().expect("a piped stream");
        let kept = Arc::clone(&last);
        let reader = std::thread::spawn(move || {
            let errors = std::thread::spawn(move || {
                let mut text = String::new();
                let _ = BufReader::new(errors).read_to_string(&mut text);
                text
            });
            for line in lines.lines().map_while(Result::ok).filter(|line| line.starts_with('{')) {
                // The last line of a process that is killed may be cut.
                if let Ok(tally) = serde_json::from_str(&line) {
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = tally;
                }
            }
            errors.join().unwrap_or_default()
        });
        Process { child, last, reader: Some(reader) }
    }

    pub fn tally(&self) -> Tally {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the process: its threads finish what they have begun. A process that does not end waits for an answer.
    pub fn finish(mut self) -> Tally {
        drop(self.child.stdin.take());
        let started = Instant::now();
        while self.child.try_wait().expect("ask for a client's state").is_none() {
            if started.elapsed() > PATIENCE + PATIENCE {
                let mut tally = self.tally();
                tally.wrong.push(format!("a client process does not end: {:?}", self.child));
                return tally;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let errors = self.reader.take().map(|reader| reader.join().unwrap_or_default());
        let mut tally = self.tally();
        if !self.child.wait().is_ok_and(|status| status.success()) {
            tally.wrong.push(format!("a client process failed: {}", errors.unwrap_or_default()));
        }
        tally
    }

    pub fn kill(mut self) -> Tally {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.tally()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
