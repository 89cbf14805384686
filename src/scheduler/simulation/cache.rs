//! The default scheduler behind the response cache: a request that is answered without an execution was executed
//! before, with success, and one that was executed with success is not executed again while there is room.

use std::collections::BTreeSet;

use super::*;
use crate::cache::{Cache, HashSecret, KeyForm, LocalCache};
use crate::{Purpose, Services, create};
use nereid_memory::Slice;
use nereid_request::{DataType, InputTensor, Shape};

struct Caching {
    cache: Arc<Cache>,
    workers: usize,
    /// Different inputs that clients send.
    inputs: u64,
    /// Everything fits.
    is_roomy: bool,
    /// Inputs that were executed with success, as their answers arrived.
    resolved: BTreeSet<u64>,
    /// Keys of requests that were executed.
    executed: BTreeSet<u64>,
}

/// The request's input, and whether its answer had arrived when it was sent.
#[derive(Clone, Copy)]
struct Facts {
    input: u64,
    is_known: bool,
}

impl Caching {
    fn random(random: &mut Random) -> Caching {
        let is_roomy = random.once_in(2);
        let size = if is_roomy { 1 << 20 } else { 3_000 };
        Caching {
            cache: Arc::new(
                Cache::over(Box::new(LocalCache::new(size)), HashSecret::random(), KeyForm::default()).unwrap(),
            ),
            workers: 1 + random.below(3) as usize,
            inputs: random.one_of(&[3, 30]),
            is_roomy,
            resolved: BTreeSet::new(),
            executed: BTreeSet::new(),
        }
    }
}

impl Rules for Caching {
    type Facts = Facts;

    fn build(&mut self, _random: &mut Random) -> Scheduling {
        let spec = super::dynamic::spec("response_cache { enable: true }");
        let purpose = Purpose::of(spec);
        create(&purpose, &Services { cache: Some(Arc::clone(&self.cache)), ..Services::default() }).unwrap()
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn arrive(&mut self, random: &mut Random, request: &mut Request) -> Facts {
        let input = random.below(self.inputs);
        let mut tensor = InputTensor::new(Text::from("INPUT0"), DataType::Uint8, Shape::from_slice(&[8]));
        tensor.data.push(Slice::copy_of(&input.to_le_bytes()));
        request.inputs.push(tensor);
        Facts { input, is_known: self.resolved.contains(&input) }
    }

    fn patience(&mut self, random: &mut Random) -> Option<u64> {
        random.once_in(5).then(|| random.below(MS))
    }

    fn refused(&mut self, _facts: &Facts, status: &Status, _waiting: &Waiting<'_, Facts>) -> Checked {
        Err(format!("nothing here is refused: {status}"))
    }

    fn cut(
        &mut self,
        _now_ns: u64,
        _worker: usize,
        taken: &[(&Request, Option<&Sent<Facts>>)],
        _waiting: &Waiting<'_, Facts>,
    ) -> Checked {
        for sent in taken.iter().filter_map(|(_, sent)| *sent) {
            self.executed.insert(sent.key);
            if self.is_roomy && sent.facts.is_known {
                return Err(format!("input {} is executed although its answer was known", sent.facts.input));
            }
        }
        Ok(())
    }

    fn may_rest(&mut self, _now_ns: u64, idle: &[usize], waiting: &Waiting<'_, Facts>) -> Checked {
        match !idle.is_empty() && waiting.iter().next().is_some() {
            true => Err("a worker sleeps beside a request".to_owned()),
            false => Ok(()),
        }
    }

    fn answered(&mut self, key: u64, sent: &Sent<Facts>, delivery: &Delivery) -> Checked {
        let response = delivery.response.as_ref().ok_or("an end without an answer")?;
        if response.error.is_some() {
            return Ok(());
        }
        if self.executed.contains(&key) {
            self.resolved.insert(sent.facts.input);
            return Ok(());
        }
        match self.resolved.contains(&sent.facts.input) {
            true => Ok(()),
            false => Err(format!("input {} was never executed with success, and is answered", sent.facts.input)),
        }
    }
}

const WEATHER: Weather = Weather { requests: 600, pause_ns: 200 * US, burst: 8, reload_every: 40, change_every: 20 };

#[test]
fn what_is_cached_was_executed_with_success() {
    play(150, WEATHER, Caching::random);
}

#[test]
fn a_failure_in_the_cache_is_noticed() {
    let failure = catches(Mutant::FailureCached, 20, WEATHER, Caching::random);
    assert!(failure.is_some_and(|failure| failure.contains("was never executed with success")));
}
