//! What a process does to its servers: it may fork, and it ends.
//!
//! A child of fork has none of the server's threads, so nothing in it may use a server. While the interpreter ends, no
//! callback may wait for its lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

use crate::errors::InternalError;

/// How often this process, or one above it, was forked since the module was loaded.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether the thread is one of the server's, inside a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The process in which an object was created.
#[derive(Clone, Copy)]
pub struct Origin(u32);

impl Origin {
    pub fn here() -> Origin {
        Origin(FORKS.load(Ordering::Relaxed))
    }

    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// An error in a child of the process.
    pub fn check(self) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(InternalError::new_err(
            "the server belongs to the process that was forked; create one in this process after the fork",
        ))
    }
}

/// Runs a callback, in which no server may be deleted.
pub fn in_callback<T>(work: impl FnOnce() -> T) -> T {
    let before = IN_CALLBACK.replace(true);
    let result = work();
    IN_CALLBACK.set(before);
    result
}

/// Runs what waits for the server's threads: on another thread, if this is one of them.
pub fn outside_callbacks(work: impl FnOnce() + Send + 'static) {
    if IN_CALLBACK.get() {
        // A thread that cannot start leaves the server as it is, which is better than a wait for itself.
        drop(std::thread::Builder::new().name("server-deletion".to_owned()).spawn(work));
    } else {
        work();
    }
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let forked = PyCFunction::new_closure(py, None, None, |_args, _kwargs| {
        FORKS.fetch_add(1, Ordering::Relaxed);
    })?;
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", forked)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
