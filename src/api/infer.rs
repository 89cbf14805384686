//! Inference over both protocols: what is common to decoding a request and encoding its answer.

pub mod classification;
pub mod contiguous;
pub mod grpc_reply;
pub mod grpc_request;
pub mod http_reply;
pub mod http_request;
pub mod regions;

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::coding::packing::Packing;
use super::http::dialect::Dialect;
use super::infer::classification::Classifier;
use super::load_reports::LoadFormat;
use super::watch::Watch;
use nereid_memory::Pool;
use nereid_request::{OutputTensor, Request, Response, SharedMemory, Status, Text};
use nereid_scheduler::ServedModel;

/// A request on its way from its bytes, which is read in bounded steps.
pub trait Decode {
    /// Does a bounded amount of work. After an error, only `finish` may be called.
    fn step(&mut self, pool: &Pool, regions: &SharedMemory) -> Result<Progress, Status>;

    /// The dialect of refusals.
    fn dialect(&self) -> Dialect {
        Dialect::Kserve
    }

    /// The request, once a step has returned `Ready`; before that, the incomplete one.
    fn finish(self: Box<Self>) -> (Arc<ServedModel>, Box<Request>, AnswerForm);
}

/// The outcome of a step.
pub enum Progress {
    /// There is more; `is_long` if this step was as long as a step may be, else it took as long as `steps` short ones:
    /// 1 at least.
    More {
        is_long: bool,
        steps: usize,
    },
    Ready,
}

/// How the responses to a request become its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Manner {
    /// One answer, once it is certain that no other response follows.
    #[default]
    Whole,
    /// HTTP: an event for each response (docs/streaming.md).
    Events,
    /// `generate`: one object.
    Generate,
    /// `generate_stream`: an event with such an object for each response.
    GenerateEvents,
}

/// How a client wants one output.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputForm {
    pub name: Text,
    /// HTTP: behind the JSON header instead of inside it.
    pub binary: bool,
    /// Number of classes to report; 0: the tensor itself.
    pub class_count: u32,
    /// It is in shared memory: the answer describes it and has no bytes of it.
    pub is_shared: bool,
}

/// How a client wants its answer.
#[derive(Debug, Clone, Default)]
pub struct AnswerForm {
    /// Outputs that were requested by name; empty: all of them.
    pub outputs: SmallVec<[OutputForm; 2]>,
    /// HTTP: the form of outputs that were not named.
    pub binary_by_default: bool,
    pub manner: Manner,
    /// The load report of Triton in the head of the answer.
    pub load_report: Option<LoadFormat>,
    /// Streams of either protocol: a decoupled model that ends without another response is answered for.
    pub empty_final_response: bool,
    /// gRPC streams: the model's version as the request names it.
    pub version: Text,
    /// The watch of the request, if it has one.
    pub watch: Option<Arc<Watch>>,
    /// The request wants a breakdown of its time.
    pub wants_timing: bool,
    /// HTTP: the dialect of the port that the request came through.
    pub dialect: Dialect,
    /// How the whole answer is packed, where it is not a message of a stream.
    pub packing: Option<Packing>,
    pub places: OutputPlaces,
}

/// So many outputs are searched for a name one after the other.
const SEARCHED_MAX: usize = 16;

/// Where the output of each name is in an [`AnswerForm`] of many. Made when one is not where it is expected, which is
/// after the last one was added.
#[derive(Debug, Clone, Default)]
pub struct OutputPlaces(OnceCell<HashMap<Text, usize>>);

impl AnswerForm {
    /// Whether both are equal, and neither has a watch.
    fn is_like(&self, other: &AnswerForm) -> bool {
        let AnswerForm {
            outputs,
            binary_by_default,
            manner,
            load_report,
            empty_final_response,
            version,
            watch,
            wants_timing,
            dialect,
            packing,
            places: _,
        } = self;
        let flags = (*binary_by_default, *empty_final_response, *wants_timing);
        (watch.is_none() && other.watch.is_none())
            && *outputs == other.outputs
            && flags == (other.binary_by_default, other.empty_final_response, other.wants_timing)
            && (*manner, *dialect, *load_report) == (other.manner, other.dialect, other.load_report)
            && (version, packing) == (&other.version, &other.packing)
    }

