//! What the short way takes must be what the general way takes: on requests as clients send them, on requests that are
//! not plain, and on many that differ from both in a few bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::api::infer::http_request::Decoder;
use crate::api::infer::{Decode, Progress};
use nereid_memory::BlockMut;
use nereid_memory::Exhausted;
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{Completion, Delivery, SharedMemory, Sink, Status, Ticket, WakeUp};
use nereid_scheduler::{Accepted, Refused, Scheduler, ServedModel};

struct Nobody;

impl Scheduler for Nobody {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        Err(Refused { status: Status::unavailable("nobody is here"), request })
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

/// Of a model with inputs of these names.
fn spec(inputs: &[String]) -> Arc<ModelSpec> {
    spec_of(inputs, &["O".to_owned()])
}

/// Of a model with inputs and outputs of these names.
fn spec_of(inputs: &[String], outputs: &[String]) -> Arc<ModelSpec> {
    let of = |kind: &str, names: &[String]| -> String {
        let tensor = |name| format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ -1 ] }} ");
        names.iter().map(tensor).collect()
    };
    let text = format!("name: \"m\" backend: \"identity\" {}{}", of("input", inputs), of("output", outputs));
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    Arc::new(ModelSpec::new(config).unwrap())
}

fn rig() -> Rig {
    let model = ServedModel {
        name: "m".to_owned(),
        namespace: String::new(),
        version: 1,
        spec: spec(&["I".to_owned()]),
        statistics: Arc::default(),
        scheduler: Arc::new(Nobody),
        labels: BTreeMap::new(),
        load_duration_secs: 0.0,
        provenance: None,
        checks: nereid_scheduler::Checks::new("m", 1),
        load: Arc::default(),
        pins: AtomicUsize::new(0),
    };
    Rig { model: Arc::new(model), pool: Pool::new(1 << 24), regions: SharedMemory::default() }
}

fn request() -> Box<Request> {
    Box::new(Request::new(Completion::new(Arc::new(Nobody), 1)))
}

/// Everything that a text says about a request.
fn told(request: &Request, form: &AnswerForm) -> String {
    let inputs: Vec<_> = request
        .inputs
        .iter()
        .map(|input| (&input.name, input.datatype, &input.shape[..], input.data.iter().map(|d| d.to_vec())))
        .map(|(name, datatype, shape, data)| format!("{name} {datatype} {shape:?} {:?}", data.collect::<Vec<_>>()))
        .collect();
    let outputs: Vec<_> = request.outputs.iter().map(|output| output.name.to_string()).collect();
    let line = (&request.correlation_id, request.flags, request.queueing);
    let forms = (&form.outputs, form.binary_by_default, form.wants_timing);
    format!("{} {inputs:?} {outputs:?} {:?} {line:?} {forms:?}", request.id, request.parameters)
}

impl Rig {
    fn by_decoder(&self, text: &[u8], tail: &[u8]) -> Option<String> {
        let body = self.body(text, tail);
        let mut decoder = Decoder::new(Arc::clone(&self.model), request(), body, text.len(), INPUT_BYTES_MAX).ok()?;
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
        let (_, request, form) = Decode::finish(Box::new(decoder));
        let told = told(&request, &form);
        request.withdraw();
        Some(told)
    }

    fn by_json_request(&self, text: &[u8], tail: &[u8]) -> Option<String> {
        let mut json = JsonRequest::default();
        json.read(text, Bounds { pool: &self.pool, input_bytes_max: INPUT_BYTES_MAX })?;
        let id = text.get(json.id().unwrap_or_default())?;
        let mut request = request();
        let body = self.body(text, tail);
        let form = json.put(
            id,
            &mut request,
            &body.window(text.len()..body.len()),
            (&mut Portions::default(), &self.pool),
            &self.regions,
        );
        let told = form.map(|form| told(&request, &form));
        request.withdraw();
        told
    }

    fn body(&self, text: &[u8], tail: &[u8]) -> Slice {
        Slice::copy_of(&[text, tail].concat())
    }

    /// What the short way takes, the general way takes alike; says whether it did.
    fn agree(&self, text: &[u8], tail: &[u8]) -> bool {
        let brief = self.by_json_request(text, tail);
        if brief.is_some() {
            assert_eq!(brief, self.by_decoder(text, tail), "{}", text.escape_ascii());
        }
        brief.is_some()
    }
}

