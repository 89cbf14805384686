//! Calls into foreign code: plug-ins of every kind, and callbacks of an application.
//!
//! A C++ exception that comes out of it becomes text ([`ForeignException`]), because Rust aborts the process when a
//! foreign exception reaches it. During the call a thread-local names the foreign code ([`ForeignCode`]): the reports
//! of a crash and of a mistake with a handle contain that name.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};

unsafe extern "C-unwind" {
    fn nereid_guard(thunk: Thunk, context: *mut c_void, thrown: *mut c_char, capacity: usize) -> bool;
}

type Thunk = unsafe extern "C-unwind" fn(*mut c_void);

/// The foreign code that a thread runs. Texts that do not apply are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForeignCode<'a> {
    /// `backend`, `batching library`, `cache`, `repository agent`, `application`.
    pub kind: &'static str,
    /// The name of the backend, cache or agent.
    pub name: &'a str,
    pub model: &'a str,
    pub instance: &'a str,
    /// The function that was called: an export of the library, or the type of a callback.
    pub call: &'static str,
}

impl ForeignCode<'_> {
    /// Calls `function` with the foreign code that this thread runs now, if any.
    pub fn with_current<T>(function: impl FnOnce(Option<&ForeignCode<'_>>) -> T) -> T {
        let current = CURRENT.try_with(Cell::get).unwrap_or(std::ptr::null());
        // SAFETY: the pointer is null or to the work of a `guarded` that has not returned on this very thread.
        function(unsafe { current.as_ref() })
    }

    /// The parts that are not empty, each with its label: `backend 'b', model 'm', instance 'm_0_0'`.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        [(self.kind, self.name), ("model", self.model), ("instance", self.instance)]
            .into_iter()
            .filter(|(word, name)| !word.is_empty() && !name.is_empty())
    }
}

impl fmt::Display for ForeignCode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            f.write_str(self.kind)?;
        }
        for (at, (word, name)) in self.parts().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{word} '{name}'")?;
        }
        write!(f, ", in {}", self.call)
    }
}

thread_local! {
    /// Has no destructor and no lazy start: a signal handler may read it.
    static CURRENT: Cell<*const ForeignCode<'static>> = const { Cell::new(std::ptr::null()) };
}

/// The text of a C++ exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignException(pub String);

impl fmt::Display for ForeignException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes of an exception's text that are kept.
const TEXT_BYTES: usize = 512;

struct Call<F, T> {
    call: ManuallyDrop<F>,
    result: MaybeUninit<T>,
}

/// Runs `call`, which calls a single foreign function. The type of that function must be `extern "C-unwind"`: an
/// exception passes through the caller's frame. `call` must not panic.
pub fn guarded<T>(work: &ForeignCode<'_>, call: impl FnOnce() -> T) -> Result<T, ForeignException> {
    unsafe extern "C-unwind" fn thunk<F: FnOnce() -> T, T>(context: *mut c_void) {
        // SAFETY: the context is the `Call` below, which only this uses until it returns; the closure is taken once.
        unsafe {
            let context = &mut *context.cast::<Call<F, T>>();
            let call = ManuallyDrop::take(&mut context.call);
            context.result.write(call());
        }
    }
    fn thunk_of<F: FnOnce() -> T, T>(_: &Call<F, T>) -> Thunk {
        thunk::<F, T>
    }
    let mut context = Call { call: ManuallyDrop::new(call), result: MaybeUninit::uninit() };
    let thunk = thunk_of(&context);
    let mut text = MaybeUninit::<[c_char; TEXT_BYTES]>::uninit();
    let before = CURRENT.replace(std::ptr::from_ref(work).cast());
    // SAFETY: the thunk is that of this context, and the text buffer has the length that is passed.
    let has_thrown = unsafe { nereid_guard(thunk, (&raw mut context).cast(), text.as_mut_ptr().cast(), TEXT_BYTES) };
    CURRENT.set(before);
    if !has_thrown {
        // SAFETY: the thunk returned, so it has written the result.
        return Ok(unsafe { context.result.assume_init() });
    }
    // SAFETY: the guard wrote a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr().cast()) };
    Err(ForeignException(text.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gives_its_result_and_is_known_while_it_lasts() {
        let work = ForeignCode { kind: "backend", name: "b", model: "m", instance: "m_0", call: "F" };
        assert!(ForeignCode::with_current(|current| current.is_none()));
        let inner = ForeignCode { call: "G", ..work };
        let reported = guarded(&work, || {
            let first = ForeignCode::with_current(|current| current.map(ToString::to_string));
            let second = guarded(&inner, || ForeignCode::with_current(|current| current.map(|work| work.call)));
            let third = ForeignCode::with_current(|current| current.map(|work| work.call));
            (first, second.unwrap(), third)
        });
        let expected = "backend 'b', model 'm', instance 'm_0', in F";
        assert_eq!(reported, Ok((Some(expected.to_owned()), Some("G"), Some("F"))));
        assert!(ForeignCode::with_current(|current| current.is_none()));
        let callback = ForeignCode {
            kind: "application",
            call: "TRITONSERVER_ResponseAllocatorAllocFn_t",
            ..ForeignCode::default()
        };
        assert_eq!(callback.to_string(), "application, in TRITONSERVER_ResponseAllocatorAllocFn_t");
    }
}
