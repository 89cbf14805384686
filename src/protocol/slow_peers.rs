//! How slow a peer may be while it is its turn, and how far it has come.
//!
//! A peer that owes the rest of a request, or has not taken an answer, is checked once a second. It is too slow if it
//! did nothing for a whole window, if the bytes of a window are fewer than its rate requires, or if one request takes
//! longer than any may. A request or answer shorter than a window's bytes has one window for itself.

/// The limits (`--slow-peer-secs`, `--slow-peer-min-rate`, `--request-receive-secs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowPeers {
    /// Seconds over which the rate is measured; at least 1.
    pub window_s: u32,
    /// Bytes a second; 0: a byte in each window will do.
    pub rate_min: u32,
    /// Seconds that one request may take from its first byte to its last; 0: any number.
    pub request_s: u32,
}

impl Default for SlowPeers {
    fn default() -> SlowPeers {
        SlowPeers { window_s: 60, rate_min: 500, request_s: 3600 }
    }
}

impl SlowPeers {
    /// For what may take any time, as long as it goes on.
    pub fn without_total(self) -> SlowPeers {
        SlowPeers { request_s: 0, ..self }
    }
}

/// What a peer has done since it became its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Of the window.
    seconds: u32,
    bytes: u64,
    /// Since the last byte.
    quiet_s: u32,
    total_s: u32,
}

impl Progress {
    /// A second has passed in which `bytes` came or went. True if the peer is too slow.
    pub fn second_passed(&mut self, limits: &SlowPeers, bytes: u64) -> bool {
        self.total_s = self.total_s.saturating_add(1);
        self.quiet_s = if bytes == 0 { self.quiet_s.saturating_add(1) } else { 0 };
        self.seconds += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_late = limits.request_s > 0 && self.total_s >= limits.request_s;
        if is_late || self.quiet_s >= limits.window_s {
            return true;
        }
        if self.seconds < limits.window_s {
            return false;
        }
        let is_slow = self.bytes < u64::from(limits.rate_min) * u64::from(self.seconds);
        (self.seconds, self.bytes) = (0, 0);
        is_slow
    }

    /// It is not the peer's turn, or its turn with something else.
    pub fn restart(&mut self) {
        *self = Progress::default();
    }

    /// Whether the peer has done nothing in the last second of its turn.
    pub fn is_quiet(&self) -> bool {
        self.quiet_s > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many seconds a peer that moves so many bytes in each is too slow, of the first 100.
    fn ends(limits: SlowPeers, bytes: impl Fn(u32) -> u64) -> Option<u32> {
        let mut progress = Progress::default();
        (1..=100).find(|&second| progress.second_passed(&limits, bytes(second)))
    }

    #[test]
    fn silence_a_low_rate_and_a_long_time_are_too_slow() {
        let limits = SlowPeers { window_s: 10, rate_min: 50, request_s: 0 };
        assert_eq!(ends(limits, |_| 0), Some(10));
        assert_eq!(
            ends(limits, |second| u64::from(second == 1) * 1_000_000),
            Some(11),
            "silence counts from its start"
        );
        assert_eq!(ends(limits, |_| 49), Some(10));
        assert_eq!(ends(limits, |_| 50), None, "slow, but honest");
        assert_eq!(ends(limits, |second| u64::from(second % 10 == 9) * 500), None, "in bursts");
        assert_eq!(ends(limits, |second| if second <= 20 { 1000 } else { 1 }), Some(30), "each window counts alone");
        let patient = SlowPeers { rate_min: 0, ..limits };
        assert_eq!(ends(patient, |second| u64::from(second % 10 == 9)), None);
        assert_eq!(ends(SlowPeers { request_s: 33, ..limits }, |_| 1_000_000), Some(33));
        assert_eq!(ends(SlowPeers { request_s: 33, ..limits }.without_total(), |_| 1_000_000), None);
    }

    #[test]
    fn the_next_turn_begins_anew() {
        let limits = SlowPeers { window_s: 3, rate_min: 10, request_s: 4 };
        let mut progress = Progress::default();
        for _ in 0..20 {
            assert!(!progress.second_passed(&limits, 0) && !progress.second_passed(&limits, 100));
            progress.restart();
        }
        assert!(!progress.second_passed(&limits, 0));
        assert!(progress.is_quiet());
    }
}