/// A request may have thousands of short binary tensors, of which most do not lie where models are owed them: each
/// counts as a step, and their copies share blocks of the pool.
#[test]
fn each_short_tensor_counts_as_one_step_and_takes_a_part_of_a_block() {
    for count in [320usize, 3200] {
        let rig = rig();
        let names: Vec<String> = (0..count).map(|at| format!("I{at}")).collect();
        let model = Arc::new(rig.model.with_spec(spec(&names)));
        let input = r#","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}"#;
        let inputs: Vec<String> = names.iter().map(|name| format!("{{\"name\":\"{name}\"{input}")).collect();
        let mut text = format!("{{\"inputs\":[{}]}}", inputs.join(",")).into_bytes();
        text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
        let tail: Vec<u8> = (0..count).flat_map(|at| (at as f32).to_le_bytes()).collect();
        let body = rig.body(&text, &tail);
        let Ok(mut decoder) = Decoder::new(model, request(), body, text.len(), INPUT_BYTES_MAX.max(text.len())) else {
            panic!("the decoder takes the request");
        };
        let mut steps = 1;
        while let Progress::More { steps: taken, .. } = decoder.step(&rig.pool, &rig.regions).unwrap() {
            assert!((1..=4).contains(&taken), "{taken} inputs in one go");
            steps += taken;
        }
        // The JSON takes a step for a thousand tokens, of which an input has less than 32.
        assert!((count + 1..=count + count / 32 + 2).contains(&steps), "{steps} steps for {count}");
        let (_, request, _) = decoder.finish();
        let copied = count - count / 16;
        assert_eq!(rig.pool.bytes_in_use(), copied.div_ceil(64) * 4096, "{count}");
        for (at, input) in request.inputs.iter().enumerate() {
            assert_eq!(input.data.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>(), [(at as f32).to_le_bytes()]);
            assert!(input.data.iter().all(|piece| piece.is_aligned_to(ALIGNMENT)));
        }
        request.withdraw();
    }
}

/// The JSON of a request with so many inputs, every third of which has its data there, and outputs, every other one of
/// which is to be binary; and the bytes behind it. The output `bad` has a mistake.
fn many(inputs: usize, outputs: usize, bad: Option<usize>) -> (Vec<u8>, Vec<u8>) {
    let input = |at: usize| {
        let data = if at.is_multiple_of(3) {
            format!("\"data\":[{at}]")
        } else {
            "\"parameters\":{\"binary_data_size\":4}".to_owned()
        };
        format!("{{\"name\":\"I{at}\",\"datatype\":\"FP32\",\"shape\":[1],{data}}}")
    };
    let output = |at: usize| {
        let binary = if bad == Some(at) { "7".to_owned() } else { at.is_multiple_of(2).to_string() };
        format!("{{\"name\":\"O{at}\",\"parameters\":{{\"binary_data\":{binary}}}}}")
    };
    let list = |tensors: Vec<String>| tensors.join(",");
    let (inputs_json, outputs_json) =
        (list((0..inputs).map(input).collect()), list((0..outputs).map(output).collect()));
    let text = format!("{{\"inputs\":[{inputs_json}],\"outputs\":[{outputs_json}]}}").into_bytes();
    let tail = (0..inputs).filter(|at| at % 3 != 0).flat_map(|at| (at as f32).to_le_bytes()).collect();
    (text, tail)
}

