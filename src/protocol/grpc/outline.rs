//! The coarse structure of a ModelInferRequest that is all there.
//!
//! Clients send the same request again and again with another id and other contents. Where the fields come in the
//! order of their numbers, as every encoder writes them, everything else is two runs of bytes, and equal runs mean
//! equal requests.

use super::varint::{self, Decoded};

/// The parts of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline<'a> {
    /// The model's name and version.
    pub model: &'a [u8],
    /// Empty where there is none.
    pub id: &'a [u8],
    /// Parameters, inputs and requested outputs.
    pub tensors: &'a [u8],
    /// The fields of raw contents.
    raw: &'a [u8],
}

/// Keys of the fields, all of which hold bytes.
mod key {
    pub const MODEL_VERSION: u8 = 2 << 3 | 2;
    pub const MODEL_NAME: u8 = 1 << 3 | 2;
    pub const ID: u8 = 3 << 3 | 2;
    pub const OUTPUTS: u8 = 6 << 3 | 2;
    pub const RAW: u8 = 7 << 3 | 2;
}

impl<'a> Outline<'a> {
    /// `None` for messages that are put together in another way, or broken.
    pub fn of(message: &'a [u8]) -> Option<Outline<'a>> {
        let (mut rest, mut last) = (message, 0);
        let (mut id, mut id_at, mut tensors_at, mut raw_at) = (&message[..0], None, None, None);
        while let Some(&key) = rest.first() {
            let at = message.len() - rest.len();
            // Two of these are legal, but no encoder writes them.
            if key < last || (key == last && key <= key::ID) {
                return None;
            }
            match key {
                key::MODEL_NAME | key::MODEL_VERSION => {}
                key::ID => id_at = Some(at),
                key::RAW => {
                    raw_at.get_or_insert(at);
                }
                _ if key <= key::OUTPUTS && key & 7 == 2 => {
                    tensors_at.get_or_insert(at);
                }
                _ => return None,
            }
            last = key;
            let (value, behind) = bytes(rest.get(1..)?)?;
            if key == key::ID {
                id = value;
            }
            rest = behind;
        }
        let raw_at = raw_at.unwrap_or(message.len());
        let tensors_at = tensors_at.unwrap_or(raw_at);
        let model = message.get(..id_at.unwrap_or(tensors_at))?;
        Some(Outline { model, id, tensors: message.get(tensors_at..raw_at)?, raw: message.get(raw_at..)? })
    }

    /// Raw contents in order.
    pub fn contents(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.raw;
        std::iter::from_fn(move || {
            let (contents, behind) = bytes(rest.get(1..)?)?;
            rest = behind;
            Some(contents)
        })
    }

    /// Bytes of what equal requests have in common.
    pub fn head_len(&self) -> usize {
        self.model.len() + self.tensors.len()
    }

    /// Equal for requests that differ in nothing but id and contents.
    #[inline]
    pub fn hash(&self) -> u64 {
        mix(mix(self.head_len() as u64, self.model), self.tensors)
    }
}

/// A length and so many bytes.
#[inline]
fn bytes(from: &[u8]) -> Option<(&[u8], &[u8])> {
    let Decoded::Value(len, taken) = varint::decode(from) else { return None };
    from.get(taken..)?.split_at_checked(usize::try_from(len).ok()?)
}

fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
    }
    for &byte in rest {
        hash = (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(FACTOR);
    }
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use nereid_wire::inference::ModelInferRequest;
    use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};

    fn message(id: &str, contents: &[&'static [u8]]) -> ModelInferRequest {
        ModelInferRequest {
            model_name: "a model".into(),
            model_version: "7".into(),
            id: id.into(),
            inputs: vec![InferInputTensor { name: "x".repeat(200), shape: vec![1, 300], ..Default::default() }],
            outputs: vec![InferRequestedOutputTensor { name: "y".into(), ..Default::default() }],
            raw_input_contents: contents.iter().map(|contents| (*contents).into()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn requests_that_differ_in_id_and_contents_have_the_same_head() {
        let first = message("", &[b"abc", b""]).encode_to_vec();
        let first = Outline::of(&first).unwrap();
        assert_eq!((first.id, first.contents().collect::<Vec<_>>()), (&b""[..], vec![&b"abc"[..], b""]));
        for (id, contents) in [("1", vec![]), ("a longer id", vec![&[7u8; 3000][..]])] {
            let other = message(id, &contents).encode_to_vec();
            let other = Outline::of(&other).unwrap();
            assert_eq!((other.model, other.tensors, other.hash()), (first.model, first.tensors, first.hash()));
            assert_eq!((other.id, other.contents().collect::<Vec<_>>()), (id.as_bytes(), contents));
        }
        let mut different = message("", &[]);
        different.inputs[0].shape = vec![1, 301];
        let different = different.encode_to_vec();
        let different = Outline::of(&different).unwrap();
        assert!(different.tensors != first.tensors && different.hash() != first.hash());
        assert_eq!(Outline::of(b"").map(|empty| (empty.head_len(), empty.contents().count())), Some((0, 0)));
    }

    #[test]
    fn what_is_put_together_in_another_way_has_no_outline() {
        let whole = message("id", &[b"abc"]).encode_to_vec();
        for cut in 1..whole.len() {
            // What is cut between two fields is a message too.
            if let Some(outline) = Outline::of(&whole[..cut]) {
                assert!(ModelInferRequest::decode(&whole[..cut]).is_ok(), "{cut}: {outline:?}");
            }
        }
        let cases: [&[u8]; 9] = [
            b"\x12\x01v\x0a\x01n",
            b"\x0a\x01n\x0a\x01n",
            b"\x1a\x01a\x1a\x01b",
            b"\x3a\x01a\x1a\x01b",
            b"\x3a\x01a\x42\x01b",
            b"\x08\x01",
            b"\x0a",
            b"\x0a\x02a",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        ];
        for message in cases {
            assert_eq!(Outline::of(message), None, "{}", message.escape_ascii());
        }
    }
}
