//! Processes that load one model each: their start, their output, their time, and their end with all that they started.
//!
//! One thread watches all of them. The calling process adopts what its children leave behind (a "subreaper"), and each
//! child adopts what its own descendants leave behind. So a process that appears among the children of this one without
//! having been started here belongs to a child that has ended, and is killed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open, set_child_subreaper,
    waitpid,
};

use super::super::arguments::DeepSettings;
use super::memory::{self, Excess, HostMemory};

/// Most bytes of a child's output that are kept: the last ones.
const OUTPUT_BYTES_MAX: usize = 16 << 10;
/// Reads of one child's output between two looks at the others.
const READS_MAX: usize = 64;
/// Rounds of killing what ended children left behind, and the pause between two.
const SWEEPS_MAX: usize = 400;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// One process to start.
pub struct Job {
    /// The words behind the program's name.
    pub words: Vec<OsString>,
    /// Its directory for temporary files.
    pub directory: PathBuf,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signal(i32),
    TimedOut,
    /// It was stopped, because it had too much memory.
    Memory(Excess),
    NotStarted(String),
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ended {
    pub end: End,
    /// The last bytes of its output and of its descendants' output.
    pub output: Vec<u8>,
    pub duration: Duration,
}

/// Runs the program itself once for each job; the results are in the order of the jobs.
pub fn run(jobs: &[Job], settings: &DeepSettings) -> Vec<Ended> {
    let mut children = Children::new(settings.memory_max);
    let mut ended: Vec<Option<Ended>> = jobs.iter().map(|_| None).collect();
    let mut waiting = jobs.iter().enumerate();
    loop {
        while children.running.len() < settings.jobs_max.max(1) {
            let Some((at, job)) = waiting.next() else { break };
            match Running::start(at, job, settings.timeout) {
                Ok(child) => children.running.push(child),
                Err(error) => set(&mut ended, at, Ended::not_started(&error)),
            }
        }
        if children.running.is_empty() {
            return ended.into_iter().map(|one| one.unwrap_or_else(Ended::missing)).collect();
        }
        for (at, one) in children.step() {
            set(&mut ended, at, one);
        }
    }
}

fn set(ended: &mut [Option<Ended>], at: usize, one: Ended) {
    if let Some(place) = ended.get_mut(at) {
        *place = Some(one);
    }
}

impl Ended {
    fn not_started(error: &io::Error) -> Ended {
        Ended { end: End::NotStarted(error.to_string()), output: Vec::new(), duration: Duration::ZERO }
    }

    fn missing() -> Ended {
        Ended::not_started(&io::Error::from(ErrorKind::NotFound))
    }
}

/// The processes under way.
struct Children {
    running: Vec<Running>,
    /// This process had no children before, so that all others are left by ended ones.
    may_sweep: bool,
    /// The most bytes of one of them with all that it has started.
    memory_max: Option<u64>,
    /// The time of the next measurement of their memory.
    measured_next: Instant,
}

impl Children {
    fn new(memory_max: Option<u64>) -> Children {
        let may_sweep = children_of(getpid()).is_empty() && set_child_subreaper(Some(getpid())).is_ok();
        Children { running: Vec::new(), may_sweep, memory_max, measured_next: Instant::now() }
    }

    /// Waits for output, an end or a deadline, and returns the processes that have ended.
    fn step(&mut self) -> Vec<(usize, Ended)> {
        let are_over = self.wait();
        let now = Instant::now();
        let mut ended = Vec::new();
        let mut over = are_over.into_iter();
        for mut child in std::mem::take(&mut self.running) {
            child.read();
            if over.next().unwrap_or(false) {
                ended.push(child);
                continue;
            }
            if now >= child.deadline {
                child.stop(End::TimedOut);
            }
            self.running.push(child);
        }
        if now >= self.measured_next {
            self.measure();
            self.measured_next = Instant::now() + memory::PAUSE;
        }
        let ended: Vec<_> = ended.into_iter().map(|child| (child.at, child)).collect();
        let mut outcomes = Vec::new();
        for (at, mut child) in ended {
            let status = child.reap();
            self.sweep();
            child.read();
            outcomes.push((at, child.ended(status)));
        }
        outcomes
    }

