//! Bodies, and what is read of them or told of them.

mod beyond;

use super::*;
use crate::request::{
    Chat, Completions, Content, EmbeddingInput, Embeddings, Message, Part, Prompt, Sampling, StreamOptions, Tool,
    ToolCall, ToolChoice,
};

const TRITON: Rules = Rules { compat: Compat::Triton, extensions: false };
const OPENAI: Rules = Rules { compat: Compat::OpenAi, extensions: true };

/// Pairs of lines: an operation and a body, then the status and the body that FastAPI 0.121.2 with pydantic 2.14.3
/// answers by the models of tests/python/openai_schema.py, which made them.
const BODIES: &str = include_str!("tests/bodies.txt");

fn answer(operation: Operation, body: &[u8], rules: &Rules) -> (u16, String) {
    match read(operation, body, true, rules) {
        Ok(_) => (200, "null".to_owned()),
        Err(refusal) => {
            let mut text = String::new();
            refusal.body(rules.compat, &mut text);
            (refusal.status, text)
        }
    }
}

fn chat(body: &str, rules: &Rules) -> Chat {
    match read(Operation::Chat, body.as_bytes(), true, rules) {
        Ok(Request::Chat(chat)) => *chat,
        other => panic!("{other:?}"),
    }
}

fn completions(body: &str, rules: &Rules) -> Completions {
    match read(Operation::Completions, body.as_bytes(), true, rules) {
        Ok(Request::Completions(completions)) => *completions,
        other => panic!("{other:?}"),
    }
}

