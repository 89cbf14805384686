//! ModelInfer through the rings of shared memory (docs/ipc.md): each request is a call, and its bytes are frames.
//!
//! The socket carries bells alone. What the server writes is found by [`RingExchange::poll`], which the thread calls in
//! every turn while it is awake.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::unary::StreamHasher;
use super::{Collected, EXPIRED, Flight, NotBegun, Outcomes, RequestSet};
use crate::regions::ArenaLayout;
use crate::request::{Placement, Prepared};
use nereid_ipc::{ClientEnd, Route, ServerFrame};
use nereid_memory::Slice;
use nereid_protocol::grpc::Code;
use nereid_queue::frames::Corrupt;

/// Memory for answers that is kept for the next ones.
const SPARE_MAX: usize = 64;
/// What a bell is; its value has no meaning.
const BELL: &[u8] = b"\x01";

pub struct RingExchange {
    end: ClientEnd,
    route: Route,
    request_set: Arc<RequestSet>,
    /// Templates whose tensors lie in this ring's arena, and where.
    in_arena: Vec<(Prepared, Placement)>,
    open: HashMap<u32, Call, BuildHasherDefault<StreamHasher>>,
    /// What has found no room in the ring, in order.
    unsent: VecDeque<Unsent>,
    is_over: bool,
    is_parked: bool,
    traffic: Traffic,
    scratch: Vec<u8>,
    frame: Vec<u8>,
    /// Where answers were kept that have been compared.
    spare: Vec<Vec<u8>>,
}

/// Bytes of messages through the rings since they were counted last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
}

struct Call {
    flight: Flight,
    answer: Collected,
}

enum Unsent {
    Request(Request),
    Cancel(u32),
}

/// A request that is not in the ring, or not all of it.
struct Request {
    call: u32,
    is_begun: bool,
    /// With its prefix.
    message: Vec<u8>,
    tail: Option<Slice>,
    at: usize,
}

impl Request {
    fn len(&self) -> usize {
        self.message.len() + self.tail.as_ref().map_or(0, |tail| tail.len())
    }

    /// The next `len` bytes.
    fn parts(&self, len: usize) -> [&[u8]; 2] {
        let (from, to, middle) = (self.at, self.at + len, self.message.len());
        let head = self.message.get(from.min(middle)..to.min(middle));
        let tail = self.tail.as_ref().and_then(|tail| tail.get(from.saturating_sub(middle)..to.saturating_sub(middle)));
        [head.unwrap_or_default(), tail.unwrap_or_default()]
    }

    /// Writes what there is room for; true if that was the rest.
    fn write(&mut self, end: &mut ClientEnd, route: Route, traffic: &mut Traffic) -> Result<bool, Corrupt> {
        loop {
            let left = self.len() - self.at;
            let len = left.min(if self.is_begun { end.data_max() } else { end.call_max() });
            let (parts, ends) = (self.parts(len), len == left);
            let is_pushed = match self.is_begun {
                false => end.push_call(self.call, route, ends, None, &parts)?,
                true => end.push_data(self.call, ends, &parts)?,
            };
            if !is_pushed {
                return Ok(false);
            }
            (self.is_begun, self.at) = (true, self.at + len);
            traffic.sent += len as u64;
            if ends {
                return Ok(true);
            }
        }
    }
}

impl RingExchange {
    /// Defines the route of the load, and fills the arena where tensors lie in it.
    pub fn new(request_set: Arc<RequestSet>, mut end: ClientEnd) -> Result<RingExchange, String> {
        let metadata: Vec<(&[u8], &[u8])> = request_set.metadata().collect();
        let route = end.define("/inference.GRPCInferenceService/ModelInfer", &metadata);
        let route = route.map_err(|error| error.to_string())?.ok_or("a new ring has no room for a route")?;
        let in_arena = match &request_set.arena {
            None => Vec::new(),
            Some(layout) => fill(&end, layout)?,
        };
        Ok(RingExchange {
            end,
            route,
            request_set,
            in_arena,
            open: HashMap::default(),
            unsent: VecDeque::new(),
            is_over: false,
            is_parked: false,
            traffic: Traffic::default(),
            scratch: Vec::new(),
            frame: Vec::new(),
            spare: Vec::new(),
        })
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        // Requests that wait here are of no use: the ring is the bound.
        if !self.unsent.is_empty() && !self.open.is_empty() {
            return Err(NotBegun::Full(flight));
        }
        let own = self.in_arena.get(flight.template).map(|(prepared, _)| prepared);
        let template = own.or_else(|| self.request_set.templates.get(flight.template));
        let Some(template) = template.filter(|_| !self.is_over) else { return Err(NotBegun::Over(flight)) };
        let mut message = std::mem::take(&mut self.scratch);
        let tail = template.write(&flight.marks, &mut message).cloned();
        let call = self.end.new_call();
        let mut request = Request { call, is_begun: false, message, tail, at: 0 };
        let is_written = match self.unsent.is_empty() {
            true => request.write(&mut self.end, self.route, &mut self.traffic),
            false => Ok(false),
        };
        match is_written {
            Ok(true) => self.scratch = request.message,
            Ok(false) => self.unsent.push_back(Unsent::Request(request)),
            Err(Corrupt) => {
                self.is_over = true;
                return Err(NotBegun::Over(flight));
            }
        }
        let wanted = self.request_set.expectation(flight.template);
        let wanted = wanted.map(|wanted| (Arc::clone(wanted), self.spare.pop().unwrap_or_default()));
        self.open.insert(call, Call { flight, answer: Collected::new(wanted) });
        Ok(())
    }

    /// True if [`RingExchange::poll`] has something to do.
    pub fn has_work(&self) -> bool {
        self.end.has_next() || !self.unsent.is_empty()
    }

