//! Loads on a clock that is moved by hand, over an engine that is late and disorderly.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};

use super::*;
use crate::connector::Socket;
use crate::exchange::ring_tests::{self, Peer};
use crate::plan::tests::plan;
use crate::plan::{Endpoint, Protocol, Spacing, Target, Template};
use crate::request::Prepared;
use crate::schedule::Share;
use nereid_memory::Pool;
use nereid_shard::clock::{Clock, Manual, Monotonic};
use nereid_shard::engine::{Epoll, Fake, Limits};
use nereid_shard::{MailOf, Mailbox, Shard, mailbox};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const MS: u64 = 1_000_000;
const BEGAN_NS: u64 = 5 * MS;
const ALONE: Share = Share { thread: 0, threads: 1 };

/// A driver with one connection, and the peer on its other end.
struct Bench {
    shard: Shard<Driver>,
    mailbox: Mailbox<MailOf<Driver>>,
    reports: Receiver<(usize, Report)>,
    clock: Manual,
    peer: UnixStream,
    request_bytes: usize,
    /// Received and not yet answered.
    received: usize,
    partial: usize,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let target = Target { endpoint: Endpoint::Unix("/".into()), tls: None, protocol: Protocol::Http };
        let plan = plan(target);
        let template = Prepared::new(&plan, &Template::default(), None).unwrap();
        let mut request = Vec::new();
        assert!(template.write(&Marks::default(), &mut request).is_none());
        let (sender, reports) = mpsc::channel();
        let settings = Settings {
            thread: 0,
            request_set: Arc::new(RequestSet::new(&plan, vec![template], vec![None])),
            security: None,
            request_timeout: Duration::from_secs(60),
            one_each: true,
            grow_to: 0,
            ring_spin: Duration::ZERO,
            counters: Arc::default(),
            reports: sender,
            connect: Box::new(|| ()),
        };
        let (clock, (mailbox, inbox)) = (Manual::new(BEGAN_NS), mailbox().unwrap());
        let epoll = Epoll::new(Limits::default(), Rc::new(clock.clone()), inbox.waker()).unwrap();
        let engine = Box::new(Fake::new(epoll, seed).with_clock(clock.clone()));
        let mut core = Core::new(engine, Rc::new(clock.clone()), Pool::new(1 << 20), 100);
        let picker = Picker::new(&plan.work, ALONE, 1);
        let driver = Driver::new(settings, picker, &mut core).unwrap();
        let (mine, peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        mailbox.post(Order::Connection(Ok(Socket::plain(mine.into()))));
        let shard = Shard::new(driver, core, inbox);
        Bench { shard, mailbox, reports, clock, peer, request_bytes: request.len(), received: 0, partial: 0 }
    }

    fn begin(&self, mode: LoopMode, budget: Option<u64>) {
        let (share, point_began_ns) = (ALONE, BEGAN_NS);
        let assignment = Assignment { mode, share, budget, sequences: 0, point_began_ns, records_max: 0 };
        self.mailbox.post(Order::Mark(Box::default()));
        self.mailbox.post(Order::Begin(Box::new(assignment)));
    }

    fn since_ns(&self) -> u64 {
        self.clock.now_ns() - BEGAN_NS
    }

