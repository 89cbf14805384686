//! One batch on its way over a device: in, through the model, out.
//!
//! An instance has three streams, so that three batches can be under way at a time: one is copied in while the one
//! before is computed and the one before that is copied out ([`Lanes`]). A [`Flight`] holds all memory that its work
//! uses and drops it only when the work is complete, which makes it safe to enqueue work here.
//!
//! Bytes of the host reach the device in as few copies as possible. A copy costs 5 to 7 µs to start whatever its size
//! (arXiv 2602.21548, section 5.2), in which time a core copies about 64 KiB: longer pieces that lie in pinned memory
//! are copied from there, neighbours as one; all others are gathered in pinned memory and copied as one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::{DeviceBuffer, DeviceSlice};
use super::device::Gpu;
use super::driver::{self, Access, Argument, DeviceAddress, EventOptions, Extent};
use super::graph::Graph;
use super::kernel::Kernel;
use super::pinned::{PinnedBuffer, PinnedPool};
use super::regions::DeviceTarget;
use super::stream::{Event, Stream};
use nereid_memory::{BlockMut, Slice};

/// Bytes of pinned memory that are worth a copy of their own.
const OWN_COPY_BYTES_MIN: usize = 64 * 1024;

/// Bytes of an input on their way in.
#[derive(Debug, Clone)]
pub enum Piece {
    Host(Slice),
    Device(DeviceSlice),
}

