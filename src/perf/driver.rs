//! What runs on a thread of the load: begins requests when they may or must begin, and counts what becomes of them.
//!
//! A turn takes in all that has come, begins all that is due, and then sends once for each connection, so that requests
//! which are due together share their system calls. In an open loop a request that finds no free place waits here, and
//! the time of its waiting counts: it was due.

mod connections;
mod rings;
mod schedule_pace;
mod thread_clock;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::connection::Connection;
use super::exchange::{Finished, Flight, NotBegun, Outcomes, RequestSet};
use super::generator_limit::ThreadUsage;
use super::measurement::Record;
use super::request::Marks;
use super::schedule::Schedule;
use super::threads::{Assignment, Counters, LoopMode, Order, Report};
use super::window_totals::WindowTotals;
use super::work::{Pick, Picker};
use nereid_client::Security;
use nereid_memory::{Key, Slab, Slice};
use nereid_queue::NoActor;
use nereid_shard::engine::{Event, Received};
use nereid_shard::{Core, Handler};
use schedule_pace::SchedulePace;
use thread_clock::ThreadClock;

pub use connections::OPEN_STREAMS_MAX;

const SECOND_NS: u64 = 1_000_000_000;
/// A request that leaves so much later than it was due, with room for it, shows that the client is too slow.
const LATE_NS: u64 = 1_000_000;
/// Seconds that a server may take to end streams.
const PARTING_S: u32 = 1;

/// What a driver is made of.
pub struct Settings {
    pub thread: usize,
    pub request_set: Arc<RequestSet>,
    pub security: Option<Security>,
    pub request_timeout: Duration,
    /// A connection carries one request at a time.
    pub one_each: bool,
    /// Connections that it may open by itself.
    pub grow_to: usize,
    /// How long it polls its rings before it sleeps, while answers are due.
    pub ring_spin: Duration,
    pub counters: Arc<Counters>,
    pub reports: Sender<(usize, Report)>,
    pub connect: Box<dyn Fn() + Send>,
}

enum State {
    Resting { is_reported: bool },
    Closed { most: usize },
    Open { schedule: Schedule, outstanding_max: usize },
    Stopping { seconds: u32 },
}

pub struct Driver {
    settings: Settings,
    state: State,
    connections: Slab<Connection>,
    /// Those of them over rings, which are polled.
    rings: Vec<Key>,
    /// CPU time of polling before sleeps, since the last mark.
    spun_ns: u64,
    /// A place for each request that may begin now; the longest free first.
    free: VecDeque<Key>,
    dirty: Vec<Key>,
    /// Connections that were requested.
    awaited: usize,
    /// Due and not begun, with their times; of an open loop.
    backlog: VecDeque<u64>,
    /// Picked, but their connection took no more.
    returned: VecDeque<Flight>,
    in_flight: usize,
    budget: Option<u64>,
    picker: Picker,
    totals: Box<WindowTotals>,
    clock: ThreadClock,
    pace: SchedulePace,
    point_began_ns: u64,
    records_max: usize,
    outcomes: Outcomes,
    /// Empty vectors that sends brought back.
    spare: Vec<Vec<Slice>>,
}

impl Driver {
    pub fn new(settings: Settings, picker: Picker, core: &mut Core<()>) -> io::Result<Driver> {
        core.timers.start(core.now_ns() + SECOND_NS, ()).map_err(io::Error::other)?;
        // Sleeps last as long as requested: the kernel adds 50 µs otherwise, and requests leave late.
        let slack = format!("/proc/{}/timerslack_ns", rustix::thread::gettid().as_raw_nonzero());
        let _ = std::fs::write(slack, "1000");
        Ok(Driver {
            settings,
            state: State::Resting { is_reported: true },
            connections: Slab::new(super::threads::CONNECTIONS_MAX),
            rings: Vec::new(),
            spun_ns: 0,
            free: VecDeque::new(),
            dirty: Vec::new(),
            awaited: 0,
            backlog: VecDeque::new(),
            returned: VecDeque::new(),
            in_flight: 0,
            budget: None,
            picker,
            totals: Box::default(),
            clock: ThreadClock::of_this_thread(),
            pace: SchedulePace::default(),
            point_began_ns: 0,
            records_max: 0,
            outcomes: Outcomes::default(),
            spare: Vec::new(),
        })
    }

