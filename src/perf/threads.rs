//! The threads that send and receive, as the thread that waits for them sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::PerfError;
use super::connector::{Connector, Socket};
use super::driver::{Driver, OPEN_STREAMS_MAX, Settings};
use super::exchange::RequestSet;
use super::plan::{Load, Plan, Protocol};
use super::schedule::{Schedule, Share};
use super::window_totals::WindowTotals;
use super::work::Picker;
use nereid_client::Security;
use nereid_memory::Pool;
use nereid_queue::Spin;
use nereid_shard::engine::Limits;
use nereid_shard::probe::{EngineRequest, Probe};
use nereid_shard::{EngineKind, MailOf, Mailbox, Running, mailbox};

/// Bytes of each thread that may be on their way.
const POOL_BYTES: usize = 4 << 30;
const TIMERS_MAX: usize = 16;
/// Connections of one thread.
pub const CONNECTIONS_MAX: usize = 16_384;

/// What a driver is ordered to do.
pub enum Order {
    /// Another connection, or why there is none.
    Connection(Result<Socket, String>),
    Begin(Box<Assignment>),
    /// Begin nothing more, and report when nothing is in flight.
    Rest,
    /// Hand out what was counted; count on in this one.
    Mark(Box<WindowTotals>),
    Stop,
}

/// What one thread has to do until its next order.
pub struct Assignment {
    pub mode: LoopMode,
    /// Of the threads that have something to do.
    pub share: Share,
    /// Requests that may begin; None has no end.
    pub budget: Option<u64>,
    /// Sequences at a time, if the work has any.
    pub sequences: usize,
    /// Since when records count their times.
    pub point_began_ns: u64,
    pub records_max: usize,
}

/// How requests of a closed or an open loop begin.
pub enum LoopMode {
    /// So many in flight, always.
    Closed(usize),
    Open {
        schedule: Schedule,
        outstanding_max: usize,
    },
}

/// What a driver reports.
pub enum Report {
    Totals(Box<WindowTotals>),
    Resting,
    /// The server cannot be reached any more.
    Away(String),
}

/// What a driver has done so far, for any thread to read.
#[derive(Debug, Default)]
pub struct Counters {
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    pub unsustainable: AtomicBool,
    /// It is, and the thread is to blame; set before.
    pub is_outrun: AtomicBool,
}

struct Hand {
    mailbox: Mailbox<MailOf<Driver>>,
    counters: Arc<Counters>,
    running: Option<Running>,
    connections: usize,
}

/// All threads of a run. Dropping it stops them.
pub struct Threads {
    hands: Vec<Hand>,
    reports: Receiver<(usize, Report)>,
    connector: Connector,
    engine: EngineKind,
}

/// A sum over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub completed: u64,
    pub failed: u64,
    pub unsustainable: bool,
    pub is_outrun: bool,
}

impl Counts {
    pub fn ended(&self) -> u64 {
        self.completed + self.failed
    }
}

impl Threads {
    pub fn start(plan: &Plan, request_set: &Arc<RequestSet>, security: Option<Security>) -> Result<Threads, PerfError> {
        let engine = match plan.client.engine {
            Some(engine) => Ok(engine),
            None => nereid_shard::probe::choose(EngineRequest::Auto, || Probe::begin().outcome())
                .map(|choice| choice.engine),
        };
        let engine = engine.map_err(|error| PerfError::Plan(error.to_string()))?;
        let connector = Connector::start(&plan.target)?;
        let (sender, reports) = mpsc::channel();
        let mut threads = Threads { hands: Vec::new(), reports, connector, engine };
        for thread in 0..plan.client.threads.max(1) {
            let hand = threads.start_hand(plan, request_set, security.clone(), thread, engine, sender.clone())?;
            threads.hands.push(hand);
        }
        Ok(threads)
    }

