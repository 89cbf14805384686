//! Families whose samples come and go with their handles: backends' own metrics, and the server's gauges.
//!
//! The registry only points at series; the handles own them. When a model is unloaded its backend's handles go, and its
//! samples vanish from the next scrape without further clean-up (contract/metrics.md section 2, custom metrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::exposition::{Exposition, Kind, Value, is_label_name, is_metric_name, push_label};
use super::values::{Count, Distribution, Level};

/// Families and series that code of models may have at once: it can make any number. The server's own are not among
/// them: each loaded version has a few, and names that clients send have bounds of their own.
pub const MAX_SERIES: usize = 16_384;

/// Bytes of help text, or of all labels of one series.
pub const MAX_TEXT_BYTES: usize = 16 * 1024;

/// Bounds of one histogram: each is a line of the page.
pub const MAX_BOUNDS: usize = 1_024;

/// Why a family or a series is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    #[error("invalid metric name '{0}'")]
    InvalidName(String),
    #[error("invalid label name '{0}'")]
    InvalidLabel(String),
    #[error("label '{0}' is given twice")]
    DuplicateLabel(String),
    #[error("metric family '{0}' belongs to the server")]
    Reserved(String),
    #[error("metric family '{name}' exists already as a {kind}")]
    OtherKind { name: String, kind: Kind },
    #[error("metric family '{0}' exists already with these labels")]
    Taken(String),
    #[error("a metric's texts may have {MAX_TEXT_BYTES} bytes at most")]
    TooLong,
    #[error("the server holds {MAX_SERIES} metrics at most")]
    TooMany,
    #[error("TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.")]
    NotMonotonic,
    #[error("TRITONSERVER_METRIC_KIND_{kind} does not support {what}")]
    Unsupported { kind: &'static str, what: &'static str },
    #[error("bucket boundaries of a histogram are finite and strictly increasing numbers, {MAX_BOUNDS} at most")]
    InvalidBounds,
}

/// A server's own metrics, or the process's custom ones. Clones share them.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Inner>,
}

