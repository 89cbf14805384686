//! The order of measurements: which choices, how long each, and when one is better than another.
//!
//! A search sees only [`Measure`]. It begins with the unmodified configuration, tries others in short bursts, gives up
//! those whose confidence interval excludes the best one so far, measures the few that are left longer, and at the end
//! compares the best one with the unmodified configuration in pairs of fresh bursts, one after the other. Only that
//! comparison is the gain that is reported: it is not one of many, so that chance does not choose it.

mod exhaustive;
mod quick;
mod race;

use std::cell::Cell;
use std::collections::BTreeMap;

use super::plan::Search;
use super::space::{Choice, Space};
use super::statistics::{Interval, drift, paired_gain};

/// Bursts that a candidate gets until it is decided.
const BURSTS_MAX: usize = 3;
/// Candidates that are measured longer at the end, and bursts that each gets then.
const FINALISTS: usize = 3;
const FINAL_BURSTS: usize = 2;
/// Pairs of the last comparison.
const PAIRS_MIN: usize = 4;
const PAIRS_MAX: usize = 8;
/// A gain of less is none, however sure it is.
const GAIN_MIN: f64 = 0.01;
/// A mean that is higher by so much makes a candidate the next one to start from, where the intervals overlap.
const STEP_MIN: f64 = 0.02;
/// The unmodified configuration changed by more between two times: the machine is not steady.
pub const DRIFT_MAX: f64 = 0.05;

/// Whether a point keeps the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Fits,
    /// It does not, and may at a lower load.
    Slow,
    /// It does not, at any load.
    Breaks,
}

/// What a burst brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Burst {
    Measured {
        /// Values of all slices of this choice so far, and of this burst alone; more is better.
        all: Vec<f64>,
        last: Vec<f64>,
        standing: Standing,
        /// How far a limit is missed, as a factor; 1 where all are kept.
        excess: f64,
        /// The worst limit in parts of it, of this burst alone: above 1 it is missed.
        limit_used: f64,
    },
    /// The choice cannot be served, or its figures are void.
    Failed(String),
}

/// What the time is used for. Each stage ends at a part of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Search,
    Final,
    Confirm,
}

/// Why a search ends where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    Interrupted,
    /// The budget is over, before the search came to its end.
    Budget,
    Failed(String),
}

/// Measures choices: the real server, or a model of one in tests.
pub trait Measure {
    /// One burst more of a choice.
    fn burst(&mut self, choice: &Choice) -> Result<Burst, Stop>;

    /// Whether there is time for another burst of this phase.
    fn may_go_on(&self, phase: Phase) -> bool;

    /// A lower load of this choice would be no other one.
    fn is_least_load(&self, _choice: &Choice) -> bool {
        false
    }

    /// The bursts that follow are those of this pair: both get the same requests at the same times.
    fn begin_pair(&mut self, _number: usize) {}

    /// Whether the next burst of a choice is one of an earlier run.
    fn is_remembered(&self, _choice: &Choice) -> bool {
        false
    }

    /// The earlier run's further bursts of a choice do not count.
    fn forget(&mut self, _choice: &Choice) {}
}

/// What is known of a choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    pub choice: Choice,
    pub values: Vec<f64>,
    pub standing: Standing,
    pub excess: f64,
    pub bursts: usize,
    pub failure: Option<String>,
}

impl Trial {
    fn new(choice: Choice) -> Trial {
        Trial { choice, values: Vec::new(), standing: Standing::Fits, excess: 1.0, bursts: 0, failure: None }
    }

    pub fn interval(&self) -> Interval {
        Interval::of(&self.values).unwrap_or(Interval { mean: 0.0, low: f64::NEG_INFINITY, high: f64::INFINITY })
    }

    pub fn fits(&self) -> bool {
        self.failure.is_none() && self.standing == Standing::Fits
    }

