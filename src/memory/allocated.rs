//! The allocator of the C library: bytes that the process has allocated, for measuring what the load of a model adds,
//! and how many addresses its arenas may take.

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

/// Lets the allocator make so many arenas at most, each of which reserves tens of megabytes of addresses; false where
/// it has none. To be called before threads start: those that are there have theirs.
pub fn bound_arenas(count: u32) -> bool {
    #[cfg(target_env = "gnu")]
    {
        let count = libc::c_int::try_from(count.max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: it takes numbers, and may be called at any time.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, count) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = count;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
