//! Batches: tensors of several requests joined on their rows, and split over them again.
//!
//! What is joined is what the requests hold, one behind the other and zeros behind them; a request that is refused is
//! at fault. A model that gives back what it gets answers each request with its own tensor, whether its rows are equal
//! or ragged, numbers or strings, shared or copied.

use std::sync::Arc;

use nereid_backend::rows::{Batch, Bytes, EncodedStrings, Failure, Input, Output, Produced, Scatter};
use nereid_memory::{BlockMut, Exhausted, Pool, Slice};
use nereid_request::{
    Completion, DataType, Delivery, InputTensor, OutputShape, Request, RequestedOutput, Shape, Sink, Text,
};

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target { name: "shapes", run, runs: 30_000, words: &[], seeds };

struct NullSink(Pool);

impl Sink for NullSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.0.get(byte_size)
    }
}

/// Decisions from the bytes of the input, zeros behind them.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(byte)
    }

    /// A dimension: mostly small, sometimes none that memory has room for.
    fn dim(&mut self) -> i64 {
        match self.next() {
            250 => i64::MAX,
            251 => -1,
            252 => 1 << 31,
            253 => i64::MIN,
            254 => 1 << 62,
            other => (other % 5) as i64,
        }
    }
}

/// A request, and what its tensor is.
struct Sent {
    rows: u64,
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

const TYPES: [DataType; 5] = [DataType::Uint8, DataType::Int16, DataType::Fp32, DataType::Fp64, DataType::Bytes];

fn run(data: &[u8]) -> bool {
    let (mut dice, bytes) = split(data);
    let mut choices = Choices(bytes);
    let datatype = TYPES[choices.next() % TYPES.len()];
    let (batching, is_ragged) = (choices.next() % 4 != 3, choices.next() % 4 == 3);
    let item: Vec<i64> = (0..choices.next() % 4).map(|_| choices.dim()).collect();
    let count = if batching { 1 + choices.next() % 4 } else { 1 };
    let sent: Vec<Sent> = (0..count).map(|_| request(&mut choices, datatype, batching, is_ragged, &item)).collect();
    let pool = pool();
    let sink = Arc::new(NullSink(pool.clone()));
    let requests: Vec<Box<Request>> =
        sent.iter().enumerate().map(|(key, sent)| built(sent, key, datatype, &sink, &mut dice)).collect();
    let rig = Rig { requests: &requests, sent: &sent, datatype, batching, is_ragged, pool: &pool };
    let passed = match datatype {
        DataType::Bytes => rig.strings(),
        _ => rig.numbers(choices.next()),
    };
    requests.into_iter().for_each(|request| request.withdraw());
    assert_eq!(pool.bytes_in_use(), 0, "memory was kept");
    passed
}

fn request(choices: &mut Choices<'_>, datatype: DataType, batching: bool, is_ragged: bool, item: &[i64]) -> Sent {
    let rows = (choices.next() % 4) as i64;
    let mut shape = item.to_vec();
    // Mostly the same shape for all, mostly with the rows that the request states.
    if is_ragged || choices.next() % 8 == 7 {
        shape = item.iter().map(|_| choices.dim()).collect();
    }
    if batching {
        shape.insert(0, if choices.next() % 8 == 7 { choices.dim() } else { rows });
    }
    let elements = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(usize::try_from(*dim).ok()?));
    let elements = elements.filter(|elements| *elements <= 4096).unwrap_or(3);
    let mut bytes = Vec::new();
    if datatype == DataType::Bytes {
        for _ in 0..elements {
            let len = choices.next() % 9;
            bytes.extend_from_slice(&(len as u32).to_le_bytes());
            bytes.extend((0..len).map(|_| choices.next() as u8));
        }
    } else {
        bytes.extend((0..elements * datatype.byte_size()).map(|at| (choices.next() ^ at) as u8));
    }
    match choices.next() % 8 {
        6 => drop(bytes.pop()),
        7 => bytes.push(1),
        _ => {}
    }
    Sent { rows: if batching { rows as u64 } else { 1 }, shape, bytes }
}

