//! The system calls of a process or of one of its threads, recorded by strace.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::server::{binary, signal};
use crate::skip::skip;

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All threads of the process with this id.
    Process(u32),
    /// The thread with this id.
    Thread(u32),
}

/// A running, attached strace.
pub struct Strace {
    child: Child,
    /// Kept open for the output at its end.
    said: BufReader<ChildStderr>,
    trace: PathBuf,
}

impl Strace {
    /// Returns once it is attached; it writes to `trace`. None, after a visible skip, if there is no strace or it may
    /// not attach.
    pub fn attach(scope: Scope, trace: &Path) -> Option<Strace> {
        let mut command = Command::new("strace");
        let number = match scope {
            Scope::Process(number) => {
                command.arg("-f");
                number
            }
            Scope::Thread(number) => number,
        };
        command.arg("-o").arg(trace).args(["-p", &number.to_string()]).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("there is no strace");
            return None;
        };
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        // It reports when it is attached, or why it cannot attach.
        let is_attached = said.read_line(&mut line).is_ok() && line.contains("attached");
        if !is_attached {
            let _ = child.kill();
            let _ = child.wait();
            skip(&format!("strace may not look at a process: {line}"));
            return None;
        }
        Some(Strace { child, said, trace: trace.to_path_buf() })
    }

    /// Detaches and returns the calls, one line each, in the order in which they began.
    pub fn finish(mut self) -> Vec<String> {
        signal(self.child.id(), "INT");
        self.child.wait().expect("strace ends");
        drop(self.said);
        let text = std::fs::read_to_string(&self.trace).expect("a trace");
        let is_call = |line: &&str| line.contains('(') && !line.contains(" resumed>");
        text.lines().filter(is_call).map(str::to_owned).collect()
    }
}

/// The words that start the server with each futex call of its main thread returning late, by so many µs: other threads
/// get ahead of it. None, after a visible skip, if there is no strace or it may not trace.
pub fn late_main_thread(delay_us: u32) -> Option<Vec<String>> {
    let inject = format!("inject=futex:delay_exit={delay_us}");
    // -D: the server is the child that is started, and not strace.
    let words = ["strace", "-D", "-qq", "-o", "/dev/null", "-e", "trace=futex", "-e", &inject];
    let runs = Command::new(words[0]).args(&words[1..]).arg("true").output();
    if !runs.as_ref().is_ok_and(|output| output.status.success()) {
        skip(&format!("strace cannot delay a process: {runs:?}"));
        return None;
    }
    let server = binary().into_string().expect("a path in UTF-8");
    Some(words.into_iter().map(str::to_owned).chain([server]).collect())
}

/// The name of the system call on a line of a trace.
pub fn name_of(call: &str) -> &str {
    let before = call.split('(').next().unwrap_or_default();
    before.split_whitespace().last().unwrap_or_default()
}

/// The thread of process `pid` with the name `name`.
pub fn thread_called(name: &str, pid: u32) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads of the server");
    let is_it = |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let found = tasks.flatten().find(|task| is_it(&task.path()));
    let number = found.and_then(|task| task.file_name().to_str().and_then(|number| number.parse().ok()));
    number.unwrap_or_else(|| panic!("process {pid} has no thread called {name}"))
}
