//! The load's requests of which no two are the same (benches/side/varied.rs).

use std::collections::BTreeSet;

use nereid_wire::inference::ModelInferRequest;
use prost::Message;
use serde_json::{Value, json};

use crate::side::question::PREFIX_BYTES;
use crate::side::request::{Request, UNREPEATED};
use crate::side::varied::Pair;

const MADE: usize = 200;

/// The JSON and the tensors behind it.
fn parsed(request: &[u8]) -> (String, Value, Vec<u8>) {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let (head, body) = (str::from_utf8(&request[..end]).expect("text"), &request[end..]);
    let field = |name: &str| -> usize {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name)).expect("a field");
        line.split_once(": ").and_then(|(_, value)| value.parse().ok()).expect("a number")
    };
    assert_eq!(field("content-length"), body.len());
    let (text, tail) = body.split_at(field("inference-header-content-length"));
    let text = str::from_utf8(text).expect("text").to_owned();
    (text.clone(), serde_json::from_str(&text).expect("JSON"), tail.to_vec())
}

#[test]
fn both_protocols_carry_the_same_request() {
    for number in 0..MADE {
        let pair = Pair::varied("m", number);
        let grpc = pair.grpc_request();
        let message = ModelInferRequest::decode(&grpc[PREFIX_BYTES..]).expect("a request");
        let (_, json, tail) = parsed(&pair.http_request());
        assert_eq!((&json["id"], message.model_name.as_str()), (&json!(message.id), "m"));
        let parameters = json["parameters"].as_object().expect("parameters");
        let names: BTreeSet<&String> = parameters.keys().collect();
        assert!(names.into_iter().eq(message.parameters.keys()), "{parameters:?}");
        assert_eq!(parameters["tag"], UNREPEATED);
        let mut behind = &tail[..];
        let inputs = json["inputs"].as_array().expect("inputs");
        assert_eq!(inputs.len(), message.inputs.len());
        for ((input, sent), data) in inputs.iter().zip(&message.inputs).zip(&message.raw_input_contents) {
            assert_eq!((&input["name"], &input["shape"]), (&json!(sent.name), &json!(sent.shape)));
            assert_eq!(input["parameters"]["binary_data_size"], data.len());
            assert_eq!(sent.shape.iter().product::<i64>() as usize * 4, data.len());
            let (own, rest) = behind.split_at(data.len());
            assert_eq!(own, &data[..]);
            behind = rest;
        }
        assert!(behind.is_empty());
        let outputs = json["outputs"].as_array().expect("outputs").iter().map(|output| &output["name"]);
        assert!(outputs.eq(message.outputs.iter().map(|output| &output.name)), "{json}");
    }
}

#[test]
fn everything_that_may_vary_varies() {
    let (mut shapes, mut orders, mut sets, mut members) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut bytes = BTreeSet::new();
    for number in 0..MADE {
        let pair = Pair::varied("m", number);
        let question = &pair.question;
        let of = |name: &str| question.inputs.iter().find(|input| input.name == name).expect("an input").shape.clone();
        shapes.insert((of("INPUT0"), of("INPUT1")));
        let names = question.inputs.iter().chain(&question.outputs).map(|tensor| tensor.name);
        orders.insert(names.collect::<Vec<_>>());
        sets.insert(pair.parameters.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let text = pair.json();
        let at = |name: &str| text.find(&format!("\"{name}\":")).expect("a member");
        members.insert((at("id") < at("inputs"), at("inputs") < at("outputs"), at("datatype") < at("shape")));
        bytes.insert(pair.grpc_request().to_vec());
        assert_eq!(pair.json(), text, "the same number makes the same request");
    }
    assert!(shapes.len() > MADE / 2, "{}", shapes.len());
    assert_eq!(orders.len(), 4, "{orders:?}");
    assert!(sets.len() > 10, "{sets:?}");
    assert!(members.len() >= 6, "{members:?}");
    assert_eq!(bytes.len(), MADE);
}

#[test]
fn a_number_makes_what_comes_again_different() {
    let pairs: Vec<Pair> = (0..3).map(|number| Pair::varied("m", number)).collect();
    let requests = Request::in_turn(pairs.iter().map(Pair::http_request));
    let turn = requests.turn();
    assert!(!requests.has_one_answer());
    let mut seen = BTreeSet::new();
    for nth in 0..9 {
        let request = requests.next();
        assert_eq!(turn.get(), nth % 3);
        let (_, json, _) = parsed(&request);
        let id = json["id"].as_str().expect("an id");
        let number = id.rsplit_once('-').expect("a number").1;
        assert_eq!(json["parameters"]["tag"], format!("unrepeated-{number}"));
        assert!(seen.insert(number.to_owned()), "{number} came before");
        let shape = &pairs[turn.get()].question.inputs[0].shape;
        assert_eq!(json["inputs"][0]["shape"], json!(shape));
    }
}

#[test]
fn a_repeated_request_stays_as_it_is() {
    for number in 0..4 {
        let pair = Pair::repeated("m", number);
        let request = Request::new(pair.http_request());
        assert!(request.has_one_answer());
        assert_eq!(request.next()[..], request.next()[..]);
    }
}
