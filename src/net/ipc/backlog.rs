//! What found no room in a client's ring of responses: it is written piece by piece as the client reads.
//!
//! It lives on the shard of its client. Whatever a client does, a step here takes the same time for one entry as for a
//! hundred thousand: sums are kept and not made, and writing and copying have a bound for each turn.

use std::collections::{HashMap, VecDeque};

use nereid_ipc::{DATA_HEAD, Ring, ServerEnd};
use nereid_memory::{Exhausted, Pool, Slice};
use nereid_protocol::http2::IdHash;
use nereid_protocol::slow_peers::{Progress, SlowPeers};
use nereid_queue::frames::{Corrupt, Payload};

use crate::timeouts::{COPIED_PER_TURN, copy_portion};

/// Bytes that are copied at a time from memory that another process shares.
const COPIED_AT_ONCE: usize = 1024;
/// Bytes of one frame with a part of a long message.
pub(super) const PART_BYTES: usize = 32 << 10;
/// Bytes that one turn writes of what waits.
const WRITTEN_PER_TURN: usize = 1 << 20;
/// Entries for which memory is kept when none waits.
const KEPT_MAX: usize = 1024;
/// What an entry costs beside its bytes, and each piece of a message: memory, and time where entries are looked at.
const ENTRY_BYTES: usize = 192;
const PIECE_BYTES: usize = size_of::<Slice>();

/// One frame, or bytes of messages for several.
pub(super) enum Content {
    Data { pieces: VecDeque<Slice>, ends: bool },
    Frame { kind: u32, payload: Vec<u8> },
}

struct Waiting {
    call: u32,
    content: Content,
    /// Bytes that are not written.
    len: usize,
    /// What it costs beside them.
    beside: usize,
    /// It may hold memory that is not ours.
    is_foreign: bool,
}

impl Waiting {
    fn new(call: u32, content: Content) -> Waiting {
        let (len, pieces, is_foreign) = match &content {
            Content::Data { pieces, .. } => {
                (pieces.iter().map(Slice::len).sum(), pieces.len(), pieces.iter().any(Slice::is_foreign))
            }
            Content::Frame { payload, .. } => (payload.len(), 0, false),
        };
        Waiting { call, content, len, beside: ENTRY_BYTES + pieces * PIECE_BYTES, is_foreign }
    }

