//! What a request has in shared memory: the regions it uses, and the windows that its outputs go to.
//!
//! The windows belong to the address of a request's answers, which every holder that answers has: a backend that
//! requests an output's memory gets the window itself, and an output in other memory is copied once, where the answer
//! is sent (docs/design.md, decision 6). On a thread that must not wait, long copies are left to the registry's thread;
//! later answers of the same request then go the same way, which keeps their order.

mod on_devices;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smallvec::SmallVec;

use self::on_devices::OnDevices;
use super::completion::{Completion, Delivery, OutputQuery};
use super::{ResponseFactory, credit};
use crate::{Place, Request, Response, Status, Text};
use nereid_gpu::{DeviceRegionUse, DeviceTarget};
use nereid_memory::regions::JobThread;
use nereid_memory::{BlockMut, Exhausted, Region, RegionUse, Slice, Target, Window};

/// Bytes that a shard copies itself: 25 µs where pages are at hand.
pub const COPIED_AT_ONCE: usize = 256 * 1024;

/// Bytes of the largest number that a tensor has.
const WIDEST: usize = 8;

/// Where an output is wanted.
#[derive(Debug, Clone, Default)]
pub enum OutputDestination {
    /// Where the server can read it.
    #[default]
    OnHost,
    /// On a device, whichever: the next model takes it there.
    OnDevice,
    /// In memory of a device that its client has set aside.
    At(DeviceTarget),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Shared {
    uses: SmallVec<[RegionUse; 2]>,
    windows: SmallVec<[(Text, Window); 2]>,
    /// What of it is memory of devices.
    on_devices: Option<Box<OnDevices>>,
    /// Outputs may be written where they end up.
    is_direct: AtomicBool,
    /// Responses that the background thread has not delivered yet.
    put_off: AtomicUsize,
    job_thread: JobThread,
}

impl Shared {
    pub fn new(job_thread: &JobThread) -> Shared {
        Shared {
            uses: SmallVec::new(),
            windows: SmallVec::new(),
            on_devices: None,
            is_direct: AtomicBool::new(true),
            put_off: AtomicUsize::new(0),
            job_thread: job_thread.clone(),
        }
    }

    /// The use of the region of that name, if the request has one.
    pub fn use_of(&self, region: &[u8]) -> Option<&RegionUse> {
        self.uses.iter().find(|one| one.region().name() == region)
    }

    pub fn add_use(&mut self, one: RegionUse) {
        self.uses.push(one);
    }

    /// The output of that name goes to `window`.
    pub fn add_window(&mut self, output: Text, window: Window) {
        self.windows.push((output, window));
    }

    /// The use of the region of a device of that name, if the request has one.
    pub fn device_use_of(&self, region: &[u8]) -> Option<&DeviceRegionUse> {
        self.on_devices.as_ref()?.uses.iter().find(|one| one.region().name() == region)
    }

    pub fn add_device_use(&mut self, one: DeviceRegionUse) {
        self.on_devices.get_or_insert_default().uses.push(one);
    }

    /// The output of that name goes to `target`.
    pub fn add_target(&mut self, output: Text, target: DeviceTarget) {
        self.on_devices.get_or_insert_default().targets.push((output, target));
    }

    fn window(&self, output: &[u8]) -> Option<&Window> {
        self.windows.iter().find(|(name, _)| name.as_bytes() == output).map(|(_, window)| window)
    }

    /// The window of an output of `byte_size` bytes; `None`: it has none, or needs none.
    fn window_for(&self, output: &[u8], byte_size: usize) -> Result<Option<&Window>, Status> {
        let Some(window) = self.window(output).filter(|_| byte_size > 0) else { return Ok(None) };
        match byte_size <= window.len() {
            true => Ok(Some(window)),
            false => Err(too_small(output, window.len(), byte_size)),
        }
    }

    /// Where an output is wanted that is computed on a device; `None`: its client names no place.
    fn destination(&self, output: &[u8], byte_size: usize) -> Result<Option<OutputDestination>, Status> {
        if !self.is_direct.load(Ordering::Acquire) {
            return Ok(Some(OutputDestination::OnHost));
        }
        if self.window_for(output, byte_size)?.is_some() {
            return Ok(Some(OutputDestination::OnHost));
        }
        self.on_devices.as_ref().map_or(Ok(None), |on_devices| on_devices.destination(output, byte_size))
    }

    /// An error if an output of that size does not fit where it goes.
    fn check_output(&self, output: &[u8], byte_size: usize) -> Result<(), Status> {
        self.window_for(output, byte_size)?;
        self.on_devices.as_ref().map_or(Ok(()), |on_devices| on_devices.target_for(output, byte_size).map(drop))
    }

    /// Something has to be copied by a device, and waited for.
    fn waits_for_device(&self, response: &Response) -> bool {
        match &self.on_devices {
            Some(on_devices) => !response.outputs.iter().all(|output| on_devices.has(output)),
            None => response.outputs.iter().any(|output| output.on_device.is_some()),
        }
    }

