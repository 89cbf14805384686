//! Records a request from its arrival to the last byte of its answer: for a trace, for a breakdown of its time, or
//! both.
//!
//! The core's marks become entries of traces and sums of times. A request without either has no watch, and costs one
//! check.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use tracing::warn;

use super::timing::{self, Lap, Timing};
use nereid_clock::now_ns;
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;
use nereid_observe::trace::{Context, Kind, Tensor, Trace, Traces};
use nereid_protocol::http1;
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcStatus, Kept, Replies, Reply, Sent};
use nereid_request::{Mark, Observation, Observer, Request, Response, SeenAt, SeenTensor, Text, TraceFacts};

/// Names of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Names of an exchange's times in traces, by protocol.
#[derive(Debug, Clone, Copy)]
struct Names {
    received: [&'static str; 2],
    sent: [&'static str; 2],
}

const HTTP: Names =
    Names { received: ["HTTP_RECV_START", "HTTP_RECV_END"], sent: ["HTTP_SEND_START", "HTTP_SEND_END"] };
const GRPC: Names =
    Names { received: ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"], sent: ["GRPC_SEND_START", "GRPC_SEND_END"] };

/// Records one request of a client.
pub struct Watch {
    names: Names,
    trace: Option<Trace>,
    /// May be requested by the request's own parameter.
    timing: OnceLock<Arc<Timing>>,
    lap: Lap,
}

/// Records a request that was made on behalf of a recorded one.
struct Part {
    trace: Option<Trace>,
    timing: Option<Arc<Timing>>,
    lap: Lap,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("timing", &self.timing).finish_non_exhaustive()
    }
}

/// Adds the time to the trace when an answer has been sent.
#[derive(Debug)]
struct SendEnd(Arc<Watch>);

impl Sent for SendEnd {
    fn sent(self: Box<Self>, at_ns: u64) {
        if let Some(trace) = &self.0.trace {
            trace.time(Kind::Exchange, self.0.names.sent[1], at_ns);
        }
    }
}

impl Watch {
    fn new(names: Names, trace: Option<Trace>, timing: Option<Timing>) -> Watch {
        let place = OnceLock::new();
        if let Some(timing) = timing {
            let _ = place.set(Arc::new(timing));
        }
        Watch { names, trace, timing: place, lap: Lap::default() }
    }

    /// Makes it the observer of `request`.
    pub fn attach(self: &Arc<Watch>, request: &mut Request) {
        request.observer = Some(Observation::new(Arc::clone(self) as Arc<dyn Observer>));
    }

    /// The request's own parameter requests the breakdown: earlier times are missing, unless its head requested them.
    pub fn time(&self) {
        self.timing.get_or_init(Arc::default);
    }

    /// The model has answered, once more or for the first time.
    pub fn answered(&self, response: &Response) {
        let at_ns = now_ns();
        if let Some(timing) = self.timing.get() {
            self.lap.answered(at_ns, &timing.sums);
            timing.answered(at_ns);
        }
        if let Some(trace) = &self.trace {
            if trace.records_tensors() && response.error.is_none() {
                for output in &response.outputs {
                    let (datatype, shape) = (output.datatype, &output.shape[..]);
                    let (name, data) = (&output.name, &output.data[..]);
                    let on_device = output.on_device.as_deref();
                    let seen = SeenTensor { name, datatype, shape, data, on_device };
                    note_tensor(trace, SeenAt::BackendOutput, &seen);
                }
            }
            trace.time(Kind::Exchange, "INFER_RESPONSE_COMPLETE", at_ns);
        }
    }

    /// Comes right before an answer is handed to the transport.
    pub fn leaves(self: &Arc<Watch>, call: CallKey, replies: &mut Replies) {
        if let Some(trace) = &self.trace {
            trace.time(Kind::Exchange, self.names.sent[0], now_ns());
            replies.push(call, Reply::SentCallback(Box::new(SendEnd(Arc::clone(self)))));
        }
    }

    /// Makes it the observer of a further request that the same call makes.
    pub fn attach_part(&self, request: &mut Request) {
        request.observer = self.child().map(Observation::new);
    }

    /// The breakdown, if it was requested.
    pub fn breakdown(&self) -> Option<String> {
        self.timing.get().map(|timing| timing.text(now_ns()))
    }
}

/// Before the whole of an HTTP answer: its breakdown goes into its head.
pub(super) fn http_leaves(watch: Option<&Arc<Watch>>, call: CallKey, reply: &mut http1::Response, out: &mut Replies) {
    let Some(watch) = watch else { return };
    if let Some(text) = watch.breakdown() {
        reply.head.headers.push((timing::ANSWER.into(), text.into()));
    }
    watch.leaves(call, out);
}

/// The end of a gRPC call that was answered.
pub(super) fn grpc_ends(watch: Option<&Arc<Watch>>) -> GrpcStatus {
    let mut status = GrpcStatus::ok();
    if let Some(text) = watch.and_then(|watch| watch.breakdown()) {
        status.trailers.push((timing::ANSWER_METADATA.as_bytes().into(), text.into_bytes().into()));
    }
    status
}

/// The part of one shard's service that decides which requests are watched.
pub(super) struct Watches {
    traces: Arc<Traces>,
}

/// When a request began to arrive, and when it was there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    since_ns: u64,
    received_ns: u64,
}

impl Arrival {
    /// Of a request that is there now.
    pub fn since(since_ns: u64) -> Arrival {
        Arrival { since_ns, received_ns: now_ns() }
    }

