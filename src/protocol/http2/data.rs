//! DATA (RFC 9113 section 6.1) and the credit that is given for it (section 5.2).
//!
//! A frame is charged to the windows by its head. Its payload is then passed on in whatever pieces it comes; padding
//! and of bytes that are dropped are given back at once.

use super::frame::{FrameHead, flag, kind};
use super::stream::{Gone, Receiving};
use super::{Connection, ConnectionError, ErrorCode, Handler, StreamId};

/// The DATA frame that the input stands in.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataFrame {
    stream: u32,
    /// The pad length comes first.
    pad_length_due: bool,
    data_left: u32,
    pad_left: u32,
    end_stream: bool,
    /// The stream is gone: the bytes are dropped and were given back already.
    discarded: bool,
}

impl DataFrame {
    pub(super) fn ends_stream(self) -> bool {
        self.end_stream
    }
}

impl Connection {
    /// If the input stands inside the body of an open stream: the stream and the bytes up to the end of its frame.
    /// Those may be received anywhere and reported by [`Connection::direct_received`] instead of passing through here.
    pub fn direct(&self) -> Option<(StreamId, usize)> {
        let frame = self.parser.data()?;
        if frame.pad_length_due || frame.discarded || frame.data_left == 0 || self.failure().is_some() {
            return None;
        }
        // The caller may have reset the stream inside the frame.
        self.streams.get(frame.stream)?;
        Some((StreamId(frame.stream), frame.data_left as usize))
    }

    /// Reports bytes that the caller received itself, at most those of [`Connection::direct`]. The handler sees an
    /// empty piece if the stream ends with them. Credit is given by [`Connection::consumed`].
    pub fn direct_received(&mut self, n: usize, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let Some(mut frame) = self.parser.data().filter(|frame| !frame.pad_length_due) else { return Ok(()) };
        debug_assert!(n <= frame.data_left as usize, "only bytes of the frame can be received directly");
        frame.data_left -= frame.data_left.min(u32::try_from(n).unwrap_or(u32::MAX));
        let after = self.pass_on(frame, &[], handler);
        self.go_on(after)
    }

    fn go_on(&mut self, after: Result<Option<DataFrame>, ConnectionError>) -> Result<(), ConnectionError> {
        match after {
            Ok(frame) => {
                self.parser.set_data(frame);
                Ok(())
            }
            Err(error) => {
                self.fail(error);
                Err(error)
            }
        }
    }

    /// Gives credit for `n` more bytes of a stream's body that are done with. A stream that is gone needs none.
    pub fn consumed(&mut self, stream: StreamId, n: usize) {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.credit_stream(stream.0, n);
    }

    /// Charges a frame to the windows and finds its stream. `None` if it is over with its head.
    pub(super) fn begin_data(
        &mut self,
        head: FrameHead,
        handler: &mut impl Handler,
    ) -> Result<Option<DataFrame>, ConnectionError> {
        let padded = head.has(flag::PADDED);
        if padded && head.length == 0 {
            return Err(ConnectionError::frame_size("DATA without its pad length"));
        }
        self.windows.charge(head.length)?;
        let discarded = !self.charge_stream(head, handler)?;
        if discarded {
            self.credit_connection(head.length);
        }
        let mut frame = DataFrame {
            stream: head.stream,
            pad_length_due: padded,
            data_left: head.length,
            pad_left: 0,
            end_stream: head.has(flag::END_STREAM),
            discarded,
        };
        if padded {
            return Ok(Some(frame));
        }
        self.expect_content(&mut frame, handler)?;
        if frame.data_left == 0 { self.pass_on(frame, &[], handler) } else { Ok(Some(frame)) }
    }

    /// False if the frame is dropped.
    fn charge_stream(&mut self, head: FrameHead, handler: &mut impl Handler) -> Result<bool, ConnectionError> {
        let id = head.stream;
        let Some(stream) = self.streams.get_mut(id) else {
            self.handle_late_data(id)?;
            return Ok(false);
        };
        let fault = match stream.receiving {
            Receiving::Ended => Some((ErrorCode::STREAM_CLOSED, "DATA behind the end")),
            Receiving::Head => Some((ErrorCode::PROTOCOL_ERROR, "DATA before the response's head")),
            Receiving::Body if head.length > 0 && stream.receive_window < i64::from(head.length) => {
                Some((ErrorCode::FLOW_CONTROL_ERROR, "more DATA than the stream's window"))
            }
            Receiving::Body => None,
        };
        if let Some((code, why)) = fault {
            self.stream_error(id, code, why, handler)?;
            return Ok(false);
        }
        stream.receive_window -= i64::from(head.length);
        stream.untaken = stream.untaken.saturating_add(head.length);
        Ok(true)
    }

