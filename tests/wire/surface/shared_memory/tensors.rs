//! Inputs from regions and outputs to them, over HTTP, gRPC and streams.

use super::*;
use nereid_test_support::grpc::{code, decode};
use nereid_test_support::http::infer_with_tail;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each, usual};

#[test]
fn a_tensor_comes_from_a_region_and_goes_to_one_over_http() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let numbers = int32s(1..=5);
        let object = Object::new(&[&numbers[..], &[0xee; 100]].concat());
        registered(&mut peer, "r", &object, 120);
        let values = [input("INPUT0", "INT32", &[5], ("r", 0, 20))];
        // In and out.
        let answer = infer(&mut peer, "plain", &values, &[output("OUTPUT0", ("r", 40, 21))]);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        let described = json!([{ "name": "OUTPUT0", "datatype": "INT32", "shape": [5] }]);
        assert_eq!(answer.json()["outputs"], described);
        assert_eq!(object.read(40, 21), [&numbers[..], &[0xee]].concat());
        // In only, as JSON and as binary data.
        let answer = infer(&mut peer, "plain", &values, &[json!({ "name": "OUTPUT0" })]);
        assert_eq!(answer.json()["outputs"][0]["data"], json!([1, 2, 3, 4, 5]));
        let binary = json!({ "name": "OUTPUT0", "parameters": { "binary_data": true } });
        let answer = infer(&mut peer, "plain", &values, &[binary]);
        assert_eq!(answer.split().1, numbers);
        // Out only, from the tail; binary_data may be said to be off.
        let mut window = output("OUTPUT0", ("r", 64, 8));
        window["parameters"]["binary_data"] = json!(false);
        let sent = json!({
            "inputs": [{ "name": "INPUT0", "datatype": "INT32", "shape": [2], "parameters": { "binary_data_size": 8 } }],
            "outputs": [window],
        });
        peer.send(&infer_with_tail("/v2/models/plain/infer", &sent.to_string(), b"abcdefgh"));
        assert_eq!(peer.answer().json()["outputs"][0]["shape"], json!([2]));
        assert_eq!(object.read(64, 9), b"abcdefgh\xee");
        unregister(&mut peer, None);
        server.stop();
    });
}

#[test]
fn a_tensor_comes_from_a_region_and_goes_to_one_over_grpc() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let numbers = int32s([7, -8, 9]);
        let object = Object::new(&[&numbers[..], &[0xee; 52]].concat());
        registered(&mut peer, "r", &object, 64);
        let mut grpc = Grpc::connect(server.grpc);
        let request = ModelInferRequest {
            model_name: "plain".into(),
            inputs: vec![grpc_input("INPUT0", "INT32", &[3], grpc_place(("r", 0, 12)))],
            outputs: vec![grpc_output("OUTPUT0", grpc_place(("r", 16, 48)))],
            // Nobody's: a tensor in shared memory takes none.
            raw_input_contents: vec!["not mine".into()],
            ..Default::default()
        };
        let response = grpc_infer(&mut grpc, &request).unwrap();
        assert_eq!((response.outputs[0].name.as_str(), &response.outputs[0].shape[..]), ("OUTPUT0", &[3][..]));
        assert_eq!(response.outputs[0].parameters.len(), 0);
        assert_eq!(response.raw_output_contents, [&b""[..]]);
        assert_eq!(object.read(16, 13), [&numbers[..], &[0xee]].concat());
        let without_window = ModelInferRequest { outputs: vec![], ..request.clone() };
        assert_eq!(grpc_infer(&mut grpc, &without_window).unwrap().raw_output_contents, [&numbers[..]]);
        // The same on a stream.
        object.write(16, &[0; 12]);
        let mut stream = grpc.open("/inference.GRPCInferenceService/ModelStreamInfer", &[]);
        for id in ["1", "2"] {
            grpc.send(&mut stream, &ModelInferRequest { id: id.into(), ..request.clone() });
            let message = grpc.next(&mut stream).expect("an answer");
            let answer: ModelStreamInferResponse = decode(&message);
            assert_eq!(answer.error_message, "");
            let response = answer.infer_response.unwrap();
            assert_eq!(response.id, id);
            assert_eq!(response.raw_output_contents, [&b""[..]]);
        }
        assert_eq!(object.read(16, 12), numbers);
        grpc.half_close(&mut stream);
        assert_eq!(grpc.finish(stream).status.code, code::OK);
        server.stop();
    });
}

