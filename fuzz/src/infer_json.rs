//! The readers of JSON requests, each against the others.
//!
//! What the short way takes, the general way takes alike, and so does the plan cache, whatever it was shown before.
//! What the general way makes of plain tensors is what serde_json makes of them, and the reader of `generate` makes the
//! same tensors of the same numbers. An event holds its JSON on one line.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nereid_memory::{BlockMut, Exhausted, Gather, Pool, Portions, Slice};
use nereid_model_config::{ModelSpec, normalize};
use nereid_protocol::http1::{BodyPlan, Connection, ExchangeId, Handler, Head, Limits};
use nereid_request::{Completion, Delivery, Request, SharedMemory, Sink, Status, Ticket, WakeUp};
use nereid_scheduler::{Accepted, Refused, Scheduler, ServedModel};
use tritonserver::api::fuzzing::{
    AnswerForm, Bounds, Decode, Decoder, GenerateReader, HttpPlans, JsonRequest, Progress, framed,
};

use crate::json::{Tree, bytes_of, element_named, flat};
use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "infer_json",
    run,
    runs: 6_000,
    words: &[
        "{\"inputs\":[",
        "{\"name\":\"I\"",
        ",\"shape\":[",
        ",\"datatype\":\"",
        "FP32",
        "BOOL",
        "INT8",
        "UINT64",
        "BYTES",
        "FP16",
        ",\"data\":[",
        ",\"parameters\":{",
        "\"binary_data_size\":",
        "\"binary_data\":true",
        "\"classification\":2",
        "\"shared_memory_region\":\"r\"",
        "\"shared_memory_offset\":0",
        "\"shared_memory_byte_size\":4",
        "\"outputs\":[{\"name\":\"O\"}]",
        "\"id\":\"x\"",
        "\"sequence_id\":7",
        "\"sequence_start\":true",
        "\"priority\":1",
        "\"timeout\":5",
        "\"triton_x\":1",
        "\"x\":1.5",
        "\\u0049",
        "\\n",
        "\"",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        " ",
        "-",
        ".",
        "e5",
        "0",
        "NaN",
        "null",
    ],
    seeds,
};

struct Nobody;

