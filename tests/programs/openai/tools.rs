//! Calls of tools in answers and in streams (contract/openai.md section 1.6).

use serde_json::{Value, json};

use super::events::{contents, reasons};
use super::frontend::{CHAT, Frontend, Tokenizer, chat, has_run, repository, vllm_backend, with};
use nereid_test_support::repository::Repository;

const TRITON: &str = "--openai-compat=triton";
const MOCK: &str = "openai_mock";
const COMPATS: [&str; 2] = ["--openai-compat=openai", TRITON];

fn tools() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "num_days": {"type": "integer"}}});
    let function = json!({"name": "get_current_weather", "description": "Weather", "parameters": parameters});
    json!({"tools": [{"type": "function", "function": function}, {"type": "function", "function": {"name": "bare"}}]})
}

/// Calls of a stream, put together: identifier, name and arguments of each.
fn calls_of(events: &[Value]) -> Vec<(String, String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    let parts = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    for part in parts {
        let index = part["index"].as_u64().expect("an index") as usize;
        assert!(index <= calls.len(), "{part}");
        if index == calls.len() {
            let id = part["id"].as_str().unwrap_or_else(|| panic!("the first part has no id: {part}")).to_owned();
            assert_eq!(part["type"], "function");
            let name = part["function"]["name"].as_str().expect("a name").to_owned();
            calls.push((id, name, String::new()));
        } else {
            assert!(part["id"].is_null() && part["function"]["name"].is_null(), "named again: {part}");
        }
        calls[index].2.push_str(part["function"]["arguments"].as_str().unwrap_or_default());
    }
    calls
}

fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[test]
fn calls_in_each_form_are_found_whole_and_in_pieces() {
    if has_run() {
        return;
    }
    for (parser, form) in [("llama3", "llama3"), ("mistral", "mistral"), ("hermes", "hermes")] {
        for compat in COMPATS {
            let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
            let flags = [compat, &tokenizer.flag(), &format!("--tool-call-parser={parser}")];
            let Some(frontend) = Frontend::start(&repository, &flags) else { return };
            for cut in [1, 3, 7, 1000] {
                let body = with(&chat(MOCK, &format!("<<tool {form}>><<cut {cut}>>")), tools());
                let answer = frontend.asked(CHAT, &body);
                let choice = &answer["choices"][0];
                assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
                let call = &choice["message"]["tool_calls"][0];
                assert_eq!(
                    (&call["type"], &call["function"]["name"]),
                    (&json!("function"), &json!("get_current_weather"))
                );
                assert!(call["id"].as_str().is_some_and(|id| id.len() >= 9), "{call}");
                let expected = json!({"city": "Dallas", "state": "TX", "unit": "fahrenheit"});
                let whole = call["function"]["arguments"].as_str().expect("arguments").to_owned();
                assert_eq!(arguments(&whole), expected);
                let content = &choice["message"]["content"];
                assert!(content.is_null() || content == "", "{answer}");

                let events = frontend.streamed(CHAT, &body);
                let calls = calls_of(&events);
                assert_eq!(calls.len(), 1, "{events:?}");
                assert_eq!(calls[0].1, "get_current_weather");
                assert_eq!(calls[0].2, whole, "cut at {cut}");
                assert!(calls[0].0.len() >= 9);
                assert_eq!(reasons(&events), ["tool_calls"]);
                assert_eq!(contents(&events).concat(), "", "{events:?}");
            }
            // What is no call is text, released whole.
            for text in ["see [1] here", "a {b} c", "[TOOL", "<tool_ca", "{\"a\": 1}", "plain \u{e9}"] {
                for cut in [1, 4] {
                    let script = format!("<<pieces {}>><<cut {cut}>>", json!([text]));
                    let body = with(&chat(MOCK, &script), tools());
                    let answer = frontend.asked(CHAT, &body);
                    assert_eq!(answer["choices"][0]["message"]["content"], text, "{parser}");
                    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                    let events = frontend.streamed(CHAT, &body);
                    assert_eq!((contents(&events).concat().as_str(), calls_of(&events).len()), (text, 0), "{parser}");
                    assert_eq!(reasons(&events), ["stop"]);
                }
            }
            frontend.stop();
        }
    }
}

#[test]
fn arguments_with_any_characters_arrive_once() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let flags = [TRITON, &tokenizer.flag(), "--tool-call-parser=mistral"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let given = json!({"city": "Dal \u{e9}\"]}", "k": [1, 2, {"x": null}], "deep": {"a": "\\"}, "n": 1.5, "ok": true});
    let call = json!([{"name": "f", "arguments": given}, {"name": "g", "arguments": {}}]);
    for cut in 1..6 {
        for end in ["", "<<final empty>>", "<<final counts>>"] {
            let text = format!("[TOOL_CALLS]{call}");
            let script = format!("<<pieces {}>><<cut {cut}>>{end}", json!([text]));
            let body = with(&chat(MOCK, &script), tools());
            let events = frontend.streamed(CHAT, &body);
            let calls = calls_of(&events);
            let names: Vec<&str> = calls.iter().map(|call| call.1.as_str()).collect();
            assert_eq!(names, ["f", "g"], "{end} cut at {cut}");
            assert_eq!(arguments(&calls[0].2), given);
            assert_eq!(arguments(&calls[1].2), json!({}));
            assert_eq!(reasons(&events), ["tool_calls"]);
            let answer = frontend.asked(CHAT, &body);
            let whole = &answer["choices"][0]["message"]["tool_calls"];
            assert_eq!(whole[0]["function"]["arguments"], calls[0].2.as_str());
            assert_eq!(whole[1]["function"]["arguments"], calls[1].2.as_str());
        }
    }
    frontend.stop();
}