    /// The window for an output that its backend writes there itself. Where no number of any size may begin, it gets a
    /// block instead.
    fn target(&self, output: &[u8], byte_size: usize) -> Result<Option<Target>, Status> {
        let window = self.window_for(output, byte_size)?;
        let window = window
            .filter(|window| self.is_direct.load(Ordering::Acquire) && window.as_ptr().addr().is_multiple_of(WIDEST));
        Ok(window.map(|window| Target::Window(window.clone().prefix(byte_size))))
    }

    /// An error if something of a region was gone.
    pub fn check(&self) -> Result<(), Status> {
        self.uses.iter().try_for_each(|one| check(one.region()))
    }

    /// Bytes of the response that have to be copied.
    fn bytes_to_copy(&self, response: &Response) -> usize {
        let outputs = response.outputs.iter().filter(|output| match self.window(output.name.as_bytes()) {
            Some(window) => !is_in_place(&output.data, window),
            None => output.data.iter().any(Slice::is_in_region),
        });
        outputs.map(|output| output.byte_size()).fold(0, usize::saturating_add)
    }

    /// Copies the outputs to their windows. What lies in a region and goes to the network is copied too: its client may
    /// take the pages away, and a system call would stumble over that.
    fn place(
        &self,
        response: &mut Response,
        allocate: impl Fn(usize) -> Result<BlockMut, Exhausted>,
    ) -> Result<(), Status> {
        for output in &mut response.outputs {
            if let Some(on_devices) = &self.on_devices
                && on_devices.place(output)?
            {
                continue;
            }
            on_devices::fetch(output, &allocate)?;
            let byte_size = output.byte_size();
            let name = output.name.clone();
            let is_torn = output.data.len() > 1 && output.data.iter().any(Slice::is_in_region);
            match self.window_for(name.as_bytes(), byte_size)? {
                Some(window) if is_in_place(&output.data, window) => continue,
                // Several pieces that a copy of one could overwrite.
                Some(window) if is_torn => window.write_slice(0, &joined(&output.data, allocate(byte_size)?)),
                Some(window) => {
                    let mut at = 0;
                    for piece in &output.data {
                        window.write_slice(at, piece);
                        at += piece.len();
                    }
                }
                None if output.data.iter().any(Slice::is_in_region) && self.window(name.as_bytes()).is_none() => {
                    output.data = SmallVec::from_elem(joined(&output.data, allocate(byte_size)?), 1);
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// The text of contract/http.md section 4, whatever the kind of the memory.
fn too_small(output: &[u8], len: usize, byte_size: usize) -> Status {
    Status::internal(format!(
        "shared memory size specified with the request for output '{}' ({len} bytes) should be at least {byte_size} \
         bytes to hold the results",
        String::from_utf8_lossy(output)
    ))
}

/// An error if something of the region was gone.
pub fn check(region: &Region) -> Result<(), Status> {
    match region.is_lost() {
        false => Ok(()),
        true => Err(Status::internal(format!(
            "shared memory region '{}' has lost its memory: the object was truncated, or its file system is full",
            String::from_utf8_lossy(region.name())
        ))),
    }
}

/// The backend has written to the window itself.
fn is_in_place(data: &[Slice], window: &Window) -> bool {
    matches!(data, [only] if std::ptr::eq(only.as_ptr(), window.as_ptr()))
}

fn joined(pieces: &[Slice], mut block: BlockMut) -> Slice {
    block.set_len(0);
    for piece in pieces {
        block.append_slice(piece, 0, piece.len());
    }
    block.freeze()
}

impl Request {
    /// Gives what the request has in shared memory to all that will answer it. Once, before it is submitted.
    pub fn share(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let windows = shared.windows.iter().map(|(_, window)| window.len());
        let read = self.inputs.iter().flat_map(|input| &input.data).filter(|piece| piece.is_in_region());
        let bytes = windows.chain(read.map(|piece| piece.len())).fold(0, usize::saturating_add);
        // What may have to be copied at length is left to a worker.
        self.ingress.is_on_shard &= bytes <= COPIED_AT_ONCE && shared.on_devices.is_none();
        let _ = self.admission().shared.set(shared);
    }

    /// Memory for an output: the window that the client has set aside for it, or else a block.
    pub fn allocate_output(&self, output: &Text, byte_size: usize) -> Result<Target, Status> {
        self.completion.allocate_output(&native(output.as_bytes(), byte_size))
    }

    /// Where an output of that size is wanted, for a backend that computes it on a device. What is written to a target
    /// is answered as the slice that the target becomes.
    pub fn destination_of(&self, output: &Text, byte_size: usize) -> Result<OutputDestination, Status> {
        self.completion.destination_of(&native(output.as_bytes(), byte_size))
    }

    /// An error if an output of that size does not fit where it goes.
    pub fn check_output(&self, output: &Text, byte_size: usize) -> Result<(), Status> {
        match self.admission().shared.get() {
            None => Ok(()),
            Some(shared) => shared.check_output(output.as_bytes(), byte_size),
        }
    }

    /// Has outputs written to other memory first, because the server reads them before the client does.
    pub fn keep_outputs_apart(&self) {
        if let Some(shared) = self.admission().shared.get() {
            shared.is_direct.store(false, Ordering::Release);
        }
    }

    /// Makes the inputs that another process may write to the server's own: it cannot change them any more.
    pub fn own_inputs(&mut self) -> Result<(), Exhausted> {
        for at in 0..self.inputs.len() {
            let input = &self.inputs[at];
            if input.data.iter().any(|piece| piece.shared().is_some()) {
                let block = self.allocate(input.byte_size())?;
                self.inputs[at].data = SmallVec::from_elem(joined(&self.inputs[at].data, block), 1);
            }
        }
        Ok(())
    }
}

/// The query of native backends: they write numbers, and do not begin a response before they send it.
fn native(name: &[u8], byte_size: usize) -> OutputQuery<'_> {
    OutputQuery { name, byte_size, place: Place::default(), is_begun: false, is_aligned: true }
}

impl ResponseFactory {
    /// Memory for an output of this request, as [`Request::allocate_output`].
    pub fn allocate_output(&self, output: &[u8], byte_size: usize) -> Result<Target, Status> {
        self.completion().allocate_output(&native(output, byte_size))
    }

    /// Where an output of this request is wanted, as [`Request::destination_of`].
    pub fn destination_of(&self, output: &[u8], byte_size: usize) -> Result<OutputDestination, Status> {
        self.completion().destination_of(&native(output, byte_size))
    }

    /// The same with all that is known of the output.
    pub fn destination_of_query(&self, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        self.completion().destination_of(query)
    }

    /// The same with all that is known of the output.
    pub fn allocate_for_query(&self, query: &OutputQuery<'_>) -> Result<Target, Status> {
        self.completion().allocate_output(query)
    }
}

impl Completion {
    fn destination_of(&self, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        let named =
            self.admission.shared.get().map(|shared| shared.destination(query.name, query.byte_size)).transpose()?;
        named.flatten().map_or_else(|| self.receiver_destination(query), Ok)
    }

    fn allocate_output(&self, query: &OutputQuery<'_>) -> Result<Target, Status> {
        if let Some(shared) = self.admission.shared.get() {
            // What is written on the host fits where it goes, or else it need not be written.
            shared.check_output(query.name, query.byte_size)?;
            if let Some(target) = shared.target(query.name, query.byte_size)? {
                return Ok(target);
            }
        }
        match self.allocate_in_place(query)? {
            Some(target) => Ok(target),
            None => Ok(self.allocate(query.byte_size)?.into()),
        }
    }

    /// Sends an answer of a request that has something in shared memory, once everything is where it belongs.
    pub(super) fn settle(&self, shared: &Shared, delivery: Delivery) {
        let bytes = delivery.response.as_ref().map_or(0, |response| shared.bytes_to_copy(response));
        let waits = delivery.response.as_ref().is_some_and(|response| shared.waits_for_device(response));
        let is_long = (waits || bytes > COPIED_AT_ONCE) && credit::never_waits();
        if !is_long && shared.put_off.load(Ordering::Acquire) == 0 {
            return self.settle_now(shared, delivery);
        }
        shared.put_off.fetch_add(1, Ordering::AcqRel);
        let completion = self.clone();
        shared.job_thread.run(move || {
            if let Some(shared) = completion.admission.shared.get() {
                completion.settle_now(shared, delivery);
                shared.put_off.fetch_sub(1, Ordering::AcqRel);
            }
        });
    }

    fn settle_now(&self, shared: &Shared, mut delivery: Delivery) {
        if let Some(response) = &mut delivery.response {
            let placed = match response.error {
                Some(_) => Ok(()),
                // Who has left may use its memory for something else.
                None if self.admission.is_cancelled() => Ok(()),
                None => shared.place(response, |byte_size| self.allocate(byte_size)),
            };
            // A model that read zeros may have complained of them: the cause is the better answer.
            if let Err(status) = shared.check().and(placed) {
                response.outputs.clear();
                response.error = Some(status);
            }
        }
        if delivery.last {
            // Before the answer is sent: a client that has it may rely on the region being free.
            shared.uses.iter().for_each(RegionUse::end);
            shared.on_devices.iter().flat_map(|on_devices| &on_devices.uses).for_each(DeviceRegionUse::end);
        }
        self.forward(delivery);
    }
}

/// A request's own, until it is submitted.
pub type Draft = Option<Box<Shared>>;

/// The draft of a request, made with the registry's thread if there is none yet.
pub fn draft<'a>(draft: &'a mut Draft, job_thread: &JobThread) -> &'a mut Shared {
    draft.get_or_insert_with(|| Box::new(Shared::new(job_thread)))
}

const _: fn() = || {
    fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Arc<Shared>>();
};

#[cfg(test)]
mod tests;
