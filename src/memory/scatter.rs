//! [`Scatter`]: memory for one receive of several frames, whose payloads belong together and whose heads do not.

use std::ops::Range;

use super::{BlockMut, Exhausted};

/// Bytes of heads that one receive has room for: those of 64 frames of HTTP/2.
const HEADS_BYTES: usize = 64 * 9;

/// The bytes that are expected next, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLayout {
    /// Bytes of a head that come before any payload; none within a frame.
    pub lead: usize,
    /// Payload of the first frame, or what is missing of it.
    pub first: usize,
    /// Bytes of each head behind it.
    pub head: usize,
    /// Payload of each frame behind it.
    pub stride: usize,
}

/// A part of what is expected: where in the heads, or in the block, it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Head(Range<usize>),
    Payload(Range<usize>),
}

impl Part {
    pub fn len(&self) -> usize {
        let (Part::Head(range) | Part::Payload(range)) = self;
        range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A window of a block into which the payloads of frames are received one behind the other, and a buffer beside it for
/// the heads between them. What has really been received may be anything: the reader compares the heads with what was
/// expected, and moves what lies in the wrong place.
#[derive(Debug)]
pub struct Scatter {
    block: BlockMut,
    at: usize,
    len: usize,
    frames: FrameLayout,
    heads: [u8; HEADS_BYTES],
}

impl Scatter {
    /// Of `block[at..at + len]`, or of as much of it as lies in the block and as there is room for heads.
    pub fn new(block: BlockMut, at: usize, len: usize, frames: FrameLayout) -> Scatter {
        let len = len.min(block.len().saturating_sub(at));
        Scatter { block, at, len, frames, heads: [0; HEADS_BYTES] }
    }

    /// The parts of what is expected, in order. None of them is empty, and no two of a kind follow each other.
    pub fn parts(&self) -> Parts {
        Parts {
            frames: self.frames,
            at: self.at,
            end: self.at + self.len,
            heads: 0,
            is_head: self.frames.lead > 0,
            is_first: true,
        }
    }

    /// Bytes that can be received.
    pub fn capacity(&self) -> usize {
        self.parts().map(|part| part.len()).sum()
    }

    /// What lies where `part` belongs.
    pub fn bytes(&self, part: &Part) -> &[u8] {
        match part {
            Part::Head(range) => self.heads.get(range.clone()),
            Part::Payload(range) => self.block.get(range.clone()),
        }
        .unwrap_or_default()
    }

    /// The memory of all parts, in order.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let parts = self.parts();
        let (mut heads, mut payloads) = (&mut self.heads[..], self.block.get_mut(self.at..).unwrap_or_default());
        parts.map(move |part| {
            let from = if matches!(part, Part::Head(_)) { &mut heads } else { &mut payloads };
            let all = std::mem::take(from);
            let (piece, behind) = all.split_at_mut(part.len().min(all.len()));
            *from = behind;
            piece
        })
    }

    /// Receives as much of `bytes` as there is room for, and returns how much that is.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for piece in self.pieces_mut() {
            let (now, behind) = rest.split_at(piece.len().min(rest.len()));
            piece[..now.len()].copy_from_slice(now);
            rest = behind;
        }
        bytes.len() - rest.len()
    }

    /// Of the first `received` bytes those behind the first `from`, in the order in which they came. Fails where the
    /// system has no memory for them.
    pub fn copy(&self, from: usize, received: usize) -> Result<Vec<u8>, Exhausted> {
        let (mut all, len) = (Vec::new(), received.saturating_sub(from));
        all.try_reserve_exact(len).map_err(|_| Exhausted::of_system(len))?;
        let mut at = 0;
        for part in self.parts() {
            let bytes = self.bytes(&part);
            let (first, end) = (from.clamp(at, at + bytes.len()) - at, received.clamp(at, at + bytes.len()) - at);
            all.extend_from_slice(bytes.get(first..end).unwrap_or_default());
            at += bytes.len();
        }
        Ok(all)
    }

    pub fn into_block(self) -> BlockMut {
        self.block
    }
}

