//! The nouns of the path (request, response, tensor, data type, shape, parameters, status), and in [`delivery`] how an
//! answer finds its way from a model back to the client.
//!
//! The nouns are plain data, shared by everything between the wire and the model. The C ABI hands out pointers into
//! them, which is why texts end in NUL and shapes are contiguous. They do not use `delivery`, except that a [`Request`]
//! holds its way back, a [`Response`] its credit, and [`Submit`] names the sink of an in-process caller; tests/tidy.rs
//! checks that. Nothing here does I/O; what takes a lock stands in the table of docs/design.md, "Locks".

mod control;
mod datatype;
pub mod delivery;
mod grant;
mod lookup;
mod nearness;
mod observer;
mod parameters;
mod placement;
mod regions;
mod reshape;
mod response;
mod stamps;
mod states;
mod status;
mod submit;
mod tensor;
mod text;
mod times;

use std::sync::Arc;

use nereid_gpu::Gpus;
use nereid_memory::{BlockMut, Charge, Exhausted, Pool, Slice};

pub use control::{Control, LoadUnderWay, Replacement};
pub use datatype::DataType;
pub use delivery::{
    Admission, CancelToken, CancelWatch, Completion, Credit, Delivery, Home, Job, NeverWaits, Outbox, OutputQuery,
    ReleaseHooks, ReleaseReport, RequestEvents, ResponseFactory, ShardSink, Sink, State, Ticket, WakeUp, Waker,
    local_delivery, mutants, never_wait_here, never_waits, shared,
};
pub use grant::{ExecutionLinks, Grant, Lender, ResourceLease};
pub use lookup::{ByNumber, Numbered, numbered};
pub use nearness::are_near;
pub use nereid_memory::RefusalReason;
pub use observer::{Mark, Observation, Observer, SeenAt, SeenTensor, TraceFacts};
pub use parameters::{Parameter, Parameters, Value};
pub use placement::{Attachment, InputPlacement, MemoryType, Place, PolicyData};
pub use regions::SharedMemory;
pub use reshape::{OutputShape, OutputShapes};
pub use response::{OutputTensor, Response, ResponseParts};
pub use stamps::Stamps;
pub use states::{Buffering, StateHandle, StateTensor, States};
pub use status::{Code, Status};
pub use submit::{Call, Callee, Submit};
pub use tensor::{InputTensor, RequestedOutput, Shape, element_count, format_shape};
pub use text::Text;
pub use times::{TimeSums, Times};

use delivery::completion;

/// Sequence a request belongs to; numeric and textual ids are distinct spaces (contract/schedulers.md section 3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum CorrelationId {
    #[default]
    None,
    Number(u64),
    Text(Text),
}

impl CorrelationId {
    /// Bytes of a text that names a sequence.
    pub const TEXT_BYTES_MAX: usize = 128;

    /// A text that clients may use.
    pub fn of_text(id: Text) -> Result<CorrelationId, Status> {
        match id.as_bytes().len() <= CorrelationId::TEXT_BYTES_MAX {
            true => Ok(CorrelationId::Text(id)),
            false => Err(Status::unsupported("string correlation ID cannot be longer than 128 characters")),
        }
    }

    /// False for an id of no sequence: none, 0, or an empty text.
    #[inline]
    pub fn is_in_sequence(&self) -> bool {
        match self {
            CorrelationId::None => false,
            CorrelationId::Number(id) => *id != 0,
            CorrelationId::Text(id) => !id.is_empty(),
        }
    }
}

impl std::fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CorrelationId::None => f.write_str("0"),
            CorrelationId::Number(id) => write!(f, "{id}"),
            CorrelationId::Text(id) => write!(f, "{id}"),
        }
    }
}

/// Bits of [`Request::flags`], as `TRITONSERVER_RequestFlag`.
pub const SEQUENCE_START: u32 = 1;
pub const SEQUENCE_END: u32 = 2;

/// The origin of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Client,
    /// The server, to warm an instance.
    WarmUp,
    /// The server, to fill a slot of a batch that no sequence needs at the moment.
    Null,
}

/// Where a request comes from, and what has been done before it is handed to its model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ingress {
    /// Only clients' requests are counted.
    pub origin: Origin,
    /// A shard hands it in, and may execute it itself (docs/design.md, decision 4).
    pub is_on_shard: bool,
    /// It is like one that has passed the checks of its model, and completed as they do.
    pub is_checked: bool,
    /// It belongs to a sequence of which other models may have executed requests already: a step of an ensemble behind
    /// the one that begins the sequence. It is not refused because it would be late.
    pub continues_sequence: bool,
    /// It is a step of an ensemble for one of several values, which must not overtake each other: its own steps, if it
    /// goes to an ensemble, keep to one way.
    pub keeps_order: bool,
}