fn embeddings(body: &str, rules: &Rules) -> Embeddings {
    match read(Operation::Embeddings, body.as_bytes(), true, rules) {
        Ok(Request::Embeddings(embeddings)) => *embeddings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bodies_are_answered_as_pydantic_answers() {
    let mut lines = BODIES.lines();
    let mut count = 0;
    while let (Some(request), Some(expected)) = (lines.next(), lines.next()) {
        let (operation, body) = request.split_once('\t').unwrap();
        let operation = match operation {
            "chat" => Operation::Chat,
            "completions" => Operation::Completions,
            "embeddings" => Operation::Embeddings,
            other => panic!("{other}"),
        };
        let (status, text) = answer(operation, body.as_bytes(), &TRITON);
        assert_eq!(format!("{status}\t{text}"), expected, "{request}");
        count += 1;
    }
    assert!(count > 100);
}

#[test]
fn bodies_that_are_not_json_are_told() {
    let missing = r#"{"detail":[{"type":"missing","loc":["body"],"msg":"Field required","input":null}]}"#;
    assert_eq!(answer(Operation::Chat, b"", &TRITON), (422, missing.to_owned()));
    let unreadable = r#"{"detail":"There was an error parsing the body"}"#;
    assert_eq!(answer(Operation::Chat, b"\"\xff\"", &TRITON), (400, unreadable.to_owned()));
    assert_eq!(answer(Operation::Chat, "[".repeat(300).as_bytes(), &TRITON), (400, unreadable.to_owned()));
    let (status, text) = answer(Operation::Chat, "[".repeat(300).as_bytes(), &OPENAI);
    assert_eq!(status, 400);
    assert!(text.contains("There was an error parsing the body: the body nests"), "{text}");
    let Err(refusal) = read(Operation::Chat, b"{\"a\": 1}", false, &TRITON) else { panic!("a body that is no JSON") };
    let mut text = String::new();
    refusal.body(Compat::Triton, &mut text);
    let entry = concat!(
        r#"{"type":"model_attributes_type","loc":["body"],"#,
        r#""msg":"Input should be a valid dictionary or object to extract fields from","input":"{\"a\": 1}"}"#
    );
    assert_eq!(text, format!("{{\"detail\":[{entry}]}}"));
}

#[test]
fn entries_and_what_they_repeat_are_bounded() {
    let items = vec!["{}"; 100_000].join(",");
    let Err(refusal) = read(Operation::Chat, format!("{{\"messages\":[{items}]}}").as_bytes(), true, &TRITON) else {
        panic!("messages without anything")
    };
    let crate::error::Detail::Schema(errors) = refusal.detail else { panic!("{:?}", refusal.detail) };
    assert_eq!(errors.len(), 1000);
    // Each of the entries would repeat ten million bytes.
    let long = format!("{{\"messages\":[{{\"role\":\"user\",\"x\":\"{}\"}}],\"model\":\"m\"}}", "x".repeat(10_000_000));
    let Err(refusal) = read(Operation::Chat, long.as_bytes(), true, &TRITON) else { panic!("no content") };
    let mut text = String::new();
    refusal.body(Compat::Triton, &mut text);
    assert!(text.len() < 10_000);
}

#[test]
fn members_have_their_defaults_and_null_is_not_one() {
    let default = Sampling {
        temperature: Some(0.7),
        top_p: Some(1.0),
        frequency_penalty: Some(0.0),
        presence_penalty: Some(0.0),
        n: 1,
        ..Sampling::default()
    };
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let request = chat(body, &TRITON);
    assert_eq!(request.sampling, default);
    assert_eq!((request.logprobs, request.top_logprobs, request.tools, request.tool_choice), (false, None, None, None));
    let body = r#"{"model":"m","prompt":"hi","temperature":null,"top_p":null,"frequency_penalty":null,"n":null,
        "presence_penalty":null,"stream":null,"stop":null,"logit_bias":null,"echo":null,"best_of":null}"#;
    let request = completions(body, &TRITON);
    assert_eq!(request.sampling, Sampling { n: 1, ..Sampling::default() });
    assert_eq!((request.echo, request.best_of, request.has_suffix), (None, Some(None), false));
    let request = completions(r#"{"model":"m","prompt":"hi"}"#, &TRITON);
    assert_eq!(request.sampling, Sampling { temperature: Some(1.0), ..default });
    assert_eq!((request.echo, request.best_of), (None, None));
}

#[test]
fn numbers_are_read_laxly() {
    let body = r#"{"model":"m","prompt":"hi","max_tokens":"1_0.0","min_tokens":2.0,"seed":true,"temperature":"1e-1",
        "top_p":true,"stream":"YES","ignore_eos":1,"echo":0.0,"best_of":"2","logprobs":" 3 ","stop":["a","b"],
        "stream_options":{"include_usage":"on","continuous_usage_stats":true},"logit_bias":{},"suffix":""}"#;
    let request = completions(body, &TRITON);
    let expected = Sampling {
        max_tokens: Some(10),
        min_tokens: Some(2),
        seed: Some(1),
        temperature: Some(0.1),
        top_p: Some(1.0),
        frequency_penalty: Some(0.0),
        presence_penalty: Some(0.0),
        stream: true,
        ignore_eos: true,
        n: 1,
        stop: Some(vec!["a".to_owned(), "b".to_owned()]),
        stream_options: Some(StreamOptions { include_usage: true, continuous_usage_stats: false }),
        has_logit_bias: true,
        ..Sampling::default()
    };
    assert_eq!(request.sampling, expected);
    assert_eq!((request.echo, request.best_of, request.logprobs), (Some(false), Some(Some(2)), Some(3)));
    assert!(request.has_suffix);
    // Counts have no upper limit in the schema.
    let body = r#"{"model":"m","prompt":"hi","max_tokens":100000000000000000000000,"seed":-9223372036854775808}"#;
    let request = completions(body, &TRITON);
    assert_eq!((request.sampling.max_tokens, request.sampling.seed), (Some(i64::MAX), Some(i64::MIN)));
}

#[test]
fn prompts_are_strings_or_lists_of_one_kind() {
    for (prompt, expected) in [
        ("\"\"", Prompt::Text(String::new())),
        ("[]", Prompt::List { is_empty: true }),
        ("[\"a\"]", Prompt::List { is_empty: false }),
        ("[1,\"2\"]", Prompt::List { is_empty: false }),
        ("[[1],[]]", Prompt::List { is_empty: false }),
    ] {
        assert_eq!(completions(&format!("{{\"model\":\"m\",\"prompt\":{prompt}}}"), &TRITON).prompt, expected);
    }
}

#[test]
fn messages_of_each_role_are_read() {
    let body = r#"{"model":"m","messages":[
        {"role":"system","content":"a","name":"n"},
        {"role":"user","content":"b","name":"n","unknown":1},
        {"role":"user","content":[{"type":"text","text":"c"},{"type":"image_url","image_url":{"url":"http://d/"}}]},
        {"role":"assistant"},
        {"role":"assistant","content":null,"tool_calls":[
            {"id":"i","type":"t","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","content":"e","tool_call_id":"i"},
        {"role":"function","content":"g","name":"f"}]}"#;
    let call = ToolCall { id: "i".to_owned(), kind: "t".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
    let parts = vec![Part::Text("c".to_owned()), Part::ImageUrl { url: "http://d/".to_owned() }];
    let expected = vec![
        Message::System { content: "a".to_owned() },
        Message::User { content: Content::Text("b".to_owned()), name: Some("n".to_owned()) },
        Message::User { content: Content::Parts(parts), name: None },
        Message::Assistant { content: None, tool_calls: Vec::new() },
        Message::Assistant { content: None, tool_calls: vec![call] },
        Message::Tool { content: "e".to_owned(), tool_call_id: "i".to_owned() },
        Message::Function { content: "g".to_owned() },
    ];
    assert_eq!(chat(body, &TRITON).messages, expected);
    assert_eq!(chat(body, &OPENAI).messages, expected);
}

#[test]
fn tools_and_their_choice_are_read() {
    let body = |choice: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":""}}],"tool_choice":{choice},
            "tools":[{{"type":"x","strict":true,"function":{{"name":"f","parameters":{{"a":1}}}}}}]}}"#
        )
    };
    for (choice, expected) in [
        ("null", None),
        ("\"none\"", Some(ToolChoice::None)),
        ("\"auto\"", Some(ToolChoice::Auto)),
        ("\"required\"", Some(ToolChoice::Required)),
        (r#"{"type":"function","function":{"name":"g"}}"#, Some(ToolChoice::Named("g".to_owned()))),
    ] {
        assert_eq!(chat(&body(choice), &TRITON).tool_choice, expected, "{choice}");
    }
    let parameters = Some(Json::Object(vec![("a".to_owned(), Json::Int(1))]));
    let tool = Tool { kind: "x".to_owned(), name: "f".to_owned(), description: None, parameters };
    assert_eq!(chat(&body("null"), &TRITON).tools, Some(vec![tool]));
}

#[test]
fn embeddings_are_read() {
    let body = r#"{"model":"m","input":[1,"2",3.0],"dimensions":"4","encoding_format":null,"user":"u"}"#;
    let expected = Embeddings {
        model: "m".to_owned(),
        input: EmbeddingInput::Tokens(vec![1, 2, 3]),
        dimensions: Some(4),
        base64: true,
        user: Some("u".to_owned()),
    };
    assert_eq!(embeddings(body, &TRITON), expected);
    let request = embeddings(r#"{"model":"m","input":"a"}"#, &TRITON);
    assert_eq!((request.input, request.base64), (EmbeddingInput::Text("a".to_owned()), false));
    assert!(embeddings(r#"{"model":"m","input":"a","encoding_format":"base64"}"#, &TRITON).base64);
}
