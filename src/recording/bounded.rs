//! Reads messages whose senders choose how many things are in them: a byte of a message may become dozens in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::message::MessageError;

/// Members of a list or an object, and fields of one kind in a message over gRPC.
const MEMBERS_MAX: usize = 4096;
/// Bytes of a message over gRPC that are no raw contents.
const TYPED_BYTES_MAX: usize = 16 << 20;
/// Bytes of JSON whose contents are read: each of its numbers takes many times its bytes until it is in a tensor.
pub const JSON_BYTES_MAX: usize = 64 << 20;

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MEMBERS_MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(member) = members.next_element()? {
            if list.len() == MEMBERS_MAX {
                return Err(A::Error::invalid_length(MEMBERS_MAX + 1, &self));
            }
            list.push(member);
        }
        Ok(list)
    }
}

/// A list that is not too long.
pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(List(PhantomData))
}

/// A value that is no list and no object; those are read over, and null in its place.
struct Scalar;

impl<'de> Visitor<'de> for Scalar {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        while members.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }
}

impl<'de> DeserializeSeed<'de> for Scalar {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MEMBERS_MAX} members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Map<String, Value>, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if map.len() == MEMBERS_MAX {
                return Err(A::Error::invalid_length(MEMBERS_MAX + 1, &self));
            }
            let value = members.next_value_seed(Scalar)?;
            map.insert(name, value);
        }
        Ok(map)
    }
}

/// An object that is not too large, of plain values.
pub fn members<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    from.deserialize_map(Members)
}

/// A number at the front of `bytes`, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

/// Whether a message over gRPC may be decoded: it has few tensors and parameters, and most of its bytes are raw
/// contents, which are `raw`, the number of their field.
pub fn check_message(message: &[u8], raw: u64) -> Result<(), MessageError> {
    let broken = || MessageError::Grpc("it ends too early, or has a field of an unknown kind".to_owned());
    let (mut rest, mut typed_bytes, mut fields) = (message, 0, [0; 16]);
    while !rest.is_empty() {
        let before = rest.len();
        let (tag, behind) = varint(rest).ok_or_else(broken)?;
        let field = tag >> 3;
        let (len, behind) = match tag & 7 {
            0 => (0, varint(behind).ok_or_else(broken)?.1),
            1 => (8, behind),
            2 => varint(behind).ok_or_else(broken)?,
            5 => (4, behind),
            _ => return Err(broken()),
        };
        let len = usize::try_from(len).map_err(|_| broken())?;
        rest = behind.get(len..).ok_or_else(broken)?;
        if field != raw {
            typed_bytes += before - rest.len();
        }
        let count = fields.get_mut(field as usize).ok_or(MessageError::TooLarge)?;
        *count += 1;
        if *count > MEMBERS_MAX || typed_bytes > TYPED_BYTES_MAX {
            return Err(MessageError::TooLarge);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use nereid_wire::inference::ModelInferRequest;
    use nereid_wire::inference::model_infer_request::InferInputTensor;

    #[derive(Debug, Deserialize)]
    struct Read {
        #[serde(default, deserialize_with = "list")]
        list: Vec<i64>,
        #[serde(default, deserialize_with = "members")]
        members: Map<String, Value>,
    }

    #[test]
    fn lists_and_objects_end_somewhere() {
        let read = |text: String| serde_json::from_str::<Read>(&text);
        let text = r#"{"list":[1,2],"members":{"a":1,"b":"c","d":[1,[2]],"e":{"f":null},"g":true,"h":0.5}}"#;
        let small = read(text.to_owned()).unwrap();
        assert_eq!((small.list, small.members.len(), &small.members["d"]), (vec![1, 2], 6, &Value::Null));
        let numbers = |count: usize| vec!["1"; count].join(",");
        assert_eq!(read(format!(r#"{{"list":[{}]}}"#, numbers(MEMBERS_MAX))).unwrap().list.len(), MEMBERS_MAX);
        assert!(read(format!(r#"{{"list":[{}]}}"#, numbers(MEMBERS_MAX + 1))).is_err());
        let members: Vec<String> = (0..=MEMBERS_MAX).map(|at| format!("\"{at}\":0")).collect();
        assert!(read(format!(r#"{{"members":{{{}}}}}"#, members.join(","))).is_err());
    }

    #[test]
    fn messages_are_counted_before_they_are_decoded() {
        let message = |inputs: usize, raw: usize| {
            let inputs = vec![InferInputTensor::default(); inputs];
            let raw_input_contents = vec![vec![0; raw].into()];
            ModelInferRequest { model_name: "m".into(), inputs, raw_input_contents, ..Default::default() }
                .encode_to_vec()
        };
        assert_eq!(check_message(&[], 7), Ok(()));
        assert_eq!(check_message(&message(3, 20 << 20), 7), Ok(()));
        assert_eq!(check_message(&message(3, 20 << 20), 6), Err(MessageError::TooLarge), "an input is not raw");
        assert_eq!(check_message(&message(MEMBERS_MAX, 1), 7), Ok(()));
        assert_eq!(check_message(&message(MEMBERS_MAX + 1, 1), 7), Err(MessageError::TooLarge));
        let whole = message(2, 5);
        assert!(check_message(&whole[..whole.len() - 1], 7).is_err());
        assert!(check_message(&[0xff; 11], 7).is_err());
        assert!(check_message(&[0x0b], 7).is_err());
    }
}
