//! Logprobs of chunks and of whole answers.

use super::{answer, plan, refused, respond, string, text};
use crate::error::{Compat, Detail, Refusal};
use crate::plan::Plan;
use crate::request::Operation;
use nereid_request::Response;

fn wanted(operation: Operation, compat: Compat, stream: bool) -> Plan {
    Plan { logprobs: Some(1), ..plan(operation, compat, stream) }
}

/// A response whose text is tokens of a probability.
fn tokens(tokens: &[&str]) -> Response {
    let list: Vec<String> = tokens
        .iter()
        .map(|token| format!(r#"{{"7":{{"logprob":-0.5,"rank":1,"decoded_token":"{token}"}}}}"#))
        .collect();
    let list = format!("[{}]", list.join(", "));
    respond([string("text_output", tokens.concat().as_bytes()), string("logprobs", list.as_bytes())])
}

#[test]
fn chat_has_an_entry_for_each_token() {
    let entry = |token: &str, byte: u8| {
        let one = format!("\"token\":\"{token}\",\"logprob\":-0.5,\"bytes\":[{byte}]");
        format!("{{{one},\"top_logprobs\":[{{{one}}}]}}")
    };
    let both = format!("\"logprobs\":{{\"content\":[{},{}]}}", entry("a", 97), entry("b", 98));
    let body = answer(wanted(Operation::Chat, Compat::Triton, false), [tokens(&["a", "b"])]).unwrap();
    assert!(body.contains(&both), "{body}");
    let body = answer(wanted(Operation::Chat, Compat::OpenAi, false), [tokens(&["a"]), tokens(&["b"])]).unwrap();
    assert!(body.contains(&both), "{body}");
    let body = answer(wanted(Operation::Chat, Compat::OpenAi, true), [tokens(&["a"]), tokens(&["b"])]).unwrap();
    for (token, byte) in [("a", 97), ("b", 98)] {
        assert!(body.contains(&format!("\"logprobs\":{{\"content\":[{}]}}", entry(token, byte))), "{body}");
    }
    let body = answer(plan(Operation::Chat, Compat::OpenAi, false), [tokens(&["a"])]).unwrap();
    assert!(body.contains("\"logprobs\":null"), "{body}");
}

#[test]
fn offsets_of_completions_go_on_behind_earlier_chunks() {
    let of = |stream| answer(wanted(Operation::Completions, Compat::OpenAi, stream), ["aé", "b"].map(|t| tokens(&[t])));
    let body = of(true).unwrap();
    assert!(body.contains(r#""logprobs":{"text_offset":[0],"token_logprobs":[-0.5],"tokens":["aé"]"#), "{body}");
    assert!(body.contains(r#""logprobs":{"text_offset":[2],"token_logprobs":[-0.5],"tokens":["b"]"#), "{body}");
    let body = of(false).unwrap();
    assert!(body.contains(r#""logprobs":{"text_offset":[0,2],"token_logprobs":[-0.5,-0.5],"#), "{body}");
}

#[test]
fn logprobs_that_cannot_be_written_leave_the_text() {
    for bad in ["", "null", "[]", "[{}]", "{", "[1]"] {
        for stream in [false, true] {
            let response = respond([string("text_output", b"a"), string("logprobs", bad.as_bytes())]);
            let body = answer(wanted(Operation::Completions, Compat::OpenAi, stream), [response]).unwrap();
            assert!(body.contains("\"logprobs\":null,\"text\":\"a\""), "{bad}: {body}");
        }
    }
    let body = answer(wanted(Operation::Chat, Compat::OpenAi, false), [text("a")]).unwrap();
    assert!(body.contains("\"logprobs\":null"), "{body}");
}

#[test]
fn a_probability_of_zero_fails_a_whole_answer_of_triton() {
    let zero = || {
        let list = r#"[{"7":{"logprob":-Infinity,"rank":1,"decoded_token":"a"}}]"#;
        respond([string("text_output", b"a"), string("logprobs", list.as_bytes())])
    };
    let refusal = answer(wanted(Operation::Chat, Compat::Triton, false), [zero()]).unwrap_err();
    assert_eq!(refusal, Refusal { detail: Detail::Plain("Internal Server Error"), ..refused(500, "") });
    let body = answer(wanted(Operation::Chat, Compat::OpenAi, false), [zero()]).unwrap();
    assert!(body.contains("-9999.0"), "{body}");
}
