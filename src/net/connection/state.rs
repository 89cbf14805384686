//! What a connection stands at: its way to its end, its send, and the progress of its peer.

use nereid_memory::Slice;
use nereid_protocol::slow_peers::{Progress, SlowPeers};

use crate::timeouts::{LINGER_S, PartialSend};

/// How far a connection is on its way to its end. It goes down this list, and may leave some out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClosePhase {
    Open,
    /// The peer has sent its last byte. Answers that are in the output are still sent.
    PeerEnded,
    /// Nothing more is sent; what the peer still sends is read and dropped, for so many seconds until now.
    Lingering {
        seconds: u32,
    },
    /// Nothing can be sent any more, and nothing is read.
    Broken,
    /// The engine closes it.
    Closing,
}

impl ClosePhase {
    /// The peer has sent its last byte. A connection that only lingers for more has no use then.
    pub fn end_input(&mut self) {
        *self = match *self {
            ClosePhase::Open => ClosePhase::PeerEnded,
            ClosePhase::Lingering { .. } => ClosePhase::Broken,
            phase => phase,
        };
    }

    /// Nothing can be sent any more.
    pub fn fail(&mut self) {
        if *self != ClosePhase::Closing {
            *self = ClosePhase::Broken;
        }
    }

    /// The last answer is sent, and the peer may still be sending.
    pub fn linger(&mut self) {
        if *self == ClosePhase::Open {
            *self = ClosePhase::Lingering { seconds: 0 };
        }
    }

    /// The engine closes the connection from now on. False: it does so already.
    pub fn close(&mut self) -> bool {
        std::mem::replace(self, ClosePhase::Closing) != ClosePhase::Closing
    }

    pub fn is_lingering(self) -> bool {
        matches!(self, ClosePhase::Lingering { .. })
    }

    /// What the peer sends is read only so that its socket is not reset.
    #[inline]
    pub fn drops_input(self) -> bool {
        matches!(self, ClosePhase::Lingering { .. } | ClosePhase::Closing)
    }

    /// The codec still has a peer to send to.
    #[inline]
    pub fn may_send(self) -> bool {
        matches!(self, ClosePhase::Open | ClosePhase::PeerEnded)
    }

    /// A second has passed. `Some` for a lingering connection: true if it has lingered for long enough.
    pub fn second_passed(&mut self) -> Option<bool> {
        let ClosePhase::Lingering { seconds } = self else { return None };
        *seconds += 1;
        Some(*seconds >= LINGER_S)
    }
}

/// The one gathered send of a connection.
#[derive(Debug, Default)]
pub(crate) enum SendState {
    /// The next send takes what the codec has.
    #[default]
    Idle,
    /// A recalled send brought these pieces back, which go out before anything else.
    Returned(PartialSend),
    /// The engine has so many bytes. `is_quiet`: their end alone does not wake the shard.
    InEngine { bytes: usize, is_quiet: bool },
}

impl SendState {
    #[inline]
    pub fn is_in_engine(&self) -> bool {
        matches!(self, SendState::InEngine { .. })
    }

    #[inline]
    pub fn is_quiet(&self) -> bool {
        matches!(self, SendState::InEngine { is_quiet: true, .. })
    }

    /// Something waits for its end from now on.
    pub fn await_end(&mut self) {
        if let SendState::InEngine { is_quiet, .. } = self {
            *is_quiet = false;
        }
    }

    /// Bytes of a send that the engine has.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            SendState::InEngine { bytes, .. } => *bytes,
            SendState::Idle | SendState::Returned(_) => 0,
        }
    }

    /// The pieces of a recalled send, once they are copied.
    #[inline]
    pub fn take_returned(&mut self) -> Vec<Slice> {
        match self {
            SendState::Returned(partial) => {
                let pieces = partial.take();
                *self = SendState::Idle;
                pieces
            }
            SendState::Idle | SendState::InEngine { .. } => Vec::new(),
        }
    }
}

/// What the peer has received and sent in this second, and in the seconds since it became its turn.
#[derive(Debug, Default)]
pub(crate) struct PeerProgress {
    second: BytesMoved,
    /// Of the request that is half received, and which one that is.
    request: Progress,
    request_number: u64,
    /// Of what is sent.
    response: Progress,
    /// Seconds without a byte in either direction.
    quiet_s: u32,
}

/// Seconds after which a connection is at rest: not those between the requests of one task.
const REST_S: u32 = 2;

