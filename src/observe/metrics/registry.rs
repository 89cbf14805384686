//! Families whose samples come and go with their handles: backends' own metrics, and the server's gauges.
//!
//! The registry only points at series; the handles own them. When a model is unloaded its backend's handles go, and
//! its samples vanish from the next scrape without anybody cleaning up (metrics.md section 2, custom metrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::exposition::{Exposition, Kind, Value, is_label_name, is_metric_name, push_label};

/// Families and series that may exist at once. Backends can make one per whatever they like.
pub const MAX_SERIES: usize = 16_384;

/// Bytes of help text, or of all labels of one series.
pub const MAX_TEXT_BYTES: usize = 16 * 1024;

/// Why a family or a series cannot be had.
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
    #[error("a counter can only be incremented by finite non-negative values")]
    NotMonotonic,
}

/// The process's custom metrics. Clones share them.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Inner>,
}

impl Registry {
    /// A family of counters. A second call with the same name shares the first one's family, its help included.
    pub fn counter_family(&self, name: &str, help: &str) -> Result<Family, MetricError> {
        self.family(name, help, Kind::Counter).map(|cell| Family { cell })
    }

    /// A gauge that is asked when somebody reads the metrics; `read` must not block. Gone when the handle is dropped.
    pub fn gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<Observed, MetricError> {
        self.observe(name, help, Kind::Gauge, labels, Box::new(move || Value::Real(read())))
    }

    /// A counter that somebody else keeps; otherwise as [`Registry::gauge`].
    pub fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Observed, MetricError> {
        self.observe(name, help, Kind::Counter, labels, Box::new(move || Value::Integer(read())))
    }

    /// Tells `each` the labels, by name, and the value of every sample of a family; nothing if there is none.
    pub fn read(&self, family: &str, mut each: impl FnMut(&[(String, String)], f64)) {
        let found = self.inner.families().get(family).and_then(Weak::upgrade);
        let Some(found) = found else { return };
        // As in a rendering: callbacks are asked without the lock.
        let series: Vec<_> = found.series().values().filter_map(Weak::upgrade).collect();
        for series in series {
            each(
                &series.labels,
                match series.source.read() {
                    Value::Integer(value) => value as f64,
                    Value::Real(value) => value,
                },
            );
        }
    }

    /// Writes every family that has a sample, by name.
    pub(super) fn render(&self, exposition: &mut Exposition) {
        let families: Vec<_> = self.inner.families().values().filter_map(Weak::upgrade).collect();
        for family in families {
            // The series are asked without the lock: a callback may be slow, and the last handle may go meanwhile.
            let series: Vec<_> = family.series().values().filter_map(Weak::upgrade).collect();
            let mut samples = exposition.family(&family.name, &family.help, family.kind);
            for series in series {
                samples.sample(&series.label_text, series.source.read());
            }
        }
    }

    fn family(&self, name: &str, help: &str, kind: Kind) -> Result<Arc<FamilyCell>, MetricError> {
        if !is_metric_name(name) {
            return Err(MetricError::InvalidName(excerpt(name)));
        }
        if help.len() > MAX_TEXT_BYTES || name.len() > MAX_TEXT_BYTES {
            return Err(MetricError::TooLong);
        }
        if super::families::is_reserved(name) {
            return Err(MetricError::Reserved(name.to_owned()));
        }
        let mut families = self.inner.families();
        if let Some(cell) = families.get(name).and_then(Weak::upgrade) {
            // Should this be the last holder by now, its drop takes the lock.
            drop(families);
            return match cell.kind == kind {
                true => Ok(cell),
                false => Err(MetricError::OtherKind { name: name.to_owned(), kind: cell.kind }),
            };
        }
        let place = Place::take(&self.inner)?;
        let (name, help) = (name.to_owned(), help.to_owned());
        let cell = Arc::new(FamilyCell { name: name.clone(), help, kind, series: Mutex::default(), place });
        families.insert(name, Arc::downgrade(&cell));
        Ok(cell)
    }

