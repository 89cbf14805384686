//! SIGBUS: a client may truncate an object while it is mapped here, and a thread that touches a lost page gets the
//! signal. So does a thread that touches a page of a client's ring or arena for which the system has no memory.
//!
//! The handler puts zero pages in the place of the lost ones and marks the mapping as lost, so that the thread goes on,
//! be it in a model or in a library, and the request is answered with an error afterwards. Only addresses of mappings
//! that are listed here are handled; every other fault goes to the handler that was installed before. The list is read
//! without locks: a mapping that a thread touches is not taken from the list meanwhile, because the thread's request
//! keeps it.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::REGIONS_MAX;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The address range of one mapping. The sequence number is odd while it changes.
struct Range {
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

impl Range {
    const fn new() -> Range {
        Range {
            sequence: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Called by the owner of the slot only.
    fn set(&self, start: usize, end: usize) {
        self.sequence.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.is_lost.store(false, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// The end of the range if `address` lies in it.
    fn end_if_in(&self, address: usize) -> Option<usize> {
        let before = self.sequence.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_steady = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        (is_steady && start <= address && address < end).then_some(end)
    }
}

static RANGES: [Range; REGIONS_MAX] = [const { Range::new() }; REGIONS_MAX];
/// Slots behind this one were never taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Slots that were given back.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// What handled the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// A slot of the list, owned by one mapping.
#[derive(Debug)]
pub(crate) struct RangeSlot(usize);

impl RangeSlot {
    /// `None` if all are taken.
    pub fn take() -> Option<RangeSlot> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.pop() {
            return Some(RangeSlot(index));
        }
        let index = TAKEN.load(Ordering::Relaxed);
        (index < REGIONS_MAX).then(|| {
            TAKEN.store(index + 1, Ordering::Release);
            RangeSlot(index)
        })
    }

    /// Faults in `start..end` are handled from now on.
    pub fn set(&self, start: usize, end: usize) {
        self.range().set(start, end);
    }

    /// Must be called before the addresses are unmapped.
    pub fn clear(&self) {
        self.range().set(0, 0);
    }

    /// True if a page of the range was lost.
    pub fn is_lost(&self) -> bool {
        self.range().is_lost.load(Ordering::Acquire)
    }

    fn range(&self) -> &'static Range {
        &RANGES[self.0]
    }
}

impl Drop for RangeSlot {
    fn drop(&mut self) {
        self.clear();
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Takes the signal, once for the process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    PAGE_BYTES.store(super::page_bytes(), Ordering::Relaxed);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid `sigaction`, and both pointers are to such. The previous action is read and stored
    // before the handler that reads it is in place; the handler has the signature that SA_SIGINFO requires.
    unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = BEFORE.set(before.assume_init());
        let handler: Handler = on_bus_error;
        let new = action.assume_init_mut();
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut new.sa_mask);
        if libc::sigaction(libc::SIGBUS, action.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *is_installed = true;
    Ok(())
}

/// Neither waits, nor locks, nor allocates: the signal may have interrupted the thread anywhere.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a description of the signal, with an address if a thread has touched something.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && mend(address) {
        return;
    }
    // A signal that a process has sent does not come again by itself: only the default action ends the process.
    if code > 0 {
        return go_on(signal, info, context);
    }
    end(signal);
}

/// The default action. The raised signal comes when the handler returns.
fn end(signal: c_int) {
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Zero pages from `address` to the end of the mapping that it lies in: an object is cut off behind a point.
fn mend(address: usize) -> bool {
    let ranges = RANGES.iter().take(TAKEN.load(Ordering::Acquire));
    for range in ranges {
        let Some(end) = range.end_if_in(address) else { continue };
        let page = address & !(PAGE_BYTES.load(Ordering::Relaxed) - 1);
        // Before the pages are there: a reader of the zeros finds the mark.
        range.is_lost.store(true, Ordering::Release);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the pages belong to a mapping of ours, which the faulting thread's request keeps; the call is async-
        // signal-safe here, and `errno`, which it may set, is put back for the interrupted code.
        return unsafe {
            let errno = *libc::__errno_location();
            let at = libc::mmap(page as *mut c_void, end - page, protection, flags, -1, 0);
            *libc::__errno_location() = errno;
            at != libc::MAP_FAILED
        };
    }
    false
}

/// A fault that is not ours.
fn go_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.get().map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
    // SAFETY: a value that is no default is the address of a function, whose signature SA_SIGINFO determines.
    unsafe {
        match before {
            (libc::SIG_DFL | libc::SIG_IGN, _) => end(signal),
            (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            }
            (handler, _) => std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_one_range_or_in_none() {
        let place = RangeSlot::take().unwrap();
        // Not mapped: no thread faults there.
        place.set(0x1000, 0x3000);
        let range = place.range();
        assert_eq!(range.end_if_in(0xfff), None);
        assert_eq!(range.end_if_in(0x1000), Some(0x3000));
        assert_eq!(range.end_if_in(0x2fff), Some(0x3000));
        assert_eq!(range.end_if_in(0x3000), None);
        range.sequence.fetch_add(1, Ordering::AcqRel);
        assert_eq!(range.end_if_in(0x2000), None, "it is being changed");
        range.sequence.fetch_add(1, Ordering::AcqRel);
        place.clear();
        assert_eq!(range.end_if_in(0x1000), None);
        assert_eq!(range.end_if_in(0), None);
    }
}