    /// Of a request that was packed: it arrives when it is unpacked.
    pub fn now() -> Arrival {
        let now_ns = now_ns();
        Arrival { since_ns: now_ns, received_ns: now_ns }
    }
}

/// See [`Watches::keep_http`].
#[derive(Debug)]
pub(super) struct ArrivedHead {
    arrival: Arrival,
    kept: Kept,
}

impl Watches {
    pub fn new(traces: Arc<Traces>) -> Watches {
        Watches { traces }
    }

    /// Whether the time at which this request began to arrive is recorded.
    pub fn times_http(&self, head: &http1::Head) -> bool {
        self.traces.is_on() || timing::asks(head.header(timing::ASK))
    }

    /// Notes in the plan what the watches of a call's requests need of its metadata.
    pub fn plan_call(&self, headers: &Headers, plan: &mut GrpcPlan) {
        let asks = headers.get(timing::ASK.as_bytes());
        plan.timed = self.traces.is_on() || timing::asks(asks);
        if !plan.timed {
            return;
        }
        let mut keep = |name: &str, value: Option<&[u8]>| {
            plan.watched.extend(value.map(|value| (name.as_bytes().into(), value.into())));
        };
        keep(timing::ASK, asks);
        if self.traces.takes_contexts() {
            keep(TRACEPARENT, headers.get(TRACEPARENT.as_bytes()));
            keep(TRACESTATE, headers.get(TRACESTATE.as_bytes()));
        }
    }

    /// The watch of an HTTP request for `model`, if it gets one.
    pub fn of_http(&self, model: &str, head: &http1::Head, arrival: Option<Arrival>) -> Option<Arc<Watch>> {
        self.watch(HTTP, model, arrival?, |name| head.header(name))
    }

    /// What a watch needs of the head of a request whose model is known later.
    pub fn keep_http(&self, head: &http1::Head, arrival: Option<Arrival>) -> Option<Box<ArrivedHead>> {
        let arrival = arrival?;
        let names = [timing::ASK, TRACEPARENT, TRACESTATE];
        let kept = names.into_iter().filter_map(|name| Some((name.as_bytes().into(), head.header(name)?.into())));
        Some(Box::new(ArrivedHead { arrival, kept: kept.collect() }))
    }

    /// The watch of a request for `model` whose head was kept, if it gets one.
    pub fn of_kept(&self, model: &str, head: &ArrivedHead) -> Option<Arc<Watch>> {
        self.watch(HTTP, model, head.arrival, |name| kept(&head.kept, name))
    }