    /// Stops those that have too much memory.
    fn measure(&mut self) {
        let mut running: Vec<&mut Running> =
            self.running.iter_mut().filter(|child| child.stopped.is_none() && child.pid().is_some()).collect();
        let roots: Vec<Pid> = running.iter().filter_map(|child| child.pid()).collect();
        let host = HostMemory::read();
        let Some(used) = memory::used(&roots, self.memory_max, host) else { return };
        for (at, excess) in memory::excesses(&used, self.memory_max, host) {
            if let Some(child) = running.get_mut(at) {
                child.stop(End::Memory(excess));
            }
        }
    }

    /// Waits; which processes have ended.
    fn wait(&self) -> Vec<bool> {
        let now = Instant::now();
        // A process that was stopped has been killed, and its end is all that is waited for.
        let deadlines = self.running.iter().filter(|child| child.stopped.is_none()).map(|child| child.deadline);
        let timeout = deadlines.min().map(|deadline| deadline.min(self.measured_next).saturating_duration_since(now));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let ends = self.running.iter().map(|child| PollFd::from_borrowed_fd(child.pidfd.as_fd(), PollFlags::IN));
        let outputs = self.running.iter().filter_map(|child| child.output.as_ref());
        let outputs = outputs.map(|output| PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = ends.chain(outputs).collect();
        // An interruption is a turn without news.
        let _ = poll(&mut polled, timeout.as_ref());
        polled.iter().take(self.running.len()).map(|one| !one.revents().is_empty()).collect()
    }

    /// Kills what ended processes have left behind, and what that leaves behind.
    fn sweep(&self) {
        let known: Vec<Pid> = self.running.iter().filter_map(Running::pid).collect();
        for _ in 0..if self.may_sweep { SWEEPS_MAX } else { 0 } {
            let mut left = children_of(getpid());
            left.retain(|pid| !known.contains(pid));
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            std::thread::sleep(SWEEP_PAUSE);
        }
    }
}

/// A process under way.
struct Running {
    /// Its job.
    at: usize,
    child: Child,
    /// Readable once it has ended.
    pidfd: OwnedFd,
    /// None once all its writers are gone.
    output: Option<PipeReader>,
    tail: VecDeque<u8>,
    started: Instant,
    deadline: Instant,
    /// It was killed, for this reason.
    stopped: Option<End>,
}

impl Running {
    fn start(at: usize, job: &Job, timeout: Duration) -> io::Result<Running> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        // Of the new process, and so the program that runs here, even if its file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nereid").args(&job.words).env("TMPDIR", &job.directory).process_group(0);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let pidfd = pidfd.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let started = Instant::now();
        let deadline = started + timeout;
        let (output, tail) = (Some(reader), VecDeque::new());
        Ok(Running { at, child, pidfd, output, tail, started, deadline, stopped: None })
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Kills its process group; until it is reaped, the number is not reused.
    fn kill(&self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Kills it, once.
    fn stop(&mut self, reason: End) {
        if self.stopped.is_none() {
            self.stopped = Some(reason);
            self.kill();
        }
    }

    /// Reads what it has written so far.
    fn read(&mut self) {
        let mut buffer = [0; 8 << 10];
        for _ in 0..READS_MAX {
            let Some(output) = &mut self.output else { return };
            match output.read(&mut buffer) {
                Ok(0) => self.output = None,
                Ok(length) => {
                    self.tail.extend(buffer.iter().take(length));
                    let surplus = self.tail.len().saturating_sub(OUTPUT_BYTES_MAX);
                    self.tail.drain(..surplus);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.output = None,
            }
        }
    }

    /// Kills the rest of its group and takes its status.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        self.kill();
        self.child.wait()
    }

    fn ended(self, status: io::Result<ExitStatus>) -> Ended {
        let end = match (self.stopped, status) {
            (Some(reason), _) => reason,
            (None, Ok(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => End::Exited(code),
                (None, signal) => End::Signal(signal.unwrap_or_default()),
            },
            (None, Err(error)) => End::NotStarted(error.to_string()),
        };
        Ended { end, output: self.tail.into(), duration: self.started.elapsed() }
    }
}

/// The processes that have `parent` as their parent now.
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |number: &i32| {
        let stat = std::fs::read(format!("/proc/{number}/stat")).unwrap_or_default();
        parent_in(&String::from_utf8_lossy(&stat)) == Some(parent.as_raw_nonzero().get())
    };
    numbers.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// The parent's number in the text of `/proc/<number>/stat`: the second field behind the name, which may contain
/// anything.
fn parent_in(stat: &str) -> Option<i32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("12 (a) b) S 34 12 12 0 -1"), Some(34));
        assert_eq!(parent_in("12 (a) S"), None);
        assert_eq!(parent_in(""), None);
    }
}
