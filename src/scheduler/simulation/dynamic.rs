//! Batches: any configuration of the dynamic batcher, and the default scheduler as the one that never joins two.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::{Purpose, Services, create};
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{DataType, InputTensor, Shape};

/// A configuration, in the form in which its promises can be checked.
struct Batches {
    spec: Arc<ModelSpec>,
    max_batch_size: u64,
    /// Ascending.
    preferred: Vec<u64>,
    delay_ns: u64,
    /// By level, from 1; one level without priorities.
    policies: Vec<Policy>,
    is_batching: bool,
    workers: usize,
    patience_once_in: u64,
    largest_batch: u64,
    /// With `preserve_ordering`: the accepted and unanswered requests of each generation.
    order: Option<Vec<VecDeque<u64>>>,
}

#[derive(Clone, Copy)]
struct Policy {
    rejects: bool,
    timeout_us: u64,
    overrides: bool,
    queue_size_max: usize,
}

#[derive(Clone, Copy)]
struct Facts {
    key: u64,
    level: usize,
    rows: u64,
    columns: i64,
    /// When it becomes a delayed request.
    late_at_ns: Option<u64>,
}

impl Policy {
    fn random(random: &mut Random) -> Policy {
        Policy {
            rejects: random.once_in(2),
            timeout_us: random.one_of(&[0, 0, 200, 2_000]),
            overrides: random.once_in(2),
            queue_size_max: random.one_of(&[0, 0, 3, 20]),
        }
    }

    fn text(&self) -> String {
        let Policy { rejects, timeout_us, overrides, queue_size_max } = self;
        let action = if *rejects { "REJECT" } else { "DELAY" };
        format!(
            "timeout_action: {action} default_timeout_microseconds: {timeout_us} allow_timeout_override: {overrides} \
             max_queue_size: {queue_size_max}"
        )
    }

    /// The timeout of a request that sets `wanted_us` (contract/schedulers.md section 2, "Enqueue").
    fn timeout_us(&self, wanted_us: u64) -> Option<u64> {
        let own = self.overrides && wanted_us > 0 && wanted_us < self.timeout_us;
        Some(if own { wanted_us } else { self.timeout_us }).filter(|&timeout_us| timeout_us > 0)
    }
}

impl Batches {
    fn random(random: &mut Random) -> Batches {
        let max_batch_size = 1 + random.below(8);
        let mut preferred: Vec<u64> = (1..=max_batch_size).filter(|_| random.once_in(3)).collect();
        let delay_ns = random.one_of(&[0, 0, 100, 1_000]) * US;
        let levels = random.one_of(&[0, 0, 2, 3]);
        let policies: Vec<Policy> = (0..levels.max(1)).map(|_| Policy::random(random)).collect();
        let mut batching = format!("max_queue_delay_microseconds: {} ", delay_ns / US);
        preferred.iter().for_each(|size| batching += &format!("preferred_batch_size: {size} "));
        match levels {
            0 => batching += &format!("default_queue_policy {{ {} }} ", policies[0].text()),
            levels => {
                batching += &format!("priority_levels: {levels} default_priority_level: {levels} ");
                for (at, policy) in policies.iter().enumerate() {
                    let text = policy.text();
                    batching += &format!("priority_queue_policy {{ key: {} value {{ {text} }} }} ", at + 1);
                }
            }
        }
        if preferred.is_empty() {
            preferred.push(max_batch_size);
        }
        let text = format!("max_batch_size: {max_batch_size} dynamic_batching {{ {batching} }}");
        Batches {
            spec: spec(&text),
            max_batch_size,
            preferred,
            delay_ns,
            policies,
            is_batching: true,
            workers: 1 + random.below(3) as usize,
            patience_once_in: random.one_of(&[0, 10]),
            largest_batch: random.one_of(&[1, max_batch_size]),
            order: None,
        }
    }

    /// The default scheduler of a batching model.
    fn alone(random: &mut Random) -> Batches {
        let policy = Policy { rejects: true, timeout_us: 0, overrides: true, queue_size_max: 0 };
        Batches {
            spec: spec("max_batch_size: 8"),
            max_batch_size: 8,
            preferred: vec![1],
            delay_ns: 0,
            policies: vec![policy],
            is_batching: false,
            workers: 1 + random.below(3) as usize,
            patience_once_in: 10,
            largest_batch: 8,
            order: None,
        }
    }

    /// Answers leave in the order of the requests. No client leaves and no request times out: an answer that is held
    /// back looks like one that never came.
    fn ordered(random: &mut Random) -> Batches {
        let policy = Policy { rejects: true, timeout_us: 0, overrides: false, queue_size_max: 0 };
        Batches {
            spec: spec("max_batch_size: 4 dynamic_batching { preserve_ordering: true }"),
            max_batch_size: 4,
            preferred: vec![4],
            delay_ns: 0,
            policies: vec![policy],
            is_batching: true,
            workers: 1 + random.below(4) as usize,
            patience_once_in: 0,
            largest_batch: random.one_of(&[1, 4]),
            order: Some(Vec::new()),
        }
    }

