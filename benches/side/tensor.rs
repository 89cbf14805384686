//! The tensor that one slot sends, in each of the protocols' forms, and its expected answer.

use std::net::SocketAddr;
use std::sync::Arc;

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::grpc::Value as Parameter;
use nereid_protocol::grpc::{Encoder, InferRequestParts, InputTensor, PREFIX_BYTES, RequestedOutput};
use nereid_protocol::http1::{RequestBody, RequestHead};
use nereid_wire::inference::{ModelInferResponse, ModelStreamInferResponse};
use prost::Message;
use serde_json::{Value, json};

use super::http::JSON_LENGTH;
use super::region::Region;
use super::request::UNREPEATED;

#[derive(Clone)]
pub struct Tensor {
    model: &'static str,
    shape: &'static [i64],
    data: Vec<u8>,
    /// The shared memory of the tensor and its answer, if they are not sent on the connection.
    region: Option<Arc<Region>>,
    /// Whether no two requests are to have the same bytes.
    unrepeated: bool,
}

impl Tensor {
    /// Numbers that no other slot sends, exact as FP32 and in JSON.
    pub fn new(model: &'static str, shape: &'static [i64], slot: usize) -> Tensor {
        let count: i64 = shape.iter().product();
        let data = (0..count).flat_map(|i| ((slot as f32) * 64.0 + ((i % 251) as f32) / 4.0).to_le_bytes()).collect();
        Tensor { model, shape, data, region: None, unrepeated: false }
    }

    /// The same with a parameter that has another value in each request.
    pub fn unrepeated(self) -> Tensor {
        Tensor { unrepeated: true, ..self }
    }

    /// The same in shared memory.
    pub fn in_region(mut self) -> Result<Tensor, String> {
        let region = Region::new(&self.data).map_err(|error| format!("shared memory: {error}"))?;
        self.region = Some(Arc::new(region));
        Ok(self)
    }

    /// Registers its memory with the server at that HTTP port.
    pub fn register(&self, server: SocketAddr) -> Result<(), String> {
        self.region.as_ref().map_or(Ok(()), |region| region.register(server, 2 * self.data.len()))
    }

    fn numbers(&self) -> impl Iterator<Item = f32> {
        self.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }

    /// A framed ModelInferRequest.
    pub fn grpc_request(&self, id: &str) -> Slice {
        let data = Slice::copy_of(&self.data);
        let name = self.region.as_ref().map(|region| region.name.as_str());
        let place = |offset: usize| -> Vec<(&str, Parameter<'_>)> {
            let Some(name) = name else { return Vec::new() };
            vec![
                ("shared_memory_region", Parameter::String(name)),
                ("shared_memory_offset", Parameter::Int64(offset as i64)),
                ("shared_memory_byte_size", Parameter::Int64(self.data.len() as i64)),
            ]
        };
        let (from, to) = (place(0), place(self.data.len()));
        let input = InputTensor {
            name: "INPUT0",
            datatype: "FP32",
            shape: self.shape,
            parameters: &from,
            data: Some(&data).filter(|_| name.is_none()),
        };
        let output = name.map(|_| RequestedOutput { name: "OUTPUT0", parameters: &to });
        let parts = InferRequestParts {
            model_name: self.model,
            model_version: "",
            id,
            parameters: self.unrepeated.then_some(("tag", Parameter::String(UNREPEATED))).into_iter(),
            inputs: std::iter::once(input),
            outputs: output.into_iter(),
        };
        let mut message = Gather::new();
        let encoded = Encoder::new().infer_request(&parts, &Pool::new(64 << 20), &mut message);
        assert_eq!(encoded, Ok(()), "no tensor of this bench exceeds a message");
        Slice::copy_of(&message.to_vec())
    }