    fn start_hand(
        &self,
        plan: &Plan,
        request_set: &Arc<RequestSet>,
        security: Option<Security>,
        thread: usize,
        engine: EngineKind,
        reports: Sender<(usize, Report)>,
    ) -> Result<Hand, PerfError> {
        let system = |source| PerfError::System { what: "a thread of the load".to_owned(), source };
        let (mailbox, inbox) = mailbox::<MailOf<Driver>>().map_err(system)?;
        let counters = Arc::new(Counters::default());
        let cpu = match plan.client.pin_to.len() {
            0 => None,
            cores => plan.client.pin_to.get(thread % cores).copied(),
        };
        let options = nereid_shard::Options {
            name: format!("perf-{thread}"),
            engine,
            host: nereid_shard::Host::Glommio,
            cpu,
            spin: spin(),
            limits: Limits { connections: CONNECTIONS_MAX, ..Limits::default() },
            timers_max: TIMERS_MAX,
            pool: Pool::new(POOL_BYTES),
        };
        let share = Share { thread, threads: plan.client.threads.max(1) };
        let picker = Picker::new(&plan.work, share, plan.rules.seed);
        let settings = Settings {
            thread,
            request_set: Arc::clone(request_set),
            security,
            request_timeout: plan.client.request_timeout,
            one_each: one_each(plan),
            grow_to: grows_to(plan),
            ring_spin: plan.client.ring_spin,
            counters: Arc::clone(&counters),
            reports,
            connect: Box::new(self.connector.request(mailbox.clone())),
        };
        let running = nereid_shard::start(options, inbox, move |core| Driver::new(settings, picker, core))
            .map_err(|error| system(std::io::Error::other(error.to_string())))?;
        Ok(Hand { mailbox, counters, running: Some(running), connections: 0 })
    }

    pub fn number(&self) -> usize {
        self.hands.len()
    }

    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Makes sure that there are so many connections in all.
    pub fn connect(&mut self, connections: usize) -> Result<(), PerfError> {
        let threads = self.hands.len();
        for (thread, hand) in self.hands.iter_mut().enumerate() {
            let wanted = part(connections, thread, threads).clamp(1, CONNECTIONS_MAX);
            while hand.connections < wanted {
                let socket = self.connector.connect()?;
                hand.mailbox.post(Order::Connection(Ok(socket)));
                hand.connections += 1;
            }
        }
        Ok(())
    }

    pub fn begin(&self, mut assignment: impl FnMut(usize) -> Assignment) {
        for (thread, hand) in self.hands.iter().enumerate() {
            hand.counters.is_outrun.store(false, Ordering::Relaxed);
            hand.counters.unsustainable.store(false, Ordering::Relaxed);
            hand.mailbox.post(Order::Begin(Box::new(assignment(thread))));
        }
    }

    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for Hand { counters, .. } in &self.hands {
            sum.completed += counters.completed.load(Ordering::Relaxed);
            sum.failed += counters.failed.load(Ordering::Relaxed);
            sum.unsustainable |= counters.unsustainable.load(Ordering::Acquire);
            sum.is_outrun |= counters.is_outrun.load(Ordering::Relaxed);
        }
        sum
    }

    /// Waits at most so long for something that ends the run.
    pub fn watch(&self, patience: Duration) -> Result<(), String> {
        match self.reports.recv_timeout(patience) {
            Ok((_, Report::Away(reason))) => Err(reason),
            Ok(_) => Ok(()),
            Err(RecvTimeoutError::Timeout) => self.check(),
            Err(RecvTimeoutError::Disconnected) => Err("the load has stopped".to_owned()),
        }
    }

    fn check(&self) -> Result<(), String> {
        let dead = |hand: &Hand| hand.running.as_ref().is_none_or(Running::is_finished);
        if self.hands.iter().any(dead) { Err("a thread of the load has ended".to_owned()) } else { Ok(()) }
    }

    /// What was counted since the last mark, all threads together.
    pub fn mark(&self, records_max: usize) -> Result<WindowTotals, String> {
        self.hands.iter().for_each(|hand| hand.mailbox.post(Order::Mark(Box::default())));
        let mut sum = WindowTotals::default();
        let mut missing = self.hands.len();
        while missing > 0 {
            match self.reports.recv_timeout(Duration::from_millis(100)) {
                Ok((thread, Report::Totals(mut totals))) => {
                    sum.add_thread(thread, &mut totals, records_max);
                    missing -= 1;
                }
                Ok((_, Report::Away(reason))) => return Err(reason),
                Ok((_, Report::Resting)) => {}
                Err(_) => self.check()?,
            }
        }
        Ok(sum)
    }

    /// Waits for what is in flight. `meanwhile` is called now and then, and decides whether to go on waiting.
    pub fn rest(&self, mut meanwhile: impl FnMut() -> bool) -> Result<(), String> {
        self.hands.iter().for_each(|hand| hand.mailbox.post(Order::Rest));
        let mut missing = self.hands.len();
        while missing > 0 && meanwhile() {
            match self.reports.recv_timeout(Duration::from_millis(20)) {
                Ok((_, Report::Resting)) => missing -= 1,
                Ok((_, Report::Away(reason))) => return Err(reason),
                Ok((_, Report::Totals(_))) => {}
                Err(_) => self.check()?,
            }
        }
        Ok(())
    }
}

