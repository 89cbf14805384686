//! Keepalive of a gRPC connection: pings to quiet peers, pings of peers that come too often, and its age.
//!
//! The rules are gRPC's own (its proposals A8, A9 and "keepalive"), the flags Triton's (contract/cli.md section 2).
//! Each connection has one timer for whatever comes next. The timer is not moved when bytes arrive: when it fires, the
//! time of the last bytes is read. So a request pays two stores for it, and no clock is read.

use tracing::debug;

use super::Net;
use super::connection::{ClosePhase, Connection, Wire};
use nereid_memory::Key;
use nereid_protocol::http2::{Counters, ErrorCode};
use nereid_protocol::service::Service;
use nereid_shard::{Core, TimerKey};

/// Marks the number of a connection among the tokens of timers as that of its keepalive timer.
const PULSE_MARK: u64 = 1 << 30;
/// The mark of [`super::timeouts`].
const OTHER_MARK: u64 = 1 << 31;
const MS: u64 = 1_000_000;
/// How far apart the pings of a peer without calls must lie, unless connections may be pinged without calls (A8).
const IDLE_PING_INTERVAL_NS: u64 = 7_200_000 * MS;
/// What our pings carry.
const PING: [u8; 8] = *b"nereid-?";
/// Parts in a thousand by which ages differ, up and down, so that clients that came together leave apart.
const JITTER: u64 = 100;

/// The flags, as they were given. The largest number of milliseconds means never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    pub time_ms: i32,
    pub timeout_ms: i32,
    pub without_calls: bool,
    /// 0: any number.
    pub pings_without_data_max: i32,
    pub ping_interval_min_ms: i32,
    /// 0: any number.
    pub ping_strikes_max: i32,
    /// 0: no limit.
    pub age_max_ms: i32,
    /// 0: no limit.
    pub age_grace_ms: i32,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive {
            time_ms: 7_200_000,
            timeout_ms: 20_000,
            without_calls: false,
            pings_without_data_max: 2,
            ping_interval_min_ms: 300_000,
            ping_strikes_max: 2,
            age_max_ms: 0,
            age_grace_ms: 0,
        }
    }
}

/// Nanoseconds of a flag in milliseconds, at least `least_ms`; `None`: never.
fn ns_of(ms: i32, least_ms: i32) -> Option<u64> {
    (ms != i32::MAX).then(|| u64::from(ms.max(least_ms).unsigned_abs()) * MS)
}

/// Pings and age of one connection.
#[derive(Debug)]
pub(super) struct Pulse {
    flags: Keepalive,
    received_ns: u64,
    /// When it was last found that no ping is due although no bytes had come.
    skipped_ns: u64,
    /// Since when a ping of ours is unanswered.
    pinged_ns: Option<u64>,
    /// When it grows too old.
    age_at_ns: Option<u64>,
    /// When its calls have had their time after that.
    over_at_ns: Option<u64>,
    /// Pings of the peer that were counted.
    pings_seen: u64,
    /// When the last of them came.
    pinged_us_ns: Option<u64>,
    strikes: u32,
    /// Runs until [`Pulse::next_ns`].
    timer: Option<TimerKey>,
}

/// What the connection has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PulseAction {
    Nothing,
    Ping,
    /// The peer does not answer.
    Dead,
    /// New calls are refused from now on.
    Aged,
    /// Time is up for its calls.
    Over,
}

/// The connection as its codec has it.
#[derive(Debug, Clone, Copy)]
struct CodecState {
    established: bool,
    has_calls: bool,
    counters: Counters,
}

impl Pulse {
    pub fn new(flags: Keepalive, now_ns: u64) -> Pulse {
        let age = if flags.age_max_ms == 0 { None } else { ns_of(flags.age_max_ms, 1) };
        Pulse {
            flags,
            received_ns: now_ns,
            skipped_ns: 0,
            pinged_ns: None,
            age_at_ns: age.map(|age| now_ns.saturating_add(jittered(age, now_ns))),
            over_at_ns: None,
            pings_seen: 0,
            pinged_us_ns: None,
            strikes: 0,
            timer: None,
        }
    }