    /// Head and body; the tensor behind the JSON or inside of it.
    pub fn http_request(&self, binary: bool) -> Slice {
        let mut input = json!({"name": "INPUT0", "datatype": "FP32", "shape": self.shape});
        let mut output = json!({"name": "OUTPUT0"});
        if let Some(region) = &self.region {
            let (name, size) = (&region.name, self.data.len());
            let place = |offset: usize| {
                json!({
                    "shared_memory_region": name,
                    "shared_memory_offset": offset,
                    "shared_memory_byte_size": size,
                })
            };
            (input["parameters"], output["parameters"]) = (place(0), place(size));
        } else if binary {
            input["parameters"] = json!({"binary_data_size": self.data.len()});
            output["parameters"] = json!({"binary_data": true});
        } else {
            input["data"] = self.numbers().collect();
        }
        let mut header = json!({"inputs": [input], "outputs": [output]});
        if self.unrepeated {
            header["parameters"] = json!({"tag": UNREPEATED});
        }
        let header = header.to_string();
        let tail: &[u8] = if binary { &self.data } else { &[] };
        let length = header.len().to_string();
        let fields = [("Content-Type", "application/octet-stream"), (JSON_LENGTH, length.as_str())];
        let json_fields = [("Content-Type", "application/json")];
        let head = RequestHead {
            method: "POST",
            target: &format!("/v2/models/{}/infer", self.model),
            host: "127.0.0.1",
            headers: if binary { &fields } else { &json_fields },
            body: RequestBody::Length(header.len() + tail.len()),
        };
        let mut request = Vec::new();
        head.encode(&mut request);
        request.extend_from_slice(header.as_bytes());
        request.extend_from_slice(tail);
        Slice::copy_of(&request)
    }

    /// A framed ModelInferResponse that must carry this tensor.
    pub fn check_unary(&self, frame: &[u8]) -> Result<(), String> {
        let response = ModelInferResponse::decode(message_of(frame)?).map_err(|error| error.to_string())?;
        self.check_response(&response)
    }

    /// The message of a ModelStreamInferResponse.
    pub fn check_streamed(&self, message: &[u8]) -> Result<(), String> {
        let response = ModelStreamInferResponse::decode(message).map_err(|error| error.to_string())?;
        if !response.error_message.is_empty() {
            return Err(response.error_message);
        }
        self.check_response(&response.infer_response.ok_or("a streamed answer without a response")?)
    }

    fn check_response(&self, response: &ModelInferResponse) -> Result<(), String> {
        let [output] = &response.outputs[..] else { return Err(format!("{} outputs", response.outputs.len())) };
        let [data] = &response.raw_output_contents[..] else {
            return Err(format!("{} raw outputs", response.raw_output_contents.len()));
        };
        let described = (response.model_name.as_str(), output.name.as_str(), output.datatype.as_str());
        if described != (self.model, "OUTPUT0", "FP32") || output.shape != self.shape {
            return Err(format!("the answer is {described:?} of shape {:?}", output.shape));
        }
        if let Some(region) = &self.region {
            return if data.is_empty() { self.check_region(region) } else { Err("bytes beside the region".to_owned()) };
        }
        if data[..] != self.data[..] { Err("the tensor came back changed".to_owned()) } else { Ok(()) }
    }

    fn check_region(&self, region: &Region) -> Result<(), String> {
        match region.holds_answer(&self.data)? {
            true => Ok(()),
            false => Err("the tensor came back changed".to_owned()),
        }
    }

    /// Checks an HTTP answer: the value of [`JSON_LENGTH`] (empty if the field is missing), a line break, and the body.
    pub fn check_http(&self, noted: &[u8], binary: bool) -> Result<(), String> {
        let line = noted.iter().position(|&byte| byte == b'\n').ok_or("nothing noted")?;
        let (length, body) = (&noted[..line], &noted[line + 1..]);
        let length: Option<usize> = str::from_utf8(length).ok().and_then(|length| length.parse().ok());
        if binary != length.is_some() {
            return Err(format!("{JSON_LENGTH} is {length:?}"));
        }
        let (json, tail) = body.split_at_checked(length.unwrap_or(body.len())).ok_or("the answer ends in its JSON")?;
        let answer: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let output = &answer["outputs"][0];
        let described = [&answer["model_name"], &output["name"], &output["datatype"], &output["shape"]];
        if described != [&json!(self.model), &json!("OUTPUT0"), &json!("FP32"), &json!(self.shape)] {
            return Err(format!("the answer is {answer}"));
        }
        if let Some(region) = &self.region {
            return self.check_region(region);
        }
        let same = if binary {
            tail == self.data
        } else {
            let numbers = output["data"].as_array().ok_or("no data in the answer")?;
            numbers.iter().map(Value::as_f64).eq(self.numbers().map(|number| Some(f64::from(number))))
        };
        if same { Ok(()) } else { Err("the tensor came back changed".to_owned()) }
    }
}

/// The message of a frame, if it is one whole uncompressed message.
fn message_of(frame: &[u8]) -> Result<&[u8], String> {
    let (prefix, message) =
        frame.split_first_chunk::<PREFIX_BYTES>().ok_or_else(|| format!("{} bytes are no message", frame.len()))?;
    let [flag, a, b, c, d] = *prefix;
    if flag != 0 || u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(format!("prefix {prefix:?} before {} bytes", message.len()));
    }
    Ok(message)
}
