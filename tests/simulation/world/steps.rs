//! What clients, workers and the control thread do when it is their turn.

use super::*;
use crate::ledger::{HERE, JOIN, SEQUENCE};

/// Bytes of garbage that a client without manners sends.
const GARBAGE: &[&[u8]] = &[
    b"GET",
    b"POST /v2/models/direct/infer HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{\"inputs\"",
    b"POST /v2/models/direct/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x01\x04\0\0\0\0\0x",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x04\0\0\0\x01\x82",
    b"\0\xFF\0\xFF\0\xFF",
];

impl World {
    pub(super) fn add_client(&mut self) {
        let Weather { vanish_once_in, reset_once_in, cancel_once_in, large_once_in, .. } = self.weather;
        let random = &mut self.random;
        let is_slow = random.once_in(self.weather.slow_once_in);
        let is_rogue = random.once_in(self.weather.rogue_once_in);
        let habits = Habits {
            read_bytes: if is_slow { random.between(10, 2_000) as usize } else { 1 << 20 },
            read_pause_ns: if is_slow { random.between(1, 400) * MS / 10 } else { 0 },
            ahead: random.between(1, 6) as usize,
            requests: random.between(5, 120) as u32,
            pause_ns: random.one_of(&[20, 100, 500]) * US,
            vanish_once_in,
            reset_once_in,
            cancel_once_in,
            large_once_in,
        };
        let is_http = random.once_in(2);
        let protocol = match (is_rogue, is_http) {
            (true, _) => Protocol::Rogue,
            (_, true) => Protocol::Http(Box::default()),
            (_, false) => {
                let is_streaming = random.once_in(3);
                Protocol::Grpc(Box::new(Grpc::new(is_streaming, random)))
            }
        };
        let window = random.one_of(&[2_000, 16_000, 200_000]);
        let listener = if is_http { HTTP } else { GRPC };
        let link = self.network.borrow_mut().connect(listener, window);
        let client = self.clients.len();
        self.of_link.push(client);
        if is_slow || is_rogue {
            let kind = if is_slow { "slow reader" } else { "garbage" };
            ledger::with(|ledger| ledger.faults.count(kind));
        }
        self.clients.push(Client { link, protocol, habits, is_over: false, reads: false });
        let in_ns = self.random.below(200) * US;
        self.at(in_ns, Event::Act(client));
        self.at(20 * MS, Event::Accepted(client));
    }

