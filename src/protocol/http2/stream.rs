//! The streams of one connection: their state, and how to find them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

use crate::slow_peers::Progress;
use nereid_memory::Slice;

/// Streams that were reset and may still get frames from a peer that has not read that yet.
const REMEMBERED_RESETS: usize = 1024;
/// Streams that ended on both sides; speaking to them is a mistake, and worth telling from older ones.
const REMEMBERED_ENDS: usize = 64;
/// Places in a stream's send queue that are kept for the next stream.
const KEPT_PIECES: usize = 64;

/// What may still come from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Client: the response's head.
    Head,
    Body,
    Ended,
}

/// What we may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// Server: the response's head.
    Head,
    Body,
    /// The caller has handed over everything; some of it may wait for the windows.
    Finishing(Finish),
    Ended,
}

/// How a stream ends once its queue is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// With the last DATA frame.
    Data,
    /// With the trailers that stand in `trailers`.
    Trailers,
}

/// One stream.
pub(super) struct Stream {
    /// 0 while the place is free.
    pub(super) id: u32,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// Below zero when the peer made its initial window smaller (RFC 9113 section 6.9.2).
    pub(super) send_window: i64,
    pub(super) receive_window: i64,
    /// Flow-controlled bytes that came and were not yet taken by the caller.
    pub(super) untaken: u32,
    /// Bytes taken but not yet given back to the peer.
    pub(super) credit: u32,
    /// What content-length still promises.
    pub(super) content_left: Option<u64>,
    pub(super) queue: VecDeque<Slice>,
    /// Bytes of `queue`.
    pub(super) queued: usize,
    /// An encoded block, independent of the table, that waits behind `queue`.
    pub(super) trailers: Vec<u8>,
    /// Bytes that left `queue` since the last second, and how the peer makes room for what is in it.
    pub(super) left: u64,
    pub(super) progress: Progress,
    /// Is in the list of streams that have something to send and the window for it.
    pub(super) ready: bool,
}

impl Stream {
    fn new() -> Stream {
        Stream {
            id: 0,
            receiving: Receiving::Ended,
            sending: Sending::Ended,
            send_window: 0,
            receive_window: 0,
            untaken: 0,
            credit: 0,
            content_left: None,
            queue: VecDeque::new(),
            queued: 0,
            trailers: Vec::new(),
            left: 0,
            progress: Progress::default(),
            ready: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.receiving == Receiving::Ended && self.sending == Sending::Ended
    }

    fn clear(&mut self) {
        let Stream {
            id,
            receiving,
            sending,
            send_window,
            receive_window,
            untaken,
            credit,
            content_left,
            queue,
            queued,
            trailers,
            left,
            progress,
            ready,
        } = self;
        // Most were never used.
        if queue.capacity() > 0 {
            queue.clear();
            queue.shrink_to(KEPT_PIECES);
        }
        if trailers.capacity() > 0 {
            trailers.clear();
            trailers.shrink_to(1024);
        }
        (*id, *receiving, *sending) = (0, Receiving::Ended, Sending::Ended);
        (*send_window, *receive_window, *untaken, *credit) = (0, 0, 0, 0);
        (*content_left, *queued, *ready) = (None, 0, false);
        (*left, *progress) = (0, Progress::default());
    }
}

/// How a stream that is gone came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// We reset it: what the peer sends meanwhile is ignored.
    ResetByUs,
    ResetByPeer,
    /// Both sides ended it.
    Ended,
    /// Closed too long ago to be remembered, or never opened.
    Forgotten,
}