    fn report(&self, report: Report) {
        // Who does not listen any more is about to stop this thread.
        let _ = self.settings.reports.send((self.settings.thread, report));
    }

    fn begin_load(&mut self, assignment: Assignment) {
        let Assignment { mode, share, budget, sequences, point_began_ns, records_max } = assignment;
        (self.budget, self.point_began_ns, self.records_max) = (budget, point_began_ns, records_max);
        self.picker.begin(sequences, share);
        self.pace = SchedulePace::default();
        let places = match &mode {
            LoopMode::Closed(most) => *most,
            LoopMode::Open { outstanding_max, .. } => *outstanding_max,
        };
        self.state = match mode {
            LoopMode::Closed(most) => State::Closed { most },
            LoopMode::Open { schedule, outstanding_max } => State::Open { schedule, outstanding_max },
        };
        self.share_places(places);
    }

    /// Counts on in a new window.
    fn mark(&mut self, mut next: Box<WindowTotals>, now_ns: u64) {
        next.began_ns = now_ns;
        let mut totals = std::mem::replace(&mut self.totals, next);
        totals.counts.sequences = self.picker.take_ended();
        totals.connections = self.connections.len();
        totals.end(now_ns);
        let spun_ns = std::mem::take(&mut self.spun_ns);
        totals.threads = vec![ThreadUsage { spun_ns, ..self.clock.lap(totals.wall_ns()) }];
        self.report(Report::Totals(totals));
    }

    /// Begins what may begin now.
    fn pump(&mut self, now_ns: u64) {
        match &self.state {
            State::Closed { .. } => self.pump_closed(now_ns),
            State::Open { .. } => self.pump_open(now_ns),
            State::Resting { is_reported } => {
                let is_reported = *is_reported;
                self.pump_rest(now_ns, is_reported);
            }
            State::Stopping { .. } => {}
        }
    }

    fn pump_closed(&mut self, now_ns: u64) {
        let State::Closed { most } = self.state else { return };
        while self.in_flight < most && !self.free.is_empty() {
            if let Some(flight) = self.returned.pop_front() {
                self.launch(flight, now_ns);
                continue;
            }
            if self.budget == Some(0) {
                return;
            }
            let Some(pick) = self.picker.pick() else { return };
            self.spend();
            self.launch_pick(pick, now_ns, now_ns);
        }
    }

    fn pump_open(&mut self, now_ns: u64) {
        let State::Open { schedule, outstanding_max } = &mut self.state else { return };
        let outstanding_max = *outstanding_max;
        if self.budget != Some(0) {
            self.pace.turn_began(now_ns, self.in_flight + self.backlog.len() + self.returned.len());
        }
        while schedule.next_ns() <= now_ns && self.budget != Some(0) {
            if self.in_flight + self.backlog.len() + self.returned.len() >= outstanding_max {
                // More than this would only be kept here: the server does not keep up, or this thread does not.
                let counters = &self.settings.counters;
                let is_outrun = self.pace.is_outrun(now_ns, outstanding_max);
                (self.totals.unsustainable, self.totals.is_outrun) = (true, is_outrun);
                counters.is_outrun.fetch_or(self.totals.is_outrun, Ordering::Relaxed);
                counters.unsustainable.store(true, Ordering::Release);
                self.budget = Some(0);
                self.backlog.clear();
                return;
            }
            let due_ns = schedule.next_ns();
            self.pace.took_up(due_ns);
            self.totals.histograms.schedule_lag_ns.saturating_record((now_ns - due_ns).max(1));
            if self.backlog.is_empty() && !self.free.is_empty() && now_ns - due_ns > LATE_NS {
                self.totals.late += 1;
            }
            self.backlog.push_back(due_ns);
            schedule.advance();
            if let Some(budget) = &mut self.budget {
                *budget = budget.saturating_sub(1);
            }
        }
        while !self.free.is_empty() {
            if let Some(flight) = self.returned.pop_front() {
                self.launch(flight, now_ns);
                continue;
            }
            let Some(due_ns) = self.backlog.front().copied() else { return };
            let Some(pick) = self.picker.pick() else { return };
            self.backlog.pop_front();
            self.launch_pick(pick, due_ns, now_ns);
        }
        let waiting = self.backlog.len() + self.returned.len();
        let connections = self.connections.len() + self.awaited;
        if waiting > self.awaited && connections < self.settings.grow_to {
            self.ask_for_line();
        }
    }

