//! Listeners on the ring: one multishot accept each, pauses when the process runs out of descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{cqueue, opcode};

use super::super::{ACCEPT_RETRY_NS, Event, Refused, is_transient_accept_error, slot_mut, sys};
use super::{GENERATION_MASK, OperationKind, Uring, user_data};

pub(super) struct Listener {
    socket: OwnedFd,
    generation: u32,
    accepting: bool,
    cancels: u32,
    closing: bool,
    /// Out of descriptors or memory until then.
    retry_at_ns: Option<u64>,
}

impl Uring {
    pub(super) fn start_listening(&mut self, socket: OwnedFd, id: usize) -> Result<(), Refused> {
        let slot = slot_mut(&mut self.listeners, id, self.limits.listeners)?;
        if slot.is_some() {
            return Err(Refused::Occupied);
        }
        sys::set_nonblocking(socket.as_fd(), false)?;
        self.generation = self.generation.wrapping_add(1) & GENERATION_MASK;
        let generation = self.generation;
        *slot = Some(Listener { socket, generation, accepting: false, cancels: 0, closing: false, retry_at_ns: None });
        self.arm_accept(id);
        Ok(())
    }

    pub(super) fn end_listening(&mut self, id: usize) -> Result<(), Refused> {
        let listener = self.listeners.get_mut(id).and_then(Option::as_mut).filter(|listener| !listener.closing);
        let listener = listener.ok_or(Refused::Unknown)?;
        listener.closing = true;
        listener.retry_at_ns = None;
        let generation = listener.generation;
        if listener.accepting {
            listener.cancels += 1;
            self.cancel(
                user_data(OperationKind::Accept, generation, id),
                user_data(OperationKind::CancelAccept, generation, id),
            );
        }
        self.finish_listener(id);
        Ok(())
    }

    /// Listens again where a pause is over, and returns when the next one ends.
    pub(super) fn resume_listeners(&mut self, now_ns: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        for id in 0..self.listeners.len() {
            let Some(listener) = self.listeners[id].as_mut() else { continue };
            match listener.retry_at_ns {
                Some(at) if at <= now_ns => {
                    listener.retry_at_ns = None;
                    self.arm_accept(id);
                }
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        next
    }

    pub(super) fn accepted(
        &mut self,
        id: usize,
        generation: u32,
        outcome: io::Result<usize>,
        flags: u32,
        now_ns: u64,
        events: &mut Vec<Event>,
    ) {
        let error = match outcome {
            Ok(fd) => {
                // SAFETY: the kernel has just made this descriptor for us, and reports it once.
                let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
                events.push(Event::Accepted { listener: id, fd });
                None
            }
            Err(error) => Some(error),
        };
        let Some(listener) = self.listener_of(id, generation) else { return };
        if cqueue::more(flags) {
            return;
        }
        listener.accepting = false;
        if listener.closing {
            return self.finish_listener(id);
        }
        match error {
            Some(error) if !is_transient_accept_error(&error) => {
                let retry_at_ns = now_ns.saturating_add(ACCEPT_RETRY_NS);
                listener.retry_at_ns = Some(retry_at_ns);
                events.push(Event::AcceptFailed { listener: id, error, retry_at_ns });
            }
            _ => self.arm_accept(id),
        }
    }

    pub(super) fn cancelled_accept(&mut self, id: usize, generation: u32) {
        if let Some(listener) = self.listener_of(id, generation) {
            listener.cancels = listener.cancels.saturating_sub(1);
            self.finish_listener(id);
        }
    }

    fn arm_accept(&mut self, id: usize) {
        let Some(listener) = self.listeners.get_mut(id).and_then(Option::as_mut) else { return };
        listener.accepting = true;
        let entry = opcode::AcceptMulti::new(Fd(listener.socket.as_raw_fd())).flags(libc::SOCK_CLOEXEC).build();
        let name = user_data(OperationKind::Accept, listener.generation, id);
        // SAFETY: no memory is involved; the descriptor stays open until the completion.
        unsafe { self.push(entry.user_data(name)) }
    }

    fn listener_of(&mut self, id: usize, generation: u32) -> Option<&mut Listener> {
        self.listeners.get_mut(id)?.as_mut().filter(|listener| listener.generation == generation)
    }

    fn finish_listener(&mut self, id: usize) {
        let Some(slot) = self.listeners.get_mut(id) else { return };
        if let Some(listener) = slot
            && listener.closing
            && !listener.accepting
            && listener.cancels == 0
        {
            *slot = None;
            self.closed.push(Event::ListenerClosed { listener: id });
        }
    }
}
