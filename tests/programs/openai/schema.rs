//! Bodies that do not fit the schema (contract/openai.md section 1.2): no model is asked.

use serde_json::{Value, json};

use super::frontend::{CHAT, COMPLETIONS, EMBEDDINGS, Frontend, chat, completion, has_run, plain_repository, with};
use nereid_test_support::http::Peer;
use nereid_test_support::variant::usual;

fn start() -> (nereid_test_support::repository::Repository, Frontend) {
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &["--openai-compat=triton"]);
    (repository, frontend)
}

/// The entries of a 422 for `body`.
fn entries(frontend: &Frontend, path: &str, body: &Value) -> Vec<Value> {
    let detail = frontend.refused(422, path, body);
    detail.as_array().unwrap_or_else(|| panic!("{body}: {detail}")).clone()
}

fn entry(kind: &str, loc: Value, msg: &str, input: Value, ctx: Option<Value>) -> Value {
    let mut entry = json!({"type": kind, "loc": loc, "msg": msg, "input": input});
    if let Some(ctx) = ctx {
        entry["ctx"] = ctx;
    }
    entry
}

#[test]
fn one_wrong_member_is_one_entry() {
    if has_run() {
        return;
    }
    let (_repository, frontend) = start();
    let shown = |limit: &Value| limit.as_f64().map(|limit| limit.to_string()).unwrap_or_default();
    let over = |field: &str, input: Value, limit: Value| {
        let msg = format!("Input should be less than or equal to {}", shown(&limit));
        entry("less_than_equal", json!(["body", field]), &msg, input, Some(json!({"le": limit})))
    };
    let under = |field: &str, input: Value, limit: Value| {
        let msg = format!("Input should be greater than or equal to {}", shown(&limit));
        entry("greater_than_equal", json!(["body", field]), &msg, input, Some(json!({"ge": limit})))
    };
    let plain =
        |kind: &str, field: &str, msg: &str, input: Value| entry(kind, json!(["body", field]), msg, input, None);
    let bool_msg = "Input should be a valid boolean, unable to interpret input";
    let fraction = "Input should be a valid integer, got a number with a fractional part";
    let unparsed = "Input should be a valid integer, unable to parse string as an integer";
    for (member, value, expected) in [
        ("temperature", json!(2.1), over("temperature", json!(2.1), json!(2.0))),
        ("temperature", json!(-0.1), under("temperature", json!(-0.1), json!(0.0))),
        ("top_p", json!(1.5), over("top_p", json!(1.5), json!(1.0))),
        ("frequency_penalty", json!(-2.5), under("frequency_penalty", json!(-2.5), json!(-2.0))),
        ("presence_penalty", json!(3), over("presence_penalty", json!(3), json!(2.0))),
        ("n", json!(129), over("n", json!(129), json!(128))),
        ("n", json!(0), under("n", json!(0), json!(1))),
        ("max_tokens", json!(-1), under("max_tokens", json!(-1), json!(0))),
        ("max_tokens", json!(1.5), plain("int_from_float", "max_tokens", fraction, json!(1.5))),
        ("max_tokens", json!("many"), plain("int_parsing", "max_tokens", unparsed, json!("many"))),
        ("seed", json!([]), plain("int_type", "seed", "Input should be a valid integer", json!([]))),
        ("stream", json!("perhaps"), plain("bool_parsing", "stream", bool_msg, json!("perhaps"))),
        ("stream", json!(2), plain("bool_parsing", "stream", bool_msg, json!(2))),
        ("user", json!(5), plain("string_type", "user", "Input should be a valid string", json!(5))),
        (
            "parallel_tool_calls",
            json!(true),
            plain("extra_forbidden", "parallel_tool_calls", "Extra inputs are not permitted", json!(true)),
        ),
    ] {
        for (path, body) in [(CHAT, chat("plain", "x")), (COMPLETIONS, completion("plain", "x"))] {
            let wrong = with(&body, json!({ member: value }));
            assert_eq!(entries(&frontend, path, &wrong), std::slice::from_ref(&expected), "{path}");
        }
    }
    let seven = entries(&frontend, COMPLETIONS, &with(&completion("plain", "x"), json!({"logprobs": 7})));
    assert_eq!(seven, [over("logprobs", json!(7), json!(5))]);
    let many = entries(&frontend, CHAT, &with(&chat("plain", "x"), json!({"top_logprobs": 21})));
    assert_eq!(many, [over("top_logprobs", json!(21), json!(20))]);
    frontend.stop();
}

