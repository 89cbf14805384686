//! The terminal of `nereid top`: raw mode, keys and lines, and its former state at the end, whatever the end is.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use nereid_monitor::{Key, Line, Look};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of keys that are read at a time.
const INPUT_BYTES: usize = 1024;
/// Where a terminal does not tell its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// Whether the terminal is changed and must be restored.
static IS_CHANGED: AtomicBool = AtomicBool::new(false);

/// The terminal, until it is dropped.
pub struct Terminal {
    has_colours: bool,
    /// What is on the screen.
    shown: Vec<Line>,
    size: (usize, usize),
    keys: KeyParser,
}

impl Terminal {
    /// Takes the terminal over. A panic of any thread restores it before the panic is printed.
    pub fn enter(has_colours: bool) -> io::Result<Terminal> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::Error::other("standard input and output are not a terminal; --once prints one table"));
        }
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            former(panic);
        }));
        terminal::enable_raw_mode()?;
        IS_CHANGED.store(true, Ordering::SeqCst);
        let terminal = Terminal { has_colours, shown: Vec::new(), size: (0, 0), keys: KeyParser::default() };
        execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(terminal)
    }

    /// Columns and rows now.
    pub fn size(&self) -> (usize, usize) {
        match terminal::size() {
            Ok((width, height)) if width > 0 && height > 0 => (width.into(), height.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows these lines on a screen of this size; only lines that differ are written.
    pub fn draw(&mut self, lines: Vec<Line>, size: (usize, usize)) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        queue!(out, BeginSynchronizedUpdate)?;
        if size != self.size {
            queue!(out, Clear(ClearType::All))?;
            self.shown.clear();
            self.size = size;
        }
        for (row, line) in lines.iter().enumerate() {
            if self.shown.get(row) == Some(line) {
                continue;
            }
            queue!(out, MoveTo(0, u16::try_from(row).unwrap_or(u16::MAX)))?;
            for span in &line.spans {
                self.style(&mut out, span.look)?;
                queue!(out, Print(&span.text), SetAttribute(Attribute::Reset))?;
            }
            // Behind a full line the cursor is still on its last column, which must stay.
            if line.spans.iter().map(|span| span.text.chars().count()).sum::<usize>() < size.0 {
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
        }
        queue!(out, EndSynchronizedUpdate)?;
        self.shown = lines;
        out.flush()
    }

    fn style(&self, out: &mut impl Write, look: Look) -> io::Result<()> {
        match look {
            Look::Plain => Ok(()),
            Look::Bold => queue!(out, SetAttribute(Attribute::Bold)),
            Look::Dim => queue!(out, SetAttribute(Attribute::Dim)),
            Look::Reverse => queue!(out, SetAttribute(Attribute::Reverse)),
            Look::Good if self.has_colours => queue!(out, SetForegroundColor(Color::DarkGreen)),
            Look::Warning if self.has_colours => queue!(out, SetForegroundColor(Color::DarkYellow)),
            Look::Bad if self.has_colours => queue!(out, SetForegroundColor(Color::DarkRed)),
            Look::Good => Ok(()),
            Look::Warning | Look::Bad => queue!(out, SetAttribute(Attribute::Bold)),
        }
    }

    /// The keys that were pressed, after at most `patience`. The end of the input is an error.
    pub fn keys(&mut self, patience: Duration) -> io::Result<Vec<Key>> {
        let stdin = io::stdin();
        let mut waited = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut waited, Some(&timeout)) {
            // A signal; the caller reads which.
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(self.keys.end_of_pause()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; INPUT_BYTES];
        match rustix::io::read(&stdin, &mut bytes) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal has gone")),
            Ok(n) => Ok(self.keys.receive(bytes.get(..n).unwrap_or_default())),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal its former state, once.
fn restore() {
    if IS_CHANGED.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), EndSynchronizedUpdate, EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Reads keys out of the bytes that a terminal sends for them.
#[derive(Debug, Default)]
struct KeyParser {
    /// The beginning of a key whose rest has not come.
    begun: Vec<u8>,
}

impl KeyParser {
    fn receive(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.begun.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut rest = self.begun.as_slice();
        while let Some(first) = rest.first() {
            let (len, key) = match first {
                0x1b => match escape(rest) {
                    Some(found) => found,
                    None => break,
                },
                b'\r' | b'\n' => (1, Some(Key::Enter)),
                0x7f | 0x08 => (1, Some(Key::Backspace)),
                0x03 => (1, Some(Key::Interrupt)),
                0x00..0x20 => (1, None),
                _ => match character(rest) {
                    Some(found) => found,
                    None => break,
                },
            };
            keys.extend(key);
            rest = rest.get(len..).unwrap_or_default();
        }
        self.begun = rest.to_vec();
        keys
    }

    /// Nothing followed: an escape by itself is the key Escape.
    fn end_of_pause(&mut self) -> Vec<Key> {
        match std::mem::take(&mut self.begun).first() {
            Some(0x1b) => vec![Key::Escape],
            _ => Vec::new(),
        }
    }
}

/// The length of the sequence that the bytes begin with, and its key. None: its end has not come.
fn escape(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    match bytes {
        [0x1b] => None,
        [0x1b, b'O', last, ..] => Some((3, arrow(*last))),
        [0x1b, b'[' | b'O'] => None,
        [0x1b, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            let (parameters, last) = (rest.get(..end)?, *rest.get(end)?);
            let key = match (last, parameters) {
                (b'~', [b'5', ..]) => Some(Key::PageUp),
                (b'~', [b'6', ..]) => Some(Key::PageDown),
                (b'~', [b'1' | b'7']) => Some(Key::Home),
                (b'~', [b'4' | b'8']) => Some(Key::End),
                (b'~', _) => None,
                (last, _) => arrow(last),
            };
            Some((end + 3, key))
        }
        // Two escapes, or Alt and a key: the escape counts.
        _ => Some((1, Some(Key::Escape))),
    }
}

fn arrow(last: u8) -> Option<Key> {
    match last {
        b'A' => Some(Key::Up),
        b'B' => Some(Key::Down),
        b'C' => Some(Key::Right),
        b'D' => Some(Key::Left),
        b'H' => Some(Key::Home),
        b'F' => Some(Key::End),
        _ => None,
    }
}

/// A character of UTF-8. None: its end has not come.
fn character(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let shown = bytes.get(..bytes.len().min(4)).unwrap_or_default();
    let valid = match std::str::from_utf8(shown) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(shown.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
        }
        Err(error) if error.error_len().is_none() => return None,
        Err(_) => return Some((1, None)),
    };
    valid.chars().next().map(|c| (c.len_utf8(), Some(Key::Char(c))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_whole_and_in_parts() {
        let mut parser = KeyParser::default();
        let keys = parser.receive(b"a\x1b[A\x1bOB\x1b[5~\x1b[6;5~\r\x7f\x03\x01\xc3\xa9\x1b[1;5C\x1b[H\x1b[99~z\xff");
        let expected = [
            Key::Char('a'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Enter,
            Key::Backspace,
            Key::Interrupt,
            Key::Char('é'),
            Key::Right,
            Key::Home,
            Key::Char('z'),
        ];
        assert_eq!(keys, expected);
        // Byte by byte it is the same.
        let one_by_one: Vec<Key> = b"\x1b[B\xe2\x82\xacq".iter().flat_map(|byte| parser.receive(&[*byte])).collect();
        assert_eq!(one_by_one, [Key::Down, Key::Char('€'), Key::Char('q')]);
        assert_eq!(parser.receive(b"\x1b"), []);
        assert_eq!((parser.end_of_pause(), parser.end_of_pause()), (vec![Key::Escape], vec![]));
        assert_eq!(parser.receive(b"\x1bq"), [Key::Escape, Key::Char('q')]);
    }
}
