//! Chat: whole answers and streams, forced calls, reasons of the end.

use super::{Bench, answer, counted, plan, respond, string, text};
use crate::error::Compat;
use crate::plan::{Plan, ToolPlan};
use crate::request::Operation;
use nereid_request::{DataType, Status};

const REST: &str = r#""created":5,"model":"m","system_fingerprint":null,"object":"#;

fn chat(compat: Compat, stream: bool) -> Plan {
    plan(Operation::Chat, compat, stream)
}

fn chunk(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish},\
         \"index\":0}}],{REST}\"chat.completion.chunk\",\"usage\":null}}\n\n"
    )
}

fn forced(compat: Compat, stream: bool) -> Plan {
    Plan { tools: ToolPlan::Forced { name: "f".to_string() }, ..chat(compat, stream) }
}

#[test]
fn a_whole_answer_has_the_members_in_order() {
    let body = answer(chat(Compat::Triton, false), [text("hi")]).unwrap();
    let expected = [
        r#"{"id":"cmpl-1","choices":[{"finish_reason":"stop","index":0,"message":{"content":"hi","#,
        r#""tool_calls":null,"role":"assistant","function_call":null},"logprobs":null}],"#,
        REST,
        r#""chat.completion","usage":null}"#,
    ];
    assert_eq!(body, expected.concat());
    let body = answer(chat(Compat::OpenAi, false), [text("hi")]).unwrap();
    assert!(body.contains(r#""message":{"content":"hi","role":"assistant"},"logprobs":null"#), "{body}");
}

#[test]
fn a_stream_of_triton_opens_before_its_model_answers() {
    let mut bench = Bench::new(chat(Compat::Triton, true));
    assert!(bench.answer.opens_early());
    assert_eq!(bench.answer.content_type(), "text/event-stream; charset=utf-8");
    assert_eq!(bench.open(), chunk(r#"{"content":"","function_call":null,"role":"assistant"}"#, "null"));
    bench.take(text("a\nb"), false).unwrap();
    assert_eq!(bench.taken(), chunk(r#"{"content":"a\nb","function_call":null,"role":null}"#, "null"));
    bench.take(respond([]), true).unwrap();
    assert_eq!(bench.taken(), chunk(r#"{"content":"","function_call":null,"role":null}"#, "\"stop\""));
    assert_eq!(bench.finish().unwrap(), "data: [DONE]\n\n");
}

#[test]
fn a_stream_of_openai_opens_with_the_first_response() {
    let mut bench = Bench::new(chat(Compat::OpenAi, true));
    assert!(!bench.answer.opens_early());
    assert_eq!(bench.open(), "");
    bench.take(text("a"), false).unwrap();
    let role = chunk(r#"{"content":"","role":"assistant"}"#, "null");
    assert_eq!(bench.taken(), role.clone() + &chunk(r#"{"content":"a"}"#, "null"));
    bench.take(text("b"), true).unwrap();
    assert_eq!(bench.finish().unwrap(), chunk(r#"{"content":"b"}"#, "\"stop\"") + "data: [DONE]\n\n");
    let mut bench = Bench::new(chat(Compat::OpenAi, true));
    bench.answer.end_without_response(0).unwrap();
    assert_eq!(bench.finish().unwrap(), role + &chunk(r#"{"content":""}"#, "\"stop\"") + "data: [DONE]\n\n");
}

#[test]
fn a_forced_call_is_named_once() {
    let body = answer(forced(Compat::OpenAi, true), [text("{\"a\""), text(":1}")]).unwrap();
    let expected = [
        chunk(r#"{"content":"","role":"assistant"}"#, "null"),
        chunk(
            concat!(
                r#"{"tool_calls":[{"index":0,"id":"cmpl-1","type":"function","function":{"name":"f","#,
                r#""arguments":"{\"a\""}}]}"#,
            ),
            "null",
        ),
        chunk(r#"{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}"#, "\"stop\""),
        "data: [DONE]\n\n".to_string(),
    ];
    assert_eq!(body, expected.concat());
}

#[test]
fn later_chunks_of_a_forced_call_have_only_arguments() {
    let body = answer(forced(Compat::Triton, true), ["a", "b", "c", "d"].map(text)).unwrap();
    assert_eq!(body.matches(r#""name":"f""#).count(), 1);
    for arguments in ["b", "c", "d"] {
        let delta = format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":"{arguments}"}}}}]}}"#);
        assert!(body.contains(&delta), "{arguments}: {body}");
    }
}

#[test]
fn a_forced_call_is_whole_in_a_whole_answer() {
    let body = answer(forced(Compat::Triton, false), [text("{\"a\":1}")]).unwrap();
    let message = concat!(
        r#"{"content":"","tool_calls":[{"id":"cmpl-1","type":"function","function":{"name":"f","#,
        r#""arguments":"{\"a\":1}"}}],"role":"assistant","function_call":null}"#,
    );
    assert!(body.contains(message) && body.contains(r#""finish_reason":"stop""#), "{body}");
    let body = answer(forced(Compat::OpenAi, false), [text("{}")]).unwrap();
    assert!(body.contains(r#""message":{"content":null,"tool_calls":[{"#), "{body}");
}

#[test]
fn a_text_that_was_cut_ends_by_its_length() {
    let reason = |plan: Plan, responses: Vec<nereid_request::Response>| {
        let body = answer(plan, responses).unwrap();
        body.rsplit("\"finish_reason\":\"").next().unwrap().split('"').next().unwrap().to_string()
    };
    for stream in [false, true] {
        let full = |compat| Plan { max_tokens: Some(2), ..chat(compat, stream) };
        assert_eq!(reason(full(Compat::OpenAi), vec![counted("a", 1, 1), counted("b", 1, 1)]), "length");
        assert_eq!(reason(full(Compat::OpenAi), vec![counted("a", 1, 1)]), "stop");
        assert_eq!(reason(full(Compat::Triton), vec![counted("a", 1, 2)]), "stop");
        let said = |reason: &[u8]| {
            let mut response = counted("a", 1, 2);
            response.outputs.push(string("finish_reason", reason));
            vec![response]
        };
        for (compat, word, expected) in [
            (Compat::OpenAi, "length", "length"),
            (Compat::OpenAi, "stop", "stop"),
            (Compat::OpenAi, "content_filter", "content_filter"),
            (Compat::OpenAi, "None", "length"),
            (Compat::Triton, "length", "stop"),
        ] {
            let mut plan = full(compat);
            plan.outputs.has_finish_reason = true;
            assert_eq!(reason(plan, said(word.as_bytes())), expected, "{compat:?} {word}");
        }
    }
}

#[test]
fn an_error_in_a_chat_leaves_whole_events() {
    let mut bench = Bench::new(chat(Compat::Triton, true));
    bench.open();
    let body = bench.fail(&Status::not_found("gone"));
    assert!(body.contains(r#""message":"gone""#) && body.ends_with("}\n\ndata: [DONE]\n\n"), "{body}");
}

#[test]
fn tokens_are_those_that_the_model_has_reported() {
    let mut bench = Bench::new(chat(Compat::OpenAi, true));
    assert_eq!(bench.answer.tokens(), (None, 0));
    bench.take(counted("a", 9, 1), false).unwrap();
    let signed = [
        super::output("num_input_tokens", DataType::Int32, &9i32.to_le_bytes()),
        super::output("num_output_tokens", DataType::Int32, &3i32.to_le_bytes()),
    ];
    bench.take(respond(signed), false).unwrap();
    let wide = [super::output("num_output_tokens", DataType::Int64, &3i64.to_le_bytes())];
    bench.take(respond(wide), true).unwrap();
    assert_eq!(bench.answer.tokens(), (Some(9), 4));
}
