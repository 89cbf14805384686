//! Joins the tensors of a payload's requests on their first dimension, and splits results by rows over the requests:
//! what backends on the host share that run a payload as one batch.
//!
//! [`execute`] drives a payload: its `run` receives the requests as a [`Batch`], which joins inputs
//! ([`Batch::join`], [`Batch::join_strings`], and [`Batch::copy`] for runtimes that may write to them),
//! provides memory for outputs ([`Batch::allocate`]) and splits them ([`Batch::split`]). A request whose tensors
//! cannot be joined fails alone, and the others run without it.

mod batch_input;
mod copied;
mod scatter;
mod strings;
mod tensors;

use std::ops::Range;

use smallvec::SmallVec;

use super::InstanceContext;
use nereid_clock::now_ns;
use nereid_memory::{Exhausted, Pool, Slice, Target};
use nereid_observe::statistics::Execution;
use nereid_request::{
    ByNumber, DataType, InputTensor, Numbered, OutputShape, OutputTensor, Request, Response, Shape, Status, Text,
    element_count, format_shape, numbered,
};
use nereid_scheduler::Payload;

pub use self::batch_input::BatchInputTensor;
pub use self::copied::Copied;
pub use self::scatter::Scatter;
use self::scatter::Shares;
pub use self::strings::{EncodedStrings, JoinedStrings};
pub use self::tensors::{Tensors, sort_as_named};

/// Why a batch was not computed, and which requests fail.
#[derive(Debug)]
pub enum Failure {
    All(Status),
    /// The request at this index is at fault; the others can be run without it.
    One(usize, Status),
}

impl<E: Into<Status>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::All(error.into())
    }
}

/// An input of the model.
#[derive(Debug, Clone)]
pub struct Input {
    pub name: String,
    /// Position in the configuration.
    pub index: usize,
    pub datatype: DataType,
    /// Requests are joined flat, one behind the other, with any shapes: the joined shape is `[elements of all]`.
    pub is_ragged: bool,
}

/// One input of all requests in one contiguous piece, aligned for its elements.
#[derive(Debug, Clone)]
pub struct Joined {
    pub shape: Shape,
    /// Elements of `shape`.
    pub elements: usize,
    pub bytes: Slice,
}

/// An output of the model.
#[derive(Debug, Clone)]
pub struct Output {
    pub name: Text,
    /// Position in the configuration. An output that only updates a state has none there: `usize::MAX`.
    pub index: usize,
    pub datatype: DataType,
    /// The shape that clients see.
    pub shape: OutputShape,
    /// The output updates a state of the sequence.
    pub is_state: bool,
}

/// An output of a run, for all requests of the batch.
pub struct Produced<'a> {
    /// With batching, the first dimension has the rows of the requests in their order; rows behind them are ignored.
    pub shape: Shape,
    pub bytes: Bytes<'a>,
}

pub enum Bytes<'a> {
    /// Requests share it: nothing is copied.
    Shared(Slice),
    /// Memory that the runtime reuses: each request's rows are copied once, to where its client wants them.
    Borrowed(&'a [u8]),
    Strings(&'a EncodedStrings),
}

/// The requests of one run.
pub struct Batch<'a> {
    pub requests: &'a [Box<Request>],
    /// Of the requests.
    tensors: Tensors<'a>,
    batching: bool,
    rows: u64,
    pool: &'a Pool,
}

/// The tensors of one input, in the order of the requests.
type InputTensors<'a> = SmallVec<[&'a InputTensor; 4]>;

/// Answers of a run, one for each request in their order, and its times. [`execute`] sets its start and end.
pub type Computed = (Vec<Result<Response, Status>>, Execution);

