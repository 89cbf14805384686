//! One operation of a stream: what it does, what it touches, and what it waits for.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::super::driver::{Argument, Program};
use super::memory::{self, POISON};
use super::order::Span;

/// What an operation does when its turn has come.
#[derive(Debug, Clone)]
pub(super) enum Work {
    /// Others wait for it.
    Nothing,
    /// Of an event: the time at which all before it was complete.
    Mark(Arc<OnceLock<Instant>>),
    Copy {
        to: u64,
        from: u64,
        len: usize,
    },
    Fill {
        at: u64,
        value: u8,
        len: usize,
    },
    Kernel {
        program: &'static Program,
        arguments: Arc<[Argument]>,
    },
}

impl Work {
    /// # Safety
    /// The memory it names is valid, and nobody uses it meanwhile in a way that conflicts.
    pub unsafe fn run(&self) {
        match self {
            Work::Nothing => {}
            Work::Mark(time) => {
                let _ = time.set(Instant::now());
            }
            Work::Copy { to, from, len } => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy(memory::pointer(*from).cast_const(), memory::pointer(*to), *len) }
            }
            // SAFETY: the caller's promise.
            Work::Fill { at, value, len } => unsafe { memory::fill(*at, *value, *len) },
            // SAFETY: the caller's promise.
            Work::Kernel { program, arguments } => unsafe { (program.on_host)(arguments) },
        }
    }

    /// It takes time on a device.
    pub fn is_real(&self) -> bool {
        !matches!(self, Work::Nothing | Work::Mark(_))
    }
}

/// What is asked of a stream: an operation before it has a place.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub work: Work,
    pub spans: Vec<Span>,
    /// For messages.
    pub what: &'static str,
}

impl Task {
    pub fn nothing() -> Task {
        Task { work: Work::Nothing, spans: Vec::new(), what: "an order" }
    }

    /// What it writes and does not read: what is there before has no meaning for it.
    pub fn overwritten(&self) -> impl Iterator<Item = &Span> {
        let is_read = |span: &Span| self.spans.iter().any(|other| !other.writes && other.meets(span));
        self.spans.iter().filter(move |span| span.writes && !is_read(span))
    }
}

/// An operation that is not complete.
#[derive(Debug)]
pub(super) struct Operation {
    pub device: usize,
    pub stream: u64,
    pub task: Task,
    /// Operations before it that are not complete.
    pub waits_for: usize,
    /// Those after it that wait for it.
    pub dependents: Vec<u64>,
    /// What takes the place of the delay's beginning: poison could not be laid earlier.
    pub is_poison_due: bool,
    pub delay_us: u64,
    /// `CUresult` with which it fails.
    pub fails: Option<i32>,
}

impl Operation {
    /// Makes visible that what it writes is not there yet.
    ///
    /// # Safety
    /// The memory is valid, and no incomplete operation but this one uses it.
    pub unsafe fn poison(&self) {
        for span in self.task.overwritten() {
            // SAFETY: the caller's promise.
            unsafe { memory::fill(span.from, POISON, (span.to - span.from) as usize) }
        }
    }
}
