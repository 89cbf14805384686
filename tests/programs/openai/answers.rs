//! Whole answers and streams, byte by byte, in OpenAI's form and in Triton's (contract/openai.md sections 1.5, 1.7
//! and 3.4).

use serde_json::{Value, json};

use super::events::{contents, neutral, reasons, texts};
use super::frontend::{
    CHAT, COMPLETIONS, Frontend, Tokenizer, chat, completion, has_run, repository, vllm_backend, with,
};
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::{ALL, each};

const TRITON: &str = "--openai-compat=triton";
const MOCK: &str = "openai_mock";

fn raw(frontend: &Frontend, path: &str, body: &Value) -> String {
    let answer = frontend.post(path, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.text()
}

#[test]
fn tritons_bytes() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let flags = [TRITON, &tokenizer.flag()];
        let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
        // The mock counts the words of the prompt, and U+2028 is a blank to it; the template adds no word.
        let say = "<<reply H\u{e9}llo\u{2028}\"\\>>";
        let text = "H\u{e9}llo\u{2028}\\\"\\\\";
        let whole = raw(&frontend, CHAT, &chat(MOCK, say));
        let expected = format!(
            "{{\"id\":\"cmpl-ID\",\"choices\":[{{\"finish_reason\":\"stop\",\"index\":0,\"message\":{{\
             \"content\":\"{text}\",\"tool_calls\":null,\"role\":\"assistant\",\"function_call\":null}},\
             \"logprobs\":null}}],\"created\":TIME,\"model\":\"{MOCK}\",\"system_fingerprint\":null,\
             \"object\":\"chat.completion\",\"usage\":{{\"prompt_tokens\":3,\"total_tokens\":4,\
             \"completion_tokens\":1}}}}"
        );
        assert_eq!(neutral(&whole, "cmpl-"), expected);
        let whole = raw(&frontend, COMPLETIONS, &completion(MOCK, say));
        let expected = format!(
            "{{\"id\":\"cmpl-ID\",\"choices\":[{{\"finish_reason\":\"stop\",\"index\":0,\"logprobs\":null,\
             \"text\":\"{text}\"}}],\"created\":TIME,\"model\":\"{MOCK}\",\"system_fingerprint\":null,\
             \"object\":\"text_completion\",\"usage\":{{\"prompt_tokens\":3,\"total_tokens\":4,\
             \"completion_tokens\":1}}}}"
        );
        assert_eq!(neutral(&whole, "cmpl-"), expected);
        frontend.stop();
    });
}

/// Of a chat's chunks: what stands in them between the fixed parts.
fn chat_chunk(delta: &str, reason: &str) -> String {
    format!(
        "data: {{\"id\":\"cmpl-ID\",\"choices\":[{{\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason},\
         \"index\":0}}],\"created\":TIME,\"model\":\"{MOCK}\",\"system_fingerprint\":null,\
         \"object\":\"chat.completion.chunk\",\"usage\":null}}\n\n"
    )
}

fn text_chunk(text: &str, reason: &str) -> String {
    format!(
        "data: {{\"id\":\"cmpl-ID\",\"choices\":[{{\"finish_reason\":{reason},\"index\":0,\"logprobs\":null,\
         \"text\":\"{text}\"}}],\"created\":TIME,\"model\":\"{MOCK}\",\"system_fingerprint\":null,\
         \"object\":\"text_completion\",\"usage\":null}}\n\n"
    )
}

fn usage_chunk(object: &str, prompt: u64, completion: u64) -> String {
    let total = prompt + completion;
    format!(
        "data: {{\"id\":\"cmpl-ID\",\"choices\":[],\"created\":TIME,\"model\":\"{MOCK}\",\"system_fingerprint\":null,\
         \"object\":\"{object}\",\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
         \"completion_tokens\":{completion}}}}}\n\n"
    )
}