    /// Writes as much of it as there is room for, and as the budget has; true if that is all of it.
    fn write(&mut self, end: &mut ServerEnd, part_max: usize, budget: &mut usize) -> Result<bool, Corrupt> {
        match &mut self.content {
            Content::Frame { kind, payload } => {
                *budget = budget.saturating_sub(payload.len());
                end.push(*kind, payload)
            }
            Content::Data { pieces, ends } => {
                while *budget > 0 {
                    let part = self.len.min(part_max);
                    let is_last = part == self.len;
                    if !end.push_data(self.call, *ends && is_last, part, |to| copy_front(pieces, part, to))? {
                        return Ok(false);
                    }
                    drop_front(pieces, part);
                    self.len -= part;
                    *budget = budget.saturating_sub(part);
                    if is_last {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// What waits of one call.
#[derive(Default)]
struct OfCall {
    entries: usize,
    bytes: usize,
}

/// See the [module](self).
pub(super) struct Backlog {
    /// Oldest first.
    waiting: VecDeque<Waiting>,
    /// Bytes that are not written, with what the entries cost beside them.
    charged: usize,
    /// The calls that wait.
    calls: HashMap<u32, OfCall, IdHash>,
    /// Entries that may hold memory that is not ours.
    foreign: usize,
    /// The next entry to copy; `None`: nothing is to be copied.
    copying: Option<usize>,
    /// It is not as it was at the last report.
    has_changed: bool,
    /// Bytes that the client has made room for since the last second, those that never waited included.
    written: u64,
    progress: Progress,
}

impl Backlog {
    pub fn new(hash: IdHash) -> Backlog {
        Backlog {
            waiting: VecDeque::new(),
            charged: 0,
            calls: HashMap::with_hasher(hash),
            foreign: 0,
            copying: None,
            has_changed: false,
            written: 0,
            progress: Progress::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What all of it costs.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Bytes of a call that are not written.
    pub fn bytes_of(&self, call: u32) -> usize {
        self.calls.get(&call).map_or(0, |of_call| of_call.bytes)
    }

    /// Whether what the calls wait for is not as it was at the last report.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    pub fn push(&mut self, call: u32, content: Content) {
        let waiting = Waiting::new(call, content);
        self.charged = self.charged.saturating_add(waiting.len).saturating_add(waiting.beside);
        self.foreign += usize::from(waiting.is_foreign);
        let of_call = self.calls.entry(call).or_default();
        of_call.entries += 1;
        of_call.bytes = of_call.bytes.saturating_add(waiting.len);
        self.waiting.push_back(waiting);
        self.has_changed = true;
    }

    /// Leaves out what waits of a call.
    pub fn forget(&mut self, call: u32) {
        let Some(of_call) = self.calls.remove(&call) else { return };
        self.charged = self.charged.saturating_sub(of_call.bytes);
        let (charged, foreign) = (&mut self.charged, &mut self.foreign);
        self.waiting.retain(|waiting| {
            let stays = waiting.call != call;
            if !stays {
                *charged = charged.saturating_sub(waiting.beside);
                *foreign -= usize::from(waiting.is_foreign);
            }
            stays
        });
        // Those before the next one may be fewer now.
        self.copying = self.copying.map(|_| 0);
        self.has_changed = true;
        self.shrink();
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
        self.calls.clear();
        self.shrink();
        (self.charged, self.foreign, self.copying, self.has_changed) = (0, 0, None, true);
    }

    /// Something was written without waiting.
    pub fn note_written(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes as u64);
    }

    /// Writes what waits, as far as there is room, and as a turn has time for.
    pub fn write(&mut self, end: &mut ServerEnd) -> Result<(), Corrupt> {
        let part_max = part_max(end);
        let mut budget = WRITTEN_PER_TURN;
        while budget > 0
            && let Some(first) = self.waiting.front_mut()
        {
            let before = first.len;
            let outcome = first.write(end, part_max, &mut budget);
            let is_over = outcome == Ok(true);
            if is_over {
                first.len = 0;
            }
            let (call, written) = (first.call, before - first.len);
            self.charged = self.charged.saturating_sub(written);
            self.note_written(written + usize::from(is_over) * DATA_HEAD);
            if let Some(of_call) = self.calls.get_mut(&call) {
                of_call.bytes = of_call.bytes.saturating_sub(written);
            }
            self.has_changed |= written > 0 || is_over;
            if !outcome? {
                return Ok(());
            }
            self.pop_front();
        }
        Ok(())
    }

    /// Drops the oldest entry, of which nothing is left to write.
    fn pop_front(&mut self) {
        let Some(first) = self.waiting.pop_front() else { return };
        self.charged = self.charged.saturating_sub(first.beside);
        self.foreign -= usize::from(first.is_foreign);
        self.copying = self.copying.map(|at| at.saturating_sub(1));
        if let Some(of_call) = self.calls.get_mut(&first.call) {
            of_call.entries -= 1;
            if of_call.entries == 0 {
                self.calls.remove(&first.call);
            }
        }
        self.shrink();
    }

    /// A backlog that is empty keeps no memory of a long one: nobody is charged for that.
    fn shrink(&mut self) {
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_MAX {
            self.waiting = VecDeque::new();
            self.calls = HashMap::with_hasher(*self.calls.hasher());
        }
    }

    /// Memory that is not ours waits, and is not being copied.
    pub fn holds_foreign(&self) -> bool {
        self.foreign > 0 && self.copying.is_none()
    }

    /// Memory that is not ours has waited for long enough: it is to be copied.
    pub fn let_go(&mut self) {
        self.copying.get_or_insert(0);
    }

    /// Copies a portion of it, if that is due; true if there is more to copy.
    pub fn copy(&mut self, pool: &Pool) -> Result<bool, Exhausted> {
        let mut budget = COPIED_PER_TURN;
        while let Some(at) = self.copying {
            let Some(waiting) = self.waiting.get_mut(at).filter(|_| self.foreign > 0) else {
                self.copying = None;
                break;
            };
            if budget == 0 {
                return Ok(true);
            }
            budget = budget.saturating_sub(ENTRY_BYTES);
            if let Content::Data { pieces, .. } = &mut waiting.content
                && waiting.is_foreign
            {
                let mut ready = Vec::new();
                let outcome = copy_portion(pieces, &mut ready, pool, &mut budget);
                let is_whole = pieces.is_empty();
                ready.into_iter().rev().for_each(|piece| pieces.push_front(piece));
                outcome?;
                if !is_whole {
                    return Ok(true);
                }
                waiting.is_foreign = false;
                self.foreign -= 1;
            }
            self.copying = Some(at + 1);
        }
        Ok(false)
    }

    /// A second has passed. True if the client makes room too slowly for what waits.
    pub fn second_passed(&mut self, limits: &SlowPeers) -> bool {
        let written = std::mem::take(&mut self.written);
        if self.waiting.is_empty() {
            self.progress.restart();
            return false;
        }
        self.progress.second_passed(&limits.without_total(), written)
    }
}

/// Bytes of messages that one frame has at most.
pub(super) fn part_max(end: &ServerEnd) -> usize {
    end.data_max().min(PART_BYTES)
}

/// Writes the bytes of a slice, which another process may be changing.
pub(super) fn copy(piece: &Slice, to: &mut Payload<'_, Ring>) {
    copy_range(piece, 0, piece.len(), to);
}

fn copy_range(piece: &Slice, from: usize, len: usize, to: &mut Payload<'_, Ring>) {
    if piece.shared().is_none() {
        return to.write(piece.get(from..from + len).unwrap_or_default());
    }
    let mut copied = 0;
    while copied < len {
        let mut bytes = [0; COPIED_AT_ONCE];
        let most = bytes.len().min(len - copied);
        let n = piece.copy_to(from + copied, &mut bytes[..most]);
        if n == 0 {
            return;
        }
        to.write(&bytes[..n]);
        copied += n;
    }
}

/// Writes the first `len` bytes of the pieces.
fn copy_front(pieces: &VecDeque<Slice>, mut len: usize, to: &mut Payload<'_, Ring>) {
    for piece in pieces {
        let n = piece.len().min(len);
        copy_range(piece, 0, n, to);
        len -= n;
        if len == 0 {
            return;
        }
    }
}

fn drop_front(pieces: &mut VecDeque<Slice>, mut len: usize) {
    while let Some(first) = pieces.front_mut() {
        if first.len() > len {
            return first.advance(len);
        }
        len -= first.len();
        pieces.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nereid_ipc::{Layout, RING_BYTES_MIN, ServerFrame, Sizes};
    use nereid_memory::Segment;
    use nereid_queue::frames::Consumer;

    use super::*;

    /// The server's end, and what the client reads.
    fn ring(ring_bytes: usize) -> (ServerEnd, Consumer<Ring>) {
        let sizes = Sizes { ring_bytes, arena_bytes: 0 };
        let (end, object) = ServerEnd::create(sizes, b"", Box::new(())).unwrap();
        let segment = Arc::new(Segment::open(object, end.segment().len()).unwrap());
        let layout = Layout::read(&segment).unwrap();
        (end, Consumer::new(layout.response_ring(&segment)))
    }

    fn data(parts: &[&[u8]], ends: bool) -> Content {
        Content::Data { pieces: parts.iter().map(|part| Slice::copy_of(part)).collect(), ends }
    }

    /// The frames that are there: call, bytes, whether the call ends.
    fn read(client: &mut Consumer<Ring>) -> Vec<(u32, usize, bool)> {
        let (mut frames, mut payload) = (Vec::new(), Vec::new());
        while let Some(kind) = client.pop(&mut payload).unwrap() {
            match ServerFrame::read(kind, &payload) {
                Ok(ServerFrame::Data { call, ends, bytes }) => frames.push((call, bytes.len(), ends)),
                Ok(ServerFrame::Leave) => frames.push((0, 0, true)),
                other => panic!("{other:?}"),
            }
        }
        frames
    }

    #[test]
    fn sums_follow_what_is_written_and_left_out() {
        let (mut end, mut client) = ring(RING_BYTES_MIN);
        let mut backlog = Backlog::new(IdHash::default());
        let large = vec![1; 50_000];
        backlog.push(1, data(&[&large, &large], false));
        backlog.push(2, data(&[b"", b"abc"], true));
        backlog.push(1, data(&[b"de"], true));
        backlog.push(0, Content::Frame { kind: nereid_ipc::from_server::LEAVE, payload: vec![0; 8] });
        assert_eq!((backlog.bytes_of(1), backlog.bytes_of(2), backlog.bytes_of(0)), (100_002, 3, 8));
        assert!(backlog.take_change() && !backlog.take_change() && backlog.charged() > 100_013);
        let mut frames = Vec::new();
        while !backlog.is_empty() {
            backlog.write(&mut end).unwrap();
            let (left, seen) = (backlog.bytes_of(1), read(&mut client));
            assert!(backlog.take_change() && !seen.is_empty());
            frames.extend(seen);
            let of_first: usize = frames.iter().filter(|frame| frame.0 == 1).map(|frame| frame.1).sum();
            assert_eq!(of_first + left, 100_002);
        }
        let ends: Vec<_> = frames.iter().filter(|frame| frame.2).collect();
        assert_eq!(ends, [&(2, 3, true), &(1, 2, true), &(0, 0, true)]);
        assert_eq!((backlog.charged(), backlog.calls.len(), backlog.bytes_of(1)), (0, 0, 0));
    }

    #[test]
    fn a_cancelled_call_takes_its_bytes_along() {
        let mut backlog = Backlog::new(IdHash::default());
        for call in [1, 2, 1, 3] {
            backlog.push(call, data(&[b"abcd"], false));
        }
        let whole = backlog.charged();
        backlog.forget(9);
        assert_eq!((backlog.charged(), backlog.len()), (whole, 4));
        backlog.forget(1);
        assert_eq!((backlog.charged(), backlog.len(), backlog.bytes_of(1)), (whole / 2, 2, 0));
        backlog.clear();
        assert_eq!((backlog.charged(), backlog.len(), backlog.calls.len()), (0, 0, 0));
    }

    /// However it becomes empty.
    #[test]
    fn an_empty_backlog_keeps_no_memory_of_a_long_one() {
        let empties: [fn(&mut Backlog, &mut ServerEnd); 3] = [
            |backlog, end| backlog.write(end).unwrap(),
            |backlog, _| (0..5_000).for_each(|call| backlog.forget(call)),
            |backlog, _| backlog.clear(),
        ];
        for empty in empties {
            let (mut end, _client) = ring(1 << 20);
            let mut backlog = Backlog::new(IdHash::default());
            (0..5_000).for_each(|call| backlog.push(call, data(&[b"a"], true)));
            assert!(backlog.waiting.capacity().min(backlog.calls.capacity()) >= 5_000);
            empty(&mut backlog, &mut end);
            assert_eq!((backlog.len(), backlog.waiting.capacity(), backlog.calls.capacity()), (0, 0, 0));
            // A short one does.
            backlog.push(1, data(&[b"a"], true));
            empty(&mut backlog, &mut end);
            assert!(backlog.is_empty() && backlog.waiting.capacity() > 0);
        }
    }

    #[test]
    fn a_turn_writes_no_more_than_it_has_time_for() {
        let (mut end, mut client) = ring(8 << 20);
        let mut backlog = Backlog::new(IdHash::default());
        backlog.push(1, data(&[&vec![1; 3 << 20]], true));
        for left in [2 << 20, 1 << 20, 0] {
            backlog.write(&mut end).unwrap();
            assert_eq!(backlog.bytes_of(1), left);
        }
        assert!(backlog.is_empty() && read(&mut client).len() == (3 << 20) / PART_BYTES);
    }

    /// Over many entries, with those between that need no copy, and while the oldest are written.
    #[test]
    fn memory_of_a_model_is_copied_in_portions() {
        let (mut end, mut client) = ring(RING_BYTES_MIN);
        let pool = Pool::new(64 << 20);
        let owner: Arc<Vec<u8>> = Arc::new(vec![7; 20_000]);
        let mut backlog = Backlog::new(IdHash::default());
        for call in 0..60 {
            let piece = if call % 3 == 0 { Slice::copy_of(b"own") } else { Slice::foreign_vec(&owner) };
            backlog.push(call, Content::Data { pieces: [piece].into(), ends: true });
        }
        assert!(backlog.holds_foreign() && !backlog.copy(&pool).unwrap(), "it is not due");
        backlog.let_go();
        assert!(!backlog.holds_foreign(), "no timer is needed while it is copied");
        let (mut turns, mut frames) = (1, Vec::new());
        while backlog.copy(&pool).unwrap() {
            turns += 1;
            backlog.write(&mut end).unwrap();
            frames.extend(read(&mut client));
            // One is copied already, and one is not.
            backlog.forget([1, 59][turns % 2]);
        }
        assert!((3..20).contains(&turns), "{turns}");
        assert_eq!((Arc::strong_count(&owner), backlog.foreign), (1, 0), "the model has its memory back");
        while !backlog.is_empty() {
            backlog.write(&mut end).unwrap();
            frames.extend(read(&mut client));
        }
        assert!(frames.iter().all(|(call, len, ends)| *ends && *len == if call % 3 == 0 { 3 } else { 20_000 }));
        let calls: Vec<u32> = frames.iter().map(|frame| frame.0).collect();
        assert!(calls.is_sorted() && (58..=60).contains(&calls.len()), "{calls:?}");
        assert_eq!(backlog.charged(), 0);
    }

    #[test]
    fn a_client_that_reads_in_drops_is_too_slow() {
        let limits = SlowPeers { window_s: 3, rate_min: 100, request_s: 0 };
        let seconds = |bytes: usize| {
            let mut backlog = Backlog::new(IdHash::default());
            backlog.push(1, data(&[b"abc"], true));
            (1..=20).find(|_| {
                backlog.note_written(bytes);
                backlog.second_passed(&limits)
            })
        };
        assert_eq!((seconds(0), seconds(50), seconds(100)), (Some(3), Some(3), None));
        let mut idle = Backlog::new(IdHash::default());
        assert!((0..20).all(|_| !idle.second_passed(&limits)), "nothing waits");
    }
}