    fn policy(&self, facts: &Facts) -> Policy {
        self.policies[facts.level - 1]
    }

    fn is_late(facts: &Facts, now_ns: u64) -> bool {
        facts.late_at_ns.is_some_and(|at_ns| at_ns < now_ns)
    }

    /// The order in which requests have to be taken. Among late ones of a level any order is right.
    fn rank(facts: &Facts, key: u64, now_ns: u64) -> (usize, bool, u64) {
        match Batches::is_late(facts, now_ns) {
            true => (facts.level, true, 0),
            false => (facts.level, false, key),
        }
    }

    /// Whether a batch may go although it has no preferred size and the queue would let it grow.
    fn may_go(&self, rows: u64, oldest_ns: u64, now_ns: u64) -> bool {
        let largest = self.preferred.last().copied().unwrap_or(0);
        self.delay_ns == 0 || now_ns - oldest_ns >= self.delay_ns || rows >= largest || self.preferred.contains(&rows)
    }
}

/// `text` without its io.
pub fn spec(text: &str) -> Arc<ModelSpec> {
    let io = "input { name: \"INPUT0\" data_type: TYPE_UINT8 dims: [ -1 ] }
              output { name: \"OUTPUT0\" data_type: TYPE_UINT8 dims: [ -1 ] }";
    let text = format!("name: \"m\" backend: \"identity\" {io} {text}");
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &[], &nereid_model_config::SupportedGpus::NoDriver);
    Arc::new(ModelSpec::new(config).unwrap())
}

fn scheduling(spec: &Arc<ModelSpec>) -> Scheduling {
    let purpose = Purpose::of(Arc::clone(spec));
    create(&purpose, &Services::default()).unwrap()
}

impl Rules for Batches {
    type Facts = Facts;

    fn build(&mut self, _random: &mut Random) -> Scheduling {
        self.order.iter_mut().for_each(|order| order.push(VecDeque::new()));
        scheduling(&self.spec)
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn arrive(&mut self, random: &mut Random, request: &mut Request) -> Facts {
        let level = 1 + random.below(self.policies.len() as u64) as usize;
        let (rows, columns) = (1 + random.below(self.largest_batch), if random.once_in(10) { 3 } else { 2 });
        let wanted_us = if random.once_in(3) { 1 + random.below(1_000) } else { 0 };
        request.batch_size = rows;
        request.queueing.priority = if self.policies.len() > 1 { level as u64 } else { 0 };
        request.queueing.timeout_us = wanted_us;
        let shape = Shape::from_slice(&[rows as i64, columns]);
        let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Uint8, shape.clone());
        input.model_shape = shape;
        request.inputs.push(input);
        let policy = self.policies[level - 1];
        let late = policy.timeout_us(wanted_us).filter(|_| !policy.rejects && self.is_batching);
        let late_at_ns = late.map(|timeout_us| request.stamps.queued_ns + timeout_us * US);
        Facts { key: key_of(request), level, rows, columns, late_at_ns }
    }

    fn patience(&mut self, random: &mut Random) -> Option<u64> {
        let leaves = self.patience_once_in > 0 && random.once_in(self.patience_once_in);
        leaves.then(|| random.below(MS))
    }

    fn accepted(&mut self, facts: &Facts, waiting: &Waiting<'_, Facts>) -> Checked {
        if let Some(accepted) = self.order.iter_mut().filter_map(|order| order.last_mut()).next() {
            accepted.push_back(facts.key);
        }
        let bound = self.policy(facts).queue_size_max;
        let count = waiting.iter().filter(|sent| sent.facts.level == facts.level).count();
        match bound > 0 && count >= bound {
            true => Err(format!("a request was accepted behind {count} others, the bound is {bound}")),
            false => Ok(()),
        }
    }

    fn refused(&mut self, facts: &Facts, status: &Status, waiting: &Waiting<'_, Facts>) -> Checked {
        let bound = self.policy(facts).queue_size_max;
        let count = waiting.iter().filter(|sent| sent.facts.level == facts.level).count();
        match status.message.ends_with("Exceeds maximum queue size") && bound > 0 && count >= bound {
            true => Ok(()),
            false => Err(format!("refused behind {count} others, the bound is {bound}: {status}")),
        }
    }

