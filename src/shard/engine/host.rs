//! The host of a shard's turns: a glommio executor for io_uring, a plain loop for epoll.
//!
//! The shard is the executor's one task, and does not yield. It could: but glommio 0.9 goes to sleep with a task that
//! is ready to run if its preemption timer fires just before it checks (`LocalExecutor::run_task_queues` then returns
//! that it ran nothing, and the timer's own completion does not count as an event). On a busy host, with the timer at 1
//! ms and a yield each turn, a shard stood still about once in 100 000 requests. glommio is named here only.

use std::io;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement};

/// glommio's own files and sockets are not used, so it needs no memory and few entries for them.
const IO_MEMORY_BYTES: usize = 64 * 1024;
const RING_DEPTH: usize = 16;
/// Out of reach, see above: the same race exists once, at the start.
const PREEMPT_AFTER: Duration = Duration::from_secs(3600);

/// Calls `turn` on a glommio executor on this thread, bound to `cpu`, until it returns false or fails. `start` makes
/// the turn, on the thread and the core where it will run.
///
/// The thread is bound here: to place an executor on a core, glommio reads the topology of all cores four times, three
/// files for each, which on a host of 64 cores took more of a start than all the rest.
pub(crate) fn run_on_glommio<T: FnMut() -> io::Result<bool>>(
    cpu: Option<usize>,
    name: &str,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<()> {
    bind(cpu)?;
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .name(name)
        .preempt_timer(PREEMPT_AFTER)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .make()
        .map_err(|error| io::Error::other(error.to_string()))?;
    executor.run(async {
        let mut turn = start()?;
        while turn()? {}
        Ok(())
    })
}

/// The same on the bare thread.
pub(crate) fn run_plainly<T: FnMut() -> io::Result<bool>>(
    cpu: Option<usize>,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<()> {
    bind(cpu)?;
    let mut turn = start()?;
    while turn()? {}
    Ok(())
}

/// Binds this thread, and those that it starts from now on.
fn bind(cpu: Option<usize>) -> io::Result<()> {
    cpu.map_or(Ok(()), super::sys::bind_to)
}
