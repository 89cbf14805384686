//! The key of a request in the response cache (contract/schedulers.md section 8).
//!
//! The key is 64 bits of SipHash-1-3 over the model's name and version and over all that the model sees of the request
//! but its id: inputs with names, types, shapes and bytes, requested outputs, parameters. Their order makes no
//! difference, and each piece follows its length. Triton's key has the names and bytes of the inputs alone;
//! `key=triton` selects that ([`KeyForm`]). Sixty-four bits are few where clients choose the bytes: the hash is
//! computed to 128 bits, and the other half, the seal, is kept with the entry and has to match as well. A cache inside
//! the process draws its secret at random, so that no client can search for two inputs with one key.

use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;

use nereid_request::{CorrelationId, InputTensor, Parameter, Request, Value};

/// The parts of a request that go into its key: the setting `key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeyForm {
    /// All that the model sees, but the id.
    #[default]
    Request,
    /// Names and bytes of the inputs.
    Triton,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub hash: u64,
    /// The other half of the hash.
    pub seal: u64,
}

/// Secret of the hash function.
#[derive(Debug, Clone, Copy)]
pub struct HashSecret([u64; 2]);

impl HashSecret {
    /// A secret of this process.
    pub fn random() -> HashSecret {
        // The standard library seeds its maps from the system's random numbers.
        let word = |index: u8| RandomState::new().hash_one(index);
        HashSecret([word(0), word(1)])
    }

    /// For a cache that several servers share.
    pub const SHARED: HashSecret = HashSecret([0x6e65_7265_6964_2d63, 0x6163_6865_2d6b_6579]);
}

impl Key {
    pub fn of(request: &Request, model: &str, version: i64, secret: HashSecret, form: KeyForm) -> Key {
        let mut inputs: SmallVec<[&InputTensor; 8]> = request.inputs.iter().collect();
        inputs.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
        let mut hash = SipHash::<1, 3>::new(secret.0);
        hash.write_piece(model.as_bytes());
        hash.write_number(version as u64);
        for input in inputs {
            hash.write_piece(input.name.as_bytes());
            if form == KeyForm::Request {
                hash.write_number(input.datatype as u64);
                hash.write_number(input.shape.len() as u64);
                input.shape.iter().for_each(|dim| hash.write_number(*dim as u64));
            }
            hash.write_number(input.byte_size() as u64);
            input.data.iter().for_each(|piece| hash.write(piece));
        }
        if form == KeyForm::Request {
            write_rest(&mut hash, request);
        }
        let [hash, seal] = hash.finish();
        Key { hash, seal }
    }
}

/// Approximate number of bytes of a request that are hashed: the time is proportional to it.
pub fn hashed_bytes(request: &Request) -> usize {
    let inputs = request.inputs.iter().map(InputTensor::byte_size);
    let parameters = request.parameters.iter().map(|parameter| {
        parameter.name.as_bytes().len()
            + match &parameter.value {
                Value::String(text) => text.as_bytes().len(),
                Value::Bytes(bytes) => bytes.len(),
                Value::Int(_) | Value::Bool(_) | Value::Double(_) => 8,
            }
    });
    inputs.chain(parameters).fold(0, usize::saturating_add)
}

/// Hashes what the model sees beside the inputs.
fn write_rest(hash: &mut SipHash<1, 3>, request: &Request) {
    let mut outputs: SmallVec<[&[u8]; 8]> = request.outputs.iter().map(|output| output.name.as_bytes()).collect();
    outputs.sort_unstable();
    hash.write_number(outputs.len() as u64);
    outputs.into_iter().for_each(|name| hash.write_piece(name));
    let mut parameters: SmallVec<[&Parameter; 8]> = request.parameters.iter().collect();
    // Stable: for equal names the order counts.
    parameters.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    hash.write_number(parameters.len() as u64);
    for Parameter { name, value } in parameters {
        hash.write_piece(name.as_bytes());
        match value {
            Value::String(text) => hash.write_tagged(0, text.as_bytes()),
            Value::Int(number) => hash.write_tagged(1, &number.to_le_bytes()),
            Value::Bool(is) => hash.write_tagged(2, &[u8::from(*is)]),
            Value::Double(number) => hash.write_tagged(3, &number.to_bits().to_le_bytes()),
            Value::Bytes(bytes) => hash.write_tagged(4, bytes),
        }
    }
    match &request.correlation_id {
        CorrelationId::None => hash.write_tagged(0, &[]),
        CorrelationId::Number(number) => hash.write_tagged(1, &number.to_le_bytes()),
        CorrelationId::Text(text) => hash.write_tagged(2, text.as_bytes()),
    }
    hash.write_number(u64::from(request.flags));
    hash.write_number(request.queueing.timeout_us);
}

