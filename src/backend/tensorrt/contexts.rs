//! The contexts of one instance, one for each profile, and the executions that they enqueue.

#![allow(unsafe_code)]

use std::sync::Arc;

use nereid_backend::rows::{byte_size, elements};
use nereid_gpu::driver::EventOptions;
use nereid_gpu::flight::{Input, Output};
use nereid_gpu::graph::Graph;
use nereid_gpu::stream::Stream;
use nereid_gpu::{DeviceBuffer, Flight, Lanes};
use nereid_memory::{BlockMut, Slice};
use nereid_request::{Shape, Status, format_shape};

use super::api::{AllocationStrategy, Context, Engine, OutputAllocator};
use super::described::{Described, Tensor, dims_of, shape_of};
use super::graphs::{COPIES, Recorded, Wanted};
use super::instance::{Joined, address};
use super::plan::{InputPlan, OutputPlan, Plan};
use super::settings::NamedProfile;

/// The context of one profile. The recordings and the context come before the allocators, which they use.
struct ProfileContext {
    recorded: Vec<Recorded>,
    context: Context,
    /// By output of the engine.
    allocators: Vec<OutputAllocator>,
    profile: NamedProfile,
}

/// See the [module](self).
pub struct Contexts {
    profiles: Vec<ProfileContext>,
    engine: Arc<Described>,
    instance: String,
    lanes: Arc<Lanes>,
}

/// An input that is passed to the engine.
pub enum Fed {
    Host(Slice),
    Device(Input),
}

/// An output of an execution.
pub enum Ran {
    Device {
        output: Output,
        shape: Shape,
    },
    /// A tensor on the host: number `block` of the batch.
    Host {
        block: usize,
        shape: Shape,
    },
    /// Its size depends on data: the library allocates it.
    Allocated,
}

impl Contexts {
    pub fn new(
        engine: &Arc<Engine>,
        described: &Arc<Described>,
        profiles: Vec<NamedProfile>,
        (strategy, instance): (AllocationStrategy, &str),
        lanes: &Arc<Lanes>,
    ) -> Result<Contexts, Status> {
        let mut contexts = Vec::with_capacity(profiles.len());
        for profile in profiles {
            let created = engine.context(strategy);
            let mut context =
                created.map_err(|text| Status::internal(format!("unable to create TensorRT context: {text}")))?;
            let index = i32::try_from(profile.index).unwrap_or(i32::MAX);
            if described.profiles > 0 && !context.set_profile(index, lanes.compute()) {
                let last = described.profiles.saturating_sub(1);
                let name = &profile.name;
                return Err(Status::invalid(format!(
                    "Can not set the specified optimization profile {name}[{index}] for {instance}. Expected \
                     optimization profile index range 0-{last}"
                )));
            }
            settle(lanes.compute())?;
            let allocators = described.outputs.iter().map(|_| OutputAllocator::new(lanes.gpu())).collect();
            contexts.push(ProfileContext { recorded: Vec::new(), context, allocators, profile });
        }
        let (engine, lanes) = (Arc::clone(described), Arc::clone(lanes));
        Ok(Contexts { profiles: contexts, engine, instance: instance.to_owned(), lanes })
    }

    fn tensor(&self, input: &InputPlan) -> Option<&Tensor> {
        self.engine.inputs.get(input.tensor)
    }

    pub fn is_shape_tensor(&self, input: &InputPlan) -> bool {
        self.tensor(input).is_some_and(|tensor| tensor.is_shape_tensor)
    }

    pub fn is_on_host(&self, output: &OutputPlan) -> bool {
        self.engine.outputs.get(output.tensor).is_some_and(|tensor| tensor.is_on_host)
    }

    fn at(&mut self, chosen: usize) -> Result<&mut ProfileContext, Status> {
        let instance = &self.instance;
        let missing = || Status::internal(format!("'{instance}' has no context"));
        self.profiles.get_mut(chosen).ok_or_else(missing)
    }

