//! The [`Driver`] implementation of the stand-in.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::super::driver::{
    Access, Argument, Description, DeviceAddress, Driver, DriverError, EventHandle, EventOptions, Extent, GraphHandle,
    IpcHandle, KernelHandle, Program, Result, StreamHandle,
};
use super::fault::{self, error};
use super::foreign::StreamLink;
use super::graph::{Capture, Graph};
use super::memory::{self, Memory, MemoryOwner};
use super::order::Span;
use super::work::{Task, Work};
use super::world::{Event, EventState, World};
use super::{Simulated, SimulatedCore};

// SAFETY: an event's time is taken by an operation that waits for all before it in its stream; each range has a mapping
// of its own until it is freed.
unsafe impl Driver for Simulated {
    fn name(&self) -> String {
        "simulated devices".to_owned()
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn device_count(&self) -> usize {
        self.shared.lock().devices.len()
    }

    fn describe(&self, device: usize) -> Result<Description> {
        let world = self.shared.lock();
        if device >= world.devices.len() {
            return Err(error("cuDeviceGet", fault::INVALID_DEVICE));
        }
        Ok(Description {
            name: "Simulated GPU".to_owned(),
            uuid: format!("GPU-5ee1ed00-0000-0000-0000-{device:012x}"),
            memory_bytes: world.spec.memory_bytes,
            compute_capability: world.spec.capability,
            pci_address: format!("0000:{:02x}:00.0", device + 1),
            numa_node: world.spec.numa_node(device),
        })
    }

    fn memory(&self, device: usize) -> Result<(u64, u64)> {
        let mut world = self.shared.lock();
        let total = world.spec.memory_bytes;
        let used = world.device("cuMemGetInfo", device)?.used_bytes;
        Ok((total.saturating_sub(used), total))
    }

    fn enter(&self, device: usize) -> Result<()> {
        self.shared.lock().device("cuCtxSetCurrent", device).map(|_| ())
    }

    fn context(&self, _device: usize) -> *mut c_void {
        std::ptr::null_mut()
    }

    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<bool> {
        const CALL: &str = "cuCtxEnablePeerAccess";
        let mut world = self.shared.lock();
        world.device(CALL, peer)?;
        let can = world.spec.has_peers && device != peer;
        let own = world.device(CALL, device)?;
        if can {
            own.peers.insert(peer);
        }
        Ok(can)
    }

    fn allocate(&self, device: usize, len: usize) -> Result<DeviceAddress> {
        const CALL: &str = "cuMemAlloc";
        let mut world = self.shared.lock();
        let total = world.spec.memory_bytes;
        let used = world.device(CALL, device)?.used_bytes;
        world.check_thread(CALL, Some(device))?;
        if len == 0 {
            return Err(error(CALL, DriverError::INVALID_VALUE));
        }
        let charge = Memory::charge_of(len);
        if charge > total.saturating_sub(used) {
            return Err(error(CALL, DriverError::OUT_OF_MEMORY));
        }
        let allocated = world.memory.allocate(MemoryOwner::Device(device), len);
        let at = allocated.ok_or_else(|| error(CALL, DriverError::OUT_OF_MEMORY))?;
        world.device(CALL, device)?.used_bytes += charge;
        Ok(DeviceAddress(at))
    }

    unsafe fn free(&self, device: usize, at: DeviceAddress) -> Result<()> {
        const CALL: &str = "cuMemFree";
        let mut world = self.shared.lock();
        world.device(CALL, device)?;
        world.check_thread(CALL, Some(device))?;
        let charged = take_back(&mut world, CALL, Some(device), at.0, MemoryOwner::Device(device))?;
        let own = world.device(CALL, device)?;
        own.used_bytes = own.used_bytes.saturating_sub(charged);
        Ok(())
    }

    fn allocate_pinned(&self, len: usize) -> Result<*mut u8> {
        const CALL: &str = "cuMemHostAlloc";
        let mut world = self.shared.lock();
        world.check_thread(CALL, None)?;
        if len == 0 {
            return Err(error(CALL, DriverError::INVALID_VALUE));
        }
        let allocated = world.memory.allocate(MemoryOwner::Pinned, len);
        allocated.map(memory::pointer).ok_or_else(|| error(CALL, DriverError::OUT_OF_MEMORY))
    }

    unsafe fn free_pinned(&self, at: *mut u8) -> Result<()> {
        const CALL: &str = "cuMemFreeHost";
        let mut world = self.shared.lock();
        world.check_thread(CALL, None)?;
        take_back(&mut world, CALL, None, at.expose_provenance() as u64, MemoryOwner::Pinned).map(|_| ())
    }

    fn create_stream(&self, device: usize) -> Result<StreamHandle> {
        let mut world = self.shared.lock();
        world.device("cuStreamCreate", device)?;
        let id = world.create_stream(device);
        world.links.insert(id, StreamLink::new(&self.shared, device, id));
        Ok(StreamHandle(id))
    }

    unsafe fn destroy_stream(&self, device: usize, stream: StreamHandle) {
        const CALL: &str = "cuStreamDestroy";
        let mut world = self.shared.lock();
        let Ok(found) = world.stream(CALL, device, stream.0) else { return };
        if found.capture.is_some() {
            world.violate(CALL, Some(device), "a stream goes while it is recorded");
            return;
        }
        world.destroy_stream(stream.0);
        world.links.remove(&stream.0);
    }

    fn stream_pointer(&self, stream: StreamHandle) -> *mut c_void {
        self.shared.lock().links.get(&stream.0).map_or(std::ptr::null_mut(), |link| link.as_ptr())
    }

    fn create_event(&self, device: usize, options: EventOptions) -> Result<EventHandle> {
        let mut world = self.shared.lock();
        world.device("cuEventCreate", device)?;
        let id = world.fresh();
        world.events.insert(id, Event { device, is_timed: options.is_timed, state: EventState::Unrecorded });
        Ok(EventHandle(id))
    }

    unsafe fn destroy_event(&self, device: usize, event: EventHandle) {
        let mut world = self.shared.lock();
        if world.event("cuEventDestroy", device, event.0).is_ok() {
            world.events.remove(&event.0);
        }
    }

    fn record(&self, device: usize, event: EventHandle, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuEventRecord";
        let mut world = self.shared.lock();
        world.event(CALL, device, event.0)?;
        let capture = world.stream(CALL, device, stream.0)?.capture;
        let state = match capture {
            Some(origin) => {
                let tails = world.captures.get(&origin).and_then(|capture| capture.tails.get(&stream.0));
                EventState::Captured { origin, nodes: tails.cloned().unwrap_or_default() }
            }
            None => {
                let time = Arc::new(OnceLock::new());
                let work = Work::Mark(Arc::clone(&time));
                world.enqueue(CALL, device, stream.0, Task { work, ..Task::nothing() }, None)?;
                let operation = world.tail(stream.0).unwrap_or_default();
                EventState::Recorded { operation, clock: world.clock(stream.0), time }
            }
        };
        world.event(CALL, device, event.0)?.state = state;
        self.shared.work.notify_all();
        Ok(())
    }

    fn wait(&self, device: usize, stream: StreamHandle, event: EventHandle) -> Result<()> {
        const CALL: &str = "cuStreamWaitEvent";
        let mut world = self.shared.lock();
        let capture = world.stream(CALL, device, stream.0)?.capture;
        let Some(Event { state, .. }) = world.events.get(&event.0) else {
            return Err(world.violate(CALL, Some(device), "an event that is destroyed, or none"));
        };
        match state.clone() {
            EventState::Unrecorded => Ok(()),
            EventState::Captured { origin, nodes } => {
                let is_same = capture.is_none_or(|own| own == origin);
                let Some(found) = world.captures.get_mut(&origin).filter(|_| is_same) else {
                    return Err(world.violate(
                        CALL,
                        Some(device),
                        "an event of another recording, or of one that is over",
                    ));
                };
                found.join(stream.0, &nodes);
                world.stream(CALL, device, stream.0)?.capture = Some(origin);
                Ok(())
            }
            EventState::Recorded { .. } if capture.is_some() => {
                Err(world.violate(CALL, Some(device), "a stream that is recorded waits for an event that is not"))
            }
            EventState::Recorded { operation, clock, .. } => {
                world.join_clock(stream.0, &clock);
                world.advance(stream.0);
                let after: Vec<u64> = world.tail(stream.0).into_iter().chain([operation]).collect();
                let id = world.place(device, stream.0, Task::nothing(), &after, None);
                world.set_tail(stream.0, id);
                self.shared.work.notify_all();
                Ok(())
            }
        }
    }

    fn query(&self, device: usize, event: EventHandle) -> Result<bool> {
        let mut world = self.shared.lock();
        is_complete(&mut world, "cuEventQuery", device, event)
    }

    fn synchronize(&self, device: usize, event: EventHandle) -> Result<()> {
        let mut world = self.shared.lock();
        while !is_complete(&mut world, "cuEventSynchronize", device, event)? {
            world = self.shared.done.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Ok(())
    }

    fn elapsed(&self, device: usize, from: EventHandle, to: EventHandle) -> Result<Duration> {
        const CALL: &str = "cuEventElapsedTime";
        let mut world = self.shared.lock();
        let mut time = |event: EventHandle| {
            let found = world.event(CALL, device, event.0)?;
            match &found.state {
                EventState::Recorded { time, .. } if found.is_timed => {
                    time.get().copied().ok_or_else(|| error(CALL, fault::NOT_READY))
                }
                _ => Err(error(CALL, fault::INVALID_HANDLE)),
            }
        };
        let (from, to) = (time(from)?, time(to)?);
        Ok(to.saturating_duration_since(from))
    }

    unsafe fn copy_in(
        &self,
        device: usize,
        stream: StreamHandle,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let from = from.expose_provenance() as u64;
        let spans = vec![Span::new(from, len, false), Span::new(to.0, len, true)];
        let task = Task { work: Work::Copy { to: to.0, from, len }, spans, what: "a copy in" };
        submit(&self.shared, "cuMemcpyHtoDAsync", device, stream, task, |world, task| {
            world.counts.copies_in += 1;
            world.check_host_span(&task.spans[0], task.what)?;
            world.check_device_span(device, &task.spans[1], task.what)
        })
    }

    unsafe fn copy_out(
        &self,
        device: usize,
        stream: StreamHandle,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<()> {
        let to = to.expose_provenance() as u64;
        let spans = vec![Span::new(from.0, len, false), Span::new(to, len, true)];
        let task = Task { work: Work::Copy { to, from: from.0, len }, spans, what: "a copy out" };
        submit(&self.shared, "cuMemcpyDtoHAsync", device, stream, task, |world, task| {
            world.counts.copies_out += 1;
            world.check_device_span(device, &task.spans[0], task.what)?;
            world.check_host_span(&task.spans[1], task.what)
        })
    }

    unsafe fn copy_across(
        &self,
        device: usize,
        stream: StreamHandle,
        to: (usize, DeviceAddress),
        from: (usize, DeviceAddress),
        len: usize,
    ) -> Result<()> {
        let spans = vec![Span::new(from.1.0, len, false), Span::new(to.1.0, len, true)];
        let task = Task { work: Work::Copy { to: to.1.0, from: from.1.0, len }, spans, what: "a copy across" };
        submit(&self.shared, "cuMemcpyPeerAsync", device, stream, task, |world, task| {
            world.counts.copies_across += 1;
            for (owner, span) in [(from.0, &task.spans[0]), (to.0, &task.spans[1])] {
                let place = world.memory.around(span.from).and_then(|range| range.place.device());
                if place.is_some_and(|place| place != owner) {
                    return Err(format!("{} takes memory of another device for that of device {owner}", task.what));
                }
                world.check_device_span(owner, span, task.what)?;
            }
            if task.spans[0].meets(&task.spans[1]) {
                return Err("a copy across overlaps itself".to_owned());
            }
            Ok(())
        })
    }

    unsafe fn fill(&self, device: usize, stream: StreamHandle, at: DeviceAddress, value: u8, len: usize) -> Result<()> {
        let spans = vec![Span::new(at.0, len, true)];
        let task = Task { work: Work::Fill { at: at.0, value, len }, spans, what: "a fill" };
        submit(&self.shared, "cuMemsetD8Async", device, stream, task, |world, task| {
            world.counts.fills += 1;
            world.check_device_span(device, &task.spans[0], task.what)
        })
    }

    fn load(&self, device: usize, program: &'static Program) -> Result<KernelHandle> {
        let mut world = self.shared.lock();
        world.device("cuModuleLoadData", device)?;
        Ok(world.add_kernel(device, program))
    }

    unsafe fn launch(
        &self,
        device: usize,
        stream: StreamHandle,
        kernel: KernelHandle,
        extent: Extent,
        arguments: &[Argument],
        accesses: &[Access],
    ) -> Result<()> {
        const CALL: &str = "cuLaunchKernel";
        let program = {
            let mut world = self.shared.lock();
            world.device(CALL, device)?;
            match world.kernels.get(&kernel.0) {
                Some((owner, program)) if *owner == device => *program,
                _ => return Err(world.violate(CALL, Some(device), "a kernel of another device, or none")),
            }
        };
        if extent.blocks == 0 || extent.threads == 0 {
            return Err(error(CALL, DriverError::INVALID_VALUE));
        }
        let spans: Vec<Span> =
            accesses.iter().map(|access| Span::new(access.at.0, access.len, access.writes)).collect();
        let work = Work::Kernel { program, arguments: arguments.into() };
        let task = Task { work, spans, what: program.name };
        submit(&self.shared, CALL, device, stream, task, |world, task| {
            world.counts.kernels += 1;
            for argument in arguments {
                let Argument::Address(DeviceAddress(at)) = *argument else { continue };
                if at != 0 && !task.spans.iter().any(|span| span.from <= at && at <= span.to) {
                    return Err(format!("{} gets {at:#x}, which no access names", task.what));
                }
            }
            task.spans.iter().try_for_each(|span| world.check_device_span(device, span, task.what))
        })
    }

    fn begin_capture(&self, device: usize, stream: StreamHandle) -> Result<()> {
        const CALL: &str = "cuStreamBeginCapture";
        let mut world = self.shared.lock();
        let found = world.stream(CALL, device, stream.0)?;
        if found.capture.is_some() {
            return Err(world.violate(CALL, Some(device), "the stream is recorded already"));
        }
        found.capture = Some(stream.0);
        world.captures.insert(stream.0, Capture::new(stream.0));
        Ok(())
    }

    fn end_capture(&self, device: usize, stream: StreamHandle) -> Result<GraphHandle> {
        const CALL: &str = "cuStreamEndCapture";
        let mut world = self.shared.lock();
        if world.stream(CALL, device, stream.0)?.capture != Some(stream.0) {
            return Err(world.violate(CALL, Some(device), "no recording began in the stream"));
        }
        let Some(capture) = world.captures.remove(&stream.0) else {
            return Err(error(CALL, fault::ILLEGAL_STATE));
        };
        for joined in capture.tails.keys() {
            if let Some(joined) = world.streams.get_mut(joined) {
                joined.capture = None;
            }
        }
        if capture.thread != std::thread::current().id() {
            return Err(world.violate(CALL, Some(device), "another thread began the recording"));
        }
        let nodes = capture.finish().map_err(|text| world.violate(CALL, Some(device), &text))?;
        let id = world.fresh();
        world.graphs.insert(id, Graph { device, nodes: nodes.into(), last: None });
        Ok(GraphHandle(id))
    }

    unsafe fn launch_graph(&self, device: usize, stream: StreamHandle, graph: GraphHandle) -> Result<()> {
        let mut world = self.shared.lock();
        let launched = world.launch_graph("cuGraphLaunch", device, stream.0, graph.0);
        self.shared.work.notify_all();
        self.shared.done.notify_all();
        launched
    }

    unsafe fn destroy_graph(&self, device: usize, graph: GraphHandle) {
        const CALL: &str = "cuGraphExecDestroy";
        let mut world = self.shared.lock();
        if world.device(CALL, device).is_err() {
            return;
        }
        let Some(found) = world.graphs.remove(&graph.0).filter(|found| found.device == device) else {
            world.violate(CALL, Some(device), "a graph that is destroyed, or another device's, or none");
            return;
        };
        if found.last.is_some_and(|(operation, _)| world.operations.contains_key(&operation)) {
            world.violate(CALL, Some(device), "a graph goes while it runs");
        }
    }

    fn ipc_export(&self, device: usize, at: DeviceAddress) -> Result<IpcHandle> {
        const CALL: &str = "cuIpcGetMemHandle";
        let mut world = self.shared.lock();
        world.device(CALL, device)?;
        let is_own = world.memory.starting_at(at.0).is_some_and(|range| range.place == MemoryOwner::Device(device));
        let handle = world.memory.export(at.0).filter(|_| is_own);
        handle.ok_or_else(|| error(CALL, DriverError::INVALID_VALUE))
    }

    fn ipc_open(&self, device: usize, handle: &IpcHandle) -> Result<DeviceAddress> {
        const CALL: &str = "cuIpcOpenMemHandle";
        let mut world = self.shared.lock();
        world.device(CALL, device)?;
        world.check_thread(CALL, Some(device))?;
        world.memory.open(device, handle).map(DeviceAddress).map_err(|text| {
            tracing::info!("simulated GPU: {CALL}: {text}");
            error(CALL, DriverError::INVALID_VALUE)
        })
    }

    unsafe fn ipc_close(&self, device: usize, at: DeviceAddress) -> Result<()> {
        const CALL: &str = "cuIpcCloseMemHandle";
        let mut world = self.shared.lock();
        world.device(CALL, device)?;
        world.check_thread(CALL, Some(device))?;
        if world.memory.starting_at(at.0).is_none_or(|range| range.place != MemoryOwner::Opened(device)) {
            return Err(world.violate(CALL, Some(device), "memory that is not open"));
        }
        if world.memory.close_once(at.0) {
            take_back(&mut world, CALL, Some(device), at.0, MemoryOwner::Opened(device))?;
        }
        Ok(())
    }

    fn allocation_of(&self, device: usize, at: DeviceAddress) -> Result<(DeviceAddress, usize)> {
        const CALL: &str = "cuMemGetAddressRange";
        let mut world = self.shared.lock();
        world.device(CALL, device)?;
        let range = world.memory.around(at.0).filter(|range| range.place.device() == Some(device));
        range.map(|range| (DeviceAddress(range.at), range.len)).ok_or_else(|| error(CALL, DriverError::INVALID_VALUE))
    }

    fn host_view(&self, at: DeviceAddress, len: usize) -> Option<*mut u8> {
        const CALL: &str = "host_view";
        let mut world = self.shared.lock();
        let span = Span::new(at.0, len, false);
        let place = world.memory.around(at.0).map(|range| (range.place, range.holds(&span)));
        let device = place.and_then(|(place, _)| place.device());
        let wrong = match (place, world.history.user_of(&span, true)) {
            (None, _) if world.memory.was_freed(&span) => "the host uses memory that is freed".to_owned(),
            (None, _) => return None,
            (Some((_, false)), _) => "the host leaves the memory that it uses".to_owned(),
            (Some(_), Some(writer)) => format!("the host has not seen {} on what it uses complete", writer.what),
            (Some(_), None) => return Some(memory::pointer(at.0)),
        };
        world.violate(CALL, device, &wrong);
        None
    }
}

/// Checks an operation and puts it into its stream.
pub(super) fn submit(
    shared: &SimulatedCore,
    call: &'static str,
    device: usize,
    stream: StreamHandle,
    task: Task,
    check: impl FnOnce(&mut World, &Task) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut world = shared.lock();
    let is_recorded = world.stream(call, device, stream.0)?.capture.is_some();
    let is_empty = task.spans.iter().all(|span| span.from == span.to);
    if is_empty && !task.work.is_launch() {
        return Ok(());
    }
    let submitted = match check(&mut world, &task) {
        Err(text) => Err(world.violate(call, Some(device), &text)),
        Ok(()) => {
            let is_launch = task.work.is_launch() && !is_recorded;
            let fails = if is_launch { world.count_launch(call)? } else { None };
            world.enqueue(call, device, stream.0, task, fails)
        }
    };
    shared.work.notify_all();
    shared.done.notify_all();
    submitted
}

/// Frees a range, if it has that owner and is unused. Returns its counted bytes.
fn take_back(world: &mut World, call: &'static str, device: Option<usize>, at: u64, place: MemoryOwner) -> Result<u64> {
    let Some(range) = world.memory.starting_at(at).filter(|range| range.place == place) else {
        return Err(world.violate(call, device, "memory that is freed already, or was not allocated so"));
    };
    let (span, charged) = (range.span(), range.charged());
    if let Err(text) = world.check_unused(&span, "the memory goes") {
        return Err(world.violate(call, device, &text));
    }
    world.memory.release(at);
    Ok(charged)
}

/// True if all work that the event covers is complete. The host has seen it complete from then on.
fn is_complete(world: &mut World, call: &'static str, device: usize, event: EventHandle) -> Result<bool> {
    world.check_thread(call, Some(device))?;
    // Most callers query repeatedly, so this must be cheap.
    if let EventState::Recorded { operation, .. } = world.event(call, device, event.0)?.state
        && world.operations.contains_key(&operation)
    {
        return Ok(false);
    }
    match world.event(call, device, event.0)?.state.clone() {
        EventState::Unrecorded => Ok(true),
        EventState::Recorded { clock, .. } => {
            world.host_sees(&clock);
            Ok(true)
        }
        EventState::Captured { .. } => {
            Err(world.violate(call, Some(device), "an event that was recorded into a graph"))
        }
    }
}
