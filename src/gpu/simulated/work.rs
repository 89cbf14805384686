//! The operations of a stream: their effect, the memory that they access, and what they wait for.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::super::driver::{Argument, Program};
use super::foreign::ForeignCall;
use super::memory::{self, POISON};
use super::order::Span;

/// The effect of an operation when it runs.
#[derive(Debug, Clone)]
pub(super) enum Work {
    /// No effect: other operations wait for it.
    Nothing,
    /// Sets the time of an event, when all work before it is complete.
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
    /// A function of another library, see [`foreign`](super::foreign).
    Foreign(Arc<ForeignCall>),
}

impl Work {
    /// # Safety
    /// The memory it names is valid, and no other operation uses it meanwhile in a way that conflicts.
    pub unsafe fn run(&self) {
        match self {
            Work::Nothing => {}
            Work::Mark(time) => {
                let _ = time.set(Instant::now());
            }
            Work::Copy { to, from, len } => {
                // SAFETY: both ranges are valid, and no other operation uses them: this function requires that of its
                // caller.
                unsafe { std::ptr::copy(memory::pointer(*from).cast_const(), memory::pointer(*to), *len) }
            }
            // SAFETY: the memory is valid, and no other operation uses it: this function requires that of its caller.
            Work::Fill { at, value, len } => unsafe { memory::fill(*at, *value, *len) },
            // SAFETY: what the arguments name is valid, and no other operation uses it: this function requires that of
            // its caller.
            Work::Kernel { program, arguments } => unsafe { (program.on_host)(arguments) },
            // SAFETY: the memory that the launch named is valid and unused by others: this function requires it.
            Work::Foreign(call) => unsafe { call.run() },
        }
    }

    /// True if it counts as a launch.
    pub fn is_launch(&self) -> bool {
        matches!(self, Work::Kernel { .. } | Work::Foreign(_))
    }

    /// True if it takes time on a device.
    pub fn is_real(&self) -> bool {
        !matches!(self, Work::Nothing | Work::Mark(_))
    }
}

/// A request to a stream: an operation before it is enqueued.
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

    /// The spans that it writes and does not read: their previous contents do not matter.
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
    /// The destination was in use when this was enqueued: poison is written when its delay begins.
    pub is_poison_due: bool,
    pub delay_us: u64,
    /// `CUresult` with which it fails.
    pub fails: Option<i32>,
}

impl Operation {
    /// Fills its destination with poison until it is written.
    ///
    /// # Safety
    /// The memory is valid, and no incomplete operation but this one uses it.
    pub unsafe fn poison(&self) {
        for span in self.task.overwritten() {
            // SAFETY: the memory is valid, and no other operation uses it: this function requires that of its caller.
            unsafe { memory::fill(span.from, POISON, (span.to - span.from) as usize) }
        }
    }
}