/// SipHash with `C` rounds for each word and `D` at the end, in its form with 128 bits of result (Aumasson and
/// Bernstein, "SipHash: a fast short-input PRF"). The standard library has SipHash too, but promises no stable result,
/// and has no second half.
struct SipHash<const C: usize, const D: usize> {
    v: [u64; 4],
    /// Bytes that make no whole word yet, the first one lowest.
    tail: u64,
    tail_len: usize,
    len: u64,
}

impl<const C: usize, const D: usize> SipHash<C, D> {
    fn new([k0, k1]: [u64; 2]) -> SipHash<C, D> {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        SipHash { v, tail: 0, tail_len: 0, len: 0 }
    }

    fn round(v: &mut [u64; 4]) {
        let [mut a, mut b, mut c, mut d] = *v;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        *v = [a, b, c, d];
    }

    fn word(v: &mut [u64; 4], word: u64) {
        v[3] ^= word;
        (0..C).for_each(|_| Self::round(v));
        v[0] ^= word;
    }

    /// Hashes bytes after their length.
    fn write_piece(&mut self, bytes: &[u8]) {
        self.write_number(bytes.len() as u64);
        self.write(bytes);
    }

    /// Hashes a value of one of several kinds.
    fn write_tagged(&mut self, kind: u8, bytes: &[u8]) {
        self.write(&[kind]);
        self.write_piece(bytes);
    }

    fn write_number(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }

