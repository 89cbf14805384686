//! The record of one traced request and of the requests made on its behalf.

use nereid_request::TraceFacts;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::context::{Context, Ids, SpanId, SpanPosition, next_id};
use super::options::Levels;
use super::settings::Setting;
use super::writer::Queue;

/// Entries of one trace and its children, beyond which it is cut: a decoupled model may answer without end.
const ENTRIES_MAX: usize = 4096;

/// One piece of a tensor's data, kept as it is until the trace is written.
pub type Piece = Box<dyn Deref<Target = [u8]> + Send>;

/// A traced tensor.
pub struct Tensor {
    pub activity: &'static str,
    pub name: Vec<u8>,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
    /// The size of all pieces, because reading a piece may have to wait for it.
    pub byte_size: usize,
    pub pieces: Vec<Piece>,
}

/// The part of a request that a time belongs to, which decides the span that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The exchange with the client.
    Exchange,
    /// The request's path through the core.
    Core,
    /// The model's execution.
    Compute,
    /// An activity of a backend.
    Custom,
}

pub(super) enum TraceEntry {
    Identity(Identity),
    Time { trace: u64, kind: Kind, name: Cow<'static, str>, ns: u64 },
    Tensor { trace: u64, tensor: Tensor },
}

#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub trace: u64,
    pub parent: u64,
    pub model: String,
    pub version: i64,
    /// The id of the state of the model; empty where none is named.
    pub generation: Arc<str>,
    pub request_id: Vec<u8>,
    pub span: SpanId,
    /// The span of the parent trace.
    pub parent_span: SpanId,
}

/// A complete trace, for the writer.
pub(super) struct Finished {
    pub setting: Arc<Setting>,
    pub entries: Vec<TraceEntry>,
    /// Bytes that the entries hold.
    pub bytes: usize,
    /// Entries that were left out for lack of room.
    pub cut: u64,
    pub position: SpanPosition,
    pub root: u64,
}

impl Finished {
    /// An upper bound of the number of its spans.
    pub fn spans(&self) -> usize {
        let of = |entry: &TraceEntry| match entry {
            TraceEntry::Identity(_) => 1,
            TraceEntry::Time { name, kind: Kind::Custom, .. } => usize::from(name.ends_with("_START")),
            TraceEntry::Time { name, .. } => usize::from(name == "COMPUTE_START"),
            TraceEntry::Tensor { .. } => 0,
        };
        1 + self.entries.iter().map(of).sum::<usize>()
    }
}

#[derive(Default)]
struct Body {
    entries: Vec<TraceEntry>,
    bytes: usize,
    cut: u64,
    /// True once a model accepted a request of the trace.
    is_accepted: bool,
}

/// The buffer that a trace, its children, and all code that may add entries share.
struct Root {
    setting: Arc<Setting>,
    queue: Queue,
    ids: Arc<Ids>,
    position: SpanPosition,
    id: u64,
    body: Mutex<Body>,
}

impl Root {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let body = std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Body { entries, bytes, cut, is_accepted } = body;
        // Files leave out requests that no model accepted; a collector gets them, because the caller's trace contains
        // them.
        if !is_accepted && !self.queue.has_collector() {
            return;
        }
        let (setting, position) = (Arc::clone(&self.setting), self.position.clone());
        self.queue.push(Finished { setting, entries, bytes, cut, position, root: self.id });
    }
}

/// The trace of one request. It is complete, with its children, when the last of them is dropped.
pub struct Trace {
    root: Arc<Root>,
    id: u64,
    parent: u64,
    span: SpanId,
    parent_span: SpanId,
    named: OnceLock<Named>,
    generation: OnceLock<Arc<str>>,
    context: CString,
}

struct Named {
    model: CString,
    version: i64,
    request_id: CString,
}

impl Trace {
    pub(super) fn begin(setting: Arc<Setting>, queue: Queue, ids: &Arc<Ids>, context: Option<Context>) -> Trace {
        let id = next_id();
        let position = ids.position(context);
        let root = Root { setting, queue, ids: Arc::clone(ids), position, id, body: Mutex::default() };
        let root_span = root.position.span;
        Trace::on(Arc::new(root), id, 0, root_span)
    }

    fn on(root: Arc<Root>, id: u64, parent: u64, parent_span: SpanId) -> Trace {
        let span = root.ids.span();
        let context = match root.queue.has_collector() {
            true => CString::new(root.position.context_at(span)).unwrap_or_default(),
            false => CString::default(),
        };
        Trace { root, id, parent, span, parent_span, named: OnceLock::new(), generation: OnceLock::new(), context }
    }

