//! Where the next bytes of a connection go: to the memory of a tensor, one frame at a time or many at once.
//!
//! Many frames are received by a guess at their sizes ([`http2::Connection::predicted`]). What comes is compared head
//! by head; from the first byte on that is not where it was expected, all is copied out of the tensor's memory, kept,
//! and read like bytes that came any other way, no more of them in a turn than an ordinary receive brings. So a wrong
//! guess costs that copy, and no peer can make it cost more.

use super::{Exchanges, Intake, IntakeState};
use crate::grpc::{Direct, DirectTicket};
use crate::http2::{self, ConnectionError, ErrorCode, StreamId};
use crate::service::Service;
use nereid_memory::{BlockMut, Charge, Exhausted, Part, Scatter};
use nereid_mutants::{self as mutants, Mutant};

/// Payload bytes of one receive of many frames: what a turn has time to copy, and a wrong guess to copy twice.
pub const SCATTERED_BYTES_MAX: usize = 512 * 1024;

/// Bytes of a wrong guess that one turn reads: as many as an ordinary receive brings. Among them may be hundreds of
/// small requests.
const KEPT_PER_TURN: usize = 16 * 1024;

/// The memory that the next bytes of a connection belong to.
#[derive(Debug)]
pub enum Window {
    /// So many bytes of the block, from the offset on.
    Block { block: BlockMut, at: usize, len: usize },
    /// The frames that are expected.
    Frames(Box<Scatter>),
}

/// What a receive of many frames takes beside the memory of the tensor: room for the heads, and the list of its parts.
const BESIDE_BYTES: usize = 3 * 1024;

/// What a ping carries that is sent for the bytes of its answer.
const RECALL_PING: [u8; 8] = *b"nereid-!";

/// A window that is with the engine.
pub(super) struct LentWindow {
    pub(super) id: StreamId,
    pub(super) ticket: DirectTicket,
    /// Given back when a receive of many frames is over, and its heads are read.
    pub(super) beside: Option<Charge>,
}

/// Received bytes that are read over several turns.
pub(super) struct KeptInput {
    bytes: Vec<u8>,
    /// How many of them were read.
    read: usize,
    _charge: Option<Charge>,
}

impl IntakeState {
    /// Received bytes are still to be read, by [`Intake::read_kept`]: nothing more may be received before.
    pub fn has_input(&self) -> bool {
        self.kept.is_some()
    }

    /// The engine has memory of a call that is over, which only the next bytes of the peer bring back.
    pub fn lends_to_past_call(&self) -> bool {
        self.lent.as_ref().is_some_and(|lent| !self.calls.contains_key(&lent.id))
    }

    /// To be called when a call has ended: asks the peer for a few bytes if the engine has memory of the call, and
    /// would keep it until the peer has something to send. Within a frame the rest of it is on the way.
    pub fn recall_window(&self, id: StreamId, connection: &mut http2::Connection) {
        if self.lent.as_ref().is_some_and(|lent| lent.id == id) && !connection.frames().1 {
            connection.ping(RECALL_PING);
        }
    }

    /// The peer sends no more: what the engine had is gone, and nothing is read any more.
    pub fn forget_input(&mut self) {
        (self.lent, self.kept) = (None, None);
    }

    /// The memory of one tensor, if the next bytes of the connection belong there.
    pub fn take_window(&mut self, connection: &http2::Connection) -> Option<Window> {
        if let Some(frames) = connection.predicted() {
            let (block, at, len) = self.take_direct(frames.stream)?;
            // What ends within its frame has no heads in between.
            if frames.layout.lead == 0 && len <= frames.layout.first {
                return Some(Window::Block { block, at, len });
            }
            return match self.pool.hold(BESIDE_BYTES) {
                Ok(charge) => {
                    if let Some(lent) = &mut self.lent {
                        lent.beside = Some(charge);
                    }
                    let at = if mutants::is(Mutant::ScatterMisplaced) { 0 } else { at };
                    let scatter = Scatter::new(block, at, len.min(SCATTERED_BYTES_MAX), frames.layout);
                    Some(Window::Frames(Box::new(scatter)))
                }
                Err(_) if frames.layout.lead == 0 => Some(Window::Block { block, at, len: frames.layout.first }),
                Err(_) => {
                    self.take_back(block);
                    None
                }
            };
        }
        let (id, frame_left) = connection.direct()?;
        let (block, at, len) = self.take_direct(id)?;
        Some(Window::Block { block, at, len: len.min(frame_left) })
    }

    /// Takes the memory of a window back into which nothing was received.
    fn take_back(&mut self, block: BlockMut) {
        let Some(LentWindow { id, ticket, .. }) = self.lent.take() else { return };
        if let Some(open) = self.calls.get_mut(&id) {
            open.reader.direct_received(Direct::from_parts(block, ticket), 0);
        }
    }
}

