//! Metrics that a model keeps (python_backend.md section 3, "MetricFamily").
//!
//! They are the process's custom ones, like those of libraries, and known to the worker by numbers. A number is never
//! used twice, so that what is told of something that is gone already means nothing else. With the worker they all go.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::marshal::{Malformed, Value, Writer};
use crate::observe::metrics::{Family, Kind, MAX_SERIES, Metric, MetricError, Registry};
use crate::request::Status;

/// Handles that one worker may have: many may stand for one series.
const HANDLES_MAX: usize = 4 * MAX_SERIES;

/// `TRITONSERVER_MetricKind`
const COUNTER: u32 = 0;
const GAUGE: u32 = 1;
const HISTOGRAM: u32 = 2;

/// Operations on a metric's value; `kinds.py` has the same numbers.
const INCREMENT: u32 = 0;
const SET: u32 = 1;
const OBSERVE: u32 = 2;

const FAMILY_IS_GONE: &str = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The \
                              'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have \
                              been deleted.";

/// What a question comes to: the answer, or why there is none.
type Outcome = Result<Writer, Status>;

/// Those of one worker. See the [module](self).
pub struct Metrics {
    registry: Registry,
    handles: Mutex<Handles>,
}

#[derive(Default)]
struct Handles {
    numbers_so_far: u64,
    families: HashMap<u64, Family>,
    metrics: HashMap<u64, Held>,
}

struct Held {
    family: u64,
    metric: Metric,
    changes: u64,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Metrics {
        Metrics { registry: registry.clone(), handles: Mutex::default() }
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// (name, description, kind) -> number
    pub fn add_family(&self, values: &[Value<'_>]) -> Result<Outcome, Malformed> {
        let [name, description, kind] = values else { return Err(Malformed::Form) };
        let kind = match kind.as_int()? {
            COUNTER => Kind::Counter,
            GAUGE => Kind::Gauge,
            HISTOGRAM => Kind::Histogram,
            _ => return Err(Malformed::Form),
        };
        let made = self.registry.custom_family(&name.as_text()?, &description.as_text()?, kind);
        Ok(made.map_err(refused).and_then(|family| {
            self.handles().add(|handles, number| {
                handles.families.insert(number, family);
            })
        }))
    }

    /// (family, labels, bounds of a histogram or None) -> number
    pub fn add_metric(&self, values: &[Value<'_>]) -> Result<Outcome, Malformed> {
        let [family, labels, bounds] = values else { return Err(Malformed::Form) };
        let number: u64 = family.as_int()?;
        let labels = labels.as_sequence()?.iter().map(|pair| {
            let [name, value] = pair.as_tuple()?;
            Ok((name.as_text()?, value.as_text()?))
        });
        let labels = labels.collect::<Result<Vec<_>, Malformed>>()?;
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        let bounds = bounds.optional(|bounds| bounds.as_sequence()?.iter().map(Value::as_float).collect())?;
        let bounds: Vec<f64> = bounds.unwrap_or_default();
        let family = self.handles().families.get(&number).cloned();
        let made = family.ok_or_else(|| Status::internal(FAMILY_IS_GONE));
        let made = made.and_then(|family| family.metric(&labels, &bounds).map_err(refused));
        Ok(made.and_then(|metric| {
            self.handles().add(|handles, of_metric| {
                handles.metrics.insert(of_metric, Held { family: number, metric, changes: 0 });
            })
        }))
    }

    /// (metric, operation, value). The worker has looked whether the metric's kind can do that.
    pub fn change(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [metric, operation, value] = values else { return Err(Malformed::Form) };
        let (number, value): (u64, f64) = (metric.as_int()?, value.as_float()?);
        let operation: u32 = operation.as_int()?;
        let mut handles = self.handles();
        let Some(held) = handles.metrics.get_mut(&number) else { return Ok(()) };
        held.changes += 1;
        // What is refused changes nothing.
        let _ = match operation {
            INCREMENT => held.metric.increment(value),
            SET => held.metric.set(value),
            OBSERVE => held.metric.observe(value),
            _ => return Err(Malformed::Form),
        };
        Ok(())
    }

    /// (metric) -> (value, changes so far)
    pub fn value(&self, values: &[Value<'_>]) -> Result<Outcome, Malformed> {
        let [metric] = values else { return Err(Malformed::Form) };
        let number: u64 = metric.as_int()?;
        let handles = self.handles();
        let Some(held) = handles.metrics.get(&number) else { return Ok(Err(Status::internal(FAMILY_IS_GONE))) };
        Ok(held.metric.value().map_err(refused).map(|value| {
            let mut writer = Writer::default();
            writer.tuple(2);
            writer.float(value);
            writer.int(held.changes);
            writer
        }))
    }

    /// (metric)
    pub fn drop_metric(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [metric] = values else { return Err(Malformed::Form) };
        let number: u64 = metric.as_int()?;
        let gone = self.handles().metrics.remove(&number);
        drop(gone);
        Ok(())
    }

    /// (family): its metrics go with it.
    pub fn drop_family(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [family] = values else { return Err(Malformed::Form) };
        let number: u64 = family.as_int()?;
        let mut handles = self.handles();
        let family = handles.families.remove(&number);
        let metrics: Vec<_> = handles.metrics.extract_if(|_, held| held.family == number).collect();
        drop(handles);
        drop((metrics, family));
        Ok(())
    }

    /// The worker is gone.
    pub fn end(&self) {
        let handles = std::mem::take(&mut *self.handles());
        drop(handles);
    }
}

impl Handles {
    fn add(&mut self, keep: impl FnOnce(&mut Handles, u64)) -> Outcome {
        if self.families.len() + self.metrics.len() >= HANDLES_MAX {
            return Err(Status::unavailable(format!("a model's instance may hold {HANDLES_MAX} metrics at most")));
        }
        let number = self.numbers_so_far;
        self.numbers_so_far += 1;
        keep(self, number);
        let mut writer = Writer::default();
        writer.int(number);
        Ok(writer)
    }
}

fn refused(error: MetricError) -> Status {
    match error {
        MetricError::TooMany => Status::unavailable(error.to_string()),
        MetricError::Unsupported { .. } => Status::unsupported(error.to_string()),
        _ => Status::invalid(error.to_string()),
    }
}
