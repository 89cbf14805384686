//! A worker's process: its start, what it inherits, and the detection of its end.
//!
//! It gets two descriptors beside the three standard ones, and dies with the thread that started it, so that it never
//! outlives the server. It leads a process group of its own: processes that it has started end with it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use nereid_observe::stacks;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

/// The descriptors of the interpreter beside the standard ones.
pub const SOCKET: i32 = 3;
pub const PROGRAM: i32 = 4;

/// One fork at a time. In a program that holds the server, fork calls the handlers that the program's libraries
/// registered (pthread_atfork), and those of gRPC end the program if a second fork begins before the first one returns.
static FORK: Mutex<()> = Mutex::new(());

/// A running process; its drop kills it and waits for it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with `socket` and `program` as its descriptors 3 and 4. It dies with the calling thread.
    pub fn start(mut command: Command, socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<Process> {
        // Above the numbers in the child, so that neither dup overwrites the other.
        let socket = fcntl_dupfd_cloexec(socket, PROGRAM + 1)?;
        let program = fcntl_dupfd_cloexec(program, PROGRAM + 1)?;
        let parent = rustix::process::getpid();
        let prepare = move || {
            // SAFETY: plain system calls on numbers, without access to the parent's memory.
            unsafe {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                    || libc::setpgid(0, 0) != 0
                    || libc::dup2(socket.as_raw_fd(), SOCKET) < 0
                    || libc::dup2(program.as_raw_fd(), PROGRAM) < 0
                {
                    return Err(io::Error::last_os_error());
                }
                // Closes descriptors that some library did not mark close-on-exec.
                libc::syscall(libc::SYS_close_range, PROGRAM + 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
                // The parent may have died before the signal was set.
                if libc::getppid() != parent.as_raw_nonzero().get() {
                    libc::_exit(1);
                }
            }
            Ok(())
        };
        command.stdin(Stdio::null());
        // SAFETY: the closure makes system calls only, which are allowed between fork and exec.
        let command = unsafe { command.pre_exec(prepare) };
        let child = {
            let _one = FORK.lock().unwrap_or_else(PoisonError::into_inner);
            command.spawn()?
        };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        let mut process = match pidfd {
            Ok(pidfd) => Process { child, pidfd, ended: None },
            Err(error) => {
                let mut child = child;
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        fcntl_setfd(&process.pidfd, FdFlags::CLOEXEC).inspect_err(|_| process.kill())?;
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Readable once it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
        }
    }

    /// Waits until it has ended, kills the rest of its process group, and returns its status.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        // Until it is reaped, its number is not reused.
        let seen = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::PidFd(self.pidfd.as_fd()), seen) {}
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait();
    }
}

/// Kills the process of `pidfd`; no effect if it has ended already.
pub fn kill(pidfd: &OwnedFd) {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
}

/// Has the process write the stacks of its threads to its stderr, if it catches the signal for that: any other process
/// would end by it.
pub fn write_stacks(number: u32, pidfd: &OwnedFd) {
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    if catches(&status, stacks::signal()) {
        // SAFETY: the call takes numbers and a null pointer; it fails for a process that has ended.
        let _ = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), stacks::signal(), 0, 0) };
    }
}

/// Whether a process with this status has a handler for the signal (proc_pid_status(5), SigCgt).
fn catches(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// How a process ended, for messages.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => {
            let name = match signal {
                libc::SIGABRT => " (SIGABRT)",
                libc::SIGBUS => " (SIGBUS)",
                libc::SIGFPE => " (SIGFPE)",
                libc::SIGILL => " (SIGILL)",
                libc::SIGKILL => " (SIGKILL)",
                libc::SIGSEGV => " (SIGSEGV)",
                libc::SIGTERM => " (SIGTERM)",
                libc::SIGTRAP => " (SIGTRAP)",
                _ => "",
            };
            format!("was ended by signal {signal}{name}")
        }
        (None, None) => "ended".to_owned(),
    }
}

/// Waits until one of `descriptors` is readable, or the timeout passes; returns which.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout_ms: Option<u64>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    let timeout = timeout_ms.map(|ms| Timespec {
        tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        tv_nsec: (ms % 1000) as i64 * 1_000_000,
    });
    loop {
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `python3 <program> <title>`: the title appears in lists of processes.
pub fn command(mut interpreter: Command, title: &str) -> Command {
    interpreter.arg(format!("/proc/self/fd/{PROGRAM}")).arg(title);
    interpreter
}