/// Strings are copied, in portions where they are many; numbers at odd places too.
#[test]
fn strings_and_odd_places() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let mut grpc = Grpc::connect(server.grpc);
    let long = vec![b'x'; 700_000];
    let text = strings(&[b"one", b"", &long, b"\0\xff"]);
    let size = text.len() as u64;
    let object = Object::new(&[&b"."[..], &text, &vec![0; text.len()]].concat());
    registered(&mut peer, "r", &object, 2 * size + 1);
    let answer = infer(
        &mut peer,
        "bytes",
        &[input("INPUT0", "BYTES", &[4], ("r", 1, size))],
        &[output("OUTPUT0", ("r", 1 + size, size))],
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(1 + size, text.len()), text);
    let request = ModelInferRequest {
        model_name: "bytes".into(),
        inputs: vec![grpc_input("INPUT0", "BYTES", &[4], grpc_place(("r", 1, size as i64)))],
        ..Default::default()
    };
    assert_eq!(grpc_infer(&mut grpc, &request).unwrap().raw_output_contents, [&text[..]]);
    let mut stream = grpc.open("/inference.GRPCInferenceService/ModelStreamInfer", &[]);
    grpc.send(&mut stream, &request);
    let answer: ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
    assert_eq!(answer.infer_response.unwrap().raw_output_contents, [&text[..]]);
    drop(stream);
    // One string too few, found in the copy as it is found everywhere.
    let wrong = infer(&mut peer, "bytes", &[input("INPUT0", "BYTES", &[5], ("r", 1, size))], &[]);
    assert_eq!(wrong.status, 400);
    let expected = "[request id: <id_unknown>] expected 5 string elements for inference input 'INPUT0' for model \
                    'bytes', got 4";
    assert_eq!(wrong.error(), expected);
    // Numbers that begin anywhere, and end anywhere.
    for offset in [1, 2, 3, 7, 64, 65] {
        object.write(offset, &int32s([i32::MIN, 5]));
        let inputs = [input("INPUT0", "INT32", &[2], ("r", offset, 8))];
        let answer = infer(&mut peer, "plain", &inputs, &[]);
        assert_eq!(answer.json()["outputs"][0]["data"], json!([i32::MIN, 5]), "offset {offset}");
        let answer = infer(&mut peer, "plain", &inputs, &[output("OUTPUT0", ("r", 1001 + offset, 8))]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(object.read(1001 + offset, 8), int32s([i32::MIN, 5]), "offset {offset}");
    }
    server.stop();
}

/// What is larger than a shard copies itself.
#[test]
fn large_tensors() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let numbers = int32s(0..1_000_000);
        let size = numbers.len() as u64;
        let object = Object::new(&[&numbers[..], &vec![0; numbers.len()]].concat());
        registered(&mut peer, "r", &object, 2 * size);
        let inputs = [input("INPUT0", "INT32", &[1_000_000], ("r", 0, size))];
        let answer = infer(&mut peer, "plain", &inputs, &[output("OUTPUT0", ("r", size, size))]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(object.read(size, numbers.len()) == numbers);
        let binary = json!({ "name": "OUTPUT0", "parameters": { "binary_data": true } });
        let answer = infer(&mut peer, "plain", &inputs, &[binary]);
        assert!(answer.split().1 == numbers);
        server.stop();
    });
}

