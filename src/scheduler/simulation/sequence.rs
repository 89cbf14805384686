//! Sequences: clients that start, go on, forget to end, start twice, leave; slots that are fewer than sequences; states
//! that must be neither lost nor seen by other sequences.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::sequence::{SequenceBatcher, StartDelay, fixture};
use crate::{Purpose, Services};
use nereid_memory::{Pool, Slice};
use nereid_model_config::ModelSpec;
use nereid_request::{CorrelationId, DataType, SEQUENCE_END, SEQUENCE_START, Shape};
use nereid_wire::inference::ModelSequenceBatching;

/// A configuration, and the state of its clients.
struct Sequences {
    spec: Arc<ModelSpec>,
    config: ModelSequenceBatching,
    is_direct: bool,
    is_iterative: bool,
    /// Slots of each instance.
    slots: usize,
    rows_max: usize,
    has_delay: bool,
    idle_ns: u64,
    workers: usize,
    is_staffed_alike: bool,
    patience_once_in: u64,
    generation: usize,
    clients: BTreeMap<u64, Client>,
    eras: BTreeMap<u64, Era>,
    /// The era with which a row or a slot was last seen, by generation, worker and row.
    rows: BTreeMap<(usize, usize, usize), u64>,
    /// Executions of requests that are executed more than once.
    laps: BTreeMap<u64, Lap>,
    /// Ids that clients of iterative sequences chose, and whether a request with one is under way.
    own_ids: BTreeMap<u64, bool>,
    last_era: u64,
    last_chain: u64,
}

/// A client's view of its id.
#[derive(Clone, Copy)]
struct Client {
    era: u64,
    is_open: bool,
}

/// A sequence from one start to the next, as its client sees it.
#[derive(Default)]
struct Era {
    generation: usize,
    /// Eras that may be one sequence to the server.
    chain: u64,
    /// Its client was sure that there was no other sequence of its id.
    is_fresh: bool,
    /// Order of its first request.
    started: u64,
    place: Option<(usize, usize)>,
    /// When it was first seen in its slot.
    placed_ns: u64,
    executed: u64,
    last_key: u64,
    touched_ns: u64,
    has_ended: bool,
    /// Another era was seen in its slot.
    is_displaced: bool,
    is_cancelled: bool,
    may_expire_at_ns: Option<u64>,
}

#[derive(Default)]
struct Lap {
    executed: u64,
    /// When it came, or came back, before the present execution.
    queued_ns: u64,
}

#[derive(Clone, Copy)]
struct Facts {
    id: u64,
    era: u64,
    flags: u32,
    sent_ns: u64,
    timeout_us: u64,
}

/// Not in the range of those that the server chooses.
const FIRST_OWN_ID: u64 = 1 << 40;

const CONTROLS: &str = r#"
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
    control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_UINT64 dims: [ 1 ] }
"#;

impl Sequences {
    fn random(random: &mut Random, is_direct: bool, is_iterative: bool) -> Sequences {
        let rows_max = random.below(5) as usize;
        let delay_us = random.one_of(&[0, 0, 100, 1_000]);
        let mut slots = rows_max.max(1);
        let strategy = match is_direct {
            true => {
                let utilization = random.one_of(&["0.0", "0.5", "1.0"]);
                format!("direct {{ max_queue_delay_microseconds: {delay_us} minimum_slot_utilization: {utilization} }}")
            }
            false => {
                let candidates = random.below(5);
                slots = if candidates == 0 { slots } else { candidates as usize };
                let preferred = if rows_max > 1 && random.once_in(2) { "preferred_batch_size: 2" } else { "" };
                format!(
                    "oldest {{ max_candidate_sequences: {candidates} max_queue_delay_microseconds: {delay_us} \
                     preserve_ordering: {} {preferred} }}",
                    random.once_in(2)
                )
            }
        };
        let idle_us = random.one_of(&[1_000, 5_000, 200_000]);
        let (spec, config) = fixture::model(&format!(
            "max_batch_size: {rows_max} sequence_batching {{ max_sequence_idle_microseconds: {idle_us} \
             iterative_sequence: {is_iterative} {strategy} {CONTROLS} }}"
        ));
        Sequences {
            spec,
            config,
            is_direct,
            is_iterative,
            slots,
            rows_max: rows_max.max(1),
            has_delay: delay_us > 0,
            idle_ns: idle_us * US,
            workers: 1 + random.below(3) as usize,
            is_staffed_alike: false,
            patience_once_in: random.one_of(&[0, 30]),
            generation: 0,
            clients: BTreeMap::new(),
            eras: BTreeMap::new(),
            rows: BTreeMap::new(),
            laps: BTreeMap::new(),
            own_ids: BTreeMap::new(),
            last_era: 0,
            last_chain: 0,
        }
    }