    /// Better by the means: what fits first, then what misses its limits least.
    pub fn is_better_than(&self, other: &Trial) -> bool {
        match (self.failure.is_none(), other.failure.is_none()) {
            (true, false) => return true,
            (false, _) => return false,
            (true, true) => {}
        }
        match (self.fits(), other.fits()) {
            (true, true) => self.interval().mean > other.interval().mean,
            (fits, others) if fits != others => fits,
            _ => self.excess < other.excess * (1.0 - STEP_MIN),
        }
    }
}

/// How a candidate did against the best one so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contest {
    Won,
    Lost,
    Tied,
}

/// The end of a search.
#[derive(Debug, Clone)]
pub struct Found {
    pub baseline: Trial,
    /// The best one by the means; the baseline if nothing is better.
    pub best: Trial,
    /// Of the best one over the baseline, as a factor, from the last comparison; none if there was none.
    pub gain: Option<Interval>,
    /// The gain is one: its interval lies above that of chance.
    pub is_better: bool,
    /// The best one keeps the limits, and the unmodified configuration does not, in the last comparison too.
    pub is_kept_alone: bool,
    /// Something that was tried keeps the limits, or nothing was.
    pub keeps_limits: bool,
    /// The time was over before the search came to its end.
    pub is_cut: bool,
    /// The most that the baseline changed, in parts of it.
    pub drift: f64,
    /// Distinct choices that were measured.
    pub tried: usize,
    pub stopped: Option<Stop>,
}

/// A search that is on its way.
pub(crate) struct Course<'a> {
    pub space: &'a Space,
    measure: &'a mut dyn Measure,
    pub tried: BTreeMap<Choice, Trial>,
    /// Means of the baseline's bursts, in order, and where the middle and the end begin.
    steady: [Vec<f64>; 3],
    is_cut: Cell<bool>,
}

/// What one burst brought: its values, and the worst limit in parts of it. Without values it failed.
struct Last {
    values: Vec<f64>,
    limit_used: f64,
}

impl Last {
    fn mean(&self) -> Option<f64> {
        Interval::of(&self.values).map(|interval| interval.mean)
    }
}

