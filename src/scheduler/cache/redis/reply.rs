//! Replies of Redis in its protocol (RESP version 2), read piece by piece and checked fully: lines and values have
//! bounds, and no memory is allocated for bytes that are only announced.

use std::fmt;

use super::VALUE_BYTES_MAX;

#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(String),
    /// `-ERR …`
    Error(String),
    Number(i64),
    Value(Vec<u8>),
    /// There is no value.
    Nothing,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Status(text) | Reply::Error(text) => f.write_str(text),
            Reply::Number(number) => write!(f, "{number}"),
            Reply::Value(bytes) => write!(f, "{} bytes", bytes.len()),
            Reply::Nothing => f.write_str("nothing"),
        }
    }
}

/// Why bytes are no usable reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Garbled {
    /// They are not the protocol.
    Malformed,
    TooLarge,
}

const LINE_BYTES_MAX: usize = 4096;

/// State of the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    Whole(Reply),
    /// The beginning of a reply that has at least so many bytes in all.
    Part(usize),
}

/// Parses the one reply that `bytes` begin and end with.
pub fn parse(bytes: &[u8]) -> Result<Parsed, Garbled> {
    let line = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        let is_short = bytes.len() < LINE_BYTES_MAX;
        return if is_short { Ok(Parsed::Part(bytes.len() + 1)) } else { Err(Garbled::Malformed) };
    };
    let (kind, text) = line[..end].split_first().ok_or(Garbled::Malformed)?;
    let text = String::from_utf8_lossy(text).into_owned();
    let number = || text.parse::<i64>().map_err(|_| Garbled::Malformed);
    let rest = &bytes[end + 2..];
    let whole = |reply| if rest.is_empty() { Ok(Parsed::Whole(reply)) } else { Err(Garbled::Malformed) };
    match kind {
        b'+' => whole(Reply::Status(text)),
        b'-' => whole(Reply::Error(text)),
        b':' => whole(Reply::Number(number()?)),
        b'$' if text == "-1" => whole(Reply::Nothing),
        b'$' => {
            let len = usize::try_from(number()?).map_err(|_| Garbled::Malformed)?;
            if len > VALUE_BYTES_MAX {
                return Err(Garbled::TooLarge);
            }
            match rest.len().checked_sub(len) {
                None | Some(0 | 1) => Ok(Parsed::Part(end + 2 + len + 2)),
                Some(2) if rest.ends_with(b"\r\n") => Ok(Parsed::Whole(Reply::Value(rest[..len].to_vec()))),
                Some(_) => Err(Garbled::Malformed),
            }
        }
        _ => Err(Garbled::Malformed),
    }
}

/// A command, encoded for Redis.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(words.iter().map(|word| word.len() + 32).sum::<usize>() + 16);
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_or_not_at_all() {
        let cases: [(&[u8], Reply); 7] = [
            (b"+OK\r\n", Reply::Status("OK".into())),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":-12\r\n", Reply::Number(-12)),
            (b"$5\r\nab\r\nc\r\n", Reply::Value(b"ab\r\nc".into())),
            (b"$0\r\n\r\n", Reply::Value(Vec::new())),
            (b"$-1\r\n", Reply::Nothing),
            (b"+\r\n", Reply::Status(String::new())),
        ];
        for (bytes, expected) in cases {
            for end in 0..bytes.len() {
                let Ok(Parsed::Part(wanted)) = parse(&bytes[..end]) else { panic!("{end} bytes of {bytes:?}") };
                assert!(end < wanted && wanted <= bytes.len(), "{wanted} bytes after {end} of {bytes:?}");
            }
            assert_eq!(parse(bytes), Ok(Parsed::Whole(expected)), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let long = [b"+".as_slice(), &[b'a'; LINE_BYTES_MAX]].concat();
        let cases: [&[u8]; 9] = [
            b"\r\n",
            b"HTTP/1.1 400\r\n",
            b"*1\r\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$99999999999999999999\r\n",
            b"$1\r\nab\r\n",
            b"+OK\r\n+OK\r\n",
            &long,
        ];
        for bytes in cases {
            assert_eq!(parse(bytes), Err(Garbled::Malformed), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(parse(format!("${}\r\n", VALUE_BYTES_MAX + 1).as_bytes()), Err(Garbled::TooLarge));
    }

    #[test]
    fn a_command_is_an_array_of_its_words() {
        assert_eq!(command(&[b"GET", b"a\r\n"]), b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n");
    }
}
