//! Tests of settings, sampling, files and spans, without a server.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use serde_json::Value;

use super::record::Finished;
use super::settings::Field::{Clear, Keep, Set};
use super::*;
use nereid_wire::otlp::Span;

const PATIENCE: Duration = Duration::from_secs(60);

/// The directory of a test, removed with this value.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-trace-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        Place(place)
    }

    fn options(&self, rate: u32) -> TraceOptions {
        let file = self.0.join("t.json").to_string_lossy().into_owned();
        TraceOptions { levels: Levels::TIMESTAMPS, rate, file, ..TraceOptions::default() }
    }

    /// The names of files, and what they hold.
    fn files(&self) -> Vec<(String, Value)> {
        let mut files: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let text = fs::read_to_string(&path).unwrap();
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}: {text}"));
                (path.file_name().unwrap().to_string_lossy().into_owned(), value)
            })
            .collect();
        files.sort_by(|one, other| one.0.cmp(&other.0));
        files
    }

    /// The same, with the number of traces that begin in each.
    fn counts(&self) -> Vec<(String, usize)> {
        let count = |value: &Value| {
            let entries = value.as_array().unwrap().iter();
            entries.filter(|entry| entry.get("model_name").is_some()).count()
        };
        self.files().into_iter().map(|(name, value)| (name, count(&value))).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes `count` requests for `model`; returns which of them, from 1, were traced.
fn requests(traces: &Traces, model: &str, count: usize) -> Vec<usize> {
    let traced = (1..=count).filter(|_| match traces.sample(model, None) {
        Some(trace) => {
            trace.identify(model, 1, b"");
            trace.time(Kind::Core, "REQUEST_START", 7);
            true
        }
        None => false,
    });
    traced.collect()
}

fn change(change: impl FnOnce(&mut Change)) -> Change {
    let mut made = Change::default();
    change(&mut made);
    made
}

#[test]
fn changes_at_a_time_leave_the_last_one() {
    let place = Place::new();
    let traces = Traces::new(TraceOptions { levels: Levels::OFF, ..place.options(1) }).unwrap();
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for levels in [Levels::OFF, Levels::TIMESTAMPS] {
                let traces = &traces;
                scope.spawn(move || traces.change(None, &change(|change| change.levels = Set(levels))).unwrap());
            }
        });
        assert_eq!(traces.is_on(), traces.table().global.can_sample());
    }
    assert!(traces.finish(PATIENCE));
}

#[test]
fn every_nth_request_is_traced_up_to_the_count() {
    for (rate, count, expected) in [
        (1, -1, vec![1, 2, 3, 4, 5, 6, 7]),
        (3, -1, vec![3, 6]),
        (2, 1, vec![2]),
        (1, 0, vec![]),
        (0, -1, vec![]),
        (1000, -1, vec![]),
    ] {
        let place = Place::new();
        let options = TraceOptions { count, ..place.options(rate) };
        let traces = Traces::new(options).unwrap();
        assert_eq!(requests(&traces, "m", 7), expected, "rate {rate}, count {count}");
        let left = if count < 0 { -1 } else { i64::from(count) - expected.len() as i64 };
        assert_eq!(traces.shown(None).count, left, "rate {rate}, count {count}");
        assert!(traces.finish(PATIENCE));
    }
}

#[test]
fn what_is_off_or_without_a_file_samples_nothing() {
    let place = Place::new();
    let off = Traces::new(TraceOptions { levels: Levels::OFF, ..place.options(1) }).unwrap();
    let nowhere = Traces::new(TraceOptions { file: String::new(), ..place.options(1) }).unwrap();
    for traces in [&off, &nowhere] {
        assert!(!traces.is_on());
        assert!(requests(traces, "m", 3).is_empty());
        assert!(traces.finish(PATIENCE));
    }
    assert_eq!(place.files(), [], "no file before the first write");
    let refused = nowhere.change(None, &change(|change| change.rate = Set(1)));
    let text = "Attempting to set invalid trace setting :trace file name is not given";
    assert_eq!(refused.unwrap_err().to_string(), text);
}

