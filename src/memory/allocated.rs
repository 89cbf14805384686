//! The allocator of the C library: what the process has allocated from it, for measuring what the load of a model adds,
//! and its free memory, which it keeps by itself.

/// Bytes of all heap allocations in use, mapped ones included; `None` where the C library cannot say it (glibc can
/// since 2.33). It takes the lock of each arena for a moment, so it is no function for the path of a request.
pub fn allocated_bytes() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;
        // SAFETY: the name ends with a NUL, and a look-up in the process has no other condition.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: glibc's `mallinfo2` has this type, and no other library defines the name.
        let mallinfo2 = unsafe { std::mem::transmute::<*mut libc::c_void, Mallinfo2>(found) };
        // SAFETY: it takes no arguments and may be called by any thread.
        let info = unsafe { mallinfo2() };
        Some((info.uordblks as u64).saturating_add(info.hblkhd as u64))
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Gives the free pages of the heap back to the system, where the C library can. It holds the lock of each arena while
/// it walks through it, so it is for rare moments, after much was freed.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointers, and any thread may call it at any time.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trimmed_heap_keeps_what_is_in_use() {
        let mut kept: Vec<Vec<u8>> = (0..1000).map(|at| vec![at as u8; 5000]).collect();
        let mut at = 0;
        kept.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        trim_heap();
        assert!(kept.iter().enumerate().all(|(at, bytes)| bytes.iter().all(|byte| *byte == (at * 2 + 1) as u8)));
    }

    #[test]
    fn what_is_allocated_is_counted() {
        let Some(before) = allocated_bytes() else { return };
        const BYTES: usize = 64 << 20;
        let block = std::hint::black_box(vec![1_u8; BYTES]);
        let with = allocated_bytes().unwrap_or_default();
        // Other tests allocate and free beside this one.
        assert!(with > before + (BYTES / 2) as u64, "{before} and {with}");
        drop(block);
        assert!(allocated_bytes().unwrap_or_default() < with);
    }
}