/// What a client requests of the scheduler's queue (contract/schedulers.md section 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queueing {
    pub priority: u64,
    /// How long the request may wait in the queue; 0 is no limit.
    pub timeout_us: u64,
    /// When its client stops waiting, in nanoseconds of the request clock; 0 is never.
    pub answer_by_ns: u64,
}

/// One inference request, from its parsing to its release by the backend.
#[derive(Debug)]
pub struct Request {
    pub id: Text,
    pub inputs: Vec<InputTensor>,
    /// Outputs to produce. Filled with every output of the model when the client named none.
    pub outputs: Vec<RequestedOutput>,
    pub parameters: Parameters,
    pub flags: u32,
    pub correlation_id: CorrelationId,
    pub queueing: Queueing,
    /// First dimension of the inputs when the model batches, else 1.
    pub batch_size: u64,
    pub ingress: Ingress,
    pub stamps: Stamps,
    /// What the request's sequence hands from one request to the next.
    pub states: Option<Arc<States>>,
    pub links: ExecutionLinks,
    /// What it has in shared memory, until it is submitted.
    pub shared: shared::Draft,
    /// The shapes of outputs that clients see otherwise than the backend makes them.
    pub output_shapes: Option<Arc<OutputShapes>>,
    /// The devices of which its backend may request memory; set for backends of other makers only.
    pub gpus: Option<Arc<Gpus>>,
    /// Few requests have one.
    pub observer: Option<Observation>,
    /// What its id and parameters are charged with, where they are long.
    pub held: Option<Charge>,
    completion: completion::Holder,
    /// The last field: see [`ReleaseHooks`].
    pub release: ReleaseHooks,
}

/// Bytes of its id and parameters that a request holds without a charge.
const UNCHARGED_BYTES: usize = 2048;

/// Why a backend may not give a request back to be executed once more.
pub const NOT_RESCHEDULED: &str = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model \
                                   is not configured to handle such a flag.";

impl Request {
    pub fn new(completion: Completion) -> Request {
        Request { completion: completion::Holder::new(completion), ..Request::blank() }
    }

    /// A request without a completion.
    fn blank() -> Request {
        Request {
            id: Text::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            parameters: Parameters::default(),
            flags: 0,
            correlation_id: CorrelationId::None,
            queueing: Queueing::default(),
            batch_size: 1,
            ingress: Ingress::default(),
            stamps: Stamps::default(),
            states: None,
            links: ExecutionLinks::default(),
            shared: None,
            output_shapes: None,
            gpus: None,
            observer: None,
            held: None,
            completion: completion::Holder::default(),
            release: ReleaseHooks::default(),
        }
    }

    /// Makes it blank again, but for the memory of its lists: a field at a time, because nearly all of them are blank.
    fn clear(&mut self) {
        let Request {
            id,
            inputs,
            outputs,
            parameters,
            flags,
            correlation_id,
            queueing,
            batch_size,
            ingress,
            stamps,
            states,
            links: ExecutionLinks { grant, lease, times },
            shared,
            output_shapes,
            gpus,
            observer,
            held,
            completion,
            release: ReleaseHooks { report, guard },
        } = self;
        (*id, *parameters, *correlation_id) = (Text::default(), Parameters::default(), CorrelationId::None);
        inputs.clear();
        outputs.clear();
        (*flags, *queueing, *batch_size) = (0, Queueing::default(), 1);
        (*ingress, *stamps) = (Ingress::default(), Stamps::default());
        (*states, *grant, *lease, *times, *shared) = (None, None, None, None, None);
        (*output_shapes, *gpus, *observer, *held) = (None, None, None, None);
        // In the order of the fields, as when a request is dropped.
        *completion = completion::Holder::default();
        *report = None;
        *guard = None;
    }

    /// Makes a blank one a request.
    fn begin(&mut self, completion: Completion) {
        self.completion = completion::Holder::new(completion);
    }

    /// Called before the request is executed on its home's thread: until the returned value is dropped, its answers are
    /// put aside there. `None` for a sink that does not take those.
    pub fn executes_at_home(&self) -> Option<local_delivery::Execution> {
        self.completion.executes_at_home()
    }