    fn note_received(&mut self, now_ns: u64) {
        self.received_ns = now_ns;
        self.pinged_ns = None;
    }

    /// When the next action may be due; `None`: never. The timer is not moved when a ping is answered, so it also fires
    /// when the next ping would be due.
    fn next_ns(&self) -> Option<u64> {
        let quiet_since_ns = self.received_ns.max(self.skipped_ns).max(self.pinged_ns.unwrap_or(0));
        let ping = ns_of(self.flags.time_ms, 1).map(|time| quiet_since_ns.saturating_add(time));
        [ping, self.dead_at_ns(), self.age_at_ns, self.over_at_ns].into_iter().flatten().min()
    }

    /// When an unanswered ping has waited for too long.
    fn dead_at_ns(&self) -> Option<u64> {
        let timeout = ns_of(self.flags.timeout_ms, 0)?;
        self.pinged_ns.map(|pinged_ns| pinged_ns.saturating_add(timeout))
    }

    fn beat(&mut self, now_ns: u64, codec_state: CodecState) -> PulseAction {
        if self.over_at_ns.is_some_and(|at| at <= now_ns) {
            return PulseAction::Over;
        }
        if self.age_at_ns.is_some_and(|at| at <= now_ns) {
            self.age_at_ns = None;
            let grace = if self.flags.age_grace_ms == 0 { None } else { ns_of(self.flags.age_grace_ms, 0) };
            self.over_at_ns = grace.map(|grace| now_ns.saturating_add(grace));
            return if codec_state.established { PulseAction::Aged } else { PulseAction::Over };
        }
        if self.next_ns().is_none_or(|at| at > now_ns) {
            return PulseAction::Nothing;
        }
        if self.dead_at_ns().is_some_and(|at| at <= now_ns) {
            return PulseAction::Dead;
        }
        let wanted = codec_state.established && (codec_state.has_calls || self.flags.without_calls);
        if self.pinged_ns.is_some() || !wanted || !self.may_ping(codec_state.counters) {
            self.skipped_ns = now_ns;
            return PulseAction::Nothing;
        }
        self.pinged_ns = Some(now_ns);
        PulseAction::Ping
    }

    /// Another ping without data between is not too many.
    fn may_ping(&self, counters: Counters) -> bool {
        let most = self.flags.pings_without_data_max.max(0).unsigned_abs();
        most == 0 || counters.pings_sent_since_data < most
    }

    /// Counts pings of the peer that came since the last call; true if they are too many (A8).
    fn strikes_out(&mut self, now_ns: u64, codec_state: CodecState) -> bool {
        let new = codec_state.counters.pings_received.saturating_sub(self.pings_seen);
        if new == 0 {
            return false;
        }
        self.pings_seen = codec_state.counters.pings_received;
        let pings_since_data = u64::from(codec_state.counters.pings_since_data);
        let since_data = pings_since_data.min(new);
        if pings_since_data <= new {
            // Data came or went since the ping before these.
            (self.strikes, self.pinged_us_ns) = (0, None);
        }
        let is_idle = !codec_state.has_calls && !self.flags.without_calls;
        let interval = if is_idle { Some(IDLE_PING_INTERVAL_NS) } else { ns_of(self.flags.ping_interval_min_ms, 0) };
        for _ in 0..since_data {
            let allowed_at =
                self.pinged_us_ns.map(|at| interval.map_or(u64::MAX, |interval| at.saturating_add(interval)));
            self.strikes += u32::from(allowed_at.is_some_and(|at| at > now_ns));
            self.pinged_us_ns = Some(now_ns);
        }
        let most = self.flags.ping_strikes_max.max(0).unsigned_abs();
        most != 0 && self.strikes > most
    }
}