#[test]
fn tritons_bytes_of_streams() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let flags = [TRITON, &tokenizer.flag()];
        let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
        let role = chat_chunk("{\"content\":\"\",\"function_call\":null,\"role\":\"assistant\"}", "null");
        let delta = |text: &str| format!("{{\"content\":\"{text}\",\"function_call\":null,\"role\":null}}");
        let stop = "\"stop\"";
        for (script, last) in [
            ("<<pieces [\"a\",\"\",\"b\"]>>", vec![("a", "null"), ("", "null"), ("b", stop)]),
            ("<<pieces [\"a\",\"b\"]>><<final empty>>", vec![("a", "null"), ("b", "null"), ("", stop)]),
        ] {
            let whole = raw(&frontend, CHAT, &with(&chat(MOCK, script), json!({"stream": true})));
            let chunks: String = last.iter().map(|(text, reason)| chat_chunk(&delta(text), reason)).collect();
            assert_eq!(neutral(&whole, "cmpl-"), format!("{role}{chunks}data: [DONE]\n\n"), "{script}");
            let whole = raw(&frontend, COMPLETIONS, &with(&completion(MOCK, script), json!({"stream": true})));
            let chunks: String = last.iter().map(|(text, reason)| text_chunk(text, reason)).collect();
            assert_eq!(neutral(&whole, "cmpl-"), format!("{chunks}data: [DONE]\n\n"), "{script}");
        }
        let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
        let script = "<<pieces [\"a\",\"b\"]>> two more";
        let whole = raw(&frontend, COMPLETIONS, &with(&completion(MOCK, script), usage.clone()));
        let chunks = text_chunk("a", "null") + &text_chunk("b", stop) + &usage_chunk("text_completion", 4, 2);
        assert_eq!(neutral(&whole, "cmpl-"), format!("{chunks}data: [DONE]\n\n"));
        // Without counts there is no such chunk.
        let script = "<<pieces [\"a\"]>><<no_counts>>";
        let whole = raw(&frontend, COMPLETIONS, &with(&completion(MOCK, script), usage));
        assert_eq!(neutral(&whole, "cmpl-"), text_chunk("a", stop) + "data: [DONE]\n\n");
        frontend.stop();
    });
}

#[test]
fn openais_own_form_differs_where_its_clients_expect_it() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        let whole = raw(&frontend, CHAT, &chat(MOCK, "<<reply hi>>"));
        let expected = format!(
            "{{\"id\":\"chatcmpl-ID\",\"choices\":[{{\"finish_reason\":\"stop\",\"index\":0,\"message\":{{\
             \"content\":\"hi\",\"role\":\"assistant\"}},\"logprobs\":null}}],\"created\":TIME,\"model\":\"{MOCK}\",\
             \"system_fingerprint\":null,\"object\":\"chat.completion\",\"usage\":{{\"prompt_tokens\":2,\
             \"total_tokens\":3,\"completion_tokens\":1}}}}"
        );
        assert_eq!(neutral(&whole, "chatcmpl-"), expected);
        let events = frontend.streamed(CHAT, &chat(MOCK, "<<pieces [\"a\",\"b\"]>>"));
        assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        let deltas: Vec<&Value> = events[1..].iter().map(|event| &event["choices"][0]["delta"]).collect();
        assert_eq!(deltas, [&json!({"content": "a"}), &json!({"content": "b"})]);
        // Eight words were asked for, and more were to come.
        for (limit, reason) in [(8, "length"), (100, "stop")] {
            let limit = json!({"max_tokens": limit, "seed": 1});
            let answer = frontend.asked(CHAT, &with(&chat(MOCK, "<<length 12>>"), limit.clone()));
            assert_eq!(answer["choices"][0]["finish_reason"], reason, "{answer}");
            let events = frontend.streamed(CHAT, &with(&chat(MOCK, "<<length 12>>"), limit.clone()));
            assert_eq!(reasons(&events), [reason]);
            let events = frontend.streamed(COMPLETIONS, &with(&completion(MOCK, "<<length 12>>"), limit));
            assert_eq!(reasons(&events), [reason]);
        }
        let answer = frontend.asked(COMPLETIONS, &completion(MOCK, "x"));
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")), "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 16);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        frontend.stop();
    });
}

