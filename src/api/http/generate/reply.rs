//! One response as the object that `generate` answers (contract/http.md section 7), written in bounded steps.

use std::sync::Arc;

use crate::api::infer::contiguous::contiguous;
use crate::api::infer::http_reply::{array_of, misfit};
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::json::{ArrayWriter, GatherSink, Writer};
use nereid_request::{Response, Status, Value, element_count};
use nereid_scheduler::ServedModel;

/// Elements that one step writes.
const STEP: usize = 4096;

/// An object being written.
pub struct Encoder {
    response: Response,
    /// What is still to be written, in reverse order.
    members: Vec<Member>,
    /// The output that is being written, by its index.
    array: Option<(usize, ArrayWriter, Slice)>,
    json: Gather,
    is_open: bool,
}

/// A member's name and where its value comes from.
struct Member {
    name: Vec<u8>,
    source: Source,
}

enum Source {
    Text(Vec<u8>),
    Parameter(usize),
    Output(usize),
}

impl Encoder {
    pub fn new(response: Response, model: &Arc<ServedModel>) -> Result<Encoder, Status> {
        Encoder::of(response, &model.name, model.version)
    }

    fn of(response: Response, model: &str, version: i64) -> Result<Encoder, Status> {
        let mut members = Vec::with_capacity(3 + response.parameters.len() + response.outputs.len());
        let mut add = |name: &[u8], source| members.push(Member { name: name.to_vec(), source });
        if !response.id.is_empty() {
            add(b"id", Source::Text(response.id.as_bytes().to_vec()));
        }
        add(b"model_name", Source::Text(model.as_bytes().to_vec()));
        add(b"model_version", Source::Text(itoa::Buffer::new().format(version).as_bytes().to_vec()));
        for (index, parameter) in response.parameters.iter().enumerate() {
            if let Value::Bytes(_) = &parameter.value {
                return Err(Status::unsupported(format!(
                    "Response parameter '{}' has type 'TRITONSERVER_PARAMETER_BYTES' which is not currently supported",
                    parameter.name
                )));
            }
            add(parameter.name.as_bytes(), Source::Parameter(index));
        }
        for (index, output) in response.outputs.iter().enumerate() {
            add(output.name.as_bytes(), Source::Output(index));
        }
        // Of those with the same name the first one stays: the order of equals is kept.
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members.dedup_by(|later, first| later.name == first.name);
        members.reverse();
        Ok(Encoder { response, members, array: None, json: Gather::new(), is_open: false })
    }

    /// Writes a bounded part; true when the object is complete.
    pub fn step(&mut self, pool: &Pool) -> Result<bool, Status> {
        pool.check()?;
        let mut budget = STEP;
        while budget > 0 {
            if let Some((index, array, data)) = &mut self.array {
                let mut sink = GatherSink { gather: &mut self.json, pool };
                let name = self.response.outputs.get(*index).map(|output| &output.name);
                if !array.step(data, &mut sink, budget).map_err(|_| misfit(array, name))? {
                    return Ok(false);
                }
                budget = budget.saturating_sub(1 + data.len() / 8);
                self.array = None;
                continue;
            }
            let Some(member) = self.members.pop() else {
                self.json.put(pool, b"}");
                return Ok(true);
            };
            self.write(member, pool)?;
            budget -= 1;
        }
        Ok(false)
    }

    fn write(&mut self, Member { name, source }: Member, pool: &Pool) -> Result<(), Status> {
        self.json.put(pool, if std::mem::replace(&mut self.is_open, true) { b"," } else { b"{" });
        let mut writer = Writer::new(GatherSink { gather: &mut self.json, pool });
        writer.key(name);
        match source {
            Source::Text(text) => writer.string(text),
            Source::Parameter(index) => match self.response.parameters.get(index).map(|parameter| &parameter.value) {
                Some(Value::String(text)) => writer.string(text.as_bytes()),
                Some(Value::Int(int)) => writer.int(*int),
                Some(Value::Bool(bool)) => writer.bool(*bool),
                Some(Value::Double(double)) => writer.double(*double),
                Some(Value::Bytes(_)) | None => writer.null(),
            },
            Source::Output(index) => {
                let Some(output) = self.response.outputs.get(index) else { return Ok(()) };
                let array = array_of(output)?;
                let is_single = element_count(&output.shape) == Some(1);
                let array = if is_single { array.bare() } else { array };
                self.array = Some((index, array, contiguous(output, pool)?));
            }
        }
        Ok(())
    }

    /// The object, once a step has returned true.
    pub fn into_json(self) -> Gather {
        self.json
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use nereid_request::{DataType, OutputTensor, Shape, Text};

    fn output(name: &str, datatype: DataType, shape: &[i64], bytes: &[u8]) -> OutputTensor {
        let data = smallvec![Slice::copy_of(bytes)];
        OutputTensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data, index: 0, on_device: None }
    }