    pub fn input(&self, name: &[u8]) -> Option<&InputTensor> {
        self.inputs.iter().find(|input| input.name.as_bytes() == name)
    }

    /// A producer of responses for this request; it may outlive the request and move to any thread.
    pub fn responses(&self) -> ResponseFactory {
        ResponseFactory::new(self.completion.clone())
    }

    /// Makes senders of responses wait while `most` of them, or too many bytes, are on their way.
    pub fn limit_responses(&self, most: u32) {
        self.completion.admission.credits.limit(most);
    }

    /// How many responses may be on their way, if that is limited.
    pub fn limit_of_responses(&self) -> Option<u32> {
        self.completion.admission.credits.limit_of_responses()
    }

    /// Charges what it holds beside its tensors, if that is more than a little, to where its tensors are charged: it
    /// may wait for long. `pool`: for a request without tensors in a pool's memory.
    pub fn hold_texts(&mut self, pool: &Pool) -> Result<(), Exhausted> {
        let bytes = self.parameters.byte_size().saturating_add(self.id.as_bytes().len());
        if bytes <= UNCHARGED_BYTES || self.held.is_some() {
            return Ok(());
        }
        let of_tensors = self.inputs.iter().flat_map(|input| &input.data).find_map(Slice::pool);
        self.held = Some(of_tensors.as_ref().unwrap_or(pool).hold(bytes)?);
        Ok(())
    }

    /// What queue, scheduler and backend read to check whether the request is cancelled.
    pub fn cancel_token(&self) -> CancelToken {
        CancelToken::new(Arc::clone(&self.completion.admission))
    }

    /// The state word by which worker, timer and cancellation decide which of them answers.
    pub fn admission(&self) -> &Arc<Admission> {
        &self.completion.admission
    }

    /// False for what the server made itself.
    pub fn is_counted(&self) -> bool {
        self.ingress.origin == Origin::Client
    }

    /// What its sender keeps to call it back.
    pub fn ticket(&self) -> Ticket {
        Ticket::new(self.completion.clone(), self.id.clone(), self.stamps.started_ns, self.is_counted())
    }

    /// Puts `wrap`'s sink between the request and where its answers went; it gets that address to pass them on to.
    pub fn reroute(&mut self, wrap: impl FnOnce(Completion) -> (Arc<dyn Sink>, u64)) {
        let present = self.completion.clone();
        let admission = Arc::clone(&present.admission);
        let (sink, key) = wrap(present);
        // The new one holds before the old one lets go.
        self.completion = completion::Holder::new(Completion::sharing(sink, key, admission));
    }

    /// Takes back what [`reroute`](Request::reroute) did: answers go where they went before.
    pub fn restore(&mut self, home: Completion) {
        self.completion = completion::Holder::new(home);
    }

    /// Runs `job` where this request is at home.
    pub fn at_home(&self, job: Box<dyn Job>) {
        self.completion.at_home(job);
    }

    /// The address of its answers; not a holder that counts as able to answer.
    pub fn completion(&self) -> Completion {
        self.completion.clone()
    }

    /// Gives the request back to its scheduler, to be executed once more. On refusal the caller still has it.
    pub fn reschedule(mut self: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        match self.release.report.take().and_then(ReleaseReport::dismiss) {
            Some((owner, key)) => owner.reschedule(key, self),
            None => Err((Status::invalid(NOT_RESCHEDULED), self)),
        }
    }

    /// Memory for `byte_size` bytes of an output.
    pub fn allocate(&self, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.completion.allocate(byte_size)
    }

    /// Answers with one last response.
    pub fn finish(&self, response: Response) {
        self.completion.deliver(Some(response), true);
    }

    /// Answers with an error and nothing else.
    pub fn fail(&self, status: Status) {
        self.finish(Response::failed(self.id.clone(), status));
    }

    /// Ends the request without an answer: its holder answers in another way.
    pub fn withdraw(mut self: Box<Request>) {
        self.completion.admission.end();
        self.release.report.take().and_then(ReleaseReport::dismiss);
    }

    /// `[request id: <id>] `, the prefix of the core's messages.
    pub fn log_id(&self) -> String {
        log_id(&self.id)
    }
}

/// `[request id: <id>] `, with `<id_unknown>` for an empty id.
pub fn log_id(id: &Text) -> String {
    match id.is_empty() {
        true => "[request id: <id_unknown>] ".to_owned(),
        false => format!("[request id: {id}] "),
    }
}
