//! What is likely to come next: DATA frames of the size of the last ones, on the same stream.
//!
//! Many peers cut a message into frames of 16 KiB, the size that needs no agreement (RFC 9113 section 6.5.2). With the
//! places of the heads known in advance, a transport can receive dozens of such frames at once and have their payloads
//! where they belong. It is a guess, which the transport compares with the heads that have come. The more often it was
//! wrong of late, the longer a row of equal frames has to be before the next one: streams that take turns, frame by
//! frame, make no row at all, and one upload behind them is soon guessed right again.

use super::data::DataFrame;
use super::frame::{FrameHead, HEAD_LEN, MIN_MAX_FRAME_SIZE, flag};
use super::stream::Receiving;
use super::{Connection, StreamId};
use nereid_memory::FrameLayout;
use std::ops::RangeInclusive;

/// Sizes of payloads for which it is worthwhile: more heads than payload help no one, and of larger frames a receive
/// takes one or two.
const STRIDES: RangeInclusive<u32> = 4096..=256 << 10;
/// What a wrong guess costs; a right one earns 1 back.
const MISS: u8 = 4;
/// More are not counted: then 256 frames in a row come before a guess.
const MISSES_MAX: u8 = 16;

/// The DATA frames that are expected, see [`Connection::predicted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictedFrames {
    pub stream: StreamId,
    pub layout: FrameLayout,
}

/// The last frames of a connection, and the guesses by them.
pub(super) struct FrameRun {
    /// The stream of the last frame if it was DATA behind which more may come, else 0.
    stream: u32,
    /// The payload of the last DATA frame.
    last: u32,
    /// DATA frames in a row that have its stream and size.
    in_row: u32,
    /// The payload of two DATA frames in a row; at first what all peers may send.
    stride: u32,
    misses: u8,
}

impl FrameRun {
    pub(super) fn new() -> FrameRun {
        FrameRun { stream: 0, last: 0, in_row: 0, stride: MIN_MAX_FRAME_SIZE, misses: 0 }
    }

    /// A frame other than DATA has begun.
    pub(super) fn interrupt(&mut self) {
        self.stream = 0;
    }

    /// A DATA frame has begun.
    pub(super) fn note(&mut self, head: FrameHead) {
        let goes_on = self.stream == head.stream && self.last == head.length;
        self.in_row = if goes_on { self.in_row.saturating_add(1) } else { 1 };
        let may_go_on = !head.has(flag::END_STREAM) && !head.has(flag::PADDED);
        self.stream = if may_go_on { head.stream } else { 0 };
        if head.length == self.last && STRIDES.contains(&head.length) {
            self.stride = head.length;
        }
        self.last = head.length;
    }

    /// Stream and stride, if the last frame was one of those that come in a row, and enough of them have come.
    fn guess(&self) -> Option<(u32, u32)> {
        let is_usual = self.stream != 0 && self.last == self.stride;
        (is_usual && self.in_row >= self.wanted()).then_some((self.stream, self.stride))
    }

    /// Frames in a row behind which more of them are expected.
    fn wanted(&self) -> u32 {
        1 << (self.misses / 2)
    }

    fn note_guess(&mut self, was_right: bool) {
        self.misses = match was_right {
            true => self.misses.saturating_sub(1),
            false => self.misses.saturating_add(MISS).min(MISSES_MAX),
        };
    }
}

impl Connection {
    /// The frames that are likely to come next, if the input stands in or behind a DATA frame of the usual size. What
    /// was received for them is reported head by head to [`Connection::receive`], and payload by payload to
    /// [`Connection::direct_received`], as long as [`Connection::is_in_head`] and [`Connection::is_within`] say so.
    pub fn predicted(&self) -> Option<PredictedFrames> {
        let (id, stride) = self.parser.run().guess()?;
        let layout = |lead, first| FrameLayout { lead, first, head: HEAD_LEN, stride: stride as usize };
        let layout = match self.parser.data() {
            Some(_) => layout(0, self.direct().filter(|(stream, _)| stream.0 == id)?.1),
            None => {
                let came = self.parser.partial_head()?;
                let is_open = self.streams.get(id).is_some_and(|stream| stream.receiving == Receiving::Body);
                (is_open && self.failure().is_none()).then(|| layout(HEAD_LEN - came, stride as usize))?
            }
        };
        Some(PredictedFrames { stream: StreamId(id), layout })
    }

