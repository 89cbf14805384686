//! Ports for servers to listen on.
//!
//! Between the check of a port and the server's bind another program could take it. The kernel assigns none of these
//! ports by itself, and concurrent processes (other test binaries, our own second run) use other blocks of ports.

use crate::paths;
use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below the kernel's ephemeral range.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 100;
const BLOCKS: u16 = 120;

/// The blocks of ports of this process.
struct Held {
    /// The next port of the current block.
    left: Range<u16>,
    /// One lock file for each block, locked until the process ends, because its servers may still listen there.
    locks: Vec<File>,
}

static HELD: Mutex<Held> = Mutex::new(Held { left: 0..0, locks: Vec::new() });

/// A port on which no program listens now, and which no other test gets.
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
        // On every address, where servers without an address flag listen.
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The number of a block that no other process has, and the locked file that reserves it.
fn free_block() -> (u16, File) {
    let folder = paths::temporary().join("ports");
    fs::create_dir_all(&folder).expect("a folder for locks");
    // Does not start at the block of the last process, whose connections may not have ended yet.
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
