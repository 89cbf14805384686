//! Bodies of OpenAI's interface against the schemas of all operations.
//!
//! No body makes a schema panic or takes more than its length allows. What Triton's front end accepts is accepted
//! without its strictness too, and nothing else is read of it; what is refused has an answer that is JSON.

use nereid_openai::error::{Compat, Detail, Refusal};
use nereid_openai::request::{Operation, Request};
use nereid_openai::schema::{Rules, read};

use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "openai_request",
    run,
    runs: 10_000,
    words: &[
        "[",
        "]",
        "{",
        "}",
        "\"",
        ":",
        ",",
        "null",
        "true",
        "0",
        "-1",
        "1.0",
        "1e400",
        "NaN",
        "\"5\"",
        "\"\"",
        "[]",
        "{}",
        "\"model\":\"m\",",
        "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],",
        "{\"role\":\"developer\",\"content\":\"x\"},",
        "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]},",
        "{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"1\"},",
        "{\"role\":\"function\",\"content\":null,\"name\":\"f\"},",
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},",
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\"}},",
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],",
        "\"tool_choice\":\"auto\",",
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":{}}},",
        "\"stream\":true,",
        "\"stream_options\":{\"include_usage\":true},",
        "\"stop\":[\"a\",\"b\"],",
        "\"logit_bias\":{\"1\":2},",
        "\"top_k\":1,",
        "\"logprobs\":true,\"top_logprobs\":5,",
        "\"prompt\":[\"a\"],",
        "\"prompt\":[[1]],",
        "\"input\":[1,2],",
        "\"input\":[\"a\",\"b\"],",
        "\"encoding_format\":\"base64\",",
        "\"documents\":[\"a\",{\"text\":\"b\"}],",
        "\"query\":\"q\",",
        "\"text_1\":\"a\",\"text_2\":[\"b\"],",
        "\"tokens\":[1,2],",
    ],
    seeds,
};

const OPERATIONS: [Operation; 8] = [
    Operation::Chat,
    Operation::Completions,
    Operation::Embeddings,
    Operation::Responses,
    Operation::Rerank,
    Operation::Score,
    Operation::Tokenize,
    Operation::Detokenize,
];

fn run(data: &[u8]) -> bool {
    let (mut dice, body) = split(data);
    let is_json = !dice.one_in(50);
    let mut passed = false;
    for operation in OPERATIONS {
        let read = |compat, extensions| {
            let outcome = read(operation, body, is_json, &Rules { compat, extensions });
            if let Err(refusal) = &outcome {
                check_refusal(refusal, body);
            }
            outcome
        };
        // As the server has them, and with extensions against the grain.
        let (triton, openai) = (read(Compat::Triton, false), read(Compat::OpenAi, true));
        let (extended, strict) = (read(Compat::Triton, true), read(Compat::OpenAi, false));
        let shown = || format!("{operation:?}: {}", body.escape_ascii());
        if let Ok(request) = &triton {
            assert!(openai.is_ok(), "{openai:?}, but Triton accepts {}", shown());
            assert!(is_same(request, strict.as_ref().ok()), "{strict:?}, but Triton has {request:?}: {}", shown());
        }
        assert_eq!(triton.is_ok(), strict.is_ok(), "{}", shown());
        assert_eq!(extended.is_ok(), openai.is_ok(), "{}", shown());
        assert!(is_json || triton.is_err(), "{}", shown());
        passed |= openai.is_ok();
    }
    passed
}

/// Debug texts, since NaN is not equal to itself.
fn is_same(request: &Request, other: Option<&Request>) -> bool {
    other.is_some_and(|other| format!("{request:?}") == format!("{other:?}"))
}

/// An answer is of the client's or the server's status, is JSON unless it says otherwise, and repeats no more than it may.
fn check_refusal(refusal: &Refusal, body: &[u8]) {
    assert!((400..=599).contains(&refusal.status), "{refusal:?}");
    for compat in [Compat::Triton, Compat::OpenAi] {
        let mut answer = String::new();
        refusal.body(compat, &mut answer);
        let longest = 64 * 1024 + 64 * body.len();
        assert!(answer.len() <= longest, "{} bytes refuse {}", answer.len(), body.escape_ascii());
        if refusal.content_type() != "application/json" {
            assert!(matches!(refusal.detail, Detail::Plain(_)), "{refusal:?}");
            continue;
        }
        match serde_json::from_str::<serde_json::Value>(&answer) {
            Ok(value) => assert!(value.get("detail").or(value.get("error")).is_some(), "{answer}"),
            // A body may nest deeper than serde_json goes.
            Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}: {answer}"),
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}],"name":"n"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"t","tool_call_id":"1"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"tool_choice":"auto"}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"max_completion_tokens":17,"temperature":0.5,"top_p":0.9,"n":1,"stop":["a"],"seed":1,"frequency_penalty":0,"presence_penalty":-1,"logprobs":true,"top_logprobs":2,"stream":true,"stream_options":{"include_usage":true},"user":"u","response_format":{"type":"json_object"}}"#,
        r#"{"model":"m","messages":[{"role":"developer","content":"d"},{"role":"user","content":"hi"}],"top_k":4,"min_p":0.1,"repetition_penalty":1.1,"ignore_eos":true,"min_tokens":2,"priority":1,"chat_template_kwargs":{"a":[1]},"reasoning_effort":"low","response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}}}"#,
        r#"{"model":"m","prompt":"hello","max_tokens":16,"echo":true,"best_of":1,"logprobs":3,"suffix":"s","stop":"x","logit_bias":{"50256":-100}}"#,
        r#"{"model":"m","prompt":["a","b"],"n":1,"stream":false}"#,
        r#"{"model":"m","input":[1,2,3],"dimensions":8,"encoding_format":"float","user":"u"}"#,
        r#"{"model":"m","input":["a","b"]}"#,
        r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"o"}],"instructions":"i","max_output_tokens":9,"tools":[{"type":"function","name":"f","parameters":{}}],"tool_choice":"auto","text":{"format":{"type":"text"}},"metadata":{"k":"v"},"store":false,"parallel_tool_calls":true}"#,
        r#"{"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":1,"return_documents":true}"#,
        r#"{"model":"m","text_1":"a","text_2":["b","c"]}"#,
        r#"{"model":"m","prompt":"p","add_special_tokens":false,"return_token_strs":true}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true}"#,
        r#"{"model":"m","tokens":[1,2,3]}"#,
    ]
    .iter()
    .zip(1u32..)
    .map(|(text, number)| [&number.to_be_bytes()[..], text.as_bytes()].concat())
    .collect()
}