    /// The watch of a gRPC request for `model`, if it gets one.
    pub fn of_grpc(&self, model: &str, plan: &GrpcPlan, arrival: Option<Arrival>) -> Option<Arc<Watch>> {
        self.watch(GRPC, model, arrival?, |name| kept(&plan.watched, name))
    }

    fn watch<'a>(
        &self,
        names: Names,
        model: &str,
        Arrival { since_ns, received_ns }: Arrival,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Option<Arc<Watch>> {
        let trace = if self.traces.is_on() {
            let parent = header(TRACEPARENT).filter(|_| self.traces.takes_contexts());
            self.traces.sample(model, parent.and_then(|parent| Context::parse(parent, header(TRACESTATE))))
        } else {
            None
        };
        let timing = timing::asks(header(timing::ASK)).then(|| Timing::new(since_ns, received_ns));
        if trace.is_none() && timing.is_none() {
            return None;
        }
        if let Some(trace) = &trace {
            trace.time(Kind::Exchange, names.received[0], since_ns);
            trace.time(Kind::Exchange, names.received[1], received_ns);
        }
        Some(Arc::new(Watch::new(names, trace, timing)))
    }
}

/// The breakdown that a request requests by its parameter.
pub(super) fn watch_by_parameter(watch: &mut Option<Arc<Watch>>, is_http: bool, request: &mut Request) {
    match watch {
        Some(watch) => watch.time(),
        None => {
            let names = if is_http { HTTP } else { GRPC };
            let made = Arc::new(Watch::new(names, None, Some(Timing::default())));
            made.attach(request);
            *watch = Some(made);
        }
    }
}

fn kept<'a>(kept: &'a Kept, name: &str) -> Option<&'a [u8]> {
    kept.iter().find(|(known, _)| **known == *name.as_bytes()).map(|(_, value)| &**value)
}

fn note_tensor(trace: &Trace, at: SeenAt, seen: &SeenTensor<'_>) {
    let activity = match at {
        SeenAt::QueueInput => "TENSOR_QUEUE_INPUT",
        SeenAt::BackendOutput => "TENSOR_BACKEND_OUTPUT",
    };
    trace.tensor(Tensor {
        activity,
        name: seen.name.as_bytes().to_vec(),
        datatype: seen.datatype.name(),
        shape: seen.shape.to_vec(),
        byte_size: seen.on_device.map_or_else(|| seen.data.iter().map(|piece| piece.len()).sum(), DeviceSlice::len),
        pieces: match seen.on_device {
            Some(slice) => vec![Box::new(Fetched { slice: slice.clone(), bytes: OnceLock::new() }) as _],
            None => seen.data.iter().map(|piece| Box::new(outlasting(piece)) as _).collect(),
        },
    });
}

/// Bytes on a device, which the writer of the trace copies to the host.
struct Fetched {
    slice: DeviceSlice,
    bytes: OnceLock<Vec<u8>>,
}

impl Deref for Fetched {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = vec![0; self.slice.len()];
            match self.slice.gpu().fetch(&self.slice, &mut bytes) {
                Ok(()) => bytes,
                Err(error) => {
                    warn!("a tensor of a trace cannot be read on GPU {}: {error}", self.slice.gpu());
                    Vec::new()
                }
            }
        })
    }
}

/// What a caller only lent goes back to it when its request ends, not when the trace is written.
fn outlasting(piece: &Slice) -> Slice {
    if piece.is_lent() { Slice::copy_of(piece) } else { piece.clone() }
}