    fn observe(
        &self,
        name: &str,
        help: &str,
        kind: Kind,
        labels: &[(&str, &str)],
        read: Box<dyn Fn() -> Value + Send + Sync>,
    ) -> Result<Observed, MetricError> {
        let family = self.family(name, help, kind)?;
        match family.add(labels, Source::Callback(read))? {
            (series, true) => Ok(Observed { _series: series }),
            (_, false) => Err(MetricError::Taken(name.to_owned())),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.inner.families().keys()).finish()
    }
}

/// Counters that differ in their labels. Clones share it.
#[derive(Clone)]
pub struct Family {
    cell: Arc<FamilyCell>,
}

impl Family {
    /// The counter with these labels, in any order; handles with equal labels share one value.
    pub fn counter(&self, labels: &[(&str, &str)]) -> Result<Counter, MetricError> {
        let (series, _) = self.cell.add(labels, Source::Count(Count::default()))?;
        match &series.source {
            Source::Count(_) => Ok(Counter { series }),
            Source::Callback(_) => Err(MetricError::Taken(self.cell.name.clone())),
        }
    }

    pub fn name(&self) -> &str {
        &self.cell.name
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
        if let Source::Count(count) = &self.series.source {
            count.whole.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Adds an amount that need not be whole, as the C API does.
    pub fn increment_real(&self, amount: f64) -> Result<(), MetricError> {
        if !amount.is_finite() || amount < 0.0 {
            return Err(MetricError::NotMonotonic);
        }
        if let Source::Count(count) = &self.series.source {
            let add = |bits| Some((f64::from_bits(bits) + amount).to_bits());
            let _ = count.real_bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
        Ok(())
    }

    pub fn value(&self) -> f64 {
        match self.series.source.read() {
            Value::Integer(value) => value as f64,
            Value::Real(value) => value,
        }
    }
}

/// Keeps a callback's sample in the exposition.
#[must_use = "the sample vanishes with its handle"]
pub struct Observed {
    _series: Arc<Series>,
}

#[derive(Default)]
struct Inner {
    families: Mutex<BTreeMap<String, Weak<FamilyCell>>>,
    /// Families and series alive.
    taken: AtomicUsize,
}

impl Inner {
    fn families(&self) -> MutexGuard<'_, BTreeMap<String, Weak<FamilyCell>>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the [`MAX_SERIES`] places.
struct Place {
    registry: Weak<Inner>,
}

impl Place {
    fn take(registry: &Arc<Inner>) -> Result<Place, MetricError> {
        let more = |taken| (taken < MAX_SERIES).then_some(taken + 1);
        match registry.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Place { registry: Arc::downgrade(registry) }),
            Err(_) => Err(MetricError::TooMany),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
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
    /// The series with these labels, and whether it is new; `source` is used for a new one only.
    fn add(
        self: &Arc<FamilyCell>,
        labels: &[(&str, &str)],
        source: Source,
    ) -> Result<(Arc<Series>, bool), MetricError> {
        let labels = sorted(labels)?;
        let mut all = self.series();
        if let Some(series) = all.get(&labels).and_then(Weak::upgrade) {
            drop(all);
            return Ok((series, false));
        }
        let registry = self.place.registry.upgrade().unwrap_or_default();
        let place = Place::take(&registry)?;
        let mut label_text = String::new();
        labels.iter().for_each(|(name, value)| push_label(&mut label_text, name, value));
        let family = Arc::clone(self);
        let series = Arc::new(Series { labels: labels.clone(), label_text, source, family, _place: place });
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
    source: Source,
    family: Arc<FamilyCell>,
    _place: Place,
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut all = self.family.series();
        if all.get(&self.labels).is_some_and(|series| series.strong_count() == 0) {
            all.remove(&self.labels);
        }
    }
}

enum Source {
    Count(Count),
    Callback(Box<dyn Fn() -> Value + Send + Sync>),
}

impl Source {
    fn read(&self) -> Value {
        match self {
            Source::Callback(read) => read(),
            Source::Count(count) => {
                let whole = count.whole.load(Ordering::Relaxed);
                match f64::from_bits(count.real_bits.load(Ordering::Relaxed)) {
                    0.0 => Value::Integer(whole),
                    real => Value::Real(whole as f64 + real),
                }
            }
        }
    }
}

/// Whole amounts are kept apart from the others so that adding one is a single instruction and stays exact.
#[derive(Default)]
struct Count {
    whole: AtomicU64,
    real_bits: AtomicU64,
}

fn sorted(labels: &[(&str, &str)]) -> Result<Labels, MetricError> {
    let bytes = labels.iter().fold(0usize, |sum, (name, value)| sum.saturating_add(name.len() + value.len()));
    if bytes > MAX_TEXT_BYTES {
        return Err(MetricError::TooLong);
    }
    let mut sorted = BTreeMap::new();
    for (name, value) in labels {
        if !is_label_name(name) {
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

impl fmt::Debug for Observed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { family, label_text, .. } = &*self._series;
        write!(formatter, "{}{{{label_text}}}", family.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut exposition = Exposition::default();
        registry.render(&mut exposition);
        exposition.into_text()
    }

    #[test]
    fn samples_live_as_long_as_their_handles() {
        let registry = Registry::default();
        let family = registry.counter_family("requests", "Requests seen").unwrap();
        assert_eq!(text(&registry), "", "no sample, no heading");
        let first = family.counter(&[("model", "a")]).unwrap();
        let second = family.counter(&[("model", "b")]).unwrap();
        first.increment(2);
        second.increment(1);
        let head = "# HELP requests Requests seen\n# TYPE requests counter\n";
        assert_eq!(text(&registry), format!("{head}requests{{model=\"a\"}} 2\nrequests{{model=\"b\"}} 1\n"));
        drop(first);
        assert_eq!(text(&registry), format!("{head}requests{{model=\"b\"}} 1\n"));
        assert_eq!(family.cell.series().len(), 1, "the family forgets it, too");
        drop(family);
        assert_eq!(text(&registry), format!("{head}requests{{model=\"b\"}} 1\n"), "a series keeps its family");
        drop(second);
        assert_eq!(text(&registry), "");
        assert!(registry.inner.families().is_empty(), "nothing is left behind");
        assert_eq!(registry.inner.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn equal_names_and_labels_share_and_other_kinds_are_refused() {
        let registry = Registry::default();
        let first = registry.counter_family("shared", "first").unwrap();
        let second = registry.clone().counter_family("shared", "second").unwrap();
        let one = first.counter(&[("x", "1"), ("y", "2")]).unwrap();
        let same = second.counter(&[("y", "2"), ("x", "1")]).unwrap();
        one.increment(3);
        same.increment(4);
        assert_eq!(one.value(), 7.0);
        drop(one);
        assert_eq!(text(&registry), "# HELP shared first\n# TYPE shared counter\nshared{x=\"1\",y=\"2\"} 7\n");
        let refused = registry.gauge("shared", "", &[], || 0.0).unwrap_err();
        assert_eq!(refused, MetricError::OtherKind { name: "shared".into(), kind: Kind::Counter });
        let refused = registry.counter("shared", "", &[("x", "1"), ("y", "2")], || 0).unwrap_err();
        assert_eq!(refused, MetricError::Taken("shared".into()));
    }

    #[test]
    fn counters_take_whole_and_real_amounts_and_nothing_else() {
        let registry = Registry::default();
        let counter = registry.counter_family("c", "").unwrap().counter(&[]).unwrap();
        counter.increment(1 << 60);
        counter.increment(1);
        assert!(text(&registry).ends_with("c 1152921504606846977\n"), "whole amounts stay exact");
        let other = registry.counter_family("d", "").unwrap().counter(&[]).unwrap();
        other.increment(2);
        other.increment_real(0.25).unwrap();
        other.increment_real(0.25).unwrap();
        assert_eq!(other.value(), 2.5);
        for bad in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(other.increment_real(bad), Err(MetricError::NotMonotonic));
        }
        assert!(text(&registry).ends_with("d 2.5\n"));
    }

    #[test]
    fn a_family_can_be_read_without_its_page() {
        let registry = Registry::default();
        let read = |name: &str| {
            let mut seen = Vec::new();
            registry.read(name, |labels, value| seen.push((labels.to_vec(), value)));
            seen
        };
        assert!(read("blocks").is_empty());
        let family = registry.counter_family("blocks", "").unwrap();
        assert!(read("blocks").is_empty());
        let used = family.counter(&[("kind", "used"), ("a", "1")]).unwrap();
        used.increment(7);
        let most = registry.counter("blocks", "", &[("kind", "max")], || 9).unwrap();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [(vec![label("a", "1"), label("kind", "used")], 7.0), (vec![label("kind", "max")], 9.0)];
        assert_eq!(read("blocks"), expected);
        drop((used, most));
        assert!(read("blocks").is_empty() && read("block").is_empty());
    }

    #[test]
    fn callbacks_are_asked_at_every_reading() {
        let registry = Registry::default();
        let level = Arc::new(AtomicU64::new(5));
        let seen = Arc::clone(&level);
        let gauge = registry.gauge("nereid_level", "Level", &[], move || seen.load(Ordering::Relaxed) as f64).unwrap();
        assert!(text(&registry).ends_with("# TYPE nereid_level gauge\nnereid_level 5\n"));
        level.store(6, Ordering::Relaxed);
        assert!(text(&registry).ends_with("nereid_level 6\n"));
        let total = registry.counter("nereid_total", "Total", &[("kind", "a\"b")], || u64::MAX).unwrap();
        assert!(text(&registry).ends_with("nereid_total{kind=\"a\\\"b\"} 18446744073709551615\n"));
        drop((gauge, total));
        assert_eq!(text(&registry), "");
        assert_eq!(Arc::strong_count(&level), 1, "the callback went with its handle");
    }

    #[test]
    fn bad_names_labels_and_lengths_are_refused() {
        let registry = Registry::default();
        assert_eq!(registry.counter_family("a b", "").unwrap_err(), MetricError::InvalidName("a b".into()));
        assert_eq!(
            registry.counter_family("nv_inference_count", "").unwrap_err(),
            MetricError::Reserved("nv_inference_count".into())
        );
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        assert_eq!(registry.counter_family("a", &long).unwrap_err(), MetricError::TooLong);
        let family = registry.counter_family("a", "").unwrap();
        assert_eq!(family.counter(&[("1", "")]).unwrap_err(), MetricError::InvalidLabel("1".into()));
        assert_eq!(family.counter(&[("l", ""), ("l", "x")]).unwrap_err(), MetricError::DuplicateLabel("l".into()));
        assert_eq!(family.counter(&[("l", &long)]).unwrap_err(), MetricError::TooLong);
        assert_eq!(text(&registry), "");
    }

    #[test]
    fn the_number_of_series_is_bounded_and_places_come_back() {
        let registry = Registry::default();
        let family = registry.counter_family("many", "").unwrap();
        let mut counters: Vec<_> = (1..MAX_SERIES).map(|n| family.counter(&[("n", &n.to_string())]).unwrap()).collect();
        assert_eq!(family.counter(&[("n", "more")]).unwrap_err(), MetricError::TooMany);
        assert_eq!(registry.counter_family("other", "").unwrap_err(), MetricError::TooMany);
        assert!(family.counter(&[("n", "1")]).is_ok(), "one that exists costs nothing");
        counters.pop();
        assert!(family.counter(&[("n", "more")]).is_ok());
    }

    #[test]
    fn handles_may_come_and_go_while_others_read() {
        let registry = Registry::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let family = registry.counter_family("busy", "").unwrap();
                        family.counter(&[("a", "b")]).unwrap().increment(1);
                        text(&registry);
                    }
                });
            }
        });
        assert_eq!(text(&registry), "");
        assert_eq!(registry.inner.taken.load(Ordering::Relaxed), 0);
    }
}