impl<S: Service, E: Exchanges> Intake<'_, S, E> {
    /// Takes back frames that [`IntakeState::take_window`] gave, `n` bytes of which were received. What lies elsewhere
    /// than was expected is kept ([`IntakeState::has_input`]).
    pub fn scattered_received(
        &mut self,
        connection: &mut http2::Connection,
        scatter: Box<Scatter>,
        n: usize,
    ) -> Result<(), ConnectionError> {
        let Some(LentWindow { id, ticket, .. }) = self.state.lent.take() else {
            return self.keep(connection, scatter.copy(0, n));
        };
        let mut parts = scatter.parts().peekable();
        let mut landing = Some((scatter, ticket));
        // Bytes dealt with, those of them that are the tensor's, and its parts.
        let (mut at, mut landed, mut payloads) = (0, 0, 0);
        while at < n
            && let Some(part) = parts.next()
        {
            let len = part.len().min(n - at);
            match &part {
                Part::Head(_) => {
                    // Payload must not come this way while the reader lacks its memory.
                    let Some((scatter, _)) = landing.as_ref().filter(|_| connection.is_in_head(part.len())) else {
                        break;
                    };
                    connection.receive(scatter.bytes(&part).get(..len).unwrap_or_default(), self)?;
                    at += len;
                }
                Part::Payload(_) => {
                    let is_last = parts.peek().is_none();
                    if !connection.is_within(id, part.len(), is_last) {
                        break;
                    }
                    (at, landed, payloads) = (at + len, landed + len, payloads + 1);
                    // The message is complete before its stream ends.
                    if is_last || at == n {
                        self.land(id, &mut landing, landed);
                    }
                    let outcome = connection.direct_received(len, self);
                    self.give_credit(connection, id, len);
                    outcome?;
                }
            }
        }
        if at == n {
            self.land(id, &mut landing, landed);
            if payloads > 1 {
                connection.note_prediction(true);
            }
            return Ok(());
        }
        debug_assert!(landing.is_some(), "more was received than there is room for");
        let rest = landing.as_ref().map(|(scatter, _)| scatter.copy(at, n)).unwrap_or_else(|| Ok(Vec::new()));
        self.land(id, &mut landing, landed);
        // A call that was ended here meanwhile is not the peer's fault.
        if self.state.calls.contains_key(&id) {
            connection.note_prediction(false);
        }
        self.keep(connection, rest)
    }

    /// Without the bytes nothing that follows can be read: the connection ends.
    fn keep(
        &mut self,
        connection: &mut http2::Connection,
        bytes: Result<Vec<u8>, Exhausted>,
    ) -> Result<(), ConnectionError> {
        let Ok(bytes) = bytes else {
            connection.abort(ErrorCode::INTERNAL_ERROR, "no memory for what was received");
            return Err(ConnectionError::Aborted(ErrorCode::INTERNAL_ERROR));
        };
        if bytes.is_empty() {
            return Ok(());
        }
        // Without memory for them they are kept all the same: they were received, and are read within some thirty
        // turns, whatever the peer does.
        let charge = self.state.pool.hold(bytes.len()).ok();
        self.state.kept = Some(KeptInput { bytes, read: 0, _charge: charge });
        Ok(())
    }

    /// Reads on in what was received and kept: no more than a turn has time for.
    pub fn read_kept(&mut self, connection: &mut http2::Connection) -> Result<(), ConnectionError> {
        let Some(mut kept) = self.state.kept.take() else { return Ok(()) };
        let end = kept.bytes.len().min(kept.read + KEPT_PER_TURN);
        connection.receive(kept.bytes.get(kept.read..end).unwrap_or_default(), self)?;
        kept.read = end;
        if kept.read < kept.bytes.len() {
            self.state.kept = Some(kept);
        }
        Ok(())
    }

    /// Gives the memory of a tensor back, with so many more bytes in it, and takes the message if it is complete.
    fn land(&mut self, id: StreamId, landing: &mut Option<(Box<Scatter>, DirectTicket)>, landed: usize) {
        let Some((scatter, ticket)) = landing.take() else { return };
        if let Some(open) = self.state.calls.get_mut(&id) {
            open.arrived += landed as u64;
            open.reader.direct_received(Direct::from_parts(scatter.into_block(), ticket), landed);
        }
        self.advance(id, &mut None, false);
    }

    /// Gives credit for bytes of a tensor, or notes that it is to be given later.
    pub(super) fn give_credit(&mut self, connection: &mut http2::Connection, id: StreamId, n: usize) {
        match self.state.calls.get_mut(&id) {
            Some(open) if self.withholds => {
                open.withheld += n;
                self.state.withheld += n;
            }
            _ => connection.consumed(id, n),
        }
    }
}

#[cfg(test)]
mod tests;