    fn direct(random: &mut Random) -> Sequences {
        Sequences::random(random, true, false)
    }

    fn oldest(random: &mut Random) -> Sequences {
        Sequences::random(random, false, false)
    }

    fn iterative(random: &mut Random) -> Sequences {
        let is_direct = random.once_in(2);
        Sequences::random(random, is_direct, true)
    }

    /// One instance that stays, so that the order of slots can be checked too.
    fn single(random: &mut Random) -> Sequences {
        Sequences { workers: 1, is_staffed_alike: true, ..Sequences::random(random, true, false) }
    }

    fn era(&mut self, era: u64) -> Result<&mut Era, String> {
        self.eras.get_mut(&era).ok_or_else(|| format!("there is no era {era}"))
    }

    /// A client's next request.
    fn go_on(&mut self, random: &mut Random) -> (u64, u64, u32) {
        let id = 1 + random.below(8);
        let client = self.clients.get(&id).copied();
        let mut flags = if random.once_in(4) { SEQUENCE_END } else { 0 };
        let is_open = client.is_some_and(|client| client.is_open);
        // Some go on after their end, some start again in the middle.
        let starts = if is_open { random.once_in(30) } else { !random.once_in(15) };
        match client {
            Some(client) if !starts => (id, client.era, flags),
            _ => {
                flags |= SEQUENCE_START;
                self.last_era += 1;
                let former = client.and_then(|client| self.eras.get(&client.era));
                let is_fresh = former.is_none_or(|former| former.has_ended || former.generation != self.generation);
                let former = former.filter(|_| !is_fresh);
                self.last_chain += 1;
                let era = Era {
                    generation: self.generation,
                    chain: former.map_or(self.last_chain, |former| former.chain),
                    is_fresh,
                    is_cancelled: former.is_some_and(|former| former.is_cancelled),
                    may_expire_at_ns: former.and_then(|former| former.may_expire_at_ns),
                    ..Era::default()
                };
                self.eras.insert(self.last_era, era);
                self.clients.insert(id, Client { era: self.last_era, is_open: true });
                (id, self.last_era, flags)
            }
        }
    }

    fn see_client_row(&mut self, worker: usize, row: usize, request: &Request, sent: &Sent<Facts>) -> Checked {
        let (facts, key) = (&sent.facts, sent.key);
        let is_direct = self.is_direct;
        let last = self.rows.get(&(sent.generation, worker, row)).copied();
        let era = self.era(facts.era)?;
        if key <= era.last_key {
            return Err(format!("request {key} runs after request {} of its sequence", era.last_key));
        }
        era.last_key = key;
        let place = (worker, if is_direct { row } else { 0 });
        if era.place.is_none() {
            era.placed_ns = clock();
        }
        if *era.place.get_or_insert(place) != place {
            return Err(format!("request {key} runs at {place:?} and not at {:?}", era.place));
        }
        let before = if facts.flags & SEQUENCE_START != 0 { 0 } else { era.executed };
        era.executed += 1;
        if number_of(request, "BEFORE") != Some(before) {
            return Err(format!("request {key} sees {:?} instead of {before}", number_of(request, "BEFORE")));
        }
        if era.is_displaced {
            return Err(format!("request {key} runs in a slot that another sequence has"));
        }
        if is_direct {
            self.rows.insert((sent.generation, worker, row), facts.era);
            if let Some(last) = last.filter(|last| *last != facts.era) {
                self.era(last)?.is_displaced = true;
            }
        }
        let controls = [("START", SEQUENCE_START), ("END", SEQUENCE_END)]
            .map(|(name, flag)| number_of(request, name) == Some(u64::from(facts.flags & flag != 0)));
        match controls == [true, true] && number_of(request, "ID") == Some(facts.id) {
            true => Ok(()),
            false => Err(format!("request {key} has wrong controls")),
        }
    }

    /// The id and the flags of a request that is executed until its backend releases it: 0 lets the server choose an
    /// id. A client that chose one may try to go on with it, which is too late.
    fn iterate(&mut self, random: &mut Random) -> (u64, u64, u32) {
        let id = FIRST_OWN_ID + random.below(8);
        match self.own_ids.get(&id) {
            Some(true) => (0, 0, 0),
            Some(false) if random.once_in(3) => (id, 0, 0),
            _ if random.once_in(2) => (0, 0, 0),
            _ => (id, 0, SEQUENCE_START),
        }
    }

