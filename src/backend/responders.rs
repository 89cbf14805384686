//! Threads that answer requests after their execution has returned, and the wait for them at the instance's end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use nereid_request::{RefusalReason, Status};

/// Threads of one instance at a time: each keeps a request open and may sleep for as long as the request's input
/// demands.
const MAX: usize = 1024;

/// The responding threads of one instance. Dropping it waits until all have ended.
#[derive(Debug)]
pub struct Responders {
    name: String,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: Mutex<usize>,
    ended: Condvar,
}

/// Counts a thread while it runs; its drop ends the count also after a panic.
struct Presence(Arc<Shared>);

impl Presence {
    /// `None`: too many threads run.
    fn of(shared: &Arc<Shared>) -> Option<Presence> {
        let mut running = shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        if *running >= MAX {
            return None;
        }
        *running += 1;
        Some(Presence(Arc::clone(shared)))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

impl Responders {
    /// `name` is the name of the instance.
    pub fn new(name: &str) -> Responders {
        Responders { name: name.to_owned(), shared: Arc::default() }
    }

    /// Runs `respond` on a thread of its own.
    pub fn start(&self, respond: impl FnOnce() + Send + 'static) -> Result<(), Status> {
        let name = &self.name;
        let presence = Presence::of(&self.shared).ok_or_else(|| {
            let text = format!("instance '{name}' answers {MAX} requests at a time, no more");
            Status::refused(RefusalReason::ModelCalls, text)
        })?;
        let thread = std::thread::Builder::new().name("responder".to_owned()).spawn(move || {
            respond();
            drop(presence);
        });
        thread.map(drop).map_err(|error| Status::unavailable(format!("instance '{name}' gets no thread: {error}")))
    }
}

impl Drop for Responders {
    fn drop(&mut self) {
        let mut running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running > 0 {
            running = self.shared.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_end_waits_for_all_and_their_number_is_bounded() {
        let responders = Responders::new("m_0");
        let done = Arc::new(AtomicUsize::new(0));
        let gates: Vec<_> = (0..MAX)
            .map(|_| {
                let (gate, opened) = channel::<()>();
                let done = Arc::clone(&done);
                let run = move || {
                    let _ = opened.recv();
                    done.fetch_add(1, Ordering::SeqCst);
                };
                responders.start(run).unwrap();
                gate
            })
            .collect();
        let refused = responders.start(|| {}).unwrap_err();
        assert_eq!(refused.message, "instance 'm_0' answers 1024 requests at a time, no more");
        drop(gates);
        drop(responders);
        assert_eq!(done.load(Ordering::SeqCst), MAX);
    }

    #[test]
    fn a_thread_that_panics_has_ended_as_well() {
        let responders = Responders::new("m_0");
        responders.start(|| std::panic::resume_unwind(Box::new(()))).unwrap();
        drop(responders);
    }
}