    /// DATA on a stream that is not open (section 5.1).
    fn handle_late_data(&mut self, id: u32) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::protocol("DATA on a stream that nobody opened"));
        }
        match self.streams.gone(id) {
            Gone::ResetByUs => self.spend_idle_frame(),
            Gone::Ended => Err(ConnectionError::closed("DATA on a stream that both sides ended")),
            Gone::ResetByPeer | Gone::Forgotten => {
                self.spend_idle_frame()?;
                self.reply_reset(id, ErrorCode::STREAM_CLOSED)
            }
        }
    }

    /// Takes the beginning of `bytes` as part of `frame`.
    pub(super) fn take_data(
        &mut self,
        mut frame: DataFrame,
        bytes: &[u8],
        handler: &mut impl Handler,
    ) -> Result<usize, ConnectionError> {
        if frame.pad_length_due {
            let padding = bytes.first().copied().unwrap_or_default();
            self.take_pad_length(&mut frame, padding, handler)?;
            let after = if frame.data_left == 0 { self.pass_on(frame, &[], handler)? } else { Some(frame) };
            self.parser.set_data(after);
            return Ok(1);
        }
        if frame.data_left > 0 {
            let taken = bytes.len().min(frame.data_left as usize);
            frame.data_left -= taken as u32;
            let after = self.pass_on(frame, bytes.get(..taken).unwrap_or_default(), handler)?;
            self.parser.set_data(after);
            return Ok(taken);
        }
        let taken = bytes.len().min(frame.pad_left as usize);
        frame.pad_left -= taken as u32;
        let after = if frame.pad_left == 0 { self.pass_on(frame, &[], handler)? } else { Some(frame) };
        self.parser.set_data(after);
        Ok(taken)
    }

    fn take_pad_length(
        &mut self,
        frame: &mut DataFrame,
        padding: u8,
        handler: &mut impl Handler,
    ) -> Result<(), ConnectionError> {
        frame.pad_length_due = false;
        frame.pad_left = u32::from(padding);
        let Some(data) = (frame.data_left - 1).checked_sub(frame.pad_left) else {
            return Err(ConnectionError::protocol("padding is longer than DATA"));
        };
        frame.data_left = data;
        if frame.discarded {
            return Ok(());
        }
        self.credit_stream(frame.stream, frame.pad_left + 1);
        self.expect_content(frame, handler)
    }

    /// Checks a frame once the length of its data is known. Content-length must not be exceeded (section 8.1.1).
    fn expect_content(&mut self, frame: &mut DataFrame, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        if frame.discarded {
            return Ok(());
        }
        if frame.data_left > 0 {
            self.allowances.idle_frames.earn(4);
            self.counters.pings_since_data = 0;
        } else if !frame.end_stream {
            self.spend_idle_frame()?;
        }
        let Some(stream) = self.streams.get_mut(frame.stream) else { return Ok(()) };
        let Some(left) = stream.content_left else { return Ok(()) };
        match left.checked_sub(u64::from(frame.data_left)) {
            Some(left) => stream.content_left = Some(left),
            None => {
                let why = "a body is longer than content-length";
                self.stream_error(frame.stream, ErrorCode::PROTOCOL_ERROR, why, handler)?;
                frame.discarded = true;
            }
        }
        Ok(())
    }

    /// Hands a piece of the body over, and the end of the stream with the last one. `None` if the frame is over.
    fn pass_on(
        &mut self,
        frame: DataFrame,
        bytes: &[u8],
        handler: &mut impl Handler,
    ) -> Result<Option<DataFrame>, ConnectionError> {
        let over = frame.data_left == 0 && frame.pad_left == 0;
        let after = if over { None } else { Some(frame) };
        let id = frame.stream;
        if frame.discarded {
            return Ok(after);
        }
        let end = over && frame.end_stream;
        let Some(stream) = self.streams.get_mut(id) else {
            // The caller reset it inside the frame. All that was not taken has been given back.
            return Ok(after);
        };
        if end && stream.content_left.is_some_and(|left| left > 0) {
            let why = "a body is shorter than content-length";
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, why, handler).map(|()| after);
        }
        if end {
            stream.receiving = Receiving::Ended;
        }
        if end || !bytes.is_empty() {
            let taken = handler.data(StreamId(id), bytes, end).min(bytes.len());
            self.credit_stream(id, taken as u32);
        }
        if end {
            self.remove_if_over(id);
        }
        Ok(after)
    }

    /// Gives bytes of a stream back, to the connection and, while more may come, to the stream. Credit is collected up
    /// to half a window: fewer frames, and the peer never runs dry.
    fn credit_stream(&mut self, id: u32, n: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let n = n.min(stream.untaken);
        stream.untaken -= n;
        if stream.receiving != Receiving::Ended {
            stream.credit += n;
            let half = self.config.stream_window.div_ceil(2);
            if stream.credit >= half {
                let credit = std::mem::take(&mut stream.credit);
                stream.receive_window += i64::from(credit);
                self.put_window_update(id, credit);
            }
        }
        self.credit_connection(n);
    }

    pub(super) fn credit_connection(&mut self, n: u32) {
        self.windows.add_credit(n);
        if self.failure().is_none()
            && let Some(credit) = self.windows.take_credit()
        {
            self.put_window_update(0, credit);
        }
    }

    fn put_window_update(&mut self, stream: u32, credit: u32) {
        let head = FrameHead { length: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream };
        self.put_frame(head, &credit.to_be_bytes());
    }
}