/// Part `n` of a whole that is shared as evenly as whole numbers are.
pub fn part(whole: usize, n: usize, parts: usize) -> usize {
    let parts = parts.max(1);
    whole / parts + usize::from(n < whole % parts)
}

/// Threads of the load sleep when they are idle: spinning would take time from the server, and hide in the figures
/// whether the client was the limit.
pub fn spin() -> Spin {
    Spin::default()
}

/// Connections of each thread that requests are multiplexed over, where the plan sets none. A thread polls its rings:
/// one has room for its calls.
pub fn connections_a_thread(plan: &Plan) -> usize {
    if plan.target.protocol == Protocol::Ipc { 1 } else { 4 }
}

/// Connections that keep `most` requests in flight, where the plan sets none.
pub fn connections_for(plan: &Plan, most: usize) -> usize {
    let usual = most.min(connections_a_thread(plan) * plan.client.threads.max(1));
    match plan.target.protocol {
        _ if one_each(plan) => most,
        Protocol::Ipc => usual.max(most.div_ceil(OPEN_STREAMS_MAX)),
        _ => usual,
    }
}

/// Whether a connection carries one request at a time. HTTP/1.1 has no other way that clients use.
pub fn one_each(plan: &Plan) -> bool {
    plan.target.protocol == Protocol::Http || plan.client.unique_connections
}

/// Connections that a thread may open by itself, when an open loop finds none free.
fn grows_to(plan: &Plan) -> usize {
    let grows = plan.client.connections.is_none() && !matches!(plan.load, Load::Concurrency(_));
    let most = CONNECTIONS_MAX.min(plan.client.outstanding_max / plan.client.threads.max(1)).min(GROWN_MAX);
    if grows && one_each(plan) { most } else { 0 }
}

/// More connections than this only show that the server cannot keep up.
const GROWN_MAX: usize = 1024;

impl Drop for Threads {
    fn drop(&mut self) {
        self.hands.iter().for_each(|hand| hand.mailbox.post(Order::Stop));
        for hand in &mut self.hands {
            if let Some(running) = hand.running.take() {
                // A thread that panicked has reported it.
                let _ = running.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_add_up() {
        for whole in 0..20 {
            for parts in 1..6 {
                let all: Vec<usize> = (0..parts).map(|n| part(whole, n, parts)).collect();
                assert_eq!(all.iter().sum::<usize>(), whole);
                assert!(all.iter().max().unwrap() - all.iter().min().unwrap() <= 1);
            }
        }
    }
}