impl Course<'_> {
    pub fn may_go_on(&self, phase: Phase) -> bool {
        let may = self.measure.may_go_on(phase);
        if !may && phase == Phase::Search {
            self.is_cut.set(true);
        }
        may
    }

    /// One burst more of a choice, and what that burst brought.
    fn burst(&mut self, choice: &Choice) -> Result<Last, Stop> {
        let burst = self.measure.burst(choice)?;
        let trial = self.tried.entry(choice.clone()).or_insert_with(|| Trial::new(choice.clone()));
        trial.bursts += 1;
        match burst {
            Burst::Measured { all, last, standing, excess, limit_used } => {
                (trial.values, trial.standing, trial.excess) = (all, standing, excess);
                trial.failure = None;
                Ok(Last { values: last, limit_used })
            }
            Burst::Failed(reason) => {
                trial.failure = Some(reason);
                Ok(Last { values: Vec::new(), limit_used: f64::INFINITY })
            }
        }
    }

    fn trial(&self, choice: &Choice) -> Trial {
        self.tried.get(choice).cloned().unwrap_or_else(|| Trial::new(choice.clone()))
    }

    /// Measures a choice with at least so many bursts. Where only a lower load may keep the limits, and loads are no
    /// dimension of the search, it is the choice at the highest load that does.
    pub fn evaluate(&mut self, choice: &Choice, bursts: usize) -> Result<Trial, Stop> {
        let mut choice = choice.clone();
        loop {
            while self.trial(&choice).bursts < bursts.max(1) {
                self.burst(&choice)?;
                let trial = self.trial(&choice);
                // What misses its limits by far is not measured longer.
                if trial.failure.is_some() || trial.standing != Standing::Fits {
                    break;
                }
            }
            let trial = self.trial(&choice);
            let Some(lower) = self.lower(&trial) else { return Ok(trial) };
            if !self.may_go_on(Phase::Search) {
                return Ok(trial);
            }
            choice = lower;
        }
    }

    /// The same configuration at a load at which it may keep its limits, where loads follow the candidate.
    fn lower(&self, trial: &Trial) -> Option<Choice> {
        let is_slow = trial.failure.is_none() && trial.standing == Standing::Slow;
        if !is_slow || self.is_lowest(&trial.choice) {
            return None;
        }
        // A load that misses the limit by a factor of eight is far too high.
        let steps = if trial.excess > 8.0 { 2 } else { 1 };
        Some(Choice { load: (trial.choice.load + steps).min(self.space.loads.wanted - 1), ..trial.choice.clone() })
    }

    /// There is no lower load for a choice, or each load stands for itself.
    fn is_lowest(&self, choice: &Choice) -> bool {
        let loads = &self.space.loads;
        loads.is_dimension || choice.load + 1 >= loads.wanted || self.measure.is_least_load(choice)
    }

    /// A candidate against the best one so far: until their intervals do not overlap, or the bursts are over.
    pub fn contest(&mut self, best: &Choice, candidate: &Choice) -> Result<(Contest, Trial), Stop> {
        let mut trial = self.evaluate(candidate, 1)?;
        loop {
            let incumbent = self.trial(best);
            if !trial.fits() || !incumbent.fits() {
                let won = trial.is_better_than(&incumbent);
                return Ok((if won { Contest::Won } else { Contest::Lost }, trial));
            }
            let (own, other) = (trial.interval(), incumbent.interval());
            if own.is_below(&other) {
                return Ok((Contest::Lost, trial));
            }
            if other.is_below(&own) {
                return Ok((Contest::Won, trial));
            }
            if trial.bursts >= BURSTS_MAX || !self.may_go_on(Phase::Search) {
                let won = own.mean > other.mean * (1.0 + STEP_MIN);
                return Ok((if won { Contest::Won } else { Contest::Tied }, trial));
            }
            if incumbent.bursts <= trial.bursts {
                self.burst(best)?;
            }
            let choice = trial.choice.clone();
            self.burst(&choice)?;
            trial = self.trial(&choice);
        }
    }

    /// Measures the baseline once more, in the middle of a run.
    pub fn remeasure(&mut self, baseline: &Choice) -> Result<(), Stop> {
        for _ in 0..2 {
            let last = self.burst(baseline)?;
            self.steady[1].extend(last.mean());
        }
        Ok(())
    }

    /// The best trials, the best first. The unmodified configuration at another load than its best is no other one.
    fn ranking(&self, baseline: &Choice) -> Vec<Trial> {
        let is_other = |trial: &&Trial| trial.choice == *baseline || trial.choice.values != baseline.values;
        let mut all: Vec<Trial> =
            self.tried.values().filter(|trial| trial.failure.is_none()).filter(is_other).cloned().collect();
        all.sort_by(|one, other| match (one.is_better_than(other), other.is_better_than(one)) {
            (true, false) => std::cmp::Ordering::Less,
            (false, true) => std::cmp::Ordering::Greater,
            _ => one.excess.total_cmp(&other.excess).then(other.interval().mean.total_cmp(&one.interval().mean)),
        });
        all
    }
}

/// Searches the space. What was found until a stop is returned with it.
pub fn search(measure: &mut dyn Measure, space: &Space, kind: Search) -> Found {
    let steady = [const { Vec::new() }; 3];
    let mut course = Course { space, measure, tried: BTreeMap::new(), steady, is_cut: Cell::new(false) };
    let baseline = space.baseline();
    let mut found = Found {
        baseline: Trial::new(baseline.clone()),
        best: Trial::new(baseline.clone()),
        gain: None,
        is_better: false,
        is_kept_alone: false,
        keeps_limits: false,
        is_cut: false,
        drift: 0.0,
        tried: 0,
        stopped: None,
    };
    let outcome = run(&mut course, &baseline, kind, &mut found);
    found.stopped = outcome.err();
    found.tried = course.tried.len();
    found.keeps_limits = course.tried.is_empty() || course.tried.values().any(Trial::fits);
    found.is_cut = course.is_cut.get();
    let [first, middle, end] = &course.steady;
    found.drift = drift(&[first, middle, end]);
    found
}

