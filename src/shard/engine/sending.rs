//! One gathered send on its way: its pieces, and how far the kernel has taken them.

use std::io;

use super::Event;
use nereid_memory::Key;
use nereid_memory::Slice;

/// Pieces that one system call or operation carries; longer gathers take several.
pub(super) const PIECES_PER_CALL: usize = 256;
/// Bytes of the same: what the kernel has copied within a turn's time.
const BYTES_PER_CALL: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Sending {
    /// The first one loses from its front what the kernel has taken.
    pieces: Vec<Slice>,
    /// Pieces before this one are sent; they stay, emptied, so that the vector need not shift.
    next: usize,
    sent: usize,
    left: usize,
    pub(super) recalled: bool,
}

impl Sending {
    /// `None` if there is nothing to send.
    pub(super) fn new(pieces: Vec<Slice>) -> Option<Sending> {
        let left = pieces.iter().map(|piece| piece.len()).sum();
        (left > 0).then_some(Sending { pieces, next: 0, sent: 0, left, recalled: false })
    }

    /// Whether it has at most so many pieces and bytes, and none of its pieces keeps more memory than that: a piece of
    /// few bytes may be a part of a large block.
    pub(super) fn is_small(&self, pieces_max: usize, bytes_max: usize) -> bool {
        let pieces = self.waiting();
        self.left <= bytes_max && pieces.len() <= pieces_max && pieces.iter().all(|one| one.kept_bytes() <= bytes_max)
    }

    /// Bytes that the next call may carry.
    pub(super) fn bytes_of_call(&self) -> usize {
        self.left.min(BYTES_PER_CALL)
    }

    /// The kernel took all that was left.
    pub(super) fn complete(&mut self) {
        self.advance(self.left);
    }

    /// The pieces of the next call, by their addresses: another process may write to one, so no reference to it is
    /// made.
    pub(super) fn io_vectors(&self) -> impl Iterator<Item = libc::iovec> {
        let mut left = BYTES_PER_CALL;
        self.waiting().iter().take(PIECES_PER_CALL).map_while(move |piece| {
            let len = piece.len().min(left);
            let is_more = left > 0;
            left -= len;
            is_more.then(|| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: len })
        })
    }

    /// The only piece of the next call, if it has one only.
    pub(super) fn single(&self) -> Option<(*const u8, usize)> {
        match self.waiting() {
            [piece] => Some((piece.as_ptr(), piece.len().min(BYTES_PER_CALL))),
            _ => None,
        }
    }

    /// The kernel took `n` bytes. True if that was all.
    pub(super) fn advance(&mut self, n: usize) -> bool {
        let mut n = n.min(self.left);
        self.sent += n;
        self.left -= n;
        while let Some(piece) = self.pieces.get_mut(self.next) {
            if piece.len() > n {
                piece.advance(n);
                break;
            }
            n -= piece.len();
            // Its memory goes back now, not when the slowest byte is gone.
            *piece = Slice::empty();
            self.next += 1;
        }
        self.left == 0
    }

    /// The event for this send if it ends here, well or not.
    pub(super) fn into_event(mut self, key: Key, error: Option<io::Error>) -> Event {
        if self.recalled {
            self.pieces.drain(..self.next);
        } else {
            self.pieces.clear();
        }
        let result = match error {
            Some(error) if !self.recalled || !left_the_rest(&error) => {
                self.pieces.clear();
                Err(error)
            }
            _ => Ok(self.sent),
        };
        Event::Sent { key, result, pieces: self.pieces }
    }

    fn waiting(&self) -> &[Slice] {
        self.pieces.get(self.next..).unwrap_or_default()
    }
}

