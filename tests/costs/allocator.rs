//! The system's allocator with a count of its calls and, on demand, their call stacks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::ledger::{Event, note};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Whether stacks are kept: it costs milliseconds each.
pub static WITH_STACKS: AtomicBool = AtomicBool::new(false);

static STACKS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);

thread_local! {
    /// This thread keeps a stack, which allocates; or it is one whose stacks are of no interest.
    pub static IS_BLIND: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: all memory is the system allocator's, under its own promises; counting touches none of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        noted(Event::Allocation);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        noted(Event::Allocation);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        noted(Event::Reallocation);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !IS_BLIND.get() {
            note(Event::Free, 1);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

fn noted(event: Event) {
    if IS_BLIND.get() {
        return;
    }
    note(event, 1);
    if WITH_STACKS.load(Ordering::Relaxed) {
        IS_BLIND.set(true);
        let stack = Backtrace::force_capture().to_string();
        let mut stacks = STACKS.lock().unwrap_or_else(PoisonError::into_inner);
        *stacks.get_or_insert_default().entry(shortened(&stack)).or_default() += 1;
        drop(stacks);
        IS_BLIND.set(false);
    }
}

/// What is ours of a stack, the innermost first: the machinery below and above says nothing.
fn shortened(stack: &str) -> String {
    let frames = stack.lines().map(str::trim).filter_map(|line| line.split_once(": ").map(|(_, name)| name));
    let ours = frames.filter(|name| name.contains("tritonserver::") || name.contains("nereid"));
    let named: Vec<&str> = ours.map(|name| name.rsplit_once("::h").map_or(name, |(name, _)| name)).take(9).collect();
    if named.is_empty() { stack.to_owned() } else { named.join("\n      < ") }
}

/// The stacks that were kept, most often seen first; they are forgotten.
pub fn stacks() -> String {
    let kept = STACKS.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let mut kept: Vec<_> = kept.into_iter().collect();
    kept.sort_by_key(|entry| std::cmp::Reverse(entry.1));
    kept.iter().map(|(stack, count)| format!("{count:6} {stack}\n")).collect()
}