    /// The trace of a request that is made on behalf of this one.
    pub fn child(&self) -> Trace {
        Trace::on(Arc::clone(&self.root), next_id(), self.id, self.span)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// 0 if it has none.
    pub fn parent_id(&self) -> u64 {
        self.parent
    }

    pub fn model_name(&self) -> &CStr {
        self.named.get().map_or(c"", |named| &named.model)
    }

    /// -1 before the model is known.
    pub fn model_version(&self) -> i64 {
        self.named.get().map_or(-1, |named| named.version)
    }

    pub fn request_id(&self) -> &CStr {
        self.named.get().map_or(c"", |named| &named.request_id)
    }

    /// The context for traces that callees make on behalf of this one: JSON, or empty.
    pub fn context(&self) -> &CStr {
        &self.context
    }

    pub fn records_tensors(&self) -> bool {
        self.root.setting.levels().has(Levels::TENSORS)
    }

    fn records_times(&self) -> bool {
        self.root.setting.levels().has(Levels::TIMESTAMPS)
    }

    /// Sets the state of the model that the request is about to enter; the first call counts.
    pub fn set_generation(&self, id: Arc<str>) {
        let _ = self.generation.set(id);
    }

    /// Sets the model and the request id of the trace; the first call counts.
    pub fn identify(&self, model: &str, version: i64, request_id: &[u8]) {
        let c_text = |bytes: &[u8]| CString::new(bytes.split(|b| *b == 0).next().unwrap_or_default());
        let named = Named {
            model: c_text(model.as_bytes()).unwrap_or_default(),
            version,
            request_id: c_text(request_id).unwrap_or_default(),
        };
        if self.named.set(named).is_ok() {
            let identity = Identity {
                trace: self.id,
                parent: self.parent,
                model: model.to_owned(),
                version,
                generation: self.generation.get().cloned().unwrap_or_else(|| Arc::from("")),
                request_id: request_id.to_owned(),
                span: self.span,
                parent_span: self.parent_span,
            };
            let bytes = identity.model.len() + identity.request_id.len();
            self.root.body().is_accepted = true;
            self.put(TraceEntry::Identity(identity), bytes);
        }
    }

    /// Adds a time of the monotonic clock.
    pub fn time(&self, kind: Kind, name: impl Into<Cow<'static, str>>, ns: u64) {
        if self.records_times() {
            let name = name.into();
            let bytes = name.len();
            self.put(TraceEntry::Time { trace: self.id, kind, name, ns }, bytes);
        }
    }

    /// Replaces the last time of the same name, unless the request was executed since; then adds it.
    pub fn time_again(&self, kind: Kind, name: &'static str, ns: u64) {
        {
            let mut body = self.root.body();
            let own = body.entries.iter_mut().rev().filter_map(|entry| match entry {
                TraceEntry::Time { trace, kind, name, ns } if *trace == self.id => Some((*kind, &**name, ns)),
                _ => None,
            });
            for (found, given, at_ns) in own.take_while(|(kind, ..)| *kind != Kind::Compute) {
                if found == kind && given == name {
                    *at_ns = ns;
                    return;
                }
            }
        }
        self.time(kind, name, ns);
    }

    pub fn tensor(&self, tensor: Tensor) {
        let bytes = tensor.byte_size + tensor.name.len();
        self.put(TraceEntry::Tensor { trace: self.id, tensor }, bytes);
    }

    /// Takes the entries so far.
    #[cfg(test)]
    pub(super) fn taken(&self) -> (SpanPosition, Vec<TraceEntry>) {
        (self.root.position.clone(), std::mem::take(&mut self.root.body().entries))
    }

    fn put(&self, entry: TraceEntry, bytes: usize) {
        let mut body = self.root.body();
        if body.entries.len() >= ENTRIES_MAX {
            body.cut += 1;
            return;
        }
        if body.entries.is_empty() {
            // Enough for a plain request.
            body.entries.reserve(16);
        }
        body.bytes = body.bytes.saturating_add(bytes + size_of::<TraceEntry>());
        body.entries.push(entry);
    }
}

impl TraceFacts for Trace {
    fn id(&self) -> u64 {
        Trace::id(self)
    }

    fn parent_id(&self) -> u64 {
        Trace::parent_id(self)
    }

    fn model_name(&self) -> &CStr {
        Trace::model_name(self)
    }

    fn model_version(&self) -> i64 {
        Trace::model_version(self)
    }

    fn request_id(&self) -> &CStr {
        Trace::request_id(self)
    }

    fn context(&self) -> &CStr {
        Trace::context(self)
    }
}
