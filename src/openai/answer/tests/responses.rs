//! The Responses API.

use std::sync::Arc;

use super::{Bench, answer, counted, plan, text};
use crate::error::Compat;
use crate::json::Json;
use crate::plan::{Plan, ToolPlan};
use crate::request::{Chat, Operation, Responses, Sampling};
use nereid_request::Status;

fn request() -> Responses {
    let chat = Chat {
        model: "m".to_string(),
        messages: Vec::new(),
        sampling: Sampling { temperature: Some(0.5), top_p: Some(1.0), ..Sampling::default() },
        logprobs: false,
        top_logprobs: None,
        tools: None,
        tool_choice: None,
        response_format: None,
        template_arguments: Vec::new(),
        reasoning_effort: None,
    };
    Responses {
        chat,
        instructions: Some("be brief".to_string()),
        metadata: None,
        max_output_tokens: Some(8),
        tools: Json::List(Vec::new()),
        tool_choice: Json::Text("auto".to_string()),
        text: None,
        parallel_tool_calls: true,
        store: false,
        previous_response_id: None,
    }
}

fn responses(stream: bool) -> Plan {
    Plan {
        id: "resp_7".to_string(),
        responses: Some(Arc::new(request())),
        max_tokens: Some(8),
        ..plan(Operation::Responses, Compat::OpenAi, stream)
    }
}

const HEAD: &str = r#"{"id":"resp_7","object":"response","created_at":5,"status":"#;
const SETTINGS: &str = r#""instructions":"be brief","max_output_tokens":8,"model":"m","output":"#;
const REST: &str = concat!(
    r#","parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"#,
    r#""summary":null},"store":false,"temperature":0.5,"text":{"format":{"type":"text"}},"#,
    r#""tool_choice":"auto","tools":[],"top_p":1.0,"truncation":"disabled","usage":"#,
);

fn object(status: &str, output: &str, usage: &str) -> String {
    format!(
        "{HEAD}\"{status}\",\"error\":null,\"incomplete_details\":null,{SETTINGS}{output}{REST}{usage},\"user\":null,\
         \"metadata\":{{}}}}"
    )
}

fn event(kind: &str, sequence: usize, rest: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{sequence},{rest}}}\n\n")
}

const USAGE: &str = concat!(
    r#"{"input_tokens":3,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"#,
    r#""output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}"#,
);

#[test]
fn a_whole_answer_is_one_object() {
    let body = answer(responses(false), [counted("a\"", 3, 1), counted("b", 3, 1)]).unwrap();
    let output = concat!(
        r#"[{"type":"message","id":"msg_7","status":"completed","role":"assistant","#,
        r#""content":[{"type":"output_text","text":"a\"b","annotations":[]}]}]"#,
    );
    assert_eq!(body, object("completed", output, USAGE));
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let body = answer(responses(false), [counted("a", 3, 8)]).unwrap();
    assert!(body.contains(r#""status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"}"#));
    assert!(body.contains(r#""id":"msg_7","status":"incomplete""#), "{body}");
    let body = answer(responses(true), [counted("a", 3, 8)]).unwrap();
    assert!(body.contains("event: response.incomplete\ndata: {\"type\":\"response.incomplete\""), "{body}");
}

#[test]
fn a_stream_builds_the_same_object_by_events() {
    let body = answer(responses(true), [counted("a\"", 3, 1), counted("b", 3, 1)]).unwrap();
    let of_text = r#""item_id":"msg_7","output_index":0,"content_index":0"#;
    let item = |status: &str, content: &str| {
        format!(r#"{{"type":"message","id":"msg_7","status":"{status}","role":"assistant","content":[{content}]}}"#)
    };
    let part = r#"{"type":"output_text","text":"a\"b","annotations":[]}"#;
    let whole = item("completed", part);
    let opened = format!("\"response\":{}", object("in_progress", "[]", "null"));
    let expected = [
        event("response.created", 0, &opened),
        event("response.in_progress", 1, &opened),
        event("response.output_item.added", 2, &format!("\"output_index\":0,\"item\":{}", item("in_progress", ""))),
        event(
            "response.content_part.added",
            3,
            &format!(r#"{of_text},"part":{{"type":"output_text","text":"","annotations":[]}}"#),
        ),
        event("response.output_text.delta", 4, &format!(r#"{of_text},"delta":"a\"","logprobs":[]"#)),
        event("response.output_text.delta", 5, &format!(r#"{of_text},"delta":"b","logprobs":[]"#)),
        event("response.output_text.done", 6, &format!(r#"{of_text},"text":"a\"b","logprobs":[]"#)),
        event("response.content_part.done", 7, &format!("{of_text},\"part\":{part}")),
        event("response.output_item.done", 8, &format!("\"output_index\":0,\"item\":{whole}")),
        event("response.completed", 9, &format!("\"response\":{}", object("completed", &format!("[{whole}]"), USAGE))),
    ];
    assert_eq!(body, expected.concat());
}

#[test]
fn a_forced_call_is_an_item() {
    let forced = |stream| Plan { tools: ToolPlan::Forced { name: "f".to_string() }, ..responses(stream) };
    let item = concat!(
        r#"{"type":"function_call","id":"fc_7","call_id":"call_7","name":"f","arguments":"{\"a\":1}","#,
        r#""status":"completed"}"#,
    );
    let body = answer(forced(false), [text("{\"a\":1}")]).unwrap();
    assert_eq!(body, object("completed", &format!("[{item}]"), "null"));
    let body = answer(forced(true), [text("{\"a\""), text(":1}")]).unwrap();
    let of_call = r#""item_id":"fc_7","output_index":0"#;
    let events = [
        event("response.function_call_arguments.delta", 3, &format!(r#"{of_call},"delta":"{{\"a\"""#)),
        event("response.function_call_arguments.delta", 4, &format!(r#"{of_call},"delta":":1}}""#)),
        event(
            "response.function_call_arguments.done",
            5,
            &format!(r#"{of_call},"name":"f","arguments":"{{\"a\":1}}""#),
        ),
        event("response.output_item.done", 6, &format!("\"output_index\":0,\"item\":{item}")),
    ];
    assert!(body.contains(&events.concat()), "{body}");
}

#[test]
fn a_stream_that_failed_says_so_and_has_nothing_behind_it() {
    let mut bench = Bench::new(responses(true));
    bench.take(text("a"), false).unwrap();
    bench.taken();
    let body = bench.fail(&Status::internal("it broke"));
    assert!(body.starts_with("event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":5,"));
    assert!(body.contains(r#""status":"failed","error":{"code":"server_error","message":"it broke"}"#), "{body}");
    assert_eq!(bench.finish().unwrap(), "");
}

#[test]
fn a_long_text_is_written_in_steps() {
    let long = "x\n".repeat(300_000);
    let mut bench = Bench::new(responses(true));
    bench.take(text(&long), true).unwrap();
    let body = bench.finish().unwrap();
    assert!(bench.steps > 3 * long.len() / (64 * 1024), "{}", bench.steps);
    assert_eq!(body.matches(&long.replace('\n', "\\n")).count(), 4);
}