/// Notes a mark in a trace and in the sums of a breakdown.
fn note_mark(trace: Option<&Trace>, timing: Option<&Timing>, lap: &Lap, mark: Mark, at_ns: u64) {
    if let Some(trace) = trace {
        let name = match mark {
            Mark::QueueStart => "QUEUE_START",
            Mark::Taken => "",
            Mark::ComputeStart => "COMPUTE_START",
            Mark::ComputeInputEnd => "COMPUTE_INPUT_END",
            Mark::ComputeOutputStart => "COMPUTE_OUTPUT_START",
            Mark::ComputeEnd => "COMPUTE_END",
            Mark::RequestEnd => "REQUEST_END",
        };
        match mark {
            Mark::Taken => {}
            Mark::QueueStart => trace.time_again(Kind::Core, name, at_ns),
            // A request that was never accepted has no end.
            Mark::RequestEnd if trace.model_name().is_empty() => {}
            Mark::RequestEnd => trace.time(Kind::Core, name, at_ns),
            _ => trace.time(Kind::Compute, name, at_ns),
        }
    }
    if let Some(timing) = timing {
        match mark {
            Mark::QueueStart => lap.queued(at_ns),
            Mark::Taken => lap.taken(at_ns, &timing.sums),
            _ => {}
        }
    }
}

/// What both kinds of watches do alike.
macro_rules! observes {
    ($of:ty, |$self:ident| $timing:expr, $begins:ident) => {
        impl Observer for $of {
            fn begins(&self, model: &str, version: i64, id: &Text, at_ns: u64) {
                if let Some(trace) = &self.trace {
                    trace.identify(model, version, id.as_bytes());
                    trace.time(Kind::Core, "REQUEST_START", at_ns);
                }
                self.$begins(at_ns);
            }

            fn generation(&self, id: Arc<str>) {
                if let Some(trace) = &self.trace {
                    trace.set_generation(id);
                }
            }

            fn shows_generations(&self) -> bool {
                self.trace.is_some()
            }

            fn mark(&self, mark: Mark, at_ns: u64) {
                let $self = self;
                note_mark(self.trace.as_ref(), $timing, &self.lap, mark, at_ns);
            }

            fn executed(&self, times_ns: [u64; 4]) {
                let marks = [Mark::ComputeStart, Mark::ComputeInputEnd, Mark::ComputeOutputStart, Mark::ComputeEnd];
                let $self = self;
                for (mark, at_ns) in marks.into_iter().zip(times_ns) {
                    note_mark(self.trace.as_ref(), None, &self.lap, mark, at_ns);
                }
                if let Some(timing) = $timing {
                    self.lap.executed(times_ns, &timing.sums);
                }
            }

            fn records_tensors(&self) -> bool {
                self.trace.as_ref().is_some_and(Trace::records_tensors)
            }

            fn tensor(&self, at: SeenAt, tensor: SeenTensor<'_>) {
                if let Some(trace) = &self.trace {
                    note_tensor(trace, at, &tensor);
                }
            }

            fn activity(&self, name: &str, at_ns: u64) {
                if let Some(trace) = &self.trace {
                    trace.time(Kind::Custom, Cow::Owned(name.to_owned()), at_ns);
                }
            }

            fn child(&self) -> Option<Arc<dyn Observer>> {
                let $self = self;
                let (trace, timing) = (self.trace.as_ref().map(Trace::child), $timing.is_some());
                let timing = if timing { self.shared_timing() } else { None };
                Some(Arc::new(Part { trace, timing, lap: Lap::default() }))
            }

            fn trace(&self) -> Option<&dyn TraceFacts> {
                self.trace.as_ref().map(|trace| trace as &dyn TraceFacts)
            }
        }
    };
}

impl Watch {
    fn accepted(&self, at_ns: u64) {
        if let Some(timing) = self.timing.get() {
            timing.accepted(at_ns);
        }
    }

    fn shared_timing(&self) -> Option<Arc<Timing>> {
        self.timing.get().cloned()
    }
}

impl Part {
    /// The time of the request that it was made for stands.
    fn accepted(&self, _at_ns: u64) {}

    fn shared_timing(&self) -> Option<Arc<Timing>> {
        self.timing.clone()
    }
}

observes!(Watch, |this| this.timing.get().map(|timing| &**timing), accepted);
observes!(Part, |this| this.timing.as_deref(), accepted);