    /// The context whose profile admits the inputs and was tuned for the most similar ones. The error is that of the
    /// first profile.
    pub fn choose(&self, plan: &Plan, joined: &Joined) -> Result<usize, Status> {
        let mut best: Option<(u64, usize)> = None;
        for (at, candidate) in self.profiles.iter().enumerate() {
            let profile = candidate.profile.index;
            if self.refusal(plan, joined, profile).is_none() {
                let distance = self.distance(plan, joined, profile);
                if best.is_none_or(|(least, _)| distance < least) {
                    best = Some((distance, at));
                }
            }
        }
        if let Some((_, at)) = best {
            return Ok(at);
        }
        let names: Vec<String> =
            self.profiles.iter().map(|one| format!("{}[{}]", one.profile.name, one.profile.index)).collect();
        tracing::warn!(
            "failed to find any Optimization Profile among [ {} ] to support the requested dimensions (or shape \
             values), proceeding with first profile.",
            names.join(", ")
        );
        let refusal = self.profiles.first().and_then(|first| self.refusal(plan, joined, first.profile.index));
        Err(refusal.unwrap_or_else(|| Status::internal(format!("'{}' has no profile", self.instance))))
    }

    /// Why a profile does not admit the inputs.
    fn refusal(&self, plan: &Plan, joined: &Joined, profile: usize) -> Option<Status> {
        let mut inputs = plan.inputs.iter().zip(&joined.shapes).zip(&joined.values);
        inputs.find_map(|((input, shape), values)| self.refusal_of(input, shape, values, profile))
    }

    fn refusal_of(&self, input: &InputPlan, shape: &[i64], values: &[i64], profile: usize) -> Option<Status> {
        let tensor = self.tensor(input)?;
        let invalid = |details: String| {
            let (name, instance) = (&input.name, &self.instance);
            Status::invalid(format!("request specifies invalid shape for input '{name}' for {instance}. {details}"))
        };
        if shape.len() != tensor.shape.len() && !(tensor.shape.is_empty() && elements(shape) == Some(1)) {
            let (expected, found) = (format_shape(&tensor.shape), format_shape(shape));
            return Some(invalid(format!("Error details: model expected the shape {expected} but received {found}")));
        }
        let bounds = tensor.bounds(profile);
        if tensor.is_shape_tensor {
            let violation = bounds?.violation(values, 0..values.len())?;
            return Some(Status::invalid(format!(
                "The shape value at index {} is expected to be in range from {} to {}, Got: {}",
                violation.at, violation.least, violation.most, violation.found
            )));
        }
        if let Some(violation) = bounds.and_then(|bounds| bounds.violation(shape, 0..shape.len())) {
            return Some(invalid(violation.details()));
        }
        // An engine without profiles states its dims alone.
        let differs = |(dim, size): (&i64, &i64)| *dim != -1 && dim != size;
        let at = tensor.shape.iter().zip(shape).position(differs)?;
        let (dim, found) = (tensor.shape.get(at)?, shape.get(at)?);
        Some(invalid(format!(
            "Error details: model expected the shape of dimension {at} to be between {dim} and {dim} but \
             received {found}"
        )))
    }

    fn distance(&self, plan: &Plan, joined: &Joined, profile: usize) -> u64 {
        let inputs = plan.inputs.iter().zip(&joined.shapes).zip(&joined.values);
        inputs.fold(0, |sum: u64, ((input, shape), values)| {
            let Some(tensor) = self.tensor(input) else { return sum };
            let found = if tensor.is_shape_tensor { values } else { &shape[..] };
            sum.saturating_add(tensor.bounds(profile).map_or(0, |bounds| bounds.distance(found)))
        })
    }

    /// The smallest free recording for these inputs.
    pub fn recorded(&self, chosen: usize, joined: &Joined, batching: bool) -> Option<Parts> {
        let fits = |recorded: &&Recorded| recorded.fits(&joined.shapes, batching);
        let found = self.profiles.get(chosen)?.recorded.iter().find(fits)?;
        Some(Parts { inputs: found.inputs.clone(), outputs: found.outputs.clone(), graph: Arc::clone(&found.graph) })
    }

    pub fn has_recorded(&self) -> bool {
        self.profiles.iter().any(|profile| !profile.recorded.is_empty())
    }

    pub fn log_graph(&self, chosen: usize) {
        if let Some(ProfileContext { profile, .. }) = self.profiles.get(chosen) {
            let NamedProfile { name, index } = profile;
            tracing::debug!("Context with profile {name} [{index}] is launching CUDA graph for {}", self.instance);
        }
    }

