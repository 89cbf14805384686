//! The allocator of the C library: what the process has allocated from it, for measuring what the load of a model adds,
//! its free memory, which it keeps by itself, and how many addresses its arenas may take.

/// What the C library's heap holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeapUse {
    /// Bytes of allocations, without those that have mappings of their own.
    pub in_use: u64,
    /// Bytes of allocations that have mappings of their own.
    pub mapped: u64,
    /// Bytes that were freed and are kept for later allocations. Pages that [`trim_heap`] gave back in the middle of
    /// the heap still count.
    pub free: u64,
}

/// The state of the heap; `None` where the C library cannot say it (glibc can since 2.33). It walks through the free
/// pieces of each arena while it holds the arena's lock, so it is no function for the path of a request.
pub fn heap_use() -> Option<HeapUse> {
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
        Some(HeapUse { in_use: info.uordblks as u64, mapped: info.hblkhd as u64, free: info.fordblks as u64 })
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Bytes of all heap allocations in use, mapped ones included; `None` where [`heap_use`] is.
pub fn allocated_bytes() -> Option<u64> {
    heap_use().map(|heap| heap.in_use.saturating_add(heap.mapped))
}

/// Gives the free pages of the heap back to the system, where the C library can. It holds the lock of each arena while
/// it walks through it, and threads that allocate from that arena wait, so it is for rare moments, after much was
/// freed.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointers, and any thread may call it at any time.
        unsafe { libc::malloc_trim(0) };
    }
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

    /// Elsewhere pages may have other sizes.
    #[test]
    #[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
    fn a_trimmed_heap_gives_back_what_is_free_and_keeps_what_is_in_use() {
        use std::os::unix::fs::FileExt;
        const PIECES: usize = 2000;
        // Each has whole pages, and is too small for a mapping of its own.
        const BYTES: usize = 20_000;
        let mut kept: Vec<Vec<u8>> = (0..PIECES).map(|at| vec![at as u8; BYTES]).collect();
        let (Ok(page_map), Some(heap)) = (std::fs::File::open("/proc/self/pagemap"), heap_use()) else { return };
        if heap.in_use < (PIECES * BYTES) as u64 {
            // Another allocator stands before that of the C library.
            return;
        }
        // The addresses of a page of each.
        let freed: Vec<usize> = kept.iter().step_by(2).map(|bytes| bytes.as_ptr() as usize + 8192).collect();
        let mut at = 0;
        kept.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        let is_resident = |address: usize| {
            let mut entry = [0; 8];
            page_map.read_exact_at(&mut entry, (address / 4096 * 8) as u64).unwrap();
            // Bit 63: in memory; bit 62: swapped out.
            u64::from_le_bytes(entry) >> 62 != 0
        };
        let resident = || freed.iter().filter(|address| is_resident(**address)).count();
        assert!(resident() > freed.len() / 2, "the allocator keeps what was freed");
        trim_heap();
        // Other tests may have taken some of it.
        assert!(resident() < freed.len() / 2, "{} of {}", resident(), freed.len());
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