    /// Checks a request of a sequence of its own, which may have been executed before.
    fn see_lap(&mut self, request: &Request, key: u64) -> Checked {
        let lap = self.laps.entry(key).or_default();
        let first = u64::from(lap.executed == 0);
        let seen = (number_of(request, "BEFORE"), number_of(request, "START"));
        if seen != (Some(lap.executed), Some(first)) {
            return Err(format!("request {key} sees {seen:?} in execution {}", lap.executed));
        }
        lap.executed += 1;
        Ok(())
    }

    fn see_null_row(&self, request: &Request) -> Checked {
        let controls = ["START", "END", "READY", "ID"].map(|name| number_of(request, name));
        match controls == [Some(0); 4] && request.outputs.is_empty() && number_of(request, "BEFORE") == Some(0) {
            true => Ok(()),
            false => Err(format!("a null request has {controls:?}")),
        }
    }
}

/// A request's input as a number.
fn number_of(request: &Request, name: &str) -> Option<u64> {
    let data = request.input(name.as_bytes())?.data.first()?;
    let mut bytes = [0; 8];
    bytes.get_mut(..data.len())?.copy_from_slice(data);
    // The float that means true.
    Some(match u64::from_le_bytes(bytes) {
        0x3f80_0000 => 1,
        number => number,
    })
}

impl Rules for Sequences {
    type Facts = Facts;

