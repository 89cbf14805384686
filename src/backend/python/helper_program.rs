//! Runs a helper program to its end: a shell that sources an activation script, an interpreter that prints what it is,
//! a program that unpacks. A program that exceeds its time limit is killed with all processes that it started, and its
//! output is kept up to a bound, so that no environment can hang a load or fill the memory.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process_group};

/// The bytes that are kept of each stream.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How long the streams are read after the program's end if another process still holds them open.
const LINGER: Duration = Duration::from_millis(500);
/// The interval between two checks whether it ended, at first and later.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(50);
/// How often a start is tried again while the program's file is open for writing.
const BUSY_TRIES: u32 = 40;
/// The most characters of an output in messages.
const DETAIL_CHARS_MAX: usize = 1000;

/// A program that ran to its end.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why a program yields no output.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("it does not start: {0}")]
    Start(io::Error),
    #[error("it did not end within {} seconds", .0.as_secs())]
    Time(Duration),
}

impl Finished {
    /// Its output on one line, stderr if there is any, else stdout; its exit status if it printed nothing.
    pub fn detail(&self) -> String {
        let bytes = if self.stderr.trim_ascii().is_empty() { &self.stdout } else { &self.stderr };
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let joined = lines.join("; ");
        let skipped = joined.chars().count().saturating_sub(DETAIL_CHARS_MAX);
        match (joined.is_empty(), skipped) {
            (true, _) => self.status.to_string(),
            (false, 0) => joined,
            (false, _) => format!("... {}", joined.chars().skip(skipped).collect::<String>()),
        }
    }
}

/// Runs `command` without input, for `limit` at most. Blocks: for control threads.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, Failure> {
    // A process group of its own, so that its children can be killed with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = start(command).map_err(Failure::Start)?;
    let (out, err) = (Reading::start(child.stdout.take()), Reading::start(child.stderr.take()));
    let Some(status) = wait(&mut child, limit).map_err(Failure::Start)? else {
        end(&mut child);
        return Err(Failure::Time(limit));
    };
    let until = Instant::now() + LINGER;
    Ok(Finished { status, stdout: out.finish(until), stderr: err.finish(until) })
}

/// A program file that was just written may still be open in a child between fork and exec.
fn start(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(LOOK_MAX),
            other => return other,
        }
    }
    command.spawn()
}

/// `None`: its time limit has passed.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    let mut pause = LOOK;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LOOK_MAX);
    }
}

/// Kills the program and its process group.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A stream that is read while the program runs, so that it never waits for a reader.
struct Reading {
    kept: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    fn start(stream: Option<impl Read + Send + 'static>) -> Reading {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&kept);
        let read = stream
            .map(|stream| thread::Builder::new().name("helper-output".to_owned()).spawn(move || drain(stream, &into)));
        Reading { kept, thread: read.and_then(Result::ok) }
    }

    /// The bytes read until the stream ended, or until `until` if another process still holds it open.
    fn finish(self, until: Instant) -> Vec<u8> {
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(LOOK);
        }
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn drain(mut stream: impl Read, into: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 8192];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
                let room = OUTPUT_BYTES_MAX.saturating_sub(kept.len()).min(count);
                kept.extend_from_slice(buffer.get(..room).unwrap_or_default());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_said_and_how_it_ended() {
        let long = Duration::from_secs(60);
        let done = run(&mut shell("echo out; echo err >&2; exit 3"), long).unwrap();
        assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(done.detail(), "err");
        assert_eq!(run(&mut shell("echo a; echo b"), long).unwrap().detail(), "a; b");
        assert_eq!(run(&mut shell("exit 4"), long).unwrap().detail(), "exit status: 4");
        // More than a pipe holds, and more than is kept.
        let flood = run(&mut shell("head -c 3000000 /dev/zero"), long).unwrap();
        assert_eq!(flood.stdout.len(), OUTPUT_BYTES_MAX);
        let missing = run(&mut Command::new("/nonexistent/program"), long).unwrap_err();
        assert!(missing.to_string().starts_with("it does not start: "), "{missing}");
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_what_it_started() {
        let file = std::env::temp_dir().join(format!("nereid-helper-program-{}", std::process::id()));
        let script = format!("sleep 1000 & echo $! > {}.new; mv {0}.new {0}; wait", file.display());
        // On a busy machine it may be killed before it has started anything: then it has more time.
        let started = [2, 20, 200].into_iter().find_map(|seconds| {
            let error = run(&mut shell(&script), Duration::from_secs(seconds)).unwrap_err();
            assert_eq!(error.to_string(), format!("it did not end within {seconds} seconds"));
            std::fs::read_to_string(&file).ok()
        });
        let started = started.expect("it starts another one");
        let _ = std::fs::remove_file(&file);
        // Killed, perhaps not reaped yet by its new parent.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
        while !matches!(state().rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z' | 'X')) {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_stream_that_others_hold_is_not_waited_for() {
        let done = run(&mut shell("echo said; sleep 30 & exit 0"), Duration::from_secs(60)).unwrap();
        assert!(done.status.success());
        assert_eq!(done.stdout, b"said\n");
    }
}