    /// A client that is over makes room for the next one.
    fn over(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].is_over, true) {
            let is_wanted = ledger::with(|ledger| ledger.sent < self.weather.requests);
            if is_wanted && self.phase == Phase::Traffic {
                self.add_client();
            }
            self.turns_due();
        }
    }

    fn turns_due(&mut self) {
        (0..SHARDS).for_each(|shard| self.wake(shard, 0));
    }

    /// Requests of a client whose connection is over will not be answered.
    fn lose_all(&mut self, client: usize) {
        let numbers: Vec<u32> = match &self.clients[client].protocol {
            Protocol::Http(http) => http.waiting.iter().map(|(number, _)| *number).collect(),
            Protocol::Grpc(grpc) => grpc.waiting().collect(),
            Protocol::Rogue => Vec::new(),
        };
        ledger::with(|ledger| numbers.into_iter().for_each(|number| ledger.lose(number)));
    }

    fn open_requests(&self, client: usize) -> usize {
        match &self.clients[client].protocol {
            Protocol::Http(http) => http.waiting.len(),
            Protocol::Grpc(grpc) => grpc.waiting().count(),
            Protocol::Rogue => 0,
        }
    }

    fn break_connection(&mut self, client: usize, kind: &'static str) {
        let link = self.clients[client].link;
        ledger::with(|ledger| {
            ledger.faults.count(kind);
            ledger.note(|| format!("client {client}: {kind}"));
        });
        self.lose_all(client);
        match kind == "vanished client" {
            // Cancellations may still be on their way.
            true => {
                ledger::with(|ledger| ledger.given_up.clear());
                self.network.borrow_mut().links[link].vanished = true;
            }
            false => self.network.borrow_mut().reset(link),
        }
        self.over(client);
    }

    pub(super) fn act(&mut self, client: usize) {
        let Client { link, habits, is_over, .. } = self.clients[client];
        if is_over {
            return;
        }
        if self.random.once_in(habits.vanish_once_in) {
            return self.break_connection(client, "vanished client");
        }
        if self.random.once_in(habits.reset_once_in) {
            return self.break_connection(client, "reset by the client");
        }
        let mut out = Vec::new();
        let is_enough = ledger::with(|ledger| ledger.sent >= self.weather.requests);
        let World { random, clients, next_number, acknowledged, .. } = self;
        let one = &mut clients[client];
        let mut plan = Plan { random, next_number, acknowledged, habits, is_grpc: false, is_stream: false };
        let is_done = match &mut one.protocol {
            Protocol::Http(http) => {
                let wants = !is_enough && http.sent < habits.requests && !http.closes;
                if wants && http.waiting.len() < habits.ahead {
                    http.send(&mut plan, &mut out);
                }
                !wants && http.waiting.is_empty()
            }
            Protocol::Grpc(grpc) => {
                (plan.is_grpc, plan.is_stream) = (true, grpc.is_streaming());
                let wants = !is_enough && grpc.sent < habits.requests && !grpc.is_going_away();
                if wants && grpc.waiting().count() < habits.ahead {
                    grpc.send(&mut plan);
                }
                if plan.random.once_in(habits.cancel_once_in) {
                    grpc.cancel(plan.random);
                }
                if !wants && grpc.is_idle() {
                    grpc.finish();
                }
                grpc.take_output(&mut out);
                !wants && grpc.is_over()
            }
            Protocol::Rogue => {
                out.extend_from_slice(plan.random.one_of(GARBAGE));
                true
            }
        };
        self.send(link, &out);
        if is_done {
            self.leave(client);
        } else {
            // A client that has nothing to send looks again after a while.
            let pause_ns = if out.is_empty() { 8 * habits.pause_ns } else { habits.pause_ns };
            let pause_ns = 1 + self.random.below(2 * pause_ns);
            self.at(pause_ns, Event::Act(client));
        }
    }

    fn send(&mut self, link: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.network.borrow_mut().links[link].up_flight.extend(bytes);
            let latency_ns = self.random.between(1, 30) * US;
            self.at(latency_ns, Event::Arrive(link));
        }
    }

    /// A client ends its connection, properly or not; some just stay.
    fn leave(&mut self, client: usize) {
        let link = self.clients[client].link;
        match self.random.below(4) {
            0 => self.network.borrow_mut().reset(link),
            1 => {}
            _ => {
                self.network.borrow_mut().links[link].client_shut = true;
                self.at(10 * US, Event::Arrive(link));
            }
        }
        self.over(client);
    }

    pub(super) fn read(&mut self, client: usize) {
        let Client { link, habits, .. } = self.clients[client];
        self.clients[client].reads = false;
        let mut bytes = Vec::new();
        let (is_ended, is_more) = {
            let mut network = self.network.borrow_mut();
            if network.links[link].vanished {
                return;
            }
            network.read(link, habits.read_bytes, &mut bytes);
            let one = &network.links[link];
            (one.down.is_empty() && (one.down_ended || one.reset), !one.down.is_empty())
        };
        if is_more {
            self.clients[client].reads = true;
            self.at(habits.read_pause_ns + US, Event::Read(client));
        }
        if self.clients[client].is_over && self.open_requests(client) == 0 {
            return;
        }
        let mut out = Vec::new();
        match &mut self.clients[client].protocol {
            Protocol::Http(http) => http.receive(&bytes),
            Protocol::Grpc(grpc) => {
                grpc.receive(&bytes);
                grpc.take_output(&mut out);
            }
            Protocol::Rogue => {}
        }
        self.send(link, &out);
        if is_ended {
            self.ended(client);
        }
    }

    /// The server has ended the connection.
    fn ended(&mut self, client: usize) {
        let open = self.open_requests(client);
        let closes = match &self.clients[client].protocol {
            Protocol::Http(http) => http.closes,
            Protocol::Grpc(grpc) => grpc.is_going_away(),
            Protocol::Rogue => true,
        };
        let may_end = closes
            || self.weather.is_tight
            || self.weather.refuse_once_in > 0
            || self.phase != Phase::Traffic
            || self.clients[client].habits.read_pause_ns > 0;
        if open > 0 && !may_end {
            let text = format!("the server ends the connection of client {client} with {open} open requests");
            ledger::with(|ledger| ledger.violate(text));
        }
        self.lose_all(client);
        let link = self.clients[client].link;
        if !self.network.borrow().links[link].closed {
            self.network.borrow_mut().links[link].client_shut = true;
            self.at(10 * US, Event::Arrive(link));
        }
        self.over(client);
    }

    /// A connection that the server has dropped before it registered it.
    pub(super) fn check_accepted(&mut self, client: usize) {
        let link = self.clients[client].link;
        if self.network.borrow_mut().is_refused(link) {
            ledger::with(|ledger| ledger.faults.count("refused connection"));
            self.ended(client);
        }
    }

    pub(super) fn poll_all(&mut self, at: usize) {
        let count = self.generations[at].as_ref().map_or(0, |generation| generation.workers.len());
        (0..count).for_each(|worker| self.poll(at, worker));
    }

    fn poll(&mut self, at: usize, worker: usize) {
        let World { generations, random, .. } = self;
        let Some(generation) = &mut generations[at] else { return };
        generation.poll(worker, || random.one_of(&[5, 20, 100, 1000]) * US);
        let until_ns = match &generation.workers[worker].doing {
            Doing::Sleeping { until_ns } => *until_ns,
            Doing::Executing { until_ns, .. } => Some(*until_ns),
            Doing::Polling => Some(self.now_ns),
            Doing::Gone => return self.retire(),
        };
        if let Some(until_ns) = until_ns {
            self.at(until_ns.saturating_sub(self.now_ns), Event::Work(at, worker));
        }
    }

    pub(super) fn work(&mut self, at: usize, worker: usize) {
        let now_ns = self.now_ns;
        let Some(generation) = &mut self.generations[at] else { return };
        match &generation.workers[worker].doing {
            Doing::Executing { until_ns, .. } if *until_ns <= now_ns => {
                generation.execute(worker);
                self.poll(at, worker);
            }
            Doing::Polling => self.poll(at, worker),
            Doing::Sleeping { until_ns } if until_ns.is_some_and(|until_ns| until_ns <= now_ns) => {
                self.poll(at, worker)
            }
            Doing::Executing { .. } | Doing::Sleeping { .. } | Doing::Gone => {}
        }
    }

    pub(super) fn late(&mut self) {
        while let Some(entry) = self.lates.first_entry().filter(|entry| entry.key().0 <= self.now_ns) {
            models::go_on(entry.remove());
        }
    }

    /// Makes the newest version of each model the one that is served.
    pub(super) fn publish(&mut self) {
        let serving: Vec<usize> = self.live.iter().copied().filter(|at| self.is_serving(*at)).collect();
        let map = models::map(serving.iter().filter_map(|at| self.generations[*at].as_ref()));
        let mut versions = [0; MODELS];
        for generation in serving.iter().filter_map(|at| self.generations[*at].as_ref()) {
            versions[generation.model] = generation.version;
        }
        ledger::with(|ledger| ledger.published = versions);
        self.directory.set(Some(Arc::clone(&map)));
        self.publications.push((self.server.publish(&map), versions));
    }

    fn is_serving(&self, at: usize) -> bool {
        self.generations[at].as_ref().is_some_and(|generation| !generation.is_retiring)
    }

    /// Notes which versions no shard uses any more.
    pub(super) fn acknowledge(&mut self) {
        let before = self.publications.len();
        let acknowledged = &mut self.acknowledged;
        self.publications.retain(|(receiver, versions)| {
            let is_used = matches!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            if is_used {
                for (known, version) in acknowledged.iter_mut().zip(versions) {
                    *known = (*known).max(*version);
                }
            }
            !is_used
        });
        if before != self.publications.len() && self.phase == Phase::Traffic {
            self.at(US, Event::Retire);
        }
    }

    pub(super) fn reload(&mut self) {
        let model = self.random.below(MODELS as u64) as usize;
        let found = self
            .live
            .iter()
            .copied()
            .find(|at| self.generations[*at].as_ref().is_some_and(|one| one.model == model && !one.is_retiring));
        if let (Some(at), Phase::Traffic) = (found, self.phase) {
            let version = self.generations[at].as_ref().map_or(1, |generation| generation.version) + 1;
            let fresh = Generation::load((model, version), &self.server.pool, &self.directory, &self.any_woken);
            if let Some(old) = &mut self.generations[at] {
                old.is_retiring = true;
            }
            self.live.push(self.generations.len());
            self.generations.push(Some(fresh));
            self.publish();
            self.poll_all(self.generations.len() - 1);
            ledger::with(|ledger| {
                ledger.faults.count("reload");
                ledger.note(|| format!("model {model} gets version {version}"));
            });
        }
    }

    /// Ends the versions that nobody refers to any more.
    pub(super) fn retire(&mut self) {
        let mut waits = false;
        for at in self.live.clone() {
            let Some(generation) = &mut self.generations[at] else { continue };
            if !generation.is_retiring || !self.publications.is_empty() {
                waits |= generation.is_retiring;
                continue;
            }
            if !generation.is_stopped && Arc::strong_count(&generation.served) > 1 {
                waits = true;
                continue;
            }
            if !generation.is_stopped {
                generation.stop();
                self.poll_sleepers(at);
            }
            let Some(generation) = &self.generations[at] else { continue };
            if generation.staff() > 0 {
                continue;
            }
            if let Err(text) = generation.check() {
                ledger::with(|ledger| ledger.violate(text));
            }
            self.bury(at);
        }
        if waits && self.phase == Phase::Traffic {
            self.at(MS, Event::Retire);
        }
    }

    fn poll_sleepers(&mut self, at: usize) {
        let count = self.generations[at].as_ref().map_or(0, |generation| generation.workers.len());
        for worker in 0..count {
            self.at(US, Event::Work(at, worker));
        }
    }

    fn bury(&mut self, at: usize) {
        if let Some(generation) = self.generations[at].take() {
            self.gone.push(Arc::downgrade(&generation.served));
        }
        self.live.retain(|other| *other != at);
    }

    /// A worker of some model gives way to another one.
    pub(super) fn replace(&mut self) {
        let chosen = self.live[self.random.below(self.live.len() as u64) as usize];
        if let Some(generation) = &mut self.generations[chosen]
            && !generation.is_retiring
            && ![SEQUENCE, HERE, JOIN].contains(&generation.model)
            && !generation.workers.is_empty()
        {
            let at = self.random.below(generation.workers.len() as u64) as usize;
            if !matches!(generation.workers[at].doing, Doing::Gone) {
                generation.replace(at);
                let fresh = generation.workers.len() - 1;
                ledger::with(|ledger| ledger.faults.count("worker replaced"));
                self.at(0, Event::Work(chosen, fresh));
            }
        }
    }

    /// The server has ended: ends the models as it does, and checks that nothing is left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        // The timer that looks after slow peers ends when there are none.
        for _ in 0..3 {
            self.now_ns += 2 * SECOND;
            played::set(Some(self.now_ns));
            (0..SHARDS).for_each(|shard| while self.server.turn(shard, false) {});
        }
        self.server.check_rest()?;
        let clients = 0..self.clients.len();
        clients.for_each(|client| self.lose_all(client));
        self.directory.set(None);
        for at in self.live.clone() {
            if let Some(generation) = &mut self.generations[at] {
                generation.is_retiring = true;
                generation.stop();
                self.poll_sleepers(at);
            }
        }
        // Models still have requests of clients that have left.
        self.phase = Phase::Over;
        let limit_ns = self.now_ns + 60 * SECOND;
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > limit_ns {
                break;
            }
            self.now_ns = self.now_ns.max(at_ns);
            played::set(Some(self.now_ns));
            match event {
                Event::Work(at, worker) => self.work(at, worker),
                Event::Late => self.late(),
                _ => {}
            }
            self.follow_models();
        }
        self.publications.clear();
        self.retire();
        Ok(())
    }

    /// Nothing is left of models, requests and memory once the server is gone.
    pub(super) fn check_rest(self) -> Result<(), String> {
        let World { server, gone, live, lates, generations, .. } = self;
        if !live.is_empty() {
            let left: Vec<_> = live.iter().filter_map(|at| generations[*at].as_ref()).collect();
            let left = left.iter().map(|one| format!("{} {} with {} workers", one.model, one.version, one.staff()));
            return Err(format!("models do not end: {}", left.collect::<Vec<_>>().join(", ")));
        }
        let pool = server.pool.clone();
        drop((server, lates));
        if let Some(served) = gone.iter().find_map(Weak::upgrade) {
            let (name, version) = (&served.name, served.version);
            return Err(format!("{} references to {name} version {version} are left", Arc::strong_count(&served) - 1));
        }
        match pool.bytes_in_use() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes of the pool are in use at the end")),
        }
    }
}