    /// Whether the input stands within a frame of `stream` of which `len` bytes are missing; with `may_be_longer` also
    /// if more are, or if the stream ends with the frame.
    pub fn is_within(&self, stream: StreamId, len: usize, may_be_longer: bool) -> bool {
        let left = self.direct().filter(|(of, _)| *of == stream).map(|(_, left)| left);
        let ends = self.parser.data().is_some_and(DataFrame::ends_stream);
        left.is_some_and(|left| left == len && (!ends || may_be_longer) || left > len && may_be_longer)
    }

    /// Whether the input stands in front of a frame, of whose head `missing` bytes are missing.
    pub fn is_in_head(&self, missing: usize) -> bool {
        self.parser.partial_head().is_some_and(|came| came + missing == HEAD_LEN)
    }

    /// Notes whether what has come was what [`Connection::predicted`] had announced.
    pub fn note_prediction(&mut self, was_right: bool) {
        self.parser.run_mut().note_guess(was_right);
        self.counters.mispredictions += u64::from(!was_right);
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::kind;
    use super::*;

    fn note(run: &mut FrameRun, stream: u32, length: u32, flags: u8) {
        run.note(FrameHead { length, kind: kind::DATA, flags, stream });
    }

    #[test]
    fn the_frame_that_all_peers_may_send_is_guessed_at_once_and_others_behind_two() {
        let mut run = FrameRun::new();
        assert_eq!(run.guess(), None);
        note(&mut run, 1, MIN_MAX_FRAME_SIZE, 0);
        assert_eq!(run.guess(), Some((1, MIN_MAX_FRAME_SIZE)));
        note(&mut run, 1, 4096, 0);
        assert_eq!(run.guess(), None);
        note(&mut run, 1, 4096, 0);
        assert_eq!(run.guess(), Some((1, 4096)));
        for flags in [flag::END_STREAM, flag::PADDED] {
            note(&mut run, 1, 4096, flags);
            assert_eq!(run.guess(), None, "nothing like it follows");
        }
        note(&mut run, 1, 100, 0);
        note(&mut run, 1, 100, 0);
        assert_eq!(run.guess(), None, "not worthwhile");
    }

    /// Frames in a row until one of them is followed by a guess.
    fn row(run: &mut FrameRun) -> u32 {
        run.interrupt();
        (1..=1000)
            .find(|_| {
                note(run, 3, 8192, 0);
                run.guess().is_some()
            })
            .unwrap_or(u32::MAX)
    }

    #[test]
    fn wrong_guesses_are_followed_by_longer_rows_and_are_made_up_for() {
        let mut run = FrameRun::new();
        note(&mut run, 3, 8192, 0);
        note(&mut run, 3, 8192, 0);
        for frames in [1, 4, 16, 64, 256, 256] {
            assert_eq!(row(&mut run), frames);
            run.note_guess(false);
        }
        for frames in [128, 128, 64, 64, 32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1, 1] {
            run.note_guess(true);
            assert_eq!(row(&mut run), frames);
        }
    }

    #[test]
    fn streams_that_take_turns_make_no_row() {
        let mut run = FrameRun::new();
        run.note_guess(false);
        for stream in [1, 3].repeat(1000) {
            note(&mut run, stream, MIN_MAX_FRAME_SIZE, 0);
            assert_eq!(run.guess(), None);
        }
        // The other upload is over.
        let guessed = (1..).find(|_| {
            note(&mut run, 1, MIN_MAX_FRAME_SIZE, 0);
            run.guess().is_some()
        });
        assert_eq!(guessed, Some(4));
    }
}
