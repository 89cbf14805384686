//! The requests that a worker has: from the batch that takes them there to their last response.
//!
//! A request itself is held until its execution has returned; what it leaves behind is the way for its responses. Both
//! the thread of the instance and the one that keeps the worker look here. Neither waits for a client that reads
//! slowly: what may not be sent yet lies in the request's outbox until the monitor thread is woken because there is
//! room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::link::{Bell, Cancellations};

use super::message::OPEN_MAX;
use nereid_request::{
    CancelWatch, Observation, Observer, Outbox, Request, RequestEvents, RequestedOutput, Response, Text,
};

/// What sends of a request need to know.
#[derive(Clone)]
pub struct Address {
    pub id: Text,
    pub outbox: Arc<Outbox>,
    /// The outputs that its client wants; others are left out.
    pub outputs: Arc<[RequestedOutput]>,
}

struct Entry {
    generation: u32,
    state: Option<Opened>,
}

struct Opened {
    /// Until its execution has returned.
    request: Option<Box<Request>>,
    address: Option<Address>,
    /// Who watches it, also after that.
    observer: Option<Arc<dyn Observer>>,
    /// Has the worker see its cancellation.
    watch: Option<CancelWatch>,
    /// Its last response is out.
    is_closed: bool,
}

/// What an execution that has returned leaves of a request.
pub struct Returned {
    pub request: Box<Request>,
    /// Nothing more is to come through its sender.
    pub is_closed: bool,
    /// More was to come, but there is no worker any more.
    pub is_lost: bool,
}

/// See the [module](self). The lower half of a token is the place, the upper its generation.
pub struct Open {
    table: Mutex<Table>,
    cancellations: Arc<Cancellations>,
    roomy: Arc<Roomy>,
    /// Outboxes in which something waits, by their requests' tokens, whatever has become of those.
    waiting: Mutex<HashMap<u64, Arc<Outbox>>>,
    /// Nobody flushes any more.
    is_abandoned: AtomicBool,
}

/// Told by outboxes that there is room for what they hold.
struct Roomy {
    tokens: Mutex<Vec<u64>>,
    /// Of the thread that keeps the worker.
    bell: Bell,
}

impl RequestEvents for Roomy {
    fn has_room(&self, key: u64) {
        lock(&self.tokens).push(key);
        self.bell.ring();
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// There is no worker any more.
    is_over: bool,
}

/// The place of a token's request, by which its cancellation byte is found.
pub fn index(token: u64) -> usize {
    (token & 0xffff_ffff) as usize
}

impl Table {
    fn get(&mut self, token: u64) -> Option<&mut Opened> {
        let entry = self.entries.get_mut(index(token))?;
        if u64::from(entry.generation) == token >> 32 { entry.state.as_mut() } else { None }
    }

    fn remove(&mut self, token: u64) -> Option<Opened> {
        // Before the place may be another request's, whose byte must not be set.
        self.get(token)?.watch = None;
        let entry = self.entries.get_mut(index(token))?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index(token) as u32);
        entry.state.take()
    }
}

impl Open {
    /// `monitor` is rung when [`flush`](Open::flush) is worth a call.
    pub fn new(cancellations: Arc<Cancellations>, monitor: Bell) -> Open {
        let roomy = Arc::new(Roomy { tokens: Mutex::default(), bell: monitor });
        Open {
            table: Mutex::default(),
            cancellations,
            roomy,
            waiting: Mutex::default(),
            is_abandoned: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// How messages shall call a request that is about to be sent; `None`: the worker has as many as it may.
    pub fn reserve(&self) -> Option<u64> {
        let mut table = self.lock();
        let at = match table.free.pop() {
            Some(at) => at,
            None if table.entries.len() < OPEN_MAX => {
                table.entries.push(Entry { generation: 0, state: None });
                table.entries.len() as u32 - 1
            }
            None => return None,
        };
        let entry = table.entries.get_mut(at as usize)?;
        entry.state = Some(Opened { request: None, address: None, observer: None, watch: None, is_closed: false });
        Some((u64::from(entry.generation) << 32) | u64::from(at))
    }

    /// Takes the request itself, before the worker hears of it.
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

    /// The request was not sent after all.
    pub fn forget(&self, token: u64) {
        self.lock().remove(token);
    }

    /// Where a response of a request goes; with `last` it is the last one. `None`: there is no such request, or its
    /// last response is out.
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

    /// Who watches a request that has not got its last response.
    pub fn observer(&self, token: u64) -> Option<Arc<dyn Observer>> {
        self.lock().get(token)?.observer.clone()
    }

    /// The execution of this request has returned. With `stays` its sender may still answer, if it has not yet done so.
    pub fn returned(&self, token: u64, stays: bool) -> Option<Returned> {
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
        Some(Returned { request, is_closed, is_lost })
    }

    /// Sends a response, or the bare end, behind what waits already. False: it waits too, and a flush will tell of
    /// `tag` when it is out.
    pub fn send(&self, token: u64, address: &Address, response: Option<Response>, last: bool, tag: u64) -> bool {
        if address.outbox.send(response, last, tag) {
            return true;
        }
        lock(&self.waiting).insert(token, Arc::clone(&address.outbox));
        if self.is_abandoned.load(Ordering::SeqCst) {
            address.outbox.empty();
            return true;
        }
        // Room may have come before the outbox could be found.
        self.roomy.has_room(token);
        false
    }

    /// Sends what there is room for by now, and tells `sent` the tags.
    pub fn flush(&self, mut sent: impl FnMut(u64)) {
        for token in std::mem::take(&mut *lock(&self.roomy.tokens)) {
            let Some(outbox) = lock(&self.waiting).get(&token).cloned() else { continue };
            outbox.flush(&mut sent);
            let mut waiting = lock(&self.waiting);
            if outbox.waiting_count() == 0 {
                waiting.remove(&token);
            }
        }
    }

    /// There is no worker any more: what waits is sent at once, and whoever still waits for responses through a sender
    /// gets `last`.
    pub fn abandon(&self, mut last: impl FnMut(&Address) -> Response) {
        self.is_abandoned.store(true, Ordering::SeqCst);
        for outbox in std::mem::take(&mut *lock(&self.waiting)).into_values() {
            outbox.empty();
        }
        for address in self.abandoned() {
            address.outbox.send(Some(last(&address)), true, 0);
            address.outbox.empty();
        }
    }

    fn abandoned(&self) -> Vec<Address> {
        let mut table = self.lock();
        table.is_over = true;
        let returned = |entry: &Entry| entry.state.as_ref().is_some_and(|opened| opened.request.is_none());
        let tokens: Vec<u64> = (0u64..)
            .zip(&table.entries)
            .filter(|(_, entry)| returned(entry))
            .map(|(at, entry)| (u64::from(entry.generation) << 32) | at)
            .collect();
        let removed = tokens.into_iter().filter_map(|token| table.remove(token));
        removed.filter(|opened| !opened.is_closed).filter_map(|opened| opened.address).collect()
    }

    fn address_of(&self, token: u64, request: &Request) -> Address {
        let outbox = Outbox::new(request.responses(), Arc::clone(&self.roomy) as Arc<_>, token);
        Address { id: request.id.clone(), outbox: Arc::new(outbox), outputs: request.outputs.as_slice().into() }
    }
}