impl Scheduler for Nobody {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        Err(Refused { status: Status::unavailable("no scheduler is here"), request })
    }

    fn cancel(&self, _: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn expire(&self, _: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn stop(&self) {}
}

impl Sink for Nobody {
    fn deliver(&self, _: u64, _: Delivery) {}

    fn allocate(&self, _: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

const INPUT_BYTES_MAX: usize = 4096;

struct Rig {
    model: Arc<ServedModel>,
    pool: Pool,
    regions: SharedMemory,
}

/// A model with an input `I` of that type.
fn rig(datatype: &str) -> Rig {
    let text = format!(
        "name: \"m\" backend: \"identity\" input {{ name: \"I\" data_type: TYPE_{datatype} dims: [ -1 ] }} output {{ name: \"O\" \
         data_type: TYPE_{datatype} dims: [ -1 ] }}"
    );
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).expect("a configuration");
    let mut config = nereid_model_config::from_dynamic(&document.message).expect("a configuration");
    normalize::fill_defaults(&mut config);
    let model = ServedModel {
        name: "m".to_owned(),
        namespace: String::new(),
        version: 1,
        spec: Arc::new(ModelSpec::new(config).expect("a configuration")),
        statistics: Arc::default(),
        scheduler: Arc::new(Nobody),
        labels: BTreeMap::new(),
        load_duration_secs: 0.0,
        checks: nereid_scheduler::Checks::new("m", 1),
        pins: AtomicUsize::new(0),
        provenance: None,
        load: Default::default(),
    };
    Rig { model: Arc::new(model), pool: pool(), regions: SharedMemory::default() }
}

fn request() -> Box<Request> {
    Box::new(Request::new(Completion::new(Arc::new(Nobody), 1)))
}

/// Everything that a text says about a request.
fn described(request: &Request, form: &AnswerForm) -> String {
    let inputs: Vec<_> = request
        .inputs
        .iter()
        .map(|input| {
            let data: Vec<u8> = input.data.iter().flat_map(|piece| piece.to_vec()).collect();
            format!("{} {} {:?} {data:?}", input.name, input.datatype, &input.shape[..])
        })
        .collect();
    let outputs: Vec<_> = request.outputs.iter().map(|output| output.name.to_string()).collect();
    let line = (&request.correlation_id, request.flags, request.queueing);
    let forms = (&form.outputs, form.binary_by_default, form.wants_timing);
    format!("{} {inputs:?} {outputs:?} {:?} {line:?} {forms:?}", request.id, request.parameters)
}

fn run(data: &[u8]) -> bool {
    let (mut dice, body) = split(data);
    let datatype = *dice.pick(&["FP32", "FP64", "BOOL", "UINT8", "INT16", "UINT64", "INT64", "STRING"]);
    let rig = rig(datatype);
    // The tail follows a zero byte, which no JSON text has.
    let json_len = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    let (text, tail) = (&body[..json_len], body.get(json_len + 1..).unwrap_or_default());
    let general = rig.by_decoder(text, tail);
    let brief = rig.by_json_request(text, tail);
    if brief.is_some() {
        assert_eq!(brief, general.as_ref().map(|(told, _)| told.clone()), "{}", body.escape_ascii());
    }
    rig.by_plans(text, tail, &mut dice);
    if let Some((_, request)) = &general {
        against_serde(request, text);
    }
    rig.generate(text, datatype);
    event(text, &rig.pool);
    if let Some((_, request)) = general {
        request.withdraw();
    }
    assert_eq!(rig.pool.bytes_in_use(), 0, "memory was kept: {}", body.escape_ascii());
    brief.is_some()
}

impl Rig {
    fn by_decoder(&self, text: &[u8], tail: &[u8]) -> Option<(String, Box<Request>)> {
        if text.is_empty() {
            return None;
        }
        let body = Slice::copy_of(&[text, tail].concat());
        let decoder = match Decoder::new(Arc::clone(&self.model), request(), body, text.len(), INPUT_BYTES_MAX) {
            Ok(decoder) => decoder,
            Err((_, request)) => {
                request.withdraw();
                return None;
            }
        };
        let (request, form) = self.decoded(Box::new(decoder))?;
        Some((described(&request, &form), request))
    }

    fn decoded(&self, mut decoder: Box<dyn Decode>) -> Option<(Box<Request>, AnswerForm)> {
        loop {
            match decoder.step(&self.pool, &self.regions) {
                Ok(Progress::Ready) => break,
                Ok(Progress::More { .. }) => {}
                Err(_) => {
                    decoder.finish().1.withdraw();
                    return None;
                }
            }
        }
        let (_, request, form) = decoder.finish();
        Some((request, form))
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds { pool: &self.pool, input_bytes_max: INPUT_BYTES_MAX }
    }

    fn by_json_request(&self, text: &[u8], tail: &[u8]) -> Option<String> {
        let mut json = JsonRequest::default();
        json.read(text, self.bounds())?;
        let id = text.get(json.id().unwrap_or_default()).expect("the place of the id");
        let mut request = request();
        let tail = Slice::copy_of(tail);
        let form = json.put(id, &mut request, &tail, (&mut Portions::default(), &self.pool), &self.regions);
        let told = form.map(|form: Rc<AnswerForm>| described(&request, &form));
        request.withdraw();
        told
    }

    /// A plan is shown the text, then others that differ from it a little, and then all of them again.
    fn by_plans(&self, text: &[u8], tail: &[u8], dice: &mut Dice) {
        let mut plans = HttpPlans::default();
        let mut seen = Seen::default();
        let mut connection = Connection::new(Limits::default(), self.pool.clone());
        let mut texts = vec![text.to_vec(), text.to_vec()];
        for _ in 0..3 {
            texts.push(changed(text, dice));
        }
        texts.extend_from_within(..);
        for text in &texts {
            let head = format!("POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: {}\r\n\r\n", text.len() + 1);
            seen.head = None;
            connection.receive(head.as_bytes(), &mut seen);
            connection.receive(&[b'x'].repeat(text.len() + 1), &mut seen);
            let exchange = seen.exchange.take().expect("a whole request");
            connection.respond(exchange, nereid_protocol::http1::Response::empty(200));
            connection.output().clear();
            let head = seen.head.take().expect("a whole request");
            if plans.of_head(&head).is_none() {
                plans.plan(&head, &self.model, None);
            }
            let mut plan = plans.take(head.mark()).expect("the plan that was made");
            let tail = Slice::copy_of(tail);
            if let Some(json) = plans.match_json(&mut plan, text, self.bounds()) {
                let mut request = request();
                let memory = (&mut Portions::default(), &self.pool);
                let form = plans.fill_http(&mut plan, json, &mut request, &tail, memory, &self.regions);
                if let Some(form) = form {
                    let general = self.by_decoder(text, &tail);
                    let told = general.as_ref().map(|(told, _)| told.clone());
                    assert_eq!(Some(described(&request, &form)), told, "{}", text.escape_ascii());
                    if let Some((_, request)) = general {
                        request.withdraw();
                    }
                }
                request.withdraw();
            }
            plans.put_back(&head, plan);
        }
    }

    /// The reader of `generate` makes the tensor that serde_json finds.
    fn generate(&self, text: &[u8], datatype: &str) {
        let reader = GenerateReader::new(
            Arc::clone(&self.model),
            request(),
            AnswerForm::default(),
            Slice::copy_of(text),
            INPUT_BYTES_MAX,
        );
        let reader = match reader {
            Ok(reader) => reader,
            Err((_, request)) => return request.withdraw(),
        };
        let Some((request, _)) = self.decoded(Box::new(reader)) else { return };
        if let Ok(Tree::Object(members)) = serde_json::from_slice::<Tree>(text) {
            let value = members.iter().find(|(name, _)| name == b"I").map(|(_, value)| value);
            let nested = members.iter().find(|(name, _)| name == b"parameters").map(|(_, value)| value);
            let is_nested =
                matches!(nested, Some(Tree::Object(members)) if members.iter().any(|(name, _)| name == b"I"));
            let found = request.inputs.iter().find(|input| input.name.as_bytes() == b"I");
            match (value, found) {
                (Some(value), Some(found)) if !is_nested => {
                    let data: Vec<u8> = found.data.iter().flat_map(|piece| piece.to_vec()).collect();
                    assert_eq!(Some(data), tensor(value, datatype), "{}", text.escape_ascii());
                }
                (None, Some(_)) => assert!(is_nested, "{}", text.escape_ascii()),
                (Some(_), None) => panic!("the input is missing: {}", text.escape_ascii()),
                _ => {}
            }
        }
        request.withdraw();
    }
}

/// What a head was, kept beyond its connection.
#[derive(Default)]
struct Seen {
    head: Option<Head>,
    exchange: Option<ExchangeId>,
}

impl Handler for Seen {
    fn head(&mut self, _exchange: ExchangeId, _head: &Head) -> BodyPlan {
        BodyPlan::Store { align_at: 0 }
    }

    fn request(&mut self, exchange: ExchangeId, head: &Head, _body: Slice) {
        (self.head, self.exchange) = (Some(head.clone()), Some(exchange));
    }
}

/// The text with another id, or with a few other bytes.
fn changed(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut text = text.to_vec();
    let id = b"\"id\":\"";
    let at = text.windows(id.len()).position(|window| window == id).map(|at| at + id.len());
    if let (Some(at), true) = (at, dice.one_in(2)) {
        let end = text[at..].iter().position(|byte| *byte == b'"').map_or(text.len(), |end| at + end);
        let ids = [&b""[..], b"y", b"a\\n", b"a\"", b"\xff\x00", b"another id", b"\",\"id\":\"x"];
        let other = *dice.pick(&ids);
        text.splice(at..end, other.iter().copied());
        return text;
    }
    for _ in 0..dice.below(3) {
        let at = dice.below(text.len() + 1);
        let spice = b"{}[]\",:.-+eE0159tfn \\\x01INx";
        match dice.below(3) {
            0 => text.insert(at, *dice.pick(spice)),
            1 if at < text.len() => drop(text.remove(at)),
            _ if at < text.len() => text[at] = *dice.pick(spice),
            _ => {}
        }
    }
    text
}

/// The id and the inputs of a request are those that serde_json finds.
fn against_serde(request: &Request, text: &[u8]) {
    let Ok(Tree::Object(root)) = serde_json::from_slice::<Tree>(text) else { return };
    let shown = || text.escape_ascii();
    let member = |members: &[(Vec<u8>, Tree)], name: &str| {
        members.iter().find(|(other, _)| other == name.as_bytes()).map(|(_, value)| value.clone())
    };
    match member(&root, "id") {
        Some(Tree::String(id)) => assert_eq!(request.id.as_bytes(), id, "{}", shown()),
        other => assert!(other.is_none() && request.id.as_bytes().is_empty(), "{}", shown()),
    }
    let Some(Tree::Array(inputs)) = member(&root, "inputs") else { panic!("no inputs: {}", shown()) };
    assert_eq!(inputs.len(), request.inputs.len(), "{}", shown());
    for (input, found) in inputs.iter().zip(&request.inputs) {
        let Tree::Object(members) = input else { panic!("no object: {}", shown()) };
        let Some(Tree::String(name)) = member(members, "name") else { panic!("no name: {}", shown()) };
        assert_eq!(found.name.as_bytes(), name, "{}", shown());
        let Some(Tree::Array(dims)) = member(members, "shape") else { panic!("no shape: {}", shown()) };
        let dims: Vec<i64> = dims
            .iter()
            .map(|dim| match dim {
                Tree::Uint(dim) => i64::try_from(*dim).expect("a dimension"),
                // What is written `-0` is the integer 0.
                Tree::Double(zero) if *zero == 0.0 => 0,
                other => panic!("{other:?} is no dimension: {}", shown()),
            })
            .collect();
        assert_eq!(&found.shape[..], dims, "{}", shown());
        let Some(data) = member(members, "data") else { continue };
        let Some(Tree::String(datatype)) = member(members, "datatype") else { panic!("no type: {}", shown()) };
        let bytes: Vec<u8> = found.data.iter().flat_map(|piece| piece.to_vec()).collect();
        if dims.is_empty() || dims.contains(&0) {
            // A tensor without elements has no bytes, whatever is given.
            assert!(bytes.is_empty(), "{}", shown());
            continue;
        }
        let datatype = String::from_utf8_lossy(&datatype).into_owned();
        assert_eq!(Some(bytes), tensor(&data, &datatype), "{}", shown());
    }
}

/// The bytes of a tensor of that type; `None` where the value is none.
fn tensor(value: &Tree, datatype: &str) -> Option<Vec<u8>> {
    let mut scalars = Vec::new();
    match value {
        Tree::Array(_) => flat(value, &mut scalars)?,
        scalar => scalars.push(scalar),
    }
    let one = |scalar: &&Tree| match (datatype, scalar) {
        ("BYTES" | "STRING", Tree::String(value)) => Some([&(value.len() as u32).to_le_bytes()[..], value].concat()),
        ("BYTES" | "STRING", _) => None,
        // The integer 0, which serde_json has as a double.
        (_, Tree::Double(zero)) if zero.to_bits() == (-0.0f64).to_bits() => {
            bytes_of(&Tree::Int(0), element_named(datatype)?)
        }
        (_, scalar) => bytes_of(scalar, element_named(datatype)?),
    };
    Some(scalars.iter().map(one).collect::<Option<Vec<_>>>()?.concat())
}

/// An event is one line, whatever text it holds: what our writer makes of it has no line breaks.
fn event(text: &[u8], pool: &Pool) {
    let mut writer = nereid_protocol::json::Writer::new(Vec::new());
    writer.begin_object();
    writer.key("text_output");
    writer.string(text);
    writer.end_object();
    let json = writer.into_inner();
    let mut gather = Gather::new();
    gather.put(pool, &json);
    let mut framed = framed(gather, pool);
    let bytes = framed.to_vec();
    framed.clear();
    let events = events(&bytes);
    assert_eq!(events, [json], "{}", text.escape_ascii());
}

/// The data of events, as WHATWG HTML, section 9.2.6, reads them.
fn events(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    let mut data: Option<Vec<u8>> = None;
    let mut rest = stream;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        // A line that does not end is not dispatched.
        let Some(end) = end else { break };
        let line = &rest[..end];
        let is_pair = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + 1 + usize::from(is_pair)..];
        if line.is_empty() {
            events.extend(data.take());
            continue;
        }
        let Some(value) = line.strip_prefix(b"data:") else { continue };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => data = Some(value.to_vec()),
        }
    }
    events
}

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [(&str, usize); 16] = [
        (
            r#"{"inputs":[{"name":"I","shape":[16],"datatype":"FP32","parameters":{"binary_data_size":64}}],"parameters":{"binary_data_output":true}}"#,
            64,
        ),
        (
            r#"{"id":"some id","inputs":[{"name":"I","datatype":"FP32","shape":[2,8],"parameters":{"binary_data_size":64}}],"outputs":[{"name":"O","parameters":{"binary_data":true}}]}"#,
            64,
        ),
        (
            r#"{ "inputs" : [ { "name" : "I", "shape" : [ 4 ], "datatype" : "FP32", "data" : [ 1, -2.5 , 3e2, 0.1 ] } ] }"#,
            0,
        ),
        (
            r#"{"inputs":[{"name":"I","shape":[2,2],"datatype":"INT32","data":[[1,-2],[3,4]]}],"outputs":[{"name":"O"}]}"#,
            0,
        ),
        (r#"{"inputs":[{"name":"I","shape":[3],"datatype":"BOOL","data":[true,false,true]}],"id":"x"}"#, 0),
        (
            r#"{"inputs":[{"name":"A","shape":[5],"datatype":"UINT8","parameters":{"binary_data_size":5}},{"name":"B","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}"#,
            8,
        ),
        (
            r#"{"parameters":{"sequence_id":7,"sequence_start":true,"sequence_end":false,"priority":2,"timeout":1000,"mine":"x","other":5,"flag":true},"inputs":[]}"#,
            0,
        ),
        (r#"{"parameters":{"sequence_id":"seven","sequence_end":true,"nereid_timing":true},"inputs":[],"id":"id"}"#, 0),
        (
            r#"{"inputs":[{"name":"I","shape":[0],"datatype":"BYTES","parameters":{"binary_data_size":0}}],"outputs":[{"name":"O","parameters":{"classification":3}}]}"#,
            0,
        ),
        (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT64","data":[18446744073709551615]}]}"#, 0),
        (r#"{"inputs":[{"name":"ä","shape":[2],"datatype":"INT64","data":[-9223372036854775808,0]}],"id":""}"#, 0),
        (r#"{"inputs":[{"name":"I","shape":[2],"datatype":"BYTES","data":["x","a\nb"]}]}"#, 0),
        (r#"{"inputs":[{"data":[1.5,2],"name":"I","shape":[2],"datatype":"FP64"}]}"#, 0),
        (r#"{"I":[1,2,3],"parameters":{"temperature":0.5,"stop":"x"},"id":"g"}"#, 0),
        (r#"{"I":"a text","stream":false}"#, 0),
        (r#"{"I":[true,false],"x":1}"#, 0),
    ];
    let mut all = Vec::new();
    for (number, (text, tail)) in (0u32..).zip(seeds) {
        let tail: Vec<u8> = (0..tail as u8).collect();
        let zero: &[u8] = if tail.is_empty() { &[] } else { &[0] };
        all.push([&number.to_be_bytes()[..], text.as_bytes(), zero, &tail].concat());
    }
    all
}
