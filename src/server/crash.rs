//! Fatal signals: the stack of the thread that met one goes to stderr, then the signal takes its course (cli.md
//! section 6).
//!
//! Most crashes of a server are a backend's, and the stack names the library they happened in. Nothing here waits,
//! locks or allocates: the thread may have been anywhere.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGABRT];

/// Frames of the deepest stack that is shown.
const FRAMES_MAX: usize = 64;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What handled SIGSEGV before: the standard library's, which knows a stack that ran over.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Takes the signals, once for the process.
pub fn install() -> io::Result<()> {
    // The unwinder's library is opened at its first use, which must not be in the handler.
    let mut frame = std::ptr::null_mut();
    // SAFETY: there is room for the one frame that is asked for.
    unsafe { libc::backtrace(&raw mut frame, 1) };
    for signal in SIGNALS {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeros are a valid `sigaction`, and both pointers are to such; the handler has the signature that
        // SA_SIGINFO asks for and lives as long as the program.
        let before = unsafe {
            let handler: Handler = on_fatal;
            let new = action.assume_init_mut();
            new.sa_sigaction = handler as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut new.sa_mask);
            if libc::sigaction(signal, action.as_ptr(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        if signal == libc::SIGSEGV && before.sa_sigaction != on_fatal as Handler as usize {
            let _ = BEFORE.set(before);
        }
    }
    Ok(())
}

extern "C" fn on_fatal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// One stack is told: neither that of another thread that crashes meanwhile, nor that of a crash in here.
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::AcqRel) {
        tell(signal);
        if let Some(before) = BEFORE.get().filter(|_| signal == libc::SIGSEGV) {
            go_on(before, signal, info, context);
        }
    }
    // SAFETY: both calls are async-signal-safe. The signal comes again when the handler returns, and is deadly then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

fn tell(signal: c_int) {
    let line: &[u8] = match signal {
        libc::SIGSEGV => b"Signal (11) received.\n",
        _ => b"Signal (6) received.\n",
    };
    let mut frames = [std::ptr::null_mut(); FRAMES_MAX];
    // SAFETY: `write` gets bytes that are there, `backtrace` an array of the length it is told, and the last call
    // those frames of it that were filled in.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        let count = libc::backtrace(frames.as_mut_ptr(), FRAMES_MAX as c_int);
        libc::backtrace_symbols_fd(frames.as_ptr(), count, libc::STDERR_FILENO);
    }
}

/// Calls the handler that was there before, if one was.
fn go_on(before: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let is_handler = before.sa_flags & libc::SA_SIGINFO != 0
        && before.sa_sigaction != libc::SIG_DFL
        && before.sa_sigaction != libc::SIG_IGN;
    if is_handler {
        // SAFETY: SA_SIGINFO says that the address is that of a function of this signature.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(before.sa_sigaction) };
        handler(signal, info, context);
    }
}