#[test]
fn what_is_missing_is_named_in_the_order_of_the_schema() {
    if has_run() {
        return;
    }
    let (_repository, frontend) = start();
    let missing = |field: &str| entry("missing", json!(["body", field]), "Field required", json!({}), None);
    assert_eq!(entries(&frontend, COMPLETIONS, &json!({})), [missing("model"), missing("prompt")]);
    let chats = entries(&frontend, CHAT, &json!({}));
    let mut names: Vec<&str> = chats.iter().filter_map(|entry| entry["loc"][1].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["messages", "model"]);
    assert!(chats.iter().all(|entry| entry["msg"] == "Field required"), "{chats:?}");
    let embeddings = entries(&frontend, EMBEDDINGS, &json!({}));
    assert_eq!(embeddings.len(), 2, "{embeddings:?}");

    let short = entries(&frontend, CHAT, &json!({"model": "plain", "messages": []}));
    let ctx = json!({"field_type": "List", "min_length": 1, "actual_length": 0});
    let msg = "List should have at least 1 item after validation, not 0";
    assert_eq!(short, [entry("too_short", json!(["body", "messages"]), msg, json!([]), Some(ctx))]);
    for input in [json!(""), json!([])] {
        let short = entries(&frontend, EMBEDDINGS, &json!({"model": "plain", "input": input}));
        assert_eq!(short[0]["msg"], "Value should have at least 1 item after validation, not 0", "{short:?}");
        assert_eq!(short[0]["ctx"]["field_type"], "Value");
    }
    // Every branch of the union says what it misses.
    let branches = entries(&frontend, CHAT, &json!({"model": "plain", "messages": [{}]}));
    assert_eq!(branches.len(), 11, "{branches:?}");
    assert_eq!(branches[0]["msg"], "Field required");
    assert_eq!(branches[0]["loc"][3], "ChatCompletionRequestSystemMessage");
    let developer = json!({"model": "plain", "messages": [{"role": "developer", "content": "x"}]});
    assert_eq!(frontend.post(CHAT, &developer).status, 422);
    frontend.stop();
}

#[test]
fn bodies_that_are_no_objects_of_json_are_refused() {
    if has_run() {
        return;
    }
    let (_repository, frontend) = start();
    let post = |body: &[u8], kind: Option<&str>| {
        let headers: Vec<(&str, &str)> = kind.iter().map(|kind| ("Content-Type", *kind)).collect();
        let answer = Peer::connect(frontend.address).post(COMPLETIONS, &headers, body);
        assert_eq!(answer.status, 422, "{}", answer.text());
        answer.json()["detail"].clone()
    };
    let object = "Input should be a valid dictionary or object to extract fields from";
    let no_object = |input: Value| json!([entry("model_attributes_type", json!(["body"]), object, input, None)]);
    assert_eq!(post(b"", None), json!([entry("missing", json!(["body"]), "Field required", Value::Null, None)]));
    assert_eq!(post(b"[1]", None), no_object(json!([1])));
    assert_eq!(post(b"\"x\"", Some("application/json")), no_object(json!("x")));
    assert_eq!(post(b"{}", Some("text/plain")), no_object(json!("{}")));
    assert_eq!(post(b"{}", Some("application/vnd.x+json"))[0]["type"], "missing");
    for (body, at, error) in [
        ("{", 1, "Expecting property name enclosed in double quotes"),
        ("{\"model\": }", 10, "Expecting value"),
        ("{\"model\": \"x\"", 13, "Expecting ',' delimiter"),
        ("{} x", 3, "Extra data"),
    ] {
        let expected =
            entry("json_invalid", json!(["body", at]), "JSON decode error", json!({}), Some(json!({ "error": error })));
        assert_eq!(post(body.as_bytes(), None), json!([expected]), "{body}");
    }
    frontend.stop();
}