#[test]
fn texts_of_any_bytes() {
    each(&ALL, |variant| {
        let repository = repository(&[MOCK]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        // Two characters of three bytes, in every cut; a NUL; bytes that are no text.
        for (script, whole) in [
            ("<<hex e4 bd a0 e5a5 bd>>", "\u{4f60}\u{597d}"),
            ("<<hex e4bd a0e5 a5bd>>", "\u{4f60}\u{597d}"),
            ("<<hex 61 f09f 9880 62>>", "a\u{1f600}b"),
            ("<<hex 61 00 62>>", "a\0b"),
            ("<<hex 61 ff 62>>", "a\u{fffd}b"),
            ("<<hex 61 e4bd>>", "a\u{fffd}"),
            ("<<hex 0a0d09 1f 7f 22 5c>>", "\n\r\t\u{1f}\u{7f}\"\\"),
        ] {
            assert_eq!(frontend.says(MOCK, script), whole, "{script}");
            let events = frontend.streamed(COMPLETIONS, &completion(MOCK, script));
            assert_eq!(texts(&events).concat(), whole, "{script}");
            assert_eq!(reasons(&events), ["stop"]);
        }
        // A long text of one response, with characters that take more room in JSON.
        let long = "\u{e9}\"\u{1f600}x".repeat(20_000);
        let script = format!("<<pieces {}>>", json!([long, "end"]));
        assert!(frontend.says(MOCK, &script) == format!("{long}end"), "a long text changed");
        let events = frontend.streamed(COMPLETIONS, &completion(MOCK, &script));
        assert!(texts(&events).concat() == format!("{long}end"), "a long text changed in a stream");
        frontend.stop();
    });
}

#[test]
fn counts_of_responses_and_of_elements() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    for compat in ["--openai-compat=openai", TRITON] {
        let Some(frontend) = Frontend::start(&repository, &[compat]) else { return };
        let ask = |script: &str| frontend.post(COMPLETIONS, &completion(MOCK, &format!("{script}<<reply x>>")));
        let said = |script: &str| {
            let answer = ask(script);
            assert_eq!(answer.status, 200, "{compat} {script}: {}", answer.text());
            answer.json()
        };
        let refused = |script: &str, status: u16, text: &str| {
            let answer = ask(script);
            assert_eq!((answer.status, &answer.json()["detail"]), (status, &json!(text)), "{compat} {script}");
        };
        assert_eq!(said("")["choices"][0]["text"], "x");
        for script in ["<<final empty>>", "<<final counts>>"] {
            assert_eq!(said(script)["choices"][0]["text"], "x", "{compat} {script}");
        }
        refused("<<responses 0>>", 500, "Unexpected number of responses: 0, expected 1 or 2.");
        if compat == TRITON {
            assert_eq!(said("<<responses 2>>")["choices"][0]["text"], "x", "only the first counts");
            refused("<<responses 3>>", 500, "Unexpected number of responses: 3, expected 1 or 2.");
        }
        refused("<<elements 0>>", 500, "Expected to find 1 string in the output, found 0 instead.");
        refused("<<elements 2>>", 500, "Expected to find 1 string in the output, found 2 instead.");
        assert_eq!(said("<<no_text>>")["choices"][0]["text"], "");
        assert_eq!(said("<<no_counts>>")["usage"], Value::Null);
        let events = frontend.streamed(COMPLETIONS, &completion(MOCK, "<<no_text>><<reply x>>"));
        assert_eq!(texts(&events).concat(), "");
        assert_eq!(reasons(&events), ["stop"]);
        frontend.stop();
    }
}

#[test]
fn echo_stops_seeds_and_temperatures_reach_the_model() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK, "openai_mock_trtllm"]);
    let Some(frontend) = Frontend::start(&repository, &[TRITON]) else { return };
    for model in [MOCK, "openai_mock_trtllm"] {
        let text = |more: Value| {
            let answer = frontend.asked(COMPLETIONS, &with(&completion(model, "Once upon a time"), more));
            answer["choices"][0]["text"].as_str().expect("a text").to_owned()
        };
        assert!(text(json!({"echo": true})).starts_with("Once upon a time"));
        assert!(!text(json!({"echo": false})).starts_with("Once upon a time"));
        assert_eq!(text(json!({"max_tokens": 1})).split_whitespace().count(), 1);
        assert_eq!(text(json!({"max_tokens": 0})), "");
        assert_eq!(text(json!({})).split_whitespace().count(), 16);
        // Also of a text that was cut, as Triton's tests expect it.
        let cut = frontend.asked(COMPLETIONS, &completion(model, "Once upon a time"));
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
        let cold = || text(json!({"temperature": 0, "max_tokens": 20}));
        assert_eq!(cold(), cold());
        let warm = |seed: u64| text(json!({"temperature": 1.5, "max_tokens": 20, "seed": seed}));
        assert_eq!(warm(7), warm(7));
        assert_ne!(warm(7), warm(8));
        let whole = cold();
        let second = whole.split_whitespace().nth(1).expect("a second word");
        let stopped = text(json!({"temperature": 0, "max_tokens": 20, "stop": [second, "never there"]}));
        assert!(whole.starts_with(&stopped) && !stopped.contains(second), "{stopped:?} of {whole:?}");
        assert_eq!(text(json!({"temperature": 0, "max_tokens": 20, "stop": second})), stopped);
        assert_eq!(text(json!({"temperature": 0, "max_tokens": 20, "stop": []})), whole);
    }
    frontend.stop();
}