    /// Sets the shapes and addresses of all inputs.
    pub fn set_inputs(
        &mut self,
        chosen: usize,
        plan: &Plan,
        joined: &Joined,
        fed: &[Fed],
        flight: &Flight,
    ) -> Result<(), Status> {
        let (engine, instance) = (Arc::clone(&self.engine), self.instance.clone());
        let context = &mut self.at(chosen)?.context;
        for ((input, shape), fed) in plan.inputs.iter().zip(&joined.shapes).zip(fed) {
            let Some(tensor) = engine.inputs.get(input.tensor) else { continue };
            let refused = |what: &str| {
                Status::internal(format!("unable to set the {what} of input '{}' for {instance}", input.name))
            };
            // A configuration states one element for a scalar.
            let shape: &[i64] = if tensor.shape.is_empty() { &[] } else { shape };
            let dims = dims_of(shape).ok_or_else(|| refused("shape"))?;
            if !context.set_input_shape(&tensor.c_name, &dims) {
                return Err(refused("shape"));
            }
            let address = match fed {
                Fed::Host(bytes) => bytes.as_ptr().expose_provenance() as u64,
                Fed::Device(input) => address(flight, *input),
            };
            // SAFETY: the flight keeps its inputs, and the batch its shape tensors, until all work is complete.
            if !unsafe { context.set_address(&tensor.c_name, address) } {
                return Err(refused("address"));
            }
        }
        match context.missing_shapes() {
            0 => Ok(()),
            _ => Err(Status::internal(
                "failed to specify the dimensions of all input tensors or values of all input shape tensors",
            )),
        }
    }

    /// The shape of an output for the inputs that were set.
    pub fn output_shape(&mut self, chosen: usize, output: &OutputPlan) -> Result<Shape, Status> {
        let engine = Arc::clone(&self.engine);
        let found = self.at(chosen)?;
        let tensor = engine.outputs.get(output.tensor);
        let shape = tensor.and_then(|tensor| shape_of(&found.context.tensor_shape(&tensor.c_name)));
        shape.ok_or_else(|| Status::internal(format!("output '{}' has no known shape", output.name)))
    }

    /// Sets the addresses of all outputs, or how their memory is found.
    pub fn set_outputs(
        &mut self,
        chosen: usize,
        plan: &Plan,
        memory: &[Ran],
        blocks: &mut [BlockMut],
        flight: &Flight,
    ) -> Result<(), Status> {
        let engine = Arc::clone(&self.engine);
        let found = self.at(chosen)?;
        for (output, ran) in plan.outputs.iter().zip(memory) {
            let Some(tensor) = engine.outputs.get(output.tensor) else { continue };
            let is_set = match ran {
                Ran::Device { output, .. } => {
                    let address = flight.output_address(*output).0;
                    // SAFETY: the flight keeps its outputs until all work is complete; no other code uses them.
                    unsafe { found.context.set_address(&tensor.c_name, address) }
                }
                Ran::Host { block, .. } => {
                    let address =
                        blocks.get_mut(*block).map_or(0, |block| block.as_mut_ptr().expose_provenance() as u64);
                    // SAFETY: the batch keeps the block until all work is complete, and it has the tensor's size.
                    unsafe { found.context.set_address(&tensor.c_name, address) }
                }
                Ran::Allocated => match found.allocators.get(output.tensor) {
                    // SAFETY: the context is dropped before its allocators.
                    Some(allocator) => unsafe { found.context.set_allocator(&tensor.c_name, allocator) },
                    None => false,
                },
            };
            if !is_set {
                return Err(Status::internal(format!("unable to set the address of output '{}'", output.name)));
            }
        }
        Ok(())
    }

    /// Enqueues the execution in the stream of the flight, behind the copies of its inputs.
    pub fn enqueue(&mut self, chosen: usize, flight: &mut Flight) -> Result<(), Status> {
        let instance = self.instance.clone();
        let found = self.at(chosen)?;
        let NamedProfile { name, index } = &found.profile;
        tracing::debug!("Context with profile {name} [{index}] is being executed for {instance}");
        let stream = flight.compute()?;
        // SAFETY: the shapes and addresses of all tensors were set for this execution.
        match unsafe { found.context.enqueue(stream) } {
            true => Ok(()),
            false => {
                // If the device is lost, this returns its error.
                flight.seal()?;
                Err(Status::internal(format!("unable to enqueue for inference {instance}")))
            }
        }
    }