    fn write(&mut self, mut bytes: &[u8]) {
        self.len = self.len.wrapping_add(bytes.len() as u64);
        if self.tail_len > 0 {
            let taken = bytes.len().min(8 - self.tail_len);
            let (head, rest) = bytes.split_at(taken);
            self.push_tail(head);
            bytes = rest;
            if self.tail_len < 8 {
                return;
            }
            let word = std::mem::take(&mut self.tail);
            self.tail_len = 0;
            Self::word(&mut self.v, word);
        }
        let (words, rest) = bytes.as_chunks::<8>();
        // On a copy: the compiler keeps it in registers.
        let mut v = self.v;
        for word in words {
            Self::word(&mut v, u64::from_le_bytes(*word));
        }
        self.v = v;
        self.push_tail(rest);
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.tail |= u64::from(*byte) << (8 * self.tail_len);
            self.tail_len += 1;
        }
    }

    fn finish(mut self) -> [u64; 2] {
        let last = (self.len << 56) | self.tail;
        Self::word(&mut self.v, last);
        let v = &mut self.v;
        let half = |v: &mut [u64; 4], at: usize, mark: u64| {
            v[at] ^= mark;
            (0..D).for_each(|_| Self::round(v));
            v[0] ^ v[1] ^ v[2] ^ v[3]
        };
        let first = half(v, 2, 0xee);
        [first, half(v, 1, 0xdd)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::Slice;
    use nereid_request::{Completion, DataType, Delivery, Parameters, RequestedOutput, Shape, Sink, Text};

    /// The first vectors of the reference implementation, for 2 and 4 rounds.
    #[test]
    fn the_hash_is_siphash() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let result = |bytes: &[u8]| {
            let mut hash = SipHash::<2, 4>::new(key);
            hash.write(bytes);
            let [first, second] = hash.finish();
            [first.to_le_bytes(), second.to_le_bytes()].concat()
        };
        let expected = [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93];
        assert_eq!(result(b""), expected);
        let expected = [0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45];
        assert_eq!(result(&[0]), expected);
    }

    #[test]
    fn pieces_make_no_difference() {
        let bytes: Vec<u8> = (0..200u8).collect();
        let whole = {
            let mut hash = SipHash::<1, 3>::new([1, 2]);
            hash.write(&bytes);
            hash.finish()
        };
        for at in 0..bytes.len() {
            for step in [1, 3, 8, 9] {
                let mut hash = SipHash::<1, 3>::new([1, 2]);
                hash.write(&bytes[..at]);
                bytes[at..].chunks(step).for_each(|piece| hash.write(piece));
                assert_eq!(hash.finish(), whole, "cut at {at}, pieces of {step}");
            }
        }
    }

    struct Nowhere;

    impl Sink for Nowhere {
        fn deliver(&self, _key: u64, _delivery: Delivery) {}

        fn allocate(&self, _key: u64, len: usize) -> Result<nereid_memory::BlockMut, nereid_memory::Exhausted> {
            Ok(nereid_memory::BlockMut::unpooled(len))
        }
    }

    fn request(inputs: &[(&str, &[&[u8]])]) -> Request {
        let mut request = Request::new(Completion::new(std::sync::Arc::new(Nowhere), 0));
        for (name, pieces) in inputs {
            let mut input = InputTensor::new(Text::from(*name), DataType::Uint8, Shape::new());
            input.data.extend(pieces.iter().map(|piece| Slice::copy_of(piece)));
            request.inputs.push(input);
        }
        request
    }

    /// All that the model sees makes a difference, and nothing else does.
    #[test]
    fn the_key_depends_on_all_that_the_model_sees() {
        let key = |request: &Request| Key::of(request, "m", 1, HashSecret([5, 6]), KeyForm::Request);
        let number = |name: &str, value: Value| (Text::from(name), value);
        let base = |order: bool| {
            let mut request = request(&[("A", &[b"abcdefgh"]), ("B", &[b"xy"])]);
            request.inputs.iter_mut().for_each(|input| input.shape = Shape::from_slice(&[2, 1]));
            let mut outputs = ["O", "P"].map(|name| RequestedOutput { name: Text::from(name), index: 0 });
            let mut parameters = [
                number("temperature", Value::Double(0.1)),
                number("n", Value::Int(1)),
                number("s", Value::String("1".into())),
            ];
            if order {
                request.inputs.reverse();
                outputs.reverse();
                parameters.reverse();
            }
            request.outputs.extend(outputs);
            parameters.into_iter().for_each(|(name, value)| request.parameters.push(name, value));
            request
        };
        let mut same = base(true);
        same.id = Text::from("id");
        same.queueing.priority = 3;
        assert_eq!(key(&base(false)), key(&same), "order, id and place in the queue");
        type Change<'a> = (&'a str, &'a dyn Fn(&mut Request));
        let set = |at: usize, value: Value| {
            move |request: &mut Request| {
                let mut all: Vec<Parameter> = request.parameters.iter().cloned().collect();
                all[at].value = value.clone();
                request.parameters = Parameters::default();
                all.into_iter().for_each(|one| request.parameters.push(one.name, one.value));
            }
        };
        let changes: [Change<'_>; 13] = [
            ("shape", &|request| request.inputs[0].shape = Shape::from_slice(&[1, 2])),
            ("rank", &|request| request.inputs[0].shape = Shape::from_slice(&[2])),
            ("type", &|request| request.inputs[0].datatype = DataType::Int8),
            ("fewer outputs", &|request| drop(request.outputs.pop())),
            ("other outputs", &|request| request.outputs[0].name = Text::from("Q")),
            ("temperature", &set(0, Value::Double(0.9))),
            ("number", &set(1, Value::Int(2))),
            ("type of a parameter", &set(2, Value::Int(1))),
            ("flag", &set(1, Value::Bool(true))),
            ("one more", &|request| request.parameters.push(Text::from("x"), Value::Bytes(Slice::copy_of(b"")))),
            ("sequence", &|request| request.correlation_id = CorrelationId::Number(7)),
            ("named sequence", &|request| request.correlation_id = CorrelationId::Text("7".into())),
            ("timeout", &|request| request.queueing.timeout_us = 1),
        ];
        let mut keys = vec![key(&base(false))];
        for (what, change) in changes {
            let mut request = base(false);
            change(&mut request);
            let key = key(&request);
            assert!(!keys.contains(&key), "{what}");
            keys.push(key);
        }
    }

    /// contract/schedulers.md section 8, row "key".
    #[test]
    fn the_key_of_triton_depends_on_model_version_names_and_bytes_alone() {
        let secret = HashSecret([5, 6]);
        let of = |request: &Request, model: &str, version: i64, secret: HashSecret| {
            Key::of(request, model, version, secret, KeyForm::Triton)
        };
        let key = |request: &Request| of(request, "m", 1, secret);
        let base = request(&[("A", &[b"abc"]), ("B", &[b""])]);
        let mut same = request(&[("B", &[]), ("A", &[b"a", b"", b"bc"])]);
        assert_eq!(key(&base), key(&same), "order and pieces of the inputs");
        same.id = Text::from("id");
        same.queueing.priority = 3;
        same.parameters.push(Text::from("p"), Value::Int(1));
        same.inputs[0].shape.push(7);
        same.inputs[0].datatype = DataType::Bytes;
        same.outputs.push(RequestedOutput { name: Text::from("O"), index: 0 });
        assert_eq!(key(&base), key(&same), "id, parameters, shapes, types, outputs");
        for other in [
            request(&[("A", &[b"abd"]), ("B", &[b""])]),
            request(&[("A", &[b"ab"]), ("B", &[b"c"])]),
            request(&[("A", &[b"abc"])]),
            request(&[("Aa", &[b"bc"]), ("B", &[b""])]),
            request(&[("A", &[b"abc"]), ("C", &[b""])]),
        ] {
            assert_ne!(key(&base), key(&other), "{:?}", other.inputs);
        }
        assert_ne!(key(&base), of(&base, "n", 1, secret));
        assert_ne!(key(&base), of(&base, "m", 2, secret));
        assert_ne!(key(&base).hash, of(&base, "m", 1, HashSecret([5, 7])).hash);
        assert_ne!(HashSecret::random().0, HashSecret::random().0);
    }
}
