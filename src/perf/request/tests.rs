//! Requests are made once and patched for each time they are sent.

use std::io::Read;

use flate2::read::{GzDecoder, ZlibDecoder};

use super::*;
use crate::plan::tests::plan;
use crate::plan::{Endpoint, Sequences, Target};
use nereid_memory::Slab;

fn wanted(protocol: Protocol, in_sequence: bool, compression: Compression) -> Plan {
    let mut plan = plan(Target { endpoint: Endpoint::Tcp { host: "h".into(), port: 1 }, tls: None, protocol });
    (plan.model, plan.version) = ("m/1".into(), "7".into());
    plan.work.headers = vec![("x-a".into(), "b".into())];
    plan.work.compression = compression;
    (plan.work.priority, plan.work.queue_timeout_us) = (3, Some(9));
    plan.work.sequences = in_sequence.then_some(Sequences {
        at_once: 1,
        length: Some(3),
        length_variation_percent: 0.0,
        first_id: 1,
        end_id: None,
    });
    plan
}

fn template(bytes: usize) -> Template {
    let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    Template {
        inputs: vec![Input {
            name: "IN".into(),
            datatype: "INT8".into(),
            shape: vec![1, bytes as i64],
            data: Slice::copy_of(&data),
        }],
        outputs: vec!["OUT".into()],
        parameters: vec![("p".into(), Parameter::String("v".into())), ("d".into(), Parameter::Double(0.5))],
        expected: None,
        body: None,
    }
}

fn written(prepared: &Prepared, marks: &Marks) -> Vec<u8> {
    let mut bytes = Vec::new();
    let tail = prepared.write(marks, &mut bytes).cloned();
    tail.iter().for_each(|tail| bytes.extend_from_slice(tail));
    bytes
}

fn unpack(packing: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match packing {
        Compression::None => plain = bytes.to_vec(),
        Compression::Gzip => drop(GzDecoder::new(bytes).read_to_end(&mut plain).unwrap()),
        Compression::Deflate => drop(ZlibDecoder::new(bytes).read_to_end(&mut plain).unwrap()),
    }
    plain
}

const PACKINGS: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Deflate];

fn key() -> Key {
    let mut slab = Slab::new(9);
    slab.insert(()).unwrap();
    let old = slab.insert(()).unwrap();
    slab.remove(old);
    slab.insert(()).unwrap()
}

#[test]
fn messages_say_what_was_asked_for() {
    for (protocol, in_sequence) in [
        (Protocol::GrpcUnary, false),
        (Protocol::GrpcUnary, true),
        (Protocol::GrpcStream, true),
        (Protocol::GrpcStream, false),
    ] {
        for packing in PACKINGS {
            for bytes in [0, 64, 100_000] {
                let plan = wanted(protocol, in_sequence, packing);
                let prepared = Prepared::new(&plan, &template(bytes), None).unwrap();
                for id in [1, 127, 128, u64::from(u32::MAX), i64::MAX as u64] {
                    let sequence = in_sequence.then_some(SequenceMark { id, start: true, end: id == 127 });
                    let marks = Marks { id: (protocol == Protocol::GrpcStream).then(key), sequence };
                    let frame = written(&prepared, &marks);
                    let (prefix, message) = frame.split_first_chunk::<PREFIX_BYTES>().unwrap();
                    assert_eq!(prefix[0], u8::from(packing != Compression::None));
                    assert_eq!(
                        u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize,
                        message.len()
                    );
                    let message = ModelInferRequest::decode(&unpack(packing, message)[..]).unwrap();
                    check_message(&message, bytes, &marks);
                }
            }
        }
    }
}

fn check_message(message: &ModelInferRequest, bytes: usize, marks: &Marks) {
    assert_eq!((message.model_name.as_str(), message.model_version.as_str()), ("m/1", "7"));
    assert_eq!(read_id(message.id.as_bytes()), marks.id);
    let parameter = |name: &str| message.parameters.get(name).and_then(|value| value.parameter_choice.clone());
    assert_eq!(parameter("p"), Some(ParameterChoice::StringParam("v".into())));
    assert_eq!(parameter("d"), Some(ParameterChoice::DoubleParam(0.5)));
    assert_eq!(parameter("priority"), Some(ParameterChoice::Uint64Param(3)));
    assert_eq!(parameter("timeout"), Some(ParameterChoice::Int64Param(9)));
    let mark = marks.sequence;
    assert_eq!(parameter("sequence_id"), mark.map(|mark| ParameterChoice::Int64Param(mark.id as i64)));
    assert_eq!(parameter("sequence_start"), mark.map(|mark| ParameterChoice::BoolParam(mark.start)));
    assert_eq!(parameter("sequence_end"), mark.map(|mark| ParameterChoice::BoolParam(mark.end)));
    assert_eq!(message.inputs[0].shape, [1, bytes as i64]);
    assert_eq!(message.outputs[0].name, "OUT");
    assert_eq!(message.raw_input_contents[0], template(bytes).inputs[0].data[..]);
}