    /// Sequences are brought to their end, so that the server keeps no place for them.
    fn pump_rest(&mut self, now_ns: u64, is_reported: bool) {
        while !self.free.is_empty() {
            if let Some(flight) = self.returned.pop_front() {
                self.launch(flight, now_ns);
                continue;
            }
            let Some(pick) = self.ending_pick() else { break };
            self.launch_pick(pick, now_ns, now_ns);
        }
        if !is_reported && self.in_flight == 0 && self.returned.is_empty() && self.picker.open() == 0 {
            self.state = State::Resting { is_reported: true };
            self.report(Report::Resting);
        }
    }

    fn ending_pick(&mut self) -> Option<Pick> {
        if self.picker.open() == 0 { None } else { self.picker.pick() }
    }

    fn spend(&mut self) {
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
    }

    fn launch_pick(&mut self, pick: Pick, due_ns: u64, now_ns: u64) {
        let recorded = self.totals.records.len() < self.records_max;
        let flight = Flight {
            due_ns,
            template: pick.template,
            sequence: pick.sequence.map(|(place, _)| place),
            marks: Marks { id: None, sequence: pick.sequence.map(|(_, mark)| mark) },
            times_ns: recorded.then(Vec::new),
            ..Flight::default()
        };
        self.launch(flight, now_ns);
    }

    fn launch(&mut self, mut flight: Flight, now_ns: u64) {
        flight.sent_ns = now_ns;
        let Some(key) = self.free.pop_front() else { return self.returned.push_back(flight) };
        let Some(connection) = self.connections.get_mut(key) else { return self.returned.push_back(flight) };
        let due_ns = flight.due_ns;
        match connection.begin(flight) {
            Ok(()) => {
                self.in_flight += 1;
                self.pace.launched();
                self.totals.counts.sent += 1;
                self.totals.histograms.send_lag_ns.saturating_record(now_ns.saturating_sub(due_ns).max(1));
                self.touch(key);
            }
            Err(NotBegun::Full(flight)) => {
                connection.withheld += 1;
                self.returned.push_back(flight);
            }
            Err(NotBegun::Over(flight)) => {
                // Its other places are of no use either; the connection is replaced when it is settled.
                self.free.retain(|free| *free != key);
                self.returned.push_back(flight);
                self.touch(key);
            }
        }
    }

    /// Counts what has ended on a connection, and frees its places.
    fn settle(&mut self, key: Key) {
        let mut finished = std::mem::take(&mut self.outcomes.finished);
        let ended = finished.len();
        for finished in finished.drain(..) {
            self.count(finished);
        }
        self.outcomes.finished = finished;
        for ns in self.outcomes.first_ns.drain(..) {
            self.totals.histograms.first_response_ns.saturating_record(ns.max(1));
        }
        for ns in self.outcomes.between_ns.drain(..) {
            self.totals.histograms.between_responses_ns.saturating_record(ns.max(1));
        }
        self.in_flight = self.in_flight.saturating_sub(ended);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if ended > 0 && !connection.closing && !connection.is_over() {
            let back = ended + std::mem::take(&mut connection.withheld);
            let room = connection.capacity.saturating_sub(connection.in_flight());
            self.free.extend(std::iter::repeat_n(key, back.min(room)));
        }
    }