const RULE: &str = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                    'shared_memory_region' in 'parameters'. But set";

#[test]
fn what_is_wrong_with_a_place_over_http() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[0; 64]);
    registered(&mut peer, "r", &object, 64);
    let asked =
        |parameters: Value| json!({ "name": "INPUT0", "datatype": "INT32", "shape": [4], "parameters": parameters });
    let good = || asked(place("r", 0, 16));
    let with = |key: &str, value: Value| {
        let mut tensor = good();
        tensor["parameters"][key] = value;
        tensor
    };
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let most = u64::MAX;
    for (inputs, status, expected) in [
        (asked(place("x", 0, 16)), 404, "Unable to find shared memory region: 'x'".to_owned()),
        (asked(place("r", 64, 0)), 400, "Invalid offset for shared memory region: 'r'".to_owned()),
        (asked(place("r", 49, 16)), 400, "Invalid offset + byte size for shared memory region: 'r'".to_owned()),
        (
            asked(place("r", 1, most)),
            400,
            format!(
                "Integer overflow detected: byte_size ({most}) + offset (1) exceeds maximum value ({most}) for region 'r'"
            ),
        ),
        (with("binary_data_size", json!(16)), 400, format!("{RULE} 'binary_data_size' 'shared_memory_region'")),
        (with("shared_memory_region", json!(1)), 500, "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string".to_owned()),
        (with("shared_memory_offset", json!(-1)), 500, format!("Unable to parse 'shared_memory_offset': {unsigned}")),
        (with("shared_memory_byte_size", json!("16")), 500, format!("Unable to parse 'shared_memory_byte_size': {unsigned}")),
        (
            asked(place("r", 0, 12)),
            400,
            "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'plain'. Expected 16, got 12".to_owned(),
        ),
        (
            asked(json!({ "shared_memory_region": "r" })),
            400,
            "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'plain'. Expected 16, got 0".to_owned(),
        ),
    ] {
        let answer = infer(&mut peer, "plain", std::slice::from_ref(&inputs), &[]);
        assert_eq!((answer.status, answer.error()), (status, expected), "{inputs}");
    }
    let window = |more: &[(&str, Value)]| {
        let mut window = output("OUTPUT0", ("r", 16, 16));
        more.iter().for_each(|(key, value)| window["parameters"][*key] = value.clone());
        window
    };
    for (outputs, status, expected) in [
        (output("OUTPUT0", ("x", 0, 16)), 404, "Unable to find shared memory region: 'x'"),
        (
            json!({ "name": "OUTPUT0", "parameters": { "shared_memory_offset": "x" } }),
            500,
            "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (output("OUTPUT0", ("r", 60, 16)), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            window(&[("classification", json!(1)), ("binary_data", json!(true))]),
            400,
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            window(&[("binary_data", json!(true))]),
            400,
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        (
            output("OUTPUT0", ("r", 16, 15)),
            500,
            "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 bytes \
             to hold the results",
        ),
        (
            json!({ "name": "OUTPUT0", "parameters": { "shared_memory_region": "r" } }),
            500,
            "shared memory size specified with the request for output 'OUTPUT0' (0 bytes) should be at least 16 bytes to \
             hold the results",
        ),
    ] {
        let answer = infer(&mut peer, "plain", &[good()], std::slice::from_ref(&outputs));
        assert_eq!((answer.status, answer.error().as_str()), (status, expected), "{outputs}");
    }
    // What was refused has let go of the region, and so has what failed.
    unregister(&mut peer, Some("r"));
    assert_eq!(listed(&mut peer), [""; 0]);
    server.stop();
}

