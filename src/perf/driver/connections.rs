//! A driver's connections: they come, take turns, send, receive, break and are replaced.

use std::io;

use super::{Connection, Driver, Received, State};
use crate::connector::Socket;
use crate::threads::Report;
use nereid_memory::{BlockMut, Key, Slice};
use nereid_shard::Core;
use nereid_shard::engine::CHUNK_BYTES;

/// Where large answers are received: a few system calls for a tensor.
const BULK_BYTES: usize = 256 * 1024;

impl Driver {
    pub(super) fn add_connection(&mut self, socket: Socket, core: &mut Core<()>) {
        self.awaited = self.awaited.saturating_sub(1);
        if matches!(self.state, State::Stopping { .. }) {
            return;
        }
        let Socket { fd, ring } = socket;
        let is_ring = ring.is_some();
        let connection = match ring {
            Some(end) => Connection::over_ring(&self.settings.request_set, *end),
            None => self.plain_connection(core),
        };
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => return self.report(Report::Away(error)),
        };
        let Ok(key) = self.connections.insert(connection) else { return };
        if is_ring {
            self.rings.push(key);
        }
        let begun = core.engine.register(fd, key).and_then(|()| core.engine.receive(key));
        if let Err(error) = begun {
            self.connections.remove(key);
            return self.report(Report::Away(format!("a connection is of no use: {error}")));
        }
        self.touch(key);
        let places = match &self.state {
            State::Closed { most } => *most,
            State::Open { outstanding_max, .. } => *outstanding_max,
            State::Resting { .. } | State::Stopping { .. } => return self.share_places(usize::MAX),
        };
        self.share_places(places);
    }

    fn plain_connection(&self, core: &Core<()>) -> Result<Connection, String> {
        let session = self.settings.security.as_ref().map(|security| security.session()).transpose()?;
        Ok(Connection::new(&self.settings.request_set, &core.pool, session))
    }

    /// Gives every connection its part of the places, and makes free what is not in flight. Of HTTP/1.1 that is one.
    pub(super) fn share_places(&mut self, places: usize) {
        let usable =
            self.connections.iter().filter(|(_, connection)| !connection.closing && !connection.is_over()).count();
        let one_each = self.settings.one_each;
        let most = places.min(OPEN_STREAMS_MAX.saturating_mul(usable));
        let (each, mut more) = (most / usable.max(1), most % usable.max(1));
        let mut rooms = Vec::with_capacity(usable);
        for key in self.connections.keys() {
            let Some(connection) =
                self.connections.get_mut(key).filter(|connection| !connection.closing && !connection.is_over())
            else {
                continue;
            };
            connection.capacity = if one_each { 1 } else { each + usize::from(more > 0) };
            more = more.saturating_sub(1);
            connection.withheld = 0;
            rooms.push((key, connection.capacity.saturating_sub(connection.in_flight())));
        }
        // In turn, so that requests are spread from the first one on.
        self.free.clear();
        let deepest = rooms.iter().map(|(_, room)| *room).max().unwrap_or(0);
        for depth in 0..deepest {
            self.free.extend(rooms.iter().filter(|(_, room)| depth < *room).map(|(key, _)| *key));
        }
    }

    pub(super) fn ask_for_line(&mut self) {
        self.awaited += 1;
        (self.settings.connect)();
    }

    pub(super) fn touch(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(key);
        }
    }

    pub(super) fn received(&mut self, key: Key, received: Received, core: &mut Core<()>) {
        let now_ns = core.now_ns();
        let Some(connection) = self.connections.get_mut(key).filter(|connection| !connection.closing) else { return };
        let outcome = match received {
            Received::Chunk(chunk) => {
                if !connection.is_ring() {
                    self.totals.counts.bytes_received += chunk.len() as u64;
                }
                connection.bulky = chunk.len() == CHUNK_BYTES;
                connection.receive(&chunk, now_ns, &mut self.outcomes)
            }
            Received::Direct { block, at, len } => {
                self.totals.counts.bytes_received += len as u64;
                connection.bulky = len > CHUNK_BYTES;
                let bytes = block.get(at..at.saturating_add(len)).unwrap_or_default();
                let outcome = connection.receive(bytes, now_ns, &mut self.outcomes);
                connection.block = Some(block);
                outcome
            }
            // None is requested.
            Received::Scattered { .. } => Ok(()),
            // The last frames of a ring may say why.
            Received::End => match connection.poll(now_ns, &mut self.outcomes) {
                Ok(()) => Err("the server closed the connection".to_owned()),
                said => said,
            },
            Received::Failed(error) => Err(format!("the connection broke: {error}")),
        };
        if let Err(reason) = outcome {
            return self.lose(key, &reason, core);
        }
        self.settle(key);
        self.touch(key);
        if let Err(reason) = self.receive_more(key, core) {
            self.lose(key, &reason, core);
        }
    }

    fn receive_more(&mut self, key: Key, core: &mut Core<()>) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        let begun = if connection.bulky {
            let block = connection.block.take();
            let block =
                block.or_else(|| core.pool.get(BULK_BYTES).ok()).unwrap_or_else(|| BlockMut::unpooled(BULK_BYTES));
            let len = block.len();
            core.engine.receive_direct(key, block, 0, len)
        } else {
            core.engine.receive(key)
        };
        begun.map_err(|error| format!("the connection broke: {error}"))
    }

    pub(super) fn sent(&mut self, key: Key, result: io::Result<usize>, pieces: Vec<Slice>, core: &mut Core<()>) {
        if self.spare.len() < 64 {
            self.spare.push(pieces);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.sending = false;
        match result {
            Ok(bytes) => {
                if !connection.is_ring() {
                    self.totals.counts.bytes_sent += bytes as u64;
                }
                self.touch(key);
            }
            Err(error) => self.lose(key, &format!("the connection broke: {error}"), core),
        }
    }

    /// One send for each connection that has bytes to send. True if connections broke meanwhile.
    pub(super) fn send_dirty(&mut self, core: &mut Core<()>) -> bool {
        let mut has_lost = false;
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.dirty = false;
            if connection.sending || connection.closing {
                continue;
            }
            let mut pieces = self.spare.pop().unwrap_or_default();
            pieces.clear();
            let outcome = connection.take_output(pieces).and_then(|pieces| match pieces.is_empty() {
                true => {
                    self.spare.push(pieces);
                    Ok(())
                }
                false => {
                    connection.sending = true;
                    core.engine.send(key, pieces).map_err(|error| format!("the connection broke: {error}"))
                }
            });
            let over = connection.is_over() && connection.in_flight() == 0 && !connection.sending;
            match outcome {
                Err(reason) => {
                    self.lose(key, &reason, core);
                    has_lost = true;
                }
                Ok(()) if over && !matches!(self.state, State::Stopping { .. }) => {
                    self.replace(key, core);
                    has_lost = true;
                }
                Ok(()) => {}
            }
        }
        // The list keeps its room.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
        has_lost
    }

    /// The connection broke: what was in flight on it failed.
    pub(super) fn lose(&mut self, key: Key, reason: &str, core: &mut Core<()>) {
        let now_ns = core.now_ns();
        if let Some(connection) = self.connections.get_mut(key).filter(|connection| !connection.closing) {
            connection.fail(reason, now_ns, &mut self.outcomes);
            self.settle(key);
        }
        self.replace(key, core);
    }

    fn replace(&mut self, key: Key, core: &mut Core<()>) {
        if self.close(key, core) && !matches!(self.state, State::Stopping { .. }) {
            self.ask_for_line();
        }
    }

    /// True if it was open until now.
    pub(super) fn close(&mut self, key: Key, core: &mut Core<()>) -> bool {
        let Some(connection) = self.connections.get_mut(key).filter(|connection| !connection.closing) else {
            return false;
        };
        connection.closing = true;
        connection.fail("the run was over", core.now_ns(), &mut self.outcomes);
        self.settle(key);
        self.free.retain(|free| *free != key);
        if core.engine.close(key).is_err() {
            self.connections.remove(key);
        }
        true
    }

    /// Gives up what has waited for too long.
    pub(super) fn expire(&mut self, core: &mut Core<()>) {
        let now_ns = core.now_ns();
        let patience_ns = u64::try_from(self.settings.request_timeout.as_nanos()).unwrap_or(u64::MAX);
        let Some(before_ns) = now_ns.checked_sub(patience_ns) else { return };
        for key in self.connections.keys() {
            let Some(connection) = self.connections.get_mut(key).filter(|connection| !connection.closing) else {
                continue;
            };
            match connection.expire(before_ns, now_ns, &mut self.outcomes) {
                Ok(()) => self.settle(key),
                Err(reason) => self.lose(key, &reason, core),
            }
            self.touch(key);
        }
    }
}

/// Requests in flight on one connection: what servers usually allow.
pub const OPEN_STREAMS_MAX: usize = 1000;