/// Numbers from texts, integers from floats, booleans from texts: all of these fit, and the next check refuses them.
#[test]
fn what_python_would_take_is_taken() {
    if has_run() {
        return;
    }
    let (_repository, frontend) = start();
    let body = completion("absent", "x");
    for more in [
        json!({"temperature": "0.5", "max_tokens": "7", "n": 1.0, "seed": true, "stream": "off"}),
        json!({"temperature": true, "top_p": null, "n": null, "stream": "Yes", "echo": 0}),
        json!({"stop": "x", "user": "me", "max_tokens": 0}),
        json!({"stop": ["x", "y", "z", "a", "b"], "stream_options": {"include_usage": "true", "more": 1}}),
    ] {
        let answer = frontend.post(COMPLETIONS, &with(&body, more));
        assert_eq!((answer.status, answer.text().as_str()), (400, "{\"detail\":\"Unknown model: absent\"}"));
    }
    let tools = json!([{"type": "any", "function": {"name": "f", "strict": true}, "more": 1}]);
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "x"}], "more": 1}]);
    let accepted = json!({"model": "absent", "messages": messages, "tools": tools, "tool_choice": "none",
        "response_format": {"type": "json_object", "more": 2}, "functions": [{"name": "f"}], "function_call": "auto"});
    assert_eq!(frontend.refused(400, CHAT, &accepted), "Unknown model: absent");
    let schema = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}});
    assert_eq!(frontend.post(CHAT, &with(&chat("absent", "x"), schema)).status, 422);
    frontend.stop();
}

#[test]
fn a_failure_of_the_schema_has_an_error_for_openais_clients() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &[]);
    let answer = frontend.post(COMPLETIONS, &json!({"model": "plain", "prompt": "x", "temperature": 3})).json();
    assert_eq!(answer["detail"][0]["type"], "less_than_equal", "{answer}");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("Input should be less than or equal to 2"), "{message}");
    assert_eq!(answer["error"]["type"], "invalid_request_error");
    frontend.stop();
}

/// Python reads NaN, and its JSON cannot say it: upstream's answer is a plain 500, which is no client's business.
#[test]
fn numbers_that_are_none_are_refused() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    for (compat, status) in [("--openai-compat=openai", 422), ("--openai-compat=triton", 500)] {
        let frontend = Frontend::start_without_python(usual(), &repository, &[compat]);
        for number in ["NaN", "Infinity", "1e400"] {
            let body = format!("{{\"model\":\"plain\",\"prompt\":\"x\",\"temperature\":{number}}}");
            let answer = Peer::connect(frontend.address).post(COMPLETIONS, &[], body.as_bytes());
            assert_eq!(answer.status, status, "{number}: {}", answer.text());
            match status {
                500 => assert_eq!(answer.text(), "Internal Server Error"),
                _ => assert_eq!(answer.json()["detail"][0]["input"], Value::Null),
            }
        }
        frontend.stop();
    }
}

#[test]
fn deep_and_long_bodies_cost_no_more_than_their_bytes() {
    if has_run() {
        return;
    }
    let (_repository, frontend) = start();
    let deep = format!("{{\"model\":\"x\",\"prompt\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let answer = Peer::connect(frontend.address).post(COMPLETIONS, &[], deep.as_bytes());
    assert!((400..500).contains(&answer.status), "{}", answer.status);
    let members: Vec<String> = (0..100_000).map(|number| format!("\"m{number}\":1")).collect();
    let wide = format!("{{\"model\":\"x\",\"prompt\":\"x\",{}}}", members.join(","));
    let answer = Peer::connect(frontend.address).post(COMPLETIONS, &[], wide.as_bytes());
    assert_eq!(answer.status, 422);
    let messages = vec![json!({}); 20_000];
    let answer = frontend.post(CHAT, &json!({"model": "x", "messages": messages}));
    assert_eq!(answer.status, 422);
    assert_eq!(frontend.get("/health/ready").status, 200);
    frontend.stop();
}
