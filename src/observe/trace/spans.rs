//! Turns a complete trace into spans (contract/metrics.md section 4, "OpenTelemetry mode").
//!
//! Entries are read in the order in which they were reported. A model's span is open from its identity on; activities
//! of backends nest by their names.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::context::{Ids, SpanId, SpanPosition};
use super::record::{Finished, Identity, Kind, TraceEntry};
use nereid_wire::otlp::any_value::Value;
use nereid_wire::otlp::span::{Event, SpanKind};
use nereid_wire::otlp::{AnyValue, KeyValue, Span};

/// The offset of the monotonic clock to the time since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch {
    /// Nanoseconds since 1970 at which the monotonic clock showed 0.
    zero_ns: i128,
}

impl Epoch {
    pub fn now(monotonic_ns: u64) -> Epoch {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ns = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
        Epoch { zero_ns: now_ns.saturating_sub(i128::from(monotonic_ns)) }
    }

    fn at(self, ns: u64) -> u64 {
        u64::try_from(self.zero_ns.saturating_add(i128::from(ns))).unwrap_or(0)
    }
}

pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.into())) };
    KeyValue { key: key.to_owned(), value: Some(value) }
}

fn int(key: &str, value: i64) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::IntValue(value)) }) }
}

/// A span that is not complete yet.
struct OpenSpan {
    span: Span,
    start_ns: Option<u64>,
    end_ns: Option<u64>,
}

impl OpenSpan {
    fn new(position: &SpanPosition, id: SpanId, parent: Option<SpanId>, name: &str) -> OpenSpan {
        let span = Span {
            trace_id: position.trace.to_vec().into(),
            span_id: id.to_vec().into(),
            parent_span_id: parent.map(|id| id.to_vec()).unwrap_or_default().into(),
            trace_state: position.state.clone(),
            name: name.to_owned(),
            kind: SpanKind::Server as i32,
            ..Span::default()
        };
        OpenSpan { span, start_ns: None, end_ns: None }
    }

    fn event(&mut self, epoch: Epoch, name: &str, ns: u64) {
        self.span.events.push(Event { time_unix_nano: epoch.at(ns), name: name.to_owned() });
        self.start_ns = Some(self.start_ns.map_or(ns, |start| start.min(ns)));
        self.end_ns = Some(self.end_ns.map_or(ns, |end| end.max(ns)));
    }

    /// A span without a time of its own gets those of its parent.
    fn close(mut self, epoch: Epoch, otherwise: (u64, u64), request_id: &[u8]) -> Span {
        self.span.start_time_unix_nano = epoch.at(self.start_ns.unwrap_or(otherwise.0));
        self.span.end_time_unix_nano = epoch.at(self.end_ns.unwrap_or(otherwise.1));
        if !request_id.is_empty() {
            self.span.attributes.push(text("triton.request_id", String::from_utf8_lossy(request_id)));
        }
        self.span
    }
}

/// The spans of one request.
struct RequestSpans<'a> {
    identity: &'a Identity,
    model: OpenSpan,
    compute: Vec<OpenSpan>,
    /// Activities of the backend: those that have ended, and those that are open, the innermost last.
    over: Vec<OpenSpan>,
    open: Vec<(String, SpanId, OpenSpan)>,
}

