//! One request in each of the protocols' forms, and its expected answer.

use nereid_memory::Slice;
use nereid_protocol::http1::{RequestBody, RequestHead};
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use prost::Message;
use serde_json::{Value, json};

use super::http::JSON_LENGTH;

/// Before a message: whether it is compressed, and its length.
pub const PREFIX_BYTES: usize = 5;

#[derive(Clone)]
pub struct Named {
    pub name: &'static str,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
    /// As protocols carry it raw.
    pub data: Vec<u8>,
}

#[derive(Clone)]
pub struct Question {
    pub model: &'static str,
    pub inputs: Vec<Named>,
    pub outputs: Vec<Named>,
}

impl Question {
    fn parameterless(tensor: &Named) -> InferInputTensor {
        InferInputTensor {
            name: tensor.name.to_owned(),
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape.clone(),
            ..InferInputTensor::default()
        }
    }

    /// A framed ModelInferRequest.
    pub fn grpc_request(&self) -> Slice {
        let wanted = |output: &Named| InferRequestedOutputTensor {
            name: output.name.to_owned(),
            ..InferRequestedOutputTensor::default()
        };
        let request = ModelInferRequest {
            model_name: self.model.to_owned(),
            inputs: self.inputs.iter().map(Question::parameterless).collect(),
            outputs: self.outputs.iter().map(wanted).collect(),
            raw_input_contents: self.inputs.iter().map(|input| input.data.clone().into()).collect(),
            ..ModelInferRequest::default()
        };
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message);
        Slice::copy_of(&framed)
    }

    /// Head and body, the tensors behind the JSON.
    pub fn http_request(&self) -> Slice {
        let input = |tensor: &Named| {
            json!({
                "name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape,
                "parameters": {"binary_data_size": tensor.data.len()},
            })
        };
        let output = |tensor: &Named| json!({"name": tensor.name, "parameters": {"binary_data": true}});
        let inputs: Vec<Value> = self.inputs.iter().map(input).collect();
        let outputs: Vec<Value> = self.outputs.iter().map(output).collect();
        let header = json!({"inputs": inputs, "outputs": outputs}).to_string();
        let tail: Vec<u8> = self.inputs.iter().flat_map(|input| input.data.iter().copied()).collect();
        let length = header.len().to_string();
        let head = RequestHead {
            method: "POST",
            target: &format!("/v2/models/{}/infer", self.model),
            host: "127.0.0.1",
            headers: &[("Content-Type", "application/octet-stream"), (JSON_LENGTH, length.as_str())],
            body: RequestBody::Length(header.len() + tail.len()),
        };
        let mut request = Vec::new();
        head.encode(&mut request);
        request.extend_from_slice(header.as_bytes());
        request.extend_from_slice(&tail);
        Slice::copy_of(&request)
    }

    /// A framed ModelInferResponse that must carry the outputs.
    pub fn check_unary(&self, frame: &[u8]) -> Result<(), String> {
        let message = frame.get(PREFIX_BYTES..).ok_or_else(|| format!("{} bytes are no message", frame.len()))?;
        self.check_response(&ModelInferResponse::decode(message).map_err(|error| error.to_string())?)
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
        if response.outputs.len() != self.outputs.len() || response.raw_output_contents.len() != self.outputs.len() {
            return Err(format!("{} outputs", response.outputs.len()));
        }
        for expected in &self.outputs {
            let at = response.outputs.iter().position(|output| output.name == expected.name);
            let at = at.ok_or_else(|| format!("no output {}", expected.name))?;
            let output = &response.outputs[at];
            if output.datatype != expected.datatype || output.shape != expected.shape {
                return Err(format!("{} is {} of shape {:?}", output.name, output.datatype, output.shape));
            }
            if response.raw_output_contents[at][..] != expected.data[..] {
                return Err(format!("{} has other elements than expected", output.name));
            }
        }
        Ok(())
    }

    /// The value of [`JSON_LENGTH`], a line break, and the body of an HTTP answer.
    pub fn check_http(&self, noted: &[u8]) -> Result<(), String> {
        let line = noted.iter().position(|&byte| byte == b'\n').ok_or("nothing noted")?;
        let (length, body) = (&noted[..line], &noted[line + 1..]);
        let length: Option<usize> = str::from_utf8(length).ok().and_then(|length| length.parse().ok());
        let length = length.ok_or("the answer has no binary part")?;
        let (json, mut tail) = body.split_at_checked(length).ok_or("the answer ends in its JSON")?;
        let answer: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let outputs = answer["outputs"].as_array().ok_or("no outputs")?;
        for output in outputs {
            let expected = self.outputs.iter().find(|expected| output["name"] == expected.name);
            let expected = expected.ok_or_else(|| format!("the answer has {output}"))?;
            let (data, behind) = tail.split_at_checked(expected.data.len()).ok_or("the answer is too short")?;
            let described = [&output["datatype"], &output["shape"]];
            if described != [&json!(expected.datatype), &json!(expected.shape)] || data != expected.data {
                return Err(format!("{output} or its elements are not as expected"));
            }
            tail = behind;
        }
        if outputs.len() == self.outputs.len() { Ok(()) } else { Err(format!("{} outputs", outputs.len())) }
    }
}
