//! The JSON of inference over HTTP, as the API reads and writes it.

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::json::{ArrayWriter, Builder, Element, GatherSink, NumbersReader, Value, Writer};

use super::operation::Operation;

pub const BINARY_REQUEST: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","shape":[16],"datatype":"FP32","parameters":{"binary_data_size":64}}],"#,
    r#""outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#
);
pub const BINARY_RESPONSE: &str = concat!(
    r#"{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[16],"#,
    r#""parameters":{"binary_data_size":64}}]}"#
);
const FLOATS_REQUEST: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","shape":[16],"datatype":"FP32","data":[0.5,1.25,-2.0,6.0221,1e-3,100.0,"#,
    r#"0.0001,65504.0,0.1,0.2,0.3,12345.678,-0.75,2.5,7.0,42.0]}],"outputs":[{"name":"OUTPUT0"}]}"#
);
const FLOATS: [f32; 16] =
    [0.5, 1.25, -2.0, 6.0221, 1e-3, 100.0, 0.0001, 65504.0, 0.1, 0.2, 0.3, 12345.678, -0.75, 2.5, 7.0, 42.0];

/// Tokens or elements that the API handles in one step.
const STEP: usize = 4096;

pub fn read_header() -> Box<dyn Operation> {
    Box::new(Read { text: Slice::from_static(BINARY_REQUEST.as_bytes()), found: 0, tensor: None })
}

pub fn read_floats() -> Box<dyn Operation> {
    Box::new(Read { text: Slice::from_static(FLOATS_REQUEST.as_bytes()), found: 0, tensor: Some([0; 64]) })
}

pub fn write_header() -> Box<dyn Operation> {
    Box::new(Write::new(false))
}

pub fn write_floats() -> Box<dyn Operation> {
    Box::new(Write::new(true))
}

fn floats() -> [u8; 64] {
    let mut bytes = [0; 64];
    for (place, float) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(FLOATS) {
        *place = float.to_le_bytes();
    }
    bytes
}

struct Read {
    text: Slice,
    /// Members that were found with the expected value.
    found: usize,
    /// The target of the numbers, if they are in the JSON.
    tensor: Option<[u8; 64]>,
}

impl Read {
    /// Reads all members of an infer request, in the API's order.
    fn read(&mut self) -> Option<usize> {
        let mut builder = Builder::new(self.text.clone(), |depth, key| depth == 3 && key == b"data").ok()?;
        while !builder.step(STEP).ok()? {}
        let document = builder.finish();
        let root = document.root();
        if root.find("id").is_some() || root.find("parameters").is_some() {
            return None;
        }
        let input = root.member("inputs").and_then(|inputs| inputs.index(0)).ok()?;
        let name = input.member("name").and_then(Value::as_str).ok()?;
        let datatype = input.member("datatype").and_then(Value::as_str).ok()?;
        let mut elements = 1;
        for dim in input.member("shape").and_then(Value::elements).ok()? {
            elements *= dim.as_i64().ok()?;
        }
        match &mut self.tensor {
            Some(tensor) => {
                let span = input.member("data").ok()?.span();
                NumbersReader::new(Element::F32, span).step(document.input(), tensor, STEP).ok()?.then_some(())?;
            }
            None => {
                let size = input.member("parameters").and_then(|parameters| parameters.member("binary_data_size"));
                (size.and_then(Value::as_u64).ok()? == 64).then_some(())?;
            }
        }
        let output = root.member("outputs").and_then(|outputs| outputs.index(0)).ok()?;
        let output_name = output.member("name").and_then(Value::as_str).ok()?;
        let right = [&*name == b"INPUT0", &*datatype == b"FP32", elements == 16, &*output_name == b"OUTPUT0"];
        Some(right.iter().filter(|right| **right).count())
    }
}

impl Operation for Read {
    fn perform(&mut self) {
        self.found = self.read().unwrap_or(0);
    }

    fn settle(&mut self) {
        assert_eq!(std::mem::take(&mut self.found), 4, "the request was not understood");
        if let Some(tensor) = &mut self.tensor {
            assert_eq!(*tensor, floats());
            tensor.fill(0);
        }
    }
}

struct Write {
    pool: Pool,
    tensor: [u8; 64],
    inline: bool,
    body: Gather,
    pieces: Vec<Slice>,
}

impl Write {
    fn new(inline: bool) -> Write {
        Write { pool: Pool::new(64 << 20), tensor: floats(), inline, body: Gather::new(), pieces: Vec::new() }
    }
}

impl Operation for Write {
    fn perform(&mut self) {
        let mut writer = Writer::new(GatherSink { gather: &mut self.body, pool: &self.pool });
        writer.begin_object();
        writer.key("model_name");
        writer.string("identity");
        writer.key("model_version");
        writer.string("1");
        writer.key("outputs");
        writer.begin_array();
        writer.begin_object();
        writer.key("name");
        writer.string("OUTPUT0");
        writer.key("datatype");
        writer.string("FP32");
        writer.key("shape");
        writer.begin_array();
        writer.int(16);
        writer.end_array();
        if self.inline {
            writer.key("data");
            // An array that is not whole shows in `settle`.
            let _ = ArrayWriter::numbers(Element::F32).step(&self.tensor, writer.raw_value(), STEP);
        } else {
            writer.key("parameters");
            writer.begin_object();
            writer.key("binary_data_size");
            writer.uint(64);
            writer.end_object();
        }
        writer.end_object();
        writer.end_array();
        writer.end_object();
        self.body.take(usize::MAX, &mut self.pieces);
    }

    fn settle(&mut self) {
        let mut text = Vec::new();
        self.pieces.drain(..).for_each(|piece| text.extend_from_slice(&piece));
        if self.inline {
            let read: serde_json::Value = serde_json::from_slice(&text).expect("valid JSON");
            let numbers = read["outputs"][0]["data"].as_array().expect("data");
            assert!(numbers.iter().map(|number| number.as_f64().map(|number| number as f32)).eq(FLOATS.map(Some)));
        } else {
            assert_eq!(text, BINARY_RESPONSE.as_bytes());
        }
    }
}
