//! The requests that a worker has: from the batch that takes them there to their last response.
//!
//! A request itself is held until its execution has returned; what it leaves behind is the way for its responses. Both
//! the thread of the instance and the one that keeps the worker look here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::message::OPEN_MAX;
use crate::request::{Observation, Observer, Request, RequestedOutput, ResponseFactory, Text};

/// What sends of a request need to know.
#[derive(Clone)]
pub struct Address {
    pub id: Text,
    pub responses: Arc<ResponseFactory>,
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
#[derive(Default)]
pub struct Open {
    table: Mutex<Table>,
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
        self.get(token)?;
        let entry = self.entries.get_mut(index(token))?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index(token) as u32);
        entry.state.take()
    }
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
        entry.state = Some(Opened { request: None, address: None, observer: None, is_closed: false });
        Some((u64::from(entry.generation) << 32) | u64::from(at))
    }

    /// Takes the request itself, before the worker hears of it.
    pub fn put(&self, token: u64, request: Box<Request>) {
        if let Some(opened) = self.lock().get(token) {
            opened.observer = request.observer.as_ref().map(Observation::observer);
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
            opened.address = opened.request.as_deref().map(address_of);
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
            opened.address = Some(address_of(&request));
        }
        Some(Returned { request, is_closed, is_lost })
    }

    /// Whoever still waits for responses through a sender, when there is no worker any more.
    pub fn abandoned(&self) -> Vec<Address> {
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
}

fn address_of(request: &Request) -> Address {
    Address {
        id: request.id.clone(),
        responses: Arc::new(request.responses()),
        outputs: request.outputs.as_slice().into(),
    }
}
