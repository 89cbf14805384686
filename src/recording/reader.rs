//! Reads a file of recorded requests, record by record.
//!
//! Whatever a file contains, memory follows the bytes that are there, not the lengths that it states.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::format::{BODY_BYTES_MAX, FORMAT, FileHead, LINE_BYTES_MAX, Record, RecordHead, VERSION};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot open the recording '{}': {error}; does it exist, and may this user read it?", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("cannot read the recording: {0}")]
    Io(#[from] io::Error),
    #[error(
        "this is no recording: its first line does not have the format '{FORMAT}'; record one with --record=<file>"
    )]
    Format,
    #[error("the recording has version {0} of the format, and this program reads version {VERSION}; use a newer one")]
    Version(u32),
    #[error("record {record} at byte {at} is damaged: {what}; what follows it cannot be read")]
    Damaged { record: u64, at: u64, what: String },
}

/// See the [module](self).
pub struct Reader<R> {
    input: R,
    head: FileHead,
    /// Bytes that were read.
    at: u64,
    records: u64,
    is_cut_short: bool,
    is_over: bool,
}

/// What is there of a line.
enum Line {
    Whole(Vec<u8>),
    /// The file ends in it, or before it.
    Cut(usize),
    TooLong,
}

fn read_line(input: &mut impl BufRead) -> io::Result<Line> {
    let mut line = Vec::new();
    let n = input.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    Ok(match line.last() {
        Some(b'\n') => Line::Whole(line),
        _ if n == LINE_BYTES_MAX => Line::TooLong,
        _ => Line::Cut(n),
    })
}

impl Reader<BufReader<File>> {
    pub fn open(path: &Path) -> Result<Reader<BufReader<File>>, ReadError> {
        let file = File::open(path).map_err(|error| ReadError::Open { path: path.to_owned(), error })?;
        Reader::new(BufReader::with_capacity(256 * 1024, file))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    pub fn new(mut input: R) -> Result<Reader<R>, ReadError> {
        let Line::Whole(line) = read_line(&mut input)? else { return Err(ReadError::Format) };
        // The version first: what else the line has, may depend on it.
        let value: serde_json::Value = serde_json::from_slice(&line).map_err(|_| ReadError::Format)?;
        if value["format"] != FORMAT {
            return Err(ReadError::Format);
        }
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(ReadError::Version(u32::try_from(version).unwrap_or(u32::MAX))),
            None => return Err(ReadError::Format),
        }
        let head = serde_json::from_value(value).map_err(|_| ReadError::Format)?;
        Ok(Reader { input, head, at: line.len() as u64, records: 0, is_cut_short: false, is_over: false })
    }

    pub fn head(&self) -> &FileHead {
        &self.head
    }

