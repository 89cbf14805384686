//! The server in this binary, started by the other tests, and its thread that reports the counts.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::allocator::{IS_BLIND, WITH_STACKS, stacks};
use super::ledger::{EVENTS, rows};
use super::measurement::Counts;
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::Variant;

/// Names the socket on which the child tells its counts; makes a process of this binary the child.
const SOCKET: &str = "NEREID_TEST_COUNTS";
/// Asks for the stacks of allocations.
pub const STACKS: &str = "NEREID_TEST_STACKS";
const TELLER: &str = "teller";

/// The child's whole life: the server with the arguments behind `--`.
#[test]
#[ignore = "it is the server that the other tests start"]
fn serve() {
    let socket = std::env::var_os(SOCKET).expect("only the other tests start this");
    let listener = UnixListener::bind(&socket).expect("a socket for the counts");
    std::thread::Builder::new().name(TELLER.into()).spawn(move || tell(&listener)).expect("a thread");
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let code = tritonserver::cli::main(std::iter::once("nereid".into()).chain(words));
    assert_eq!(code, ExitCode::SUCCESS);
}

/// Answers `counts`, `keep` (stacks from now on) and `stacks` (those kept), until the client leaves.
fn tell(listener: &UnixListener) {
    IS_BLIND.set(true);
    let (mut peer, _) = listener.accept().expect("the test connects");
    let lines = BufReader::new(peer.try_clone().expect("another handle")).lines();
    for line in lines.map_while(Result::ok) {
        let answer = match line.as_str() {
            "counts" => rows().map(|(thread, counts)| row(thread, counts)).collect(),
            "keep" => {
                WITH_STACKS.store(true, Ordering::Relaxed);
                String::new()
            }
            "stacks" => {
                WITH_STACKS.store(false, Ordering::Relaxed);
                stacks()
            }
            other => panic!("nobody asks for {other:?}"),
        };
        peer.write_all(format!("{answer}\0").as_bytes()).expect("the test listens");
    }
}

fn row(thread: i32, counts: [u64; EVENTS]) -> String {
    // The number, the name in parentheses, the state: one of a thread that is gone is as good as asleep.
    let stat =
        std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_else(|_| "0 (gone) S".into());
    let (name, behind) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") ")).unwrap_or(("gone", "S"));
    let counts = counts.map(|count| count.to_string()).join(" ");
    format!("{counts} {} {name}\n", behind.chars().next().unwrap_or('S'))
}

/// A server whose counts can be read.
pub struct Counted {
    pub server: Server,
    teller: UnixStream,
    socket: PathBuf,
}

impl Counted {
    pub fn start(variant: Variant, repository: &Path, flags: &[&str]) -> Counted {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("counts-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Paths of sockets are short.
        let socket = std::env::temp_dir().join(name);
        let this = std::env::current_exe().expect("this binary's path");
        let words = [
            "env".to_owned(),
            format!("{SOCKET}={}", socket.display()),
            this.display().to_string(),
            "--exact".to_owned(),
            "child::serve".to_owned(),
            "--ignored".to_owned(),
            "--nocapture".to_owned(),
            "--".to_owned(),
        ];
        let server = Server::start_under(&words, variant, repository, flags, "/v2/health/ready");
        let teller = UnixStream::connect(&socket).expect("the server tells its counts");
        Counted { server, teller, socket }
    }

    fn ask(&mut self, question: &str) -> String {
        self.teller.set_read_timeout(Some(PATIENCE)).expect("a bound");
        self.teller.write_all(format!("{question}\n").as_bytes()).expect("the server listens");
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.teller.read(&mut buffer) {
                Ok(0) => panic!("the server stopped in the middle of {question}"),
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("the server does not answer: {error}"),
            }
            if answer.last() == Some(&0) {
                answer.pop();
                return String::from_utf8(answer).expect("text");
            }
        }
    }

    /// The counts when nothing moves any more: all threads sleep, and the counts are twice the same.
    pub fn at_rest(&mut self) -> Counts {
        let started = Instant::now();
        let mut last = Counts::parse(&self.ask("counts"));
        loop {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let now = Counts::parse(&self.ask("counts"));
            if now == last && now.all_sleep {
                return now;
            }
            assert!(started.elapsed() < PATIENCE, "the server never rests");
            last = now;
        }
    }

    /// From now on the server keeps the stacks of its allocations.
    pub fn keep_stacks(&mut self) {
        self.ask("keep");
    }

    pub fn stacks(&mut self) -> String {
        self.ask("stacks")
    }

    pub fn stop(self) {
        let _ = std::fs::remove_file(&self.socket);
        self.server.stop();
    }
}
