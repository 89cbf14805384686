//! The object that TensorRT logs to: messages go to the server's log, and the errors of a call into its result.
//!
//! The library may log on any thread. Errors are kept for the thread that made the call, so that models which load at
//! the same time do not get each other's texts (contract/frameworks.md section 11, trap 15).

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use super::abi::InterfaceInfo;

/// The longest text of a call.
const TEXT_BYTES_MAX: usize = 2048;

thread_local! {
    static ERRORS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A logger: one pointer, to the functions of its table.
#[repr(C)]
pub struct Logger {
    functions: *const Function,
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Function(*const c_void);

/// A table, with the two words that C++ has in front of it: the offset of the object, and its type.
#[repr(C)]
struct Table<const LEN: usize> {
    offset: isize,
    kind: *const c_void,
    functions: [Function; LEN],
}

// SAFETY: addresses of functions and constants.
unsafe impl<const LEN: usize> Sync for Table<LEN> {}
// SAFETY: the functions of a logger use only the calling thread's memory and the log.
unsafe impl Sync for Logger {}

static SIMPLE: Table<3> = Table {
    offset: 0,
    kind: std::ptr::null(),
    functions: [Function(log as *const c_void), Function(destroy as *const c_void), Function(destroy as *const c_void)],
};

static VERSIONED: Table<5> = Table {
    offset: 0,
    kind: std::ptr::null(),
    functions: [
        Function(language as *const c_void),
        Function(interface as *const c_void),
        Function(destroy as *const c_void),
        Function(destroy as *const c_void),
        Function(log as *const c_void),
    ],
};

static SIMPLE_LOGGER: Logger = Logger { functions: SIMPLE.functions.as_ptr() };
static VERSIONED_LOGGER: Logger = Logger { functions: VERSIONED.functions.as_ptr() };

/// The logger for a library, which lives as long as the process.
pub fn logger(has_version: bool) -> *const c_void {
    let logger = if has_version { &VERSIONED_LOGGER } else { &SIMPLE_LOGGER };
    std::ptr::from_ref(logger).cast()
}

/// The result of `call`, and the errors that the library logged meanwhile on this thread: `no error was logged` if
/// there are none.
pub fn with_errors<T>(call: impl FnOnce() -> T) -> (T, String) {
    ERRORS.with_borrow_mut(String::clear);
    let result = call();
    let text = ERRORS.with_borrow_mut(std::mem::take);
    (result, if text.is_empty() { "no error was logged".to_owned() } else { text })
}

unsafe extern "C" fn language(_this: *const Logger) -> i32 {
    0
}

unsafe extern "C" fn interface(_this: *const Logger) -> InterfaceInfo {
    InterfaceInfo { kind: c"ILogger".as_ptr(), major: 1, minor: 0 }
}

/// A logger is static.
unsafe extern "C" fn destroy(_this: *mut Logger) {}

/// # Safety
/// `text` is null, or ends in NUL.
unsafe extern "C" fn log(_this: *const Logger, severity: i32, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: not null, and ends in NUL: by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    match severity {
        ..=1 => {
            tracing::error!("TensorRT: {text}");
            keep(text);
        }
        2 => tracing::warn!("TensorRT: {text}"),
        3 => tracing::debug!("TensorRT: {text}"),
        _ => tracing::trace!("TensorRT: {text}"),
    }
}

fn keep(text: &str) {
    ERRORS.with_borrow_mut(|errors| {
        let separator = if errors.is_empty() { "" } else { "; " };
        let room = TEXT_BYTES_MAX.saturating_sub(errors.len() + separator.len());
        let kept = &text[..text.floor_char_boundary(room)];
        if !kept.is_empty() {
            errors.push_str(separator);
            errors.push_str(kept);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(severity: i32, text: &CStr) {
        // SAFETY: the text ends in NUL.
        unsafe { log(std::ptr::null(), severity, text.as_ptr()) }
    }

    #[test]
    fn the_errors_of_a_call_are_those_of_its_thread() {
        logged(1, c"before");
        let ((), text) = with_errors(|| {
            logged(1, c"CUDA initialization failure\n");
            logged(2, c"a warning");
            logged(0, c"second");
            std::thread::scope(|scope| scope.spawn(|| logged(1, c"of another thread")).join().unwrap());
        });
        assert_eq!(text, "CUDA initialization failure; second");
        assert_eq!(with_errors(|| ()).1, "no error was logged");
    }

    #[test]
    fn the_text_of_a_call_is_bounded() {
        let long = std::ffi::CString::new("\u{e9}".repeat(3000)).unwrap();
        let ((), text) = with_errors(|| (0..3).for_each(|_| logged(1, &long)));
        assert!(text.len() <= TEXT_BYTES_MAX && text.len() > TEXT_BYTES_MAX - 4);
    }
}
