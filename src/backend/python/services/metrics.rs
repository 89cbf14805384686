//! Metrics that a model defines (contract/python_backend.md section 3, "MetricFamily").
//!
//! They are custom metrics of the process, like those of libraries, and the worker refers to them by numbers. A number
//! is never reused, so that a late message about a dropped metric has no effect on another. All are dropped when the
//! worker ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::marshal::{Malformed, Value, Writer};
use nereid_observe::metrics::{Family, Kind, MAX_SERIES, Metric, MetricError, Registry};
use nereid_request::Status;

/// The most handles of one worker: many may refer to one series.
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

/// The outcome of an operation: the answer, or its error.
type Outcome = Result<Writer, Status>;

/// The metrics of one worker. See the [module](self).
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

    /// (metric, operation, value). The worker has checked that the metric's kind supports it.
    pub fn change(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [metric, operation, value] = values else { return Err(Malformed::Form) };
        let (number, value): (u64, f64) = (metric.as_int()?, value.as_float()?);
        let operation: u32 = operation.as_int()?;
        let mut handles = self.handles();
        let Some(held) = handles.metrics.get_mut(&number) else { return Ok(()) };
        held.changes += 1;
        // A refused change has no effect.
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

    /// (family): its metrics are dropped with it.
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

    /// The worker has ended: drops its metrics.
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

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Code;

    fn text(value: &'static str) -> Value<'static> {
        Value::Str(value.as_bytes())
    }

    fn int(value: i128) -> Value<'static> {
        Value::Int(value)
    }

    /// The values in an answer.
    fn said(outcome: Result<Outcome, Malformed>) -> Result<Vec<f64>, (Code, String)> {
        match outcome.expect("a message of the right form") {
            Ok(writer) => {
                let bytes = writer.finish();
                let value = Value::read(&bytes).unwrap();
                let all = value.as_sequence().map_or_else(|_| vec![value.clone()], <[_]>::to_vec);
                Ok(all.iter().map(|value| value.as_float().unwrap()).collect())
            }
            Err(status) => Err((status.code, status.message.into_owned())),
        }
    }

    fn labels(pairs: &[(&'static str, &'static str)]) -> Value<'static> {
        Value::Tuple(pairs.iter().map(|(name, value)| Value::Tuple(vec![text(name), text(value)])).collect())
    }

    fn samples(registry: &Registry, family: &str) -> Vec<f64> {
        let mut values = Vec::new();
        registry.read(family, |_, value| values.push(value));
        values
    }

    #[test]
    fn a_metric_lives_from_its_making_to_its_end() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        let family = |kind| said(metrics.add_family(&[text("f"), text("help"), int(kind)]));
        assert_eq!((family(0), family(0)), (Ok(vec![0.0]), Ok(vec![1.0])), "a second one joins the first");
        assert!(family(1).is_err(), "of another kind it does not");
        let metric = |family, pairs| said(metrics.add_metric(&[int(family), labels(pairs), Value::None]));
        assert_eq!((metric(0, &[("a", "b")]), metric(1, &[("a", "b")])), (Ok(vec![2.0]), Ok(vec![3.0])));
        let change = |number, operation, value| {
            metrics.change(&[int(number), int(operation), Value::Float(value)]).unwrap();
        };
        change(2, 0, 1.5);
        change(3, 0, 2.0);
        // A refused change is counted too, so that the worker does not wait for it.
        change(3, 0, -2.0);
        change(3, 1, 7.0);
        change(99, 0, 1.0);
        let value = |number| said(metrics.value(&[int(number)]));
        assert_eq!((value(2), value(3)), (Ok(vec![3.5, 1.0]), Ok(vec![3.5, 3.0])));
        assert_eq!(samples(&registry, "f"), [3.5]);
        metrics.drop_metric(&[int(2)]).unwrap();
        assert_eq!(samples(&registry, "f"), [3.5], "the other handle holds it");
        metrics.drop_family(&[int(1)]).unwrap();
        assert!(samples(&registry, "f").is_empty());
        let gone = Err((Code::Internal, FAMILY_IS_GONE.to_owned()));
        assert_eq!((value(3), metric(1, &[])), (gone.clone(), gone));
        metrics.drop_metric(&[int(3)]).unwrap();
        assert_eq!(metric(0, &[("a", "c")]), Ok(vec![4.0]), "numbers are not used twice");
        metrics.end();
        assert!(samples(&registry, "f").is_empty() && family(1).is_ok(), "the name is free");
    }

    #[test]
    fn kinds_do_what_they_can() {
        let metrics = Metrics::new(&Registry::default());
        for (name, kind, bounds) in [("c", 0, None), ("g", 1, None), ("h", 2, Some(vec![1.0, 2.0]))] {
            let family = said(metrics.add_family(&[text(name), text(""), int(kind)])).unwrap()[0] as i128;
            let bounds = bounds
                .map_or(Value::None, |bounds: Vec<f64>| Value::Tuple(bounds.into_iter().map(Value::Float).collect()));
            let metric = said(metrics.add_metric(&[int(family), labels(&[]), bounds])).unwrap()[0] as i128;
            (0..3).for_each(|operation| metrics.change(&[int(metric), int(operation), Value::Float(4.0)]).unwrap());
            let value = said(metrics.value(&[int(metric)]));
            match kind {
                // Incremented; incremented and set; observed.
                0 | 1 => assert_eq!(value, Ok(vec![4.0, 3.0])),
                _ => {
                    let text = "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value";
                    assert_eq!(value, Err((Code::Unsupported, text.to_owned())));
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_made_says_why_and_what_is_malformed_is_refused() {
        let metrics = Metrics::new(&Registry::default());
        let status = said(metrics.add_family(&[text("no name"), text(""), int(0)])).unwrap_err();
        assert_eq!(status, (Code::InvalidArg, "invalid metric name 'no name'".to_owned()));
        assert!(metrics.add_family(&[text("f"), text(""), int(3)]).is_err());
        assert!(metrics.add_family(&[text("f"), text("")]).is_err());
        assert!(metrics.add_metric(&[int(0), int(1), Value::None]).is_err());
        assert!(metrics.change(&[int(0), text("x"), Value::Float(1.0)]).is_err());
        let family = said(metrics.add_family(&[text("f"), text(""), int(0)])).unwrap()[0] as i128;
        let metric = said(metrics.add_metric(&[int(family), labels(&[]), Value::None])).unwrap()[0] as i128;
        assert!(metrics.change(&[int(metric), int(9), Value::Float(1.0)]).is_err());
        let twice = said(metrics.add_metric(&[int(family), labels(&[("a", "b"), ("a", "c")]), Value::None]));
        assert_eq!(twice, Err((Code::InvalidArg, "label 'a' is given twice".to_owned())));
    }

    #[test]
    fn handles_are_bounded() {
        let metrics = Metrics::new(&Registry::default());
        let family = said(metrics.add_family(&[text("f"), text(""), int(0)])).unwrap()[0] as i128;
        let one = || said(metrics.add_metric(&[int(family), labels(&[]), Value::None]));
        assert!((1..HANDLES_MAX).all(|_| one().is_ok()));
        let text = format!("a model's instance may hold {HANDLES_MAX} metrics at most");
        assert_eq!(one(), Err((Code::Unavailable, text)));
    }
}
