//! memcpy and memmove of this process: as the C library's, and counted.
//!
//! Whatever is linked into this binary or loaded by it finds these: a program's symbols come before a library's. So no
//! copy of a tensor goes unseen, be it in the server, in a crate that it uses, or in a backend. What the compiler
//! copies in registers are structures of a few words, whose number does not depend on the size of a tensor.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;

use super::ledger::{Event, MIDDLING, note};

fn told(count: usize) {
    note(Event::CopiedBytes, count as u64);
    if MIDDLING.contains(&count) {
        note(Event::MiddlingCopy, 1);
    }
}

/// # Safety
/// As of memcpy of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    told(count);
    // SAFETY: the caller's promise: `count` bytes can be read and written. The instruction is all there is, because the
    // compiler would make a loop of bytes into a call of this function.
    unsafe { forward(to, from, count) };
    to
}

/// # Safety
/// As of memmove of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    told(count);
    // SAFETY: the caller's promise; the end is copied first where the front of the source would be overwritten.
    unsafe {
        if to.addr().wrapping_sub(from.addr()) >= count {
            forward(to, from, count);
        } else {
            backward(to.wrapping_add(count).wrapping_sub(1), from.wrapping_add(count).wrapping_sub(1), count);
        }
    }
    to
}

/// # Safety
/// `count` bytes can be read and written, and going upwards overwrites nothing that is still to be read.
unsafe fn forward(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: as promised; the direction flag is clear wherever compiled code runs.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
}

/// # Safety
/// As of [`forward`], downwards from the last bytes.
unsafe fn backward(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: as promised; the direction flag is clear again behind it.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack));
    }
}
