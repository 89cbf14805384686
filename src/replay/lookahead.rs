//! Puts records in the order of their requests: a file has them in the order of their answers.

use std::collections::BTreeMap;
use std::io::BufRead;

use nereid_recording::{ReadError, Reader, Record};

/// Records that are read ahead.
const RECORDS_MAX: usize = 1024;
/// Bytes of their bodies; one that has more is read alone.
const BYTES_MAX: usize = 64 << 20;

/// A record and its number in the file, from 1.
pub struct Numbered {
    pub number: u64,
    pub record: Record,
}

pub struct Lookahead<R> {
    reader: Reader<R>,
    /// By arrival, and by number where several came at once.
    ahead: BTreeMap<(u64, u64), Record>,
    bytes: usize,
    numbered: u64,
    /// Why nothing more comes from the file, if that is an error.
    error: Option<ReadError>,
    is_over: bool,
}

fn bytes_of(record: &Record) -> usize {
    let len = |body: &Option<Vec<u8>>| body.as_ref().map_or(0, Vec::len);
    len(&record.request_body).saturating_add(len(&record.answer_body))
}

impl<R: BufRead> Lookahead<R> {
    pub fn new(reader: Reader<R>) -> Lookahead<R> {
        Lookahead { reader, ahead: BTreeMap::new(), bytes: 0, numbered: 0, error: None, is_over: false }
    }

    /// The earliest request of those that are read ahead; none at the end, or where the file cannot be read further.
    pub fn take(&mut self) -> Option<Numbered> {
        while !self.is_over && self.ahead.len() < RECORDS_MAX && (self.bytes < BYTES_MAX || self.ahead.is_empty()) {
            match self.reader.next_record() {
                Ok(Some(record)) => {
                    self.numbered += 1;
                    self.bytes = self.bytes.saturating_add(bytes_of(&record));
                    self.ahead.insert((record.head.at_ns, self.numbered), record);
                }
                Ok(None) => self.is_over = true,
                Err(error) => (self.is_over, self.error) = (true, Some(error)),
            }
        }
        let ((_, number), record) = self.ahead.pop_first()?;
        self.bytes = self.bytes.saturating_sub(bytes_of(&record));
        Some(Numbered { number, record })
    }

    /// The file cannot be read to its end. One that is merely cut short can.
    pub fn is_damaged(&self) -> bool {
        self.error.is_some()
    }

    /// What is wrong with the end of the file, if anything is.
    pub fn note(&self) -> Option<String> {
        match &self.error {
            Some(error) => Some(error.to_string()),
            None if self.reader.is_cut_short() => {
                Some("the recording ends inside of a record, which is left out".to_owned())
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_recording::{FileHead, Protocol, RecordHead, RequestFacts, VERSION, write_head, write_record};

    #[test]
    fn records_come_in_the_order_of_their_requests() {
        let head = FileHead {
            format: "nereid-recording".to_owned(),
            version: VERSION,
            server: String::new(),
            started_unix_ms: 0,
            data: false,
            rate: 1,
            redacted: Vec::new(),
        };
        let mut file = Vec::new();
        write_head(&head, &mut file).unwrap();
        for at_ns in [30, 10, 20, 20] {
            let (protocol, request) = (Protocol::Http, RequestFacts::default());
            let (model, version) = (String::new(), String::new());
            let head = RecordHead { at_ns, took_ns: 0, protocol, model, version, request, answer: None };
            write_record(&mut Record { head, request_body: None, answer_body: None }, u64::MAX, &mut file).unwrap();
        }
        file.extend_from_slice(b"{\"at_ns\"");
        let mut lookahead = Lookahead::new(Reader::new(&file[..]).unwrap());
        let order: Vec<_> =
            std::iter::from_fn(|| lookahead.take()).map(|one| (one.record.head.at_ns, one.number)).collect();
        assert_eq!(order, [(10, 2), (20, 3), (20, 4), (30, 1)]);
        assert!(lookahead.note().unwrap().contains("inside of a record") && !lookahead.is_damaged());
        file.extend_from_slice(b"}\n");
        let mut lookahead = Lookahead::new(Reader::new(&file[..]).unwrap());
        assert_eq!(std::iter::from_fn(|| lookahead.take()).count(), 4);
        assert!(lookahead.is_damaged());
    }
}