impl Registry {
    /// The custom metrics of the process, which every server in it shows: the call that makes one names no server
    /// (contract/c_api.md section 4, custom metrics). Names of servers' own families are refused.
    pub fn of_process() -> &'static Registry {
        static OF_PROCESS: OnceLock<Registry> = OnceLock::new();
        OF_PROCESS.get_or_init(Registry::custom)
    }

    fn custom() -> Registry {
        Registry { inner: Arc::new(Inner { is_custom: true, ..Inner::default() }) }
    }

    /// A family of counters. A second call with the same name shares the first one's family, its help included.
    pub fn counter_family(&self, name: &str, help: &str) -> Result<Family, MetricError> {
        self.custom_family(name, help, Kind::Counter)
    }

    /// A family of the server's own, such as that of a built-in backend. Its name may have the server's prefix, and the
    /// series of this handle are not among the [`MAX_SERIES`]: a bounded number for each loaded version.
    pub fn own_family(&self, name: &str, help: &str, kind: Kind) -> Result<Family, MetricError> {
        self.family(name, help, kind, false)
    }

    /// A family of any kind; otherwise as [`Registry::counter_family`].
    pub fn custom_family(&self, name: &str, help: &str, kind: Kind) -> Result<Family, MetricError> {
        if self.inner.is_custom && super::families::is_own(name) {
            return Err(MetricError::Reserved(name.to_owned()));
        }
        self.family(name, help, kind, self.inner.is_custom)
    }

    /// A gauge of the server's own whose callback is called when the metrics are read; `read` must not block. Gone when
    /// the handle is dropped.
    pub fn gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<CallbackMetric, MetricError> {
        self.observe(name, help, Kind::Gauge, labels, Box::new(move || Value::Real(read())))
    }

    /// A counter of fractions, such as seconds; otherwise as [`Registry::counter`].
    pub fn real_counter(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<CallbackMetric, MetricError> {
        self.observe(name, help, Kind::Counter, labels, Box::new(move || Value::Real(read())))
    }

    /// A counter whose callback is called when the metrics are read; otherwise as [`Registry::gauge`].
    pub fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<CallbackMetric, MetricError> {
        self.observe(name, help, Kind::Counter, labels, Box::new(move || Value::Integer(read())))
    }

    /// Calls `each` with the labels, by name, and the value of every sample of a family; not at all if there is none,
    /// or for a family of histograms.
    pub fn read(&self, family: &str, mut each: impl FnMut(&[(String, String)], f64)) {
        let found = self.inner.families().get(family).and_then(Weak::upgrade);
        let Some(found) = found else { return };
        // As in a rendering: callbacks are called without the lock.
        let series: Vec<_> = found.series().values().filter_map(Weak::upgrade).collect();
        for series in series {
            if let Some(value) = series.source.read() {
                each(&series.labels, value.as_f64());
            }
        }
    }

    /// Writes every family that has a sample, by name.
    pub(super) fn render(&self, exposition: &mut Exposition) {
        let families: Vec<_> = self.inner.families().values().filter_map(Weak::upgrade).collect();
        for family in families {
            // The series are read without the lock: a callback may be slow, and the last handle may go meanwhile.
            let series: Vec<_> = family.series().values().filter_map(Weak::upgrade).collect();
            // A family that the server has too: Triton's, or one of the process, under names that programs often use.
            let is_shared = self.inner.is_custom && exposition.has_family(&family.name);
            let mut own = Exposition::new(exposition.format());
            let target = if is_shared { &mut own } else { &mut *exposition };
            let mut samples = target.family(&family.name, &family.help, family.kind);
            for series in series {
                match &series.source {
                    SeriesSource::Distribution(values) => {
                        samples.histogram(&series.label_text, values.bounds(), &values.counts(), values.sum(), None);
                    }
                    source => source.read().into_iter().for_each(|value| samples.sample(&series.label_text, value)),
                }
            }
            if is_shared {
                exposition.add_to_family(&family.name, own);
            }
        }
    }

    fn family(&self, name: &str, help: &str, kind: Kind, is_counted: bool) -> Result<Family, MetricError> {
        if !is_metric_name(name) {
            return Err(MetricError::InvalidName(excerpt(name)));
        }
        if help.len() > MAX_TEXT_BYTES || name.len() > MAX_TEXT_BYTES {
            return Err(MetricError::TooLong);
        }
        if super::families::is_reserved(name) {
            // Applications may add to a family of Triton's, as they can in Triton.
            match super::families::kind_of_core(name) {
                _ if !self.inner.is_custom => return Err(MetricError::Reserved(name.to_owned())),
                found if found == kind => {}
                found => return Err(MetricError::OtherKind { name: name.to_owned(), kind: found }),
            }
        }
        let mut families = self.inner.families();
        if let Some(cell) = families.get(name).and_then(Weak::upgrade) {
            // If this is the last holder by now, its drop takes the lock.
            drop(families);
            if cell.kind != kind {
                return Err(MetricError::OtherKind { name: name.to_owned(), kind: cell.kind });
            }
            if is_counted {
                cell.place.take()?;
            }
            return Ok(Family { cell, is_counted });
        }
        let place = Place::of(&Arc::downgrade(&self.inner));
        if is_counted {
            place.take()?;
        }
        let (name, help) = (name.to_owned(), help.to_owned());
        let cell = Arc::new(FamilyCell { name: name.clone(), help, kind, series: Mutex::default(), place });
        families.insert(name, Arc::downgrade(&cell));
        Ok(Family { cell, is_counted })
    }

    fn observe(
        &self,
        name: &str,
        help: &str,
        kind: Kind,
        labels: &[(&str, &str)],
        read: Box<dyn Fn() -> Value + Send + Sync>,
    ) -> Result<CallbackMetric, MetricError> {
        match self.own_family(name, help, kind)?.add(labels, SeriesSource::Callback(read))? {
            (series, true) => Ok(CallbackMetric { _series: series }),
            (_, false) => Err(MetricError::Taken(name.to_owned())),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.inner.families().keys()).finish()
    }
}

/// Metrics that differ in their labels. Clones share it.
#[derive(Clone)]
pub struct Family {
    cell: Arc<FamilyCell>,
    /// Series that this handle refers to have a place among the [`MAX_SERIES`].
    is_counted: bool,
}

impl Family {
    /// The counter with these labels, in any order; handles with equal labels share one value.
    pub fn counter(&self, labels: &[(&str, &str)]) -> Result<Counter, MetricError> {
        let (series, _) = self.add(labels, SeriesSource::Count(Count::default()))?;
        match &series.source {
            SeriesSource::Count(_) => Ok(Counter { series }),
            _ => Err(MetricError::Taken(self.cell.name.clone())),
        }
    }

