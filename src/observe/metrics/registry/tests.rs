//! Tests of custom metrics: which handles share a series, how long it is shown, and what is refused.

use std::sync::atomic::AtomicU64;

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
    assert_eq!(family.cell.series().len(), 1, "the family drops it, too");
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
    let same = registry.custom_family("d", "", Kind::Counter).unwrap().metric(&[], &[]).unwrap();
    same.increment(0.25).unwrap();
    same.increment(0.25).unwrap();
    same.increment(0.0).unwrap();
    assert_eq!((other.value(), same.value()), (2.5, Ok(2.5)));
    for bad in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(same.increment(bad), Err(MetricError::NotMonotonic));
    }
    assert!(text(&registry).ends_with("d 2.5\n"));
}

/// contract/metrics.md section 2, custom metrics: the operations of each kind, and the errors of the others.
#[test]
fn a_kind_does_what_it_can_and_refuses_the_rest() {
    let registry = Registry::default();
    let of = |name, kind, bounds: &[f64]| {
        registry.custom_family(name, name, kind).and_then(|family| family.metric(&[("a", "b")], bounds)).unwrap()
    };
    let (counter, gauge) = (of("c", Kind::Counter, &[]), of("g", Kind::Gauge, &[]));
    let histogram = of("h", Kind::Histogram, &[0.5, 2.0]);
    assert_eq!([counter.kind(), gauge.kind(), histogram.kind()], [Kind::Counter, Kind::Gauge, Kind::Histogram]);
    let text_of = |result: Result<(), MetricError>| result.map_err(|error| error.to_string());
    let unsupported = |kind, what| Err(format!("TRITONSERVER_METRIC_KIND_{kind} does not support {what}"));
    assert_eq!(text_of(counter.set(1.0)), unsupported("COUNTER", "Set"));
    assert_eq!(text_of(counter.observe(1.0)), unsupported("COUNTER", "Observe"));
    assert_eq!(text_of(gauge.observe(1.0)), unsupported("GAUGE", "Observe"));
    assert_eq!(text_of(histogram.increment(1.0)), unsupported("HISTOGRAM", "Increment"));
    assert_eq!(text_of(histogram.set(1.0)), unsupported("HISTOGRAM", "Set"));
    assert_eq!(text_of(histogram.value().map(drop)), unsupported("HISTOGRAM", "Value"));
    let negative = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.";
    assert_eq!(text_of(counter.increment(-1.0)), Err(negative.to_owned()));
    gauge.set(7.5).unwrap();
    gauge.increment(-10.0).unwrap();
    assert_eq!(gauge.value(), Ok(-2.5));
    [0.25, 0.5, 1.0, 9.0].into_iter().for_each(|value| histogram.observe(value).unwrap());
    let expected = "# HELP c c\n# TYPE c counter\nc{a=\"b\"} 0\n# HELP g g\n# TYPE g gauge\ng{a=\"b\"} -2.5\n\
                    # HELP h h\n# TYPE h histogram\nh_count{a=\"b\"} 4\nh_sum{a=\"b\"} 10.75\n\
                    h_bucket{a=\"b\",le=\"0.5\"} 2\nh_bucket{a=\"b\",le=\"2\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n";
    assert_eq!(text(&registry), expected);
    registry.read("h", |_, _| panic!("a histogram is no single value"));
}