/// See [`Scatter::parts`].
#[derive(Debug, Clone)]
pub struct Parts {
    frames: FrameLayout,
    /// Where in the block the next payload belongs, and where the window ends.
    at: usize,
    end: usize,
    /// Bytes of heads so far.
    heads: usize,
    is_head: bool,
    is_first: bool,
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let FrameLayout { lead, first, head, stride } = self.frames;
        if self.at >= self.end {
            return None;
        }
        if self.is_head {
            // The window may end before any payload of a head's frame where there is no more room for heads.
            let len = if self.is_first { lead } else { head };
            let end = self.heads + len;
            if end > HEADS_BYTES || len == 0 {
                self.end = self.at;
                return None;
            }
            let range = self.heads..end;
            (self.heads, self.is_head) = (end, false);
            return Some(Part::Head(range));
        }
        let len = if self.is_first { first } else { stride }.min(self.end - self.at);
        if len == 0 {
            self.end = self.at;
            return None;
        }
        let range = self.at..self.at + len;
        (self.at, self.is_head, self.is_first) = (range.end, true, false);
        Some(Part::Payload(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scatter(at: usize, len: usize, frames: FrameLayout) -> Scatter {
        let mut block = BlockMut::unpooled(100);
        block.fill(b'.');
        Scatter::new(block, at, len, frames)
    }

    const WITHIN: FrameLayout = FrameLayout { lead: 0, first: 3, head: 2, stride: 4 };
    const BETWEEN: FrameLayout = FrameLayout { lead: 1, first: 4, head: 2, stride: 4 };

    #[test]
    fn payloads_are_joined_and_heads_kept_apart() {
        let mut within = scatter(10, 9, WITHIN);
        assert_eq!(within.capacity(), 3 + 2 + 4 + 2 + 2);
        assert_eq!(within.fill(b"abc12defg34hi and more"), 13);
        let heads: Vec<_> = within.parts().filter(|part| matches!(part, Part::Head(_))).collect();
        assert_eq!(heads.iter().map(|head| within.bytes(head)).collect::<Vec<_>>(), [b"12", b"34"]);
        assert_eq!(&within.into_block()[9..20], b".abcdefghi.");
        let mut between = scatter(0, 6, BETWEEN);
        assert_eq!(between.fill(b"1abcd23ef"), 9);
        assert_eq!(&between.into_block()[..7], b"abcdef.");
    }

    #[test]
    fn what_was_received_can_be_copied_from_any_place() {
        let whole = b"abc12defg34hi";
        for received in 0..=whole.len() {
            let mut scatter = scatter(10, 9, WITHIN);
            assert_eq!(scatter.fill(&whole[..received]), received);
            for from in 0..=received {
                assert_eq!(scatter.copy(from, received).unwrap(), &whole[from..received]);
            }
        }
    }

    #[test]
    fn the_window_ends_with_the_block_and_with_the_room_for_heads() {
        assert_eq!(scatter(98, 9, WITHIN).capacity(), 2);
        assert_eq!(scatter(100, 1, BETWEEN).capacity(), 0);
        assert_eq!(scatter(200, 1, WITHIN).capacity(), 0);
        assert_eq!(scatter(0, 0, BETWEEN).capacity(), 0);
        let long = FrameLayout { lead: 0, first: 1, head: HEADS_BYTES / 2, stride: 1 };
        assert_eq!(scatter(0, 50, long).capacity(), 3 + HEADS_BYTES);
        let nothing = FrameLayout { lead: 0, first: 1, head: 0, stride: 0 };
        assert_eq!(scatter(0, 50, nothing).capacity(), 1);
    }

    /// The pieces are disjoint memory of the scatter, as an engine hands them to the system.
    #[test]
    fn pieces_lie_where_their_parts_do() {
        for frames in [WITHIN, BETWEEN] {
            let mut scatter = scatter(3, 90, frames);
            let sizes: Vec<usize> = scatter.parts().map(|part| part.len()).collect();
            assert!(sizes.iter().all(|size| *size > 0));
            for (number, piece) in scatter.pieces_mut().enumerate() {
                assert_eq!(piece.len(), sizes[number]);
                piece.fill(number as u8);
            }
            for (number, part) in scatter.parts().enumerate() {
                assert!(scatter.bytes(&part).iter().all(|byte| *byte == number as u8));
            }
        }
    }
}