impl<'a> RequestSpans<'a> {
    fn new(position: &SpanPosition, identity: &'a Identity) -> RequestSpans<'a> {
        let mut model = OpenSpan::new(position, identity.span, Some(identity.parent_span), &identity.model);
        let number = |id: u64| i64::try_from(id).unwrap_or(i64::MAX);
        model.span.attributes = vec![
            text("triton.model_name", identity.model.clone()),
            int("triton.model_version", identity.version),
            int("triton.trace_id", number(identity.trace)),
            int("triton.trace_parent_id", number(identity.parent)),
        ];
        if !identity.generation.is_empty() {
            model.span.attributes.push(text("nereid.generation", &*identity.generation));
        }
        RequestSpans { identity, model, compute: Vec::new(), over: Vec::new(), open: Vec::new() }
    }

    fn compute(&mut self, position: &SpanPosition, ids: &Ids, epoch: Epoch, name: &str, ns: u64) {
        if name == "COMPUTE_START" || self.compute.is_empty() {
            self.compute.push(OpenSpan::new(position, ids.span(), Some(self.identity.span), "compute"));
        }
        if let Some(open) = self.compute.last_mut() {
            open.event(epoch, name, ns);
        }
    }

    fn custom(&mut self, position: &SpanPosition, ids: &Ids, epoch: Epoch, name: &str, ns: u64) {
        if let Some(title) = name.strip_suffix("_START") {
            let (id, parent) = (ids.span(), self.open.last().map_or(self.identity.span, |(_, id, _)| *id));
            let mut open = OpenSpan::new(position, id, Some(parent), title);
            open.event(epoch, name, ns);
            return self.open.push((title.to_owned(), id, open));
        }
        let ended = name.strip_suffix("_END").and_then(|title| self.open.iter().rposition(|(t, ..)| t == title));
        match ended {
            Some(at) => {
                // Activities that were opened inside and never ended are over with it.
                for (.., open) in self.open.drain(at + 1..) {
                    self.over.push(open);
                }
                if let Some((.., mut open)) = self.open.pop() {
                    open.event(epoch, name, ns);
                    self.over.push(open);
                }
            }
            None => match self.open.last_mut() {
                Some((.., open)) => open.event(epoch, name, ns),
                None => self.model.event(epoch, name, ns),
            },
        }
    }

    fn close(self, epoch: Epoch, otherwise: (u64, u64), spans: &mut Vec<Span>) {
        let RequestSpans { identity, model, compute, over, open } = self;
        let whole = (model.start_ns.unwrap_or(otherwise.0), model.end_ns.unwrap_or(otherwise.1));
        spans.push(model.close(epoch, otherwise, &identity.request_id));
        let open = open.into_iter().map(|(.., open)| open);
        for part in compute.into_iter().chain(over).chain(open) {
            spans.push(part.close(epoch, whole, &identity.request_id));
        }
    }
}

/// The spans of a trace, the root first.
pub(super) fn spans_of(trace: &Finished, ids: &Ids, epoch: Epoch) -> Vec<Span> {
    let position = &trace.position;
    let mut root = OpenSpan::new(position, position.span, position.parent, "InferRequest");
    let mut parts: BTreeMap<u64, RequestSpans<'_>> = BTreeMap::new();
    for entry in &trace.entries {
        match entry {
            TraceEntry::Identity(identity) => drop(parts.insert(identity.trace, RequestSpans::new(position, identity))),
            TraceEntry::Time { kind: Kind::Exchange, name, ns, .. } => root.event(epoch, name, *ns),
            TraceEntry::Time { trace, kind, name, ns } => {
                let Some(part) = parts.get_mut(trace) else { continue };
                match kind {
                    Kind::Compute => part.compute(position, ids, epoch, name, *ns),
                    Kind::Custom => part.custom(position, ids, epoch, name, *ns),
                    Kind::Core | Kind::Exchange => part.model.event(epoch, name, *ns),
                }
            }
            // Tensors are not supported in this mode.
            TraceEntry::Tensor { .. } => {}
        }
    }
    let times = trace.entries.iter().filter_map(|entry| match entry {
        TraceEntry::Time { ns, .. } => Some(*ns),
        _ => None,
    });
    let whole = times.fold(None, |whole: Option<(u64, u64)>, ns| {
        Some(whole.map_or((ns, ns), |(start, end)| (start.min(ns), end.max(ns))))
    });
    let Some(whole) = whole else { return Vec::new() };
    (root.start_ns, root.end_ns) = (Some(whole.0), Some(whole.1));
    let request_id = parts.get(&trace.root).map(|part| part.identity.request_id.clone()).unwrap_or_default();
    let mut spans = vec![root.close(epoch, whole, &request_id)];
    parts.into_values().for_each(|part| part.close(epoch, whole, &mut spans));
    spans
}