    /// The file ended inside of a record, as that of a server that was killed.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// The next record; none at the end. After an error nothing follows.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if self.is_over {
            return Ok(None);
        }
        let outcome = self.read_record();
        match &outcome {
            Ok(Some(_)) => self.records += 1,
            Ok(None) | Err(_) => self.is_over = true,
        }
        outcome
    }

    fn damaged(&self, at: u64, what: impl Into<String>) -> ReadError {
        ReadError::Damaged { record: self.records.saturating_add(1), at, what: what.into() }
    }

    fn read_record(&mut self) -> Result<Option<Record>, ReadError> {
        let at = self.at;
        let line = match read_line(&mut self.input)? {
            Line::Whole(line) => line,
            Line::Cut(n) => {
                self.is_cut_short = n > 0;
                return Ok(None);
            }
            Line::TooLong => return Err(self.damaged(at, format!("its line is longer than {LINE_BYTES_MAX} bytes"))),
        };
        self.at = self.at.saturating_add(line.len() as u64);
        let head: RecordHead =
            serde_json::from_slice(&line).map_err(|error| self.damaged(at, format!("its line: {error}")))?;
        let lengths = [head.request.body_byte_size, head.answer.as_ref().and_then(|answer| answer.body_byte_size)];
        let mut bodies = [None, None];
        for (body, length) in bodies.iter_mut().zip(lengths) {
            let Some(length) = length else { continue };
            if length > BODY_BYTES_MAX {
                return Err(self.damaged(at, format!("a body of {length} bytes, more than {BODY_BYTES_MAX}")));
            }
            let mut bytes = Vec::new();
            let read = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
            self.at = self.at.saturating_add(read as u64);
            if (read as u64) < length {
                self.is_cut_short = true;
                return Ok(None);
            }
            *body = Some(bytes);
        }
        if lengths.iter().any(Option::is_some) {
            let mut end = Vec::new();
            self.input.by_ref().take(1).read_to_end(&mut end)?;
            match end.first() {
                Some(b'\n') => self.at = self.at.saturating_add(1),
                Some(_) => return Err(self.damaged(at, "no line feed behind its bodies")),
                None => {
                    self.is_cut_short = true;
                    return Ok(None);
                }
            }
        }
        let [request_body, answer_body] = bodies;
        Ok(Some(Record { head, request_body, answer_body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{AnswerFacts, Protocol, RequestFacts, TensorFacts, write_head, write_record};

    fn head(data: bool) -> FileHead {
        FileHead {
            format: FORMAT.to_owned(),
            version: VERSION,
            server: "nereid".to_owned(),
            started_unix_ms: 7,
            data,
            rate: 1,
            redacted: Vec::new(),
        }
    }

    fn records() -> Vec<Record> {
        let bare = Record {
            head: RecordHead {
                at_ns: 5,
                took_ns: 6,
                protocol: Protocol::Http,
                model: "m".to_owned(),
                version: String::new(),
                request: RequestFacts {
                    byte_size: 9,
                    inputs: vec![TensorFacts { name: "x".to_owned(), shape: vec![1, -1], ..TensorFacts::default() }],
                    ..RequestFacts::default()
                },
                answer: None,
            },
            request_body: None,
            answer_body: None,
        };
        let mut full = bare.clone();
        full.head.protocol = Protocol::Grpc;
        full.head.answer = Some(AnswerFacts { status: 3, ..AnswerFacts::default() });
        (full.request_body, full.answer_body) = (Some(b"a\nbody".to_vec()), Some(Vec::new()));
        vec![bare.clone(), full, bare]
    }

    fn file() -> (Vec<u8>, Vec<Record>) {
        let (mut bytes, mut all) = (Vec::new(), records());
        let mut length = write_head(&head(true), &mut bytes).unwrap();
        for record in &mut all {
            length += write_record(record, u64::MAX, &mut bytes).unwrap().unwrap();
        }
        assert_eq!(length, bytes.len() as u64);
        (bytes, all)
    }

    fn read(bytes: &[u8]) -> (Vec<Record>, bool, Option<ReadError>) {
        let mut reader = match Reader::new(bytes) {
            Ok(reader) => reader,
            Err(error) => return (Vec::new(), false, Some(error)),
        };
        let mut all = Vec::new();
        loop {
            match reader.next_record() {
                Ok(Some(record)) => all.push(record),
                Ok(None) => return (all, reader.is_cut_short(), None),
                Err(error) => {
                    assert!(reader.next_record().unwrap().is_none(), "nothing follows an error");
                    return (all, reader.is_cut_short(), Some(error));
                }
            }
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let (bytes, written) = file();
        let (all, is_cut_short, error) = read(&bytes);
        assert!(!is_cut_short && error.is_none(), "{error:?}");
        assert_eq!(all, written);
    }

    /// A file that ends anywhere gives the records in front of that place.
    #[test]
    fn a_tail_that_is_missing_costs_one_record() {
        let (bytes, written) = file();
        let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let mut ends = 0;
        for cut in first..bytes.len() {
            let (all, is_cut_short, error) = read(&bytes[..cut]);
            assert!(error.is_none() && all[..] == written[..all.len()], "{cut}: {error:?}");
            ends += usize::from(!is_cut_short);
        }
        assert_eq!(ends, 3, "three cuts are between records");
    }

    #[test]
    fn what_is_no_recording_is_refused_with_the_next_step() {
        let error = |bytes: &[u8]| read(bytes).2.unwrap().to_string();
        assert!(error(b"").contains("record one with --record"));
        assert!(error(b"{}\n").contains("record one with --record"));
        assert!(error(b"[1,2]\n").contains("record one with --record"));
        assert!(error(b"{\"format\":\"nereid-recording\",\"version\":2}\n").contains("version 2"));
        let (bytes, _) = file();
        let after = |more: &[u8]| read(&[&bytes[..], more].concat()).2.unwrap().to_string();
        assert!(after(b"nonsense\n").starts_with("record 4 at byte "));
        let lying =
            br#"{"at_ns":0,"took_ns":0,"protocol":"http","request":{"byte_size":0,"body_byte_size":9999999999999}}"#;
        assert!(after(&[&lying[..], b"\n"].concat()).contains("a body of 9999999999999 bytes"));
        let unbounded = vec![b'x'; LINE_BYTES_MAX + 1];
        assert!(after(&unbounded).contains("longer than"));
        assert!(matches!(Reader::open(Path::new("/nowhere")), Err(ReadError::Open { .. })));
    }

    /// A length that is longer than the file allocates nothing.
    #[test]
    fn a_length_without_bytes_is_a_cut() {
        let (bytes, written) = file();
        let lying =
            br#"{"at_ns":0,"took_ns":0,"protocol":"http","request":{"byte_size":0,"body_byte_size":1073741824}}"#;
        let (all, is_cut_short, error) = read(&[&bytes[..], lying, b"\nabc"].concat());
        assert!(is_cut_short && error.is_none());
        assert_eq!(all, written);
    }

    #[test]
    fn a_record_that_does_not_fit_is_not_begun() {
        let mut record = records().remove(1);
        let mut bytes = Vec::new();
        let length = write_record(&mut record, u64::MAX, &mut bytes).unwrap().unwrap();
        bytes.clear();
        assert_eq!(write_record(&mut record, length - 1, &mut bytes).unwrap(), None);
        assert!(bytes.is_empty());
        assert_eq!(write_record(&mut record, length, &mut bytes).unwrap(), Some(length));
    }
}