#[test]
fn what_is_wrong_with_a_place_over_grpc() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let mut grpc = Grpc::connect(server.grpc);
    let object = Object::new(&[0; 64]);
    registered(&mut peer, "r", &object, 64);
    let with = |key: &str, value: Option<InferParameter>| {
        let mut place = grpc_place(("r", 0, 16));
        match value {
            Some(value) => place.insert(key.to_owned(), value),
            None => place.remove(key),
        };
        place
    };
    let flag = || InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    let invalid = code::INVALID_ARGUMENT;
    let alone =
        |key: &str| format!("'{key}' can not be specified without 'shared_memory_region' parameter for tensor 'T'");
    let most = u64::MAX;
    let table = [
        (
            with("shared_memory_region", Some(number(1))),
            invalid,
            "invalid value type for 'shared_memory_region' parameter for tensor 'T', expected string_param.".to_owned(),
        ),
        (with("shared_memory_region", None), invalid, alone("shared_memory_offset")),
        ([("shared_memory_byte_size".to_owned(), number(16))].into(), invalid, alone("shared_memory_byte_size")),
        (
            with("shared_memory_offset", Some(text("0"))),
            invalid,
            "invalid value type for 'shared_memory_offset' parameter for tensor 'T', expected int64_param.".to_owned(),
        ),
        (
            with("shared_memory_byte_size", Some(flag())),
            invalid,
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'T', expected int64_param."
                .to_owned(),
        ),
        (
            with("shared_memory_byte_size", None),
            invalid,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'T'"
                .to_owned(),
        ),
        (grpc_place(("x", 0, 16)), code::NOT_FOUND, "Unable to find shared memory region: 'x'".to_owned()),
        (grpc_place(("r", -1, 16)), invalid, "Invalid offset for shared memory region: 'r'".to_owned()),
        (grpc_place(("r", 56, 16)), invalid, "Invalid offset + byte size for shared memory region: 'r'".to_owned()),
        (
            grpc_place(("r", 8, -1)),
            invalid,
            format!(
                "Integer overflow detected: byte_size ({most}) + offset (8) exceeds maximum value ({most}) for region 'r'"
            ),
        ),
    ];
    let raw = || ModelInferRequest {
        model_name: "plain".into(),
        inputs: vec![grpc_input("INPUT0", "INT32", &[4], Parameters::new())],
        raw_input_contents: vec![vec![0; 16].into()],
        ..Default::default()
    };
    for (place, code, expected) in table {
        let input = ModelInferRequest {
            inputs: vec![grpc_input("INPUT0", "INT32", &[4], place.clone())],
            raw_input_contents: vec![],
            ..raw()
        };
        let status = grpc_infer(&mut grpc, &input).unwrap_err();
        assert_eq!((status.code, status.message), (code, expected.replace("'T'", "'INPUT0'")));
        let output = ModelInferRequest { outputs: vec![grpc_output("OUTPUT0", place)], ..raw() };
        let status = grpc_infer(&mut grpc, &output).unwrap_err();
        assert_eq!((status.code, status.message), (code, expected.replace("'T'", "'OUTPUT0'")));
    }
    let mut twice = raw();
    twice.inputs[0].parameters = grpc_place(("r", 0, 16));
    twice.inputs[0].contents = Some(InferTensorContents::default());
    let status = grpc_infer(&mut grpc, &twice).unwrap_err();
    let expected = "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'plain'";
    assert_eq!((status.code, status.message.as_str()), (invalid, expected));
    let mut classes = grpc_place(("r", 0, 16));
    classes.insert("classification".to_owned(), number(1));
    let both = ModelInferRequest { outputs: vec![grpc_output("OUTPUT0", classes)], ..raw() };
    let status = grpc_infer(&mut grpc, &both).unwrap_err();
    let expected = "output can't set both 'shared_memory_region' and 'classification'";
    assert_eq!((status.code, status.message.as_str()), (invalid, expected));
    // Data that is missing is found before what is wrong with an output.
    let mut nothing = raw();
    nothing.raw_input_contents.clear();
    nothing.outputs = vec![grpc_output("OUTPUT0", grpc_place(("x", 0, 16)))];
    let status = grpc_infer(&mut grpc, &nothing).unwrap_err();
    assert_eq!(status.message, "unable to find data for input tensor 'INPUT0' for model 'plain' in request.");
    let small = ModelInferRequest { outputs: vec![grpc_output("OUTPUT0", grpc_place(("r", 0, 15)))], ..raw() };
    let status = grpc_infer(&mut grpc, &small).unwrap_err();
    let expected = "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 \
                    bytes to hold the results";
    assert_eq!((status.code, status.message.as_str()), (13, expected));
    unregister(&mut peer, Some("r"));
    assert_eq!(listed(&mut peer), [""; 0]);
    server.stop();
}