/// Runs the requests of `payload` and answers each. `max_batch_size` 0: the model does not batch.
///
/// `run` is called again without the request that it names in [`Failure::One`], until it returns anything else.
pub fn execute(
    context: &InstanceContext,
    payload: &mut Payload,
    max_batch_size: u64,
    mut run: impl FnMut(&Batch<'_>) -> Result<Computed, Failure>,
) {
    let exec_start_ns = now_ns();
    let mut requests = payload.take();
    let pool = &context.model.pool;
    let rows = rows_of(&requests, max_batch_size > 0);
    if rows > max_batch_size.max(1) {
        let text = format!("batch size {rows} for '{}', max allowed is {max_batch_size}", context.name);
        let status = Status::internal(text);
        requests.drain(..).for_each(|request| context.fail(request, status.clone()));
    }
    // Each round but the last removes one request.
    while !requests.is_empty() {
        let batch = Batch::new(&requests, max_batch_size > 0, pool);
        let rows = batch.rows;
        let computed = run(&batch);
        drop(batch);
        match computed {
            Ok((mut answers, mut execution)) => {
                execution.exec_start_ns = exec_start_ns;
                execution.exec_end_ns = now_ns();
                answers.resize_with(requests.len(), || Err(Status::internal("the backend gave no answer")));
                if answers.iter().any(Result::is_ok) {
                    context.report_batch(rows, &execution);
                }
                for (request, answer) in requests.drain(..).zip(answers) {
                    match answer {
                        Ok(response) => context.succeed(request, response, &execution),
                        Err(status) => context.fail(request, status),
                    }
                }
            }
            Err(Failure::One(at, status)) if at < requests.len() => context.fail(requests.remove(at), status),
            Err(Failure::One(_, status) | Failure::All(status)) => {
                requests.drain(..).for_each(|request| context.fail(request, status.clone()));
            }
        }
    }
}

/// Rows of all requests; without batching, the number of requests.
pub fn rows_of(requests: &[Box<Request>], batching: bool) -> u64 {
    let each = requests.iter().map(|request| if batching { request.batch_size } else { 1 });
    each.fold(0, u64::saturating_add)
}

/// The tensor of the input at `index` of the configuration. For few inputs; a [`Batch`] finds many.
pub fn find(request: &Request, index: usize) -> Option<&InputTensor> {
    numbered(&request.inputs, index)
}

/// The shape for the model. Inputs that the server adds to requests have no separate one: they were not reshaped.
pub fn model_shape(input: &InputTensor) -> &[i64] {
    if input.model_shape.is_empty() { &input.shape } else { &input.model_shape }
}

/// Elements of `shape`; `None` where it has no size or is larger than memory.
pub fn elements(shape: &[i64]) -> Option<usize> {
    usize::try_from(element_count(shape)?).ok()
}

/// Bytes of `shape` with elements of a fixed size.
pub fn byte_size(shape: &[i64], datatype: DataType) -> Option<usize> {
    elements(shape)?.checked_mul(datatype.byte_size())
}

impl<'a> Batch<'a> {
    /// Blocks for joined inputs and for outputs come from `pool`.
    pub fn new(requests: &'a [Box<Request>], batching: bool, pool: &'a Pool) -> Batch<'a> {
        let (tensors, rows) = (Tensors::new(requests), rows_of(requests, batching));
        Batch { requests, tensors, batching, rows, pool }
    }

    /// The tensor of the input at `index` of the configuration, of each request in their order; `None` where it is
    /// absent.
    pub fn inputs(&self, index: usize) -> impl Iterator<Item = Option<&'a InputTensor>> + Clone {
        self.tensors.inputs(index)
    }

    /// Rows of all requests; without batching, the number of requests.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The input of all requests: the bytes of the only request if they lie in one aligned piece, else a block that
    /// they are copied to. For elements of a fixed size.
    pub fn join(&self, input: &Input) -> Result<Joined, Failure> {
        self.join_padded(input, self.rows)
    }

    /// The same with rows of zeros behind those of the requests, up to `rows` in all. Not for ragged inputs.
    pub fn join_padded(&self, input: &Input, rows: u64) -> Result<Joined, Failure> {
        let (tensors, shape) = self.checked(input, rows.max(self.rows))?;
        let (elements, len) = elements(&shape)
            .and_then(|elements| Some((elements, elements.checked_mul(input.datatype.byte_size())?)))
            .ok_or_else(|| without_size(&input.name, &shape))?;
        let bytes = contiguous(pieces(&tensors), len, input.datatype.byte_size(), self.pool)?;
        Ok(Joined { shape, elements, bytes })
    }

    /// [`Self::joined_shape`], of tensors that have as many bytes as their shapes say.
    fn checked(&self, input: &Input, rows: u64) -> Result<(InputTensors<'a>, Shape), Failure> {
        let (tensors, shape) = self.joined_shape(input, rows)?;
        for (at, tensor) in tensors.iter().enumerate() {
            let (found, expected) = (tensor.byte_size(), byte_size(model_shape(tensor), input.datatype));
            if expected != Some(found) {
                let shape = format_shape(model_shape(tensor));
                let text = format!("input '{}' has {found} bytes, which do not fit its shape {shape}", input.name);
                return Err(Failure::One(at, Status::internal(text)));
            }
        }
        Ok((tensors, shape))
    }

    /// The elements of a BYTES input of all requests. A malformed tensor fails its request alone.
    pub fn join_strings(&self, input: &Input) -> Result<JoinedStrings, Failure> {
        let (tensors, shape) = self.joined_shape(input, self.rows)?;
        let elements = elements(&shape).ok_or_else(|| without_size(&input.name, &shape))?;
        strings::join(&tensors, input, shape, elements, self.pool)
    }

    /// The tensors of an input in the order of the requests, and the shape of them all with `rows` rows.
    fn joined_shape(&self, input: &Input, rows: u64) -> Result<(InputTensors<'a>, Shape), Failure> {
        let mut tensors = InputTensors::new();
        for (at, (request, tensor)) in self.requests.iter().zip(self.inputs(input.index)).enumerate() {
            let tensor = tensor
                .ok_or_else(|| Failure::One(at, Status::internal(format!("failed to get input '{}'", input.name))))?;
            let shape = model_shape(tensor);
            let is_batch = || i64::try_from(request.batch_size).is_ok_and(|rows| shape.first() == Some(&rows));
            if self.batching && !input.is_ragged && !is_batch() {
                let (shape, rows) = (format_shape(shape), request.batch_size);
                let text =
                    format!("input '{}' has the shape {shape}, but the request's batch size is {rows}", input.name);
                return Err(Failure::One(at, Status::internal(text)));
            }
            let differs = |first: &&InputTensor| {
                let items = |tensor| model_shape(tensor).get(usize::from(self.batching)..);
                items(first) != items(tensor)
            };
            if !input.is_ragged && tensors.first().is_some_and(differs) {
                let text = format!("requests of a batch differ in the shape of '{}'", input.name);
                return Err(Failure::One(at, Status::internal(text)));
            }
            tensors.push(tensor);
        }
        let mut shape = Shape::from_slice(tensors.first().map(|first| model_shape(first)).unwrap_or_default());
        if input.is_ragged {
            let mut total = 0i64;
            for (at, tensor) in tensors.iter().enumerate() {
                let shape = model_shape(tensor);
                let count = element_count(shape).ok_or_else(|| Failure::One(at, without_size(&input.name, shape)))?;
                let too_many = || Status::internal(format!("input '{}' has too many elements", input.name));
                total = total.checked_add(count).ok_or_else(too_many)?;
            }
            shape.clear();
            shape.push(total);
        } else if self.batching
            && let Some(batch) = shape.first_mut()
        {
            *batch =
                i64::try_from(rows).map_err(|_| Status::internal(format!("a batch of {rows} rows is too large")))?;
        }
        Ok((tensors, shape))
    }

    /// True if a response contains the output, or a state is updated by it.
    pub fn wants(&self, output: &Output) -> bool {
        let mut requests = self.requests.iter().enumerate();
        requests.any(|(at, request)| self.is_requested(at, output) || updates_state(request, output))
    }

    /// Memory for an output of the whole batch whose size is known before the run: the client's own if one request has
    /// all rows and wants them there, else a block that the requests share. Frozen, it is [`Bytes::Shared`].
    pub fn allocate(&self, output: &Output, byte_size: usize) -> Result<Target, Status> {
        match self.requests {
            // A state is kept beyond the response, so it is copied from a block and not from the client's memory.
            [only] if self.is_requested(0, output) && !updates_state(only, output) => {
                only.allocate_output(&output.name, byte_size)
            }
            _ => Ok(self.pool.get(byte_size)?.into()),
        }
    }

    /// The answers to the requests: each contains its rows of the outputs that it wants, in the order in which it names
    /// them. `produced` are the results for `outputs`; `None` for an output that was not computed.
    ///
    /// `Err`: a result does not have the batch's rows, so that no request can be answered.
    pub fn split(
        &self,
        outputs: &[Output],
        produced: &[Option<Produced<'_>>],
    ) -> Result<Vec<Result<Response, Status>>, Status> {
        self.split_scattered(outputs, produced, &[])
    }

    /// The same if some outputs are flat: those with a value at their position in `scatters`.
    pub fn split_scattered(
        &self,
        outputs: &[Output],
        produced: &[Option<Produced<'_>>],
        scatters: &[Option<Scatter>],
    ) -> Result<Vec<Result<Response, Status>>, Status> {
        let mut shares = Shares::new(scatters);
        let computed = || outputs.iter().zip(produced).enumerate();
        let computed = || computed().filter_map(|(at, (output, produced))| Some((at, output, produced.as_ref()?)));
        for (at, output, produced) in computed() {
            let has_rows = shares.is_flat(at) || self.has_rows(&produced.shape);
            if !has_rows || !produced.fits(output) {
                return Err(produced.missing(output, "rows"));
            }
        }
        let mut first_row = 0;
        let mut answers = Vec::with_capacity(self.requests.len());
        for (number, request) in self.requests.iter().enumerate() {
            let rows = self.batching.then_some((first_row, request.batch_size));
            first_row += request.batch_size;
            let mut parts: Parts<'_> = SmallVec::new();
            for (at, output, produced) in computed() {
                let share = shares.take(at, output, self, number)?;
                let share = share.or_else(|| part(&produced.shape, rows));
                let (shape, elements) = share.ok_or_else(|| produced.missing(output, "rows"))?;
                parts.push(Part { output, produced, shape, elements });
            }
            let by_number = ByNumber::new(&parts);
            let mut response = Response::new(request.id.clone());
            let answer = request.outputs.iter().try_for_each(|requested| {
                let part = by_number
                    .get(requested.index)
                    .ok_or_else(|| Status::internal(format!("the model has no output '{}'", requested.name)))?;
                let output = part.output;
                let data = part.data(|len| request.allocate_output(&output.name, len))?;
                response.outputs.push(OutputTensor {
                    name: output.name.clone(),
                    datatype: output.datatype,
                    shape: output.shape.for_client(&part.shape, self.batching),
                    data: SmallVec::from_elem(data, 1),
                    index: output.index,
                    on_device: None,
                });
                Ok(())
            });
            let answer = answer.and_then(|()| self.update_states(request, &parts));
            answers.push(answer.map(|()| response));
        }
        Ok(answers)
    }

    fn update_states(&self, request: &Request, parts: &Parts<'_>) -> Result<(), Status> {
        let Some(states) = &request.states else { return Ok(()) };
        for part in parts.iter().filter(|part| part.output.is_state) {
            let data = part.data(|len| Ok(self.pool.get(len)?.into()))?;
            let data = match &part.produced.bytes {
                // The next request may come late: it must not keep the results of the whole batch.
                Bytes::Shared(_) | Bytes::Strings(_) => {
                    let mut block = self.pool.get(data.len())?;
                    data.copy_to(0, &mut block);
                    block.freeze()
                }
                Bytes::Borrowed(_) => data,
            };
            let output = part.output;
            states.update(&output.name.to_str_lossy(), output.datatype, part.shape.clone(), data)?;
        }
        Ok(())
    }

    /// Whether the request at `at` names the output.
    fn is_requested(&self, at: usize, output: &Output) -> bool {
        self.tensors.is_requested(at, output.index)
    }

    fn has_rows(&self, shape: &[i64]) -> bool {
        !self.batching || shape.first().is_some_and(|rows| u64::try_from(*rows).is_ok_and(|rows| rows >= self.rows))
    }
}

fn updates_state(request: &Request, output: &Output) -> bool {
    output.is_state && request.states.is_some()
}

/// Requests whose dimensions are negative are refused when they come in (`nereid-scheduler`'s `validate`), so that one
/// here is a fault of the server.
fn without_size(name: &str, shape: &[i64]) -> Status {
    let fault = if shape.iter().any(|dim| *dim < 0) { "has no size" } else { "is too large" };
    Status::internal(format!("input '{name}' of shape {} {fault}", format_shape(shape)))
}

/// The bytes of `tensors` in their order.
fn pieces<'a>(tensors: &'a InputTensors<'_>) -> impl Iterator<Item = &'a Slice> + Clone {
    tensors.iter().flat_map(|tensor| &tensor.data).filter(|piece| !piece.is_empty())
}

/// The bytes of `pieces` as one piece with an address that is a multiple of `alignment`, with zeros behind them up to
/// `len`: the only piece itself if it is that already.
fn contiguous<'a>(
    mut pieces: impl Iterator<Item = &'a Slice> + Clone,
    len: usize,
    alignment: usize,
    pool: &Pool,
) -> Result<Slice, Exhausted> {
    let mut all = pieces.clone();
    if let (Some(only), None) = (all.next(), all.next())
        && only.len() == len
        && only.is_aligned_to(alignment.max(1))
    {
        return Ok(only.clone());
    }
    if len == 0 {
        return Ok(Slice::empty());
    }
    let mut block = pool.get(len)?;
    block.set_len(0);
    pieces.by_ref().for_each(|piece| {
        block.append_slice(piece, 0, piece.len());
    });
    let filled = block.len();
    block.set_len(len);
    if let Some(rest) = block.get_mut(filled..) {
        rest.fill(0);
    }
    Ok(block.freeze())
}

