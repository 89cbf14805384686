//! The state of the simulated driver, under one lock: devices, streams, events, and the operations between them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing::error;

use super::super::driver::{DriverError, KernelHandle, Program, Result};
use super::Counts;
use super::fault;
use super::foreign::StreamLink;
use super::graph::{Capture, Graph};
use super::memory::{Memory, MemoryOwner};
use super::order::{Clock, History, Point, Span};
use super::random::Random;
use super::spec::Spec;
use super::work::{Operation, Task, Work};

/// Violations that are kept; the first ones are the most useful.
const VIOLATIONS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Device {
    pub used_bytes: u64,
    /// `CUresult` that broke it.
    pub broken: Option<i32>,
    /// Devices whose memory it can access.
    pub peers: BTreeSet<usize>,
    /// Operations that only their delay holds back, and the end of the delay.
    pub ready: Vec<(u64, Instant)>,
    delays: Random,
    pub choices: Random,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub device: usize,
    seq: u64,
    clock: Clock,
    /// The last operation.
    tail: Option<u64>,
    /// Operations that are not complete.
    pending: usize,
    is_destroyed: bool,
    /// The origin of the recording that it takes part in.
    pub capture: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Event {
    pub device: usize,
    pub is_timed: bool,
    pub state: EventState,
}

/// The work that an event covers.
#[derive(Debug, Clone)]
pub(super) enum EventState {
    Unrecorded,
    Recorded { operation: u64, clock: Clock, time: Arc<OnceLock<Instant>> },
    Captured { origin: u64, nodes: Vec<usize> },
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct World {
    pub spec: Spec,
    pub devices: Vec<Device>,
    pub memory: Memory,
    pub streams: HashMap<u64, Stream>,
    /// What other libraries get as the pointer of a stream.
    pub links: HashMap<u64, Box<StreamLink>>,
    pub events: HashMap<u64, Event>,
    pub kernels: HashMap<u64, (usize, &'static Program)>,
    pub captures: HashMap<u64, Capture>,
    pub graphs: HashMap<u64, Graph>,
    pub operations: HashMap<u64, Operation>,
    pub history: History,
    /// What the host has seen complete.
    pub host: Clock,
    pub violations: Vec<String>,
    pub counts: Counts,
    pub launches: u64,
    pub fault: Option<fault::Fault>,
    /// The number of [`Hold`](super::Hold)s: no operation runs while it is above zero.
    pub holds: usize,
    pub is_closing: bool,
    /// Handles are never used again.
    next_id: u64,
}

impl World {
    pub fn new(spec: Spec) -> World {
        let devices = (0..spec.devices).map(|ordinal| Device {
            used_bytes: 0,
            broken: None,
            peers: BTreeSet::new(),
            ready: Vec::new(),
            delays: Random::new(spec.seed, 2 * ordinal as u64),
            choices: Random::new(spec.seed, 2 * ordinal as u64 + 1),
        });
        World {
            devices: devices.collect(),
            memory: Memory::default(),
            streams: HashMap::new(),
            links: HashMap::new(),
            events: HashMap::new(),
            kernels: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            operations: HashMap::new(),
            history: History::default(),
            host: Clock::default(),
            violations: Vec::new(),
            counts: Counts::default(),
            launches: 0,
            fault: spec.fault,
            holds: 0,
            is_closing: false,
            next_id: 1,
            spec,
        }
    }

    pub fn fresh(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The device, as long as it works.
    pub fn device(&mut self, call: &'static str, device: usize) -> Result<&mut Device> {
        match self.devices.get_mut(device) {
            None => Err(fault::error(call, fault::INVALID_DEVICE)),
            Some(Device { broken: Some(code), .. }) => Err(fault::error(call, *code)),
            Some(device) => Ok(device),
        }
    }

    /// Records a violation, a call that no correct program makes: the device is broken, and the text is kept.
    pub fn violate(&mut self, call: &'static str, device: Option<usize>, text: &str) -> DriverError {
        let text = format!("{call}: {text}");
        error!("simulated GPU: {text}");
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
        match device {
            Some(device) => self.break_device(device, DriverError::ILLEGAL_ADDRESS),
            None => (0..self.devices.len()).for_each(|device| self.break_device(device, DriverError::ILLEGAL_ADDRESS)),
        }
        fault::error(call, DriverError::ILLEGAL_ADDRESS)
    }

    /// Breaks the device: from now on every call on it fails, and its pending work is not done.
    pub fn break_device(&mut self, device: usize, code: i32) {
        let Some(Device { broken, .. }) = self.devices.get_mut(device) else { return };
        broken.get_or_insert(code);
        for operation in self.operations.values_mut().filter(|operation| operation.device == device) {
            operation.task.work = Work::Nothing;
            operation.is_poison_due = false;
            operation.fails = None;
        }
        // It accesses no memory any more, so that accesses of others to shared memory need not come after it.
        let streams = &self.streams;
        self.history.forget_of(|stream| streams.get(&stream).is_some_and(|stream| stream.device == device));
    }

    /// The stream, if it is one of the device.
    pub fn stream(&mut self, call: &'static str, device: usize, stream: u64) -> Result<&mut Stream> {
        self.device(call, device)?;
        let is_known = self.streams.get(&stream).is_some_and(|found| found.device == device && !found.is_destroyed);
        if !is_known {
            return Err(self.violate(call, Some(device), "a stream that is destroyed, or another device's, or none"));
        }
        self.streams.get_mut(&stream).ok_or_else(|| fault::error(call, fault::INVALID_HANDLE))
    }

    /// The event, if it is one of the device.
    pub fn event(&mut self, call: &'static str, device: usize, event: u64) -> Result<&mut Event> {
        self.device(call, device)?;
        if self.events.get(&event).is_none_or(|found| found.device != device) {
            return Err(self.violate(call, Some(device), "an event that is destroyed, or another device's, or none"));
        }
        self.events.get_mut(&event).ok_or_else(|| fault::error(call, fault::INVALID_HANDLE))
    }

    pub fn create_stream(&mut self, device: usize) -> u64 {
        let (id, clock) = (self.fresh(), Clock::default());
        let stream = Stream { device, seq: 0, clock, tail: None, pending: 0, is_destroyed: false, capture: None };
        self.streams.insert(id, stream);
        self.counts.streams += 1;
        id
    }

    pub fn destroy_stream(&mut self, stream: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.is_destroyed = true;
        }
        self.forget_if_over(stream);
    }

    /// Drops a destroyed stream when no record names it any more.
    fn forget_if_over(&mut self, stream: u64) {
        let is_over = self.streams.get(&stream).is_some_and(|stream| stream.is_destroyed && stream.pending == 0);
        if is_over && !self.history.names(stream) {
            self.streams.remove(&stream);
            self.host.forget(stream);
            self.streams.values_mut().for_each(|other| other.clock.forget(stream));
            for event in self.events.values_mut() {
                if let EventState::Recorded { clock, .. } = &mut event.state {
                    clock.forget(stream);
                }
            }
            for graph in self.graphs.values_mut() {
                if let Some((_, clock)) = &mut graph.last {
                    clock.forget(stream);
                }
            }
        }
    }

    /// Records that the host has seen complete all work before `clock`.
    pub fn host_sees(&mut self, clock: &Clock) {
        self.host.join(clock);
        self.history.forget_seen(&self.host);
        let destroyed: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.is_destroyed).map(|(id, _)| *id).collect();
        destroyed.into_iter().for_each(|stream| self.forget_if_over(stream));
    }

    /// Checks that the device may access these bytes; the error gives the reason.
    pub fn check_device_span(&self, device: usize, span: &Span, what: &str) -> std::result::Result<(), String> {
        if span.from == span.to {
            return Ok(());
        }
        let Some(range) = self.memory.around(span.from).filter(|range| range.holds(span)) else {
            return Err(self.describe_stray(span, what));
        };
        match range.place.device() {
            Some(owner)
                if owner != device && !self.devices.get(device).is_some_and(|own| own.peers.contains(&owner)) =>
            {
                Err(format!("{what} touches memory of device {owner}, which device {device} does not reach"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a copy may use these bytes as the host's.
    pub fn check_host_span(&self, span: &Span, what: &str) -> std::result::Result<(), String> {
        if span.from == 0 {
            return Err(format!("{what} from or to no memory at all"));
        }
        match self.memory.touched_by(span) {
            Some(range) if range.place != MemoryOwner::Pinned => {
                Err(format!("{what} takes memory of a device for the host's"))
            }
            Some(range) if !range.holds(span) => Err(format!("{what} runs over the edge of pinned memory")),
            None if self.memory.was_freed(span) => Err(format!("{what} uses pinned memory that is freed")),
            _ => Ok(()),
        }
    }

    fn describe_stray(&self, span: &Span, what: &str) -> String {
        let at = span.from;
        match self.memory.touched_by(span) {
            Some(range) => {
                let (start, len) = (range.at, range.len);
                format!("{what} of {} bytes at {at:#x} leaves the {len} bytes at {start:#x}", span.to - span.from)
            }
            None if self.memory.was_freed(span) => format!("{what} at {at:#x} uses memory that is freed"),
            None => format!("{what} at {at:#x} uses memory that was never allocated"),
        }
    }

    /// Adds an operation to a stream, or to its recording.
    pub fn enqueue(
        &mut self,
        call: &'static str,
        device: usize,
        stream: u64,
        task: Task,
        fails: Option<i32>,
    ) -> Result<()> {
        let capture = self.stream(call, device, stream)?.capture;
        if let Some(origin) = capture {
            let added = self.captures.get_mut(&origin).map_or(Ok(()), |capture| capture.add(stream, device, task));
            return added.map_err(|text| self.violate(call, Some(device), &text));
        }
        let after: Vec<u64> = self.stream(call, device, stream)?.tail.into_iter().collect();
        let (point, clock) = self.advance(stream);
        self.check_order(call, device, &clock, &task)?;
        self.history.add(point, &clock, &task.spans, task.what);
        let id = self.place(device, stream, task, &after, fails);
        self.set_tail(stream, id);
        Ok(())
    }

    /// The next point of the stream, which comes after all work that the host has seen complete.
    pub fn advance(&mut self, stream: u64) -> (Point, Clock) {
        let Some(found) = self.streams.get_mut(&stream) else {
            return (Point { stream, seq: 0 }, Clock::default());
        };
        found.seq += 1;
        let point = Point { stream, seq: found.seq };
        found.clock.join(&self.host);
        found.clock.reach(point);
        (point, found.clock.clone())
    }

    pub fn check_order(&mut self, call: &'static str, device: usize, clock: &Clock, task: &Task) -> Result<()> {
        let Some((earlier, span)) = self.history.conflict(clock, &task.spans) else { return Ok(()) };
        let (verb, what) = (if span.writes { "writes" } else { "reads" }, task.what);
        let other = if earlier.span.writes { "writes" } else { "reads" };
        let (from, to) = (span.from.max(earlier.span.from), span.to.min(earlier.span.to));
        let text = format!(
            "{what} {verb} {} bytes at {from:#x} that {} {other}, and no stream, event or wait orders the two",
            to - from,
            earlier.what
        );
        Err(self.violate(call, Some(device), &text))
    }

    /// Makes an operation of a task that may run when `after` are complete.
    pub fn place(&mut self, device: usize, stream: u64, task: Task, after: &[u64], fails: Option<i32>) -> u64 {
        let id = self.fresh();
        let mut waits_for = 0;
        for before in after {
            if let Some(before) = self.operations.get_mut(before) {
                before.dependents.push(id);
                waits_for += 1;
            }
        }
        let is_used = |span: &Span| {
            let mut others = self.operations.values();
            others.any(|other| other.task.spans.iter().any(|other| other.meets(span)))
        };
        let is_poison_due = task.overwritten().any(is_used);
        let longest_us = if task.work.is_real() { self.spec.delay_us_max } else { 0 };
        let delay_us = self.devices.get_mut(device).map_or(0, |device| device.delays.below(longest_us + 1));
        let dependents = Vec::new();
        let operation = Operation { device, stream, task, waits_for, dependents, is_poison_due, delay_us, fails };
        if !is_poison_due {
            // SAFETY: the spans were checked, no incomplete operation uses them, and by contract this operation has
            // them.
            unsafe { operation.poison() }
        }
        self.operations.insert(id, operation);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.pending += 1;
        }
        if waits_for == 0 {
            self.make_ready(id);
        }
        id
    }

    pub fn tail(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream)?.tail
    }

    pub fn clock(&self, stream: u64) -> Clock {
        self.streams.get(&stream).map(|stream| stream.clock.clone()).unwrap_or_default()
    }

    pub fn set_tail(&mut self, stream: u64, operation: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.tail = Some(operation);
        }
    }

    /// Makes later work of the stream come after `clock`.
    pub fn join_clock(&mut self, stream: u64, clock: &Clock) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.clock.join(clock);
        }
    }

    /// Starts the delay of an operation: all before it is complete.
    fn make_ready(&mut self, id: u64) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        if std::mem::take(&mut operation.is_poison_due) {
            // SAFETY: the spans were checked, all earlier work is complete, and later work waits.
            unsafe { operation.poison() }
        }
        let (device, due) = (operation.device, Instant::now() + Duration::from_micros(operation.delay_us));
        if let Some(device) = self.devices.get_mut(device) {
            device.ready.push((id, due));
        }
    }

    /// Completes an operation after its effect.
    pub fn complete(&mut self, id: u64) {
        let Some(operation) = self.operations.remove(&id) else { return };
        for dependent in operation.dependents {
            let Some(found) = self.operations.get_mut(&dependent) else { continue };
            found.waits_for -= 1;
            if found.waits_for == 0 {
                self.make_ready(dependent);
            }
        }
        if let Some(stream) = self.streams.get_mut(&operation.stream) {
            stream.pending -= 1;
        }
        self.forget_if_over(operation.stream);
    }

    /// Checks that a range may be freed: the host has seen all its uses complete.
    pub fn check_unused(&self, span: &Span, what: &str) -> std::result::Result<(), String> {
        match self.history.user_of(span, false) {
            Some(user) => Err(format!("{what}, and the host has not seen {} on it complete", user.what)),
            None => Ok(()),
        }
    }

    /// Refuses calls that could wait for the device on a thread that records.
    pub fn check_thread(&mut self, call: &'static str, device: Option<usize>) -> Result<()> {
        let thread = std::thread::current().id();
        if self.captures.values().any(|capture| capture.thread == thread) {
            return Err(self.violate(call, device, "not while this thread records a graph"));
        }
        Ok(())
    }

    pub fn add_kernel(&mut self, device: usize, program: &'static Program) -> KernelHandle {
        let loaded = self.kernels.iter().find(|(_, (owner, known))| *owner == device && std::ptr::eq(*known, program));
        if let Some((&id, _)) = loaded {
            return KernelHandle(id);
        }
        let id = self.fresh();
        self.kernels.insert(id, (device, program));
        KernelHandle(id)
    }
}
