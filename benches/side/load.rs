//! The client: one thread that keeps every connection's requests in flight and counts the answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::line::{Line, Peer};

/// Connections settle and answers are learnt before anything counts.
const WARM_UP: Duration = Duration::from_millis(300);
/// The time without an answer after which a server has failed.
const SILENCE: Duration = Duration::from_secs(60);
/// Latencies beyond a minute count as a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
const EVENTS: usize = 128;
const RECEIVE_BYTES: usize = 256 * 1024;

/// The answers of the measured time.
pub struct Tally {
    /// Requests may begin.
    pub open: bool,
    recording: bool,
    pub requests: u64,
    /// Of the whole run: an error while warming up is one too.
    pub errors: u64,
    pub first_error: Option<String>,
    pub latency_ns: Histogram<u64>,
    /// Answers of the whole run.
    answers: u64,
}

impl Tally {
    fn new() -> Result<Tally, String> {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).map_err(|error| error.to_string())?;
        Ok(Tally { open: true, recording: false, requests: 0, errors: 0, first_error: None, latency_ns, answers: 0 })
    }

    /// A request that was sent at `sent_ns` has its whole answer.
    pub fn answered(&mut self, sent_ns: u64, now_ns: u64, outcome: Result<(), String>) {
        self.answers += 1;
        match outcome {
            Ok(()) if self.recording => {
                self.requests += 1;
                self.latency_ns.saturating_record(now_ns.saturating_sub(sent_ns).max(1));
            }
            Ok(()) => {}
            Err(error) => self.failed(error),
        }
    }

    pub fn failed(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }
}

pub struct Outcome {
    pub tally: Tally,
    pub measured: Duration,
}

/// Loads the peers' server: warms up, then calls `mark` at the begin and at the end of `measured`, then waits for the
/// requests in flight. An error only if nothing could be measured; failures of single requests are in the tally.
pub fn run(
    peers: Vec<(SocketAddr, Box<dyn Peer>)>,
    measured: Duration,
    mut mark: impl FnMut() -> Result<(), String>,
) -> Result<Outcome, String> {
    let mut load = Load::connect(peers)?;
    let outcome = load.measure(measured, &mut mark);
    // A connection that breaks often got the reason in an answer before.
    let tally = load.tally;
    match outcome {
        Ok(measured) => Ok(Outcome { tally, measured }),
        Err(error) => Err(tally.first_error.map_or(error.clone(), |first| format!("{error}; first error: {first}"))),
    }
}

/// The connections of a client, between runs of a load.
pub struct Load {
    epoll: rustix::fd::OwnedFd,
    lines: Vec<Line>,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    tally: Tally,
    began: Instant,
}

impl Load {
    pub fn connect(peers: Vec<(SocketAddr, Box<dyn Peer>)>) -> Result<Load, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| format!("epoll: {error}"))?;
        let mut load = Load {
            epoll,
            lines: Vec::with_capacity(peers.len()),
            events: Vec::with_capacity(EVENTS),
            buffer: vec![0; RECEIVE_BYTES],
            tally: Tally::new()?,
            began: Instant::now(),
        };
        for (at, (address, peer)) in peers.into_iter().enumerate() {
            let mut line = Line::connect(address, peer, &load.epoll, at as u64)?;
            line.begin(load.began.elapsed().as_nanos() as u64, &mut load.tally)?;
            line.flush(&load.epoll)?;
            load.lines.push(line);
        }
        Ok(load)
    }

    /// Goes on until `count` more requests are answered, and returns how many were. Every slot has a request in flight
    /// before and after, so that as many were sent.
    pub fn answer(&mut self, count: u64) -> Result<u64, String> {
        let (before, mut seen, mut last_answer) = (self.tally.answers, self.tally.answers, Instant::now());
        while self.tally.answers - before < count {
            self.turn(Duration::from_secs(1))?;
            if self.tally.answers != seen {
                (seen, last_answer) = (self.tally.answers, Instant::now());
            } else if last_answer.elapsed() > SILENCE {
                return Err(self.silence());
            }
        }
        match &self.tally.first_error {
            Some(error) => Err(error.clone()),
            None => Ok(self.tally.answers - before),
        }
    }

    fn measure(&mut self, time: Duration, mark: &mut impl FnMut() -> Result<(), String>) -> Result<Duration, String> {
        self.go_on_for(WARM_UP)?;
        if self.tally.answers == 0 {
            self.wait_for_first_answer()?;
        }
        mark()?;
        self.tally.recording = true;
        let began = Instant::now();
        self.go_on_for(time)?;
        self.tally.recording = false;
        let measured = began.elapsed();
        mark()?;
        self.come_home()?;
        Ok(measured)
    }

    fn go_on_for(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        let (mut answers, mut last_answer) = (self.tally.answers, Instant::now());
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if self.tally.answers != answers {
                (answers, last_answer) = (self.tally.answers, now);
            } else if now - last_answer > SILENCE {
                return Err(self.silence());
            }
            self.turn(end.min(now + Duration::from_secs(1)) - now)?;
        }
    }

    fn wait_for_first_answer(&mut self) -> Result<(), String> {
        let end = Instant::now() + SILENCE;
        while self.tally.answers == 0 {
            if Instant::now() >= end {
                return Err(self.silence());
            }
            self.turn(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Sends no further requests and waits for the last answers.
    fn come_home(&mut self) -> Result<(), String> {
        self.tally.open = false;
        let end = Instant::now() + SILENCE;
        for line in &mut self.lines {
            line.begin(self.began.elapsed().as_nanos() as u64, &mut self.tally)?;
            line.flush(&self.epoll)?;
        }
        while self.lines.iter().any(|line| !line.is_idle()) {
            if Instant::now() >= end {
                let error = self.silence();
                self.tally.failed(error);
                return Ok(());
            }
            self.turn(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Waits for sockets at most for `patience` and serves those that are ready.
    fn turn(&mut self, patience: Duration) -> Result<(), String> {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("epoll: {error}")),
        }
        for event in &self.events {
            let Some(line) = self.lines.get_mut(event.data.u64() as usize) else { continue };
            let ready = event.flags;
            if ready.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                line.receive(&mut self.buffer, self.began, &mut self.tally)?;
            }
            line.begin(self.began.elapsed().as_nanos() as u64, &mut self.tally)?;
            line.flush(&self.epoll)?;
        }
        Ok(())
    }

    fn silence(&self) -> String {
        let waiting = self.lines.iter().filter(|line| !line.is_idle()).count();
        format!("no answer for {} s on {waiting} of {} connections", SILENCE.as_secs(), self.lines.len())
    }
}