    fn answered(&mut self, key: u64, sent: &Sent<Facts>, delivery: &Delivery) -> Checked {
        let Some(order) = &mut self.order else { return Ok(()) };
        match order[sent.generation].front() {
            Some(&first) if first != key => Err(format!("request {key} is answered before request {first}")),
            _ if delivery.last => {
                order[sent.generation].pop_front();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn cut(
        &mut self,
        now_ns: u64,
        _worker: usize,
        taken: &[(&Request, Option<&Sent<Facts>>)],
        waiting: &Waiting<'_, Facts>,
    ) -> Checked {
        let taken: Vec<&Sent<Facts>> = taken.iter().filter_map(|(_, sent)| *sent).collect();
        let rows: u64 = taken.iter().map(|sent| sent.facts.rows).sum();
        let ranks: Vec<_> = taken.iter().map(|sent| Batches::rank(&sent.facts, sent.key, now_ns)).collect();
        if !ranks.is_sorted() {
            return Err(format!("a payload is out of order: {ranks:?}"));
        }
        let next = waiting.iter().min_by_key(|sent| Batches::rank(&sent.facts, sent.key, now_ns));
        if let (Some(last), Some(next)) = (ranks.last(), next)
            && Batches::rank(&next.facts, next.key, now_ns) < *last
        {
            return Err(format!("request {} was passed over by {last:?}", next.key));
        }
        if !self.is_batching {
            return if taken.len() == 1 { Ok(()) } else { Err(format!("a payload has {} requests", taken.len())) };
        }
        if rows > self.max_batch_size {
            return Err(format!("a payload has {rows} rows of {}", self.max_batch_size));
        }
        if taken.iter().any(|sent| sent.facts.columns != taken[0].facts.columns) {
            return Err("requests of different shapes are in one payload".to_owned());
        }
        let oldest_ns = taken.iter().map(|sent| sent.sent_ns).min().unwrap_or(now_ns);
        let largest = self.preferred.last().copied().unwrap_or(0);
        let is_late = self.delay_ns > 0 && now_ns - oldest_ns >= self.delay_ns;
        // Among late requests any may be the next; the condition on the next one then holds for others, or does not
        // matter.
        let grows = |next: &Sent<Facts>| {
            // Where the next one would lead beyond all preferred sizes and none was met, a batch goes without it.
            let exceeds = rows + next.facts.rows > largest && !is_late;
            let fits = rows + next.facts.rows <= self.max_batch_size && !exceeds;
            next.facts.columns == taken[0].facts.columns && fits
        };
        match next {
            Some(next) if grows(next) && !self.preferred.contains(&rows) => {
                let late = Batches::is_late(&next.facts, now_ns);
                if late { Ok(()) } else { Err(format!("{rows} rows go without request {}", next.key)) }
            }
            None if !waiting.is_stopped && !self.may_go(rows, oldest_ns, now_ns) => {
                Err(format!("{rows} rows go after {} ns", now_ns - oldest_ns))
            }
            _ => Ok(()),
        }
    }

    fn may_rest(&mut self, now_ns: u64, idle: &[usize], waiting: &Waiting<'_, Facts>) -> Checked {
        let mut queue: Vec<&Sent<Facts>> = waiting.iter().collect();
        if idle.is_empty() || queue.is_empty() {
            return Ok(());
        }
        queue.sort_by_key(|sent| Batches::rank(&sent.facts, sent.key, now_ns));
        let (mut rows, first) = (0, queue[0]);
        for sent in &queue {
            if sent.facts.columns != first.facts.columns || rows + sent.facts.rows > self.max_batch_size {
                return Err(format!("a worker sleeps beside a batch of {rows} rows that cannot grow"));
            }
            rows += sent.facts.rows;
            if self.preferred.contains(&rows) {
                return Err(format!("a worker sleeps beside a batch of a preferred size, {rows}"));
            }
        }
        let oldest_ns = queue.iter().map(|sent| sent.sent_ns).min().unwrap_or(now_ns);
        match self.may_go(rows, oldest_ns, now_ns) {
            true => Err(format!("a worker sleeps beside {rows} rows, the oldest {} ns old", now_ns - oldest_ns)),
            false => Ok(()),
        }
    }
}

const WEATHER: Weather = Weather { requests: 1_000, pause_ns: 200 * US, burst: 12, reload_every: 60, change_every: 20 };

#[test]
fn the_default_scheduler_keeps_its_promises() {
    play(200, WEATHER, Batches::alone);
}

#[test]
fn a_lost_wake_up_is_noticed() {
    let failure = catches(Mutant::LostWake, 20, WEATHER, Batches::alone);
    assert!(failure.is_some_and(|failure| failure.contains("a worker sleeps beside")));
}

#[test]
fn the_dynamic_batcher_keeps_its_promises() {
    play(800, WEATHER, Batches::random);
}

#[test]
fn answers_keep_their_order() {
    play(200, WEATHER, Batches::ordered);
}

#[test]
fn mistakes_of_the_dynamic_batcher_are_noticed() {
    for mutant in [
        Mutant::LostWake,
        Mutant::PreferredOffByOne,
        Mutant::MaxBatchIgnored,
        Mutant::DelayForgotten,
        Mutant::PriorityInverted,
        Mutant::PlaceKept,
        Mutant::TombstoneCounted,
    ] {
        assert!(catches(mutant, 100, WEATHER, Batches::random).is_some(), "{mutant:?}");
    }
    // Rare: only where no prefix of the queue has a preferred size before the removal, and one has after it.
    assert!(catches(Mutant::RemovalUnseen, 800, WEATHER, Batches::random).is_some());
    assert!(catches(Mutant::OrderForgotten, 20, WEATHER, Batches::ordered).is_some());
}