    /// One turn, and what came of it on the other side. The clock goes on to the next request that is due, but stands
    /// while one is answered.
    fn turn(&mut self, pausing: bool) {
        let waits = pausing || self.shard.handler.in_flight == 0;
        let goes_on = waits && self.shard.handler.next_deadline_ns().is_some();
        self.shard.turn(goes_on).unwrap();
        let mut buffer = [0; 64 * 1024];
        match self.peer.read(&mut buffer) {
            Ok(n) => {
                self.partial += n;
                self.received += self.partial / self.request_bytes;
                self.partial %= self.request_bytes;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    fn answer(&mut self) {
        for _ in 0..std::mem::take(&mut self.received) {
            self.peer.write_all(ANSWER).unwrap();
        }
    }

    fn ended(&self) -> u64 {
        let counters = &self.shard.handler.settings.counters;
        counters.completed.load(Ordering::Relaxed) + counters.failed.load(Ordering::Relaxed)
    }

    fn totals(&mut self) -> WindowTotals {
        self.mailbox.post(Order::Mark(Box::default()));
        loop {
            self.shard.turn(false).unwrap();
            match self.reports.try_iter().last() {
                Some((0, Report::Totals(totals))) => return *totals,
                Some(_) => panic!("another report"),
                None => {}
            }
        }
    }
}

fn a_thousand_a_second(outstanding_max: usize) -> LoopMode {
    let schedule = Schedule::at_rate(1000.0, Spacing::Constant, ALONE, 0, BEGAN_NS);
    LoopMode::Open { schedule, outstanding_max }
}

#[test]
fn what_was_due_in_a_pause_counts_from_when_it_was_due() {
    for seed in 1..10 {
        let mut bench = Bench::new(seed);
        bench.begin(a_thousand_a_second(1000), Some(200));
        while bench.ended() < 200 {
            // Nobody answers from the 50th millisecond to the 150th.
            let pausing = (50 * MS..150 * MS).contains(&bench.since_ns());
            bench.turn(pausing);
            if !pausing {
                bench.answer();
            }
        }
        let totals = bench.totals();
        assert_eq!((totals.counts.completed, totals.counts.failed, totals.counts.sent), (200, 0, 200));
        // One was on its way and waited, and about a hundred were due behind it on the one connection.
        let beyond = |ns: u64| totals.histograms.latency_ns.count_between(ns, u64::MAX);
        assert!(
            (95..=105).contains(&totals.histograms.latency_ns.max().div_ceil(MS)),
            "{}",
            totals.histograms.latency_ns.max()
        );
        assert!((45..=56).contains(&beyond(50 * MS)), "{}", beyond(50 * MS));
        // The service times alone do not show that.
        assert!(totals.histograms.service_ns.count_between(50 * MS, u64::MAX) <= 2);
        assert!(totals.histograms.send_lag_ns.count_between(50 * MS, u64::MAX) >= 44);
        assert!(!totals.unsustainable);
    }
}

#[test]
fn an_open_loop_ends_where_too_many_are_outstanding() {
    let mut bench = Bench::new(3);
    bench.begin(a_thousand_a_second(5), None);
    let mut before_ns = 0;
    while !bench.shard.handler.settings.counters.unsustainable.load(Ordering::Relaxed) {
        assert!(bench.since_ns() < 20 * MS, "nothing is due behind it any more, so the clock may have gone on");
        before_ns = bench.since_ns();
        bench.turn(true);
    }
    assert!((3 * MS..8 * MS).contains(&before_ns), "{before_ns}");
    while bench.received == 0 {
        bench.turn(false);
    }
    bench.answer();
    while bench.ended() < 1 {
        bench.turn(false);
    }
    let totals = bench.totals();
    assert!(totals.unsustainable && !totals.is_outrun, "the thread slept between requests: the server is to blame");
    assert_eq!((totals.counts.sent, totals.counts.completed), (1, 1), "what waited here was not sent behind the end");
}

#[test]
fn a_schedule_that_no_thread_can_keep_is_not_the_servers_fault() {
    let mut bench = Bench::new(3);
    // A request each nanosecond: too many are due before the thread has its first turn.
    let schedule = Schedule::at_rate(1e9, Spacing::Constant, ALONE, 0, BEGAN_NS);
    bench.begin(LoopMode::Open { schedule, outstanding_max: 2000 }, None);
    bench.clock.advance(5000);
    bench.shard.turn(false).unwrap();
    let counters = &bench.shard.handler.settings.counters;
    assert!(counters.unsustainable.load(Ordering::Relaxed) && counters.is_outrun.load(Ordering::Relaxed));
    let totals = bench.totals();
    assert!(totals.unsustainable && totals.is_outrun);
    assert_eq!((totals.counts.sent, totals.histograms.schedule_lag_ns.len()), (0, 2000));
    assert!((4990..5010).contains(&totals.histograms.schedule_lag_ns.max()), "the first was due 5 usec ago");
    assert_eq!((totals.threads.len(), totals.connections), (1, 1));
}

#[test]
fn a_closed_loop_stays_within_its_bound_and_its_budget() {
    let mut bench = Bench::new(5);
    bench.begin(LoopMode::Closed(3), Some(50));
    while bench.ended() < 50 {
        bench.turn(false);
        assert!(bench.received <= 1, "a connection of HTTP/1.1 has one request in flight");
        bench.answer();
    }
    for _ in 0..20 {
        bench.shard.turn(false).unwrap();
    }
    assert_eq!(bench.received, 0);
    let totals = bench.totals();
    assert_eq!((totals.counts.sent, totals.counts.completed), (50, 50));
    bench.mailbox.post(Order::Rest);
    while !matches!(bench.reports.try_recv(), Ok((0, Report::Resting))) {
        bench.shard.turn(false).unwrap();
    }
    bench.mailbox.post(Order::Stop);
    while !bench.shard.handler.stopped() {
        bench.shard.turn(false).unwrap();
    }
}

#[test]
fn a_lost_connection_fails_what_was_in_flight_and_is_received_for_again() {
    let mut bench = Bench::new(7);
    bench.begin(LoopMode::Closed(1), Some(2));
    while bench.received == 0 {
        bench.turn(false);
    }
    let (mine, other) = UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    drop(std::mem::replace(&mut bench.peer, other));
    bench.received = 0;
    while bench.ended() < 1 {
        bench.shard.turn(false).unwrap();
    }
    assert_eq!(bench.shard.handler.awaited, 1);
    bench.mailbox.post(Order::Connection(Ok(Socket::plain(mine.into()))));
    while bench.ended() < 2 {
        bench.turn(false);
        bench.answer();
    }
    let totals = bench.totals();
    assert_eq!((totals.counts.completed, totals.counts.failed), (1, 1));
    let texts: Vec<_> = totals.errors.counts.keys().map(String::as_str).collect();
    assert_eq!(texts, ["the server closed the connection"]);
    bench.mailbox.post(Order::Connection(Err("nobody".to_owned())));
    while !matches!(bench.reports.try_recv(), Ok((0, Report::Away(_)))) {
        bench.shard.turn(false).unwrap();
    }
}

/// A driver with one ring, and the server's end of it.
struct RingBench {
    shard: Shard<Driver>,
    mailbox: Mailbox<MailOf<Driver>>,
    reports: Receiver<(usize, Report)>,
    peer: Peer,
    bell: UnixStream,
}

impl RingBench {
    fn new(ring_spin: Duration) -> RingBench {
        let plan = ring_tests::ring_plan();
        let template = Prepared::new(&plan, &Template::default(), None).unwrap();
        let (sender, reports) = mpsc::channel();
        let settings = Settings {
            thread: 0,
            request_set: Arc::new(RequestSet::new(&plan, vec![template], vec![None])),
            security: None,
            request_timeout: Duration::from_secs(60),
            one_each: false,
            grow_to: 0,
            ring_spin,
            counters: Arc::default(),
            reports: sender,
            connect: Box::new(|| ()),
        };
        let (clock, (mailbox, inbox)) = (Rc::new(Monotonic), mailbox().unwrap());
        let engine = Box::new(Epoll::new(Limits::default(), Rc::clone(&clock) as _, inbox.waker()).unwrap());
        let mut core = Core::new(engine, clock, Pool::new(1 << 20), 100);
        let driver = Driver::new(settings, Picker::new(&plan.work, ALONE, 1), &mut core).unwrap();
        let ((end, socket), (peer, bell)) = ring_tests::pair();
        bell.set_nonblocking(true).unwrap();
        mailbox.post(Order::Connection(Ok(Socket { fd: socket.into(), ring: Some(Box::new(end)) })));
        RingBench { shard: Shard::new(driver, core, inbox), mailbox, reports, peer, bell }
    }

    fn begin(&self, most: usize, budget: u64) {
        let (mode, budget) = (LoopMode::Closed(most), Some(budget));
        let assignment = Assignment { mode, share: ALONE, budget, sequences: 0, point_began_ns: 0, records_max: 0 };
        self.mailbox.post(Order::Begin(Box::new(assignment)));
    }

    fn ended(&self) -> u64 {
        let counters = &self.shard.handler.settings.counters;
        counters.completed.load(Ordering::Relaxed) + counters.failed.load(Ordering::Relaxed)
    }

    fn totals(&mut self) -> WindowTotals {
        self.mailbox.post(Order::Mark(Box::default()));
        loop {
            self.shard.turn(false).unwrap();
            if let Some((_, Report::Totals(totals))) = self.reports.try_iter().last() {
                return *totals;
            }
        }
    }
}

#[test]
fn a_ring_has_several_requests_in_flight_and_its_bytes_are_counted() {
    let mut bench = RingBench::new(Duration::ZERO);
    bench.begin(3, 50);
    let mut bytes = 0;
    while bench.ended() < 50 {
        bench.shard.turn(false).unwrap();
        let requests = bench.peer.take();
        assert!(requests.len() <= 3, "{}", requests.len());
        for (call, message) in requests {
            bytes += message.len() as u64 + 5;
            bench.peer.answer(call, b"12345", 100);
        }
    }
    let totals = bench.totals();
    assert_eq!((totals.counts.sent, totals.counts.completed, totals.connections), (50, 50, 1));
    assert_eq!((totals.counts.bytes_sent, totals.counts.bytes_received / 50), (bytes, 10), "without bells");
    assert_eq!((totals.histograms.latency_ns.len(), totals.threads[0].spun_ns), (50, 0));
}

#[test]
fn a_bell_ends_the_sleep_of_a_ring() {
    let mut bench = RingBench::new(Duration::ZERO);
    bench.begin(1, 2);
    for _ in 0..2 {
        let call = loop {
            bench.shard.turn(false).unwrap();
            if let Some((call, _)) = bench.peer.take().pop() {
                break call;
            }
        };
        assert!(bench.shard.handler.prepare_park(), "nothing has come");
        bench.peer.answer(call, b"", 100);
        assert!(bench.peer.end.is_bell_due() && !bench.shard.handler.prepare_park());
        let ended = bench.ended();
        bench.bell.write_all(b"\x01").unwrap();
        while bench.ended() == ended {
            bench.shard.turn(true).unwrap();
        }
    }
}

#[test]
fn polling_before_a_sleep_is_counted_apart_from_work() {
    let mut bench = RingBench::new(Duration::from_millis(2));
    bench.begin(1, 1);
    let call = loop {
        bench.shard.turn(false).unwrap();
        if let Some((call, _)) = bench.peer.take().pop() {
            break call;
        }
    };
    assert!(bench.shard.handler.prepare_park(), "nothing comes while it polls");
    bench.peer.answer(call, b"", 100);
    assert!(!bench.shard.handler.prepare_park(), "it finds the answer");
    while bench.ended() == 0 {
        bench.shard.turn(false).unwrap();
    }
    let usage = bench.totals().threads[0];
    assert!(usage.spun_ns > 0 && usage.spun_ns <= usage.cpu_ns, "{usage:?}");
    assert!(bench.shard.handler.prepare_park());
    assert_eq!(bench.totals().threads[0].spun_ns, 0, "no answer is due");
}

#[test]
fn a_server_that_leaves_rings_says_why() {
    let mut bench = RingBench::new(Duration::ZERO);
    bench.begin(1, 5);
    while bench.peer.take().is_empty() {
        bench.shard.turn(false).unwrap();
    }
    let farewell = nereid_ipc::encode::status(0, 3, "a rule", [].into_iter(), 100);
    assert!(bench.peer.end.push(nereid_ipc::from_server::STATUS, &farewell).unwrap());
    bench.bell.shutdown(std::net::Shutdown::Both).unwrap();
    while bench.ended() < 1 {
        bench.shard.turn(false).unwrap();
    }
    assert_eq!(bench.shard.handler.awaited, 1, "another ring was requested");
    let totals = bench.totals();
    let texts: Vec<_> = totals.errors.counts.keys().map(String::as_str).collect();
    assert_eq!(texts, ["the server ended the connection: a rule"]);
}