/// A span that differs from `span_ns` by up to [`JITTER`], by the clock's last digits.
fn jittered(span_ns: u64, now_ns: u64) -> u64 {
    let dice = now_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let thousandths = 1000 - JITTER + dice % (2 * JITTER + 1);
    (u128::from(span_ns) * u128::from(thousandths) / 1000).try_into().unwrap_or(u64::MAX)
}

/// The connection that a timer's token belongs to, if it is that of a keepalive timer.
pub(super) fn connection_of(token: u64) -> Option<Key> {
    Key::from_u64(token & !PULSE_MARK).filter(|_| token & (PULSE_MARK | OTHER_MARK) == PULSE_MARK)
}

impl Connection {
    /// Bytes were received. Ends a connection if its peer pings too often.
    pub fn note_received(&mut self, now_ns: u64) {
        let Wire::Grpc(wire) = &mut self.wire else { return };
        wire.pulse.note_received(now_ns);
        if wire.connection.counters().pings_received == wire.pulse.pings_seen {
            return;
        }
        let codec_state = codec_state(&wire.connection);
        if !wire.failed && wire.pulse.strikes_out(now_ns, codec_state) {
            debug!("a gRPC connection is closed: its peer pings too often");
            wire.connection.abort(ErrorCode::ENHANCE_YOUR_CALM, "too_many_pings");
            wire.failed = true;
        }
    }

    /// Its timer could not be started when it should have been.
    pub fn lacks_pulse(&self) -> bool {
        matches!(&self.wire, Wire::Grpc(wire) if wire.pulse.timer.is_none() && wire.pulse.next_ns().is_some())
    }

    /// All timers of the connection, which run no longer for it.
    pub fn take_timers(&mut self) -> impl Iterator<Item = TimerKey> + use<> {
        let pulse_timer = match &mut self.wire {
            Wire::Http(_) | Wire::Ipc(_) => None,
            Wire::Grpc(wire) => wire.pulse.timer.take(),
        };
        self.timer.take().into_iter().chain(pulse_timer)
    }

    /// Its time has come for something; true if it is to be closed at once.
    fn beat(&mut self, now_ns: u64) -> bool {
        let Wire::Grpc(wire) = &mut self.wire else { return false };
        wire.pulse.timer = None;
        if wire.failed {
            return false;
        }
        match wire.pulse.beat(now_ns, codec_state(&wire.connection)) {
            PulseAction::Nothing => {}
            PulseAction::Ping => wire.connection.ping(PING),
            PulseAction::Dead => {
                debug!("a gRPC connection is closed: its peer does not answer pings");
                return true;
            }
            PulseAction::Aged => {
                debug!("a gRPC connection winds down: it is too old");
                wire.drain("max_age");
            }
            PulseAction::Over => {
                debug!("a gRPC connection is closed: its calls have had their time");
                wire.connection.abort(ErrorCode::NO_ERROR, "max_age");
                wire.failed = true;
                // A peer that takes no bytes does not take these either.
                return self.send.is_in_engine();
            }
        }
        false
    }
}

fn codec_state(connection: &nereid_protocol::http2::Connection) -> CodecState {
    CodecState {
        established: connection.is_established(),
        has_calls: connection.open_streams() > 0,
        counters: connection.counters(),
    }
}

impl<S: Service> Net<S> {
    /// The timer of a connection's pulse has fired.
    pub(super) fn pulse(&mut self, key: Key, core: &mut Core<u64>) {
        let is_fit = |one: &&mut Connection| one.phase != ClosePhase::Closing && !one.has_panicked;
        let Some(connection) = self.connections.get_mut(key).filter(is_fit) else { return };
        if connection.beat(core.now_ns()) {
            return self.close(key, core);
        }
        self.start_pulse(key, core);
        self.touch(key);
    }

