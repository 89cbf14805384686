//! Fatal signals: the handler writes to stderr the code that the thread was running and its stack, and then lets the
//! signal take its course (contract/cli.md section 6).
//!
//! Most crashes of a server come from a backend: the report names the backend, model and instance, and the stack names
//! the library. Nothing here waits, locks or allocates, because the thread may have been interrupted anywhere. It also
//! needs little stack: the standard library reserves 8 KiB for a handler, of which the registers of a processor with
//! AVX-512 take nearly half and the unwinder most of the rest.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::ForeignCode;
use super::library_ranges;

/// Each with its line of the report.
const SIGNALS: [(c_int, &str); 6] = [
    (libc::SIGSEGV, "Signal (11) received.\n"),
    (libc::SIGABRT, "Signal (6) received.\n"),
    (libc::SIGBUS, "Signal (7) received.\n"),
    (libc::SIGFPE, "Signal (8) received.\n"),
    (libc::SIGILL, "Signal (4) received.\n"),
    // `__builtin_trap` is a breakpoint on Arm, where x86 has an undefined instruction.
    (libc::SIGTRAP, "Signal (5) received.\n"),
];

/// Most frames of the stack that are written.
const FRAMES_MAX: usize = 64;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The previous handler of each signal: for SIGSEGV and SIGBUS the standard library's, which detects a stack overflow.
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// Installs the handlers, once for the process.
pub fn install() -> io::Result<()> {
    // The unwinder's library is opened at its first use, which must not be in the handler.
    let mut frame = std::ptr::null_mut();
    // SAFETY: there is room for one frame, and one is requested.
    unsafe { libc::backtrace(&raw mut frame, 1) };
    for ((signal, _), known) in SIGNALS.into_iter().zip(&BEFORE) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeros are a valid `sigaction`, and both pointers are to such; the handler has the signature that
        // SA_SIGINFO requires and lives as long as the program.
        let before = unsafe {
            let handler: Handler = on_fatal;
            let new = action.assume_init_mut();
            new.sa_sigaction = handler as usize;
            new.sa_flags = libc::SA_SIGINFO | if may_be_an_overflow(signal) { libc::SA_ONSTACK } else { 0 };
            libc::sigemptyset(&raw mut new.sa_mask);
            if libc::sigaction(signal, action.as_ptr(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        if before.sa_sigaction != on_fatal as Handler as usize {
            let _ = known.set(before);
        }
    }
    Ok(())
}

/// Whether the signal may mean that the thread's own stack is used up.
fn may_be_an_overflow(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

extern "C" fn on_fatal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// Only one stack is written: neither that of another thread that crashes meanwhile, nor that of a crash in here.
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::AcqRel) {
        let at = SIGNALS.iter().position(|(number, _)| *number == signal);
        // SAFETY: this branch is entered once in the process, so no other reference to the buffers exists, now or
        // later.
        let buffers = unsafe { &mut *BUFFERS.0.get() };
        write_report(buffers, at.and_then(|at| SIGNALS.get(at)).map_or("", |(_, line)| line));
        if let Some(before) = at.and_then(|at| BEFORE.get(at)).and_then(OnceLock::get) {
            call_previous_handler(before, signal, info, context);
        }
    }
    // SAFETY: both calls are async-signal-safe. The signal is raised again when the handler returns, and is fatal then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

fn write_report(ReportBuffers { text, frames }: &mut ReportBuffers, line: &str) {
    // The code that ran is reported before the stack is walked, which may fail on a stack that is destroyed.
    text.add(line);
    let is_known = ForeignCode::with_current(|work| work.is_some_and(|work| text.add_work(work)));
    text.write();
    // SAFETY: `backtrace` gets an array and its length, and the other call only the frames that were filled in.
    unsafe {
        let count = libc::backtrace(frames.as_mut_ptr(), FRAMES_MAX as c_int);
        if !is_known
            && let Some(owner) =
                frames.iter().take(count as usize).find_map(|frame| library_ranges::library_at(frame.addr()))
        {
            text.add_owner(owner);
            text.write();
        }
        libc::backtrace_symbols_fd(frames.as_ptr(), count, libc::STDERR_FILENO);
    }
}

/// Memory of the handler.
struct ReportBuffers {
    text: ReportText,
    frames: [*mut c_void; FRAMES_MAX],
}

struct HandlerMemory(UnsafeCell<ReportBuffers>);
// SAFETY: only [`on_fatal`] takes a reference to the buffers, and it does so once.
unsafe impl Sync for HandlerMemory {}

static BUFFERS: HandlerMemory = HandlerMemory(UnsafeCell::new(ReportBuffers {
    text: ReportText { bytes: [0; 1024], len: 0 },
    frames: [std::ptr::null_mut(); FRAMES_MAX],
}));

/// Text of the report, cut at the end of its buffer.
struct ReportText {
    bytes: [u8; 1024],
    len: usize,
}

impl ReportText {
    fn add_all(&mut self, texts: &[&str]) {
        texts.iter().for_each(|text| self.add(text));
    }

    fn add(&mut self, text: &str) {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let len = room.len().min(text.len());
        for (to, from) in room.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.len += len;
    }

    /// `The thread ran backend 'b', model 'm', instance 'm_0_0', in TRITONBACKEND_ModelInstanceExecute.`
    fn add_work(&mut self, work: &ForeignCode<'_>) -> bool {
        self.add("The thread ran ");
        let mut has_part = false;
        for (word, name) in work.parts() {
            self.add_all(&[if has_part { ", " } else { "" }, word, " '", name, "'"]);
            has_part = true;
        }
        if !has_part {
            self.add(work.kind);
        }
        self.add_all(&[", in ", work.call, ".\n"]);
        true
    }

    fn add_owner(&mut self, owner: &str) {
        self.add_all(&["The stack goes through ", owner, ", on a thread that the server did not call.\n"]);
    }

    /// Writes the text to stderr and empties it.
    fn write(&mut self) {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        // SAFETY: the pointer and the length are those of a slice.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        self.len = 0;
    }
}

/// Calls the previous handler, if there was one.
fn call_previous_handler(before: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let is_handler = before.sa_flags & libc::SA_SIGINFO != 0
        && before.sa_sigaction != libc::SIG_DFL
        && before.sa_sigaction != libc::SIG_IGN;
    if is_handler {
        // SAFETY: SA_SIGINFO means that the address is that of a function of this signature.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(before.sa_sigaction) };
        handler(signal, info, context);
    }
}