    /// The metric of the family's kind with these labels; `bounds` are those of a histogram. Handles with equal labels
    /// share one series, and with it the bounds of the first one.
    pub fn metric(&self, labels: &[(&str, &str)], bounds: &[f64]) -> Result<Metric, MetricError> {
        let source = match self.cell.kind {
            Kind::Counter => SeriesSource::Count(Count::default()),
            Kind::Histogram => SeriesSource::Distribution(Distribution::new(checked_bounds(bounds)?)),
            Kind::Gauge | Kind::Summary => SeriesSource::Level(Level::default()),
        };
        let (series, _) = self.add(labels, source)?;
        match &series.source {
            SeriesSource::Callback(_) => Err(MetricError::Taken(self.cell.name.clone())),
            _ => Ok(Metric { series }),
        }
    }

    /// The series with these labels, and whether it is new; `source` is used for a new one only.
    fn add(&self, labels: &[(&str, &str)], source: SeriesSource) -> Result<(Arc<Series>, bool), MetricError> {
        let (series, is_new) = self.cell.add(labels, source, self.is_counted)?;
        // The server may have made it: the handle of a model can keep it when the server has dropped its own.
        if self.is_counted {
            series.place.take()?;
        }
        Ok((series, is_new))
    }

    pub fn name(&self) -> &str {
        &self.cell.name
    }

    pub fn kind(&self) -> Kind {
        self.cell.kind
    }
}

/// Without a last bound of infinity, which every histogram has in any case.
fn checked_bounds(bounds: &[f64]) -> Result<&[f64], MetricError> {
    let bounds = bounds.strip_suffix(&[f64::INFINITY]).unwrap_or(bounds);
    let are_increasing = bounds.windows(2).all(|pair| matches!(pair, [low, high] if low < high));
    match are_increasing && bounds.iter().all(|bound| bound.is_finite()) && bounds.len() <= MAX_BOUNDS {
        true => Ok(bounds),
        false => Err(MetricError::InvalidBounds),
    }
}

/// Handle of one counter. Its sample is shown as long as a handle lives.
#[derive(Clone)]
pub struct Counter {
    series: Arc<Series>,
}

impl Counter {
    /// Wait-free.
    pub fn increment(&self, amount: u64) {
        if let SeriesSource::Count(count) = &self.series.source {
            count.add_whole(amount);
        }
    }

    pub fn value(&self) -> f64 {
        self.series.source.read().map_or(0.0, Value::as_f64)
    }
}

/// Handle of one metric of any kind, for the C API: operations that its kind does not have are refused. Its samples are
/// shown as long as a handle lives. No call takes a lock.
pub struct Metric {
    series: Arc<Series>,
}

impl Metric {
    pub fn kind(&self) -> Kind {
        self.series.family.kind
    }

    pub fn value(&self) -> Result<f64, MetricError> {
        self.series.source.read().map(Value::as_f64).ok_or_else(|| self.unsupported("Value"))
    }

    pub fn increment(&self, amount: f64) -> Result<(), MetricError> {
        match &self.series.source {
            // A counter that is no finite number could never grow again.
            SeriesSource::Count(_) if !amount.is_finite() || amount < 0.0 => return Err(MetricError::NotMonotonic),
            SeriesSource::Count(count) => count.add_real(amount),
            SeriesSource::Level(level) => level.add(amount),
            SeriesSource::Distribution(_) | SeriesSource::Callback(_) => return Err(self.unsupported("Increment")),
        }
        Ok(())
    }

    pub fn set(&self, value: f64) -> Result<(), MetricError> {
        let SeriesSource::Level(level) = &self.series.source else { return Err(self.unsupported("Set")) };
        level.set(value);
        Ok(())
    }

    pub fn observe(&self, value: f64) -> Result<(), MetricError> {
        let SeriesSource::Distribution(values) = &self.series.source else { return Err(self.unsupported("Observe")) };
        values.observe(value);
        Ok(())
    }

    fn unsupported(&self, what: &'static str) -> MetricError {
        let kind = match self.kind() {
            Kind::Counter => "COUNTER",
            Kind::Gauge => "GAUGE",
            Kind::Histogram => "HISTOGRAM",
            Kind::Summary => "SUMMARY",
        };
        MetricError::Unsupported { kind, what }
    }
}

/// Keeps a callback's sample in the exposition.
#[must_use = "the sample vanishes with its handle"]
pub struct CallbackMetric {
    _series: Arc<Series>,
}

#[derive(Default)]
struct Inner {
    families: Mutex<BTreeMap<String, Weak<FamilyCell>>>,
    /// Families and series that code of models has.
    taken: AtomicUsize,
    /// Names of servers' own families are refused.
    is_custom: bool,
}

