//! The requests that a worker has: from the batch that contains them to their last response.
//!
//! The request itself is held until its execution has returned; after that only the address for its responses is kept.
//! The instance's thread and the worker's monitor thread both use this table. Neither waits for a client that reads
//! slowly: responses that may not be sent yet wait in the request's outbox until there is room, which wakes the monitor
//! thread. The sender of a small response goes on even if its response waits, within bounds: one thread of a model may
//! answer many requests, and one client that reads nothing must not stop the answers to the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::link::{Bell, Cancellations};

use super::message::OPEN_MAX;
use nereid_request::{
    CancelWatch, Observation, Observer, Outbox, Request, RequestEvents, RequestedOutput, Response, Text,
};

/// Responses, and their bytes, of one request that wait for its client although their senders have gone on. They may go
/// on until a client that reads nothing is disconnected, which takes 10 seconds.
const AHEAD_RESPONSES_MAX: usize = 2048;
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// The same for all requests of a worker.
const AHEAD_WORKER_BYTES_MAX: usize = 64 << 20;
/// The largest response whose sender goes on.
const AHEAD_RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Marks tags of responses whose senders have gone on; the rest of such a tag is their bytes.
const AHEAD: u64 = 1 << 63;

/// The address for the responses of a request.
#[derive(Clone)]
pub struct Address {
    pub id: Text,
    pub outbox: Arc<Outbox>,
    /// The outputs that its client requested; others are left out.
    pub outputs: Arc<[RequestedOutput]>,
}

struct TokenSlot {
    generation: u32,
    state: Option<OpenRequest>,
}

struct OpenRequest {
    /// The request, until its execution has returned.
    request: Option<Box<Request>>,
    address: Option<Address>,
    /// Its observer, also after that.
    observer: Option<Arc<dyn Observer>>,
    /// Sets its cancellation flag for the worker.
    watch: Option<CancelWatch>,
    /// Whether its last response was sent.
    is_closed: bool,
}

/// The rest of a request after its execution has returned.
pub struct ReturnedRequest {
    pub request: Box<Request>,
    /// Whether its sender has sent the last response.
    pub is_closed: bool,
    /// Whether its sender had not, but the worker has ended.
    pub is_lost: bool,
}

/// See the [module](self). The lower half of a token is the index, the upper its generation.
pub struct OpenRequests {
    table: Mutex<TokenTable>,
    cancellations: Arc<Cancellations>,
    room_listener: Arc<RoomListener>,
    waiting: Mutex<WaitingOutboxes>,
    /// Whether flushes have ended.
    is_abandoned: AtomicBool,
}

/// Outboxes with waiting responses, by their requests' tokens, which may have ended.
#[derive(Default)]
struct WaitingOutboxes {
    outboxes: HashMap<u64, WaitingOutbox>,
    /// Bytes of responses whose senders have gone on.
    ahead: usize,
}

struct WaitingOutbox {
    outbox: Arc<Outbox>,
    /// Its part of these bytes.
    ahead: usize,
}

impl WaitingOutboxes {
    /// The outbox of a request, from now on in the table.
    fn insert(&mut self, token: u64, outbox: &Arc<Outbox>) -> &mut WaitingOutbox {
        self.outboxes.entry(token).or_insert_with(|| WaitingOutbox { outbox: Arc::clone(outbox), ahead: 0 })
    }

    /// Responses with so many bytes, whose senders have gone on, were sent.
    fn sent(&mut self, token: u64, bytes: usize) {
        if let Some(waiting) = self.outboxes.get_mut(&token) {
            waiting.ahead = waiting.ahead.saturating_sub(bytes);
            self.ahead = self.ahead.saturating_sub(bytes);
        }
    }

    /// Removes an outbox in which nothing waits.
    fn tidy(&mut self, token: u64) {
        if self.outboxes.get(&token).is_some_and(|waiting| waiting.ahead == 0 && waiting.outbox.waiting_count() == 0) {
            self.outboxes.remove(&token);
        }
    }
}

