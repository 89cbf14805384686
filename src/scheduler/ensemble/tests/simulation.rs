//! Random graphs under random orders of events, with and without a home: every request is answered once, with the
//! values that its steps made; and each known mistake is caught.

use super::super::flow::with_looked_at_max;
use super::super::hand_over::HandOver;
use super::*;
use crate::Payload;
use crate::mutants::{self, Mutant};

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }
}

/// One ensemble, its parts, and the answer to a request for `x` that meets no error; `#` stands for the number of a
/// response of the decoupled part.
struct Graph {
    outputs: &'static str,
    steps: &'static [&'static str],
    /// Name, inputs, outputs.
    parts: &'static [(&'static str, &'static str, &'static str)],
    decoupled: &'static str,
    answer: &'static str,
}

const GRAPHS: [Graph; 4] = [
    Graph {
        outputs: "Y",
        steps: &["p I=X -> O=A", "q I=A -> O=B", "r I=B -> O=Y"],
        parts: &[("p", "I", "O"), ("q", "I", "O"), ("r", "I", "O")],
        decoupled: "",
        answer: "Y=r.O(q.O(p.O(x)))",
    },
    Graph {
        outputs: "Y Z",
        steps: &["t I=X -> O=A P=B", "l I=A J=A -> O=C", "r I=B -> O=D", "j I=C J=D -> O=Y", "k I=D -> O=Z"],
        parts: &[("t", "I", "O P"), ("l", "I J", "O"), ("r", "I", "O"), ("j", "I J", "O"), ("k", "I", "O")],
        decoupled: "",
        answer: "Y=j.O(l.O(t.O(x),t.O(x)),r.O(t.P(x))) Z=k.O(r.O(t.P(x)))",
    },
    Graph {
        outputs: "Y",
        steps: &["p I=X -> O=W", "d I=W -> O=A P=B", "j I=A J=B -> O=Y"],
        parts: &[("p", "I", "O"), ("d", "I", "O P"), ("j", "I J", "O")],
        decoupled: "d",
        answer: "Y=j.O(d.O#(p.O(x)),d.P#(p.O(x)))",
    },
    Graph {
        outputs: "Y V",
        steps: &["d I=X -> O=V P=B", "j I=B -> O=Y"],
        parts: &[("d", "I", "O P"), ("j", "I", "O")],
        decoupled: "d",
        // Numbers of Y are those of its own arrivals, so only the sets can be compared.
        answer: "",
    },
];

/// A request as it was sent, and its state.
struct Sent {
    ticket: Option<Ticket>,
    is_cancelled: bool,
}