/// A decoder of what [`many`] makes.
fn decoder_of_many(rig: &Rig, (inputs, outputs): (usize, usize), (text, tail): &(Vec<u8>, Vec<u8>)) -> Decoder {
    let names = |prefix: &str, count: usize| (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<String>>();
    let model = Arc::new(rig.model.with_spec(spec_of(&names("I", inputs), &names("O", outputs))));
    match Decoder::new(model, request(), rig.body(text, tail), text.len(), INPUT_BYTES_MAX) {
        Ok(decoder) => decoder,
        Err((status, _)) => panic!("{status:?}"),
    }
}

/// A step reads a few inputs or outputs: at the borders of steps none is lost, read twice, or moved.
#[test]
fn inputs_and_outputs_at_the_borders_of_steps_are_read_in_their_order() {
    let rig = rig();
    for inputs in [1, 3, 4, 5, 8, 9] {
        for outputs in [1, 7, 8, 9, 16, 17] {
            let mut decoder = decoder_of_many(&rig, (inputs, outputs), &many(inputs, outputs, None));
            while !matches!(decoder.step(&rig.pool, &rig.regions).unwrap(), Progress::Ready) {}
            let (_, request, form) = decoder.finish();
            for (at, input) in request.inputs.iter().enumerate() {
                let data: Vec<Vec<u8>> = input.data.iter().map(|piece| piece.to_vec()).collect();
                assert_eq!(
                    (input.name.to_string(), data),
                    (format!("I{at}"), vec![(at as f32).to_le_bytes().to_vec()])
                );
            }
            let forms: Vec<_> = form.outputs.iter().map(|form| (form.name.to_string(), form.binary)).collect();
            let expected: Vec<_> = (0..outputs).map(|at| (format!("O{at}"), at % 2 == 0)).collect();
            assert_eq!(forms, expected, "{inputs} inputs");
            assert_eq!((request.inputs.len(), request.outputs.len()), (inputs, outputs));
            request.withdraw();
        }
    }
}

/// What is wrong with an output is found in the same words in whatever step it is read.
#[test]
fn a_mistake_in_an_output_of_a_later_step_is_found() {
    let rig = rig();
    let errors = [0, 7, 8, 9, 16].map(|bad| {
        let mut decoder = decoder_of_many(&rig, (5, 17), &many(5, 17, Some(bad)));
        let error = loop {
            match decoder.step(&rig.pool, &rig.regions) {
                Ok(Progress::More { .. }) => {}
                Ok(Progress::Ready) => panic!("output {bad} is taken"),
                Err(error) => break format!("{error:?}"),
            }
        };
        decoder.finish().1.withdraw();
        error
    });
    assert!(errors[0].contains("binary_data"), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

/// Requests as clients send them, with the bytes behind the JSON.
const PLAIN: [(&str, usize); 11] = [
    (
        concat!(
            r#"{"inputs":[{"name":"I","shape":[16],"datatype":"FP32","parameters":{"binary_data_size":64}}],"pa"#,
            r#"rameters":{"binary_data_output":true}}"#,
        ),
        64,
    ),
    (
        concat!(
            r#"{"id":"some id","inputs":[{"name":"I","datatype":"FP32","shape":[2,8],"parameters":{"binary_data"#,
            r#"_size":64}}],"outputs":[{"name":"O","parameters":{"binary_data":true}}]}"#,
        ),
        64,
    ),
    (
        concat!(
            r#"{ "inputs" : [ { "name" : "I", "shape" : [ 4 ], "datatype" : "FP32", "data" : [ 1, -2.5 , 3e2, 0"#,
            r#".1 ] } ] }"#,
        ),
        0,
    ),
    (
        concat!(
            r#"{"inputs":[{"name":"I","shape":[2,2],"datatype":"INT32","data":[[1,-2],[3,4]]}],"outputs":[{"nam"#,
            r#"e":"O"}]}"#,
        ),
        0,
    ),
    (r#"{"inputs":[{"name":"I","shape":[3],"datatype":"BOOL","data":[true,false,true]}]}"#, 0),
    (
        concat!(
            r#"{"inputs":[{"name":"A","shape":[5],"datatype":"UINT8","parameters":{"binary_data_size":5}},{"nam"#,
            r#"e":"B","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}"#,
        ),
        8,
    ),
    (
        concat!(
            r#"{"parameters":{"sequence_id":7,"sequence_start":true,"sequence_end":false,"priority":2,"timeout""#,
            r#":1000,"mine":"x","other":5,"flag":true},"inputs":[]}"#,
        ),
        0,
    ),
    (r#"{"parameters":{"sequence_id":"seven","sequence_end":true,"nereid_timing":true},"inputs":[]}"#, 0),
    (
        concat!(
            r#"{"inputs":[{"name":"I","shape":[0],"datatype":"BYTES","parameters":{"binary_data_size":0}}],"out"#,
            r#"puts":[{"name":"O","parameters":{"classification":3}}]}"#,
        ),
        0,
    ),
    ("{\"inputs\":[{\"name\":\"I\",\"shape\":[1],\"datatype\":\"UINT64\",\"data\":[18446744073709551615]}]}\n\t ", 0),
    (r#"{"inputs":[{"name":"ä","shape":[1],"datatype":"INT64","data":[-9223372036854775808]}],"id":""}"#, 0),
];

/// Requests that are left to the general way, be they right or wrong.
const OTHERS: [(&str, usize); 22] = [
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"BYTES","data":["x"]}]}"#, 0),
    (r#"{"inputs":[{"data":[1],"name":"I","shape":[1],"datatype":"FP32"}]}"#, 0),
    (r#"{"inputs":[{"name":"\u0049","shape":[1],"datatype":"UINT8","data":[1]}]}"#, 0),
    (r#"{"inputs":[],"inputs":[]}"#, 0),
    (r#"{"inputs":[{"name":"I","name":"J","shape":[1],"datatype":"UINT8","data":[1]}]}"#, 0),
    (
        concat!(
            r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","data":[1]},{"name":"I","shape":[1],"datat"#,
            r#"ype":"UINT8","data":[1]}]}"#,
        ),
        0,
    ),
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","data":[1,2]}]}"#, 0),
    (r#"{"inputs":[{"name":"I","shape":[3],"datatype":"UINT8","data":[1,2]}]}"#, 0),
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1}}]}"#, 1),
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8"}]}"#, 0),
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","parameters":{"binary_data_size":2}}]}"#, 1),
    (r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","parameters":{"binary_data_size":1}}]}"#, 2),
    (
        concat!(
            r#"{"inputs":[{"name":"I","shape":[1],"datatype":"UINT8","parameters":{"shared_memory_region":"none"#,
            r#"","shared_memory_byte_size":1}}]}"#,
        ),
        0,
    ),
    (r#"{"inputs":[],"id":5}"#, 0),
    (r#"{"inputs":[],"extra":5}"#, 0),
    (r#"{"inputs":[],"parameters":{"triton_x":5}}"#, 0),
    (r#"{"inputs":[],"parameters":{"x":1,"x":2}}"#, 0),
    (r#"{"inputs":[],"parameters":{"x":-1}}"#, 0),
    (r#"{"id":"x"}"#, 0),
    (r#"{"inputs":[{"name":"I","shape":[2000],"datatype":"UINT32","data":[1]}]}"#, 0),
    (r#"{"inputs":[],}"#, 0),
    ("", 0),
];

#[test]
fn plain_requests_are_read_as_the_general_way_reads_them() {
    let rig = rig();
    for (text, tail) in PLAIN {
        let tail: Vec<u8> = (0..tail as u8).collect();
        assert!(rig.agree(text.as_bytes(), &tail), "{text}");
    }
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

#[test]
fn what_is_not_plain_is_left_alone() {
    let rig = rig();
    for (text, tail) in OTHERS {
        assert_eq!(rig.by_json_request(text.as_bytes(), &vec![1; tail]), None, "{text}");
    }
    let long = format!("{{\"inputs\":[]{}}}", " ".repeat(TEXT_MAX));
    assert_eq!(rig.by_json_request(long.as_bytes(), b""), None);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

#[test]
fn a_text_that_is_a_little_different_is_read_alike_or_not_at_all() {
    let rig = rig();
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let spice = b"{}[]\",:.-+eE0159tfn \\\0\x01\xffINx";
    let mut taken = 0;
    for round in 0..20_000 {
        let (text, tail) = PLAIN[round % PLAIN.len()];
        let mut text = text.as_bytes().to_vec();
        for _ in 0..=random(3) {
            let at = random(text.len());
            match random(4) {
                0 => text[at] = spice[random(spice.len())],
                1 => text.insert(at, spice[random(spice.len())]),
                2 => drop(text.remove(at)),
                _ => {
                    let end = (at + random(20)).min(text.len());
                    let part = text[at..end].to_vec();
                    let to = random(text.len());
                    text.splice(to..to, part);
                }
            }
        }
        taken += usize::from(rig.agree(&text, &vec![7; tail]));
    }
    assert!(taken > 1000, "only {taken} of the texts were plain");
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

#[test]
fn one_text_serves_requests_with_other_ids() {
    let rig = rig();
    let (text, tail) = PLAIN[1];
    let mut json = JsonRequest::default();
    json.read(text.as_bytes(), Bounds { pool: &rig.pool, input_bytes_max: INPUT_BYTES_MAX }).unwrap();
    assert!(json.is_reusable());
    let tail = Slice::copy_of(&vec![5; tail]);
    for id in ["", "a", "a much longer id than the one before it, which does not fit in place"] {
        let mut request = request();
        let form =
            json.put(id.as_bytes(), &mut request, &tail, (&mut Portions::default(), &rig.pool), &rig.regions).unwrap();
        let same = rig.by_decoder(text.replace("some id", id).as_bytes(), &tail);
        assert_eq!(Some(told(&request, &form)), same);
        request.withdraw();
    }
}