fn run(course: &mut Course<'_>, baseline: &Choice, kind: Search, found: &mut Found) -> Result<(), Stop> {
    let baseline = first_of(course, baseline, found)?;
    let searched = match kind {
        Search::Race => race::run(course, &baseline),
        Search::Exhaustive => exhaustive::run(course, &baseline),
        Search::Quick => quick::run(course, &baseline),
    };
    // What is known counts, also if the search was stopped.
    if let Err(stop) = searched {
        found.baseline = course.trial(&present(course, &baseline));
        found.best = course.ranking(&found.baseline.choice).into_iter().next().unwrap_or(found.baseline.clone());
        return Err(stop);
    }
    let baseline = settle(course, &baseline)?;
    found.baseline = course.trial(&baseline);
    let mut best = finals(course, &baseline, found)?;
    let mut is_first = true;
    // Of what misses the limits there is nothing to claim.
    while best != baseline && found.best.fits() {
        confirm(course, &baseline, &best, found)?;
        if found.best.fits() {
            return Ok(());
        }
        // By chance it kept the limits before. Is the next one better?
        let next = course.ranking(&baseline).into_iter().find(Trial::fits);
        found.gain = None;
        // The first that takes its place is compared in any case, or much would have been measured for nothing.
        match next.filter(|_| std::mem::take(&mut is_first) || course.may_go_on(Phase::Confirm)) {
            Some(next) => (best, found.best) = (next.choice.clone(), next),
            None => {
                found.best = course.trial(&baseline);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The unmodified configuration at the load at which it is best.
fn present(course: &Course<'_>, baseline: &Choice) -> Choice {
    let own = course.trial(baseline);
    let all = course.tried.values().filter(|trial| trial.choice.values == baseline.values);
    all.fold(&own, |best, trial| if trial.is_better_than(best) { trial } else { best }).choice.clone()
}

/// The same after the search, in which more may have become known of it: it may miss a limit at the load of before. At
/// another load, its drift begins anew.
fn settle(course: &mut Course<'_>, baseline: &Choice) -> Result<Choice, Stop> {
    let mut settled = present(course, baseline);
    while let Some(lower) = course.lower(&course.trial(&settled)) {
        if !course.may_go_on(Phase::Final) {
            break;
        }
        course.burst(&lower)?;
        course.burst(&lower)?;
        settled = lower;
    }
    if settled != *baseline {
        let mean = Interval::of(&course.trial(&settled).values).map(|interval| interval.mean);
        course.steady = [mean.into_iter().collect(), Vec::new(), Vec::new()];
    }
    Ok(settled)
}

/// The unmodified configuration, at the load at which it is best. Its bursts of this time are the first group of those
/// that show drift.
fn first_of(course: &mut Course<'_>, baseline: &Choice, found: &mut Found) -> Result<Choice, Stop> {
    let loads = if course.space.loads.is_dimension { course.space.loads.wanted } else { 1 };
    for load in 0..loads {
        let trial = course.evaluate(&Choice { load, ..baseline.clone() }, 2)?;
        if load == 0 || trial.is_better_than(&found.baseline) {
            found.baseline = trial;
        }
    }
    found.best = found.baseline.clone();
    if let Some(reason) = &found.baseline.failure {
        return Err(Stop::Failed(format!("the present configuration cannot be measured: {reason}")));
    }
    let values = &found.baseline.values;
    if let Some(interval) = Interval::of(values) {
        course.steady[0].push(interval.mean);
    }
    Ok(found.baseline.choice.clone())
}

/// Measures the best candidates longer, in turn; returns the best one then.
fn finals(course: &mut Course<'_>, baseline: &Choice, found: &mut Found) -> Result<Choice, Stop> {
    let ranking = course.ranking(baseline);
    let Some(top) = ranking.first().cloned() else { return Ok(baseline.clone()) };
    found.best = top.clone();
    let may_be_best = |trial: &&Trial| {
        trial.fits() == top.fits() && !trial.interval().is_below(&top.interval()) && trial.choice != *baseline
    };
    let finalists: Vec<Choice> =
        ranking.iter().filter(may_be_best).take(FINALISTS).map(|trial| trial.choice.clone()).collect();
    if finalists.len() > 1 {
        for _ in 0..FINAL_BURSTS {
            for choice in &finalists {
                if course.may_go_on(Phase::Final) {
                    course.burst(choice)?;
                }
            }
        }
    }
    // The baseline has more bursts than others; it is the best one only if nothing has a higher mean.
    let ranking = course.ranking(baseline);
    if let Some(best) = ranking.into_iter().next() {
        found.best = best;
    }
    Ok(found.best.choice.clone())
}

/// Fresh bursts of both in pairs, one after the other; every second pair begins with the other one, so that a steady
/// change of the machine favours neither.
fn confirm(course: &mut Course<'_>, baseline: &Choice, best: &Choice, found: &mut Found) -> Result<(), Stop> {
    (found.gain, found.is_better, found.is_kept_alone) = (None, false, false);
    let (mut values, mut limits) = (Vec::new(), Vec::new());
    while limits.len() < PAIRS_MAX && (limits.len() < PAIRS_MIN || course.may_go_on(Phase::Confirm)) {
        // One of an earlier run and one of now are no pair.
        if course.measure.is_remembered(baseline) != course.measure.is_remembered(best) {
            course.measure.forget(baseline);
            course.measure.forget(best);
        }
        course.measure.begin_pair(limits.len());
        let is_even = limits.len() % 2 == 0;
        let (first, second) = if is_even { (baseline, best) } else { (best, baseline) };
        let (one, other) = (course.burst(first)?, course.burst(second)?);
        let (base, new) = if is_even { (one, other) } else { (other, one) };
        let (Some(base_mean), Some(new_mean)) = (base.mean(), new.mean()) else { break };
        course.steady[2].push(base_mean);
        values.push((base_mean, new_mean));
        limits.push((base.limit_used, new.limit_used));
        if !course.trial(best).fits() {
            // The time is for the next one.
            break;
        }
    }
    (found.baseline, found.best) = (course.trial(baseline), course.trial(best));
    if limits.len() < PAIRS_MIN {
        return Ok(());
    }
    found.gain = paired_gain(&values);
    let gains = found.gain.is_some_and(|gain| gain.low > 1.0 + GAIN_MIN);
    found.is_kept_alone = found.best.fits() && is_missed(course, baseline) && are_apart(&limits);
    found.is_better = found.best.fits() && (gains || found.is_kept_alone);
    Ok(())
}

/// The unmodified configuration was measured, and keeps the limits at no load.
fn is_missed(course: &Course<'_>, baseline: &Choice) -> bool {
    let mut all = course.tried.values().filter(|trial| trial.choice.values == baseline.values);
    let trial = course.trial(baseline);
    let is_at_no_load = trial.standing == Standing::Breaks || course.is_lowest(baseline);
    trial.failure.is_none() && all.all(|trial| !trial.fits()) && is_at_no_load
}

/// Pairs of limits, each in parts of it, show that the first of a pair misses what the second keeps: the second is
/// nearer by more than chance, or all pairs say it.
fn are_apart(limits: &[(f64, f64)]) -> bool {
    let nearer: Vec<(f64, f64)> = limits.iter().map(|(base, new)| (*new, *base)).collect();
    let is_nearer = paired_gain(&nearer).is_some_and(|gain| gain.low > 1.0);
    is_nearer || limits.iter().all(|(base, new)| *base > 1.0 && *new <= 1.0)
}

#[cfg(test)]
mod tests;