struct World {
    bench: Bench,
    graph: &'static Graph,
    dice: Dice,
    sent: Vec<Sent>,
    in_flight_max: usize,
    /// Requests are at home on this shard, which executes steps of some models.
    is_on_shard: bool,
    /// Errors by the request that met them, in their order.
    errors: BTreeMap<u64, Vec<String>>,
    /// Responses of the decoupled part, by request.
    responses: BTreeMap<u64, usize>,
    /// Requests that are not answered completely.
    open: Vec<(Arc<Part>, Box<Request>, usize)>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed);
        let graph = &GRAPHS[dice.roll(GRAPHS.len())];
        let in_flight_max = dice.roll(4);
        let decoupled = "model_transaction_policy { decoupled: true }";
        let more = if graph.decoupled.is_empty() { "" } else { decoupled };
        let scheduling = format!("max_inflight_requests: {in_flight_max}");
        let spec = ensemble("X", graph.outputs, graph.steps, more, &scheduling);
        let part = |(name, inputs, outputs): &(&str, &str, &str)| {
            model(name, inputs, outputs, if *name == graph.decoupled { decoupled } else { "" })
        };
        let mut bench = Bench::new(spec, graph.parts.iter().map(part).collect());
        if dice.roll(2) == 0 {
            bench.client = Arc::new(Client::default());
        }
        let is_on_shard = bench.client.is_home && dice.roll(2) == 0;
        if is_on_shard {
            for part in bench.kitchen.parts() {
                part.runs_here.store(dice.roll(2) == 0, Ordering::Relaxed);
            }
        }
        let (errors, responses, open) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        World { bench, graph, dice, sent: Vec::new(), in_flight_max, is_on_shard, errors, responses, open }
    }

    /// Lets one event happen; false if it was not possible.
    fn turn(&mut self) -> Result<bool, String> {
        let parts = self.bench.kitchen.parts();
        let part = Arc::clone(&parts[self.dice.roll(parts.len())]);
        let happened = match self.dice.roll(8) {
            0..=3 => self.take(&part),
            4 | 5 => self.go_on(),
            6 if self.is_on_shard => self.bench.client.turn(),
            _ => self.bench.client.work(),
        };
        self.check_limits(&parts)?;
        Ok(happened)
    }

    fn send(&mut self) {
        let key = self.sent.len() as u64;
        let mut request = request_to(&self.bench.spec, &self.bench.client, key, &[("X", "x")]);
        request.id = Text::from(&*key.to_string());
        request.ingress.is_on_shard = self.is_on_shard;
        let ticket = Some(self.bench.hand_in(request));
        self.sent.push(Sent { ticket, is_cancelled: false });
    }

    fn cancel(&mut self) {
        let at = self.dice.roll(self.sent.len());
        if let Some(sent) = self.sent.get_mut(at)
            && let Some(ticket) = &sent.ticket
        {
            sent.is_cancelled = true;
            self.bench.ensemble.cancel(ticket).now();
        }
    }

    /// A part takes one of its requests, and may end it.
    fn take(&mut self, part: &Arc<Part>) -> bool {
        let count = lock(&part.held).len();
        let at = self.dice.roll(count);
        let Some(request) = part.take_at(at) else { return false };
        let key: u64 = request.id.to_string().parse().unwrap();
        if self.dice.roll(25) == 0 {
            let text = format!("{} fails", part.spec.name);
            self.errors.entry(key).or_default().push(text.clone());
            request.fail(Status::internal(text));
        } else if part.spec.decoupled {
            let count = self.dice.roll(5);
            self.open.push((Arc::clone(part), request, count));
        } else {
            // As a worker does, or another thread.
            let mut payload = Payload::default();
            payload.push(request);
            let hand_over = (self.dice.roll(2) == 0).then(|| HandOver::of(&payload, true));
            payload.take_only().into_iter().for_each(|request| request.finish(response_of(part, &request, "")));
            hand_over.into_iter().for_each(HandOver::finish);
        }
        true
    }

    /// Sends a decoupled request one more response, or its end.
    fn go_on(&mut self) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let at = self.dice.roll(self.open.len());
        let (part, request, left) = &mut self.open[at];
        let key: u64 = request.id.to_string().parse().unwrap();
        let sent = self.responses.entry(key).or_default();
        if *left > 0 {
            *left -= 1;
            let with_end = *left == 0 && self.dice.roll(2) == 0;
            request.responses().send(response_of(part, request, &format!("#{sent}")), with_end);
            *sent += 1;
            if !with_end {
                return true;
            }
        } else {
            request.responses().send_end();
        }
        self.open.remove(at);
        true
    }

    fn check_limits(&self, parts: &[Arc<Part>]) -> Result<(), String> {
        for part in parts.iter().filter(|_| self.in_flight_max > 0) {
            let open = self.open.iter().filter(|(other, ..)| Arc::ptr_eq(other, part)).count();
            let live = lock(&part.held).iter().filter(|request| !request.admission().has_ended()).count() + open;
            if live > self.in_flight_max {
                return Err(format!("{live} requests of '{}' are in flight", part.spec.name));
            }
        }
        Ok(())
    }

    /// Checks the invariants at the end.
    fn judge(&mut self) -> Result<(), String> {
        // A request may have been cancelled only now.
        self.bench.client.work_all();
        while self.is_on_shard && self.bench.client.turn() {}
        for (key, sent) in self.sent.iter().enumerate() {
            let key = key as u64;
            let answered = self.bench.answered(key);
            let lasts = lock(&self.bench.client.answers).get(&key).into_iter().flatten().filter(|one| one.last).count();
            if lasts != 1 || !answered.ends_with('.') {
                return Err(format!("request {key} was answered with '{answered}'"));
            }
            let pieces: Vec<&str> = answered.trim_end_matches('.').split("; ").collect();
            let error = pieces.iter().find_map(|piece| piece.strip_prefix('!'));
            match (error, self.errors.get(&key)) {
                (Some(text), Some(errors)) => {
                    let fits = |error: &String| text == format!("in ensemble 'e', {error}");
                    if !errors.iter().any(fits) && !sent.is_cancelled {
                        return Err(format!("request {key} met {errors:?} and was answered with '{text}'"));
                    }
                }
                (Some("in ensemble 'e', "), None) if sent.is_cancelled => {}
                (Some(text), None) => return Err(format!("request {key} met no error and was answered with '{text}'")),
                (None, Some(errors)) => {
                    return Err(format!("request {key} met {errors:?} and was answered with '{answered}'"));
                }
                (None, None) => self.judge_answers(key, &pieces)?,
            }
            self.judge_steps(key, error.is_none())?;
        }
        self.judge_rest()
    }

    /// Checks that a part is called once, and the parts after the decoupled one once for each of its responses. The
    /// answers alone do not show steps that ran in vain.
    fn judge_steps(&self, key: u64, is_success: bool) -> Result<(), String> {
        for part in self.bench.kitchen.parts() {
            let calls = lock(&part.calls).get(&key.to_string()).copied().unwrap_or(0);
            let is_behind = !self.graph.decoupled.is_empty() && part.spec.name == "j";
            let most = if is_behind { self.responses.get(&key).copied().unwrap_or(0) } else { 1 };
            if calls > most || is_success && calls < most {
                return Err(format!("request {key} called '{}' {calls} times instead of {most}", part.spec.name));
            }
        }
        Ok(())
    }

    fn judge_answers(&self, key: u64, pieces: &[&str]) -> Result<(), String> {
        let count = if self.graph.decoupled.is_empty() { 1 } else { self.responses.get(&key).copied().unwrap_or(0) };
        let mut got: Vec<String> =
            pieces.iter().filter(|piece| **piece != "-").map(|piece| (*piece).to_owned()).collect();
        let mut expected: Vec<String> = match self.graph.answer {
            "" => {
                let column = |got: &[String], at: usize| {
                    let mut column: Vec<_> =
                        got.iter().filter_map(|one| Some(one.split(' ').nth(at)?.to_owned())).collect();
                    column.sort();
                    column
                };
                let both = [0, 1].map(|at| column(&got, at)).concat();
                got = both;
                let made = |shape: fn(usize) -> String| (0..count).map(shape).collect::<Vec<_>>();
                [made(|n| format!("Y=j.O(d.P#{n}(x))")), made(|n| format!("V=d.O#{n}(x)"))].concat()
            }
            answer => (0..count).map(|number| answer.replace('#', &format!("#{number}"))).collect(),
        };
        got.sort();
        expected.sort();
        match got == expected {
            true => Ok(()),
            false => Err(format!("request {key} was answered with {got:?} instead of {expected:?}")),
        }
    }

    fn judge_rest(&mut self) -> Result<(), String> {
        let seen = self.bench.statistics.snapshot();
        let counted = seen.success.count + seen.fail.count;
        if counted != self.sent.len() as u64 || seen.pending != 0 {
            return Err(format!("{counted} of {} requests were counted, {} pend", self.sent.len(), seen.pending));
        }
        for limiter in self.bench.ensemble.0.limiters.iter().flatten() {
            if limiter.counts() != (0, 0) {
                return Err(format!("a limiter counts {:?}", limiter.counts()));
            }
        }
        self.sent.clear();
        self.bench.kitchen.parts().iter().for_each(|part| lock(&part.held).clear());
        lock(&self.bench.client.timed).clear();
        match self.bench.runs() {
            0 => Ok(()),
            runs => Err(format!("{runs} runs are left over")),
        }
    }
}

/// With every other seed, arrivals at whatever joins two tensors or more are counted.
fn simulate(seed: u64) -> Result<(), String> {
    with_looked_at_max(if seed.is_multiple_of(2) { usize::MAX } else { 1 }, || play(seed))
}

fn play(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let requests = 1 + world.dice.roll(6);
    let mut idle = 0;
    while idle < 200 {
        if world.sent.len() < requests && world.dice.roll(3) == 0 {
            world.send();
        } else if world.dice.roll(60) == 0 {
            world.cancel();
        }
        idle = if world.turn()? || world.sent.len() < requests { 0 } else { idle + 1 };
    }
    world.judge()
}

#[test]
fn every_request_is_answered_with_what_its_steps_made() {
    for seed in 0..4000 {
        simulate(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

#[test]
fn mistakes_are_noticed() {
    let mutants = [
        Mutant::StepTwice,
        Mutant::WrongIteration,
        Mutant::ErrorForgotten,
        Mutant::SlotLeaked,
        Mutant::HandOverForgotten,
    ];
    for mutant in mutants {
        let noticed = mutants::with(Some(mutant), || (0..4000).any(|seed| simulate(seed).is_err()));
        assert!(noticed, "{mutant:?} survives");
    }
}