    fn build(&mut self, _random: &mut Random) -> Scheduling {
        self.generation += 1;
        let purpose = Purpose {
            spec: Arc::clone(&self.spec),
            version: 1,
            statistics: Arc::default(),
            directory: PathBuf::new(),
            pool: Pool::new(1 << 20),
            strategy: None,
        };
        let hold = StartDelay { requests: 0, backlog: 0 };
        let batcher = SequenceBatcher::with(&purpose, &Services::default(), &self.config, hold, clock);
        Scheduling::new(batcher.unwrap())
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn arrive(&mut self, random: &mut Random, request: &mut Request) -> Facts {
        let shape = Shape::from_slice(&[1]);
        let mut input = nereid_request::InputTensor::new(Text::from("INPUT0"), DataType::Uint8, shape);
        input.data.push(Slice::copy_of(&[1]));
        request.inputs.push(input);
        let sent_ns = request.stamps.queued_ns;
        let timeout_us = if random.once_in(10) { 1 + random.below(3_000) } else { 0 };
        request.queueing.timeout_us = timeout_us;
        let (id, era, flags) = match self.is_iterative {
            true => self.iterate(random),
            false => self.go_on(random),
        };
        if id == 0 {
            return Facts { id, era, flags, sent_ns, timeout_us };
        }
        (request.correlation_id, request.flags) = (CorrelationId::Number(id), flags);
        Facts { id, era, flags, sent_ns, timeout_us }
    }

    fn patience(&mut self, random: &mut Random) -> Option<u64> {
        let leaves = self.patience_once_in > 0 && random.once_in(self.patience_once_in);
        leaves.then(|| random.below(2 * MS))
    }

    /// It applies in the backlog only.
    fn expiry_is_strict(&self) -> bool {
        false
    }

    fn accepted(&mut self, facts: &Facts, _waiting: &Waiting<'_, Facts>) -> Checked {
        if self.is_iterative {
            if facts.id > 0 && facts.flags & SEQUENCE_START == 0 {
                return Err(format!("a request of sequence {} was accepted after its last release", facts.id));
            }
            self.own_ids.insert(facts.id, true);
            return Ok(());
        }
        let (idle_ns, generation) = (self.idle_ns, self.generation);
        let started = self.last_chain;
        let is_start = facts.flags & SEQUENCE_START != 0;
        let era = self.era(facts.era)?;
        if !is_start {
            // A sequence that was in the backlog for long may be checked a moment later.
            let idle = era.executed > 0 && era.touched_ns + idle_ns + 50 * MS <= facts.sent_ns;
            if era.has_ended || era.generation != generation || idle {
                return Err(format!("a request of sequence {} was accepted after its end", facts.id));
            }
        } else {
            era.started = started;
        }
        era.touched_ns = facts.sent_ns;
        era.has_ended |= facts.flags & SEQUENCE_END != 0;
        let expires_at_ns = (facts.timeout_us > 0).then(|| facts.sent_ns + facts.timeout_us * US);
        let has_ended = era.has_ended;
        let chain = era.chain;
        for era in self.eras.values_mut().filter(|era| era.chain == chain) {
            era.may_expire_at_ns = era.may_expire_at_ns.into_iter().chain(expires_at_ns).min();
        }
        if has_ended && let Some(client) = self.clients.get_mut(&facts.id) {
            client.is_open = false;
        }
        Ok(())
    }

    fn refused(&mut self, facts: &Facts, status: &Status, _waiting: &Waiting<'_, Facts>) -> Checked {
        if !status.message.contains("must specify the START flag") || facts.flags & SEQUENCE_START != 0 {
            return Err(format!("refused: {status}"));
        }
        if self.is_iterative {
            return Ok(());
        }
        let (idle_ns, generation) = (self.idle_ns, self.generation);
        let era = self.era(facts.era)?;
        let may_be_gone = era.has_ended
            || era.generation != generation
            || era.is_cancelled
            || era.may_expire_at_ns.is_some_and(|at_ns| at_ns <= facts.sent_ns)
            || era.touched_ns + idle_ns <= facts.sent_ns;
        if !may_be_gone {
            return Err(format!("a request of sequence {} was refused although it lives: {status}", facts.id));
        }
        era.has_ended = true;
        if let Some(client) = self.clients.get_mut(&facts.id) {
            client.is_open = false;
        }
        Ok(())
    }

    fn cut(
        &mut self,
        _now_ns: u64,
        worker: usize,
        taken: &[(&Request, Option<&Sent<Facts>>)],
        waiting: &Waiting<'_, Facts>,
    ) -> Checked {
        if taken.len() > self.rows_max {
            return Err(format!("a payload has {} rows of {}", taken.len(), self.rows_max));
        }
        let mut youngest = 0;
        for (row, (request, sent)) in taken.iter().enumerate() {
            if request.ingress.origin == Origin::Null {
                if !self.is_direct {
                    return Err("the oldest strategy has no null requests".to_owned());
                }
                self.see_null_row(request)?;
                continue;
            }
            let Some(sent) = sent else { return Err("a request belongs to no client".to_owned()) };
            if number_of(request, "READY") != Some(1) {
                return Err(format!("request {} is not ready", sent.key));
            }
            if self.is_iterative {
                self.see_lap(request, sent.key)?;
                continue;
            }
            self.see_client_row(worker, row, request, sent)?;
            let era = self.era(sent.facts.era)?;
            if era.is_fresh && era.executed == 1 {
                youngest = youngest.max(era.started);
            }
        }
        if !self.is_staffed_alike || self.is_iterative {
            return Ok(());
        }
        let passed = waiting.iter().find(|sent| {
            let era = self.eras.get(&sent.facts.era);
            era.is_some_and(|era| {
                era.is_fresh && era.executed == 0 && era.started < youngest && sent.facts.flags & SEQUENCE_START != 0
            })
        });
        passed.map_or(Ok(()), |sent| Err(format!("request {} of the backlog was passed over", sent.key)))
    }

    fn may_rest(&mut self, now_ns: u64, idle: &[usize], waiting: &Waiting<'_, Facts>) -> Checked {
        if self.is_iterative || !self.is_direct || self.has_delay {
            return Ok(());
        }
        for sent in waiting.iter() {
            let era = self.era(sent.facts.era)?;
            if era.place.is_some_and(|(worker, _)| idle.contains(&worker)) {
                return Err(format!("a worker sleeps beside request {} of its own", sent.key));
            }
        }
        if !self.is_staffed_alike || idle.is_empty() {
            return Ok(());
        }
        let is_present = |era: &&Era| {
            // A sequence from the backlog keeps the slot for a moment, however long it waited there.
            let is_idle = (era.touched_ns + self.idle_ns).max(era.placed_ns) + 50 * MS <= now_ns;
            era.place.is_some() && era.generation == self.generation && !era.has_ended && !is_idle
        };
        let present = self.eras.values().filter(is_present).count();
        match waiting.iter().next() {
            Some(sent) if sent.generation + 1 == self.generation && present < self.slots => {
                Err(format!("request {} waits although only {present} of {} slots are taken", sent.key, self.slots))
            }
            _ => Ok(()),
        }
    }

    fn answered(&mut self, key: u64, sent: &Sent<Facts>, delivery: &Delivery) -> Checked {
        let error = delivery.response.as_ref().and_then(|response| response.error.as_ref());
        let has_text = |text: &str| error.is_some_and(|status| status.message.contains(text));
        if self.is_iterative {
            if delivery.last {
                self.own_ids.insert(sent.facts.id, false);
            }
            let idle_ns = self.idle_ns;
            let lap = self.laps.entry(key).or_default();
            if has_text("must specify the START flag") && lap.queued_ns + idle_ns > clock() {
                return Err(format!("request {key} could not come back although its sequence lives"));
            }
            return Ok(());
        }
        let (is_cancelled, now_ns) = (sent.is_cancelled, clock());
        let chain = self.era(sent.facts.era)?.chain;
        let expired = has_text("timeout of the corresponding sequence has been expired");
        for era in self.eras.values_mut().filter(|era| era.chain == chain) {
            era.is_cancelled |= is_cancelled;
        }
        let era = self.era(sent.facts.era)?;
        if expired && (era.executed > 0 || era.may_expire_at_ns.is_none_or(|at_ns| at_ns > now_ns)) {
            return Err(format!("request {key} expired before its time"));
        }
        // Requests that ended with others ended with the whole sequence.
        if expired || !is_cancelled && error.is_some_and(|status| status.code == Code::Cancelled) {
            era.has_ended = true;
        }
        Ok(())
    }

    fn may_fall_with(&self, sent: &Sent<Facts>, others: &mut dyn Iterator<Item = &Sent<Facts>>) -> bool {
        let Some(own) = self.eras.get(&sent.facts.era) else { return false };
        let is_one = |other: &Sent<Facts>| self.eras.get(&other.facts.era).is_some_and(|era| era.chain == own.chain);
        for other in others {
            if other.is_cancelled && is_one(other) {
                return true;
            }
        }
        own.is_cancelled
    }

    fn execute(&mut self, random: &mut Random, request: &Request) -> Reply {
        if let Some(states) = &request.states {
            let after = number_of(request, "BEFORE").unwrap_or(0) + 1;
            let shape = if self.spec.is_batching() { Shape::from_slice(&[1, 1]) } else { Shape::from_slice(&[1]) };
            // The update of a null request is discarded.
            states.update("AFTER", DataType::Uint64, shape, Slice::copy_of(&after.to_le_bytes())).unwrap();
        }
        if self.is_iterative && request.ingress.origin == Origin::Client && !random.once_in(4) {
            if let Some(lap) = self.laps.get_mut(&key_of(request)) {
                let stamps = &request.stamps;
                lap.queued_ns = if lap.executed == 1 { stamps.started_ns } else { stamps.queued_ns };
            }
            return Reply::Again;
        }
        match random.below(20) {
            0 => Reply::Fail,
            1 => Reply::Later(random.below(MS)),
            2 => Reply::Drop,
            _ => Reply::Succeed,
        }
    }
}

const WEATHER: Weather = Weather { requests: 600, pause_ns: 300 * US, burst: 12, reload_every: 60, change_every: 20 };
/// No reloads and no changes of workers.
const CALM: Weather = Weather { reload_every: 0, change_every: 0, ..WEATHER };

#[test]
fn the_direct_strategy_keeps_its_promises() {
    play(100, WEATHER, Sequences::direct);
}

#[test]
fn the_oldest_strategy_keeps_its_promises() {
    play(100, WEATHER, Sequences::oldest);
}

#[test]
fn a_single_instance_keeps_its_promises() {
    play(100, CALM, Sequences::single);
}

#[test]
fn iterative_sequences_keep_their_promises() {
    play(100, WEATHER, Sequences::iterative);
}

fn noticed(mutant: Mutant, weather: Weather, scenario: impl Fn(&mut Random) -> Sequences, text: &str) {
    let failure = catches(mutant, 40, weather, scenario);
    assert!(failure.as_ref().is_some_and(|failure| failure.contains(text)), "{mutant:?}: {failure:?}");
}

#[test]
fn mistakes_are_noticed() {
    noticed(Mutant::ForgottenEnd, WEATHER, Sequences::direct, "a request of sequence");
    noticed(Mutant::MissingNullRow, WEATHER, Sequences::direct, "and not at");
    noticed(Mutant::StaleState, WEATHER, Sequences::oldest, "sees Some");
    noticed(Mutant::BacklogOrder, CALM, Sequences::single, "of the backlog was passed over");
    noticed(Mutant::IterationGoesOn, WEATHER, Sequences::iterative, "after its last release");
    noticed(Mutant::StaleSequence, WEATHER, Sequences::iterative, "in execution");
}
