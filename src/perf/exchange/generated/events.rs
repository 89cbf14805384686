//! Reads a stream of server-sent events (the HTML standard, section 9.2.6) as its bytes come.
//!
//! Each byte is looked at once, wherever the stream is cut. What is kept is the line that has not ended and the event
//! that it belongs to.

/// Of one event, its unfinished line included.
pub const EVENT_BYTES_MAX: usize = 16 << 20;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug, Default)]
pub struct EventParser {
    /// A line whose end has not come.
    line: Vec<u8>,
    /// Lines of data of this event, each with a line feed behind it.
    data: Vec<u8>,
    name: Vec<u8>,
    /// The last line ended with a carriage return: a line feed that follows belongs to that end.
    after_return: bool,
    /// The first line has been read.
    has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Empty for most.
    pub name: &'a [u8],
    pub data: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than 16 MiB")]
pub struct EventTooLong;

impl EventParser {
    /// Calls for each event that ends in these bytes.
    pub fn receive(&mut self, bytes: &[u8], mut take: impl FnMut(Event<'_>)) -> Result<(), EventTooLong> {
        let mut rest = bytes;
        if std::mem::take(&mut self.after_return) && !rest.is_empty() {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, behind) = rest.split_at(end);
            if self.line.is_empty() {
                self.take_line(line, &mut take)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take_line(&whole, &mut take)?;
                // Its room is used again.
                whole.clear();
                self.line = whole;
            }
            rest = match behind {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.line.extend_from_slice(rest);
        self.check()
    }

    fn check(&self) -> Result<(), EventTooLong> {
        let len = self.line.len().saturating_add(self.data.len());
        if len > EVENT_BYTES_MAX { Err(EventTooLong) } else { Ok(()) }
    }

    fn take_line(&mut self, line: &[u8], take: &mut impl FnMut(Event<'_>)) -> Result<(), EventTooLong> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(line);
        if line.is_empty() {
            // An event without data is none.
            if let Some(data) = self.data.strip_suffix(b"\n") {
                take(Event { name: &self.name, data });
            }
            self.data.clear();
            self.name.clear();
            return Ok(());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (line.get(..at).unwrap_or_default(), line.get(at + 1..).unwrap_or_default()),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
                self.check()
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
                Ok(())
            }
            // A comment has an empty name; ids and times to wait have no meaning here.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = EventParser::default();
        let mut events = Vec::new();
        for piece in pieces {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            parser.receive(piece, |event| events.push((text(event.name), text(event.data)))).unwrap();
        }
        events
    }

    #[test]
    fn events_are_read_however_they_are_cut() {
        let stream = "\u{feff}: comment\ndata: {\"a\":1}\n\ndata:b\r\n\r\nevent: error\rid: 7\rdata: c\rdata:  d\r\r\
                      :\n\nevent: lost\n\ndata\n\nretry: 5\ndata: [DONE]\n\ndata: unfinished\n";
        let expected: Vec<(String, String)> =
            [("", "{\"a\":1}"), ("", "b"), ("error", "c\n d"), ("", ""), ("", "[DONE]")]
                .map(|(name, data)| (name.to_owned(), data.to_owned()))
                .to_vec();
        let bytes = stream.as_bytes();
        assert_eq!(read(&[bytes]), expected);
        for first in 0..=bytes.len() {
            assert_eq!(read(&[&bytes[..first], &bytes[first..]]), expected, "{first}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), expected);
        let empty: Vec<&[u8]> = bytes.chunks(1).flat_map(|byte| [byte, &b""[..]]).collect();
        assert_eq!(read(&empty), expected, "nothing is received between a return and its line feed");
    }

    #[test]
    fn a_byte_order_mark_is_one_at_the_begin_only() {
        assert_eq!(read(&["\u{feff}data: a\n\n".as_bytes()]).len(), 1);
        assert_eq!(read(&["data: a\n\n\u{feff}data: b\n\n".as_bytes()]).len(), 1);
    }

    #[test]
    fn events_have_an_end() {
        let mut parser = EventParser::default();
        let piece = vec![b'x'; 1 << 20];
        let outcomes: Vec<_> = (0..17).map(|_| parser.receive(&piece, |_| ())).collect();
        assert!(outcomes[..16].iter().all(Result::is_ok) && outcomes[16].is_err());
        let mut parser = EventParser::default();
        let line = [b"data: ", &piece[..], b"\n"].concat();
        let refused = (0..17).position(|_| parser.receive(&line, |_| ()).is_err());
        assert_eq!(refused, Some(15), "each line has a line feed, too");
        // What ended does not count.
        let mut parser = EventParser::default();
        let event = [&line[..], b"\n"].concat();
        assert!((0..40).all(|_| parser.receive(&event, |_| ()).is_ok()));
    }
}
