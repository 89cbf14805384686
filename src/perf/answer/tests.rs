//! Answers are taken apart and held against what was expected.

use std::collections::BTreeMap;

use prost::bytes::Bytes;
use serde_json::json;

use super::*;
use nereid_memory::Slice;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_response::InferOutputTensor;
use nereid_wire::inference::{InferParameter, ModelStreamInferResponse};

fn response(outputs: &[(&str, &[u8])], is_final: Option<ParameterChoice>) -> ModelInferResponse {
    let mut parameters = BTreeMap::from([(
        "other".to_owned(),
        InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) },
    )]);
    if let Some(choice) = is_final {
        parameters.insert("triton_final_response".to_owned(), InferParameter { parameter_choice: Some(choice) });
    }
    ModelInferResponse {
        model_name: "m".to_owned(),
        id: "id".to_owned(),
        parameters,
        outputs: outputs
            .iter()
            .map(|(name, _)| InferOutputTensor { name: (*name).to_owned(), ..Default::default() })
            .collect(),
        raw_output_contents: outputs.iter().map(|(_, data)| Bytes::copy_from_slice(data)).collect(),
        ..Default::default()
    }
}

fn streamed(response: Option<ModelInferResponse>, error: &str) -> Vec<u8> {
    ModelStreamInferResponse { error_message: error.to_owned(), infer_response: response }.encode_to_vec()
}

#[test]
fn streamed_messages_tell_their_id_and_their_end() {
    let cases = [
        (None, None),
        (Some(ParameterChoice::BoolParam(true)), Some(true)),
        (Some(ParameterChoice::BoolParam(false)), Some(false)),
        (Some(ParameterChoice::StringParam("true".to_owned())), Some(false)),
        (Some(ParameterChoice::DoubleParam(1.0)), Some(false)),
    ];
    for (choice, is_final) in cases {
        let message = streamed(Some(response(&[("A", &[7; 300])], choice)), "");
        let read = read_streamed(&message).unwrap();
        assert_eq!((read.id, read.is_final, read.has_outputs, read.error), (&b"id"[..], is_final, true, &b""[..]));
    }
    let message = streamed(Some(response(&[], Some(ParameterChoice::BoolParam(true)))), "broken");
    let read = read_streamed(&message).unwrap();
    assert_eq!((read.is_final, read.has_outputs, read.error), (Some(true), false, &b"broken"[..]));
    assert_eq!(read_streamed(&streamed(None, "x")).unwrap().error, b"x");
    assert_eq!(read_streamed(b""), Some(Streamed::default()));
}

#[test]
fn broken_messages_are_none_and_never_panic() {
    let whole = streamed(Some(response(&[("A", b"data")], Some(ParameterChoice::BoolParam(true)))), "e");
    for len in 0..whole.len() {
        // Some prefixes are messages, as the fields of one may be left out.
        let _ = read_streamed(&whole[..len]);
    }
    for wrong in
        [&b"\xff"[..], b"\x0a\x05ab", b"\x0b", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x12\x02\x1a\x05"]
    {
        assert_eq!(read_streamed(wrong), None, "{wrong:?}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut mutant = whole.clone();
            mutant[at] ^= 1 << bit;
            let _ = read_streamed(&mutant);
        }
    }
}

fn expecting(outputs: &[(&str, &[u8])]) -> Expectation {
    let outputs = outputs.iter().map(|(name, data)| Expected { name: (*name).to_owned(), data: Slice::copy_of(data) });
    Expectation::new(outputs.collect(), None)
}

#[test]
fn answers_are_held_against_what_is_expected() {
    let message = response(&[("A", b"aa"), ("B", b"bb")], None).encode_to_vec();
    type Case<'a> = (&'a [(&'a str, &'a [u8])], Result<(), &'a str>);
    let cases: [Case<'_>; 5] = [
        (&[], Ok(())),
        (&[("B", b"bb")], Ok(())),
        (&[("B", b"bb"), ("A", b"aa")], Ok(())),
        (&[("A", b"bb")], Err("output 'A' is not what was expected")),
        (&[("C", b"")], Err("output 'C' is not in the answer")),
    ];
    for (outputs, outcome) in cases {
        assert_eq!(expecting(outputs).check_message(&message), outcome.map_err(str::to_owned));
        let header = json!({"outputs": [
            {"name": "A", "datatype": "INT8", "parameters": {"binary_data_size": 2}},
            {"name": "B", "datatype": "INT8", "data": [[98], [98.0]]},
        ]});
        let mut body = header.to_string().into_bytes();
        let length = body.len();
        body.extend_from_slice(b"aa");
        assert_eq!(expecting(outputs).check_http(&body, Some(length)), outcome.map_err(str::to_owned));
    }
    assert!(expecting(&[("A", b"")]).check_message(b"\xff").unwrap_err().starts_with("a broken answer"));
    for (body, length) in [(&b"{"[..], None), (b"{}", Some(3)), (b"", None)] {
        assert!(expecting(&[("A", b"")]).check_http(body, length).is_err());
    }
    let cut = br#"{"outputs":[{"name":"A","parameters":{"binary_data_size":9}}]}"#;
    assert_eq!(
        expecting(&[]).check_http(cut, Some(cut.len())),
        Err("an answer that ends inside of a tensor".to_owned())
    );
}
