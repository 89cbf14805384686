//! The stack of another thread, for the log: a signal makes the thread write down its own.
//!
//! A thread that does not go on cannot be asked. The signal is the last but one of the real-time signals, which neither
//! Triton nor the runtimes use. Its handler restarts system calls (SA_RESTART), is called only for a thread that counts
//! as stuck, once each time, and does nothing for a signal that was not requested here. It is installed by the program
//! `nereid` alone: a program that embeds the server may use the signal itself.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most frames of a stack.
const FRAMES_MAX: usize = 64;
/// How long a thread has to write down its stack: it may wait in the kernel where no signal reaches it.
const PATIENCE: Duration = Duration::from_secs(1);

/// No stack is requested.
const IDLE: i32 = 0;
/// The handler is at work.
const RUNNING: i32 = -1;
/// The frames are there.
const DONE: i32 = -2;

/// One of these, or the number of the thread whose stack is requested.
static STATE: AtomicI32 = AtomicI32::new(IDLE);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FRAMES: [AtomicPtr<c_void>; FRAMES_MAX] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FRAMES_MAX];
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// A thread of this process, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadNumber(i32);

impl ThreadNumber {
    #[inline]
    pub fn current() -> ThreadNumber {
        thread_local! {
            static OWN: Cell<i32> = const { Cell::new(0) };
        }
        if OWN.get() == 0 {
            OWN.set(rustix::thread::gettid().as_raw_nonzero().get());
        }
        ThreadNumber(OWN.get())
    }

    /// 0 is no thread.
    pub fn from_raw(number: i32) -> Option<ThreadNumber> {
        (number > 0).then_some(ThreadNumber(number))
    }

    pub fn to_raw(self) -> i32 {
        self.0
    }
}

/// The signal that makes a thread write down its stack; processes of Python models use the same one for theirs.
pub fn signal() -> c_int {
    libc::SIGRTMAX() - 1
}

/// Installs the handler, once for the process. False: the process has another use for the signal.
pub fn install() -> bool {
    // The unwinder's library is opened at its first use, which must not be in the handler.
    let mut frame = std::ptr::null_mut();
    // SAFETY: there is room for one frame, and one is requested.
    unsafe { libc::backtrace(&raw mut frame, 1) };
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid `sigaction`, and both pointers are to such; the handler lives as long as the program.
    let is_installed = unsafe {
        let is_known = libc::sigaction(signal(), std::ptr::null(), before.as_mut_ptr()) == 0;
        let new = action.assume_init_mut();
        let handler: extern "C" fn(c_int) = on_request;
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut new.sa_mask);
        is_known
            && before.assume_init().sa_sigaction == libc::SIG_DFL
            && libc::sigaction(signal(), action.as_ptr(), std::ptr::null_mut()) == 0
    };
    IS_INSTALLED.fetch_or(is_installed, Ordering::Release);
    is_installed
}

extern "C" fn on_request(_: c_int) {
    // SAFETY: the call has no arguments, and the place of `errno` is the thread's own. The code that was interrupted
    // finds its value again.
    let (own, errno_at) = unsafe { (libc::syscall(libc::SYS_gettid) as i32, libc::__errno_location()) };
    // SAFETY: the place of `errno` is valid as long as the thread runs.
    let errno = unsafe { *errno_at };
    if STATE.compare_exchange(own, RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let mut frames = [std::ptr::null_mut(); FRAMES_MAX];
        // SAFETY: the call gets an array and its length.
        let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES_MAX as c_int) };
        for (to, from) in FRAMES.iter().zip(frames) {
            to.store(from, Ordering::Relaxed);
        }
        COUNT.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
        STATE.store(DONE, Ordering::Release);
    }
    // SAFETY: the place of `errno` is valid as long as the thread runs, and no reference to it exists.
    unsafe { *errno_at = errno };
}

/// The stack of a thread, a frame in each line; `None` if it does not answer in time or the handler is not installed.
/// The calling thread waits; it must not be that thread.
pub fn of_thread(thread: ThreadNumber) -> Option<String> {
    static REQUESTS: Mutex<()> = Mutex::new(());
    if !IS_INSTALLED.load(Ordering::Acquire) || thread == ThreadNumber::current() {
        return None;
    }
    let _request = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    // It fails for ever where a handler never came to its end.
    STATE.compare_exchange(IDLE, thread.0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    // SAFETY: the call takes numbers; it fails for a thread that is gone.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.0, signal()) };
    let deadline = Instant::now() + if sent == 0 { PATIENCE } else { Duration::ZERO };
    while STATE.load(Ordering::Acquire) != DONE {
        // A signal that comes later finds no request.
        if Instant::now() >= deadline
            && STATE.compare_exchange(thread.0, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return None;
        }
        if Instant::now() >= deadline + PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let count = COUNT.load(Ordering::Relaxed).min(FRAMES_MAX);
    let frames: Vec<_> = FRAMES.iter().take(count).map(|frame| frame.load(Ordering::Relaxed)).collect();
    STATE.store(IDLE, Ordering::Release);
    Some(text_of(&frames))
}

fn text_of(frames: &[*mut c_void]) -> String {
    let mut text = String::new();
    // SAFETY: the call gets an array and its length. What it returns is null, or as many texts in one allocation,
    // which are read before it is freed.
    unsafe {
        let names = libc::backtrace_symbols(frames.as_ptr(), frames.len() as c_int);
        for (at, frame) in frames.iter().enumerate() {
            let name = if names.is_null() { std::ptr::null_mut() } else { *names.add(at) };
            let _ = match name.is_null() {
                true => write!(text, "\n  {at}: {frame:p}"),
                false => write!(text, "\n  {at}: {}", CStr::from_ptr(name).to_string_lossy()),
            };
        }
        libc::free(names.cast());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_waits_shows_its_stack_and_goes_on_waiting() {
        let ((numbers, number), (end, ended)) = (channel(), channel::<()>());
        let waiting = std::thread::spawn(move || {
            numbers.send(ThreadNumber::current()).unwrap();
            // A system call, which is restarted.
            ended.recv().is_err()
        });
        let thread = number.recv().unwrap();
        assert_eq!(of_thread(thread), None, "the handler is not installed");
        assert!(install());
        assert!(!install(), "the signal has a use now");
        for _ in 0..3 {
            let stack = of_thread(thread).expect("a stack");
            assert!(stack.lines().count() > 3, "{stack}");
        }
        assert_eq!(of_thread(ThreadNumber::current()), None);
        drop(end);
        assert!(waiting.join().unwrap());
        assert_eq!(of_thread(thread), None, "it is gone");
        // A request after that is answered all the same, so a signal without a request left nothing behind.
        let (end, ended) = channel::<()>();
        let (numbers, number) = channel();
        let waiting = std::thread::spawn(move || {
            numbers.send(ThreadNumber::current()).unwrap();
            ended.recv().is_err()
        });
        assert!(of_thread(number.recv().unwrap()).is_some());
        drop(end);
        waiting.join().unwrap();
    }
}