#[test]
fn choices_are_checked_and_force_a_tool() {
    if has_run() {
        return;
    }
    let (backends, directory) = vllm_backend();
    let (repository, tokenizer) = (Repository::new(), Tokenizer::new());
    repository.model("llm", "backend: \"vllm\"");
    super::frontend::add(&repository, "openai_mock_trtllm", "trt");
    let flags = [TRITON, &tokenizer.flag(), &directory];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (more, text) in [
        (tools(), "having tools in the request requires --tool-call-parser to be set"),
        (json!({"tool_choice": "auto"}), "\"auto\" tool choice requires --tool-call-parser to be set"),
        (
            json!({"tool_choice": "required"}),
            "\"required\" tool choice requires CreateChatCompletionRequest.tools to be provided",
        ),
        (
            json!({"tool_choice": "required", "tools": []}),
            "\"required\" tool choice requires CreateChatCompletionRequest.tools to be provided",
        ),
        (
            json!({"tool_choice": named("f")}),
            "Named tool choice requires CreateChatCompletionRequest.tools to be provided",
        ),
        (with(&tools(), json!({"tool_choice": named("f")})), "Tool 'f' has not been passed in `tools`."),
    ] {
        assert_eq!(frontend.refused(400, CHAT, &with(&chat("llm", "x"), more)), text);
    }
    for model in ["llm", "trt"] {
        for choice in [json!("required"), named("get_current_weather")] {
            let body =
                with(&chat(model, "weather?"), with(&tools(), json!({"tool_choice": choice, "max_tokens": 100})));
            let answer = frontend.asked(CHAT, &body);
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            let call = &choice["message"]["tool_calls"][0];
            assert_eq!((&call["id"], &call["type"]), (&answer["id"], &json!("function")));
            assert_eq!(call["function"]["name"], "get_current_weather");
            let expected = json!({"city": "Dallas", "num_days": 5});
            assert_eq!(arguments(call["function"]["arguments"].as_str().expect("arguments")), expected);
            let events = frontend.streamed(CHAT, &body);
            let calls = calls_of(&events);
            assert_eq!((calls.len(), calls[0].1.as_str()), (1, "get_current_weather"));
            assert_eq!(arguments(&calls[0].2), expected);
            assert_eq!(reasons(&events), ["stop"]);
        }
        // A tool without parameters takes any object.
        let body = with(&chat(model, "x"), with(&tools(), json!({"tool_choice": named("bare")})));
        assert_eq!(frontend.asked(CHAT, &body)["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "bare");
        // Without a choice of one the text is text.
        let body = with(&chat(model, "<<tool mistral>>"), with(&tools(), json!({"tool_choice": "none"})));
        let answer = frontend.asked(CHAT, &body);
        assert!(answer["choices"][0]["message"]["tool_calls"].is_null(), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    drop(backends);
    frontend.stop();
}

#[test]
fn a_call_that_is_too_long_to_parse_ends_the_stream() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&["openai_tool_stream"]), Tokenizer::new());
    for compat in COMPATS {
        let flags = [compat, &tokenizer.flag(), "--tool-call-parser=mistral", "--max-tool-call-parse-bytes=512"];
        let Some(frontend) = Frontend::start(&repository, &flags) else { return };
        let usage = json!({"stream_options": {"include_usage": true}, "stream": true, "max_tokens": 4096});
        let ask = |text: &str, more: Value| {
            frontend.streamed(CHAT, &with(&with(&chat("openai_tool_stream", text), usage.clone()), more))
        };
        let big = ask("big-tool-args", tools());
        assert_eq!(reasons(&big), ["length"]);
        assert!(big.last().is_some_and(|event| event["usage"].is_object()), "{big:?}");
        let small = ask("small", tools());
        assert_eq!(reasons(&small), ["tool_calls"]);
        assert_eq!(arguments(&calls_of(&small)[0].2), json!({"city": "AAAAA"}));
        let none = ask("big-tool-args", json!({}));
        assert_eq!(reasons(&none), ["stop"]);
        assert!(contents(&none).concat().len() > 2000);
        frontend.stop();
    }
}

/// The end of such an answer repeats all of its text, which takes several turns of the shard; the model, which goes on
/// meanwhile, adds nothing to it.
#[test]
fn a_response_with_a_call_that_is_too_long_ends_once() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    // No silence of a slow machine is that long: a comment would be one that is not due.
    let flags = [&tokenizer.flag(), "--tool-call-parser=hermes", "--openai-keep-alive=600"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let tool = json!({"type": "function", "name": "get_current_weather", "parameters": {"type": "object"}});
    for letters in [140_000, 400_000] {
        let input = format!("<<tool hermes {letters}>><<cut 4000>>");
        let body = json!({"model": MOCK, "input": input, "tools": [tool.clone()], "stream": true});
        let answer = frontend.post("/v1/responses", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = answer.text();
        let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let ends = |kind: &&&str| matches!(**kind, "response.completed" | "response.incomplete" | "response.failed");
        assert_eq!(kinds.iter().filter(ends).count(), 1, "{letters}: {kinds:?}");
        assert_eq!(kinds.last(), Some(&"response.incomplete"), "{letters}");
        assert!(!text.contains(": keep-alive"), "{letters}");
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let numbers = events.map(|event| {
            let event: Value = serde_json::from_str(event).unwrap_or_else(|error| panic!("{error}: {event:.200}"));
            event["sequence_number"].as_u64().expect("a number")
        });
        assert!(numbers.eq(0..kinds.len() as u64), "{letters}");
    }
    frontend.stop();
}