fn built(sent: &Sent, key: usize, datatype: DataType, sink: &Arc<NullSink>, dice: &mut Dice) -> Box<Request> {
    let mut request = Request::new(Completion::new(Arc::clone(sink) as Arc<dyn Sink>, key as u64));
    request.batch_size = sent.rows;
    let mut input = InputTensor::new(Text::from("in"), datatype, Shape::from_slice(&sent.shape));
    input.model_shape = input.shape.clone();
    // Pieces of any length at any address.
    let pieces = match dice.one_in(2) {
        true => vec![&sent.bytes[..]],
        false => dice.cut(&sent.bytes),
    };
    for piece in pieces {
        let offset = dice.below(3);
        let padded = [&vec![0; offset], piece].concat();
        input.data.push(Slice::copy_of(&padded).window(offset..offset + piece.len()));
    }
    request.inputs.push(input);
    request.outputs = vec![RequestedOutput { name: Text::from("out"), index: 0 }].into_iter().collect();
    Box::new(request)
}

struct Rig<'a> {
    requests: &'a [Box<Request>],
    sent: &'a [Sent],
    datatype: DataType,
    batching: bool,
    is_ragged: bool,
    pool: &'a Pool,
}

impl Rig<'_> {
    fn input(&self) -> Input {
        Input { name: "in".to_owned(), index: 0, datatype: self.datatype, is_ragged: self.is_ragged }
    }

    /// Elements of a shape; `None` if it has no size, or one that no memory has.
    fn elements(shape: &[i64]) -> Option<u128> {
        let dims: Vec<u128> = shape.iter().map(|dim| u128::try_from(*dim).ok()).collect::<Option<_>>()?;
        // Nothing is any number of times nothing.
        if dims.contains(&0) {
            return Some(0);
        }
        dims.into_iter().try_fold(1u128, u128::checked_mul)
    }

    /// Whether something is wrong with the request at `at`, beside its bytes.
    fn is_misshapen(&self, at: usize) -> bool {
        let (Some(first), Some(sent)) = (self.sent.first(), self.sent.get(at)) else { return true };
        let from = usize::from(self.batching);
        let has_rows = !self.batching || sent.shape.first() == Some(&(sent.rows as i64));
        !self.is_ragged && (!has_rows || first.shape[from..] != sent.shape[from..])
    }

    /// A shape without a size fits no bytes, not even those that are no tensor either.
    fn has_other_bytes(&self, at: usize) -> bool {
        let Some(sent) = self.sent.get(at) else { return true };
        let Some(count) = Self::elements(&sent.shape) else { return true };
        match self.datatype {
            DataType::Bytes => strings(&sent.bytes).is_none_or(|all| all.len() as u128 != count),
            datatype => count.checked_mul(datatype.byte_size() as u128) != Some(sent.bytes.len() as u128),
        }
    }

    fn check_failure(&self, failure: &Failure) {
        match failure {
            Failure::One(at, _) => {
                assert!(self.is_misshapen(*at) || self.has_other_bytes(*at), "{failure:?}, of {:?}", self.shapes());
            }
            Failure::All(_) => {
                let is_wrong = (0..self.sent.len()).any(|at| self.is_misshapen(at) || self.has_other_bytes(at));
                assert!(is_wrong, "{failure:?}, of {:?}", self.shapes());
            }
        }
    }

    fn shapes(&self) -> Vec<(u64, &[i64], usize)> {
        self.sent.iter().map(|sent| (sent.rows, &sent.shape[..], sent.bytes.len())).collect()
    }

    fn numbers(&self, padding: usize) -> bool {
        let batch = Batch::new(self.requests, self.batching, self.pool);
        let joined = match batch.join(&self.input()) {
            Ok(joined) => joined,
            Err(failure) => {
                self.check_failure(&failure);
                return false;
            }
        };
        let all: Vec<u8> = self.sent.iter().flat_map(|sent| sent.bytes.clone()).collect();
        assert_eq!(joined.bytes[..], all[..], "{:?}", self.shapes());
        assert_eq!(joined.elements * self.datatype.byte_size(), all.len(), "{:?}", self.shapes());
        assert_eq!(Self::elements(&joined.shape), Some(joined.elements as u128));
        assert!(joined.bytes.is_empty() || joined.bytes.is_aligned_to(self.datatype.byte_size()));
        if !self.is_ragged && self.batching {
            let rows = batch.rows() + (padding % 8) as u64;
            let padded = batch.join_padded(&self.input(), rows);
            if let Ok(padded) = padded {
                assert_eq!(padded.shape.first(), Some(&(rows as i64)));
                assert!(padded.bytes.starts_with(&all) && padded.bytes[all.len()..].iter().all(|byte| *byte == 0));
                // Rows behind those of the requests are nobody's.
                self.check_echo(&batch, padded.shape, Bytes::Shared(padded.bytes), None);
            }
        }
        let scatter = self.is_ragged.then_some(Scatter { source: 0 });
        self.check_echo(&batch, joined.shape.clone(), Bytes::Borrowed(&joined.bytes), scatter);
        self.check_echo(&batch, joined.shape, Bytes::Shared(joined.bytes.clone()), scatter);
        true
    }

    fn strings(&self) -> bool {
        let batch = Batch::new(self.requests, self.batching, self.pool);
        let joined = match batch.join_strings(&self.input()) {
            Ok(joined) => joined,
            Err(failure) => {
                self.check_failure(&failure);
                return false;
            }
        };
        let all: Vec<&[u8]> = self.sent.iter().flat_map(|sent| strings(&sent.bytes).unwrap_or_default()).collect();
        assert!(joined.iter().eq(all.iter().copied()), "{:?}", self.shapes());
        let encoded = EncodedStrings::encode(all.iter().copied(), "out", self.pool).expect("memory for them");
        assert_eq!(encoded.len(), all.len());
        let scatter = self.is_ragged.then_some(Scatter { source: 0 });
        self.check_echo(&batch, joined.shape.clone(), Bytes::Strings(&encoded), scatter);
        true
    }

    /// Each request gets its own tensor back.
    fn check_echo(&self, batch: &Batch<'_>, shape: Shape, bytes: Bytes<'_>, scatter: Option<Scatter>) {
        let rank = self.sent.first().map_or(0, |sent| sent.shape.len()) - usize::from(self.batching);
        let output = Output {
            name: Text::from("out"),
            index: 0,
            datatype: self.datatype,
            shape: OutputShape { dims: Shape::from_elem(-1, rank), reshape: None },
            is_state: false,
        };
        let scatters = [scatter];
        let scatters = if scatter.is_some() { &scatters[..] } else { &[] };
        let answers = match batch.split_scattered(&[output], &[Some(Produced { shape, bytes })], scatters) {
            Ok(answers) => answers,
            Err(status) => panic!("{status}, of {:?}", self.shapes()),
        };
        assert_eq!(answers.len(), self.sent.len());
        for (answer, sent) in answers.iter().zip(self.sent) {
            let response = answer.as_ref().unwrap_or_else(|status| panic!("{status}, of {:?}", self.shapes()));
            let [output] = &response.outputs[..] else { panic!("{} outputs", response.outputs.len()) };
            let data: Vec<u8> = output.data.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!((&output.shape[..], &data), (&sent.shape[..], &sent.bytes), "{:?}", self.shapes());
        }
    }
}

/// The elements of a BYTES tensor; `None` if it is none.
fn strings(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (element, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        all.push(element);
        bytes = rest;
    }
    Some(all)
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for datatype in 0..TYPES.len() as u8 {
        // Two dimensions and three requests, equal; ragged; without batching.
        seeds.push([0, 0, 0, datatype, datatype, 0, 0, 2, 2, 3, 2, 1, 0, 0, 2, 0, 0, 7, 8, 9, 1, 0, 0, 3].to_vec());
        seeds.push([0, 0, 0, datatype, datatype, 0, 3, 1, 2, 2, 1, 2, 0, 2, 0, 5, 4, 3, 2, 1, 9, 8, 7].to_vec());
        seeds.push([0, 0, 0, datatype, datatype, 3, 0, 2, 3, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].to_vec());
    }
    seeds
}
