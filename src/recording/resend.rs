//! A recorded request as it can be sent again: as its body has it, or with made contents where none were recorded.

use super::format::{BODY_BYTES_MAX, Protocol, Record};
use super::message::{Infer, MessageError, Tensor};
use super::values::{made_byte_size, made_contents};

/// What stands in for contents that were not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    Zero,
    /// Numbers that follow from this seed and the number of the record.
    Random(u64),
}

/// Why a recorded request cannot be sent again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResendError {
    #[error("it was no valid request, and its body was not recorded")]
    Malformed,
    #[error("its input '{0}' was in shared memory")]
    SharedMemory(String),
    #[error("neither its contents nor its inputs were recorded")]
    NoInputs,
    /// Its body is the contents of an input that the server knows.
    #[error("it was a raw binary request, which names no inputs")]
    RawBinary,
    #[error("contents of input '{input}' cannot be made: {error}")]
    Made { input: String, error: MessageError },
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl Record {
    /// Whether there is a request that can be sent again; what its body holds is not looked at.
    pub fn check_resend(&self) -> Result<(), ResendError> {
        let request = &self.head.request;
        if request.malformed {
            return Err(ResendError::Malformed);
        }
        match request.inputs.iter().find(|input| input.shared_memory) {
            Some(input) => Err(ResendError::SharedMemory(input.name.clone())),
            None => Ok(()),
        }
    }

    /// Of a body over HTTP, the bytes that are JSON, where binary tensors follow them.
    pub fn json_len(&self) -> Option<usize> {
        self.head.request.json_byte_size.and_then(|len| usize::try_from(len).ok())
    }

    /// The request in the form of neither protocol. `number`: of the record in its file, from 1, by which random
    /// contents differ.
    pub fn infer(&self, number: u64, contents: Contents) -> Result<Infer, ResendError> {
        self.check_resend()?;
        if self.head.protocol == Protocol::Http && self.head.request.json_byte_size == Some(0) {
            return Err(ResendError::RawBinary);
        }
        let infer = match &self.request_body {
            Some(body) => match self.head.protocol {
                Protocol::Http => Infer::from_http(body, self.json_len()),
                Protocol::Grpc => Infer::from_grpc(body.clone().into()),
            }?,
            None => self.made(number, contents)?,
        };
        Ok(Infer { model: self.head.model.clone(), version: self.head.version.clone(), ..infer })
    }

    /// Bytes of the contents that [`Record::infer`] makes, or why it cannot; 0 where a body has them.
    pub fn made_bytes(&self) -> Result<u64, ResendError> {
        let inputs = if self.request_body.is_some() { &[][..] } else { &self.head.request.inputs };
        let mut bytes_left = BODY_BYTES_MAX;
        for input in inputs {
            let bytes = made_byte_size(&input.datatype, &input.shape, input.byte_size, bytes_left)
                .map_err(|error| ResendError::Made { input: input.name.clone(), error })?;
            bytes_left = bytes_left.saturating_sub(bytes);
        }
        Ok(BODY_BYTES_MAX.saturating_sub(bytes_left))
    }

    /// A request with made contents for the recorded shapes.
    fn made(&self, number: u64, contents: Contents) -> Result<Infer, ResendError> {
        let facts = &self.head.request;
        if facts.inputs.is_empty() {
            return Err(ResendError::NoInputs);
        }
        let (mut inputs, mut bytes_left) = (Vec::new(), BODY_BYTES_MAX);
        for (at, input) in facts.inputs.iter().enumerate() {
            let seed = match contents {
                Contents::Zero => None,
                Contents::Random(seed) => {
                    Some(seed.wrapping_add(number).wrapping_mul(0x9e37_79b9).wrapping_add(at as u64))
                }
            };
            let contents = made_contents(&input.datatype, &input.shape, input.byte_size, seed, bytes_left)
                .map_err(|error| ResendError::Made { input: input.name.clone(), error })?;
            bytes_left = bytes_left.saturating_sub(contents.len() as u64);
            let (name, datatype, shape) = (input.name.clone(), input.datatype.clone(), input.shape.clone());
            inputs.push(Tensor { name, datatype, shape, contents: Some(contents), ..Tensor::default() });
        }
        let outputs = facts.outputs.iter().map(|name| (name.clone(), Default::default())).collect();
        Ok(Infer { inputs, outputs, ..Infer::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{RecordHead, RequestFacts, TensorFacts};

    fn record(body: Option<&[u8]>) -> Record {
        let input =
            TensorFacts { name: "x".to_owned(), datatype: "INT8".to_owned(), shape: vec![2], ..TensorFacts::default() };
        let request = RequestFacts { inputs: vec![input], outputs: vec!["y".to_owned()], ..RequestFacts::default() };
        let (model, version) = ("m".to_owned(), "3".to_owned());
        let head = RecordHead { at_ns: 0, took_ns: 0, protocol: Protocol::Http, model, version, request, answer: None };
        Record { head, request_body: body.map(<[u8]>::to_vec), answer_body: None }
    }

    #[test]
    fn contents_are_those_of_the_body_or_made() {
        let json = br#"{"parameters":{"a":1},"inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}]}"#;
        let sent = record(Some(json)).infer(1, Contents::Zero).unwrap();
        assert_eq!((&*sent.model, &*sent.version, sent.parameters.len()), ("m", "3", 1));
        assert_eq!(sent.inputs[0].contents.as_deref(), Some(&[1, 2][..]));
        let mut over_grpc = record(Some(&sent.to_grpc().unwrap()));
        over_grpc.head.protocol = Protocol::Grpc;
        assert_eq!(over_grpc.infer(1, Contents::Zero), Ok(sent));
        let made = record(None).infer(1, Contents::Zero).unwrap();
        assert_eq!((made.inputs[0].contents.as_deref(), &*made.outputs[0].0), (Some(&[0, 0][..]), "y"));
        let mut long = record(None);
        long.head.request.inputs[0].shape = vec![64];
        assert_eq!((long.made_bytes(), record(Some(json)).made_bytes()), (Ok(64), Ok(0)));
        let numbers = |number| long.infer(number, Contents::Random(1)).unwrap().inputs.remove(0).contents;
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn what_cannot_be_sent_again_says_why() {
        let mut shared = record(Some(b"{}"));
        shared.head.request.inputs[0].shared_memory = true;
        assert_eq!(shared.infer(1, Contents::Zero), Err(ResendError::SharedMemory("x".to_owned())));
        let mut malformed = record(None);
        malformed.head.request.malformed = true;
        assert_eq!(malformed.infer(1, Contents::Zero), Err(ResendError::Malformed));
        let mut open = record(None);
        open.head.request.inputs[0].shape = vec![-1];
        assert!(open.infer(1, Contents::Zero).unwrap_err().to_string().contains("input 'x' cannot be made"));
        assert_eq!(open.made_bytes(), open.infer(1, Contents::Zero).map(|_| 0));
        open.head.request.inputs.clear();
        assert_eq!(open.infer(1, Contents::Zero), Err(ResendError::NoInputs));
        for body in [Some(&b"ab"[..]), None] {
            let mut raw = record(body);
            raw.head.request.inputs.clear();
            raw.head.request.json_byte_size = Some(0);
            assert_eq!(raw.infer(1, Contents::Zero), Err(ResendError::RawBinary));
        }
        assert!(matches!(record(Some(b"[")).infer(1, Contents::Zero), Err(ResendError::Message(_))));
    }
}