impl Piece {
    pub fn len(&self) -> usize {
        match self {
            Piece::Host(bytes) => bytes.len(),
            Piece::Device(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The streams of one instance.
pub struct Lanes {
    pinned: PinnedPool,
    copy_in: Stream,
    compute: Stream,
    copy_out: Stream,
    /// Idle events of complete flights, for reuse.
    events: Mutex<Vec<Event>>,
}

impl Lanes {
    pub fn new(gpu: &Gpu, pinned: &PinnedPool) -> driver::Result<Arc<Lanes>> {
        Ok(Arc::new(Lanes {
            pinned: pinned.clone(),
            copy_in: gpu.stream()?,
            compute: gpu.stream()?,
            copy_out: gpu.stream()?,
            events: Mutex::default(),
        }))
    }

    pub fn gpu(&self) -> &Gpu {
        self.compute.gpu()
    }

    /// The stream on which models compute; libraries that enqueue by themselves use it.
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    fn event(&self) -> driver::Result<Event> {
        match lock(&self.events).pop() {
            Some(event) => Ok(event),
            None => self.compute.event(EventOptions::default()),
        }
    }
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes(GPU {})", self.gpu())
    }
}

/// An input of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input(usize);

/// An output of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output(usize);

impl Output {
    /// Its position among the outputs of its flight.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Bytes of an output that are copied to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched(usize);

/// Memory of the device that a flight uses.
enum FlightMemory {
    Own(DeviceBuffer),
    Slice(DeviceSlice),
    Target(DeviceTarget),
    /// Of a caller that keeps it for several flights, one after the other.
    Kept(Arc<DeviceBuffer>),
}

impl FlightMemory {
    fn address(&self) -> DeviceAddress {
        match self {
            FlightMemory::Own(buffer) => buffer.address(),
            FlightMemory::Slice(slice) => slice.address(),
            FlightMemory::Target(target) => target.address(),
            FlightMemory::Kept(buffer) => buffer.address(),
        }
    }

    fn len(&self) -> usize {
        match self {
            FlightMemory::Own(buffer) => buffer.len(),
            FlightMemory::Slice(slice) => slice.len(),
            FlightMemory::Target(target) => target.len(),
            FlightMemory::Kept(buffer) => buffer.len(),
        }
    }
}

/// Memory of the host that a flight's copies use.
enum Staging {
    Pinned(PinnedBuffer),
    /// Plain memory, when the pool is used up: the driver copies once more.
    Plain(BlockMut),
}

impl Staging {
    fn new(pool: &PinnedPool, len: usize) -> Staging {
        pool.take(len).map_or_else(|| Staging::Plain(BlockMut::unpooled(len)), Staging::Pinned)
    }

    /// Memory for an output that a client takes at its own pace: clients never hold all of the pool.
    fn for_client(pool: &PinnedPool, len: usize) -> Staging {
        pool.lend(len).map_or_else(|| Staging::Plain(BlockMut::unpooled(len)), Staging::Pinned)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Staging::Pinned(buffer) => buffer,
            Staging::Plain(block) => block,
        }
    }

    fn freeze(self) -> Slice {
        match self {
            Staging::Pinned(buffer) => buffer.freeze(),
            Staging::Plain(block) => block.freeze(),
        }
    }
}

/// The stage of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Its inputs are added and copied in.
    Inputs,
    /// Its model is enqueued.
    Computing,
    /// Its outputs are copied out.
    Outputs,
    /// No more work is added.
    Sealed,
    /// All work is complete.
    Complete,
}

/// See the [module](self). Inputs first, then the computation, then copies of outputs, then [`seal`](Flight::seal).
pub struct Flight {
    stage: Stage,
    inputs: Vec<FlightMemory>,
    outputs: Vec<FlightMemory>,
    /// The memory of the host that copies read.
    sources: Vec<Slice>,
    device_sources: Vec<DeviceSlice>,
    staged: Vec<Staging>,
    fetched: Vec<Option<Staging>>,
    targets: Vec<DeviceTarget>,
    graphs: Vec<Arc<Graph>>,
    arrived: Option<Event>,
    computed: Option<Event>,
    done: Option<Event>,
    lanes: Arc<Lanes>,
}

impl Flight {
    pub fn new(lanes: &Arc<Lanes>) -> driver::Result<Flight> {
        Ok(Flight {
            stage: Stage::Inputs,
            inputs: Vec::new(),
            outputs: Vec::new(),
            sources: Vec::new(),
            device_sources: Vec::new(),
            staged: Vec::new(),
            fetched: Vec::new(),
            targets: Vec::new(),
            graphs: Vec::new(),
            arrived: Some(lanes.event()?),
            computed: Some(lanes.event()?),
            done: Some(lanes.event()?),
            lanes: Arc::clone(lanes),
        })
    }

    pub fn gpu(&self) -> &Gpu {
        self.lanes.gpu()
    }

    /// Adds an input: copies the pieces in, one behind the other. A single piece on this device is used where it is.
    ///
    /// # Panics
    /// If computing has begun.
    pub fn add_input(&mut self, pieces: &[Piece]) -> driver::Result<Input> {
        let place = match pieces {
            [Piece::Device(only)] if only.gpu().is_same(self.gpu()) => FlightMemory::Slice(only.clone()),
            _ => {
                let buffer = self.gpu().allocate(pieces.iter().map(Piece::len).sum())?;
                let at = buffer.address();
                // The buffer is stored first, so that it stays for enqueued work even after an error.
                self.inputs.push(FlightMemory::Own(buffer));
                return self.copy_in(at, pieces).map(|()| Input(self.inputs.len() - 1));
            }
        };
        assert_eq!(self.stage, Stage::Inputs, "inputs come first");
        self.inputs.push(place);
        Ok(Input(self.inputs.len() - 1))
    }

    /// Adds an input: copies the pieces to the beginning of a buffer that is kept for flights of one kind, one at a
    /// time. Its reference count shows whether a flight holds it.
    ///
    /// # Panics
    /// If they are too long, or computing has begun.
    pub fn add_input_in(&mut self, buffer: &Arc<DeviceBuffer>, pieces: &[Piece]) -> driver::Result<Input> {
        assert!(pieces.iter().map(Piece::len).sum::<usize>() <= buffer.len(), "the buffer is long enough");
        self.inputs.push(FlightMemory::Kept(Arc::clone(buffer)));
        self.copy_in(buffer.address(), pieces).map(|()| Input(self.inputs.len() - 1))
    }

    fn copy_in(&mut self, at: DeviceAddress, pieces: &[Piece]) -> driver::Result<()> {
        assert_eq!(self.stage, Stage::Inputs, "inputs come first");
        let mut at = at;
        for CopyRun { pieces: run, is_gathered } in runs(pieces, |bytes| self.lanes.pinned.holds_slice(bytes)) {
            let len = run.iter().map(Piece::len).sum();
            match run {
                [] => {}
                [Piece::Device(slice)] => {
                    self.device_sources.push(slice.clone());
                    let (to, from) = ((self.gpu().ordinal(), at), (slice.gpu().ordinal(), slice.address()));
                    // SAFETY: the flight holds both until the copy is complete; no other code has the target, and a
                    // slice is complete.
                    unsafe { self.lanes.copy_in.copy_across(to, from, len)? };
                }
                [Piece::Host(first), ..] if !is_gathered => {
                    self.sources.extend(run.iter().filter_map(|piece| match piece {
                        Piece::Host(bytes) => Some(bytes.clone()),
                        Piece::Device(_) => None,
                    }));
                    // SAFETY: as above; the run is contiguous, and slices are not written.
                    unsafe { self.lanes.copy_in.copy_in(at, first.as_ptr(), len)? };
                }
                gathered => {
                    let mut staging = Staging::new(&self.lanes.pinned, len);
                    gather(gathered, staging.bytes_mut());
                    let from = staging.bytes_mut().as_ptr();
                    self.staged.push(staging);
                    // SAFETY: as above; the staging memory is no longer written.
                    unsafe { self.lanes.copy_in.copy_in(at, from, len)? };
                }
            }
            at = at.offset(len);
        }
        Ok(())
    }

    /// Memory for an output.
    pub fn output(&mut self, len: usize) -> driver::Result<Output> {
        let buffer = self.gpu().allocate(len)?;
        Ok(self.add_output(FlightMemory::Own(buffer)))
    }

    /// An output that is written to its client's target, on this device.
    ///
    /// # Panics
    /// If the target is on another one.
    pub fn output_at(&mut self, target: DeviceTarget) -> Output {
        assert!(target.gpu().is_same(self.gpu()), "a target on this device");
        self.add_output(FlightMemory::Target(target))
    }

    /// An output in a buffer that is kept for flights of one kind, one at a time.
    pub fn output_to(&mut self, buffer: &Arc<DeviceBuffer>) -> Output {
        self.add_output(FlightMemory::Kept(Arc::clone(buffer)))
    }

    /// An output that a library has made, on the compute stream.
    pub fn output_made(&mut self, slice: DeviceSlice) -> Output {
        self.add_output(FlightMemory::Slice(slice))
    }

    fn add_output(&mut self, place: FlightMemory) -> Output {
        self.outputs.push(place);
        Output(self.outputs.len() - 1)
    }

    pub fn input_address(&self, input: Input) -> DeviceAddress {
        self.inputs[input.0].address()
    }

    pub fn input_len(&self, input: Input) -> usize {
        self.inputs[input.0].len()
    }

    pub fn output_address(&self, output: Output) -> DeviceAddress {
        self.outputs[output.0].address()
    }

    pub fn output_len(&self, output: Output) -> usize {
        self.outputs[output.0].len()
    }

    /// The stream on which the model computes. Work enqueued in it from now on runs after the inputs are copied.
    pub fn compute(&mut self) -> driver::Result<&Stream> {
        if self.stage == Stage::Inputs {
            if let Some(arrived) = &self.arrived {
                self.lanes.copy_in.record(arrived)?;
                self.lanes.compute.wait(arrived)?;
            }
            self.stage = Stage::Computing;
        }
        assert_eq!(self.stage, Stage::Computing, "outputs come last");
        Ok(&self.lanes.compute)
    }

    /// Waits until the inputs are copied, for a library that may read them on a stream of its own.
    pub fn await_inputs(&mut self) -> driver::Result<()> {
        self.compute()?;
        self.arrived.as_ref().map_or(Ok(()), Event::synchronize)
    }

    /// # Safety
    /// As [`Driver::launch`](driver::Driver::launch), with memory of this flight.
    pub(super) unsafe fn launch(
        &mut self,
        kernel: &Kernel,
        extent: Extent,
        arguments: &[Argument],
        accesses: &[Access],
    ) -> driver::Result<()> {
        let compute = self.compute()?;
        // SAFETY: by the contract of this function; the flight holds the memory.
        unsafe { compute.launch(kernel, extent, arguments, accesses) }
    }

    /// Runs recorded work, which uses buffers that are kept for flights like this one.
    pub fn run(&mut self, graph: &Arc<Graph>) -> driver::Result<()> {
        self.graphs.push(Arc::clone(graph));
        let compute = self.compute()?;
        graph.launch(compute)
    }

    fn begin_outputs(&mut self) -> driver::Result<()> {
        if self.stage < Stage::Outputs {
            self.compute()?;
            if let Some(computed) = &self.computed {
                self.lanes.compute.record(computed)?;
                self.lanes.copy_out.wait(computed)?;
            }
            self.stage = Stage::Outputs;
        }
        assert_eq!(self.stage, Stage::Outputs, "before it is sealed");
        Ok(())
    }

    /// Copies `from..from + len` of an output to the host.
    ///
    /// # Panics
    /// If there is no such range.
    pub fn fetch(&mut self, output: Output, from: usize, len: usize) -> driver::Result<Fetched> {
        self.begin_outputs()?;
        let place = &self.outputs[output.0];
        assert!(from.checked_add(len).is_some_and(|end| end <= place.len()), "a range of the output");
        let at = place.address().offset(from);
        let mut staging = Staging::for_client(&self.lanes.pinned, len);
        let to = staging.bytes_mut().as_mut_ptr();
        self.fetched.push(Some(staging));
        if len > 0 {
            // SAFETY: the flight holds both until the copy is complete, and no code reads the target before that.
            unsafe { self.lanes.copy_out.copy_out(to, at, len)? };
        }
        Ok(Fetched(self.fetched.len() - 1))
    }

    /// Copies the beginning of a range of an output to its client's target, on any device.
    ///
    /// # Panics
    /// If the target is shorter, or there is no such range.
    pub fn deliver(&mut self, output: Output, from: usize, len: usize, target: &DeviceTarget) -> driver::Result<()> {
        self.begin_outputs()?;
        let place = &self.outputs[output.0];
        assert!(from.checked_add(len).is_some_and(|end| end <= place.len()), "a range of the output");
        assert!(len <= target.len(), "the target is long enough");
        let source = (self.gpu().ordinal(), place.address().offset(from));
        self.targets.push(target.clone());
        if len > 0 {
            let target = (target.gpu().ordinal(), target.address());
            // SAFETY: the flight holds both until the copy is complete; only the client can release the target.
            unsafe { self.lanes.copy_out.copy_across(target, source, len)? };
        }
        Ok(())
    }

    /// Ends the additions: from now on [`Flight::is_complete`] can be called.
    pub fn seal(&mut self) -> driver::Result<()> {
        self.begin_outputs()?;
        if let Some(done) = &self.done {
            self.lanes.copy_out.record(done)?;
        }
        self.stage = Stage::Sealed;
        Ok(())
    }

    /// True if the model has computed, for measurements; the outputs may still be copied.
    pub fn is_computed(&self) -> driver::Result<bool> {
        match (&self.computed, self.stage) {
            (_, Stage::Complete) => Ok(true),
            (Some(computed), Stage::Outputs | Stage::Sealed) => computed.is_complete(),
            _ => Ok(false),
        }
    }

    /// True if all work is complete: then the outputs may be taken.
    pub fn is_complete(&mut self) -> driver::Result<bool> {
        if self.stage == Stage::Sealed
            && let Some(done) = &self.done
            && done.is_complete()?
        {
            self.stage = Stage::Complete;
        }
        Ok(self.stage == Stage::Complete)
    }

    /// The fetched bytes, once the flight is complete. Each can be taken once.
    pub fn take_fetched(&mut self, fetched: Fetched) -> Option<Slice> {
        if self.stage != Stage::Complete {
            return None;
        }
        self.fetched.get_mut(fetched.0)?.take().map(Staging::freeze)
    }

    /// The outputs on the device, once the flight is complete: in order, those in kept buffers left out.
    pub fn take_outputs(&mut self) -> Vec<Option<DeviceSlice>> {
        if self.stage != Stage::Complete {
            return Vec::new();
        }
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        let slices = outputs.map(|place| match place {
            FlightMemory::Own(buffer) => Some(buffer.freeze()),
            FlightMemory::Slice(slice) => Some(slice),
            FlightMemory::Target(target) => Some(target.freeze()),
            FlightMemory::Kept(_) => None,
        });
        slices.collect()
    }

    /// Waits until all its work is complete.
    fn wait(&mut self) -> driver::Result<()> {
        let lanes = &self.lanes;
        let ends = [(&lanes.copy_in, &self.arrived), (&lanes.compute, &self.computed), (&lanes.copy_out, &self.done)];
        for (stream, event) in ends {
            if let Some(event) = event {
                stream.record(event)?;
                event.synchronize()?;
            }
        }
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.stage != Stage::Complete
            && let Err(error) = self.wait()
        {
            // No work runs any more on a lost device. After all other errors the memory is leaked rather than shared.
            tracing::warn!("a batch on GPU {} is given up: {error}", self.gpu());
            if !error.ends_work() {
                std::mem::forget(std::mem::take(&mut self.inputs));
                std::mem::forget(std::mem::take(&mut self.outputs));
                std::mem::forget(std::mem::take(&mut self.staged));
                std::mem::forget(std::mem::take(&mut self.fetched));
                std::mem::forget(std::mem::take(&mut self.sources));
                std::mem::forget(std::mem::take(&mut self.device_sources));
                std::mem::forget(std::mem::take(&mut self.targets));
                std::mem::forget(std::mem::take(&mut self.graphs));
                return;
            }
        }
        lock(&self.lanes.events)
            .extend([self.arrived.take(), self.computed.take(), self.done.take()].into_iter().flatten());
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flight({:?} on GPU {})", self.stage, self.gpu())
    }
}

/// Pieces that are copied as one.
#[derive(Clone, Copy)]
struct CopyRun<'a> {
    pieces: &'a [Piece],
    /// They are gathered first; else they lie one behind the other.
    is_gathered: bool,
}

/// Divides the pieces into copies: each piece of a device by itself, contiguous pinned pieces that are long enough
/// together, all pieces between these gathered.
fn runs<'a>(pieces: &'a [Piece], is_pinned: impl Fn(&Slice) -> bool) -> Vec<CopyRun<'a>> {
    // First the contiguous pieces, then those that are too short alone join their neighbours.
    let mut found: Vec<CopyRun<'a>> = Vec::new();
    let mut start = 0;
    for at in 1..=pieces.len() {
        let joins = match (pieces.get(at - 1), pieces.get(at)) {
            (Some(Piece::Host(one)), Some(Piece::Host(next))) => {
                one.as_ptr().wrapping_add(one.len()) == next.as_ptr() && is_pinned(one) && is_pinned(next)
            }
            _ => false,
        };
        if joins {
            continue;
        }
        let run = &pieces[start..at];
        let is_gathered = match run {
            [Piece::Device(_)] => false,
            [Piece::Host(first), ..] => {
                run.iter().map(Piece::len).sum::<usize>() < OWN_COPY_BYTES_MIN || !is_pinned(first)
            }
            _ => true,
        };
        match found.last_mut() {
            // The pieces of both are neighbours in the list.
            Some(last) if last.is_gathered && is_gathered => {
                last.pieces = &pieces[at - run.len() - last.pieces.len()..at];
            }
            _ => found.push(CopyRun { pieces: run, is_gathered }),
        }
        start = at;
    }
    found.retain(|run| run.pieces.iter().any(|piece| !piece.is_empty()));
    found
}

/// Copies pieces of the host one behind the other.
fn gather(pieces: &[Piece], to: &mut [u8]) {
    let mut rest = to;
    for piece in pieces {
        if let Piece::Host(bytes) = piece {
            let (head, tail) = rest.split_at_mut(bytes.len());
            bytes.copy_to(0, head);
            rest = tail;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