    /// Adds the outputs to the flight that the library allocated.
    pub fn take_allocated(
        &mut self,
        chosen: usize,
        plan: &Plan,
        memory: Vec<Ran>,
        flight: &mut Flight,
    ) -> Result<Vec<Ran>, Status> {
        let found = self.at(chosen)?;
        let mut made = Vec::with_capacity(memory.len());
        for (output, ran) in plan.outputs.iter().zip(memory) {
            let (Ran::Allocated, Some(allocator)) = (&ran, found.allocators.get_mut(output.tensor)) else {
                made.push(ran);
                continue;
            };
            let mut allocated = allocator.take();
            let missing = || Status::internal(format!("output '{}' was not computed", output.name));
            let last = allocated.buffers.pop();
            for earlier in allocated.buffers {
                // SAFETY: only work of the flight writes it, which holds it until that is complete.
                flight.output_made(unsafe { earlier.into_slice() });
            }
            let buffer = last.ok_or_else(missing)?;
            let capacity = buffer.len();
            // SAFETY: the flight holds it until all work that writes it is complete.
            let number = flight.output_made(unsafe { buffer.into_slice() });
            let shape = allocated.dims.as_ref().and_then(shape_of).ok_or_else(missing)?;
            let is_held = byte_size(&shape, output.datatype).is_some_and(|len| len <= capacity);
            if !is_held {
                let shape = format_shape(&shape);
                return Err(Status::internal(format!("output '{}' has the impossible shape {shape}", output.name)));
            }
            made.push(Ran::Device { output: number, shape });
        }
        Ok(made)
    }

    /// Records the executions that the configuration asks for, for each profile that admits them.
    pub fn record(&mut self, plan: &Plan, wanted: &[Wanted]) -> Result<(), Status> {
        let shape_tensors = self.engine.inputs.iter().chain(&self.engine.outputs).any(|tensor| tensor.is_shape_tensor);
        if wanted.is_empty() || shape_tensors {
            if shape_tensors && !wanted.is_empty() {
                tracing::warn!("no CUDA graphs are captured for {}: it has shape tensors", self.instance);
            }
            return Ok(());
        }
        let mut is_captured = vec![false; wanted.len()];
        for chosen in 0..self.profiles.len() {
            for (at, wanted) in wanted.iter().enumerate() {
                for copy in 0..COPIES {
                    let Some(recorded) = self.record_one(chosen, plan, wanted)? else { break };
                    self.at(chosen)?.recorded.push(recorded);
                    is_captured[at] = true;
                    if copy == 0 {
                        tracing::info!("captured CUDA graph for {}, batch size {}", self.instance, wanted.batch_size);
                    }
                }
            }
            self.at(chosen)?.recorded.sort_by_key(|recorded| recorded.rows);
        }
        match wanted.iter().zip(is_captured).find(|(wanted, is_captured)| wanted.is_explicit && !is_captured) {
            None => Ok(()),
            Some((wanted, _)) => Err(Status::invalid(format!(
                "unable to capture the CUDA graph of batch size {} for {}: no profile admits its shapes, or an output \
                 has no fixed size",
                wanted.batch_size, self.instance
            ))),
        }
    }

