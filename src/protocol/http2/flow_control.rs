//! The windows of a connection (RFC 9113 sections 5.2 and 6.9.1). Streams have windows of their own beside these.

use super::ConnectionError;
use super::frame::{DEFAULT_WINDOW, MAX_31};

/// How many bytes of DATA the whole connection may send and receive.
#[derive(Debug)]
pub(super) struct ConnectionWindows {
    pub(super) send: i64,
    receive: i64,
    /// Size of the receive window when nothing of it is taken.
    receive_max: u32,
    /// Bytes of the receive window that were taken and not yet given back to the peer.
    credit: u32,
}

impl ConnectionWindows {
    pub(super) fn new(receive_max: u32) -> ConnectionWindows {
        ConnectionWindows { send: i64::from(DEFAULT_WINDOW), receive: i64::from(receive_max), receive_max, credit: 0 }
    }

    /// The peer has begun a DATA frame of that many bytes.
    pub(super) fn charge(&mut self, bytes: u32) -> Result<(), ConnectionError> {
        self.receive -= i64::from(bytes);
        match self.receive < 0 {
            true => Err(ConnectionError::flow_control("more DATA than the connection's window")),
            false => Ok(()),
        }
    }

    /// The peer lets us send that many bytes more.
    pub(super) fn widen(&mut self, bytes: u32) -> Result<(), ConnectionError> {
        if bytes == 0 {
            return Err(ConnectionError::protocol("a WINDOW_UPDATE of nothing"));
        }
        self.send += i64::from(bytes);
        match self.send > i64::from(MAX_31) {
            true => Err(ConnectionError::flow_control("the connection's window overflows")),
            false => Ok(()),
        }
    }

    /// That many received bytes were taken.
    pub(super) fn add_credit(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// The credit that is sent to the peer now: once half of the window was taken, so that few frames do.
    pub(super) fn take_credit(&mut self) -> Option<u32> {
        if self.credit < self.receive_max.div_ceil(2) {
            return None;
        }
        let credit = std::mem::take(&mut self.credit).min(MAX_31);
        self.receive += i64::from(credit);
        Some(credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_told_once_half_of_the_window_was_taken() {
        let mut windows = ConnectionWindows::new(100);
        assert!(windows.charge(100).is_ok());
        windows.add_credit(49);
        assert_eq!(windows.take_credit(), None);
        windows.add_credit(1);
        assert_eq!(windows.take_credit(), Some(50));
        assert_eq!(windows.take_credit(), None);
        assert!(windows.charge(50).is_ok());
        assert!(windows.charge(1).is_err());
    }

    #[test]
    fn a_send_window_has_a_bound_and_is_not_widened_by_nothing() {
        let mut windows = ConnectionWindows::new(100);
        assert!(windows.widen(0).is_err());
        assert!(windows.widen(MAX_31 - DEFAULT_WINDOW).is_ok());
        assert!(windows.widen(1).is_err());
    }
}
