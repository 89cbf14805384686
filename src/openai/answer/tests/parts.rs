//! Calls of tools and reasoning that parsers find in texts.

use super::{Bench, answer, plan, respond, text};
use crate::answer::Progress;
use crate::error::Compat;
use crate::plan::{Plan, ToolPlan};
use crate::reasoning::ReasoningParserKind;
use crate::request::Operation;
use crate::tools::ToolParserKind;

fn auto(compat: Compat, stream: bool) -> Plan {
    let tools = ToolPlan::Auto { parser: ToolParserKind::Llama3, bytes_max: 64, is_vllm: true };
    Plan { tools, ..plan(Operation::Chat, compat, stream) }
}

fn thinking(compat: Compat, stream: bool) -> Plan {
    Plan { reasoning: Some(ReasoningParserKind::Qwen3), ..plan(Operation::Chat, compat, stream) }
}

/// The deltas of a stream with the reasons of the end, ids of calls left out.
fn deltas(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    for event in body.split("\n\n") {
        let Some((_, delta)) = event.split_once("\"delta\":") else { continue };
        let (delta, _) = delta.split_once(",\"index\":0}],\"created\"").unwrap();
        let (delta, finish) = delta.split_once(",\"logprobs\":null,\"finish_reason\":").unwrap();
        let delta = match delta.split_once("\"id\":\"") {
            Some((before, rest)) => format!("{before}\"id\":\"{}", rest.split_once('"').map_or("", |(_, rest)| rest)),
            None => delta.to_string(),
        };
        found.push(if finish == "null" { delta } else { format!("{delta} {finish}") });
    }
    found
}

const CALL: &str = r#"{"name": "f", "parameters": {"a": "é"}}"#;

#[test]
fn calls_in_a_stream_are_named_once_and_end_it() {
    for last in [true, false] {
        let mut bench = Bench::new(auto(Compat::Triton, true));
        let mut body = bench.open();
        bench.take(text(&CALL[..16]), false).unwrap();
        bench.take(text(&CALL[16..]), last).unwrap();
        if !last {
            bench.take(respond([]), true).unwrap();
        }
        body += &bench.finish().unwrap();
        let deltas = deltas(&body);
        assert_eq!(deltas[0], r#"{"content":"","function_call":null,"role":"assistant"}"#);
        let start = r#"{"tool_calls":[{"index":0,"id":","type":"function","function":{"name":"f"}}]}"#;
        assert_eq!(deltas[1], start, "{deltas:?}");
        assert!(deltas.last().unwrap().ends_with(" \"tool_calls\""), "{deltas:?}");
        assert_eq!(body.matches("\"finish_reason\":\"").count(), 1);
        assert_eq!(body.matches("\"name\":").count(), 1);
    }
}

#[test]
fn a_final_response_without_deltas_has_an_empty_one() {
    let mut bench = Bench::new(auto(Compat::Triton, true));
    bench.open();
    bench.take(text("hi"), false).unwrap();
    assert_eq!(deltas(&bench.taken()), [r#"{"content":"hi"}"#]);
    bench.take(text("<"), false).unwrap();
    bench.taken();
    bench.take(respond([]), true).unwrap();
    assert!(deltas(&bench.taken()).last().unwrap().ends_with(" \"stop\""));
}

#[test]
fn calls_of_a_whole_answer_are_those_of_the_stream() {
    let body = answer(auto(Compat::Triton, false), [text(CALL)]).unwrap();
    assert!(body.contains(r#""finish_reason":"tool_calls""#), "{body}");
    assert!(body.contains(r#""message":{"content":"","tool_calls":[{"id":"cmpl-"#), "{body}");
    let call = r#","type":"function","function":{"name":"f","arguments":"{\"a\": \"\\u00e9\"}"}}],"role":"assistant","#;
    assert!(body.contains(call), "{body}");
    let body = answer(auto(Compat::OpenAi, false), [text("no call")]).unwrap();
    assert!(body.contains(r#""message":{"content":"no call","role":"assistant"}"#), "{body}");
}

#[test]
fn a_text_too_long_for_calls_ends_the_model() {
    let mut bench = Bench::new(Plan { include_usage: true, ..auto(Compat::Triton, true) });
    bench.open();
    assert_eq!(bench.take(text(&"é".repeat(64)), false), Ok(Progress::Done));
    bench.taken();
    assert_eq!(bench.take(super::counted("x", 1, 1), false), Ok(Progress::Enough));
    assert_eq!(deltas(&bench.taken()), [r#"{"content":""} "length""#]);
    let rest = bench.finish().unwrap();
    assert!(rest.contains(r#""choices":[],"#) && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert_eq!(rest.matches("data: ").count(), 2);
    // Whole answers have no limit.
    assert!(answer(auto(Compat::Triton, false), [text(&"é".repeat(65))]).is_ok());
}

#[test]
fn reasoning_is_apart_from_content() {
    let body = answer(thinking(Compat::OpenAi, false), [text("<think>hm</think>yes")]).unwrap();
    let message = r#""message":{"content":"yes","reasoning_content":"hm","role":"assistant"}"#;
    assert!(body.contains(message), "{body}");
    let body = answer(thinking(Compat::OpenAi, true), ["<think>h", "m</thi", "nk>y", "es"].map(text)).unwrap();
    let expected = [
        r#"{"content":"","role":"assistant"}"#,
        r#"{"reasoning_content":"h"}"#,
        r#"{"reasoning_content":"m"}"#,
        r#"{"content":"y"}"#,
        r#"{"content":"es"} "stop""#,
    ];
    assert_eq!(deltas(&body), expected);
}

#[test]
fn parts_are_items_of_a_response() {
    let tools = ToolPlan::Auto { parser: ToolParserKind::Hermes, bytes_max: 1000, is_vllm: true };
    let request = Plan {
        tools,
        reasoning: Some(ReasoningParserKind::Qwen3),
        id: "resp_7".to_string(),
        ..plan(Operation::Responses, Compat::OpenAi, false)
    };
    let said = "<think>hm</think>so<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let body = answer(request.clone(), [text(said)]).unwrap();
    let items = concat!(
        r#""output":[{"type":"reasoning","id":"rs_7","status":"completed","summary":[],"#,
        r#""content":[{"type":"reasoning_text","text":"hm"}]},{"type":"message","id":"msg_7_1","#,
        r#""status":"completed","role":"assistant","content":[{"type":"output_text","text":"so","#,
        r#""annotations":[]}]},{"type":"function_call","id":"fc_7_2","call_id":""#,
    );
    assert!(body.contains(items), "{body}");
    assert!(body.contains(r#"","name":"f","arguments":"{}","status":"completed"}]"#), "{body}");
    let body = answer(Plan { stream: true, ..request }, [text(said)]).unwrap();
    let kinds: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("event: response.")).collect();
    let part = ["output_item.added", "content_part.added"];
    let end = ["content_part.done", "output_item.done"];
    let expected = [
        &["created", "in_progress"][..],
        &part,
        &["reasoning_text.delta", "reasoning_text.done"],
        &end,
        &part,
        &["output_text.delta", "output_text.done"],
        &end,
        &["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        &["completed"],
    ];
    assert_eq!(kinds, expected.concat());
}