/// All open streams. Places are reused, with the memory of their queues.
pub(super) struct Streams {
    places: Vec<Stream>,
    free: Vec<u32>,
    index: HashMap<u32, u32, IdHash>,
    /// The stream that was looked up or opened last, and its place: frames of one stream come in a row.
    last: (u32, u32),
    resets: VecDeque<(u32, Gone)>,
    ends: VecDeque<u32>,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            places: Vec::new(),
            free: Vec::new(),
            index: HashMap::default(),
            last: (0, 0),
            resets: VecDeque::new(),
            ends: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Stream> {
        let place = if self.last.0 == id && id != 0 { self.last.1 } else { *self.index.get(&id)? };
        self.places.get(place as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        if self.last.0 != id || id == 0 {
            self.last = (id, *self.index.get(&id)?);
        }
        self.places.get_mut(self.last.1 as usize)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.places.iter_mut().filter(|stream| stream.id != 0)
    }

    /// A fresh stream; the caller sets its states and windows.
    pub(super) fn insert(&mut self, id: u32) -> &mut Stream {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Stream::new());
            (self.places.len() - 1) as u32
        });
        self.index.insert(id, place);
        self.last = (id, place);
        let stream = &mut self.places[place as usize];
        stream.id = id;
        stream
    }

    /// Forgets the stream but for how it ended.
    pub(super) fn remove(&mut self, id: u32, gone: Gone) {
        let Some(place) = self.index.remove(&id) else { return };
        self.last = (0, 0);
        self.places[place as usize].clear();
        self.free.push(place);
        self.remember(id, gone);
    }

    pub(super) fn remember(&mut self, id: u32, gone: Gone) {
        match gone {
            Gone::Ended => {
                if self.ends.len() == REMEMBERED_ENDS {
                    self.ends.pop_front();
                }
                self.ends.push_back(id);
            }
            _ => {
                if self.resets.len() == REMEMBERED_RESETS {
                    self.resets.pop_front();
                }
                self.resets.push_back((id, gone));
            }
        }
    }

    /// For a stream that is not open but could have been.
    pub(super) fn gone(&self, id: u32) -> Gone {
        if let Some((_, gone)) = self.resets.iter().rev().find(|reset| reset.0 == id) {
            return *gone;
        }
        if self.ends.contains(&id) { Gone::Ended } else { Gone::Forgotten }
    }
}

/// For maps whose keys are streams.
///
/// The default spreads the identifiers of HTTP/2, which are small, odd and dense, over the hash map's bits. Collisions
/// are no weapon there: a peer has no more than the permitted number of streams in the map.
#[derive(Debug, Clone, Copy)]
pub struct IdHash {
    multiplier: u64,
    addend: u64,
}

impl Default for IdHash {
    fn default() -> IdHash {
        IdHash { multiplier: 0x9e37_79b9_7f4a_7c15, addend: 0 }
    }
}

impl IdHash {
    /// For numbers that a peer chooses freely, with random words that it does not know: of any two numbers the 32 bits
    /// that choose a place agree about as seldom as random ones (multiply, add, shift).
    pub fn keyed([multiplier, addend]: [u64; 2]) -> IdHash {
        IdHash { multiplier: multiplier | 1, addend }
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { hash: 0, key: *self }
    }
}

/// See [`IdHash`].
#[derive(Debug, Clone)]
pub struct IdHasher {
    hash: u64,
    key: IdHash,
}

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        let IdHash { multiplier, addend } = self.key;
        self.hash = (self.hash ^ u64::from(id)).wrapping_mul(multiplier).wrapping_add(addend).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_found_again() {
        let mut streams = Streams::new();
        for id in (1..20_001).step_by(2) {
            streams.insert(id).queued = id as usize;
            if id > 20 {
                streams.remove(id - 20, Gone::Ended);
            }
            assert_eq!(streams.get(id).unwrap().queued, id as usize);
        }
        assert_eq!((streams.len(), streams.places.len()), (10, 11));
        assert_eq!(streams.iter_mut().count(), 10);
        assert_eq!(streams.gone(19_979), Gone::Ended);
        assert_eq!(streams.gone(1), Gone::Forgotten);
        assert!(streams.get(1).is_none());
    }

    /// Numbers that meet in one place under the default spread out under other words.
    #[test]
    fn chosen_numbers_do_not_meet_under_a_key() {
        let place = |hash: IdHash, id: u32| {
            let hash = hash.hash_one(id);
            (hash & 0xff, hash >> 57)
        };
        let wanted = place(IdHash::default(), 1);
        let chosen: Vec<u32> = (1..).filter(|&id| place(IdHash::default(), id) == wanted).take(20).collect();
        let keyed = IdHash::keyed([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]);
        let places: std::collections::HashSet<_> = chosen.iter().map(|&id| place(keyed, id)).collect();
        assert!(places.len() > 10, "{} places of 20 numbers", places.len());
    }

    #[test]
    fn only_so_many_resets_are_remembered() {
        let mut streams = Streams::new();
        for id in 1..=5000 {
            streams.remember(id, Gone::ResetByUs);
        }
        assert_eq!((streams.gone(5000), streams.gone(3976)), (Gone::ResetByUs, Gone::Forgotten));
    }

    #[test]
    fn a_place_is_clean_for_its_next_stream() {
        let mut streams = Streams::new();
        let stream = streams.insert(1);
        stream.queue.push_back(Slice::from_static(b"x"));
        stream.trailers.extend_from_slice(b"y");
        stream.content_left = Some(3);
        streams.remove(1, Gone::ResetByPeer);
        let stream = streams.insert(3);
        assert!(stream.queue.is_empty() && stream.trailers.is_empty() && stream.content_left.is_none());
        assert_eq!(stream.sending, Sending::Ended);
    }
}