#[test]
fn http_requests_say_what_was_asked_for() {
    for in_sequence in [false, true] {
        for packing in PACKINGS {
            for form in [Form::Binary, Form::Json] {
                for bytes in [0, 64, 100_000] {
                    let mut plan = wanted(Protocol::Http, in_sequence, packing);
                    plan.work.input_form = form;
                    let prepared = Prepared::new(&plan, &template(bytes), None).unwrap();
                    for id in [1, u64::MAX] {
                        let sequence = in_sequence.then_some(SequenceMark { id, start: false, end: id == 1 });
                        let request = written(&prepared, &Marks { id: None, sequence });
                        check_http(&request, bytes, packing, form, sequence);
                    }
                }
            }
        }
    }
}

fn check_http(request: &[u8], bytes: usize, packing: Compression, form: Form, sequence: Option<SequenceMark>) {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut parsed = httparse::Request::new(&mut fields);
    let at = parsed.parse(request).unwrap().unwrap();
    assert_eq!((parsed.method, parsed.path), (Some("POST"), Some("/v2/models/m%2F1/versions/7/infer")));
    let field = |name: &str| {
        let field = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| std::str::from_utf8(field.value).unwrap())
    };
    assert_eq!((field("x-a"), field("host")), (Some("b"), Some("h:1")));
    assert_eq!(field("content-length").unwrap().parse::<usize>().unwrap(), request.len() - at);
    let body = unpack(packing, &request[at..]);
    let length = field(JSON_LENGTH).map_or(body.len(), |length| length.parse().unwrap());
    let json: Value = serde_json::from_slice(&body[..length]).unwrap();
    assert_eq!(json["parameters"]["p"], "v");
    assert_eq!(json["parameters"]["priority"], 3);
    let mark = |name: &str| json["parameters"].get(name).cloned();
    assert_eq!(mark("sequence_id"), sequence.map(|mark| json!(mark.id)));
    assert_eq!(mark("sequence_start"), sequence.map(|mark| json!(mark.start)));
    assert_eq!(mark("sequence_end"), sequence.map(|mark| json!(mark.end)));
    assert_eq!(json["outputs"][0], json!({"name": "OUT", "parameters": {"binary_data": true}}));
    let data = &template(bytes).inputs[0].data;
    match form {
        Form::Binary => assert_eq!(body[length..], data[..]),
        Form::Json => assert_eq!(json["inputs"][0]["data"], Value::Array(json::values("INT8", data).unwrap())),
    }
}

#[test]
fn tensors_in_shared_memory_stay_there() {
    let placement =
        Placement { region: "r".into(), inputs: vec![128], outputs: vec![("A".into(), 64, 5), ("B".into(), 192, 6)] };
    let plan = wanted(Protocol::Http, false, Compression::None);
    let request = written(&Prepared::new(&plan, &template(40), Some(&placement)).unwrap(), &Marks::default());
    let at = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let json: Value = serde_json::from_slice(&request[at..]).unwrap();
    assert_eq!(json["inputs"][0]["parameters"], http_place("r", 128, 40));
    assert_eq!(
        json["outputs"],
        json!([
            {"name": "A", "parameters": http_place("r", 64, 5)},
            {"name": "B", "parameters": http_place("r", 192, 6)},
        ])
    );
    let plan = wanted(Protocol::GrpcUnary, false, Compression::None);
    let frame = written(&Prepared::new(&plan, &template(40), Some(&placement)).unwrap(), &Marks::default());
    let message = ModelInferRequest::decode(&frame[PREFIX_BYTES..]).unwrap();
    assert!(message.raw_input_contents.is_empty());
    let number = |number| Some(choice(ParameterChoice::Int64Param(number)));
    assert_eq!(message.inputs[0].parameters.get("shared_memory_offset").cloned(), number(128));
    assert_eq!(message.outputs[1].parameters.get("shared_memory_byte_size").cloned(), number(6));
}

#[test]
fn ids_are_read_back_and_nothing_else_is() {
    let mut text = Vec::new();
    put_id(key(), &mut text);
    assert_eq!((text.len(), read_id(&text)), (16, Some(key())));
    for wrong in [&b""[..], b"12", b"000000000000000g", b"00000000000000000", b"0000000000000001"] {
        assert_eq!(read_id(wrong), None, "{wrong:?}");
    }
}