/// Notified by outboxes when there is room for their responses.
struct RoomListener {
    tokens: Mutex<Vec<u64>>,
    /// The bell of the worker's monitor thread.
    bell: Bell,
}

impl RequestEvents for RoomListener {
    fn has_room(&self, key: u64) {
        lock(&self.tokens).push(key);
        self.bell.ring();
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct TokenTable {
    entries: Vec<TokenSlot>,
    free: Vec<u32>,
    /// Whether the worker has ended.
    is_over: bool,
}

/// The index of a token's request, which is also that of its cancellation byte.
pub fn index(token: u64) -> usize {
    (token & 0xffff_ffff) as usize
}

/// The bytes of a response whose sender has gone on.
fn bytes_ahead(tag: u64) -> usize {
    (tag & !AHEAD) as usize
}

impl TokenTable {
    fn get(&mut self, token: u64) -> Option<&mut OpenRequest> {
        let entry = self.entries.get_mut(index(token))?;
        if u64::from(entry.generation) == token >> 32 { entry.state.as_mut() } else { None }
    }

    fn remove(&mut self, token: u64) -> Option<OpenRequest> {
        // Before the index is reused: the byte of another request must not be set.
        self.get(token)?.watch = None;
        let entry = self.entries.get_mut(index(token))?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index(token) as u32);
        entry.state.take()
    }
}

impl OpenRequests {
    /// `monitor` is rung when [`flush`](OpenRequests::flush) is worth a call.
    pub fn new(cancellations: Arc<Cancellations>, monitor: Bell) -> OpenRequests {
        let room_listener = Arc::new(RoomListener { tokens: Mutex::default(), bell: monitor });
        OpenRequests {
            table: Mutex::default(),
            cancellations,
            room_listener,
            waiting: Mutex::default(),
            is_abandoned: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TokenTable> {
        lock(&self.table)
    }

    /// Reserves a token for a request that is about to be sent; `None`: the worker has as many as it may.
    pub fn reserve(&self) -> Option<u64> {
        let mut table = self.lock();
        let at = match table.free.pop() {
            Some(at) => at,
            None if table.entries.len() < OPEN_MAX => {
                table.entries.push(TokenSlot { generation: 0, state: None });
                table.entries.len() as u32 - 1
            }
            None => return None,
        };
        let entry = table.entries.get_mut(at as usize)?;
        entry.state = Some(OpenRequest { request: None, address: None, observer: None, watch: None, is_closed: false });
        Some((u64::from(entry.generation) << 32) | u64::from(at))
    }

    /// Stores the request itself, before it is sent to the worker.
    pub fn put(&self, token: u64, request: Box<Request>) {
        let place = index(token);
        self.cancellations.set(place, false);
        let watch = request.admission().watch(Arc::clone(&self.cancellations) as Arc<_>, place as u64);
        if let Some(opened) = self.lock().get(token) {
            opened.observer = request.observer.as_ref().map(Observation::observer);
            opened.watch = Some(watch);
            opened.request = Some(request);
        }
    }

    /// Removes a request that was not sent.
    pub fn forget(&self, token: u64) {
        self.lock().remove(token);
    }

    /// The address for a response of a request; with `last` for its last one. `None`: there is no such request, or its
    /// last response was sent.
    pub fn address(&self, token: u64, last: bool) -> Option<Address> {
        let mut table = self.lock();
        let opened = table.get(token).filter(|opened| !opened.is_closed)?;
        if opened.address.is_none() {
            opened.address = opened.request.as_deref().map(|request| self.address_of(token, request));
        }
        let address = opened.address.clone();
        opened.is_closed = last;
        if last && opened.request.is_none() {
            table.remove(token);
        }
        address
    }

    /// The observer of a request without its last response.
    pub fn observer(&self, token: u64) -> Option<Arc<dyn Observer>> {
        self.lock().get(token)?.observer.clone()
    }

    /// Records that the execution of this request has returned. With `stays` its sender may still answer, unless it has
    /// sent the last response.
    pub fn returned(&self, token: u64, stays: bool) -> Option<ReturnedRequest> {
        let mut table = self.lock();
        let is_over = table.is_over;
        let opened = table.get(token)?;
        let request = opened.request.take()?;
        let is_closed = opened.is_closed;
        let is_lost = stays && !is_closed && is_over;
        if is_closed || !stays || is_lost {
            table.remove(token);
        } else if opened.address.is_none() {
            opened.address = Some(self.address_of(token, &request));
        }
        Some(ReturnedRequest { request, is_closed, is_lost })
    }

    /// Whether the sender of a response with so many bytes may go on, even if the response will wait. If so, it has to
    /// be sent with the returned tag.
    pub fn run_ahead(&self, token: u64, address: &Address, bytes: usize) -> Option<u64> {
        if bytes > AHEAD_RESPONSE_BYTES_MAX || address.outbox.waiting_count() >= AHEAD_RESPONSES_MAX {
            return None;
        }
        let mut waiting = lock(&self.waiting);
        let of_request = waiting.outboxes.get(&token).map_or(0, |waiting| waiting.ahead);
        if of_request + bytes > AHEAD_BYTES_MAX || waiting.ahead + bytes > AHEAD_WORKER_BYTES_MAX {
            return None;
        }
        waiting.ahead += bytes;
        waiting.insert(token, &address.outbox).ahead += bytes;
        Some(AHEAD | bytes as u64)
    }

    /// Sends a response, or the final flag alone, after those that wait already. False: it waits too, and a flush will
    /// report `tag` when it is sent, unless it is one of [`run_ahead`](OpenRequests::run_ahead).
    pub fn send(&self, token: u64, address: &Address, response: Option<Response>, last: bool, tag: u64) -> bool {
        if address.outbox.send(response, last, tag) {
            if tag & AHEAD != 0 {
                self.went_out(token, bytes_ahead(tag));
            }
            return true;
        }
        lock(&self.waiting).insert(token, &address.outbox);
        if self.is_abandoned.load(Ordering::SeqCst) {
            address.outbox.empty();
            return true;
        }
        // There may have been room before the outbox was in the map.
        self.room_listener.has_room(token);
        false
    }

    /// Sends the responses that there is room for by now, and calls `sent` with their tags.
    pub fn flush(&self, mut sent: impl FnMut(u64)) {
        for token in std::mem::take(&mut *lock(&self.room_listener.tokens)) {
            let outbox = lock(&self.waiting).outboxes.get(&token).map(|waiting| Arc::clone(&waiting.outbox));
            let Some(outbox) = outbox else { continue };
            // The outbox is locked during the flush, and the table must not be locked within that.
            let mut ahead: usize = 0;
            outbox.flush(|tag| match tag & AHEAD {
                0 => sent(tag),
                _ => ahead += bytes_ahead(tag),
            });
            self.went_out(token, ahead);
        }
    }

    fn went_out(&self, token: u64, bytes_ahead: usize) {
        let mut waiting = lock(&self.waiting);
        waiting.sent(token, bytes_ahead);
        waiting.tidy(token);
    }

    /// The worker has ended: sends waiting responses at once, and `last` to each request that still expects responses
    /// through a sender.
    pub fn abandon(&self, mut last: impl FnMut(&Address) -> Response) {
        self.is_abandoned.store(true, Ordering::SeqCst);
        for waiting in std::mem::take(&mut *lock(&self.waiting)).outboxes.into_values() {
            waiting.outbox.empty();
        }
        for address in self.abandoned() {
            address.outbox.send(Some(last(&address)), true, 0);
            address.outbox.empty();
        }
    }

    fn abandoned(&self) -> Vec<Address> {
        let mut table = self.lock();
        table.is_over = true;
        let returned = |entry: &TokenSlot| entry.state.as_ref().is_some_and(|opened| opened.request.is_none());
        let tokens: Vec<u64> = (0u64..)
            .zip(&table.entries)
            .filter(|(_, entry)| returned(entry))
            .map(|(at, entry)| (u64::from(entry.generation) << 32) | at)
            .collect();
        let removed = tokens.into_iter().filter_map(|token| table.remove(token));
        removed.filter(|opened| !opened.is_closed).filter_map(|opened| opened.address).collect()
    }

    fn address_of(&self, token: u64, request: &Request) -> Address {
        let outbox = Outbox::new(request.responses(), Arc::clone(&self.room_listener) as Arc<_>, token);
        Address { id: request.id.clone(), outbox: Arc::new(outbox), outputs: request.outputs.as_slice().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Answers;
    use crate::python::link::{Bounds, Link};
    use nereid_request::Completion;

    const MIB: usize = 1 << 20;

    fn address(open: &OpenRequests, token: u64, answers: &Arc<Answers>) -> (Request, Address) {
        let request = Request::new(Completion::new(answers.clone(), token));
        request.limit_responses(1);
        let address = open.address_of(token, &request);
        (request, address)
    }

    fn response() -> Option<Response> {
        Some(Response::new(Text::from("r")))
    }

    #[test]
    fn senders_of_small_responses_go_on_within_bounds() {
        let bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 4096 };
        let (link, _socket) = Link::new(bounds, 0, false, Default::default()).unwrap();
        let open = OpenRequests::new(link.cancellations(), link.aside_bell.another().unwrap());
        let answers = Arc::<Answers>::default();
        let requests: Vec<_> = (0..6).map(|token| address(&open, token, &answers)).collect();
        let go_on = |token: u64, bytes| {
            let address = &requests[token as usize].1;
            let tag = open.run_ahead(token, address, bytes);
            let sent = open.send(token, address, response(), false, tag.unwrap_or(7));
            (sent, tag.is_some())
        };
        // The first one is in flight, and leaves nothing behind.
        assert_eq!(go_on(0, MIB), (true, true));
        assert!(lock(&open.waiting).outboxes.is_empty() && lock(&open.waiting).ahead == 0);
        assert_eq!(go_on(0, MIB + 1), (false, false), "too large");
        for _ in 0..16 {
            assert_eq!(go_on(0, MIB), (false, true));
        }
        assert_eq!(go_on(0, 1), (false, false), "more than one request may have");
        for token in 1..4 {
            go_on(token, 1);
            (0..16).for_each(|_| assert_eq!(go_on(token, MIB), (false, true)));
        }
        go_on(4, 0);
        assert_eq!(go_on(4, 1), (false, false), "more than a worker may have");
        assert_eq!(lock(&open.waiting).ahead, 64 * MIB);
        // What is sent later leaves room, and only senders that wait are acknowledged.
        for (request, _) in &requests {
            request.admission().cancel();
        }
        let mut sent = Vec::new();
        (0..6).for_each(|token| open.room_listener.has_room(token));
        open.flush(|tag| sent.push(tag));
        assert_eq!(sent, [7, 7, 7]);
        assert!(lock(&open.waiting).outboxes.is_empty() && lock(&open.waiting).ahead == 0);
    }

    #[test]
    fn so_many_responses_of_a_request_may_wait() {
        let bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 4096 };
        let (link, _socket) = Link::new(bounds, 0, false, Default::default()).unwrap();
        let open = OpenRequests::new(link.cancellations(), link.aside_bell.another().unwrap());
        let (_request, address) = address(&open, 0, &Arc::default());
        for _ in 0..=AHEAD_RESPONSES_MAX {
            let tag = open.run_ahead(0, &address, 1).expect("few wait");
            open.send(0, &address, response(), false, tag);
        }
        assert_eq!(open.run_ahead(0, &address, 1), None);
    }
}