#[test]
fn an_output_without_bytes_never_touches_its_window() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[0xee; 16]);
    registered(&mut peer, "r", &object, 16);
    let empty = json!({ "name": "INPUT0", "datatype": "INT32", "shape": [0], "data": [] });
    let answer = infer(&mut peer, "plain", &[empty], &[output("OUTPUT0", ("r", 0, 0))]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"], json!([{ "name": "OUTPUT0", "datatype": "INT32", "shape": [0] }]));
    let mut grpc = Grpc::connect(server.grpc);
    let request = ModelInferRequest {
        model_name: "plain".into(),
        inputs: vec![grpc_input("INPUT0", "INT32", &[0], grpc_place(("r", 0, 0)))],
        outputs: vec![grpc_output("OUTPUT0", grpc_place(("r", 15, 1)))],
        ..Default::default()
    };
    assert_eq!(grpc_infer(&mut grpc, &request).unwrap().raw_output_contents, [&b""[..]]);
    assert_eq!(object.read(0, 16), [0xee; 16]);
    // FP16 has no JSON form, which an output in shared memory does not need.
    object.write(0, b"abcd");
    let half = input("INPUT0", "FP16", &[2], ("r", 0, 4));
    let answer = infer(&mut peer, "half", &[half], &[output("OUTPUT0", ("r", 8, 4))]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(8, 4), b"abcd");
    server.stop();
}

/// contract/grpc.md section 5: what gRPC cannot carry is an error of the call. The region is of empty pages, and the
/// model's answer is the region itself, so that little memory is needed.
#[test]
fn an_answer_of_two_gibibytes_is_refused_over_grpc() {
    const BYTES: u64 = 1 << 31;
    let info = std::fs::read_to_string("/proc/meminfo").expect("the host's memory");
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    if available.and_then(|kib| kib.parse::<u64>().ok()).is_none_or(|kib| kib < 8 << 20) {
        return skip("less than 8 GiB of memory are free");
    }
    let (repository, object) = (Repository::new(), Object::new(&[]));
    repository.identity("raw", 0, &[Pair::new("UINT8", "-1")]);
    object.truncate(BYTES);
    let server = Server::start(usual(), repository.path(), &[ALLOWED]);
    registered(&mut Peer::connect(server.http), "large", &object, BYTES);
    let mut grpc = Grpc::connect(server.grpc);
    let mut ask = |elements: i64| {
        let input = grpc_input("INPUT0", "UINT8", &[elements], grpc_place(("large", 0, elements)));
        let request =
            ModelInferRequest { model_name: "raw".to_owned(), inputs: vec![input], ..ModelInferRequest::default() };
        grpc_infer(&mut grpc, &request)
    };
    let refused = ask(BYTES as i64).expect_err("too large an answer");
    let text = "Response has byte size 21474";
    assert!(refused.message.starts_with(text), "{refused:?}");
    assert!(refused.message.ends_with(" which exceeds gRPC's byte size limit 2147483647."), "{refused:?}");
    assert_eq!(refused.code, code::INVALID_ARGUMENT);
    // The connection is as good as before.
    assert_eq!(ask(3).expect("a small answer").raw_output_contents[0][..], [0; 3]);
    server.stop();
}