impl Inner {
    fn families(&self) -> MutexGuard<'_, BTreeMap<String, Weak<FamilyCell>>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the [`MAX_SERIES`], or none for what is the server's alone.
struct Place {
    registry: Weak<Inner>,
    is_taken: AtomicBool,
}

impl Place {
    /// Without one.
    fn of(registry: &Weak<Inner>) -> Place {
        Place { registry: Weak::clone(registry), is_taken: AtomicBool::new(false) }
    }

    /// Takes one, unless this has one.
    fn take(&self) -> Result<(), MetricError> {
        let Some(registry) = self.registry.upgrade().filter(|_| !self.is_taken.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let more = |taken| (taken < MAX_SERIES).then_some(taken + 1);
        let taken = registry.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|_| MetricError::TooMany)?;
        if self.is_taken.swap(true, Ordering::Relaxed) {
            // Another thread was faster.
            registry.taken.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade().filter(|_| *self.is_taken.get_mut()) {
            registry.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

type Labels = Vec<(String, String)>;

struct FamilyCell {
    name: String,
    help: String,
    kind: Kind,
    series: Mutex<BTreeMap<Labels, Weak<Series>>>,
    place: Place,
}

impl FamilyCell {
    /// See [`Family::add`]. A new one that `is_counted` has a place before it is shown.
    fn add(
        self: &Arc<FamilyCell>,
        labels: &[(&str, &str)],
        source: SeriesSource,
        is_counted: bool,
    ) -> Result<(Arc<Series>, bool), MetricError> {
        let labels = sorted(labels, self.kind)?;
        let mut all = self.series();
        if let Some(series) = all.get(&labels).and_then(Weak::upgrade) {
            drop(all);
            return Ok((series, false));
        }
        let place = Place::of(&self.place.registry);
        if is_counted {
            place.take()?;
        }
        let mut label_text = String::new();
        labels.iter().for_each(|(name, value)| push_label(&mut label_text, name, value));
        let family = Arc::clone(self);
        let series = Arc::new(Series { labels: labels.clone(), label_text, source, family, place });
        all.insert(labels, Arc::downgrade(&series));
        Ok((series, true))
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<Labels, Weak<Series>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FamilyCell {
    fn drop(&mut self) {
        if let Some(registry) = self.place.registry.upgrade() {
            let mut families = registry.families();
            // A family of the same name may have come meanwhile.
            if families.get(&self.name).is_some_and(|cell| cell.strong_count() == 0) {
                families.remove(&self.name);
            }
        }
    }
}

struct Series {
    labels: Labels,
    label_text: String,
    source: SeriesSource,
    family: Arc<FamilyCell>,
    place: Place,
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut all = self.family.series();
        if all.get(&self.labels).is_some_and(|series| series.strong_count() == 0) {
            all.remove(&self.labels);
        }
    }
}

enum SeriesSource {
    Count(Count),
    Level(Level),
    Distribution(Distribution),
    Callback(Box<dyn Fn() -> Value + Send + Sync>),
}

impl SeriesSource {
    /// `None` for a histogram, which is more than one value.
    fn read(&self) -> Option<Value> {
        match self {
            SeriesSource::Count(count) => Some(count.read()),
            SeriesSource::Level(level) => Some(level.read()),
            SeriesSource::Callback(read) => Some(read()),
            SeriesSource::Distribution(_) => None,
        }
    }
}

fn sorted(labels: &[(&str, &str)], kind: Kind) -> Result<Labels, MetricError> {
    let bytes = labels.iter().fold(0usize, |sum, (name, value)| sum.saturating_add(name.len() + value.len()));
    if bytes > MAX_TEXT_BYTES {
        return Err(MetricError::TooLong);
    }
    let mut sorted = BTreeMap::new();
    for (name, value) in labels {
        if !is_label_name(name, kind) {
            return Err(MetricError::InvalidLabel(excerpt(name)));
        }
        if sorted.insert((*name).to_owned(), (*value).to_owned()).is_some() {
            return Err(MetricError::DuplicateLabel(excerpt(name)));
        }
    }
    Ok(sorted.into_iter().collect())
}

/// Enough of a refused name to recognise it.
fn excerpt(name: &str) -> String {
    name.chars().take(100).collect()
}

impl fmt::Debug for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Family").field(&self.cell.name).finish()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { family, label_text, .. } = &*self.series;
        write!(formatter, "{}{{{label_text}}} {}", family.name, self.value())
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { family, label_text, .. } = &*self.series;
        write!(formatter, "{}{{{label_text}}}", family.name)
    }
}

impl fmt::Debug for CallbackMetric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { family, label_text, .. } = &*self._series;
        write!(formatter, "{}{{{label_text}}}", family.name)
    }
}

#[cfg(test)]
mod tests;