#[test]
fn files_hold_whole_arrays() {
    for (log_frequency, rate, count, requested, expected) in [
        (0, 1, -1, 3, vec![("t.json", 3)]),
        (2, 1, -1, 5, vec![("t.json.0", 2), ("t.json.1", 2), ("t.json.2", 1)]),
        (2, 1, -1, 4, vec![("t.json.0", 2), ("t.json.1", 2)]),
        // The last trace is complete: written at once.
        (0, 1, 2, 5, vec![("t.json.0", 2)]),
        (5, 1, 2, 5, vec![("t.json.0", 2)]),
        // Not so with another rate.
        (0, 2, 1, 5, vec![("t.json", 1)]),
        (5, 2, 1, 5, vec![("t.json.0", 1)]),
        (0, 1, -1, 0, vec![]),
    ] {
        let place = Place::new();
        let options = TraceOptions { count, log_frequency, ..place.options(rate) };
        let traces = Traces::new(options).unwrap();
        requests(&traces, "m", requested);
        assert!(traces.finish(PATIENCE));
        let expected: Vec<_> = expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        assert_eq!(place.counts(), expected, "every {log_frequency}, rate {rate}, count {count}, {requested} requests");
        assert_eq!(traces.counts().dropped.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_setting_that_is_replaced_has_its_traces_written() {
    let place = Place::new();
    let traces = Traces::new(place.options(2)).unwrap();
    assert_eq!(requests(&traces, "m", 3), [2]);
    traces.change(None, &change(|change| change.log_frequency = Set(9))).unwrap();
    assert_eq!(requests(&traces, "m", 3), [2], "the sampler begins anew");
    traces.change(None, &change(|change| change.rate = Set(1))).unwrap();
    assert_eq!(requests(&traces, "m", 1), [1]);
    assert!(traces.finish(PATIENCE));
    let expected = [("t.json", 1), ("t.json.0", 1), ("t.json.1", 1)].map(|(name, count)| (name.to_owned(), count));
    assert_eq!(place.counts(), expected);
}

#[test]
fn a_trace_in_flight_is_written_by_the_setting_that_sampled_it() {
    let place = Place::new();
    let traces = Traces::new(TraceOptions { log_frequency: 1, ..place.options(1) }).unwrap();
    let trace = traces.sample("m", None).unwrap();
    traces.change(None, &change(|change| change.levels = Set(Levels::OFF))).unwrap();
    assert!(!traces.is_on() && traces.sample("m", None).is_none());
    trace.identify("m", 1, b"");
    drop(trace);
    assert!(traces.finish(PATIENCE));
    assert_eq!(place.counts(), [("t.json.0".to_owned(), 1)]);
}

#[test]
fn models_have_settings_of_their_own_and_take_the_rest_from_all() {
    let place = Place::new();
    let traces = Traces::new(place.options(1000)).unwrap();
    traces.change(Some("m"), &change(|change| change.rate = Set(1))).unwrap();
    assert_eq!((traces.shown(Some("m")).rate, traces.shown(Some("n")).rate, traces.shown(None).rate), (1, 1000, 1000));
    assert_eq!((requests(&traces, "m", 2), requests(&traces, "n", 2)), (vec![1, 2], vec![]));
    traces
        .change(
            None,
            &change(|change| {
                change.rate = Set(2);
                change.count = Set(5);
            }),
        )
        .unwrap();
    let shown = traces.shown(Some("m"));
    assert_eq!((shown.rate, shown.count), (1, 5), "its own rate, the count of all");
    traces.change(Some("m"), &change(|change| change.levels = Set(Levels::OFF))).unwrap();
    assert!(requests(&traces, "m", 2).is_empty());
    // One value goes back, then the other; with the last one the override is gone.
    traces.change(Some("m"), &change(|change| change.levels = Clear)).unwrap();
    assert_eq!((traces.shown(Some("m")).levels, traces.shown(Some("m")).rate), (vec!["TIMESTAMPS"], 1));
    traces.change(Some("m"), &change(|change| change.rate = Clear)).unwrap();
    assert_eq!(traces.shown(Some("m")), traces.shown(None));
    traces.change(None, &change(|change| change.rate = Clear)).unwrap();
    assert_eq!(traces.shown(None).rate, 1000, "back to that of the start");
    assert!(traces.finish(PATIENCE));
}

/// Each value by itself: after the model's own is cleared, the model has what is set for all, also what is set later.
#[test]
fn a_cleared_value_follows_later_changes_for_all() {
    let place = Place::new();
    let traces = Traces::new(place.options(1000)).unwrap();
    type Make = fn(&mut Change, Field<u32>);
    let makers: [Make; 4] = [
        |made, to| made.rate = to,
        |made, to| {
            made.count = match to {
                Keep => Keep,
                Clear => Clear,
                Set(n) => Set(n as i32),
            }
        },
        |made, to| made.log_frequency = to,
        |made, to| {
            made.levels = match to {
                Keep => Keep,
                Clear => Clear,
                Set(n) => Set(if n % 2 == 0 { Levels::TENSORS } else { Levels::TIMESTAMPS }),
            }
        },
    ];
    for make in makers {
        let set = |model, to| traces.change(model, &change(|change| make(change, to))).unwrap();
        set(Some("m"), Set(7));
        set(None, Set(8));
        assert_ne!(traces.shown(Some("m")), traces.shown(None), "its own");
        set(Some("m"), Clear);
        assert_eq!(traces.shown(Some("m")), traces.shown(None));
        set(None, Set(9));
        assert_eq!(traces.shown(Some("m")), traces.shown(None), "what is set after that");
        // Also where another value of the model stays its own.
        traces.change(Some("m"), &change(|change| (change.rate, change.count) = (Set(3), Set(3)))).unwrap();
        set(Some("m"), Set(7));
        set(Some("m"), Clear);
        set(None, Set(6));
        let (own, of_all) = (traces.shown(Some("m")), traces.shown(None));
        assert_eq!(own.levels, of_all.levels);
        assert_eq!(own.files, of_all.files);
        assert!(own.rate == 3 || own.count == 3, "what was not cleared stays its own");
        let all = change(|change| {
            (change.levels, change.rate, change.count, change.log_frequency) = (Clear, Clear, Clear, Clear)
        });
        traces.change(Some("m"), &all).unwrap();
        traces.change(None, &all).unwrap();
        assert_eq!((traces.shown(None).rate, traces.shown(Some("m")).rate), (1000, 1000));
    }
    assert!(traces.finish(PATIENCE));
}

#[test]
fn a_setting_of_no_use_is_refused_unless_it_is_off() {
    let place = Place::new();
    let traces = Traces::new(place.options(1)).unwrap();
    for model in [None, Some("m")] {
        for (made, reason) in [
            (change(|change| change.rate = Set(0)), "sample rate must be non-zero"),
            (change(|change| change.count = Set(0)), ""),
        ] {
            let text = format!("Attempting to set invalid trace setting :{reason}");
            assert_eq!(traces.change(model, &made).unwrap_err().to_string(), text, "{model:?}");
        }
        let off = change(|change| (change.levels, change.count) = (Set(Levels::OFF), Set(0)));
        traces.change(model, &off).unwrap();
        assert_eq!(traces.shown(model).count, 0);
        traces.change(model, &change(|change| (change.levels, change.count) = (Clear, Clear))).unwrap();
    }
    assert_eq!(traces.shown(None).rate, 1, "what was refused changed nothing");
    assert!(traces.finish(PATIENCE));
}

#[test]
fn entries_are_written_in_the_format() {
    let place = Place::new();
    let levels = Levels::TIMESTAMPS.and(Levels::TENSORS);
    let traces = Traces::new(TraceOptions { levels, ..place.options(1) }).unwrap();
    let trace = traces.sample("m", None).unwrap();
    assert!(trace.records_tensors());
    trace.identify("m", 3, b"r\"1");
    trace.time(Kind::Core, "REQUEST_START", 11);
    trace.time_again(Kind::Core, "QUEUE_START", 12);
    trace.time_again(Kind::Core, "QUEUE_START", 13);
    trace.time(Kind::Compute, "COMPUTE_START", 14);
    trace.time_again(Kind::Core, "QUEUE_START", 15);
    let child = trace.child();
    child.identify("part", 1, b"");
    let tensor = |datatype, shape: &[i64], pieces: &[&[u8]]| Tensor {
        activity: "TENSOR_QUEUE_INPUT",
        name: b"IN".to_vec(),
        datatype,
        shape: shape.to_vec(),
        byte_size: pieces.iter().map(|piece| piece.len()).sum(),
        pieces: pieces.iter().map(|piece| Box::new(piece.to_vec()) as _).collect(),
    };
    let one_third = (1.0f32 / 3.0).to_le_bytes();
    let tensors: [(&str, &[&[u8]], &str); 10] = [
        ("BOOL", &[&[0, 1, 2]], "0,1,1"),
        ("INT8", &[&[255, 1]], "-1,1"),
        ("UINT8", &[&[255, 1]], "255,1"),
        ("INT16", &[&[1, 0, 255], &[255]], "1,-1"),
        ("FP32", &[&one_third], "0.333333"),
        ("FP64", &[&1e9f64.to_le_bytes()], "1e+09"),
        ("UINT64", &[&u64::MAX.to_le_bytes()], "18446744073709551615"),
        ("FP16", &[&[0, 1]], ""),
        ("BYTES", &[&[1, 0, 0, 0, b'x', 0, 0, 0, 0, 1, 0, 0, 0, b'"', 9]], "\"x\",\"\",\"\"\""),
        ("INT32", &[], ""),
    ];
    for (datatype, pieces, _) in tensors {
        trace.tensor(tensor(datatype, &[1, 2], pieces));
    }
    let (id, part) = (trace.id(), child.id());
    drop((trace, child));
    assert!(traces.finish(PATIENCE));
    let text = fs::read_to_string(place.0.join("t.json")).unwrap();
    let expected = format!(
        "[{{\"id\":{id},\"model_name\":\"m\",\"model_version\":3,\"request_id\":\"r\\\"1\"}},\
         {{\"id\":{id},\"timestamps\":[{{\"name\":\"REQUEST_START\",\"ns\":11}}]}},\
         {{\"id\":{id},\"timestamps\":[{{\"name\":\"QUEUE_START\",\"ns\":13}}]}},\
         {{\"id\":{id},\"timestamps\":[{{\"name\":\"COMPUTE_START\",\"ns\":14}}]}},\
         {{\"id\":{id},\"timestamps\":[{{\"name\":\"QUEUE_START\",\"ns\":15}}]}},\
         {{\"id\":{part},\"model_name\":\"part\",\"model_version\":1,\"parent_id\":{id}}},\
         {{\"id\":{id},\"activity\":\"TENSOR_QUEUE_INPUT\",\"tensor\":{{\"name\":\"IN\",\"data\":\"0,1,1\",\
         \"shape\":\"1,2\",\"dtype\":\"BOOL\"}}}},"
    );
    assert!(text.starts_with(&expected), "{text}\n{expected}");
    let (_, value) = place.files().pop().unwrap();
    let shown: Vec<_> = value.as_array().unwrap().iter().filter_map(|e| e["tensor"]["data"].as_str()).collect();
    assert_eq!(shown, tensors.map(|(.., shown)| shown));
    assert_eq!(id + 1, part, "ids count");
}

#[test]
fn memory_stays_bounded_however_many_traces_are_collected() {
    for (log_frequency, name) in [(0, "t.json"), (4_000_000, "t.json.0")] {
        let place = Place::new();
        let levels = Levels::TENSORS;
        let traces = Traces::new(TraceOptions { levels, log_frequency, ..place.options(1) }).unwrap();
        for number in 0..24 {
            let trace = traces.sample("m", None).unwrap();
            trace.identify("m", 1, b"");
            let data: Vec<u8> = vec![b'x'; 300_000];
            let tensor = Tensor {
                activity: "TENSOR_QUEUE_INPUT",
                name: b"IN".to_vec(),
                datatype: "UINT8",
                shape: vec![number],
                byte_size: data.len(),
                pieces: vec![Box::new(data)],
            };
            trace.tensor(tensor);
        }
        assert!(traces.finish(PATIENCE));
        assert_eq!(place.counts(), [(name.to_owned(), 24)], "spilled in between, and whole in the end");
    }
}

#[test]
fn what_cannot_be_written_is_counted() {
    let options = TraceOptions { file: "/nowhere/at/all/t.json".to_owned(), ..Place::new().options(1) };
    let traces = Traces::new(options).unwrap();
    requests(&traces, "m", 3);
    assert!(traces.finish(PATIENCE));
    assert_eq!(traces.counts().completed.load(Ordering::Relaxed), 3);
    assert_eq!(traces.counts().dropped.load(Ordering::Relaxed), 3);
}

#[test]
fn a_trace_without_end_is_cut() {
    let place = Place::new();
    let traces = Traces::new(place.options(1)).unwrap();
    let trace = traces.sample("m", None).unwrap();
    trace.identify("m", 1, b"");
    (0..5000).for_each(|ns| trace.time(Kind::Exchange, "INFER_RESPONSE_COMPLETE", ns));
    drop(trace);
    assert!(traces.finish(PATIENCE));
    assert_eq!(traces.counts().cut.load(Ordering::Relaxed), 5001 - 4096);
    assert_eq!(place.files()[0].1.as_array().unwrap().len(), 4096);
}

fn collected() -> TraceOptions {
    TraceOptions { mode: Mode::OpenTelemetry, levels: Levels::TIMESTAMPS, rate: 0, ..TraceOptions::default() }
}

const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_context_forces_a_trace_where_contexts_are_known() {
    let traces = Traces::new(TraceOptions { url: "http://127.0.0.1:9".to_owned(), ..collected() }).unwrap();
    assert!(traces.sample("m", None).is_none(), "a rate of 0 samples nothing else");
    let context = || Context::parse(PARENT, Some(b"a=1"));
    let trace = traces.sample("m", context()).unwrap();
    let text = trace.context().to_str().unwrap().to_owned();
    assert!(text.starts_with("{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-"), "{text}");
    assert!(text.ends_with(",\"tracestate\":\"a=1\"}"), "{text}");
    traces.change(None, &change(|change| change.levels = Set(Levels::OFF))).unwrap();
    assert!(traces.sample("m", context()).is_none(), "but not where traces are off");
    let place = Place::new();
    let files = Traces::new(place.options(1000)).unwrap();
    assert!(files.sample("m", context()).is_none());
}

#[test]
fn the_read_back_of_each_mode() {
    let echoed = vec![("url".to_owned(), "u".to_owned())];
    let shown = Traces::new(TraceOptions { echoed: echoed.clone(), ..collected() }).unwrap().shown(None);
    let expected = SettingView {
        levels: vec!["TIMESTAMPS"],
        rate: 0,
        count: -1,
        files: None,
        mode: "opentelemetry",
        more: echoed,
    };
    assert_eq!(shown, expected);
    let shown = Traces::new(TraceOptions::default()).unwrap().shown(None);
    assert_eq!((shown.levels, shown.files, shown.mode), (vec!["OFF"], Some((0, String::new())), "triton"));
}

/// The spans of a trace that `record` fills as a server would.
fn spans(record: impl FnOnce(&Trace)) -> Vec<Span> {
    let queue = writer::Queue::new(&collected());
    let ids: Arc<context::Ids> = Arc::default();
    let setting = Arc::new(Setting::new(Values::of_start(&collected()), &collected(), &queue));
    let trace = Trace::begin(Arc::clone(&setting), queue, &ids, Context::parse(PARENT, None));
    record(&trace);
    let (position, entries) = trace.taken();
    let finished = Finished { setting, entries, bytes: 0, cut: 0, position, root: trace.id() };
    let spans = spans::spans_of(&finished, &ids, spans::Epoch::now(0));
    assert!(finished.spans() >= spans.len(), "room is reserved for all");
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no span {name}"));
    assert!(found.next().is_none(), "one {name}");
    span
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| &*event.name).collect()
}

#[test]
fn a_trace_becomes_a_tree_of_spans() {
    let spans = spans(|trace| {
        trace.time(Kind::Exchange, "HTTP_RECV_START", 1);
        trace.time(Kind::Exchange, "HTTP_RECV_END", 2);
        trace.identify("whole", 2, b"r1");
        trace.time(Kind::Core, "REQUEST_START", 3);
        trace.time(Kind::Core, "QUEUE_START", 4);
        let child = trace.child();
        child.identify("part", 1, b"r1");
        child.time(Kind::Core, "REQUEST_START", 5);
        for (name, ns) in [("A_START", 6), ("ALONE", 7), ("B_START", 8), ("B_END", 9), ("A_END", 10), ("ALONE_TOO", 11)]
        {
            child.time(Kind::Custom, name, ns);
        }
        for (name, ns) in
            [("COMPUTE_START", 6), ("COMPUTE_INPUT_END", 7), ("COMPUTE_OUTPUT_START", 8), ("COMPUTE_END", 9)]
        {
            child.time(Kind::Compute, name, ns);
        }
        child.time(Kind::Core, "REQUEST_END", 12);
        trace.time(Kind::Exchange, "INFER_RESPONSE_COMPLETE", 13);
        trace.time(Kind::Core, "REQUEST_END", 14);
        trace.time(Kind::Exchange, "HTTP_SEND_START", 15);
        trace.time(Kind::Exchange, "HTTP_SEND_END", 16);
    });
    let root = named(&spans, "InferRequest");
    let (whole, part, compute) = (named(&spans, "whole"), named(&spans, "part"), named(&spans, "compute"));
    let (a, b) = (named(&spans, "A"), named(&spans, "B"));
    assert_eq!(spans.len(), 6);
    assert_eq!(root.parent_span_id[..], [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    for (child, parent) in [(whole, root), (part, whole), (compute, part), (a, part), (b, a)] {
        assert_eq!(child.parent_span_id, parent.span_id, "{}", child.name);
    }
    let exchange = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"];
    assert_eq!(events(root), exchange);
    assert_eq!(events(whole), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
    assert_eq!(events(part), ["REQUEST_START", "ALONE_TOO", "REQUEST_END"]);
    assert_eq!(events(compute), ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]);
    assert_eq!((events(a), events(b)), (vec!["A_START", "ALONE", "A_END"], vec!["B_START", "B_END"]));
    for (span, times) in [(root, (1, 16)), (whole, (3, 14)), (compute, (6, 9)), (a, (6, 10)), (b, (8, 9))] {
        let start = span.start_time_unix_nano - root.start_time_unix_nano + 1;
        assert_eq!((start, start + span.end_time_unix_nano - span.start_time_unix_nano), times, "{}", span.name);
        assert_eq!((span.kind, &span.trace_id), (2, &root.trace_id));
        let keys: Vec<&str> = span.attributes.iter().map(|attribute| &*attribute.key).collect();
        assert!(keys.contains(&"triton.request_id"), "{}: {keys:?}", span.name);
    }
    let keys: Vec<&str> = part.attributes.iter().map(|attribute| &*attribute.key).collect();
    let expected =
        ["triton.model_name", "triton.model_version", "triton.trace_id", "triton.trace_parent_id", "triton.request_id"];
    assert_eq!(keys, expected);
}

#[test]
fn a_trace_of_nothing_has_no_spans_and_open_activities_are_no_loss() {
    assert_eq!(spans(|_| {}), []);
    let spans = spans(|trace| {
        trace.identify("m", 1, b"");
        trace.time(Kind::Core, "REQUEST_START", 1);
        trace.time(Kind::Custom, "A_START", 2);
        trace.time(Kind::Custom, "B_START", 3);
        trace.time(Kind::Custom, "A_END", 4);
        trace.time(Kind::Custom, "C_START", 5);
        trace.time(Kind::Custom, "NEVER_END", 6);
    });
    assert_eq!(events(named(&spans, "A")), ["A_START", "A_END"]);
    assert_eq!(events(named(&spans, "B")), ["B_START"]);
    assert_eq!(events(named(&spans, "C")), ["C_START", "NEVER_END"]);
    let keys: Vec<&str> = named(&spans, "m").attributes.iter().map(|attribute| &*attribute.key).collect();
    assert!(!keys.contains(&"triton.request_id"));
}

#[test]
fn a_collector_that_is_not_there_costs_spans_and_nothing_else() {
    let processor = SpanProcessor { queue_max: 8, delay_ms: 60_000, batch_max: 8 };
    // No process listens at the port of a closed listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("127.0.0.1:{port}/v1/traces");
    let traces = Traces::new(TraceOptions { rate: 1, url, processor, ..collected() }).unwrap();
    assert_eq!(requests(&traces, "m", 100).len(), 100);
    assert!(traces.finish(PATIENCE));
    let counts = traces.counts();
    assert_eq!(counts.completed.load(Ordering::Relaxed), 100);
    assert!(counts.dropped.load(Ordering::Relaxed) >= 100, "as traces where there was no room, else as spans");
    assert_eq!(counts.spans_waiting.load(Ordering::Relaxed), 0);
}
