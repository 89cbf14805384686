//! Ports for servers to listen on.
//!
//! Between the look at a port and the server's bind somebody else could take it. The kernel gives none of these away by
//! itself, and what runs beside us, other test binaries and our own second run, has other blocks of them.

use crate::paths;
use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below the kernel's ephemeral range.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 100;
const BLOCKS: u16 = 120;

/// What this process has of them.
struct Held {
    /// Of the block that is being handed out.
    left: Range<u16>,
    /// One for each block, locked until the process ends: its servers may still listen there.
    locks: Vec<File>,
}

static HELD: Mutex<Held> = Mutex::new(Held { left: 0..0, locks: Vec::new() });

/// A port on which nobody listens now, and which no other test gets.
pub fn free_port() -> u16 {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(port) = held.left.next() else {
            let (number, lock) = free_block();
            let first = FIRST + number * BLOCK;
            held.left = first..first + BLOCK;
            held.locks.push(lock);
            continue;
        };
        // On every address, as servers listen that are told of none.
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The number of a block that nobody else has, and what keeps it ours.
fn free_block() -> (u16, File) {
    let folder = paths::temporary().join("ports");
    fs::create_dir_all(&folder).expect("a folder for locks");
    // Not where the last one began, whose connections may linger.
    let start = (std::process::id() % u32::from(BLOCKS)) as u16;
    for number in (0..BLOCKS).map(|number| (start + number) % BLOCKS) {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join(number.to_string()));
        let file = file.expect("a file to lock");
        if file.try_lock().is_ok() {
            return (number, file);
        }
    }
    panic!("all {BLOCKS} blocks of ports are taken");
}