#[test]
fn bounds_are_finite_increasing_and_few() {
    let registry = Registry::default();
    let family = registry.custom_family("h", "", Kind::Histogram).unwrap();
    let many: Vec<f64> = (0..=MAX_BOUNDS).map(|bound| bound as f64).collect();
    let infinite = f64::INFINITY;
    for bad in [&[1.0, 1.0][..], &[2.0, 1.0], &[f64::NAN], &[-infinite, 1.0], &[infinite, infinite], &many] {
        assert_eq!(family.metric(&[], bad).unwrap_err(), MetricError::InvalidBounds, "{bad:?}");
    }
    assert_eq!(family.metric(&[("le", "1")], &[]).unwrap_err(), MetricError::InvalidLabel("le".into()));
    let first = family.metric(&[], &[1.0, infinite]).unwrap();
    let same = family.metric(&[], &[5.0]).unwrap();
    same.observe(3.0).unwrap();
    let lines: Vec<_> = text(&registry).lines().skip(2).map(str::to_owned).collect();
    assert_eq!(lines, ["h_count 1", "h_sum 3", "h_bucket{le=\"1\"} 0", "h_bucket{le=\"+Inf\"} 1"]);
    drop((first, same));
    assert_eq!(text(&registry), "");
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
fn callbacks_are_called_at_every_reading() {
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
    let registry = Registry::custom();
    let family = registry.counter_family("many", "").unwrap();
    let mut counters: Vec<_> = (1..MAX_SERIES).map(|n| family.counter(&[("n", &n.to_string())]).unwrap()).collect();
    assert_eq!(family.counter(&[("n", "more")]).unwrap_err(), MetricError::TooMany);
    assert_eq!(registry.counter_family("other", "").unwrap_err(), MetricError::TooMany);
    assert!(family.counter(&[("n", "1")]).is_ok(), "one that exists costs nothing");
    counters.pop();
    assert!(family.counter(&[("n", "more")]).is_ok());
}

/// Twenty thousand models have series of the server's own, and code of models has as many as it may beside them.
#[test]
fn series_of_the_server_take_no_places_of_custom_ones() {
    let registry = Registry::custom();
    let name_of = |model: usize| format!("m{model}");
    let taken = || registry.inner.taken.load(Ordering::Relaxed);
    let own = registry.own_family("nereid_own_total", "", Kind::Counter).unwrap();
    let of_backend = registry.own_family("backend_total", "", Kind::Counter).unwrap();
    let series_of = |model: usize| {
        let (name, labels) = (name_of(model), name_of(model));
        let labels = [("model", labels.as_str())];
        let gauge = registry.gauge("nereid_level", "", &[("model", &name)], move || model as f64);
        (own.counter(&labels).unwrap(), of_backend.counter(&labels).unwrap(), gauge.unwrap())
    };
    let of_models: Vec<_> = (0..20_000).map(series_of).collect();
    assert_eq!(taken(), 0);
    let custom = registry.counter_family("custom_total", "").unwrap();
    let mut counters: Vec<_> =
        (1..MAX_SERIES).map(|n| custom.counter(&[("n", &n.to_string())]).expect("a place is left")).collect();
    assert_eq!(custom.counter(&[("n", "more")]).unwrap_err(), MetricError::TooMany);
    assert_eq!(registry.gauge("nereid_level", "", &[("model", "one more")], || 0.0).map(drop), Ok(()));
    let more = own.counter(&[("model", "one more")]).unwrap();
    // Whatever a model's handle keeps has a place, so that it cannot keep what unloaded models have left.
    assert_eq!(registry.counter_family("backend_total", "").unwrap_err(), MetricError::TooMany);
    counters.truncate(MAX_SERIES - 3);
    let joined = registry.counter_family("backend_total", "").unwrap();
    let kept = joined.counter(&[("model", "m7")]).unwrap();
    assert_eq!(taken(), MAX_SERIES);
    assert_eq!(joined.counter(&[("model", "m8")]).unwrap_err(), MetricError::TooMany);
    kept.increment(3);
    assert_eq!(of_models[7].1.value(), 3.0, "it is the same series");
    let page = text(&registry);
    let lines = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((lines("nereid_own_total{"), lines("backend_total{")), (20_001, 20_000));
    assert_eq!((lines("nereid_level{"), lines("custom_total{")), (20_000, MAX_SERIES - 3));
    drop((of_models, more, counters, joined, kept, own, of_backend, custom));
    assert_eq!((text(&registry).as_str(), taken()), ("", 0));
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