    pub fn has_frames(&self) -> bool {
        self.end.has_next()
    }

    /// Takes what the server has written, and writes what there is room for now. An error is the connection's end.
    pub fn poll(&mut self, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        let mut frame = std::mem::take(&mut self.frame);
        let outcome = loop {
            let taken = match self.end.take(&mut frame) {
                Ok(None) => break Ok(()),
                Ok(Some(kind)) => ServerFrame::read(kind, &frame).map_err(|violation| violation.to_string()),
                Err(corrupt) => break Err(corrupt.to_string()),
            };
            if let Err(reason) = taken.and_then(|taken| self.take(taken, now_ns, outcomes)) {
                break Err(reason);
            }
        };
        self.frame = frame;
        outcome.and_then(|()| self.write_unsent().map_err(|corrupt| corrupt.to_string()))
    }

    fn take(&mut self, frame: ServerFrame<'_>, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        match frame {
            ServerFrame::Data { call, ends, bytes } => {
                self.traffic.received += bytes.len() as u64;
                if let Some(call) = self.open.get_mut(&call) {
                    call.answer.take(bytes);
                }
                if ends {
                    self.end_call(call, Ok(()), now_ns, outcomes);
                }
            }
            ServerFrame::Status { call: 0, text, .. } => {
                return Err(format!("the server ended the connection: {}", String::from_utf8_lossy(text)));
            }
            ServerFrame::Status { call, code, text, .. } => {
                let code = Code::from_header(code.to_string().as_bytes());
                let end = match code {
                    Code::Ok => Ok(()),
                    _ => Err(format!("{}: {}", code.name(), String::from_utf8_lossy(text))),
                };
                self.end_call(call, end, now_ns, outcomes);
            }
            ServerFrame::Leave => self.is_over = true,
        }
        Ok(())
    }

    fn end_call(&mut self, call: u32, end: Result<(), String>, now_ns: u64, outcomes: &mut Outcomes) {
        let Some(Call { mut flight, answer }) = self.open.remove(&call) else { return };
        let outcome = end.and_then(|()| match self.in_arena.get(flight.template) {
            None => answer.check(),
            Some((_, placement)) => answer.check_placed(placement, |at, len| self.end.read_arena(at, len)),
        });
        if outcome.is_ok() {
            outcomes.response(&mut flight, now_ns);
        }
        outcomes.finish(flight, now_ns, outcome);
        if let Some(kept) = answer.into_spare()
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(kept);
        }
    }

    fn write_unsent(&mut self) -> Result<(), Corrupt> {
        while let Some(unsent) = self.unsent.front_mut() {
            let is_written = match unsent {
                Unsent::Request(request) => request.write(&mut self.end, self.route, &mut self.traffic)?,
                Unsent::Cancel(call) => self.end.push_cancel(*call)?,
            };
            if !is_written {
                break;
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// A bell, if the server sleeps and has something to do.
    pub fn take_output(&mut self, into: &mut Vec<Slice>) {
        if self.end.is_bell_due() {
            into.push(Slice::from_static(BELL));
        }
    }

    /// The thread is about to sleep: the server has to ring. False: there is something to do.
    pub fn park(&mut self) -> bool {
        self.is_parked = self.end.park(!self.unsent.is_empty());
        self.is_parked
    }

    /// The thread is awake.
    pub fn unpark(&mut self) {
        if std::mem::take(&mut self.is_parked) {
            self.end.unpark();
        }
    }

    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn expire(&mut self, before_ns: u64, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        let late = self.open.iter().filter(|(_, call)| call.flight.sent_ns < before_ns).map(|(number, _)| *number);
        for number in late.collect::<Vec<u32>>() {
            let Some(call) = self.open.remove(&number) else { continue };
            outcomes.finish(call.flight, now_ns, Err(EXPIRED.to_owned()));
            let is_unknown = |one: &Unsent| matches!(one, Unsent::Request(of) if of.call == number && !of.is_begun);
            let is_known = !self.unsent.iter().any(is_unknown);
            self.unsent.retain(|one| !matches!(one, Unsent::Request(of) if of.call == number));
            if is_known {
                self.unsent.push_back(Unsent::Cancel(number));
            }
        }
        self.write_unsent().map_err(|corrupt| corrupt.to_string())
    }

    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        self.is_over = true;
        self.unsent.clear();
        for (_, call) in self.open.drain() {
            outcomes.finish(call.flight, now_ns, Err(reason.to_owned()));
        }
    }
}

/// Writes the inputs of all templates to the arena; the templates with its name in them.
fn fill(end: &ClientEnd, layout: &ArenaLayout) -> Result<Vec<(Prepared, Placement)>, String> {
    let (name, len) = end.arena();
    let name = String::from_utf8_lossy(name).into_owned();
    if layout.bytes > len {
        return Err(format!(
            "the tensors of all requests take {} bytes, and the server's arena has {len}: give it a larger \
             --ipc-arena-bytes, or measure without --shared-memory arena",
            layout.bytes
        ));
    }
    let templates = layout.plan.work.streams.iter().flatten();
    let mut made = Vec::with_capacity(layout.placements.len());
    for (template, placement) in templates.zip(&layout.placements) {
        for (input, at) in template.inputs.iter().zip(&placement.inputs) {
            let is_written = usize::try_from(*at).is_ok_and(|at| end.write_arena(at, &input.data));
            is_written.then_some(()).ok_or("a tensor does not fit the arena")?;
        }
        let placement = Placement { region: name.clone(), ..placement.clone() };
        let prepared = Prepared::new(&layout.plan, template, Some(&placement)).map_err(|error| error.to_string())?;
        made.push((prepared, placement));
    }
    Ok(made)
}

#[cfg(test)]
pub(crate) mod tests;