    fn written(response: Response) -> Result<(String, usize), Status> {
        let pool = Pool::new(1 << 24);
        let mut encoder = Encoder::of(response, "m", 3)?;
        let mut steps = 1;
        while !encoder.step(&pool)? {
            steps += 1;
        }
        Ok((String::from_utf8(encoder.into_json().to_vec()).unwrap(), steps))
    }

    #[test]
    fn members_stand_in_the_order_of_their_bytes_and_the_first_definition_wins() {
        let mut response = Response::new(Text::from("r\"1"));
        for (name, value) in [
            ("zeta", Value::Int(-4)),
            ("model_name", Value::String("not me".into())),
            ("Alpha", Value::Double(0.5)),
            ("both", Value::Bool(true)),
            ("both", Value::Bool(false)),
        ] {
            response.parameters.push(name.into(), value);
        }
        response.outputs.push(output("id", DataType::Int8, &[1], &[1]));
        response.outputs.push(output("both", DataType::Int8, &[1], &[1]));
        response.outputs.push(output("Z", DataType::Int8, &[2], &[1, 0xff]));
        let (text, _) = written(response).unwrap();
        let expected =
            r#"{"Alpha":0.5,"Z":[1,-1],"both":true,"id":"r\"1","model_name":"m","model_version":"3","zeta":-4}"#;
        assert_eq!(text, expected);
        assert_eq!(written(Response::default()).unwrap().0, r#"{"model_name":"m","model_version":"3"}"#);
    }

    #[test]
    fn one_element_is_no_array_and_none_is_an_empty_one() {
        let table: &[(DataType, &[i64], &[u8], &str)] = &[
            (DataType::Bool, &[1], &[1], "true"),
            (DataType::Int32, &[1, 1], &7i32.to_le_bytes(), "7"),
            (DataType::Fp32, &[1], &0.1f32.to_le_bytes(), "0.10000000149011612"),
            (DataType::Fp64, &[1], &f64::NAN.to_le_bytes(), "NaN"),
            (DataType::Uint64, &[], &u64::MAX.to_le_bytes(), "18446744073709551615"),
            (DataType::Bytes, &[1], b"\x03\0\0\0a\nb", r#""a\nb""#),
            (DataType::Bytes, &[1], b"\0\0\0\0", r#""""#),
            (DataType::Bytes, &[1, 2], b"\x01\0\0\0a\x02\0\0\0bc", r#"["a","bc"]"#),
            (DataType::Int32, &[0], &[], "[]"),
            (DataType::Bytes, &[2, 0], &[], "[]"),
            (DataType::Int8, &[2, 2], &[1, 2, 3, 4], "[1,2,3,4]"),
        ];
        for (datatype, shape, bytes, expected) in table {
            let mut response = Response::default();
            response.outputs.push(output("A", *datatype, shape, bytes));
            let (text, _) = written(response).unwrap();
            assert_eq!(text, format!(r#"{{"A":{expected},"model_name":"m","model_version":"3"}}"#), "{datatype}");
        }
    }

    #[test]
    fn what_json_cannot_say_is_refused() {
        let refused = |output| {
            let mut response = Response::default();
            response.outputs.push(output);
            written(response).unwrap_err()
        };
        for (datatype, name) in [(DataType::Fp16, "FP16"), (DataType::Bf16, "BF16")] {
            let text =
                format!("sending {name} data via JSON is not supported. Please use the binary data format for output");
            assert_eq!(refused(output("A", datatype, &[1], &[0, 0])), Status::invalid(text));
        }
        let mut response = Response::default();
        response.parameters.push("p".into(), Value::Bytes(Slice::copy_of(b"x")));
        let text = "Response parameter 'p' has type 'TRITONSERVER_PARAMETER_BYTES' which is not currently supported";
        assert_eq!(written(response).unwrap_err(), Status::unsupported(text));
        // A model that violates its own shapes gets an error and breaks nothing.
        for bytes in [&[][..], &[1, 2], &[1, 2, 3], b"\x05\0\0\0a"] {
            let datatype = if bytes.len() == 5 { DataType::Bytes } else { DataType::Int8 };
            assert_eq!(refused(output("A", datatype, &[1], bytes)).code, nereid_request::Code::Internal);
        }
    }

    #[test]
    fn a_long_tensor_takes_several_steps() {
        let mut response = Response::default();
        response.outputs.push(output("A", DataType::Uint8, &[10_000], &[7; 10_000]));
        let (text, steps) = written(response).unwrap();
        assert!(text.starts_with("{\"A\":[7,7,") && text.contains(",7,7],\"model_name\""));
        assert_eq!(text.matches('7').count(), 10_000);
        assert!(steps >= 3, "{steps} steps");
    }
}
