//! What runs a shard's turns: a glommio executor for io_uring, a plain loop for epoll.
//!
//! The executor is bound to its core and preempts by a timer of 1 ms, so that tasks on it (none on the request's path)
//! get their turn; the shard's own turn is one task that never awaits anything but that. glommio is named here only.

use std::io;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement};

/// glommio's own files and sockets are not used, so it needs no memory and few entries for them.
const IO_MEMORY_BYTES: usize = 64 * 1024;
const RING_DEPTH: usize = 16;
const PREEMPT_AFTER: Duration = Duration::from_millis(1);

/// Calls `turn` on a glommio executor on this thread, bound to `cpu`, until it says false or fails. `start` makes the
/// turn, on the thread and the core where it will run.
pub(in crate::shard) fn run_on_glommio<T: FnMut() -> io::Result<bool>>(
    cpu: Option<usize>,
    name: &str,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<()> {
    let executor = LocalExecutorBuilder::new(cpu.map_or(Placement::Unbound, Placement::Fixed))
        .name(name)
        .preempt_timer(PREEMPT_AFTER)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .make()
        .map_err(|error| io::Error::other(error.to_string()))?;
    executor.run(async {
        let mut turn = start()?;
        while turn()? {
            glommio::yield_if_needed().await;
        }
        Ok(())
    })
}

/// The same on the bare thread.
pub(in crate::shard) fn run_plainly<T: FnMut() -> io::Result<bool>>(
    cpu: Option<usize>,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<()> {
    if let Some(cpu) = cpu {
        super::sys::set_affinity(&[cpu])?;
    }
    let mut turn = start()?;
    while turn()? {}
    Ok(())
}