    fn count(&mut self, finished: Finished) {
        let Finished { mut flight, at_ns, outcome } = finished;
        if let (Some(place), Some(mark)) = (flight.sequence, flight.marks.sequence) {
            self.picker.ended(place, mark, outcome.is_ok());
        }
        let totals = &mut self.totals;
        let counters = &self.settings.counters;
        let failed = outcome.is_err();
        totals.last_ns = at_ns;
        match outcome {
            Ok(()) => {
                totals.counts.completed += 1;
                totals.counts.responses += flight.responses;
                totals.histograms.latency_ns.saturating_record(at_ns.saturating_sub(flight.due_ns).max(1));
                totals.histograms.service_ns.saturating_record(at_ns.saturating_sub(flight.sent_ns).max(1));
                totals.completions.count(at_ns.saturating_sub(totals.began_ns));
                if let Some((generation, openai)) = flight.generation.as_ref().zip(self.settings.request_set.openai()) {
                    let totals = totals.generation.get_or_insert_default();
                    totals.count(generation, flight.due_ns, at_ns, &openai.goals);
                }
                counters.completed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                totals.counts.failed += 1;
                totals.errors.count(&error);
                counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.records_max == 0 {
            return;
        }
        match flight.times_ns.take().filter(|_| totals.records.len() < self.records_max) {
            None => totals.records_dropped += 1,
            Some(mut times_ns) => {
                if failed && times_ns.is_empty() {
                    times_ns.push(at_ns);
                }
                let since = |ns: u64| ns.saturating_sub(self.point_began_ns);
                times_ns.iter_mut().for_each(|ns| *ns = since(*ns));
                totals.records.push(Record {
                    due_ns: since(flight.due_ns),
                    sent_ns: since(flight.sent_ns),
                    responses_ns: times_ns,
                    sequence_id: flight.marks.sequence.map(|mark| mark.id),
                    template: flight.template,
                    failed,
                });
            }
        }
    }

    /// When the next request is due.
    fn schedule_ns(&self) -> Option<u64> {
        match &self.state {
            State::Open { schedule, .. } if self.budget != Some(0) => Some(schedule.next_ns()),
            _ => None,
        }
    }

    fn stop(&mut self, core: &mut Core<()>) {
        self.state = State::Stopping { seconds: 0 };
        self.backlog.clear();
        self.returned.clear();
        for key in self.connections.keys() {
            let parts = self
                .connections
                .get_mut(key)
                .is_some_and(|connection| connection.in_flight() == 0 && connection.part());
            if parts {
                self.touch(key);
            } else {
                self.close(key, core);
            }
        }
    }
}

impl Handler for Driver {
    type Mail = Order;
    type Timer = ();
    type Actor = NoActor;

    fn mail(&mut self, order: Order, core: &mut Core<()>) {
        match order {
            Order::Connection(Ok(socket)) => self.add_connection(socket, core),
            Order::Connection(Err(reason)) => {
                self.awaited = self.awaited.saturating_sub(1);
                self.report(Report::Away(reason));
            }
            Order::Begin(assignment) => self.begin_load(*assignment),
            Order::Rest => {
                if !matches!(self.state, State::Stopping { .. }) {
                    self.backlog.clear();
                    self.picker.finish();
                    self.state = State::Resting { is_reported: false };
                }
            }
            Order::Mark(next) => self.mark(next, core.now_ns()),
            Order::Stop => self.stop(core),
        }
    }

    fn event(&mut self, event: Event, core: &mut Core<()>) {
        match event {
            Event::Received { key, received } => self.received(key, received, core),
            Event::Sent { key, result, pieces } => self.sent(key, result, pieces, core),
            Event::Closed { key } => drop(self.connections.remove(key)),
            Event::Woken | Event::Accepted { .. } | Event::AcceptFailed { .. } | Event::ListenerClosed { .. } => {}
        }
    }

    fn timer(&mut self, (): (), core: &mut Core<()>) {
        // One timer has just gone, so there is room for this one.
        let _ = core.timers.start(core.now_ns() + SECOND_NS, ());
        if let State::Stopping { seconds } = &mut self.state {
            *seconds += 1;
            if *seconds > PARTING_S {
                for key in self.connections.keys() {
                    self.close(key, core);
                }
            }
            return;
        }
        self.expire(core);
    }

    fn flush(&mut self, core: &mut Core<()>) {
        let now_ns = self.poll_rings(core);
        self.pump(now_ns);
        // A connection that breaks makes room for requests on others, and there is one less each time.
        while self.send_dirty(core) {
            self.pump(now_ns);
        }
        if let Some(due_ns) = self.next_deadline_ns() {
            self.pace.turn_ended(core.clock().now_ns(), due_ns, !self.free.is_empty());
        }
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.schedule_ns()
    }

    fn prepare_park(&mut self) -> bool {
        self.park_rings()
    }

    fn stopped(&self) -> bool {
        matches!(self.state, State::Stopping { .. }) && self.connections.is_empty()
    }
}

#[cfg(test)]
mod tests;
