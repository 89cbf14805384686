//! The bounds of a rendering: its output, which takes no more bytes than it may, and its clock.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The clock is read once in this many checks: reading it takes as long as several instructions of a template.
const CHECKS_PER_READING: u32 = 16;

/// The time that a rendering may take. Atomic because minijinja's objects are shared; one thread uses it.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    time_max: Duration,
    checks: AtomicU32,
    is_over: AtomicBool,
}

impl Clock {
    pub(super) fn start(time_max: Duration) -> Clock {
        Clock { start: Instant::now(), time_max, checks: AtomicU32::new(0), is_over: AtomicBool::new(false) }
    }

    /// False once the time is over.
    pub(super) fn check(&self) -> bool {
        let checks = self.checks.fetch_add(1, Ordering::Relaxed);
        if checks.is_multiple_of(CHECKS_PER_READING) && self.start.elapsed() >= self.time_max {
            self.is_over.store(true, Ordering::Relaxed);
        }
        !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// What a template writes.
pub(super) struct BoundedOutput {
    bytes: Vec<u8>,
    bytes_max: usize,
    is_full: bool,
    clock: Arc<Clock>,
}

impl BoundedOutput {
    pub(super) fn new(bytes_max: usize, clock: Arc<Clock>) -> BoundedOutput {
        BoundedOutput { bytes: Vec::new(), bytes_max, is_full: false, clock }
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.bytes_max.saturating_sub(self.bytes.len()) {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if !self.clock.check() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
