//! The handle registry: which objects C holds, of which kind, and which of them it gave back.
//!
//! It is a debug mode that `NEREID_CHECK_HANDLES=1` turns on; otherwise it records nothing and a call costs one read of
//! a flag. When it is on, a call with a handle that was given back, or of another kind than the function takes, fails
//! with INVALID_ARG; the fault is logged with the names of the function and of the calling library. The objects that C
//! still holds when a backend or the server ends are logged. The memory of objects that were given back is kept for a
//! while, so that the allocator does not reuse their addresses at once.

mod kinds;
mod records;

use std::alloc::Layout;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::guard::ForeignCode;
use kinds::{HandleKind, kind_of};
use nereid_request::Status;
use records::{DeadMemory, HandleFault, HandleRecord, HandleRecords};

/// The environment variable that turns the registry on.
pub const VARIABLE: &str = "NEREID_CHECK_HANDLES";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether the registry is on.
#[inline]
pub fn is_on() -> bool {
    STATE.load(Ordering::Relaxed) != OFF && is_asked_for()
}

/// Reads the variable at the first call, which precedes every object that C gets.
#[cold]
fn is_asked_for() -> bool {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let is_on = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
        STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == ON
}

fn records() -> MutexGuard<'static, HandleRecords> {
    static RECORDS: OnceLock<Mutex<HandleRecords>> = OnceLock::new();
    RECORDS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The exported function that this thread is in.
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Runs the body of an exported function under its name, which is in the type name of the body's closure. `run` must
/// not unwind.
#[cold]
pub fn within<F: FnOnce() -> T, T, U>(body: F, run: impl FnOnce(F) -> U) -> U {
    let before = CALL.replace(name_of(std::any::type_name::<F>()));
    let result = run(body);
    CALL.set(before);
    result
}

/// `TRITONSERVER_X` in `…::TRITONSERVER_X::{{closure}}`, and so the server's own `NEREID_X`; the whole name if it has
/// no such part.
fn name_of(type_name: &'static str) -> &'static str {
    let is_exported = |part: &&str| part.starts_with("TRITON") || part.starts_with("NEREID_");
    type_name.rsplit("::").find(is_exported).unwrap_or(type_name)
}

fn call() -> &'static str {
    CALL.try_with(Cell::get).unwrap_or_default()
}

/// Records an object that C gets and has to give back.
#[cold]
pub fn given<T>(at: *const T) {
    let by = ForeignCode::with_current(|work| work.map(|work| work.name.to_owned())).unwrap_or_default();
    records().write(at.addr(), HandleRecord::given(kind_of::<T>(), call(), by));
}

/// Records an object of the server that C may use until it is [reclaimed].
pub fn expose<T>(at: *const T) {
    if is_on() {
        records().write(at.addr(), HandleRecord::lent(kind_of::<T>(), call()));
    }
}

/// Records objects that C gets in a call, and gives back during the call or later.
pub fn expose_requests<T>(list: &[*mut T]) {
    if is_on() {
        list.iter().for_each(|at| given(*at));
    }
}

/// Records an object that C may use as long as `owner`, which is recorded already, lives. Returns `at`.
pub fn lend<T, O>(at: *const T, owner: *const O) -> *const T {
    if is_on() && !at.is_null() {
        records().write_part(at.addr(), HandleRecord::lent(kind_of::<T>(), call()), (owner.addr(), kind_of::<O>()));
    }
    at
}

/// Records that the server ends an object that C could use.
pub fn reclaim<T>(at: *const T) {
    if is_on() {
        records().end(at.addr(), kind_of::<T>(), "the server", None);
    }
}

/// Checks that C may use the handle: it must be a live one of its kind.
#[cold]
pub fn check<T>(at: *const T, what: &str) -> Result<(), Status> {
    let kind = kind_of::<T>();
    let found = records().check(at.addr(), kind);
    found.map_err(|fault| described(&fault, kind, what))
}

/// Takes back what was [given]. The value moves elsewhere, and its memory is kept empty for a while.
///
/// # Safety
/// If it is live, it came from a `Box` and no other thread uses it meanwhile.
#[cold]
pub unsafe fn take<T>(at: *mut T, what: &str) -> Result<Box<T>, Status> {
    let kind = kind_of::<T>();
    let mut records = records();
    let found = records.check(at.addr(), kind).and_then(|()| records.may_be_given_up(at.addr(), kind));
    if let Err(fault) = found {
        drop(records);
        return Err(described(&fault, kind, what));
    }
    // SAFETY: it is live and came from a box, so it can be read once; the box's memory stays ours.
    let value = Box::new(unsafe { at.read() });
    let layout = Layout::new::<T>();
    let memory = (layout.size() > 0).then(|| DeadMemory::new(at.cast(), layout));
    records.end(at.addr(), kind, call(), memory);
    Ok(value)
}

/// Ends what was [given], where other holders may keep the memory alive.
#[cold]
pub fn give_back<T>(at: *const T, what: &str) -> Result<(), Status> {
    let kind = kind_of::<T>();
    let mut records = records();
    let found = records.check(at.addr(), kind).and_then(|()| records.may_be_given_up(at.addr(), kind));
    if let Err(fault) = found {
        drop(records);
        return Err(described(&fault, kind, what));
    }
    records.end(at.addr(), kind, call(), None);
    Ok(())
}

/// The fault as an error of the call. Each is logged once.
fn described(fault: &HandleFault, kind: HandleKind, what: &str) -> Status {
    let call = call();
    let text = format!("{call}: {what} is {}", fault.describe(kind));
    if records().is_new(call, kind, fault) {
        let by = ForeignCode::with_current(|work| work.map(ToString::to_string));
        let by = by.unwrap_or_else(|| "a thread that the server did not call".to_owned());
        tracing::error!("{VARIABLE}: {text} (by {by})");
    }
    Status::invalid(text)
}

/// Logs the objects that C has not given back: those of `backend`, or all.
pub fn report(backend: Option<&str>) {
    if !is_on() {
        return;
    }
    let held = records().held(backend);
    let whose = backend.map_or_else(|| "the server's end".to_owned(), |name| format!("the end of backend '{name}'"));
    match held.is_empty() {
        true => tracing::info!("{VARIABLE}: at {whose} all handles were given back"),
        false => tracing::error!("{VARIABLE}: at {whose} these handles were not given back: {}", held.join(", ")),
    }
}

/// The objects that C has not given back.
#[cfg(feature = "fuzzing")]
pub fn held() -> Vec<String> {
    records().held(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_knows_the_function_it_stands_in() {
        #[allow(non_snake_case)]
        fn TRITONSERVER_Example() -> &'static str {
            let within_this = || {
                let inner = || call();
                assert_eq!(within(inner, |body| body()), "TRITONSERVER_Example");
                call()
            };
            within(within_this, |body| body())
        }
        assert_eq!(TRITONSERVER_Example(), "TRITONSERVER_Example");
        assert_eq!(call(), "");
    }
}
