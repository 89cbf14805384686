//! The address ranges of the libraries that were opened, with their names, for the report of a crash.
//!
//! A signal handler reads the table. It has a fixed size, its texts live as long as the process, and entries are never
//! removed, because libraries are never closed.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Libraries with an entry; further ones appear in the stack only.
const RANGES_MAX: usize = 256;

struct LibraryRange {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Null until the entry is complete.
    name: AtomicPtr<String>,
}

static RANGES: [LibraryRange; RANGES_MAX] = [const {
    LibraryRange { start: AtomicUsize::new(0), end: AtomicUsize::new(0), name: AtomicPtr::new(std::ptr::null_mut()) }
}; RANGES_MAX];

/// Registers the library that `address` lies in as `name`, for example `backend 'b'`.
pub fn register(name: String, address: *const c_void) {
    static WRITER: Mutex<usize> = Mutex::new(0);
    let Some((start, end)) = extent(address.addr()) else { return };
    let mut count = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if RANGES.iter().take(*count).any(|range| range.start.load(Ordering::Relaxed) == start) {
        return;
    }
    let Some(range) = RANGES.get(*count) else { return };
    range.start.store(start, Ordering::Relaxed);
    range.end.store(end, Ordering::Relaxed);
    range.name.store(Box::into_raw(Box::new(name)), Ordering::Release);
    *count += 1;
}

/// The name of the library that `address` lies in. Neither locks nor allocates.
pub fn library_at(address: usize) -> Option<&'static str> {
    for range in &RANGES {
        let name = range.name.load(Ordering::Acquire);
        if name.is_null() {
            return None;
        }
        if (range.start.load(Ordering::Relaxed)..range.end.load(Ordering::Relaxed)).contains(&address) {
            // SAFETY: names are written before they are published, and never freed.
            return Some(unsafe { (*name).as_str() });
        }
    }
    None
}

/// The address range of the loaded library that `address` lies in.
fn extent(address: usize) -> Option<(usize, usize)> {
    struct Search {
        address: usize,
        found: Option<(usize, usize)>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> libc::c_int {
        // SAFETY: the loader gives a description that lives through the call, and `search` is the value below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: the array has that many headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let reach = |header: &libc::Elf64_Phdr| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            (start, start.wrapping_add(header.p_memsz as usize))
        };
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(reach);
        if !loaded().any(|(start, end)| (start..end).contains(&search.address)) {
            return 0;
        }
        search.found = loaded().reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
        1
    }
    let mut search = Search { address, found: None };
    // SAFETY: `visit` has the required signature and gets the value above.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_library_around_it() {
        let inside = libc::getpid as *const c_void;
        assert_eq!(library_at(inside.addr()), None);
        register("backend 'libc'".to_owned(), inside);
        register("backend 'again'".to_owned(), libc::getppid as *const c_void);
        assert_eq!(library_at(inside.addr()), Some("backend 'libc'"));
        assert_eq!(library_at((&raw const search_nowhere).addr()), None);
        register("unmapped".to_owned(), std::ptr::without_provenance(1));
        assert_eq!(library_at(1), None);
    }

    #[allow(non_upper_case_globals)]
    static search_nowhere: u8 = 0;
}