    /// Starts the timer for what comes next. Where there is no room for it, the next round tries again.
    pub(super) fn start_pulse(&mut self, key: Key, core: &mut Core<u64>) {
        if let Some(Connection { wire: Wire::Grpc(wire), .. }) = self.connections.get_mut(key)
            && wire.pulse.timer.is_none()
            && let Some(at_ns) = wire.pulse.next_ns()
        {
            wire.pulse.timer = core.timers.start(at_ns, key.to_u64() | PULSE_MARK).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Keepalive {
        Keepalive { time_ms: 100, timeout_ms: 20, ..Keepalive::default() }
    }

    fn codec_state(has_calls: bool) -> CodecState {
        CodecState { established: true, has_calls, counters: Counters::default() }
    }

    /// When the timer fires next, in milliseconds.
    fn next_ms(pulse: &Pulse) -> Option<u64> {
        pulse.next_ns().map(|at| at / MS)
    }

    #[test]
    fn tokens_of_pulses_are_told_apart() {
        let key = Key::from_u64(7 << 32 | 65_535).unwrap();
        assert_eq!(connection_of(key.to_u64() | PULSE_MARK), Some(key));
        assert_eq!(connection_of(key.to_u64()), None);
        assert_eq!(connection_of(super::super::timeouts::token_of(key)), None);
        assert_eq!(connection_of(super::super::timeouts::ROUND), None);
    }

    #[test]
    fn a_quiet_peer_with_calls_is_pinged_and_given_up() {
        let mut pulse = Pulse::new(flags(), 0);
        assert_eq!(next_ms(&pulse), Some(100));
        pulse.note_received(50 * MS);
        assert_eq!(pulse.beat(100 * MS, codec_state(true)), PulseAction::Nothing, "bytes came meanwhile");
        assert_eq!(next_ms(&pulse), Some(150));
        assert_eq!(pulse.beat(150 * MS, codec_state(true)), PulseAction::Ping);
        assert_eq!(next_ms(&pulse), Some(170));
        pulse.note_received(160 * MS);
        assert_eq!(pulse.beat(170 * MS, codec_state(true)), PulseAction::Nothing, "any byte is an answer");
        assert_eq!(pulse.beat(260 * MS, codec_state(true)), PulseAction::Ping);
        assert_eq!(pulse.beat(280 * MS, codec_state(true)), PulseAction::Dead);
    }

    #[test]
    fn without_calls_only_who_asked_for_it_is_pinged() {
        let mut pulse = Pulse::new(flags(), 0);
        assert_eq!(pulse.beat(100 * MS, codec_state(false)), PulseAction::Nothing);
        assert_eq!(next_ms(&pulse), Some(200), "the timer runs again, but not at once");
        let mut pulse = Pulse::new(Keepalive { without_calls: true, ..flags() }, 0);
        assert_eq!(pulse.beat(100 * MS, codec_state(false)), PulseAction::Ping);
        let mut pulse = Pulse::new(Keepalive { without_calls: true, ..flags() }, 0);
        let early = CodecState { established: false, ..codec_state(true) };
        assert_eq!(pulse.beat(100 * MS, early), PulseAction::Nothing, "nothing stands before the settings");
    }

    #[test]
    fn pings_without_data_are_bounded() {
        for (most, sent, expected) in [(2, 0, true), (2, 1, true), (2, 2, false), (0, 1000, true), (-1, 1000, true)] {
            let mut pulse = Pulse::new(Keepalive { pings_without_data_max: most, ..flags() }, 0);
            let counters = Counters { pings_sent_since_data: sent, ..Counters::default() };
            let beat = pulse.beat(100 * MS, CodecState { counters, ..codec_state(true) });
            assert_eq!(beat == PulseAction::Ping, expected, "{sent} of {most}");
        }
    }

    #[test]
    fn the_largest_number_is_never() {
        let never = Keepalive { time_ms: i32::MAX, ..flags() };
        assert_eq!(Pulse::new(never, 0).next_ns(), None);
        let mut patient = Pulse::new(Keepalive { timeout_ms: i32::MAX, ..flags() }, 0);
        assert_eq!(patient.beat(100 * MS, codec_state(true)), PulseAction::Ping);
        assert_eq!(patient.beat(1000 * MS, codec_state(true)), PulseAction::Nothing, "for ever");
        let hasty = Keepalive { time_ms: -5, timeout_ms: -5, ..flags() };
        assert_eq!(next_ms(&Pulse::new(hasty, 0)), Some(1));
    }

    #[test]
    fn an_old_connection_is_wound_down_and_then_ended() {
        let flags = Keepalive { time_ms: i32::MAX, age_max_ms: 1000, age_grace_ms: 50, ..flags() };
        let mut pulse = Pulse::new(flags, 7 * MS);
        let at = pulse.next_ns().unwrap();
        assert!((907 * MS..=1107 * MS).contains(&at), "{at}");
        assert_eq!(pulse.beat(at - 1, codec_state(true)), PulseAction::Nothing);
        assert_eq!(pulse.beat(at, codec_state(true)), PulseAction::Aged);
        assert_eq!(pulse.next_ns(), Some(at + 50 * MS));
        assert_eq!(pulse.beat(at + 50 * MS, codec_state(true)), PulseAction::Over);
        let mut endless = Pulse::new(Keepalive { age_grace_ms: 0, ..flags }, 0);
        let at = endless.next_ns().unwrap();
        assert_eq!(endless.beat(at, codec_state(true)), PulseAction::Aged);
        assert_eq!(endless.next_ns(), None);
        let mut silent = Pulse::new(flags, 0);
        let at = silent.next_ns().unwrap();
        assert_eq!(silent.beat(at, CodecState { established: false, ..codec_state(false) }), PulseAction::Over);
        let spread: std::collections::BTreeSet<u64> = (0..100).map(|at| jittered(1_000_000, at * 12_345)).collect();
        assert!(spread.len() > 30 && spread.iter().all(|span| (900_000..=1_100_000).contains(span)), "{spread:?}");
    }

    /// Pings at these milliseconds, and how many of them stand behind the last data at each; the strike-out.
    #[test]
    fn pings_that_come_too_often_are_counted() {
        let run = |flags: Keepalive, has_calls: bool, pings: &[(u64, u32)]| {
            let mut pulse = Pulse::new(flags, 0);
            let mut counters = Counters::default();
            pings.iter().position(|&(at_ms, since_data)| {
                counters.pings_received += 1;
                counters.pings_since_data = since_data;
                pulse.strikes_out(at_ms * MS, CodecState { counters, ..codec_state(has_calls) })
            })
        };
        let strict = Keepalive { ping_interval_min_ms: 100, ..Keepalive::default() };
        let fast = [(0, 1), (10, 2), (20, 3), (30, 4), (40, 5)];
        assert_eq!(run(strict, true, &fast), Some(3), "the first is free, two strikes are, the third is out");
        assert_eq!(run(strict, true, &[(0, 1), (100, 2), (200, 3), (300, 4), (400, 5)]), None);
        assert_eq!(run(strict, true, &[(0, 1), (10, 2), (20, 3), (30, 1), (40, 2), (50, 3)]), None, "data forgives");
        assert_eq!(run(Keepalive { ping_strikes_max: 0, ..strict }, true, &fast), None);
        assert_eq!(run(Keepalive { ping_strikes_max: 1, ..strict }, true, &fast), Some(2));
        let slow = [(0, 1), (1000, 2), (2000, 3), (3000, 4)];
        assert_eq!(run(strict, false, &slow), Some(3), "without calls they must lie hours apart");
        assert_eq!(run(Keepalive { without_calls: true, ..strict }, false, &slow), None);
        let never = Keepalive { ping_interval_min_ms: i32::MAX, ..strict };
        assert_eq!(run(never, true, &[(0, 1), (1 << 40, 2), (1 << 41, 3), (1 << 42, 4)]), Some(3));
        // Many at once.
        let mut pulse = Pulse::new(strict, 0);
        let counters = Counters { pings_received: 4, pings_since_data: 4, ..Counters::default() };
        assert!(pulse.strikes_out(0, CodecState { counters, ..codec_state(true) }));
    }
}
