//! All models of a server with their states and rates, out of two readings.

use std::collections::HashMap;

use super::figures::{Figures, GpuFigures, ModelFigures, ModelKey, ServerFigures};
use super::index::{Availability, ModelState};
use super::rates::ModelRates;
use super::source::Reading;

/// One model version.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: ModelKey,
    /// None where the server shows no index, or the index does not have it.
    pub state: Option<ModelState>,
    pub rates: ModelRates,
}

/// Sums of all models. A model that the index does not have is in no state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    pub ready: usize,
    pub changing: usize,
    pub unloaded: usize,
    pub unavailable: usize,
    pub rates: ModelRates,
}

/// One look at a server.
#[derive(Debug, Clone)]
pub struct Overview {
    pub address: String,
    pub name: String,
    pub version: String,
    pub live: bool,
    pub ready: bool,
    pub uptime_secs: Option<u64>,
    /// Sorted by name and version.
    pub rows: Vec<Row>,
    pub totals: Totals,
    pub server: ServerFigures,
    pub gpus: Vec<(String, GpuFigures)>,
    /// Refusals per second of the whole server.
    pub refused_per_s: Option<f64>,
    /// The interval; 0 with one reading only, which gives no rates.
    pub secs: f64,
    /// Why something is missing.
    pub notes: Vec<String>,
}

impl Overview {
    /// What happened from `earlier` to `now`. Without an earlier reading there are no rates.
    pub fn between(earlier: Option<&Reading>, now: &Reading) -> Overview {
        let nothing = Figures::default();
        let before = earlier.and_then(|earlier| earlier.figures.as_ref().ok());
        let figures = now.figures.as_ref().unwrap_or(&nothing);
        // Another process has counters of its own.
        let is_same = |before: &&Figures| before.server.start_secs == figures.server.start_secs;
        let before = before.filter(is_same);
        let secs = match (before, earlier) {
            (Some(_), Some(earlier)) => now.at.saturating_duration_since(earlier.at).as_secs_f64(),
            _ => 0.0,
        };
        let rates = |key: &ModelKey, model: &ModelFigures| match before {
            Some(before) => ModelRates::between(before.models.get(key), model, secs),
            None => ModelRates::between(Some(model), model, 0.0),
        };
        let models = figures.models.iter().map(|(key, model)| (key.clone(), rates(key, model)));
        let rows = joined(models.collect(), now.index.as_deref().unwrap_or_default());
        let refused = |figures: &Figures| figures.server.refused;
        let refused_per_s = before.zip(refused(figures)).filter(|_| secs > 0.0);
        Overview {
            address: now.address.clone(),
            name: now.name.clone(),
            version: now.version.clone(),
            live: now.live,
            ready: now.ready,
            uptime_secs: now.uptime_secs(),
            totals: Totals::of(&rows),
            rows,
            server: figures.server.clone(),
            gpus: figures.gpus.iter().map(|(uuid, gpu)| (uuid.clone(), gpu.clone())).collect(),
            refused_per_s: refused_per_s
                .map(|(before, now)| (now - refused(before).unwrap_or_default()).max(0.0) / secs),
            secs,
            notes: now.notes(),
        }
    }
}

/// Joins the models of the metrics with the rows of the index.
fn joined(models: Vec<(ModelKey, ModelRates)>, index: &[ModelState]) -> Vec<Row> {
    let mut of_version: HashMap<(&str, &str), usize> = HashMap::new();
    let mut ready: HashMap<&str, usize> = HashMap::new();
    for (at, state) in index.iter().enumerate() {
        of_version.entry((&state.name, &state.version)).or_insert(at);
        if state.availability() == Availability::Ready {
            ready.entry(&state.name).or_insert(at);
        }
    }
    let mut is_taken = vec![false; index.len()];
    let mut rows = Vec::with_capacity(models.len().max(index.len()));
    for (key, rates) in models {
        let (name, version) = (key.name.as_str(), key.version.as_str());
        // The series of an ensemble is of version 1, whatever version serves.
        let found = of_version.get(&(name, version)).or_else(|| ready.get(name)).copied();
        if let Some(taken) = found.and_then(|at| is_taken.get_mut(at)) {
            *taken = true;
        }
        let state = found.and_then(|at| index.get(at)).cloned();
        rows.push(Row { key, state, rates });
    }
    let rest = index.iter().zip(is_taken).filter(|(_, is_taken)| !is_taken).map(|(state, _)| Row {
        key: ModelKey { name: state.name.clone(), version: state.version.clone(), namespace: String::new() },
        state: Some(state.clone()),
        rates: ModelRates::default(),
    });
    rows.extend(rest);
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    rows
}

impl Totals {
    fn of(rows: &[Row]) -> Totals {
        let mut totals = Totals::default();
        for row in rows {
            match row.state.as_ref().map(ModelState::availability) {
                Some(Availability::Ready) => totals.ready += 1,
                Some(Availability::Changing) => totals.changing += 1,
                Some(Availability::Unloaded) => totals.unloaded += 1,
                Some(Availability::Unavailable) => totals.unavailable += 1,
                // Metrics alone do not say that a model is ready.
                None => {}
            }
            let (sum, rates) = (&mut totals.rates, &row.rates);
            for (sum, value) in [
                (&mut sum.requests_per_s, rates.requests_per_s),
                (&mut sum.failures_per_s, rates.failures_per_s),
                (&mut sum.refused_per_s, rates.refused_per_s),
                (&mut sum.inferences_per_s, rates.inferences_per_s),
                (&mut sum.executions_per_s, rates.executions_per_s),
                (&mut sum.pending, rates.pending),
                (&mut sum.in_flight, rates.in_flight),
                (&mut sum.success_total, rates.success_total),
                (&mut sum.failure_total, rates.failure_total),
            ] {
                if let Some(value) = value {
                    *sum = Some(sum.unwrap_or_default() + value);
                }
            }
        }
        let executions = totals.rates.executions_per_s.filter(|rate| *rate > 0.0);
        totals.rates.batch = executions.and_then(|rate| Some(totals.rates.inferences_per_s? / rate));
        totals
    }
}
