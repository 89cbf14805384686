//! The threads on which long bodies are read, templates are rendered and texts are split into tokens: work that would
//! stall a shard.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Jobs that wait, beyond which requests are refused.
const WAITING_MAX: usize = 1024;

type Work = Box<dyn FnOnce() + Send>;

/// Handle of the threads, which end when it is dropped.
pub struct Threads {
    work: SyncSender<Work>,
}

impl Threads {
    pub fn start(count: usize) -> std::io::Result<Threads> {
        let (work, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..count.max(1) {
            let waiting = Arc::clone(&waiting);
            let thread = std::thread::Builder::new().name(format!("openai-{number}"));
            thread.spawn(move || run(&waiting))?;
        }
        Ok(Threads { work })
    }

    /// False if too much waits: the work was dropped.
    pub fn post(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.work.try_send(Box::new(work)).is_ok()
    }
}

/// Waits while it holds the lock: the others wait for the lock instead, which is the same.
fn run(waiting: &Mutex<Receiver<Work>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
        // Work that panics is dropped, and what it was to answer is answered by that.
        drop(catch_unwind(AssertUnwindSafe(work)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_panic_ends_the_work_alone_and_too_much_is_refused() {
        let threads = Threads::start(1).unwrap();
        let (done, is_done) = channel();
        assert!(threads.post(|| panic!("meant to")));
        let (go, may_go) = channel::<()>();
        let after = done.clone();
        assert!(threads.post(move || {
            after.send(()).unwrap();
            let _ = may_go.recv();
        }));
        is_done.recv().unwrap();
        let taken = (0..WAITING_MAX + 10).filter(|_| threads.post(|| ())).count();
        assert_eq!(taken, WAITING_MAX);
        drop(go);
    }
}
