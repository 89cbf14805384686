//! The threads that answer for an instance: bounded, and all ended before the instance is.

use std::thread::{Builder, JoinHandle};

use crate::error::{Code, Error};

/// More at a time would rather be a client's mistake than its wish; the rest is told to come again.
const THREADS_MAX: usize = 1024;

/// To be declared before what the threads use: fields are dropped in order, and this one waits.
#[derive(Debug, Default)]
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Whether one more may be started: to be asked before a request is taken apart.
    pub fn check_room(&mut self) -> Result<(), Error> {
        self.0.retain(|thread| !thread.is_finished());
        if self.0.len() < THREADS_MAX {
            return Ok(());
        }
        Err(Error::new(Code::Unavailable, format!("{THREADS_MAX} requests are being answered already")))
    }

    /// Runs `task` on a thread of its own. Where the system has none, the task is dropped.
    pub fn start(&mut self, task: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let started = Builder::new().name("responses".to_owned()).spawn(task);
        self.0.push(started.map_err(|error| Error::new(Code::Unavailable, format!("no thread: {error}")))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // A panic of the thread was shown when it happened, and its responder has ended the request.
            let _ = thread.join();
        }
    }
}