    /// The form as requests share it: that of the `last` request, if this one is equal.
    pub fn shared(self, last: &mut Rc<AnswerForm>) -> Rc<AnswerForm> {
        if self.watch.is_some() {
            return Rc::new(self);
        }
        if !self.is_like(last) {
            *last = Rc::new(self);
        }
        Rc::clone(last)
    }

    /// Whether outputs go out otherwise than the model has made them.
    pub fn changes_outputs(&self) -> bool {
        self.outputs.iter().any(|output| output.is_shared || output.class_count > 0)
    }

    /// The form of the output of a response at `at`, where the client has named it. Most responses have the outputs in
    /// the order of the request.
    fn named(&self, at: usize, name: &Text) -> Option<&OutputForm> {
        let likely = self.outputs.get(at).filter(|output| output.name == *name);
        likely.or_else(|| self.named_elsewhere(name))
    }

    /// A client may name thousands of outputs in another order than the model's: the time does not grow with them.
    fn named_elsewhere(&self, name: &Text) -> Option<&OutputForm> {
        if self.outputs.len() <= SEARCHED_MAX {
            return self.outputs.iter().find(|output| output.name == *name);
        }
        let places = self.places.0.get_or_init(|| {
            let names = self.outputs.iter().enumerate().map(|(at, output)| (output.name.clone(), at));
            names.collect()
        });
        self.outputs.get(*places.get(name)?)
    }

    /// Whether the output at `at` of the response went to shared memory.
    pub fn is_shared(&self, at: usize, name: &Text) -> bool {
        self.named(at, name).is_some_and(|output| output.is_shared)
    }

    pub fn of(&self, at: usize, name: &Text) -> (bool, u32) {
        self.named(at, name).map_or((self.binary_by_default, 0), |output| (output.binary, output.class_count))
    }
}

/// The outputs of a response that the client requests as classes and that are not classified yet.
pub struct Classes {
    left: VecDeque<(usize, Classifier)>,
}

impl Classes {
    /// Replaces the outputs that the client wants as classes, and empties those that it finds in shared memory. What
    /// takes longer than a step is left to [`Classes::step`].
    pub fn begin(
        response: &mut Response,
        form: &AnswerForm,
        model: &ServedModel,
        pool: &Pool,
    ) -> Result<Option<Classes>, Status> {
        let outputs = response.outputs.iter_mut().enumerate();
        outputs.filter(|(at, output)| form.is_shared(*at, &output.name)).for_each(|(_, output)| empty(output));
        let mut left = VecDeque::new();
        for (at, output) in response.outputs.iter_mut().enumerate() {
            let (_, count) = form.of(at, &output.name);
            if count == 0 {
                continue;
            }
            let labels = model.labels.get(&*output.name.to_str_lossy());
            let mut classifier = Classifier::new(output, count as usize, model.spec.max_batch_size > 0, labels, pool)?;
            if classifier.is_short() && classifier.step(pool)? {
                *output = classifier.finish(output, pool)?;
            } else {
                left.push_back((at, classifier));
            }
        }
        Ok((!left.is_empty()).then_some(Classes { left }))
    }

    /// Works on for a bounded time; true when the response has all of its classes.
    pub fn step(&mut self, response: &mut Response, pool: &Pool) -> Result<bool, Status> {
        let Some((_, classifier)) = self.left.front_mut() else { return Ok(true) };
        if !classifier.step(pool)? {
            return Ok(false);
        }
        if let Some((at, classifier)) = self.left.pop_front()
            && let Some(output) = response.outputs.get_mut(at)
        {
            *output = classifier.finish(output, pool)?;
        }
        Ok(self.left.is_empty())
    }
}

/// Its client finds the elements where it wanted them.
fn empty(output: &mut OutputTensor) {
    output.data.clear();
    output.on_device = None;
}