    fn record_one(&mut self, chosen: usize, plan: &Plan, wanted: &Wanted) -> Result<Option<Recorded>, Status> {
        let batch = plan.batching.then_some(i64::from(wanted.batch_size));
        // Behind the inputs of the configuration there are those that the server adds, which have the engine's dims.
        let shape = |(at, input): (usize, &InputPlan)| {
            let of_engine =
                self.tensor(input).map(|tensor| &tensor.shape[usize::from(plan.batching).min(tensor.shape.len())..]);
            let dims = wanted.dims.get(at).map(Vec::as_slice).or(of_engine).unwrap_or_default();
            batch.into_iter().chain(dims.iter().copied()).collect::<Shape>()
        };
        let shapes: Vec<Shape> = plan.inputs.iter().enumerate().map(shape).collect();
        let joined = Joined { values: vec![Vec::new(); shapes.len()], bytes: vec![None; shapes.len()], shapes };
        let profile = self.at(chosen)?.profile.index;
        if self.refusal(plan, &joined, profile).is_some() {
            return Ok(None);
        }
        let (lanes, engine, instance) = (Arc::clone(&self.lanes), Arc::clone(&self.engine), self.instance.clone());
        let context = &mut self.at(chosen)?.context;
        let failed = || Status::internal(format!("unable to capture a CUDA graph for {instance}"));
        let mut inputs = Vec::new();
        for (input, shape) in plan.inputs.iter().zip(&joined.shapes) {
            let Some(tensor) = engine.inputs.get(input.tensor) else { continue };
            let dims = dims_of(shape).ok_or_else(failed)?;
            let buffer = Arc::new(lanes.gpu().allocate(byte_size(shape, input.datatype).ok_or_else(failed)?)?);
            // SAFETY: the recording keeps the buffer.
            let is_set = unsafe { context.set_address(&tensor.c_name, buffer.address().0) };
            inputs.push(buffer);
            if !context.set_input_shape(&tensor.c_name, &dims) || !is_set {
                return Err(failed());
            }
        }
        if context.missing_shapes() != 0 {
            return Err(failed());
        }
        let mut outputs = Vec::new();
        for output in &plan.outputs {
            let Some(tensor) = engine.outputs.get(output.tensor) else { continue };
            let shape = shape_of(&context.tensor_shape(&tensor.c_name)).ok_or_else(failed)?;
            // An open dimension has no size: the output depends on data.
            let Some(len) = byte_size(&shape, output.datatype) else { return Ok(None) };
            let buffer = Arc::new(lanes.gpu().allocate(len)?);
            // SAFETY: the recording keeps the buffer.
            let is_set = unsafe { context.set_address(&tensor.c_name, buffer.address().0) };
            outputs.push((buffer, shape));
            if !is_set {
                return Err(failed());
            }
        }
        let stream = lanes.compute();
        zero(stream, &inputs)?;
        // The library requires an execution before the one that is recorded.
        // SAFETY: shapes and addresses of all tensors were set.
        if !unsafe { context.enqueue(stream) } {
            return Err(failed());
        }
        settle(stream)?;
        let buffers = inputs.iter().chain(outputs.iter().map(|(buffer, _)| buffer)).cloned().collect();
        let mut is_enqueued = true;
        // SAFETY: the execution uses these buffers, and memory of its context, which is dropped behind its recordings.
        let graph = unsafe {
            Graph::record(stream, buffers, |stream| {
                is_enqueued = context.enqueue(stream);
                Ok(())
            })
        }?;
        if !is_enqueued {
            return Err(failed());
        }
        let rows = i64::from(wanted.batch_size.max(1));
        let rows_min = i64::from(wanted.batch_size_min).clamp(1, rows);
        Ok(Some(Recorded { rows_min, rows, shapes: joined.shapes, inputs, outputs, graph: Arc::new(graph) }))
    }
}

/// What a flight needs of a recording.
pub struct Parts {
    pub inputs: Vec<Arc<DeviceBuffer>>,
    pub outputs: Vec<(Arc<DeviceBuffer>, Shape)>,
    pub graph: Arc<Graph>,
}

/// Waits until the work in the stream is complete.
fn settle(stream: &Stream) -> Result<(), Status> {
    let event = stream.event(EventOptions { sleeps: true, is_timed: false })?;
    stream.record(&event)?;
    Ok(event.synchronize()?)
}

/// Zeros buffers, and waits for it: an engine must not compute with what was there before.
fn zero(stream: &Stream, buffers: &[Arc<DeviceBuffer>]) -> Result<(), Status> {
    for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
        let mut zeros = BlockMut::unpooled(buffer.len());
        zeros.fill(0);
        // SAFETY: both live until the copy is complete, which is awaited below.
        unsafe { stream.copy_in(buffer.address(), zeros.as_ptr(), zeros.len()) }?;
        settle(stream)?;
    }
    Ok(())
}