/// Errors of a send that has only not gone on: a recalled one has its rest, and another may send it.
fn left_the_rest(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECANCELED | libc::EAGAIN | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::from_u64(1 << 32).unwrap()
    }

    fn sending(pieces: &[&'static [u8]]) -> Sending {
        Sending::new(pieces.iter().map(|piece| Slice::from_static(piece)).collect()).unwrap()
    }

    fn read(piece: libc::iovec) -> &'static [u8] {
        // SAFETY: pieces are static here.
        unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) }
    }

    #[test]
    fn every_split_sends_the_same_bytes() {
        let whole = b"abcdefghij";
        for first in 0..=10 {
            for second in first..=10 {
                let mut sending = sending(&[b"abc", b"", b"d", b"efghij"]);
                let mut seen = Vec::new();
                for n in [first, second - first, 10 - second] {
                    let waiting: Vec<u8> = sending.io_vectors().flat_map(|piece| read(piece).to_vec()).collect();
                    seen.extend_from_slice(&waiting[..n]);
                    assert_eq!(sending.advance(n), seen.len() == 10);
                }
                assert_eq!(seen, whole);
                let Event::Sent { result, pieces, .. } = sending.into_event(key(), None) else { panic!() };
                assert_eq!((result.unwrap(), pieces.len()), (10, 0));
            }
        }
    }

    #[test]
    fn a_recalled_send_brings_its_rest_back() {
        let mut recalled = sending(&[b"abc", b"def"]);
        recalled.recalled = true;
        assert!(!recalled.advance(4));
        let (at, len) = recalled.single().unwrap();
        assert_eq!(read(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }), b"ef");
        let error = Some(io::Error::from_raw_os_error(libc::ECANCELED));
        let Event::Sent { result, pieces, .. } = recalled.into_event(key(), error) else { panic!() };
        assert_eq!(result.unwrap(), 4);
        assert_eq!(pieces.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>(), [b"ef"]);
        // A quiet send that finds the socket full while it is recalled.
        let mut full = sending(&[b"abc"]);
        full.recalled = true;
        let error = Some(io::Error::from_raw_os_error(libc::EAGAIN));
        let Event::Sent { result, pieces, .. } = full.into_event(key(), error) else { panic!() };
        assert_eq!((result.unwrap(), pieces.len()), (0, 1));
        let mut reset = sending(&[b"abc"]);
        reset.recalled = true;
        let error = Some(io::Error::from_raw_os_error(libc::ECONNRESET));
        let Event::Sent { result, pieces, .. } = reset.into_event(key(), error) else { panic!() };
        assert!(result.is_err() && pieces.is_empty());
    }

    #[test]
    fn no_call_carries_more_than_a_turn_has_time_for() {
        let long: &'static [u8] = vec![7; BYTES_PER_CALL + 10].leak();
        assert_eq!(sending(&[long]).single().unwrap().1, BYTES_PER_CALL);
        assert_eq!((sending(&[long]).bytes_of_call(), sending(&[b"abc"]).bytes_of_call()), (BYTES_PER_CALL, 3));
        let lens = |sending: &Sending| sending.io_vectors().map(|piece| piece.iov_len).collect::<Vec<_>>();
        let mut two = sending(&[b"abc", long, b"def"]);
        assert_eq!(lens(&two), [3, BYTES_PER_CALL - 3]);
        assert!(!two.advance(BYTES_PER_CALL));
        assert_eq!(lens(&two), [13, 3]);
        assert!(two.advance(16));
    }

    #[test]
    fn a_small_send_keeps_little_memory() {
        let three = sending(&[b"ab", b"c"]);
        assert!(three.is_small(2, 3) && !three.is_small(2, 2) && !three.is_small(1, 3));
        let block = |capacity: usize| nereid_memory::BlockMut::unpooled(capacity).freeze();
        let of = |pieces: Vec<Slice>| Sending::new(pieces).unwrap();
        assert!(of(vec![block(3)]).is_small(1, 3));
        let part = block(4).window(0..1);
        assert!(of(vec![part.clone()]).is_small(1, 4) && !of(vec![part]).is_small(1, 3), "it keeps its whole block");
        let mut completed = sending(&[b"ab", b"c"]);
        completed.complete();
        let Event::Sent { result, pieces, .. } = completed.into_event(key(), None) else { panic!() };
        assert_eq!((result.unwrap(), pieces.len()), (3, 0));
    }

    #[test]
    fn nothing_is_not_sent() {
        assert!(Sending::new(vec![]).is_none());
        assert!(Sending::new(vec![Slice::empty()]).is_none());
    }
}