#[test]
fn log_probabilities_of_a_vllm_model() {
    if has_run() {
        return;
    }
    let (backends, directory) = vllm_backend();
    let (repository, tokenizer) = (Repository::new(), Tokenizer::new());
    repository.model("llm", "backend: \"vllm\"");
    let Some(frontend) = Frontend::start(&repository, &[&directory, &tokenizer.flag()]) else { return };
    let script = "<<pieces [\"he\",\"llo\",\"\\u00e9\"]>>";
    let body = with(&chat("llm", script), json!({"logprobs": true, "top_logprobs": 2}));
    let answer = frontend.asked(CHAT, &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let tokens: Vec<&str> = content.iter().filter_map(|one| one["token"].as_str()).collect();
    assert_eq!(tokens, ["he", "llo", "\u{e9}"]);
    assert_eq!(content[2]["bytes"], json!([0xc3, 0xa9]));
    assert_eq!(content[0]["logprob"], -0.5);
    let top: Vec<&str> =
        content[0]["top_logprobs"].as_array().expect("a list").iter().filter_map(|one| one["token"].as_str()).collect();
    assert_eq!(top, ["he", "other2"]);
    let events = frontend.streamed(CHAT, &body);
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);
    assert_eq!(contents(&events).concat(), "hello\u{e9}");

    let body = with(&completion("llm", script), json!({"logprobs": 3}));
    let logprobs = frontend.asked(COMPLETIONS, &body)["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"], json!(["he", "llo", "\u{e9}"]));
    assert_eq!(logprobs["text_offset"], json!([0, 2, 5]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    assert_eq!(logprobs["top_logprobs"].as_array().map(Vec::len), Some(3));
    let events = frontend.streamed(COMPLETIONS, &body);
    let offsets: Vec<&Value> =
        events.iter().flat_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array()).flatten().collect();
    assert_eq!(offsets, [&json!(0), &json!(2), &json!(5)]);

    for off in [json!({"logprobs": 0}), json!({"logprobs": null}), json!({})] {
        let answer = frontend.asked(COMPLETIONS, &with(&completion("llm", script), off));
        assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    }
    // What is no number in JSON.
    for worst in ["-Infinity", "NaN"] {
        let script = format!("{script}<<logprob {worst}>>");
        let answer = frontend.asked(COMPLETIONS, &with(&completion("llm", &script), json!({"logprobs": 1})));
        assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!([-9999.0, -9999.0, -9999.0]));
    }
    let wrong = with(&completion("llm", "x"), json!({"best_of": 1}));
    let text = "best_of is no longer supported in vLLM backend, removed from vLLM V1 engine";
    assert_eq!(frontend.refused(400, COMPLETIONS, &wrong), text);
    drop(backends);
    frontend.stop();
}

#[test]
fn what_is_refused_behind_the_schema() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let Some(frontend) = Frontend::start(&repository, &[TRITON, &tokenizer.flag()]) else { return };
    for (more, text) in [
        (json!({"model": "absent"}), "Unknown model: absent"),
        (json!({"suffix": "x"}), "suffix is not currently supported"),
        (json!({"prompt": ""}), "prompt must be non-empty"),
        (json!({"prompt": []}), "prompt must be non-empty"),
        (json!({"prompt": ["a"]}), "only single string input is supported"),
        (json!({"prompt": [1, 2]}), "only single string input is supported"),
        (json!({"prompt": [[1], [2]]}), "only single string input is supported"),
        (json!({"n": 2}), "Received n=2, but only single choice (n=1) is currently supported"),
        (json!({"best_of": 3}), "Received best_of=3, but only single choice (best_of=1) is currently supported"),
        (json!({"logit_bias": {}}), "logit bias is not supported"),
        (json!({"logprobs": 1}), "logprobs are currently available only for the vLLM backend"),
        (json!({"stream_options": {}}), "`stream_options` can only be used when `stream` is True"),
        // The first of several.
        (json!({"stream_options": {}, "n": 2, "suffix": "x"}), "suffix is not currently supported"),
    ] {
        let body = with(&completion(MOCK, "x"), more);
        assert_eq!(frontend.refused(400, COMPLETIONS, &body), text, "{body}");
    }
    let image = json!({"type": "image_url", "image_url": {"url": "http://a.test/b.png"}});
    for (more, text) in [
        (json!({"n": 3}), "Received n=3, but only single choice (n=1) is currently supported"),
        (json!({"logit_bias": {"1": 2}}), "logit bias is not currently supported"),
        (json!({"logprobs": true}), "logprobs are currently available only for the vLLM backend"),
        (json!({"stream_options": {}}), "`stream_options` can only be used when `stream` is True"),
        (
            json!({"messages": [{"role": "user", "content": [image]}]}),
            "only text message is supported, but got image_url",
        ),
    ] {
        let body = with(&chat(MOCK, "x"), more);
        assert_eq!(frontend.refused(400, CHAT, &body), text, "{body}");
    }
    assert_eq!(
        frontend.asked(COMPLETIONS, &with(&completion(MOCK, "x"), json!({"best_of": 1})))["object"],
        "text_completion"
    );
    frontend.stop();
}