/// Bytes of one second.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct BytesMoved {
    /// From the peer.
    pub received: u64,
    /// By the peer.
    pub taken: u64,
}

impl PeerProgress {
    #[inline]
    pub fn received(&mut self, bytes: usize) {
        self.second.received += bytes as u64;
    }

    #[inline]
    pub fn taken(&mut self, bytes: usize) {
        self.second.taken += bytes as u64;
    }

    /// The bytes of the second that has passed; the next second begins.
    pub fn end_second(&mut self) -> BytesMoved {
        let moved = std::mem::take(&mut self.second);
        self.quiet_s = match moved {
            BytesMoved { received: 0, taken: 0 } => self.quiet_s.saturating_add(1),
            _ => 0,
        };
        moved
    }

    /// The connection is at rest since the second that has passed.
    pub fn has_come_to_rest(&self) -> bool {
        self.quiet_s == REST_S
    }

    /// True if the peer sends the rest of a request too slowly. `half_received`: the number of that request.
    pub fn is_request_late(&mut self, half_received: Option<u64>, limits: &SlowPeers, moved: BytesMoved) -> bool {
        let Some(number) = half_received else {
            self.request.restart();
            return false;
        };
        if number != self.request_number {
            self.request.restart();
        }
        self.request_number = number;
        self.request.second_passed(limits, moved.received)
    }

    /// True if the peer takes what is sent too slowly.
    pub fn is_response_late(&mut self, is_sending: bool, limits: &SlowPeers, moved: BytesMoved) -> bool {
        if !is_sending {
            self.response.restart();
            return false;
        }
        self.response.second_passed(&limits.without_total(), moved.taken)
    }

    /// The peer has taken nothing in the last second of a send.
    pub fn is_send_stuck(&self) -> bool {
        self.response.is_quiet()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_comes_to_rest_once_after_seconds_without_a_byte() {
        let mut progress = PeerProgress::default();
        let mut rests = |received: usize, taken: usize| {
            progress.received(received);
            progress.taken(taken);
            progress.end_second();
            progress.has_come_to_rest()
        };
        let seconds = [(1, 0), (0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1), (0, 0), (0, 0)];
        let seen = seconds.map(|(received, taken)| rests(received, taken));
        assert_eq!(seen, [false, false, false, false, true, false, false, false, false, true]);
    }

    #[test]
    fn a_connection_goes_only_towards_its_end() {
        use ClosePhase::{Broken, Closing, Lingering, Open, PeerEnded};
        let lingering = Lingering { seconds: 0 };
        for (from, ended, failed, lingers) in [
            (Open, PeerEnded, Broken, lingering),
            (PeerEnded, PeerEnded, Broken, PeerEnded),
            (lingering, Broken, Broken, lingering),
            (Broken, Broken, Broken, Broken),
            (Closing, Closing, Closing, Closing),
        ] {
            let after = |change: fn(&mut ClosePhase)| {
                let mut phase = from;
                change(&mut phase);
                phase
            };
            assert_eq!(after(ClosePhase::end_input), ended, "{from:?}");
            assert_eq!(after(ClosePhase::fail), failed, "{from:?}");
            assert_eq!(after(ClosePhase::linger), lingers, "{from:?}");
            let mut phase = from;
            assert_eq!((phase.close(), phase), (from != Closing, Closing), "{from:?}");
        }
    }

    #[test]
    fn a_connection_lingers_for_its_seconds_only() {
        let mut phase = ClosePhase::Lingering { seconds: 0 };
        let second = (1..).find(|_| phase.second_passed() == Some(true));
        assert_eq!(second, Some(LINGER_S));
        assert_eq!(ClosePhase::Open.second_passed(), None);
    }

    #[test]
    fn the_next_request_has_its_own_time() {
        let limits = SlowPeers { window_s: 2, rate_min: 0, request_s: 0 };
        let nothing = BytesMoved::default();
        let mut peer = PeerProgress::default();
        assert!(!peer.is_request_late(Some(1), &limits, nothing));
        assert!(!peer.is_request_late(Some(2), &limits, nothing), "another request");
        assert!(!peer.is_request_late(None, &limits, nothing));
        assert!(!peer.is_request_late(Some(2), &limits, nothing), "none was owed between");
        assert!(peer.is_request_late(Some(2), &limits, nothing));
        assert!(!peer.is_response_late(true, &limits, nothing) && peer.is_send_stuck());
        assert!(!peer.is_response_late(false, &limits, nothing) && !peer.is_send_stuck());
    }
}