impl Produced<'_> {
    /// True if there are as many elements as the shape says.
    fn fits(&self, output: &Output) -> bool {
        let len = match &self.bytes {
            Bytes::Shared(bytes) => bytes.len(),
            Bytes::Borrowed(bytes) => bytes.len(),
            Bytes::Strings(strings) => return elements(&self.shape).is_some_and(|count| count <= strings.len()),
        };
        byte_size(&self.shape, output.datatype).is_some_and(|expected| expected <= len)
    }

    fn missing(&self, output: &Output, what: &str) -> Status {
        let shape = format_shape(&self.shape);
        Status::internal(format!("output '{}' of shape {shape} has fewer {what} than its batch", output.name))
    }
}

/// What one request gets of an output.
struct Part<'a> {
    output: &'a Output,
    produced: &'a Produced<'a>,
    shape: Shape,
    elements: Range<usize>,
}

type Parts<'a> = SmallVec<[Part<'a>; 4]>;

impl Numbered for Part<'_> {
    fn number(&self) -> usize {
        self.output.index
    }
}

impl Part<'_> {
    /// Its bytes. Borrowed ones are copied to what `allocate` returns.
    fn data(&self, allocate: impl FnOnce(usize) -> Result<Target, Status>) -> Result<Slice, Status> {
        let missing = || self.produced.missing(self.output, "elements");
        let (size, elements) = (self.output.datatype.byte_size(), &self.elements);
        let range = || Some(elements.start.checked_mul(size)?..elements.end.checked_mul(size)?);
        match &self.produced.bytes {
            Bytes::Strings(strings) => strings.window(elements.clone()).ok_or_else(missing),
            Bytes::Shared(bytes) => {
                let range = range().filter(|range| range.start <= range.end && range.end <= bytes.len());
                Ok(bytes.window(range.ok_or_else(missing)?))
            }
            Bytes::Borrowed(bytes) => {
                let part = range().and_then(|range| bytes.get(range)).ok_or_else(missing)?;
                let mut target = allocate(part.len())?;
                match target.write(0, part) {
                    true => Ok(target.freeze()),
                    false => Err(missing()),
                }
            }
        }
    }
}

/// Shape and elements of `(first, count)` rows of a tensor; `None` for `rows`: of everything.
fn part(shape: &[i64], rows: Option<(u64, u64)>) -> Option<(Shape, Range<usize>)> {
    let Some((first, count)) = rows else {
        return Some((Shape::from_slice(shape), 0..elements(shape)?));
    };
    let (total, item) = shape.split_first()?;
    let (first, count) = (usize::try_from(first).ok()?, usize::try_from(count).ok()?);
    let end = first.checked_add(count).filter(|end| usize::try_from(*total).is_ok_and(|total| *end <= total))?;
    // Without rows there are no elements, whatever an item would have.
    let item = if *total == 0 { 0 } else { elements(item)? };
    let mut shape = Shape::from_slice(shape);
    *shape.first_mut()? = i64::try_from(count).ok()?;
    Some((shape, first.checked_mul(item)?..end.checked_mul(item)?))
}

#[cfg(test)]
mod tests;
